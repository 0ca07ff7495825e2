"""Decides which GPUs of this machine pods may use, and reports those that are left out."""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import prometheus_client
import structlog

from podrace.gpus import VISIBLE, Gpu, Reading, check_selection, read_gpus, visible

FREE = prometheus_client.Gauge("podrace_orchestrator_gpu_free_bytes", "Free memory of a GPU", ["gpu"])
ERRORS = prometheus_client.Gauge(
    "podrace_orchestrator_gpu_uncorrected_errors",
    "Uncorrected memory errors (ECC) of a GPU since its driver was loaded",
    ["gpu"],
)
WITHHELD = prometheus_client.Gauge("podrace_orchestrator_gpu_withheld", "1 if pods do not get this GPU", ["gpu"])
READ_SECONDS = 5.0
"""Time between two readings of the driver."""
WAIT_SECONDS = 1.0
"""Time that a caller waits for a new reading; after it, the driver counts as one that does not answer."""
NO_ANSWER = "the driver does not answer"

_log = structlog.get_logger(__name__)


class LocalGpus:
    """The GPUs of this machine that pods may use.

    gpus = LocalGpus()
    await gpus.check()
    await gpus.refresh()
    uuids = gpus.usable(held)
    """

    def __init__(
        self,
        read: Callable[[], Reading] = read_gpus,
        *,
        environ: Mapping[str, str] = os.environ,
        owner: Callable[[int], int | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the list, which is empty at first.

        Args:
            read: Reads the driver.
            environ: Environment with CUDA_VISIBLE_DEVICES.
            owner: Returns the user id of a process, None if it is not known; None: read from /proc.
            clock: Returns seconds.
        """
        self._read, self._environ, self._owner, self._clock = read, environ, owner or owner_of, clock
        self._reading, self._read_time = Reading(), float("-inf")
        self._renewal: asyncio.Task[None] | None = None
        self._reported: frozenset[str] = frozenset()

    async def check(self) -> None:
        """Rejects a CUDA_VISIBLE_DEVICES that names GPUs which do not exist; ignored on a machine without GPUs.

        Raises:
            InvalidArgument: A name selects no GPU, or may mean several.
        """
        await self.refresh()
        gpus = self._reading.gpus
        if gpus:
            check_selection(visible(gpus, self._environ), gpus, VISIBLE, self._environ.get(VISIBLE, ""))

    async def refresh(self) -> None:
        """Reads the driver again if the last reading is old: in a thread, because a driver may take long, or hang."""
        is_first = self._read_time == float("-inf")
        if self._clock() - self._read_time < READ_SECONDS:
            return
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._renew())
        done, _ = await asyncio.wait([self._renewal], timeout=None if is_first else WAIT_SECONDS)
        if not done:
            self._reading = replace(self._reading, answered=False, problems=(NO_ANSWER,))
        for renewal in done:
            renewal.result()

    async def _renew(self) -> None:
        reading = await asyncio.to_thread(self._read)
        # A driver that does not answer for a while has the GPUs that it had.
        self._reading = reading if reading.answered else replace(reading, gpus=self._reading.gpus)
        self._read_time = self._clock()

    def usable(self, held: Collection[str] = ()) -> list[str]:
        """UUIDs of the GPUs that pods may use by the last reading, those without memory errors first.

        Args:
            held: UUIDs of GPUs that pods have; these stay usable, even if other processes use them as well.
        """
        reading = self._reading
        selected = visible(reading.gpus, self._environ)
        silent = "" if reading.answered else NO_ANSWER
        reasons = {gpu.uuid: silent or why_withheld(gpu, os.getuid(), self._owner) for gpu in selected.gpus}
        reasons = {uuid: reason for uuid, reason in reasons.items() if reason and uuid not in held}
        self._report(
            selected.gpus, reasons, (*reading.problems, *(f"there is no GPU {name}" for name in selected.unknown))
        )
        chosen = [gpu for gpu in selected.gpus if gpu.uuid not in reasons]
        return [gpu.uuid for gpu in sorted(chosen, key=lambda gpu: gpu.uncorrected_errors > 0)]

    def _report(self, gpus: Collection[Gpu], reasons: Mapping[str, str], problems: Collection[str]) -> None:
        """Exports metrics, and logs each problem once, and again if it returns after it had disappeared."""
        for gpu in gpus:
            FREE.labels(gpu.uuid).set(gpu.free_bytes)
            ERRORS.labels(gpu.uuid).set(gpu.uncorrected_errors)
            WITHHELD.labels(gpu.uuid).set(gpu.uuid in reasons)
        lines = {*problems, *(f"GPU {uuid} is not given to pods: {reason}" for uuid, reason in reasons.items())}
        lines |= {
            f"GPU {gpu.uuid} has uncorrected memory errors since its driver was loaded; pods get it last"
            for gpu in gpus
            if gpu.uncorrected_errors and gpu.uuid not in reasons
        }
        for line in sorted(lines - self._reported):
            _log.warning(line)
        self._reported = frozenset(lines)


def why_withheld(gpu: Gpu, user: int, owner: Callable[[int], int | None]) -> str:
    """Decides why pods of a user do not get a GPU; empty if they may. Pure apart from `owner`."""
    if gpu.fault:
        return gpu.fault
    for pid in gpu.pids:
        other = owner(pid)
        # The daemon of MPS and of the driver run as root and occupy nothing.
        if other not in (None, 0, user):
            return f"process {pid} of user {other} computes on it"
    return ""


def owner_of(pid: int) -> int | None:
    """User id of a process; None if this process cannot see it, as in a container."""
    with suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    return None

"""Runs pods as processes of this machine: forked by the fork server, described by a file each, cleaned up when dead.

The file <runtime folder>/pods/<pod_id>/pod.json lists the processes of a pod. A pod is alive as long as its leader is.
The leftovers of a dead pod (processes, folder, shared memory) are removed only here, and only if its tournament is one
of this orchestrator's: orchestrators of one user may share a runtime folder.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from orchestrator.decisions.resources import Capacity
from orchestrator.launchers.base import ListedPod, NewPod, PodEnvironment
from orchestrator.launchers.gpu_choice import choose_gpus
from orchestrator.launchers.host_capacity import sense
from orchestrator.launchers.log_tail import last_line
from orchestrator.launchers.options import ProcessOptions
from orchestrator.launchers.pod_settings import (
    LEADER,
    check_image,
    check_one_host,
    is_isolated,
    leader_settings,
    pod_settings,
)
from orchestrator.launchers.process.forkserver_client import ForkServerClient
from orchestrator.launchers.process.inspection import inspect
from orchestrator.launchers.process.local_gpus import LocalGpus
from orchestrator.launchers.process.pinned_cpus import cpus_of_other_pods
from orchestrator.launchers.process.pod_files import (
    POD_FILE,
    PodFile,
    PodsPresent,
    Reservation,
    read_pod_file,
    read_pods,
)
from orchestrator.launchers.process.user_ids import CodeUserIds
from podrace.errors import FailedPrecondition, FieldViolation, InvalidArgument, Unavailable
from podrace.limits.user_code import imports_user_code
from podrace.limits.user_environment import leader_variables, role_environment
from podrace.processes.identity import boot_id
from podrace.processes.machine_limits import allowed_cpus
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SHARED_MEMORY = Path("/dev/shm")
MAXIMUM_SOCKET_PATH_BYTES = 107
"""Length of Linux sun_path without the terminating zero."""
WRITING_SECONDS = 10.0
"""Time in which the fork server writes the pod file for a request of a previous orchestrator."""
EXIT_TIMEOUT_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class ProcessLauncher:
    """Launcher of pods as processes; see `Launcher` for the methods.

    async with ProcessLauncher(pod_environment, on_death=runtime.reconcile_requested.set) as launcher:
        await launcher.start(pod)
    """

    def __init__(
        self,
        pod_environment: PodEnvironment,
        on_death: Callable[[], None],
        *,
        shared_memory: Path = SHARED_MEMORY,
        gpus: LocalGpus | None = None,
        options: ProcessOptions | None = None,
        others_cpus: Callable[[Collection[int]], set[int]] = cpus_of_other_pods,
    ) -> None:
        """Creates the launcher; the fork server is started with the first pod.

        Args:
            pod_environment: Settings that all pods share.
            on_death: Called on the event loop when a pod has died.
            shared_memory: Folder where the pods' planes keep their files.
            gpus: GPUs of this machine; None: as the driver reports them.
            options: Options of this launcher; None: their defaults.
            others_cpus: Returns the processors that pods of other meshes have; see `cpus_of_other_pods`.
        """
        self._pod_environment = pod_environment
        self._on_death, self._others_cpus = on_death, others_cpus
        self._shared_memory, self._gpus = shared_memory, gpus or LocalGpus()
        self._folder = pod_environment.runtime_folder / "pods"
        self._user_ids = CodeUserIds(options or ProcessOptions(), pod_environment.runtime_folder)
        self._forkserver = ForkServerClient(
            pod_environment.runtime_folder / "forkserver.sock",
            pod_environment.log_folder / "forkserver.log",
            lifeline=pod_environment.lifeline,
            environ=role_environment(os.environ, pod_environment.allow),
        )
        self._inspecting, self._inspecting_uid = asyncio.Lock(), 0
        self._watched: dict[str, int] = {}
        self._own: set[str] = set()
        """Living pods of this orchestrator; they remain its own when their tournament is deleted."""
        self._starting: dict[str, Reservation] = {}
        self._using_files = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Creates the folder of the pods.

        Raises:
            InvalidArgument: CUDA_VISIBLE_DEVICES names GPUs that do not exist.
        """
        await self._gpus.check()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops watching the pods, which keep running; without pods, stops the fork server."""
        living = await self._clean_up()
        for pod_id in list(self._watched):
            self._unwatch(pod_id)
        await self._forkserver.close(stop_server=not living)

    async def list(self) -> Sequence[ListedPod]:
        """See Launcher. Reads a small file per pod and role from a memory-backed folder, in a thread."""
        async with self._pods() as pods:
            for pod_id, file in pods.files.items():
                own = self._is_own(pod_id)
                if file is not None and pod_id in pods.living:
                    self._watch(pod_id, file)
                    self._own |= {pod_id} if own else set()
                # A file of an earlier pod of this id may have been replaced since it was read.
                elif own and pod_id not in pods.starting and (file is not None or self._is_abandoned(pod_id)):
                    self._remove_leftovers(pod_id, file)
        host = reachable_host(self._pod_environment.telemetry.metrics_listen)
        return await asyncio.to_thread(_listed, [*pods.living.values()], host)

    async def start(self, pod: NewPod) -> None:
        """See Launcher."""
        self._check(pod)
        if pod.spec.gpus:
            await self._gpus.refresh()
        async with self._pods() as pods:
            if pod.pod_id in pods.living:
                return
            others = await asyncio.to_thread(self._others_cpus, pods.pids)
            reserved = self._starting[pod.pod_id] = self._choose(pod, pods, others)
        try:
            answer = await self._forkserver.send_request(self._request(pod, reserved), self._secrets(pod))
        finally:
            del self._starting[pod.pod_id]
        if "pid" not in answer:
            kind = Unavailable if answer.get("passing") else FailedPrecondition
            raise kind(f"{pod.pod_id} was not started: {answer.get('error', answer)}")

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        """See Launcher."""
        file = await asyncio.to_thread(read_pod_file, self._folder / pod_id / POD_FILE)
        if file is None or not file.lives:
            return
        # After the file was read: a later leader may have started another pod of this name, with other processes.
        self._pod_environment.check_leads()
        if not kill:
            file.roles[LEADER].signal(signal.SIGTERM)
            return
        # The leader first, because the fork server restarts the other roles while the leader is alive.
        for process in sorted(file.roles.values(), key=lambda process: process != file.roles[LEADER]):
            process.signal(signal.SIGKILL)

    async def capacity(self) -> Capacity:
        """Returns the capacity of this machine, as far as this process may use it."""
        await self._gpus.refresh()
        async with self._pods() as pods:
            return sense(len(self._gpus.usable(pods.held_gpus)))

    async def inspect(self, spec: TournamentSpec) -> Sequence[FieldViolation]:
        """See Inspector. One specification at a time."""
        allowed = self._pod_environment.allow
        async with self._inspecting:
            uid = 0
            if imports_user_code(spec) and not allowed.everything:
                async with self._pods() as pods:
                    uid = self._inspecting_uid = self._user_ids.choose(pods.uids)
            try:
                return await inspect(spec, allowed, os.environ, user_id=uid)
            finally:
                self._user_ids.kill(uid)
                self._inspecting_uid = 0

    def last_log_line(self, pod_id: str) -> str:
        """See Launcher."""
        return last_line(self._log_path(pod_id))

    # --- starting ---------------------------------------------------------------------------------------------

    def _secrets(self, pod: NewPod) -> bytes:
        """Returns what only the leader may know: its token, and the variables with the keys of the store."""
        variables = leader_variables(os.environ, self._pod_environment.allow)
        return json.dumps({**leader_settings(pod, self._pod_environment), "variables": variables}).encode()

    def _request(self, pod: NewPod, reserved: Reservation) -> dict[str, Any]:
        settings = self._user_ids.settings(reserved.uid, pod.pod_id)
        return {"pod": self._pod_order(pod, reserved) | settings, "secrets": True}

    def _pod_order(self, pod: NewPod, reserved: Reservation) -> dict[str, Any]:
        pod_environment = self._pod_environment
        settings = pod_settings(pod, pod_environment)
        host = pod_environment.telemetry.metrics_listen.rpartition(":")[0]
        # Every role needs its own port.
        settings["telemetry"]["metrics_listen"] = f"{host}:0" if host else ""
        return settings | {
            "cpus": reserved.cpus,
            "gpus": reserved.gpus,
            "folder": str(self._folder / pod.pod_id),
            "log_path": str(self._log_path(pod.pod_id)),
            "lifeline": pod_environment.lifeline,
        }

    def _check(self, pod: NewPod) -> None:
        check_one_host(pod.spec, "process")
        check_image(pod.spec, "process")
        if is_isolated(pod, self._pod_environment):
            self._user_ids.check(pod.spec)
        longest = self._folder / pod.pod_id / f"worker-{max(pod.spec.workers, 100)}.sock"
        excess = len(str(longest).encode()) - MAXIMUM_SOCKET_PATH_BYTES
        if excess > 0:
            raise InvalidArgument(
                f"name: {excess} characters too long for the pods' socket paths under {self._folder};"
                " choose a shorter name or a shorter runtime_folder"
            )

    def _choose(self, pod: NewPod, pods: PodsPresent, others_cpus: set[int]) -> Reservation:
        """Chooses processors, GPUs and a user id that no other pod has, except those that make room for this one."""
        spec, yielding = pod.spec, {pod.replaces, *pod.retired}
        taken = (file.cpus for pod_id, file in pods.living.items() if pod_id not in yielding)
        promised = (reserved.cpus for reserved in pods.starting.values())
        cpus = choose_cpus(spec.cores, allowed_cpus(), [others_cpus, *taken, *promised])
        gpus = choose_gpus(pod, self._gpus.usable(pods.held_gpus), pods.gpus_by_pod) if spec.gpus else ()
        apart = is_isolated(pod, self._pod_environment)
        uid = self._user_ids.choose({self._inspecting_uid, *pods.uids}) if apart else 0
        return Reservation(cpus, gpus, uid)

    def _log_path(self, pod_id: str) -> Path:
        return self._pod_environment.log_folder / f"{pod_id}.log"

    # --- watching and cleaning up -----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _pods(self) -> AsyncIterator[PodsPresent]:
        """Reads the pod files; until the end of the block, no other call reserves or removes anything."""
        async with self._using_files:
            # Copied before the files are read: a pod that is no longer in it afterwards has a file.
            yield await asyncio.to_thread(read_pods, self._folder, dict(self._starting))

    def _watch(self, pod_id: str, file: PodFile) -> None:
        if pod_id in self._watched:
            return
        descriptor = file.roles[LEADER].open()
        if descriptor is not None:
            self._watched[pod_id] = descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._on_pod_death, pod_id)

    def _unwatch(self, pod_id: str) -> None:
        descriptor = self._watched.pop(pod_id, None)
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def _on_pod_death(self, pod_id: str) -> None:
        self._unwatch(pod_id)
        self._on_death()

    async def _clean_up(self) -> Sequence[ListedPod]:
        """Like `list`, but also waits for killed processes, so that no leftovers remain."""
        await self.list()
        found = await asyncio.to_thread(read_pods, self._folder, {})
        for pod_id, file in found.files.items():
            if file is not None and not file.lives and self._is_own(pod_id):
                for process in file.roles.values():
                    await process.ended(EXIT_TIMEOUT_SECONDS)
        return await self.list()

    def _is_own(self, pod_id: str) -> bool:
        """Whether a pod belongs to this orchestrator, and not to another one with the same runtime folder."""
        return pod_id in self._own or self._pod_environment.owns_tournament(pod_id.rpartition("-p")[0])

    def _is_abandoned(self, pod_id: str) -> bool:
        """Whether a folder has no pod file, and no process is about to write one."""
        age_seconds = time.time() - (self._folder / pod_id).stat().st_mtime
        return pod_id not in self._starting and age_seconds > WRITING_SECONDS

    def _remove_leftovers(self, pod_id: str, file: PodFile | None) -> None:
        """Removes the leftovers of a dead pod; if processes still run, kills them and removes the rest next time."""
        self._unwatch(pod_id)
        leftover = [role for role in file.roles.values() if role.lives] if file and file.boot_id == boot_id() else []
        for process in leftover:
            process.signal(signal.SIGKILL)
        # What user code has started leads no group that is known here.
        if leftover or (file and self._user_ids.kill(file.user_code_uid)):
            return
        self._user_ids.remove_folder(pod_id)
        shutil.rmtree(self._folder / pod_id, ignore_errors=True)
        region = re.compile(rf"podrace-{re.escape(pod_id)}-[^-]+")
        for path in self._shared_memory.iterdir():
            # Region names have no dash, so pods whose id starts with this id keep their files.
            if region.fullmatch(path.name):
                # Another user may have made a file of that name.
                with contextlib.suppress(OSError):
                    path.unlink()
        self._own.discard(pod_id)
        _log.info("removed the files of a pod that has exited", pod_id=pod_id)


def _listed(files: Sequence[PodFile], host: str) -> Sequence[ListedPod]:
    """Returns pods with the addresses of their metrics; the host is empty if they serve none."""
    return [replace(file.pod, metrics=file.metrics(host)) if host else file.pod for file in files]


def choose_cpus(cores: float, allowed: Sequence[int], taken: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """Chooses unoccupied processors for a pod with whole cores; returns none if there are too few."""
    occupied = {cpu for cpus in taken for cpu in cpus}
    free = [cpu for cpu in allowed if cpu not in occupied]
    count = int(cores)
    return tuple(free[:count]) if count == cores and count <= len(free) else ()


def reachable_host(listen: str) -> str:
    """Returns the host in the addresses of metrics: that on which they are served, or the name of this machine.

    Args:
        listen: Address of the metrics, `host:port`; empty: none are served.
    """
    host = listen.rpartition(":")[0]
    return socket.gethostname() if host in ("0.0.0.0", "[::]", "::") else host

"""Describes the devices that a part measures, and times work on them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from podrace.gpus import Gpu, Reading
from podrace.qualification.findings import Finding, Grade


@dataclass(frozen=True)
class Bench:
    """What a part runs on."""

    folder: Path
    """Empty folder for everything that the part writes."""
    reading: Reading = field(default_factory=Reading)
    """What the driver reported."""
    gpus: tuple[Gpu, ...] = ()
    """The GPUs to examine; PyTorch sees these alone, in this order."""
    quick: bool = False
    """Whether to measure for a shorter time."""
    node: int = 0
    """Number of this node."""
    meet: str = ""
    """`host:port` at which node 0 of two waits for node 1; empty: there is one node."""
    orchestrator: str = ""
    """Address of an orchestrator whose launcher is examined; empty: none."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Torch devices of the GPUs; the processor takes their place if there are none."""
        return tuple(f"cuda:{number}" for number in range(len(self.gpus))) or ("cpu",)

    @property
    def ends(self) -> tuple[str, ...]:
        """The first and the last device; one if there is only one."""
        return tuple(dict.fromkeys((self.devices[0], self.devices[-1])))

    def graded(self, finding: Finding) -> Finding:
        """Returns a finding as it is worth on this machine: without a GPU nothing passes."""
        return finding if self.gpus else finding.on_processors()


class MeasuredPart(Protocol):
    """One part: measures and yields what it found."""

    def __call__(self, bench: Bench) -> Iterator[Finding]:
        """Runs the part."""
        ...


def synchronize(device: str) -> None:
    """Waits until a device has done its work; the processor always has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def seconds_per_call(function: Callable[[], object], device: str, calls: int, repeats: int = 3) -> float:
    """Returns the least mean time of a call over some repeats, in seconds, until the device has done the work.

    The function is first called without being timed, because libraries load kernels and allocate memory on first use.
    """
    function()
    least = float("inf")
    for _ in range(repeats):
        synchronize(device)
        started = time.perf_counter()
        for _ in range(calls):
            function()
        synchronize(device)
        least = min(least, (time.perf_counter() - started) / calls)
    return least


def graded_rate(value: float, bound: float) -> Grade:
    """Returns PASS for a rate that reaches its bound, otherwise SLOW. Pure."""
    return Grade.PASS if value >= bound else Grade.SLOW


def count(value: float) -> str:
    """Returns a rate with a suffix: 5.7M, 331k, 12.5."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"

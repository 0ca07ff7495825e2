"""Measures what everything on a GPU is made of: copies, kernel launches and graph launches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from agentpod.qualification.bench import Bench, graded_rate, seconds_per_call
from podrace.qualification.findings import Finding, Grade
from simulators.cuda_graph import record_graph

PART = "primitives"
PINNED_GB_PER_SECOND = 10.0
"""PCI Express 3.0 with 16 lanes copies 12 GB/s from pinned memory, 4.0 copies 25, 5.0 copies 55."""
PAGEABLE_GB_PER_SECOND = 2.0
SHARE_OF_BANDWIDTH = 0.6
"""Share of the memory's bandwidth that a copy on the device must reach."""
LAUNCH_MICROSECONDS = 15.0
"""PyTorch takes 4 to 10 microseconds to launch a kernel."""
GRAPH_SHARE = 0.5
"""A kernel in a graph must take at most this share of the time of one that is launched."""
KERNELS = 100
"""Kernels in the graph that is timed."""


@dataclass(frozen=True)
class Primitives:
    """Measurements of one device."""

    device: str
    to_device_pinned: float
    """GB/s, as the following three."""
    to_host_pinned: float
    to_device_pageable: float
    to_host_pageable: float
    on_device: float
    """GB/s read and written by a copy within the device."""
    bandwidth: float
    """GB/s of the device's memory by its clock and width; 0: unknown."""
    launch_seconds: float
    """One small kernel, launched from Python."""
    graph_seconds: float
    """One kernel of a graph of KERNELS."""


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades the first and the last device."""
    for device in bench.ends:
        yield from judge(measure(device, quick=bench.quick))


def judge(found: Primitives) -> Iterator[Finding]:
    """Grades the primitives of a device. Pure."""
    link = "check the link with `nvidia-smi -q -d PCIE`, and that the process runs on the GPU's NUMA node"
    staging = "the host's memory is slow; check that the process runs on the GPU's NUMA node"
    for name, value, bound, remedy in (
        ("pinned to device", found.to_device_pinned, PINNED_GB_PER_SECOND, link),
        ("device to pinned", found.to_host_pinned, PINNED_GB_PER_SECOND, link),
        ("pageable to device", found.to_device_pageable, PAGEABLE_GB_PER_SECOND, staging),
        ("device to pageable", found.to_host_pageable, PAGEABLE_GB_PER_SECOND, staging),
        ("copy on the device", found.on_device, SHARE_OF_BANDWIDTH * found.bandwidth, "another process uses the GPU"),
    ):
        grade = graded_rate(value, bound)
        expected = f"at least {bound:.0f} GB/s" if bound else ""
        remedy = remedy if grade == Grade.SLOW else ""
        yield Finding(PART, f"{name}, {found.device}", grade, f"{value:.1f} GB/s", expected, remedy=remedy)
    yield from _judge_launches(found)


def _judge_launches(found: Primitives) -> Iterator[Finding]:
    launch, graph = found.launch_seconds * 1e6, found.graph_seconds * 1e6
    fast = launch <= LAUNCH_MICROSECONDS
    yield Finding(
        PART,
        f"kernel launch, {found.device}",
        Grade.PASS if fast else Grade.SLOW,
        f"{launch:.1f} us",
        f"at most {LAUNCH_MICROSECONDS:g} us",
        remedy="" if fast else "unset CUDA_LAUNCH_BLOCKING; set the CPU governor to performance",
    )
    fast = graph <= GRAPH_SHARE * launch
    yield Finding(
        PART,
        f"kernel in a graph, {found.device}",
        Grade.PASS if fast else Grade.SLOW,
        f"{graph:.2f} us, {launch / graph:.1f} times as fast as a launch",
        f"at most {GRAPH_SHARE * launch:.1f} us",
        remedy="" if fast else "another process uses the GPU, or its clock is low: `nvidia-smi -q -d CLOCK`",
    )


def measure(device: str, *, quick: bool) -> Primitives:
    """Measures a device."""
    on_gpu = torch.device(device).type == "cuda"
    size = (64 if quick else 256) << 20 if on_gpu else 1 << 20
    calls = 10 if on_gpu else 3
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    other = torch.zeros_like(there)
    pageable = torch.zeros(size, dtype=torch.uint8)
    # Memory can be pinned only where there is a driver.
    pinned = pageable.pin_memory() if on_gpu else pageable.clone()

    def rate(target: torch.Tensor, source: torch.Tensor) -> float:
        seconds = seconds_per_call(lambda: target.copy_(source, non_blocking=True), device, calls)
        return size / seconds / 1e9

    small = torch.zeros(1024, device=device)
    graph = _graph(lambda: small.add_(1.0), device)
    return Primitives(
        device=device,
        to_device_pinned=rate(there, pinned),
        to_host_pinned=rate(pinned, there),
        to_device_pageable=rate(there, pageable),
        to_host_pageable=rate(pageable, there),
        on_device=2 * rate(other, there),
        bandwidth=memory_bandwidth(device),
        launch_seconds=seconds_per_call(lambda: small.add_(1.0), device, 1000),
        graph_seconds=seconds_per_call(graph, device, 50) / KERNELS,
    )


def _graph(kernel: Callable[[], object], device: str) -> Callable[[], object]:
    """Returns a function that launches KERNELS kernels at once; on the processor one after another."""

    def kernels() -> None:
        for _ in range(KERNELS):
            kernel()

    if torch.device(device).type != "cuda":
        return kernels
    return record_graph(kernels, (), torch.device(device))[0]


def memory_bandwidth(device: str) -> float:
    """Returns the bandwidth of a device's memory in GB/s: two transfers a clock over its width; 0 if unknown."""
    if torch.device(device).type != "cuda":
        return 0.0
    properties = torch.cuda.get_device_properties(device)
    clock_khz, width_bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    return float(2 * clock_khz * 1e3 * width_bits / 8 / 1e9)

"""Computes from samples of a running mesh what grows. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOUR = 3600.0
MEBIBYTE = 1 << 20
EDGE = 5
"""Number of samples at each end of the window whose median is a count at that end."""
MOST_MEBIBYTES_PER_HOUR = 1.0
"""Of each process."""

HISTORY = {
    "orchestrator.agents",
    "orchestrator.events",
    "leaderboard.agents",
    "leaderboard.proposals",
    "leaderboard.submissions",
}
"""Tables that keep what happened: they get rows with each agent."""
OBJECTS = "store.objects"
OBJECTS_OF_AGENT = 13
"""Objects that the store keeps for each agent: its pointer, and the files of its newest checkpoint, of the one before,
and of its last submission. A checkpoint of PPO has four files."""


@dataclass(frozen=True)
class Usage:
    """What one process uses."""

    memory_bytes: int
    """Proportional set size: its own pages, and its share of pages that several processes use.

    Without pages of files: libraries do not grow, and the share of a process in them depends on what else runs.
    """
    handles: int
    """Open file descriptors."""
    threads: int


@dataclass(frozen=True)
class Sample:
    """What a mesh uses at one time."""

    seconds: float
    processes: Mapping[str, Usage]
    """By name and pid."""
    counts: Mapping[str, int]
    """Rows of each table, and objects of the store that are old enough to be deleted."""


@dataclass(frozen=True)
class Growth:
    """How a process changed within the window."""

    memory_mebibytes: float
    """Mean, in MiB."""
    mebibytes_per_hour: float
    """Slope of the line of least squares."""
    handles: int
    threads: int


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Returns the slope of the line of least squares through points (x, y); 0 for fewer than two different x."""
    if len({x for x, _ in points}) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def last(samples: Sequence[Sample], seconds: float) -> Sequence[Sample]:
    """Returns the samples of the last `seconds`."""
    return [sample for sample in samples if sample.seconds >= samples[-1].seconds - seconds]


def growth_of_processes(window: Sequence[Sample]) -> dict[str, Growth]:
    """Returns how each process changed that was there in all samples of the window."""
    common = set.intersection(*(set(sample.processes) for sample in window))
    found = {}
    for name in sorted(common):
        usages = [sample.processes[name] for sample in window]
        memory = [usage.memory_bytes / MEBIBYTE for usage in usages]
        hours = [sample.seconds / HOUR for sample in window]
        found[name] = Growth(
            statistics.mean(memory),
            slope(list(zip(hours, memory, strict=True))),
            _increase([usage.handles for usage in usages]),
            _increase([usage.threads for usage in usages]),
        )
    return found


def growth_of_counts(window: Sequence[Sample]) -> dict[str, int]:
    """Returns the increase of each count within the window."""
    return {name: _increase([sample.counts.get(name, 0) for sample in window]) for name in window[-1].counts}


def _increase(values: Sequence[int]) -> int:
    return round(statistics.median(values[-EDGE:]) - statistics.median(values[:EDGE]))


def faults(processes: Mapping[str, Growth], counts: Mapping[str, int], agents: int) -> list[str]:
    """Returns what grows although nothing that the specification keeps has become more.

    Args:
        processes: Growth of the processes.
        counts: Growth of the tables.
        agents: Agents that were generated in the window. A table of HISTORY may get rows with each of them, and the
            store OBJECTS_OF_AGENT objects. A process may have some handles and threads more at one moment than at
            another, but not more with each agent.
    """
    found = []
    for name, grown in processes.items():
        if grown.mebibytes_per_hour > MOST_MEBIBYTES_PER_HOUR:
            found.append(f"{name}: memory grows by {grown.mebibytes_per_hour:.2f} MiB/h")
        for what, more in (("handles", grown.handles), ("threads", grown.threads)):
            if more > max(2, agents // 20):
                found.append(f"{name}: {more} more {what}")
    for name, more in counts.items():
        kept = OBJECTS_OF_AGENT * agents if name == OBJECTS else 0
        if name not in HISTORY and more > max(2, agents // 20, kept):
            found.append(f"{name}: {more} more")
    return found

"""Computes what faults cost, from steps that count and from the events of a tournament. Pure."""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from chaos_faults import Fault

ENDS = ("agent_drained", "agent_finished", "agent_failed", "agent_stopped")
"""Events after which no pod holds the agent."""
POD_ENDS = ("pod_gone", "pod_died", "pod_killed")
"""Events after which a pod holds no agent."""


@dataclass(frozen=True)
class Interval:
    """What happened between a fault and the next one."""

    fault: Fault
    seconds: float
    steps: int
    """Environment steps that count, of all pods."""
    injected: bool = True
    """False if the fault could not happen: the interval then says nothing about faults."""


@dataclass(frozen=True)
class Cost:
    """What the faults of one class cost, in seconds of all pods together."""

    count: int
    mean: float
    standard_error: float | None
    """Of the mean; None for a single fault."""
    least: float
    most: float

    def rounded(self) -> dict[str, float | None]:
        """Returns it as values for JSON."""
        return {name: value and round(value, 1) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Happened:
    """An event of a tournament."""

    seconds: float
    """Time."""
    kind: str
    pod_id: str = ""
    agent_id: str = ""


def goodput(intervals: Sequence[Interval], steps_per_second: float) -> float | None:
    """Returns the share of the pods' time that was not lost; None if no fault happened.

    Args:
        intervals: All intervals of the run. Those without a fault are left out.
        steps_per_second: Rate of all pods without faults; the environment sleeps, so that it is the same at any load.
    """
    after_faults = [one for one in intervals if one.injected]
    if not after_faults:
        return None
    return sum(one.steps for one in after_faults) / (steps_per_second * sum(one.seconds for one in after_faults))


def costs(intervals: Iterable[Interval], steps_per_second: float, pods: int) -> dict[str, Cost]:
    """Returns the time that each class of faults cost, in seconds of one pod, without faults that did not happen."""
    lost: dict[str, list[float]] = {}
    for one in intervals:
        if one.injected:
            lost.setdefault(one.fault.name, []).append((one.seconds - one.steps / steps_per_second) * pods)
    return {
        name: Cost(
            count=len(seconds),
            mean=statistics.mean(seconds),
            standard_error=statistics.stdev(seconds) / len(seconds) ** 0.5 if len(seconds) > 1 else None,
            least=min(seconds),
            most=max(seconds),
        )
        for name, seconds in sorted(lost.items())
    }


def not_injected(intervals: Iterable[Interval]) -> Mapping[str, int]:
    """Returns how many faults of each class did not happen."""
    return Counter(one.fault.name for one in intervals if not one.injected)


def missing_candidates(
    accepted: Mapping[str, float], kept: Collection[str], unprotected: Iterable[tuple[float, float]]
) -> tuple[set[str], set[str]]:
    """Returns the accepted candidates that a leaderboard no longer has, in two parts.

    Args:
        accepted: When each candidate was accepted, in seconds since 1970.
        kept: Candidates that the leaderboard has.
        unprotected: For each loss of its database, the time of the newest backup and that of the loss.

    Returns:
        Candidates that were lost, and those that were accepted between the newest backup and a loss: no service
        promises to keep these.
    """
    missing = accepted.keys() - set(kept)
    after_backup = {
        candidate for candidate in missing if any(begin <= accepted[candidate] <= end for begin, end in unprotected)
    }
    return missing - after_backup, after_backup


def held_share(events: Iterable[Happened], begin: float, end: float, pods: int) -> float:
    """Returns the share of the pods' time in which a pod held an agent, between two times.

    Work that is lost because it began after the last checkpoint is not in the events: see `goodput`.
    """
    holders: dict[str, float] = {}
    held = 0.0
    for event in events:
        if event.kind == "agent_assigned":
            held += _overlap(holders.pop(event.pod_id, None), event.seconds, begin, end)
            holders[event.pod_id] = event.seconds
        elif event.kind in (*ENDS, *POD_ENDS):
            held += _overlap(holders.pop(event.pod_id, None), event.seconds, begin, end)
    held += sum(_overlap(since, end, begin, end) for since in holders.values())
    return held / (pods * (end - begin))


def _overlap(since: float | None, until: float, begin: float, end: float) -> float:
    return 0.0 if since is None else max(0.0, min(until, end) - max(since, begin))


def restarts(events: Iterable[Happened], begin: float = 0.0) -> Mapping[str, int]:
    """Returns how often agents were assigned again because their pod was lost, and because it gave them back.

    Args:
        events: All events. The lease epoch would not do: it is higher from the start after a database was restored.
        begin: Assignments before this time are not counted.
    """
    held: set[str] = set()
    returned: set[str] = set()
    counts = {"after the loss of a pod": 0, "after a pod returned it": 0}
    for event in events:
        if event.kind in ENDS and event.agent_id in held:
            returned.add(event.agent_id)
        elif event.kind == "agent_assigned":
            if event.agent_id in held and event.seconds >= begin:
                counts["after a pod returned it" if event.agent_id in returned else "after the loss of a pod"] += 1
            held.add(event.agent_id)
            returned.discard(event.agent_id)
    return counts

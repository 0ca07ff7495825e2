"""Computes what faults cost, from steps that count and from the events of a tournament. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Cost:
    """Mean cost of a class of faults."""

    count: int
    seconds: float
    """Seconds of all pods together that were lost."""


@dataclass(frozen=True)
class Happened:
    """An event of a tournament."""

    seconds: float
    """Time."""
    kind: str
    pod_id: str = ""
    agent_id: str = ""


def goodput(intervals: Sequence[Interval], steps_per_second: float) -> float:
    """Returns the share of the pods' time that was not lost.

    Args:
        intervals: All intervals of the run.
        steps_per_second: Rate of all pods without faults; the environment sleeps, so that it is the same at any load.
    """
    return sum(one.steps for one in intervals) / (steps_per_second * sum(one.seconds for one in intervals))


def costs(intervals: Sequence[Interval], steps_per_second: float, pods: int) -> dict[str, Cost]:
    """Returns the mean time that each class of faults cost, in seconds of one pod."""
    found: dict[str, Cost] = {}
    for name in sorted({one.fault.name for one in intervals}):
        same = [one for one in intervals if one.fault.name == name]
        lost = sum(one.seconds - one.steps / steps_per_second for one in same) * pods
        found[name] = Cost(len(same), lost / len(same))
    return found


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

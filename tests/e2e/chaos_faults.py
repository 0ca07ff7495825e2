"""Faults of a chaos run as data: which, when, and for how long. Pure."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

ROLES = ("worker-0", "evaluator", "learner")
SERVICES = ("orchestrator", "leaderboard")


@dataclass(frozen=True)
class FaultKind:
    """A class of faults."""

    targets: Sequence[str]
    """Roles of pods and services that it may meet."""
    seconds: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest duration; 0: it has none."""


KINDS: Mapping[str, FaultKind] = {
    "kill": FaultKind((*ROLES, *SERVICES, "fork server")),
    "stop": FaultKind((*ROLES, *SERVICES), (2.0, 15.0)),
    "full": FaultKind(("store",), (3.0, 10.0)),
    "lose": FaultKind(("orchestrator database",)),
}
"""`kill`: SIGKILL. `stop`: SIGSTOP, later SIGCONT. `full`: the disk of the store has no room. `lose`: the orchestrator
is killed and its database deleted, so that it starts from a backup."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    at_seconds: float
    """Time since the begin of the faults."""
    kind: str
    target: str
    seconds: float

    @property
    def name(self) -> str:
        """Its class in the results."""
        return f"{self.kind} {self.target}"


def plan(seed: int, seconds: float, period_seconds: float, kinds: Collection[str]) -> list[Fault]:
    """Draws the faults of a run: one each period, equal for equal arguments. Every class is met before any again."""
    draw = random.Random(seed)
    classes = [(kind, target) for kind in KINDS if kind in kinds for target in KINDS[kind].targets]
    faults: list[Fault] = []
    waiting: list[tuple[str, str]] = []
    while (len(faults) + 1) * period_seconds <= seconds:
        if not waiting:
            waiting = draw.sample(classes, len(classes))
        kind, target = waiting.pop()
        faults.append(Fault(len(faults) * period_seconds, kind, target, draw.uniform(*KINDS[kind].seconds)))
    return faults


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

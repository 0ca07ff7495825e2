"""Faults of a chaos run as data: which, where, when, and for how long. Pure."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SECONDS: Mapping[str, tuple[float, float]] = {
    "kill": (0.0, 0.0),
    "restart": (0.0, 0.0),
    "stop": (2.0, 15.0),
    "slow": (5.0, 15.0),
    "hold": (3.0, 10.0),
    "memory": (0.0, 0.0),
    "full": (3.0, 10.0),
    "lose": (0.0, 0.0),
    "cut": (3.0, 15.0),
    "disconnect": (3.0, 15.0),
    "absent": (0.0, 0.0),
}
"""Shortest and longest duration by kind; 0: it has none.

`kill`: SIGKILL. `restart`: SIGTERM and a new process. `stop`: SIGSTOP or a frozen container, until it continues.
`slow`: the process runs a tenth of the time. `hold`: a thread of the process holds the interpreter's lock. `memory`: a
process allocates until the kernel kills it. `full`: the disk has no room. `lose`: what a machine or an administrator
takes away at once, and does not give back. `cut`: all network traffic is dropped. `disconnect`: a container has no
network. `absent`: the kubelet is stopped until its node is not ready, however long the cluster needs to notice it.

Wall clocks that jump are not among them: libfaketime 0.9.10 makes `time.sleep` of Python 3.11 fail, and gRPC waits for
absolute times of the kernel's clock, which a library that is loaded before it cannot change. `test_clock_jumps.py` in
three folders of tests injects clocks that jump, and tests/architecture/test_clocks.py lists who reads a wall clock.
"""
ROLES = ("worker-0", "evaluator", "learner")
SERVICES = ("orchestrator", "leaderboard")


def _classes(**targets: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((kind, target) for kind, named in targets.items() for target in named)


CLASSES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "embedded": _classes(
        kill=(*ROLES, *SERVICES, "fork server"),
        stop=(*ROLES, *SERVICES),
        slow=("worker-0", "orchestrator"),
        hold=("environment",),
        full=("store",),
        lose=("orchestrator database", "leaderboard database", "pod"),
    ),
    "compose": _classes(
        kill=(*ROLES, *SERVICES, "store"),
        restart=(*SERVICES, "store"),
        stop=(*ROLES, *SERVICES, "store"),
        slow=("worker-0", "orchestrator"),
        hold=("environment",),
        memory=("environment",),
        full=("store", "leaderboard", "orchestrator"),
        lose=("pod",),
        cut=("learner", *SERVICES, "store"),
        disconnect=("learner", "leaderboard"),
    ),
    "kubernetes": _classes(
        kill=(*ROLES, *SERVICES, "store"),
        restart=(*SERVICES,),
        stop=(*ROLES, *SERVICES),
        slow=("worker-0", "orchestrator"),
        hold=("environment",),
        memory=("environment",),
        full=("store", "leaderboard", "orchestrator"),
        lose=("pod", "Job"),
        cut=("learner", *SERVICES),
        absent=("node",),
    ),
}
"""Classes of faults, as kind and target, that each kind of mesh can have."""
FUSED_CLASSES = _classes(kill=("learner-1",), stop=("learner-1",))
"""Further classes if an agent has two learners: their fusion group loses a member, or waits for one."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    at_seconds: float
    """Time since the faults began."""
    kind: str
    target: str
    seconds: float

    @property
    def name(self) -> str:
        """Its class in the results."""
        return f"{self.kind} {self.target}"


def plan(
    seed: int,
    seconds: float,
    period_seconds: float,
    classes: Sequence[tuple[str, str]],
    lasting_seconds: float | None = None,
) -> list[Fault]:
    """Draws the faults of a run: one each period, equal for equal arguments. Every class is met before any again.

    With `lasting_seconds`, each fault that has a duration has this one.
    """
    draw = random.Random(seed)
    faults: list[Fault] = []
    waiting: list[tuple[str, str]] = []
    while (len(faults) + 1) * period_seconds <= seconds:
        if not waiting:
            waiting = draw.sample(classes, len(classes))
        kind, target = waiting.pop()
        drawn = draw.uniform(*SECONDS[kind])
        lasting = lasting_seconds if drawn and lasting_seconds is not None else drawn
        faults.append(Fault(len(faults) * period_seconds, kind, target, lasting))
    return faults

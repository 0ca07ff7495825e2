"""Lists the parts of a qualification, in the order in which they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from podrace.config import unknown
from podrace.errors import InvalidArgument


@dataclass(frozen=True)
class QualificationPart:
    """One part, which runs in its own process."""

    help: str
    """What it examines."""
    limit_seconds: float
    """It is killed when it takes longer."""
    quick_limit_seconds: float
    """The same with --quick."""


PARTS: Mapping[str, QualificationPart] = {
    "machine": QualificationPart("GPUs, driver, versions, names, shared memory, InfiniBand", 90, 90),
    "primitives": QualificationPart("copies, launches and graph launches", 120, 60),
    "numerics": QualificationPart("every algorithm's update on the GPU against the CPU, and repeated", 300, 120),
    "graphs": QualificationPart(
        "captured simulators, rollouts and updates against eager ones, on the first and the last GPU", 300, 120
    ),
    "planes": QualificationPart("pods on each plane; where the worker computed; either side killed", 400, 240),
    "rates": QualificationPart("steps per second of simulators, rollouts, updates and a whole pod", 600, 300),
    "learning": QualificationPart("returns reached in a time limit", 700, 240),
    "resume": QualificationPart("kill -9 of a pod that trains on the GPU, and its continuation", 180, 120),
    "collectives": QualificationPart(
        "NCCL between GPUs: join, mean, paths, a killed member, fusion of learners", 600, 300
    ),
    "nodes": QualificationPart("the same between two nodes, with --meet", 300, 300),
    "tournament": QualificationPart("one pod on each GPU, no two on the same", 240, 240),
}
"""By name."""
LAUNCHER_SECONDS = 1000.0
"""Additional limit of the part `planes` for pods that a launcher starts, which may have to pull an image."""


def chosen_parts(names: Sequence[str]) -> list[str]:
    """Returns the parts to run, in order; all if no names are given.

    Raises:
        InvalidArgument: There is no part of that name.
    """
    for name in names:
        if name not in PARTS:
            raise InvalidArgument(unknown("qualify", "part", name, PARTS))
    return [name for name in PARTS if not names or name in names]


def limit_of(name: str, *, quick: bool, launcher: bool = False) -> float:
    """Returns the time limit of a part in seconds; `launcher`: it also starts pods by a launcher, if it does that."""
    part = PARTS[name]
    more = LAUNCHER_SECONDS if launcher and name == "planes" else 0.0
    return more + (part.quick_limit_seconds if quick else part.limit_seconds)

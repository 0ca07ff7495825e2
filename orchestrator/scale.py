"""Decides how many pods each tournament has and which are to go. Pure: knows no clock, no database, no launcher.

Capacity is counted in reservations, not in momentary idleness: a machine of two cores holds two pods of one core,
however busy they are. Cores may be oversubscribed by `minimum_pods`; memory and GPUs never are.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SETTLING_SECONDS = 30.0
"""A younger pod has not touched the memory it reserved yet, so that the machine still reports it as available."""
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
MAXIMUM_DEATHS = 5
"""So many pods in a row that die before they were of any use end their tournament."""


@dataclass(frozen=True)
class Resources:
    """What a pod reserves, or what there is."""

    cores: float
    memory_bytes: int
    gpus: int

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(self.cores + other.cores, self.memory_bytes + other.memory_bytes, self.gpus + other.gpus)

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(self.cores - other.cores, self.memory_bytes - other.memory_bytes, self.gpus - other.gpus)


@dataclass(frozen=True)
class Capacity:
    """What the machine has for pods."""

    total: Resources
    """All of it, reserved or not."""
    available_memory_bytes: int
    """Memory that could be had this moment, whoever uses the rest."""


@dataclass(frozen=True)
class Demand:
    """What a tournament that still has work asks for."""

    tournament_id: str
    pod: Resources
    minimum_pods: int
    maximum_pods: int | None
    """None: what the machine holds."""
    not_before: float = 0.0
    """Monotonic time before which no pod is started: pods died one after another."""


class PodView(NamedTuple):
    """A pod that is there, or is being started. There are many of these at each look: a tuple is made fastest."""

    pod_id: str
    tournament_id: str
    reserved: Resources
    start_time: float
    """Monotonic."""
    busy: bool
    """It holds an assignment."""
    drained_since: float | None
    """Monotonic time it was told to go; None while it is to stay."""
    terminated: bool = False
    """It was sent SIGTERM."""


@dataclass(frozen=True)
class Limits:
    """How patient the decisions are."""

    start_pods: bool
    """False: pods are retired but never started."""
    terminate_seconds: float
    """A pod told to go that is still there after this long gets SIGTERM."""
    kill_seconds: float
    """And after this long, SIGKILL."""


@dataclass(frozen=True)
class Start:
    """Start one more pod of this tournament."""

    tournament_id: str
    reason: str


@dataclass(frozen=True)
class Retire:
    """Tell this pod to publish and go."""

    pod_id: str
    reason: str


@dataclass(frozen=True)
class Terminate:
    """Send this pod SIGTERM."""

    pod_id: str
    reason: str


@dataclass(frozen=True)
class Kill:
    """Kill all processes of this pod."""

    pod_id: str
    reason: str


@dataclass(frozen=True)
class Short:
    """Nothing can be started for this tournament, which has fewer pods than it is entitled to."""

    tournament_id: str
    reason: str


Action = Start | Retire | Terminate | Kill | Short


def decide(
    now: float, capacity: Capacity, demands: Sequence[Demand], pods: Sequence[PodView], limits: Limits
) -> tuple[list[Action], str]:
    """Compares what is with what should be.

    Args:
        now: Monotonic time.
        capacity: What the machine has.
        demands: Tournaments with work, oldest first; a pod of any other tournament is to go.
        pods: Every pod, oldest first, those being started and those told to go included.
        limits: How patient to be.

    Returns:
        What to do, each with its reason, and the whole in a line.
    """
    desired = share(capacity.total, demands)
    leaving = [pod for pod in pods if pod.drained_since is not None]
    staying = [pod for pod in pods if pod.drained_since is None]
    actions: list[Action] = [action for pod in leaving for action in _press(now, pod, limits)]
    counts = Counter([pod.tournament_id for pod in staying])
    actions += _retire_surplus(demands, desired, counts, staying)
    free = _free(capacity, pods)
    if limits.start_pods:
        young = (pod.reserved.memory_bytes for pod in pods if now - pod.start_time < SETTLING_SECONDS)
        available = capacity.available_memory_bytes - sum(young)
        actions += _start_missing(now, demands, desired, counts, free, available)
    wanted = ", ".join(f"{name} {count}" for name, count in desired.items()) or "none"
    reserved = capacity.total.cores - free.cores
    return actions, f"pods wanted: {wanted}; cores reserved: {reserved:g} of {capacity.total.cores:g}"


def share(total: Resources, demands: Sequence[Demand]) -> Mapping[str, int]:
    """How many pods each tournament is entitled to, by its id.

    First everybody's minimum, one pod each in turn; then one more pod for whoever has fewest, the oldest first, as long
    as it fits.
    """
    return _share(total, tuple(demands))


# Remembered, because it is asked for at every look and takes a step a pod.
@functools.lru_cache(maxsize=16)
def _share(total: Resources, demands: tuple[Demand, ...]) -> Mapping[str, int]:
    counts = {demand.tournament_id: 0 for demand in demands}
    free = total
    for number in range(max((demand.minimum_pods for demand in demands), default=0)):
        for demand in demands:
            if number < demand.minimum_pods and _fits(demand.pod, free, oversubscribe_cores=True):
                counts[demand.tournament_id] += 1
                free -= demand.pod
    while True:
        growing = [demand for demand in demands if _may_grow(demand, counts) and _fits(demand.pod, free)]
        if not growing:
            return counts
        chosen = min(growing, key=lambda demand: counts[demand.tournament_id])
        counts[chosen.tournament_id] += 1
        free -= chosen.pod


def backoff_seconds(deaths: int) -> float:
    """How long to wait before the next pod after so many useless ones in a row."""
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** (deaths - 1)) if deaths else 0.0


def _may_grow(demand: Demand, counts: Mapping[str, int]) -> bool:
    return demand.maximum_pods is None or counts[demand.tournament_id] < demand.maximum_pods


def _fits(pod: Resources, free: Resources, *, oversubscribe_cores: bool = False) -> bool:
    cores = oversubscribe_cores or pod.cores <= free.cores
    return cores and pod.memory_bytes <= free.memory_bytes and pod.gpus <= free.gpus


def _free(capacity: Capacity, pods: Sequence[PodView]) -> Resources:
    """What no pod has reserved."""
    reserved = [pod.reserved for pod in pods]
    return Resources(
        capacity.total.cores - sum([each.cores for each in reserved]),
        capacity.total.memory_bytes - sum([each.memory_bytes for each in reserved]),
        capacity.total.gpus - sum([each.gpus for each in reserved]),
    )


def _press(now: float, pod: PodView, limits: Limits) -> list[Action]:
    """Steps up against a pod that was told to go and did not."""
    if pod.drained_since is None:
        return []
    waited = now - pod.drained_since
    if waited >= limits.kill_seconds:
        return [Kill(pod.pod_id, f"still there {waited:.0f} s after it was told to go")]
    if waited >= limits.terminate_seconds and not pod.terminated:
        return [Terminate(pod.pod_id, f"still there {waited:.0f} s after it was told to go")]
    return []


def _retire_surplus(
    demands: Sequence[Demand], desired: Mapping[str, int], counts: Counter[str], staying: Sequence[PodView]
) -> list[Action]:
    """Of each tournament the busy pods are kept before the idle ones, and the old before the young."""
    names = {demand.tournament_id for demand in demands}
    too_many = {name for name, count in counts.items() if count > desired.get(name, 0)}
    kept: Counter[str] = Counter()
    actions: list[Action] = []
    concerned = (pod for pod in staying if pod.tournament_id in too_many) if too_many else ()
    for pod in sorted(concerned, key=lambda pod: (not pod.busy, pod.start_time)):
        kept[pod.tournament_id] += 1
        if kept[pod.tournament_id] > desired.get(pod.tournament_id, 0):
            actions.append(Retire(pod.pod_id, _why_retired(pod, names, desired)))
    return actions


def _why_retired(pod: PodView, names: set[str], desired: Mapping[str, int]) -> str:
    if pod.tournament_id not in names:
        return f"tournament {pod.tournament_id} has no work"
    return f"the share of {pod.tournament_id} is {desired[pod.tournament_id]} now"


def _start_missing(
    now: float,
    demands: Sequence[Demand],
    desired: Mapping[str, int],
    counts: Counter[str],
    free: Resources,
    available: int,
) -> list[Action]:
    actions: list[Action] = []
    for demand in demands:
        name = demand.tournament_id
        while counts[name] < desired[name] or counts[name] < demand.minimum_pods:
            needed = counts[name] < demand.minimum_pods
            why_not = _why_not_now(now, demand, free, available, needed=needed)
            if why_not:
                if needed:
                    actions.append(Short(name, why_not))
                break
            actions.append(Start(name, _why_started(counts[name], demand, free)))
            counts[name] += 1
            free -= demand.pod
            available -= demand.pod.memory_bytes
    return actions


def _why_not_now(now: float, demand: Demand, free: Resources, available: int, *, needed: bool) -> str:
    pod = demand.pod
    if now < demand.not_before:
        return "waits after pods that died at once"
    if pod.memory_bytes > min(free.memory_bytes, available):
        return f"a pod needs {_gib(pod.memory_bytes)} of memory, {_gib(min(free.memory_bytes, available))} is free"
    if pod.gpus > free.gpus:
        return f"a pod needs {pod.gpus} GPUs, {free.gpus} are free"
    if pod.cores > free.cores and not needed:
        return f"a pod needs {pod.cores:g} cores, {max(free.cores, 0):g} are free"
    return ""


def _why_started(count: int, demand: Demand, free: Resources) -> str:
    if count < demand.minimum_pods:
        short = " (cores are oversubscribed)" if demand.pod.cores > free.cores else ""
        return f"pod {count + 1} of the {demand.minimum_pods} it always has{short}"
    return f"free cores: {max(free.cores, 0):g}; a pod needs {demand.pod.cores:g}"


def _gib(size_bytes: int) -> str:
    return f"{max(size_bytes, 0) / 2**30:.1f} GiB"

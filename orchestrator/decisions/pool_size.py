"""Decides how many pods each tournament has and which are to go. Pure: knows no clock, no database, no launcher.

Capacity is counted in reservations (`orchestrator.decisions.resources`). Cores may be oversubscribed by
`minimum_pods`; memory
and GPUs never are.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from orchestrator.decisions.resources import Capacity, FreeResources, Resources

SETTLING_SECONDS = 30.0
"""A younger pod has not touched the memory it reserved yet, so that the machine still reports it as available."""
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
MAXIMUM_DEATHS = 5
"""So many pods in a row that die before they were of any use end their tournament."""


@dataclass(frozen=True)
class PoolGrant:
    """The size that a pool may have; pods that die are replaced up to it."""

    pods: int
    since: float
    """Monotonic time at which it became this."""


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
    step_pods: int | None = None
    """Pods it grows or shrinks by at a time; None: as many as it takes."""
    cooldown_seconds: float = 0.0
    """It keeps its size for so long after it has changed."""
    granted: PoolGrant | None = None
    """Its size so far; None at first."""


@dataclass(frozen=True)
class PodActivity:
    """What a pod is at."""

    busy: bool = False
    """It holds an assignment."""
    publishing: bool = False
    """It said so last, and its lease runs: it is not killed meanwhile."""
    score: float | None = None
    """Score of the agent it trains, as far as it was evaluated under this lease."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod that is there, or is being started. What changes all the time is asked for where it matters."""

    pod_id: str
    tournament_id: str
    reserved: Resources
    start_time: float
    """Monotonic."""
    drained_since: float | None
    """Monotonic time it was told to go; None while it is to stay."""
    terminated: bool
    """It was sent SIGTERM."""
    activity: Callable[[float], PodActivity]
    """What it is at, at a monotonic time; asked within the decision, while nothing changes."""


tournament_of: Callable[[PodView], str] = attrgetter("tournament_id")


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
class StartPod:
    """Start one more pod of this tournament."""

    tournament_id: str
    reason: str


@dataclass(frozen=True)
class RetirePod:
    """Tell this pod to publish and go."""

    pod_id: str
    reason: str


@dataclass(frozen=True)
class TerminatePod:
    """Send this pod SIGTERM."""

    pod_id: str
    reason: str


@dataclass(frozen=True)
class KillPod:
    """Kill all processes of this pod."""

    pod_id: str
    reason: str


@dataclass(frozen=True)
class PoolShort:
    """Nothing can be started for this tournament, which has fewer pods than it is entitled to."""

    tournament_id: str
    reason: str


Action = StartPod | RetirePod | TerminatePod | KillPod | PoolShort


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
    wanted = share(capacity.unoccupied, demands)
    desired = {name: given.pods for name, given in grant(now, capacity, demands).items()}
    draining = [pod for pod in pods if pod.drained_since is not None]
    staying = [pod for pod in pods if pod.drained_since is None]
    actions: list[Action] = [action for pod in draining for action in _enforce_drain(now, pod, limits)]
    counts = Counter(map(tournament_of, staying))
    actions += _retire_surplus(now, demands, desired, counts, staying)
    free = _free(capacity, pods)
    if limits.start_pods and capacity.closed:
        actions += [PoolShort(demand.tournament_id, capacity.closed) for demand in demands]
    elif limits.start_pods:
        young = [pod.reserved.memory_bytes for pod in pods if now - pod.start_time < SETTLING_SECONDS]
        available = capacity.available_memory_bytes - sum(young)
        actions += _start_missing(now, demands, desired, counts, free, available)
    shares = (f"{name} {count}" + f" of {wanted[name]}" * (count != wanted[name]) for name, count in desired.items())
    reserved = capacity.total.cores - free.total.cores
    return (
        actions,
        f"pods wanted: {', '.join(shares) or 'none'}; cores reserved: {reserved:g} of {capacity.total.cores:g}",
    )


def share(unoccupied: FreeResources, demands: Sequence[Demand]) -> Mapping[str, int]:
    """How many pods each tournament is entitled to, by its id.

    First everybody's minimum, one pod each in turn; then one more pod for whoever has fewest, the oldest first, as long
    as it fits.
    """
    return _share(unoccupied, tuple(demands))


# SavedState, because it is asked for at every look and takes a step a pod.
@functools.lru_cache(maxsize=16)
def _share(unoccupied: FreeResources, demands: tuple[Demand, ...]) -> Mapping[str, int]:
    counts = {demand.tournament_id: 0 for demand in demands}
    free = unoccupied
    for number in range(max((demand.minimum_pods for demand in demands), default=0)):
        for demand in demands:
            if number < demand.minimum_pods and free.fits(demand.pod, oversubscribe_cores=True):
                counts[demand.tournament_id] += 1
                free -= demand.pod
    while True:
        growing = [demand for demand in demands if _may_grow(demand, counts) and free.fits(demand.pod)]
        if not growing:
            return counts
        chosen = min(growing, key=lambda demand: counts[demand.tournament_id])
        counts[chosen.tournament_id] += 1
        free -= chosen.pod


def grant(now: float, capacity: Capacity, demands: Sequence[Demand]) -> Mapping[str, PoolGrant]:
    """The size that each pool may have now, by tournament: its share, approached in its steps."""
    wanted = share(capacity.unoccupied, demands)
    return {demand.tournament_id: _approach(now, wanted[demand.tournament_id], demand) for demand in demands}


def _approach(now: float, wanted: int, demand: Demand) -> PoolGrant:
    """One step towards what is wanted, unless the last was a moment ago: free capacity flickers, pods cost seconds."""
    least, before = min(demand.minimum_pods, wanted), demand.granted
    pods = least if before is None else before.pods
    if before is None or now - before.since >= demand.cooldown_seconds:
        step = abs(wanted - pods) if demand.step_pods is None else demand.step_pods
        pods = min(max(wanted, pods - step), pods + step)
    # The limits were set by a person and hold at once.
    pods = max(pods, least)
    if demand.maximum_pods is not None:
        pods = min(pods, demand.maximum_pods)
    return before if before is not None and pods == before.pods else PoolGrant(pods, now)


def backoff_seconds(deaths: int) -> float:
    """How long to wait before the next pod after so many useless ones in a row."""
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** (deaths - 1)) if deaths else 0.0


def _may_grow(demand: Demand, counts: Mapping[str, int]) -> bool:
    return demand.maximum_pods is None or counts[demand.tournament_id] < demand.maximum_pods


def _free(capacity: Capacity, pods: Sequence[PodView]) -> FreeResources:
    """What no pod has reserved."""
    if capacity.free is not None:
        return capacity.free
    reserved = [pod.reserved for pod in pods]
    left = Resources(
        capacity.total.cores - sum([each.cores for each in reserved]),
        capacity.total.memory_bytes - sum([each.memory_bytes for each in reserved]),
        capacity.total.gpus - sum([each.gpus for each in reserved]),
    )
    return FreeResources(left, (left,))


def _enforce_drain(now: float, pod: PodView, limits: Limits) -> list[Action]:
    """Steps up against a pod that was told to go and did not."""
    if pod.drained_since is None:
        return []
    waited = now - pod.drained_since
    if waited >= limits.kill_seconds and not pod.activity(now).publishing:
        return [KillPod(pod.pod_id, f"still there {waited:.0f} s after it was told to go")]
    if waited >= limits.terminate_seconds and not pod.terminated:
        return [TerminatePod(pod.pod_id, f"still there {waited:.0f} s after it was told to go")]
    return []


def _retire_surplus(
    now: float,
    demands: Sequence[Demand],
    desired: Mapping[str, int],
    counts: Counter[str],
    staying: Sequence[PodView],
) -> list[Action]:
    """Of each tournament the pods with the weakest prospects go first.

    Kept are busy pods before idle ones, those whose agent was scored before the others, by their scores, and then the
    old before the young.
    """
    names = {demand.tournament_id for demand in demands}
    too_many = {name for name, count in counts.items() if count > desired.get(name, 0)}
    kept: Counter[str] = Counter()
    actions: list[Action] = []
    if not too_many:
        return actions
    concerned = [(pod, pod.activity(now)) for pod in staying if pod.tournament_id in too_many]
    for pod, activity in sorted(concerned, key=_most_valuable_first):
        kept[pod.tournament_id] += 1
        if kept[pod.tournament_id] > desired.get(pod.tournament_id, 0):
            actions.append(RetirePod(pod.pod_id, _why_retired(pod, activity, names, desired)))
    return actions


def _most_valuable_first(concerned: tuple[PodView, PodActivity]) -> tuple[bool, bool, float, float]:
    """Sorts the best prospects first."""
    pod, activity = concerned
    return not activity.busy, activity.score is None, -(activity.score or 0.0), pod.start_time


def _why_retired(pod: PodView, activity: PodActivity, names: set[str], desired: Mapping[str, int]) -> str:
    if pod.tournament_id not in names:
        return f"tournament {pod.tournament_id} has no work"
    if not activity.busy:
        weakest = "it is idle"
    elif activity.score is None:
        weakest = "its agent has no score yet"
    else:
        weakest = f"its agent has the lowest score, {activity.score:.4g}"
    return f"the share of {pod.tournament_id} is {desired[pod.tournament_id]} now, and {weakest}"


def _start_missing(
    now: float,
    demands: Sequence[Demand],
    desired: Mapping[str, int],
    counts: Counter[str],
    free: FreeResources,
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
                    actions.append(PoolShort(name, why_not))
                break
            actions.append(StartPod(name, _why_started(counts[name], demand, free.largest)))
            counts[name] += 1
            free -= demand.pod
            available -= demand.pod.memory_bytes
    return actions


def _why_not_now(now: float, demand: Demand, unoccupied: FreeResources, available: int, *, needed: bool) -> str:
    pod, free = demand.pod.per_host, unoccupied.largest
    if now < demand.not_before:
        return "waits after pods that died at once"
    if pod.memory_bytes > min(free.memory_bytes, available):
        return f"a pod needs {_gib(pod.memory_bytes)} of memory, {_gib(min(free.memory_bytes, available))} is free"
    if pod.gpus > free.gpus:
        return f"a pod needs {pod.gpus} GPUs, {free.gpus} are free"
    if pod.cores > free.cores and (unoccupied.strict or not needed):
        return f"a pod needs {pod.cores:g} cores, {max(free.cores, 0):g} are free"
    if not unoccupied.fits(demand.pod, oversubscribe_cores=needed):
        wanted = f"{pod.cores:g} cores, {_gib(pod.memory_bytes)} and {pod.gpus} GPUs"
        if demand.pod.hosts > 1:
            return f"a pod needs {wanted} on each of {demand.pod.hosts} nodes, and fewer have all of it free"
        return f"a pod needs {wanted} on a single node, and none has all of it free"
    return ""


def _why_started(count: int, demand: Demand, free: Resources) -> str:
    if count < demand.minimum_pods:
        short = " (cores are oversubscribed)" if demand.pod.cores > free.cores else ""
        return f"pod {count + 1} of the {demand.minimum_pods} it always has{short}"
    return f"free cores: {max(free.cores, 0):g}; a pod needs {demand.pod.cores:g}"


def _gib(size_bytes: int) -> str:
    return f"{max(size_bytes, 0) / 2**30:.1f} GiB"

"""Decides how many pods each tournament gets, and which pods to start and stop. Pure functions.

Rules:
- Every tournament with work gets its minimum, then the free capacity is shared evenly, oldest tournament first.
- Capacity is counted in reservations (`orchestrator.decisions.resources`). `minimum_pods` may oversubscribe cores, but
  never memory or GPUs.
- A pool grows and shrinks in steps, with a cooldown in between.
- When a pool shrinks, idle pods stop first, then pods whose agent has no score, then those with the lowest score;
  among equals, newer pods stop first.
- A pod that does not stop when asked gets SIGTERM, later SIGKILL, but is not killed while it publishes.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from orchestrator.decisions.resources import Capacity, FreeResources, Resources
from podrace import backoff

SETTLING_SECONDS = 30.0
"""A younger pod has not used the memory it reserved yet, so the machine still reports that memory as available."""
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
MAXIMUM_DEATHS = 5
"""A tournament fails after this many pods in a row that died before they did useful work."""
PACE = "pool.step_pods, pool.cooldown_duration"
"""Keys of a specification that make a pool grow and shrink in steps."""


@dataclass(frozen=True)
class PoolGrant:
    """The size that a pool may have now; pods that die are replaced up to this size."""

    pods: int
    since: float
    """Monotonic time of the last change of size."""


@dataclass(frozen=True)
class Demand:
    """What a tournament with work asks for."""

    tournament_id: str
    pod: Resources
    minimum_pods: int
    maximum_pods: int | None
    """None: as many as there is capacity for."""
    not_before: float = 0.0
    """Monotonic time before which no pod is started, because pods died shortly after their start."""
    step_pods: int | None = None
    """Number of pods that the pool grows or shrinks by at a time; None: any number."""
    cooldown_seconds: float = 0.0
    """Minimum time between two changes of the pool's size."""
    granted: PoolGrant | None = None
    """The current size; None at first."""
    evaluations_only: bool = False
    """Whether the tournament no longer trains, so that `maximum_pods` is not that of its specification."""


@dataclass(frozen=True)
class PodActivity:
    """What a pod does."""

    busy: bool = False
    """Whether it holds an assignment."""
    publishing: bool = False
    """Whether it reported that it publishes, and its lease is valid; it is not killed in that time."""
    score: float | None = None
    """Score of the agent it trains; None while the agent has not been evaluated under this lease."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod that exists or is being started. Values that change all the time are computed on request."""

    pod_id: str
    tournament_id: str
    reserved: Resources
    start_time: float
    """Monotonic time."""
    drained_since: float | None
    """Monotonic time at which it was asked to stop; None if it was not."""
    terminated: bool
    """Whether it was sent SIGTERM."""
    activity: Callable[[float], PodActivity]
    """Returns what the pod does at a monotonic time."""


tournament_of: Callable[[PodView], str] = attrgetter("tournament_id")


@dataclass(frozen=True)
class Limits:
    """Whether pods are started, and how long pods get to stop."""

    start_pods: bool
    """False: pods are stopped but never started."""
    terminate_seconds: float
    """A pod that is still there this long after it was asked to stop gets SIGTERM."""
    kill_seconds: float
    """A pod that is still there this long after it was asked to stop gets SIGKILL."""


@dataclass(frozen=True)
class StartPod:
    """Start one more pod of this tournament."""

    tournament_id: str
    reason: str


@dataclass(frozen=True)
class RetirePod:
    """Ask this pod to publish and stop."""

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
    """No pod can be started for this tournament, although it has fewer pods than it should have."""

    tournament_id: str
    reason: str


Action = StartPod | RetirePod | TerminatePod | KillPod | PoolShort


def decide(
    now: float, capacity: Capacity, demands: Sequence[Demand], pods: Sequence[PodView], limits: Limits
) -> tuple[list[Action], str]:
    """Compares the pods that exist with those that should exist.

    Args:
        now: Monotonic time.
        capacity: What the machine or cluster has.
        demands: Tournaments with work, oldest first; pods of other tournaments are asked to stop.
        pods: Every pod, oldest first, including pods that are being started and pods that were asked to stop.
        limits: When to terminate and kill pods.

    Returns:
        The actions, each with its reason, and a summary in one line.
    """
    wanted = share(capacity.unoccupied, demands)
    desired = {name: granted.pods for name, granted in grant(now, capacity, demands).items()}
    draining = [pod for pod in pods if pod.drained_since is not None]
    staying = [pod for pod in pods if pod.drained_since is None]
    actions: list[Action] = [action for pod in draining for action in _enforce_drain(now, pod, limits)]
    counts = Counter(map(tournament_of, staying))
    actions += _retire_surplus(now, capacity.unoccupied, demands, desired, counts, staying)
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
    """Computes how many pods each tournament should have, by tournament id.

    Each tournament first gets its minimum, one pod at a time in turn. Then the tournament with the fewest pods gets one
    more, the oldest first, as long as a pod fits.
    """
    return _share(unoccupied, tuple(demands))


# Cached, because every reconcile cycle calls it and it takes one step per pod.
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
    """Computes the size that each pool may have now, by tournament id: its share, approached in its steps."""
    wanted = share(capacity.unoccupied, demands)
    return {demand.tournament_id: _approach(now, wanted[demand.tournament_id], demand) for demand in demands}


def _approach(now: float, wanted: int, demand: Demand) -> PoolGrant:
    """One step towards the wanted size, unless the last step was within the cooldown.

    Free capacity changes quickly, while starting a pod takes seconds.
    """
    least, before = min(demand.minimum_pods, wanted), demand.granted
    pods = least if before is None else before.pods
    if before is None or now - before.since >= demand.cooldown_seconds:
        step = abs(wanted - pods) if demand.step_pods is None else demand.step_pods
        pods = min(max(wanted, pods - step), pods + step)
    # A user set these limits, so they take effect at once.
    pods = max(pods, least)
    if demand.maximum_pods is not None:
        pods = min(pods, demand.maximum_pods)
    return before if before is not None and pods == before.pods else PoolGrant(pods, now)


def backoff_seconds(deaths: int) -> float:
    """How long to wait before starting the next pod, after `deaths` useless pods in a row."""
    return backoff.exponential(deaths, FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS)


def _may_grow(demand: Demand, counts: Mapping[str, int]) -> bool:
    return demand.maximum_pods is None or counts[demand.tournament_id] < demand.maximum_pods


def _free(capacity: Capacity, pods: Sequence[PodView]) -> FreeResources:
    """What no pod has reserved."""
    if capacity.free is not None:
        return capacity.free
    reserved = [pod.reserved for pod in pods]
    remaining = Resources(
        capacity.total.cores - sum([each.cores for each in reserved]),
        capacity.total.memory_bytes - sum([each.memory_bytes for each in reserved]),
        capacity.total.gpus - sum([each.gpus for each in reserved]),
    )
    return FreeResources(remaining, (remaining,))


def _enforce_drain(now: float, pod: PodView, limits: Limits) -> list[Action]:
    """Terminates or kills a pod that did not stop when asked."""
    if pod.drained_since is None:
        return []
    waited = now - pod.drained_since
    if waited >= limits.kill_seconds and not pod.activity(now).publishing:
        return [KillPod(pod.pod_id, f"still running {waited:.0f} s after it was asked to stop")]
    if waited >= limits.terminate_seconds and not pod.terminated:
        return [TerminatePod(pod.pod_id, f"still running {waited:.0f} s after it was asked to stop")]
    return []


def _retire_surplus(
    now: float,
    unoccupied: FreeResources,
    demands: Sequence[Demand],
    desired: Mapping[str, int],
    counts: Counter[str],
    staying: Sequence[PodView],
) -> list[Action]:
    """Stops the least valuable pods of each tournament that has too many.

    Busy pods are kept before idle ones, then pods whose agent has a score, the highest first, then older pods.
    """
    too_many = {name for name, count in counts.items() if count > desired.get(name, 0)}
    kept: Counter[str] = Counter()
    actions: list[Action] = []
    if not too_many:
        return actions
    limits = {name: _why_no_more(name, unoccupied, demands, desired) for name in too_many}
    concerned = [(pod, pod.activity(now)) for pod in staying if pod.tournament_id in too_many]
    kept_scores: set[tuple[str, float | None]] = set()
    for pod, activity in sorted(concerned, key=_most_valuable_first):
        name = pod.tournament_id
        kept[name] += 1
        if kept[name] <= desired.get(name, 0):
            kept_scores.add((name, activity.score))
        else:
            why = _why_chosen(activity, tied=(name, activity.score) in kept_scores)
            chosen = f"; chosen because {why}" if name in desired else ""
            actions.append(RetirePod(pod.pod_id, limits[name] + chosen))
    return actions


def _most_valuable_first(concerned: tuple[PodView, PodActivity]) -> tuple[bool, bool, float, float]:
    """Sort key of a pod: the most valuable first."""
    pod, activity = concerned
    return not activity.busy, activity.score is None, -(activity.score or 0.0), pod.start_time


def _why_no_more(name: str, unoccupied: FreeResources, demands: Sequence[Demand], desired: Mapping[str, int]) -> str:
    """Returns which limit keeps a pool at its desired size."""
    demand = next((each for each in demands if each.tournament_id == name), None)
    if demand is None:
        return f"tournament {name} has no work"
    if demand.evaluations_only:
        return f"tournament {name} no longer trains, and {_pods(desired[name])} is enough for its evaluations"
    if desired[name] == demand.maximum_pods:
        return f"pool.maximum_pods is {demand.maximum_pods}"
    wanted = share(unoccupied, demands)[name]
    if desired[name] < wanted:
        return f"the pool grows in steps ({PACE}), to {_pods(desired[name])} at first"
    alone = share(unoccupied, [replace(demand, minimum_pods=0)])[name]
    if wanted < alone:
        limit = f"the fair share among {len(demands)} tournaments is {_pods(wanted)}"
    else:
        limit = f"there is capacity for {_pods(alone)} only"
        limit += f", and pool.minimum_pods is {demand.minimum_pods}" * (wanted > alone)
    return limit + f", and the pool shrinks in steps ({PACE}), to {_pods(desired[name])} at first" * (
        desired[name] > wanted
    )


def _why_chosen(activity: PodActivity, *, tied: bool) -> str:
    """Returns why a pod is stopped, in the past tense; `tied`: whether an older pod with the same score stays."""
    if not activity.busy:
        return "it was idle"
    if activity.score is None:
        return "its agent had no score when this was decided"
    lowest = f"the lowest score, {activity.score:.4g}"
    if tied:
        return f"its agent was among those with {lowest}, and newer pods are drained first"
    return f"its agent had {lowest}"


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"


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
        return "waiting, because pods died shortly after their start"
    if pod.memory_bytes > min(free.memory_bytes, available):
        return f"a pod needs {_gib(pod.memory_bytes)} of memory, {_gib(min(free.memory_bytes, available))} is free"
    if pod.gpus > free.gpus:
        return f"a pod needs {pod.gpus} GPUs, {free.gpus} are free"
    if pod.cores > free.cores and (unoccupied.strict or not needed):
        return f"a pod needs {pod.cores:g} cores, {max(free.cores, 0):g} are free"
    if not unoccupied.fits(demand.pod, oversubscribe_cores=needed):
        wanted = f"{pod.cores:g} cores, {_gib(pod.memory_bytes)} and {pod.gpus} GPUs"
        if demand.pod.hosts > 1:
            return f"a pod needs {wanted} on each of {demand.pod.hosts} nodes, and fewer nodes have that much free"
        return f"a pod needs {wanted} on a single node, and no node has that much free"
    return ""


def _why_started(count: int, demand: Demand, free: Resources) -> str:
    if count < demand.minimum_pods:
        short = " (cores are oversubscribed)" if demand.pod.cores > free.cores else ""
        return f"pod {count + 1} of the minimum of {demand.minimum_pods}{short}"
    return f"free cores: {max(free.cores, 0):g}; a pod needs {demand.pod.cores:g}"


def _gib(size_bytes: int) -> str:
    return f"{max(size_bytes, 0) / 2**30:.1f} GiB"

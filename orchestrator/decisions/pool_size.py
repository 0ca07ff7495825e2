"""Decides which pods to start and stop, so that each tournament gets its fair share. Pure functions.

Rules:
- `orchestrator.decisions.fair_share` decides how many pods each tournament should have.
- Tournaments with fewer pods than their share get free capacity before those that keep more for some time.
- The pods of an owner, those that are draining included, never exceed its quota.
- When a pool shrinks, idle pods stop first, then pods whose agent has no score, then those with the lowest score;
  among equals, newer pods stop first.
- A pod that is larger than those of the specification counts as several. One that is being replaced by a smaller pod
  stays if the smaller one has room; one that has none stops, and does not count as kept.
- A pod that does not stop when asked gets SIGTERM, later SIGKILL, but is not killed while it publishes.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.decisions.fair_share import Demand, PoolGrant, grant, owners_of, share, why_beyond_quota
from orchestrator.decisions.resources import Capacity, FreeResources, Resources
from orchestrator.decisions.share_reasons import ShareReasons
from podrace import backoff

SETTLING_SECONDS = 30.0
"""A younger pod has not used the memory it reserved yet, so the machine still reports that memory as available."""
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
MAXIMUM_DEATHS = 5
"""A tournament fails after this many pods in a row that could not start; see `PodRecord.useful`."""


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
    units: int = 1
    """Number of pods that it counts as: its cores in pods of the specification's size. A pod that will replace another
    one counts as what it has more than that one while both run."""
    remaining_units: int | None = None
    """What it counts as once it is replaced by a smaller pod; None: it is not being replaced by a smaller one."""


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
    cores: float | None = None
    """Its size, if that is not the size of the specification."""


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
    never_called: bool = False
    """Whether it runs and has never called, so that it counts as one that could not start."""


@dataclass(frozen=True)
class PoolShort:
    """No pod can be started for this tournament, although it has fewer pods than it should have."""

    tournament_id: str
    reason: str


Stop = TerminatePod | KillPod
Action = StartPod | RetirePod | Stop | PoolShort


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
    counts = count_units(staying)
    actions += _retire_surplus(now, capacity.unoccupied, demands, desired, counts, staying)
    free = unreserved(capacity, pods)
    if limits.start_pods and capacity.closed:
        actions += [PoolShort(demand.tournament_id, capacity.closed) for demand in demands]
    elif limits.start_pods:
        order = sorted(demands, key=lambda demand: counts[demand.tournament_id] >= wanted[demand.tournament_id])
        starts = _Starts(now, demands, desired, pods, free, settled_memory_bytes(now, capacity, pods))
        actions += [action for demand in order for action in starts.of(demand)]
    shares = (f"{name} {count}" + f" of {wanted[name]}" * (count != wanted[name]) for name, count in desired.items())
    reserved = capacity.total.cores - free.total.cores
    return (
        actions,
        f"pods wanted: {', '.join(shares) or 'none'}; cores reserved: {reserved:g} of {capacity.total.cores:g}",
    )


def count_units(pods: Iterable[PodView]) -> Counter[str]:
    """Returns the number of pods that the pods of each tournament count as; see `PodView.units`."""
    counts: Counter[str] = Counter()
    for pod in pods:
        counts[pod.tournament_id] += pod.units
    return counts


def granted_before(pods: Iterable[PodView]) -> Mapping[str, PoolGrant]:
    """Returns the sizes that an earlier process granted, by tournament id: those of the pods that continue.

    Without them, a pool with `step_pods` would begin at its smallest size and stop its other pods.
    """
    counts = count_units(pod for pod in pods if pod.drained_since is None)
    return {name: PoolGrant(count, since=-math.inf) for name, count in counts.items()}


def backoff_seconds(deaths: int) -> float:
    """How long to wait before starting the next pod, after `deaths` deaths in a row; 0 for none."""
    return backoff.exponential(deaths, FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS)


def settled_memory_bytes(now: float, capacity: Capacity, pods: Iterable[PodView]) -> int:
    """Returns the memory that will be available when all pods use what they have reserved.

    Args:
        now: Monotonic time.
        capacity: What the machine or cluster has.
        pods: Every pod.
    """
    young = [pod.reserved.memory_bytes for pod in pods if now - pod.start_time < SETTLING_SECONDS]
    return capacity.available_memory_bytes - sum(young)


def unreserved(capacity: Capacity, pods: Iterable[PodView]) -> FreeResources:
    """Returns what none of these pods has reserved; for a cluster, what its scheduler has free."""
    if capacity.free is not None:
        return capacity.free
    reserved = [pod.reserved for pod in pods]
    remaining = Resources(
        capacity.total.cores - sum([each.cores for each in reserved]),
        capacity.total.memory_bytes - sum([each.memory_bytes for each in reserved]),
        # Pods share GPUs while one replaces the other.
        max(0, capacity.total.gpus - sum([each.gpus for each in reserved])),
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
    kept = Counter[str]()
    actions: list[Action] = []
    if not too_many:
        return actions
    reasons = ShareReasons(unoccupied, demands, desired)
    limits = {name: reasons.why_no_more(name) for name in too_many}
    concerned = [(pod, pod.activity(now)) for pod in staying if pod.tournament_id in too_many]
    kept_scores: set[tuple[str, float | None]] = set()
    for pod, activity in sorted(concerned, key=_most_valuable_first):
        name = pod.tournament_id
        units = pod.units if pod.remaining_units is None else pod.remaining_units
        if kept[name] + units <= desired.get(name, 0):
            kept[name] += units
            kept_scores.add((name, activity.score))
        else:
            fits = kept[name] < desired.get(name, 0)
            why = (
                f"it counts as {units} pods, and {desired.get(name, 0) - kept[name]} of the pool were left for it"
                if fits
                else _why_chosen(activity, tied=(name, activity.score) in kept_scores)
            )
            chosen = f"; chosen because {why}" if name in desired else ""
            actions.append(RetirePod(pod.pod_id, limits[name] + chosen))
    return actions


def _most_valuable_first(concerned: tuple[PodView, PodActivity]) -> tuple[bool, bool, bool, float, float]:
    """Sort key of a pod: the most valuable first, which is one that shrinks already."""
    pod, activity = concerned
    return (
        pod.remaining_units is None,
        not activity.busy,
        activity.score is None,
        -(activity.score or 0.0),
        pod.start_time,
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


class _Starts:
    """Decides which pods are started, one tournament after another."""

    def __init__(
        self,
        now: float,
        demands: Sequence[Demand],
        desired: Mapping[str, int],
        pods: Sequence[PodView],
        free: FreeResources,
        available: int,
    ) -> None:
        self._now, self._desired, self._free, self._available = now, desired, free, available
        self._counts = count_units(pod for pod in pods if pod.drained_since is None)
        self._owners = len(owners_of(demands))
        owners = {demand.tournament_id: demand.owner.owner for demand in demands}
        # Pods that are draining still count for the quota of their owner.
        self._pods, self._gpus = Counter[str](), Counter[str]()
        for pod in pods:
            if pod.tournament_id in owners:
                self._pods[owners[pod.tournament_id]] += pod.units
                self._gpus[owners[pod.tournament_id]] += pod.reserved.gpus

    def of(self, demand: Demand) -> Iterator[Action]:
        """Yields the pods to start for a tournament, or why one of its minimum is not started."""
        name, owner = demand.tournament_id, demand.owner.owner
        while self._counts[name] < max(self._desired[name], demand.minimum_pods):
            needed = self._counts[name] < demand.minimum_pods
            if why_not := self._why_not(demand, needed=needed):
                if needed:
                    yield PoolShort(name, why_not)
                return
            yield StartPod(name, _why_started(self._counts[name], demand, self._free.largest))
            self._counts[name] += 1
            self._pods[owner] += 1
            self._gpus[owner] += demand.pod.gpus
            self._free -= demand.pod
            self._available -= demand.pod.memory_bytes

    def _why_not(self, demand: Demand, *, needed: bool) -> str:
        owner = demand.owner.owner
        if beyond := why_beyond_quota(demand, self._pods[owner], self._gpus[owner]):
            return beyond
        if self._owners > 1 and self._counts[demand.tournament_id] >= self._desired[demand.tournament_id]:
            return f"the fair share of {owner} among {self._owners} owners holds no further pod for it"
        # The first pod of an owner may oversubscribe cores; further ones would take the cores of other owners.
        oversubscribe = needed and (self._owners <= 1 or not self._pods[owner])
        return _why_not_now(self._now, demand, self._free, self._available, needed=oversubscribe)


def _why_not_now(now: float, demand: Demand, unoccupied: FreeResources, available: int, *, needed: bool) -> str:
    pod, free = demand.pod.per_host, unoccupied.largest
    if now < demand.not_before:
        return "waiting, because pods died or could not be started"
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

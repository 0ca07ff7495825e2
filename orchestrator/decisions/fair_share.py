"""Decides how many pods each tournament should have: fair shares of owners, and of their tournaments. Pure functions.

Rules:
- Capacity is counted in reservations (`orchestrator.decisions.resources`) and divided among the owners of tournaments
  by weight: the next pod goes to the owner with the lowest share in relation to its weight. The share of an owner is
  the largest of its shares of resources.
- Among the tournaments of one owner, minimums come first, then higher priorities, then fewer pods, then older ones.
- No owner gets more pods or GPUs than its quota.
- If one owner has all tournaments, `minimum_pods` may oversubscribe cores. If several owners have tournaments, only the
  first pod of an owner may, so that no owner takes the cores of others. Memory and GPUs are never oversubscribed.
- A pool grows and shrinks in steps, with a cooldown in between. If several owners have tournaments, it gives pods back
  when its share has been smaller for `yield_seconds`, whatever its steps are.
"""

import functools
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.decisions.resources import Capacity, FreeResources, Resources

YIELD_SECONDS = 30.0
_NOTHING = Resources(0.0, 0, 0)


@dataclass(frozen=True)
class OwnerShare:
    """What the operator grants an owner of tournaments."""

    owner: str = ""
    """The owner, as messages name it."""
    weight: float = 1.0
    """An owner of weight 2 gets twice the pods of an owner of weight 1."""
    maximum_pods: int | None = None
    """Largest number of pods of all its tournaments; None: no limit."""
    maximum_gpus: int | None = None
    """Largest number of GPUs of all its tournaments; None: no limit."""
    yield_seconds: float = YIELD_SECONDS
    """Its pools give pods to other owners when their shares have been smaller for this long."""


@dataclass(frozen=True)
class PoolGrant:
    """The size that a pool may have now; pods that die are replaced up to this size."""

    pods: int
    since: float
    """Monotonic time of the last change of size."""
    above_share_since: float | None = None
    """Monotonic time since which the size has been above the fair share among several owners; None: it is not."""


@dataclass(frozen=True)
class Demand:
    """What a tournament with work asks for."""

    tournament_id: str
    pod: Resources
    minimum_pods: int
    maximum_pods: int | None
    """None: as many as there is capacity for."""
    not_before: float = 0.0
    """Monotonic time before which no pod is started, because pods died or could not be started."""
    step_pods: int | None = None
    """Number of pods that the pool grows or shrinks by at a time; None: any number."""
    cooldown_seconds: float = 0.0
    """Minimum time between two changes of the pool's size."""
    granted: PoolGrant | None = None
    """The current size; None at first."""
    evaluations_only: bool = False
    """Whether the tournament no longer trains, so that `maximum_pods` is not that of its specification."""
    owner: OwnerShare = OwnerShare()
    """The owner of the tournament, and what the owner may have."""
    priority: int = 0
    """Among the tournaments of its owner, those of higher priority get pods first and lose them last."""


def owners_of(demands: Iterable[Demand]) -> frozenset[str]:
    """Returns the owners of tournaments."""
    return frozenset(demand.owner.owner for demand in demands)


def share(unoccupied: FreeResources, demands: Sequence[Demand]) -> Mapping[str, int]:
    """Computes how many pods each tournament should have, by tournament id.

    Args:
        unoccupied: What could be reserved if there were no pods.
        demands: Tournaments with work, oldest first.
    """
    return _share(unoccupied, tuple(demands))


# Cached, because every reconcile cycle calls it and it takes one step per pod.
@functools.lru_cache(maxsize=16)
def _share(unoccupied: FreeResources, demands: tuple[Demand, ...]) -> Mapping[str, int]:
    filling = _Filling(unoccupied, demands)
    alone = len(owners_of(demands)) <= 1
    filling.fill(lambda demand: demand.minimum_pods, oversubscribe_cores=True, first_pods_only=not alone)
    filling.fill(lambda demand: demand.maximum_pods)
    return filling.counts


class _Filling:
    """Capacity that is given out pod by pod.

    Attributes:
        counts: Number of pods by tournament.
    """

    def __init__(self, unoccupied: FreeResources, demands: Sequence[Demand]) -> None:
        self._free, self._total, self._demands = unoccupied, unoccupied.total, demands
        self.counts = {demand.tournament_id: 0 for demand in demands}
        self._pods: Counter[str] = Counter()
        self._held: defaultdict[str, Resources] = defaultdict(lambda: _NOTHING)

    def fill(
        self,
        target: Callable[[Demand], int | None],
        *,
        oversubscribe_cores: bool = False,
        first_pods_only: bool = False,
    ) -> None:
        """Gives pods to tournaments below their target (None: no limit) until no further pod fits.

        Takes a time that grows with the logarithm of the number of tournaments for each pod: what does not fit once
        does not fit later, and is not tried again.
        """
        queues: defaultdict[str, list[tuple[bool, int, int, int]]] = defaultdict(list)
        for index, demand in enumerate(self._demands):
            if self._is_below(demand, target(demand)):
                queues[demand.owner.owner].append(self._order(index))
        for queue in queues.values():
            heapq.heapify(queue)
        owners = [self._next(queue) for queue in queues.values()]
        heapq.heapify(owners)
        while owners:
            index = heapq.heappop(owners)[-1]
            demand = self._demands[index]
            queue = queues[demand.owner.owner]
            heapq.heappop(queue)
            if self._fits(demand, oversubscribe_cores=oversubscribe_cores):
                self._take(demand)
                if first_pods_only:
                    continue
                if self._is_below(demand, target(demand)):
                    heapq.heappush(queue, self._order(index))
            if queue:
                heapq.heappush(owners, self._next(queue))

    def _is_below(self, demand: Demand, target: int | None) -> bool:
        return target is None or self.counts[demand.tournament_id] < target

    def _order(self, index: int) -> tuple[bool, int, int, int]:
        """Sort key of a tournament among those of its owner."""
        demand = self._demands[index]
        count = self.counts[demand.tournament_id]
        return count >= demand.minimum_pods, -demand.priority, count, index

    def _next(self, queue: Sequence[tuple[bool, int, int, int]]) -> tuple[float, bool, int, int, int]:
        """Sort key of an owner: its share for its weight, then its next tournament."""
        owner = self._demands[queue[0][-1]].owner
        return dominant_share(self._held[owner.owner], self._total) / owner.weight, *queue[0]

    def _fits(self, demand: Demand, *, oversubscribe_cores: bool) -> bool:
        if not self._free.fits(demand.pod, oversubscribe_cores=oversubscribe_cores):
            return False
        name = demand.owner.owner
        return not why_beyond_quota(demand, self._pods[name], self._held[name].gpus)

    def _take(self, demand: Demand) -> None:
        name = demand.owner.owner
        self.counts[demand.tournament_id] += 1
        self._pods[name] += 1
        self._held[name] += demand.pod
        self._free -= demand.pod


def dominant_share(held: Resources, total: Resources) -> float:
    """Returns the largest share of any resource (dominant resource fairness, Ghodsi et al. 2011)."""
    pairs = ((held.cores, total.cores), (held.memory_bytes, total.memory_bytes), (held.gpus, total.gpus))
    return max((part / whole for part, whole in pairs if whole > 0), default=0.0)


def why_beyond_quota(demand: Demand, pods: int, gpus: int) -> str:
    """Returns which quota of the owner one more pod would exceed; empty: none.

    Args:
        demand: What the pod is for.
        pods: Number of pods that the owner has.
        gpus: Number of GPUs of these pods.
    """
    owner = demand.owner
    if owner.maximum_pods is not None and pods + 1 > owner.maximum_pods:
        return f"quota.pods of {owner.owner} is {owner.maximum_pods}"
    if owner.maximum_gpus is not None and demand.pod.gpus and gpus + demand.pod.gpus > owner.maximum_gpus:
        return f"quota.gpus of {owner.owner} is {owner.maximum_gpus}"
    return ""


def grant(now: float, capacity: Capacity, demands: Sequence[Demand]) -> Mapping[str, PoolGrant]:
    """Computes the size that each pool may have now, by tournament id: its share, approached in its steps."""
    wanted = share(capacity.unoccupied, demands)
    alone = len(owners_of(demands)) <= 1
    return {
        demand.tournament_id: _approach(now, wanted[demand.tournament_id], demand, alone=alone) for demand in demands
    }


def _approach(now: float, wanted: int, demand: Demand, *, alone: bool) -> PoolGrant:
    """One step towards the wanted size, unless the last step was within the cooldown.

    Free capacity changes quickly, while starting a pod takes seconds.

    Args:
        now: Monotonic time.
        wanted: The fair share.
        demand: What the tournament asks for.
        alone: Whether one owner has all tournaments.
    """
    least, before = min(demand.minimum_pods, wanted), demand.granted
    pods = least if before is None else before.pods
    above_since: float | None = None
    if not alone and pods > wanted:
        above_since = now if before is None or before.above_share_since is None else before.above_share_since
        if now - above_since >= demand.owner.yield_seconds:
            pods, above_since = wanted, None
    elif before is None or now - before.since >= demand.cooldown_seconds:
        step = abs(wanted - pods) if demand.step_pods is None else demand.step_pods
        pods = min(max(wanted, pods - step), pods + step)
    # A user set these limits, so they take effect at once.
    pods = max(pods, least)
    if demand.maximum_pods is not None:
        pods = min(pods, demand.maximum_pods)
    if before is not None and pods == before.pods:
        return before if above_since == before.above_share_since else replace(before, above_share_since=above_since)
    return PoolGrant(pods, now, above_since)

"""States in words which limit keeps the pool of a tournament at its size. Pure functions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.decisions.fair_share import Demand, OwnerShare, share, why_beyond_quota
from orchestrator.decisions.resources import FreeResources

PACE = "pool.step_pods, pool.cooldown_duration"
"""Keys of a specification that make a pool grow and shrink in steps."""


class ShareReasons:
    """Reasons for the sizes of all pools.

    reasons = ShareReasons(capacity.unoccupied, demands, desired)
    reasons.why_no_more(tournament_id)
    """

    def __init__(self, unoccupied: FreeResources, demands: Sequence[Demand], desired: Mapping[str, int]) -> None:
        """Prepares the reasons.

        Args:
            unoccupied: What could be reserved if there were no pods.
            demands: Tournaments with work, oldest first.
            desired: Sizes of the pools.
        """
        self._unoccupied, self._desired = unoccupied, desired
        self._demands = {demand.tournament_id: demand for demand in demands}
        self._shares = share(unoccupied, demands)
        self._by_owner: defaultdict[str, list[Demand]] = defaultdict(list)
        for demand in demands:
            self._by_owner[demand.owner.owner].append(demand)
        self._without_others: dict[str, Mapping[str, int]] = {}

    def why_no_more(self, name: str) -> str:
        """Returns which limit keeps the pool of a tournament at its desired size."""
        demand = self._demands.get(name)
        if demand is None:
            return f"tournament {name} has no work"
        desired = self._desired[name]
        if demand.evaluations_only:
            return f"tournament {name} no longer trains, and {pods_text(desired)} is enough for its evaluations"
        if desired == demand.maximum_pods:
            return f"pool.maximum_pods is {demand.maximum_pods}"
        wanted = self._shares[name]
        if desired < wanted:
            return f"the pool grows in steps ({PACE}), to {pods_text(desired)} at first"
        alone = self._share_alone(demand)
        if wanted < alone:
            limit = self._why_share(demand)
        else:
            limit = f"there is capacity for {pods_text(alone)} only"
            limit += f", and pool.minimum_pods is {demand.minimum_pods}" * (wanted > alone)
        return limit + f", and the pool shrinks in steps ({PACE}), to {pods_text(desired)} at first" * (
            desired > wanted
        )

    def _share_alone(self, demand: Demand) -> int:
        """Returns the pods that a tournament would have without all others, and without a minimum or a quota."""
        # Without what differs between tournaments of the same specification, so that they share a cached result.
        bare = Demand("", demand.pod, 0, demand.maximum_pods)
        return share(self._unoccupied, [bare])[""]

    def _why_share(self, demand: Demand) -> str:
        """Returns why a tournament has a smaller share than it could use."""
        name, owner = demand.tournament_id, demand.owner
        own = self._by_owner[owner.owner]
        total = sum(self._shares[each.tournament_id] for each in own)
        gpus = sum(self._shares[each.tournament_id] * each.pod.gpus for each in own)
        of_them = f", {self._shares[name]} of them for this tournament" * (len(own) > 1)
        if beyond := why_beyond_quota(demand, total, gpus):
            return beyond + of_them
        if len(self._by_owner) > 1 and self._shares[name] < self._share_without_others(owner)[name]:
            limit = f"the fair share of {owner.owner} (weight {owner.weight:g}) among {len(self._by_owner)} owners"
            return f"{limit} is {pods_text(total)}{of_them}"
        return f"the fair share among {len(own)} tournaments is {pods_text(self._shares[name])}"

    def _share_without_others(self, owner: OwnerShare) -> Mapping[str, int]:
        """Returns the pods that the tournaments of an owner would have without those of other owners."""
        name = owner.owner
        if name not in self._without_others:
            # Minimums that oversubscribe cores are no measure for what the others take.
            own = [replace(each, minimum_pods=0) for each in self._by_owner[name]]
            self._without_others[name] = share(self._unoccupied, own)
        return self._without_others[name]


def pods_text(count: int) -> str:
    """Returns a number of pods in words."""
    return f"{count} pod{'' if count == 1 else 's'}"

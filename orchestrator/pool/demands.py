"""Computes what each tournament asks for, as input of the decision about pool sizes."""

from collections.abc import Mapping

from orchestrator.decisions.fair_share import Demand, OwnerShare, PoolGrant
from orchestrator.decisions.quotas import Quotas, share_of
from orchestrator.state.cache import StateCache
from orchestrator.state.observation import Observation
from orchestrator.state.records import TournamentRecord
from podrace.access.ownership import Ownership

VERIFYING_PODS = 2
"""Pods that evaluations need at the end of a tournament with `evaluation.verify`."""


def demands_of(
    observed: Observation,
    cache: StateCache,
    quotas: Quotas,
    not_before: Mapping[str, float],
    granted: Mapping[str, PoolGrant],
) -> list[Demand]:
    """Computes what each tournament with work asks for, oldest first.

    Args:
        observed: What a reconcile cycle observed.
        cache: Knows the owner of each tournament.
        quotas: What owners may have.
        not_before: Monotonic times before which no pod is started, by tournament.
        granted: Sizes that the pools have, by tournament.
    """
    return [
        demand_of(
            tournament,
            training=name in observed.training,
            evaluating=name in observed.evaluating,
            not_before=not_before.get(name, 0.0),
            granted=granted.get(name),
            owner=owner_share(cache, quotas, name),
        )
        for tournament in observed.tournaments
        for name in [tournament.tournament_id]
        if name in observed.training or tournament.selects_champion or name in observed.evaluating
    ]


def owner_share(cache: StateCache, quotas: Quotas, tournament_id: str) -> OwnerShare:
    """Returns what the owner of a tournament may have of the pods."""
    return share_of(quotas, cache.ownership_of(tournament_id) or Ownership(""))


def demand_of(
    tournament: TournamentRecord,
    *,
    training: bool,
    evaluating: bool,
    not_before: float,
    granted: PoolGrant | None = None,
    owner: OwnerShare | None = None,
) -> Demand:
    """Computes what a tournament with work asks for: its pool, or pods for evaluations after its end or in a pause.

    While the champion is selected, as many of the tournament's pods stay as there are candidates to evaluate: a pod
    that is started again, on a cluster with an image to pull, takes longer than the evaluations. Later evaluations,
    which users ask for, get a single pod.
    """
    pool = tournament.spec.pool
    if training:
        minimum, maximum = pool.minimum_pods, pool.maximum_pods if pool.HasField("maximum_pods") else None
    elif tournament.selects_champion:
        minimum, maximum = 0, max(1, min(granted.pods if granted else 1, tournament.spec.champion.reevaluate_top))
    else:
        minimum, maximum = 0, 1
    if not training and tournament.spec.evaluation.verify:
        # A pod that has trained the agent must not play its episodes.
        minimum, maximum = VERIFYING_PODS if evaluating else 0, max(maximum or 0, VERIFYING_PODS)
    return Demand(
        tournament_id=tournament.tournament_id,
        pod=tournament.pod_resources,
        minimum_pods=max(minimum, int(evaluating)),
        maximum_pods=maximum,
        not_before=not_before,
        step_pods=pool.step_pods if pool.HasField("step_pods") else None,
        cooldown_seconds=pool.cooldown_duration.ToNanoseconds() / 1e9,
        granted=granted,
        evaluations_only=not training,
        owner=owner or OwnerShare(),
        priority=pool.priority,
    )

"""Computes what each tournament asks for, as input of the decision about pool sizes."""

from orchestrator.decisions import pool_size
from orchestrator.decisions.pool_size import Demand
from orchestrator.state.records import TournamentRecord

VERIFYING_PODS = 2
"""Pods that evaluations need at the end of a tournament with `evaluation.verify`."""


def demand_of(
    tournament: TournamentRecord,
    *,
    training: bool,
    evaluating: bool,
    not_before: float,
    granted: pool_size.PoolGrant | None = None,
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
    )

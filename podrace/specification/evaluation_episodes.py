"""Says which episodes agents are scored on: the seed of an evaluation epoch, and the number of environments.

Episode i of an epoch is the same for all agents of a tournament. The number of environments is part of the definition
of the episodes, so it depends on nothing but the resolved specification.
"""

from podrace.seeding import derive_seed
from podrace.specification import catalog
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MAXIMUM_EVALUATION_LANES = 64
"""Number of environments that an evaluation runs at the same time, at most."""
RACING_LANES = 8
"""Number of environments of an evaluation that may stop early, unless the simulator steps them all as one batch: there,
64 environments take little longer than 8. Where they are stepped one by one, smaller batches also wait less for the
longest episode."""


def evaluation_lanes(spec: TournamentSpec) -> int:
    """Returns the number of environments in which the agents of a tournament are scored."""
    racing = spec.evaluation.racing and not catalog.steps_on_gpu(spec.environment.id)
    return min(spec.evaluation.episodes, RACING_LANES if racing else MAXIMUM_EVALUATION_LANES)


def evaluation_seed(spec: TournamentSpec, epoch: int) -> int:
    """Returns the seed of the episodes of an evaluation epoch, the same for all agents of a tournament."""
    return derive_seed(spec.seed, "evaluation", epoch)

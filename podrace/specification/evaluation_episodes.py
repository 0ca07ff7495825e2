"""Says which episodes agents are scored on: the seed of an evaluation epoch, and the number of environments.

Episode i of an epoch is the same for all agents of a tournament. The number of environments is part of the definition
of the episodes, so it depends on nothing but the resolved specification.
"""

from podrace.seeding import derive_seed
from podrace.specification import catalog
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MAXIMUM_EVALUATION_LANES = 64
"""Number of environments that an evaluation runs at the same time, at most."""
GPU_EVALUATION_LANES = 1024
"""The same if the simulator steps on a GPU of the pod, on which this many take little longer than one."""
SMALL_BATCH_LANES = 8
"""Number of environments of an evaluation where they are stepped one by one: smaller batches wait less for the longest
episode, and an evaluation may stop earlier. Where a simulator steps them all as one batch, 64 environments take little
longer than 8."""


def evaluation_lanes(spec: TournamentSpec) -> int:
    """Returns the number of environments in which the agents of a tournament are scored."""
    on_gpu = spec.pod.gpus > 0 and catalog.steps_on_gpu(spec.environment.id)
    if on_gpu or spec.evaluation.racing:
        return efficient_lanes(spec.environment.id, spec.evaluation.episodes, on_gpu=on_gpu)
    return min(spec.evaluation.episodes, MAXIMUM_EVALUATION_LANES)


def efficient_lanes(environment_id: str, episodes: int, *, on_gpu: bool = False) -> int:
    """Returns the number of environments in which a simulator plays some episodes fastest, perhaps `on_gpu`."""
    if on_gpu:
        return min(episodes, GPU_EVALUATION_LANES)
    lanes = MAXIMUM_EVALUATION_LANES if catalog.steps_on_gpu(environment_id) else SMALL_BATCH_LANES
    return min(episodes, lanes)


def evaluation_seed(spec: TournamentSpec, epoch: int) -> int:
    """Returns the seed of the episodes of an evaluation epoch, the same for all agents of a tournament."""
    return derive_seed(spec.seed, "evaluation", epoch)

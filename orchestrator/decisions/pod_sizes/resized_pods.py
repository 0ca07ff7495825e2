"""Derives the specification of a pod of another size. Pure."""

from podrace.specification.pods.sizes import divisible_environments, grows_by_learners
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import PodSpec, TournamentSpec

SEPARATE_FROM_CORES = 2.0
"""Cores from which a pod has separate processes, as by default."""
_TOLERANCE = 1e-6


def resized(spec: TournamentSpec, cores: float) -> PodSpec:
    """Returns the specification of a pod with another number of cores.

    What an update depends on is that of the specification at every size:
    - Batch size: the pod has as many environments as before. Several workers divide them among themselves equally, and
      several learners divide the environments and the minibatches.
    - Learning rate: unchanged, because the batch is.
    - Ratio of updates to data: unchanged, because each update still follows from the same number of steps.

    A pod with GPUs or several learners gets proportionally more learners, with as many GPUs each. In other pods, the
    roles are separate processes with two or more cores, so rollouts are collected with a policy that is one update old.

    Args:
        spec: Resolved specification of the tournament.
        cores: Cores of the pod.
    """
    changed, pod = PodSpec(), spec.pod
    changed.CopyFrom(pod)
    if abs(cores - pod.cores) > _TOLERANCE:
        changed.cores = cores
        changed.memory_bytes = int(pod.memory_bytes * cores / pod.cores)
        if grows_by_learners(pod):
            times = round(cores / pod.cores)
            changed.gpus, changed.learners = pod.gpus * times, pod.learners * times
            return changed
        separate = cores >= SEPARATE_FROM_CORES
        changed.layout = tournament_pb2.LAYOUT_SEPARATE if separate else tournament_pb2.LAYOUT_FUSED
        if separate and not pod.worker:
            changed.workers = workers_for(cores, divisible_environments(spec))
    return changed


def workers_for(cores: float, environments: int) -> int:
    """Returns the workers of a pod: as many as have a core besides that of the learner, and divide the environments."""
    most = min(environments, int(cores + _TOLERANCE) - 1)
    return max((count for count in range(1, most + 1) if environments % count == 0), default=1)

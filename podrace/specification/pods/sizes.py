"""Decides what pods of several sizes share: what a specification may say, and how a larger pod divides its work. Pure.

With `pod.maximum_cores`, the pod of the incumbent may have several times the cores of the others. What it does with
them depends on the pods of the specification:

- One learner without a GPU: its pod gets cores and, with three or more, further workers, which divide the environments.
- Learners with GPUs, or several learners: its pod gets further learners, with as many GPUs and workers each. They
  divide the environments and each minibatch, and average the gradients of every step (`fusion.mode = "allreduce"`).

In both cases a gradient follows from as many steps of as many environments as in a small pod, so the learning rate and
the ratio of updates to data stay as they are.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from podrace.specification.declared_algorithms import entry_of
from podrace.specification.environment_search import COUNT
from podrace.specification.hyperparameters import MINIBATCH_SIZE
from podrace.specification.known.opponents import BUILT_IN
from podrace.specification.pods.exchange import REPLAYED
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec, HyperparameterSpec, PodSpec, TournamentSpec

IMPROVING_SHARE = 0.7
STALLED_SHARE = 0.1
"""Defaults of `pod.improving_share` and `pod.stalled_share`, if the pod of the incumbent may grow."""
ALLREDUCE = "allreduce"
NOT_DIVISIBLE = ("recurrent_size", "learning_rate_steps", "learning_rate_schedule")
"""Hyperparameters that depend on the lanes or steps of a single learner."""


def grows(pod: PodSpec) -> bool:
    """Whether the pod of the incumbent may have more cores than the others."""
    return pod.HasField("maximum_cores") and pod.maximum_cores > pod.cores


def grows_by_learners(pod: PodSpec) -> bool:
    """Whether a larger pod has further learners; if not, it has further workers."""
    return pod.gpus > 0 or pod.learners > 1


def fill_sizes(spec: TournamentSpec, *, mode_given: bool) -> None:
    """Fills in what decides about the size of the incumbent's pod, if it may differ from the others.

    Args:
        spec: The specification with all other defaults of pods.
        mode_given: Whether `fusion.mode` was given. Its default is another one where pods grow by learners.
    """
    pod = spec.pod
    if not pod.HasField("maximum_cores"):
        return
    if not pod.HasField("minimum_cores"):
        pod.minimum_cores = pod.cores
    if not pod.HasField("improving_share"):
        pod.improving_share = IMPROVING_SHARE
    if not pod.HasField("stalled_share"):
        pod.stalled_share = STALLED_SHARE
    if grows(pod) and grows_by_learners(pod) and not mode_given:
        spec.fusion.mode = ALLREDUCE


def size_problems(spec: TournamentSpec) -> Iterator[str]:
    """Yields why pods cannot have these sizes."""
    pod = spec.pod
    if not pod.HasField("maximum_cores"):
        return
    for name in ("minimum_cores", "maximum_cores"):
        pods = getattr(pod, name) / pod.cores
        if pods < 1 or abs(pods - round(pods)) > 1e-6:
            yield f"pod.{name} = {getattr(pod, name):g}: expected a multiple of pod.cores = {pod.cores:g}"
    if pod.minimum_cores > pod.maximum_cores:
        yield f"pod.minimum_cores = {pod.minimum_cores:g}: more than pod.maximum_cores = {pod.maximum_cores:g}"
    if not grows(pod):
        return
    where = f"pod.maximum_cores = {pod.maximum_cores:g}"
    if spec.evolution.strategy != "incumbent":
        yield f"{where}: only the strategy 'incumbent' has an agent whose pod grows; leave it out"
    if spec.synchronous:
        yield f"{where}: when a pod grows depends on the speed of the machine; leave it out when synchronous = true"
    if pod.hosts > 1:
        yield f"{where}: a pod grows on one host; leave it out, or set pod.hosts to 1"
    if grows_by_learners(pod):
        yield from _learner_problems(spec, where)
    elif pod.workers > 1:
        yield f"{where}: a pod gets further workers when it grows; leave it out, or set pod.workers to 1"


def _learner_problems(spec: TournamentSpec, where: str) -> Iterator[str]:
    """Yields why a pod cannot get further learners."""
    if spec.fusion.mode != ALLREDUCE:
        yield (
            f"{where}: with fusion.mode = {spec.fusion.mode!r} a pod with more learners would learn from other batches;"
            f" set it to {ALLREDUCE!r}"
        )
    most = spec.pod.learners * (1 + spec.pod.workers)
    if spec.pod.gpus > most:
        yield (
            f"{where}: a larger pod has more learners and workers, but one evaluator, so each GPU must belong to a"
            f" learner or a worker; set pod.gpus to {most} or less"
        )
    if spec.opponents.training not in ("", BUILT_IN):
        yield f"{where}: a pod with opponents.training = {spec.opponents.training!r} has one learner; leave it out"
    for name in sorted(spec.algorithms):
        yield from _algorithm_problems(name, spec.algorithms[name], where)
    yield from _environment_problems(spec, where)


def _algorithm_problems(name: str, algorithm: AlgorithmSpec, where: str) -> Iterator[str]:
    """Yields why several learners could not train an agent as one does."""
    entry = entry_of(name, algorithm)
    if entry and REPLAYED in entry.hyperparameters:
        yield (
            f"{where}: a pod with GPUs or several learners gets further learners when it grows, and those of {name!r}"
            " would not share its replay memory; leave it out"
        )
    for key in NOT_DIVISIBLE:
        if _is_set(algorithm.hyperparameters.get(key)) or any(key in start.fields for start in algorithm.starts):
            yield f"{where}: {key} of {name!r} would differ between sizes of a pod; leave one of them out"


def _is_set(given: HyperparameterSpec | None) -> bool:
    """Whether a hyperparameter that is 0 or empty by default has a value or is searched."""
    if given is None:
        return False
    return bool(given.HasField("low") or given.choices or given.value.number_value or given.value.string_value)


def _environment_problems(spec: TournamentSpec, where: str) -> Iterator[str]:
    """Yields why the learners of a larger pod could not divide the environments."""
    if COUNT in {key for algorithm in spec.algorithms.values() for key in algorithm.hyperparameters}:
        yield f"{where}: learners divide {COUNT}, so it cannot be searched; leave one of them out"
        return
    key = f"{where}: {COUNT} = {spec.environment.count}"
    pods, least = (max(1, round(size / spec.pod.cores)) for size in (spec.pod.maximum_cores, spec.pod.minimum_cores))
    if spec.environment.count % least:
        yield f"{key} is not divisible by the {least} pods of pod.minimum_cores; choose numbers that are"
    elif all(spec.environment.count % larger for larger in range(2, pods + 1)):
        yield f"{key} is not divisible by any number of pods from 2 to {pods}, so no pod could grow; choose another"


def divisible_environments(spec: TournamentSpec) -> int:
    """Returns how many environments of an agent a pod may divide; 1 if agents have different numbers."""
    searched = any(COUNT in algorithm.hyperparameters for algorithm in spec.algorithms.values())
    return 1 if searched else spec.environment.count


def environments_of_a_worker(environments: int, pod: PodSpec, learners: int, workers: int) -> int:
    """Returns the number of environments of each worker of a pod.

    Args:
        environments: Environments that the agent has for each worker of the specification.
        pod: Pod of the specification.
        learners: Learners that the pod has.
        workers: Workers that each of them has.
    """
    if not grows(pod):
        return environments
    parts = _times(pod, learners) if grows_by_learners(pod) else workers
    return environments // parts if environments % parts == 0 else environments


def batch_of_a_learner(values: Mapping[str, Any], pod: PodSpec, learners: int) -> dict[str, Any]:
    """Returns the hyperparameters of each learner of a pod, which together have the minibatches of the specification.

    Args:
        values: Hyperparameters of the agent.
        pod: Pod of the specification.
        learners: Learners that the pod has.
    """
    times, size = _times(pod, learners), values.get(MINIBATCH_SIZE)
    if times == 1 or not isinstance(size, int | float) or size <= 0:
        # 0 is the whole rollout, which is divided anyway.
        return dict(values)
    return {**values, MINIBATCH_SIZE: math.ceil(size / times)}


def _times(pod: PodSpec, learners: int) -> int:
    """Returns how many times the learners of the specification a pod has."""
    return max(1, learners // max(1, pod.learners)) if grows(pod) and grows_by_learners(pod) else 1

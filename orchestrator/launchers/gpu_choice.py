"""Chooses GPUs of one machine for a pod. Pure."""

from collections.abc import Mapping, Sequence

from orchestrator.launchers.base import NewPod
from podrace.errors import Unavailable


def choose_gpus(pod: NewPod, usable: Sequence[str], held: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Returns GPUs that no other pod has, except those that make room for this one.

    Until those pods have stopped, they compute on the same GPUs. So a pod gets GPUs of its own as far as there are any,
    then those of pods that stop at once, and last those of the pod that it replaces, which trains until it is ready.

    Args:
        pod: A pod with GPUs.
        usable: GPUs that pods may use, in the order in which they are given out.
        held: GPUs of the other pods, by pod id.

    Raises:
        Unavailable: There are too few.
    """
    others = {gpu for pod_id, gpus in held.items() if pod_id not in (pod.replaces, *pod.retired) for gpu in gpus}
    stopping = {gpu for pod_id in pod.retired for gpu in held.get(pod_id, ())}
    replaced = set(held.get(pod.replaces, ()))
    free = [gpu for gpu in usable if gpu not in others]
    if len(free) < pod.spec.gpus:
        raise Unavailable(f"a pod needs {pod.spec.gpus} GPUs, {len(free)} are free")
    return tuple(sorted(free, key=lambda gpu: (gpu in replaced, gpu in stopping))[: pod.spec.gpus])

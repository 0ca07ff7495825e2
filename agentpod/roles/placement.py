"""Decides on which device a worker or an evaluator computes.

The device comes from the configuration of the pod. Only a simulator that does not step on a GPU follows the plane: its
policy acts where the tensors are.
"""

from collections.abc import Callable

import torch

from agentpod.config import PodConfig
from podrace.errors import InvalidArgument
from podrace.specification import catalog

Place = Callable[[str, torch.device], torch.device]
"""Returns the device for an environment id and the device of the plane's tensors."""
HOST_PLANES = ("shared", "grpc")
"""Planes that, if the specification names them, keep simulators on processors."""


def at_the_plane(environment_id: str, plane_device: torch.device) -> torch.device:
    """Computes where the plane has its memory."""
    return plane_device


def placed(config: PodConfig, role: str) -> Place:
    """Returns how the devices of a role are chosen in a pod."""

    def place(environment_id: str, plane_device: torch.device) -> torch.device:
        if config.plane in HOST_PLANES or not catalog.steps_on_gpu(environment_id):
            return plane_device
        device = config.device(role)
        if device == "cpu" and config.gpus_of_pod:
            raise InvalidArgument(
                f"environment.id = {environment_id!r} steps on a GPU, but {role} has none: the pod's"
                f" {config.gpus_of_pod} GPUs belong to other containers. Set pod.layout = 'fused', or pod.gpus ="
                f" {len(config.roles)} for one in each container; with pod.plane = 'shared' simulators step on the CPU"
            )
        return torch.device(device)

    return place

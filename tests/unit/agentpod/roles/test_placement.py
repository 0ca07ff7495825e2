"""On which device a worker or an evaluator computes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from agentpod.config import PodConfig
from agentpod.roles.placement import placed
from podrace.errors import InvalidArgument

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def device(environment: str, role: str = "worker-0", plane_device: torch.device = CPU, **settings: Any) -> torch.device:
    settings = {"layout": "separate"} | settings
    config = PodConfig("p", "unix:o", "unix:l", "folder:///s", Path("/tmp"), **settings)
    return placed(config, role)(environment, plane_device)


@pytest.mark.parametrize("plane_device", [CPU, GPU])
def test_a_simulator_that_steps_on_a_gpu_does_so_whatever_plane_connects_its_role(plane_device: torch.device) -> None:
    assert device("cartpole", plane_device=plane_device, gpus=("GPU-a",)) == GPU
    assert device("warp:ant", "evaluator", plane_device, gpus=("a", "b", "c")) == torch.device("cuda", 2)


@pytest.mark.parametrize("role", ["worker-0", "evaluator"])
@pytest.mark.parametrize("plane", ["auto", "cuda", "group"])
def test_a_role_without_a_gpu_in_a_pod_with_gpus_is_an_error_that_names_it(role: str, plane: str) -> None:
    message = (
        f"'cartpole' steps on a GPU, but {role} has none: the pod's 1 GPUs belong to other containers. Set pod.layout ="
        " 'fused', or pod.gpus = 3 for one in each container"
    )
    with pytest.raises(InvalidArgument, match=message):
        device("cartpole", role, pod_gpus=1, plane=plane)


@pytest.mark.parametrize("plane", ["shared", "grpc"])
def test_a_specification_that_names_a_plane_of_the_host_keeps_simulators_on_processors(plane: str) -> None:
    assert device("cartpole", pod_gpus=1, plane=plane) == CPU
    assert device("cartpole", gpus=("GPU-a",), plane=plane) == CPU


def test_other_simulators_follow_the_plane() -> None:
    assert device("CartPole-v1", pod_gpus=1) == CPU
    assert device("python:a:b", gpus=("a",), plane="cuda", plane_device=GPU) == GPU
    assert device("cartpole") == CPU, "a pod without GPUs steps on processors"


def test_a_fused_pod_steps_on_its_gpu_even_if_its_memory_is_elsewhere() -> None:
    assert device("cartpole", gpus=("GPU-a",), layout="fused") == GPU

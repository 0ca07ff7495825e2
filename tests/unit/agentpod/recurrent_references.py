"""Computes recurrent networks in float64 by torch's own cell and layers, as PolicySpec describes them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from agentpod.models.factory import NetworkFactory
from agentpod.models.mlp import Sequences


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def remembered(tensors: Mapping[str, Tensor], name: str, features: Tensor, sequences: Sequences) -> Tensor:
    """Returns states [T, L, H] after each step, by torch's own cell in float64."""
    cell = nn.GRUCell(features.shape[-1], sequences.state.shape[1], dtype=torch.float64)
    for parameter, key in (
        ("weight_ih", "input_weight"),
        ("weight_hh", "state_weight"),
        ("bias_ih", "input_bias"),
        ("bias_hh", "state_bias"),
    ):
        # A module needs its own leaf parameters; these tensors are functions of the caller's leaves.
        delattr(cell, parameter)
        setattr(cell, parameter, tensors[f"{name}.{key}"])
    state, states = sequences.state, []
    for step, keep in zip(features, sequences.keep, strict=True):
        state = cell(step, torch.where(keep.bool(), state, 0.0))
        states.append(state)
    return torch.stack(states)


def leaves(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone().double().requires_grad_() for name, tensor in tensors.items()}


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-11)


def reference(plan: NetworkFactory, tensors: Mapping[str, Tensor], inputs: Tensor, sequences: Sequences) -> Tensor:
    """Returns outputs [T L, outputs] of a network with one hidden layer, as PolicySpec describes it."""
    hidden = inputs
    if plan.torso == "small":
        hidden = hidden.view(-1, *plan.observation_space.shape) / 255
        for i, stride in enumerate((2, 1)):
            weight, bias = tensors[f"net.torso.{i}.weight"], tensors[f"net.torso.{i}.bias"]
            hidden = nn.functional.conv2d(hidden, weight, bias, stride=stride).tanh()
        hidden = hidden.flatten(1)
    features = nn.functional.linear(hidden, tensors["net.0.weight"], tensors["net.0.bias"]).tanh()
    states = remembered(tensors, "net.recurrent", features.view(*sequences.keep.shape[:2], -1), sequences)
    return nn.functional.linear(states.flatten(0, 1), tensors["net.output.0.weight"], tensors["net.output.0.bias"])

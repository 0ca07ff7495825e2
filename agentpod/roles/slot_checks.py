"""Checks references of a caller before a role computes with the memory that they name."""

from collections.abc import Mapping

import torch
from torch import Tensor

from agentpod.experience.rollout import rollout_fields
from agentpod.experience.slots import POLICY
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import InvalidArgument
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport.codec import element_type
from podrace.tensor_transport.plane import Planes
from simulators import Simulator

REPLAY_LEAVES_OUT = {"log_prob", "state"}
"""Fields of a rollout that a replay memory does not have."""


def open_policy(planes: Planes, ref: pb.PolicyRef) -> Tensor:
    """Views the parameters [P] of a policy; raises InvalidArgument if the reference is of another tensor."""
    if ref.tensor.spec.name != POLICY:
        raise InvalidArgument(f"policy.tensor.spec.name = {ref.tensor.spec.name!r}: expected {POLICY!r}")
    return planes.open([ref.tensor])[POLICY]


def check_slot(slot: pb.RolloutSlot, simulator: Simulator, horizon: int, state_size: int) -> None:
    """Checks that a worker can write its rows and columns of a slot.

    Args:
        slot: The slot, with M >= N columns.
        simulator: The environments of the worker, N lanes.
        horizon: T, steps of each environment.
        state_size: Size of the recurrent state; 0 without one.

    Raises:
        InvalidArgument: A tensor is missing, superfluous, too small, or of another type.
    """
    given: Mapping[str, TensorSpec] = {ref.spec.name: ref.spec for ref in slot.tensors}
    fields = rollout_fields(simulator.observation_space, simulator.action_space, horizon, simulator.count, state_size)
    on_policy = "log_prob" in given
    expected = fields.keys() if on_policy else fields.keys() - REPLAY_LEAVES_OUT
    if given.keys() != expected:
        raise InvalidArgument(f"slot.tensors: are {', '.join(sorted(given))}; expected {', '.join(sorted(expected))}")
    for name, spec in given.items():
        field = fields[name]
        # A replay memory has no row for the observation after the last step.
        rows = horizon if name == "observation" and not on_policy else field.shape[0]
        shape, dtype = tuple(spec.shape), element_type(spec)
        fits = len(shape) == len(field.shape) and shape[2:] == field.shape[2:]
        if not fits or slot.first_row + rows > shape[0] or slot.first_environment + simulator.count > shape[1]:
            raise InvalidArgument(
                f"slot.tensors: {name} is {list(shape)}; the worker writes {list(field.shape)} from row"
                f" {slot.first_row} and column {slot.first_environment} on"
            )
        if dtype is not field.dtype:
            raise InvalidArgument(f"slot.tensors: {name} is {_short(dtype)}; expected {_short(field.dtype)}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

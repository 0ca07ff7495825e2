"""Masks invalid actions (Huang and Ontanon 2020, "A closer look at invalid action masking", arXiv 2006.14171).

The output of an invalid action is replaced by a number so low that its probability is exactly 0 in float32. A masked
policy is therefore still a differentiable function of its parameters, whose gradient is 0 at masked outputs (their
proposition 1), and every head, log-probability and entropy is that of the remaining actions. The mask of a
multi-binary action says which elements may be 1; the others are 0.
"""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from podrace.spaces.entries import mask_columns
from simulators.base import Space

MASKED = -1e8
"""Output of an invalid action, the value of the paper: finite, so that 0 log 0 is 0 instead of NaN."""
MASKABLE = ("discrete", "multi_discrete", "multi_binary")


class OutputMask(NamedTuple):
    """Where a policy finds the mask, and which outputs it masks."""

    columns: slice
    """Columns of the mask in an observation row."""
    first: int
    """Number of outputs before those of the actions: 1 for a dueling head, whose first output is a state value."""

    def valid(self, inputs: Tensor) -> Tensor:
        """Returns which actions are valid, [B, choices] bool, for rows [B, D] as `Policy.normalize` returns them."""
        return inputs[:, self.columns] > 0

    def apply(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        """Returns the outputs of an actor [B, outputs] with those of invalid actions replaced by MASKED.

        Where no action is valid, as at the end of an episode in some environments, all of them are equally bad.
        """
        values = self.choices(outputs[:, self.first :], inputs)
        return torch.cat((outputs[:, :1], values), 1) if self.first else values

    def choices(self, values: Tensor, inputs: Tensor) -> Tensor:
        """Returns values of the actions alone [B, choices], with those of invalid actions replaced by MASKED."""
        return torch.where(self.valid(inputs), values, MASKED)

    def backward(self, gradient: Tensor, inputs: Tensor) -> Tensor:
        """Returns the gradient with respect to the outputs before `apply`: 0 where they were replaced."""
        values = gradient[:, self.first :] * self.valid(inputs)
        return torch.cat((gradient[:, :1], values), 1) if self.first else values


def output_mask(observation_space: Space, action_space: Space, head: str) -> OutputMask | None:
    """Returns the mask of a policy; None if its observations have none.

    Raises:
        InvalidArgument: The actions cannot be masked, or the number of elements is not that of the choices.
    """
    place = mask_columns(observation_space.entries)
    if place is None:
        return None
    binary = prod(action_space.shape) if action_space.kind == "multi_binary" else 0
    choices = action_space.n or sum(action_space.choices) or binary
    if action_space.kind not in MASKABLE or place.stop - place.start != choices:
        raise InvalidArgument(
            f"an action mask with {place.stop - place.start} elements does not fit {action_space.kind} actions with"
            f" {choices} choices: a mask has one element for each choice of discrete or multi-discrete actions, or for"
            " each element of multi-binary ones",
            reason=UNSUITABLE_SPACE,
        )
    return OutputMask(place, int(head == "dueling"))

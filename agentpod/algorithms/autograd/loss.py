"""Computes the loss of a user-defined algorithm, and turns everything that is wrong with it into one line."""

from typing import Any

import torch
from torch import Tensor

from podrace.plugins.user_calls import calls_user_code, unusable

LOSS = "loss"


def evaluate(algorithm: Any, batch: Any) -> tuple[Tensor, Tensor | None]:
    """Computes the loss of a batch.

    Args:
        algorithm: Its method `loss` returns a scalar, or a scalar and the errors [B] of the batch.
        batch: For the method.

    Returns:
        The loss [], which requires a gradient; the absolute errors, if the method returned errors. Their shape is not
        checked.

    Raises:
        InvalidArgument: The method raised, its first result is not a scalar that depends on the trained networks, or
            its second one is no tensor (UNUSABLE_ALGORITHM). Whether they are finite is checked after the update.
    """
    cls = type(algorithm)
    with calls_user_code(cls, LOSS), torch.enable_grad():
        result = algorithm.loss(batch)
    loss, errors = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(loss, Tensor):
        raise unusable(cls, LOSS, f"returned a {type(loss).__name__}, expected a tensor with one element")
    if loss.numel() != 1:
        raise unusable(cls, LOSS, f"returned a tensor of shape {list(loss.shape)}, expected a scalar: take its mean")
    if not loss.requires_grad:
        raise unusable(cls, LOSS, "returned a loss that does not depend on the trained networks: use self.actor")
    if errors is None:
        return loss.view(()), None
    if not isinstance(errors, Tensor):
        problem = f"returned a {type(errors).__name__} besides the loss, expected a tensor with the errors [B]"
        raise unusable(cls, LOSS, problem)
    if not errors.is_floating_point():
        raise unusable(cls, LOSS, f"returned errors of the type {errors.dtype}, expected a tensor of floats")
    return loss.view(()), errors.detach().abs()

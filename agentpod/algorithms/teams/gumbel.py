"""Differentiates choices by the straight-through Gumbel-softmax estimator.

Jang et al. 2017 (arXiv 1611.01144) and Maddison et al. 2017 (arXiv 1611.00712).
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws standard Gumbel noise, -log E with E exponential: float32 [*shape]."""
    return torch.empty(shape, device=generator.device).exponential_(generator=generator).log_().neg_()


def straight_through(logits: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draws choices, and computes what their gradient is propagated through.

        y = softmax((logits + noise) / temperature)
        a = one_hot(argmax y)

    Args:
        logits: [B, n].
        noise: Standard Gumbel noise, [B, n].
        temperature: Of the softmax; the choices do not depend on it.

    Returns:
        a and y: [B, n] each.
    """
    perturbed = logits + noise
    return chosen(perturbed), (perturbed / temperature).softmax(-1)


def chosen(logits: Tensor) -> Tensor:
    """Returns the choice of the largest output, one-hot: [B, n] -> [B, n]."""
    return one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)


def straight_through_backward(action_gradient: Tensor, soft: Tensor, temperature: float) -> Tensor:
    """Computes the gradient with respect to the logits, as if a were y.

        d L / d logit_i = y_i (dL/da_i - sum_j y_j dL/da_j) / temperature

    Args:
        action_gradient: dL/da, [B, n].
        soft: y, [B, n].
        temperature: As for `straight_through`.

    Returns:
        [B, n].
    """
    mean = (soft * action_gradient).sum(-1, keepdim=True)
    return soft * (action_gradient - mean) / temperature

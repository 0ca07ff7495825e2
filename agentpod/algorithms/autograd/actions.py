"""Computes log-probabilities and samples of actions that are differentiable by the outputs of an actor."""

import math

import torch
from torch import Tensor

from agentpod.models.action_heads import MAXIMUM_LOG_STD, MINIMUM_LOG_STD, Head
from agentpod.models.distributions import Bernoulli, Categorical, DiagonalGaussian, Distribution, MultiCategorical


def log_prob(outputs: Tensor, action: Tensor, log_std: Tensor | None, head: Head) -> Tensor:
    """Returns log-probabilities [B] of actions under the head `stochastic`.

    Args:
        outputs: [B, outputs] of the actor.
        action: [B] int64, [B, A] int64 or [B, A] float32, as workers sampled them.
        log_std: [A] of a continuous action space; None for others.
        head: Of the policy.
    """
    if log_std is None:
        return _choosing(outputs, head).log_prob(outputs, action)
    return DiagonalGaussian(log_std).log_prob(outputs, action)


def entropy(outputs: Tensor, log_std: Tensor | None, head: Head) -> Tensor:
    """Returns the mean entropy [] of the head `stochastic`; the arguments are those of `log_prob`."""
    if log_std is None:
        chosen = _choosing(outputs, head)
        return chosen.evaluate(outputs, chosen.mode(outputs))[1]
    return log_std.sum() + 0.5 * len(log_std) * (1.0 + math.log(2.0 * math.pi))


def _choosing(outputs: Tensor, head: Head) -> Distribution:
    """Returns the distribution of actions that are not continuous; outputs of a head of values are logits."""
    return head if isinstance(head, MultiCategorical | Bernoulli) else Categorical(outputs.shape[-1])


def squashed_sample(outputs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Samples actions of the head `squashed` by reparameterization (Haarnoja et al. 2018, arXiv 1801.01290, C).

    Args:
        outputs: [B, 2 A], means and log standard deviations.
        generator: Source of the noise.

    Returns:
        Actions [B, A] in (-1, 1); their log-probabilities [B].
    """
    mean, log_std = outputs.chunk(2, -1)
    log_std = log_std.clamp(MINIMUM_LOG_STD, MAXIMUM_LOG_STD)
    noise = torch.randn(mean.shape, generator=generator, device=mean.device)
    latent = mean + log_std.exp() * noise
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which loses no digits at large |u|.
    squash = 2.0 * (math.log(2.0) - latent - torch.nn.functional.softplus(-2.0 * latent))
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    return latent.tanh(), (density - squash).sum(-1)

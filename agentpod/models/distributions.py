"""Owns the distributions a policy acts with: samples, log-probabilities, entropies and their derivatives.

A distribution turns the *outputs* of the actor network, [..., outputs], into actions. Nothing here keeps the state of a
random number generator: noise is an argument, so a whole rollout draws its noise in one call.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Space

Backward = Callable[[Tensor, float], tuple[Tensor, Tensor | None]]

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """How outputs of the actor become actions.

        noise = distribution.noise((horizon, count), generator)
        action = distribution.sample(outputs, noise[t])
        log_prob = distribution.log_prob(outputs, action)

    and in training, for a loss that depends on each log-probability and on the mean entropy:

        log_prob, entropy, backward = distribution.evaluate(outputs, action)
        outputs_gradient, log_std_gradient = backward(log_prob_gradient, entropy_gradient)

    Attributes:
        output_count: Outputs the actor must have.
    """

    output_count: int

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws what `sample` needs: [*leading, output_count] float32 on the generator's device."""
        ...

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Actions for outputs [..., output_count] and noise of the same shape."""
        ...

    def mode(self, outputs: Tensor) -> Tensor:
        """The likeliest actions for outputs [..., output_count]."""
        ...

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Log-probabilities (densities) [...] of actions as `sample` returns them."""
        ...

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """Log-probabilities and mean entropy, and the way back.

        Args:
            outputs: [B, output_count].
            action: B actions.

        Returns:
            log_prob: [B].
            entropy: [], mean over the batch.
            backward: (gradient of the loss with respect to log_prob [B], with respect to the mean entropy) ->
                (gradient with respect to outputs [B, output_count], with respect to log_std [A] where there is one).
        """
        ...


class Categorical:
    """One of n choices; the outputs are unnormalised log-probabilities. Actions are int64 [...]."""

    def __init__(self, n: int) -> None:
        self.output_count = n

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Standard Gumbel noise, -log E with E exponential."""
        noise = torch.empty(*leading, self.output_count, device=generator.device)
        return noise.exponential_(generator=generator).log_().neg_()

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """The Gumbel-max rule (Maddison, Tarlow and Minka 2014): argmax of outputs plus Gumbel noise."""
        return (outputs + noise).argmax(-1)

    def mode(self, outputs: Tensor) -> Tensor:
        """The largest output."""
        return outputs.argmax(-1)

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Log softmax(outputs) at the action."""
        return outputs.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """See Distribution. With p = softmax(outputs) and H = -sum p log p:

        d log p_a / d outputs_i = [i = a] - p_i
        d H / d outputs_i = -p_i (log p_i + H)
        """
        log_probabilities = outputs.log_softmax(-1)
        probabilities = log_probabilities.exp()
        index = action.unsqueeze(-1)
        entropy = -(probabilities * log_probabilities).sum(-1, keepdim=True)

        def backward(log_prob_gradient: Tensor, entropy_gradient: float) -> tuple[Tensor, None]:
            weight = log_prob_gradient.unsqueeze(-1)
            each = entropy_gradient / len(outputs)
            gradient = (log_probabilities + entropy).mul_(each).add_(weight).mul_(probabilities).neg_()
            return gradient.scatter_add_(-1, index, weight), None

        return log_probabilities.gather(-1, index).squeeze(-1), entropy.mean(), backward


class DiagonalGaussian:
    """Independent normals; the outputs are the means, the standard deviations do not depend on the observation.

    Actions are float32 [..., A] and unbounded; log-probabilities are those of the action before any clipping.

    Attributes:
        log_std: [A], a view of the caller's buffer.
    """

    def __init__(self, log_std: Tensor) -> None:
        self.log_std = log_std
        self.output_count = len(log_std)

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Standard normal noise."""
        return torch.randn(*leading, self.output_count, generator=generator, device=generator.device)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Mean + std noise."""
        return torch.addcmul(outputs, self.log_std.exp(), noise)

    def mode(self, outputs: Tensor) -> Tensor:
        """The mean."""
        return outputs

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """sum_i of -((a_i - mean_i) / std_i)^2 / 2 - log std_i - log sqrt(2 pi)."""
        deviation = (action - outputs) * self.log_std.neg().exp()
        return deviation.square().sum(-1) * -0.5 - self._log_normaliser()

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """See Distribution. With z = (a - mean) / std and H = sum_i log std_i + A (1 + log 2 pi) / 2:

        d log p / d mean_i = z_i / std_i
        d log p / d log std_i = z_i^2 - 1
        d H / d log std_i = 1
        """
        precision = self.log_std.neg().exp()
        deviation = (action - outputs) * precision
        squared = deviation.square()
        log_normaliser = self._log_normaliser()

        def backward(log_prob_gradient: Tensor, entropy_gradient: float) -> tuple[Tensor, Tensor]:
            log_std_gradient = torch.mv(squared.t(), log_prob_gradient) - log_prob_gradient.sum() + entropy_gradient
            return (deviation * log_prob_gradient.unsqueeze(-1)).mul_(precision), log_std_gradient

        return squared.sum(-1) * -0.5 - log_normaliser, log_normaliser + 0.5 * self.output_count, backward

    def _log_normaliser(self) -> Tensor:
        return self.log_std.sum() + self.output_count * _HALF_LOG_TWO_PI


def require_distribution(head: object) -> Distribution:
    """A policy's head as the distribution it is.

    Raises:
        InvalidArgument: It has no log-probabilities.
    """
    if not isinstance(head, Categorical | DiagonalGaussian):
        raise InvalidArgument(f"a head of type {type(head).__name__} has no log-probabilities: it learns from a replay")
    return head


def output_count(action_space: Space) -> int:
    """Outputs an actor needs for this action space: one a choice, or one a dimension.

    Raises:
        InvalidArgument: The space has no choice and no dimension.
    """
    count = action_space.n if action_space.kind == "discrete" else math.prod(action_space.shape)
    if count < 1:
        raise InvalidArgument(f"there is nothing to choose in {action_space}: give it n choices or a shape")
    return count

"""Implements the action distributions of on-policy algorithms: samples, log-probabilities, entropies, gradients.

A distribution turns the *outputs* of the actor network, [..., outputs], into actions. It keeps no random state: noise
is an argument, so the noise of a whole rollout is drawn in one call.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Space

Backward = Callable[[Tensor, float], tuple[Tensor, Tensor | None]]

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """Turns outputs of the actor into actions with known log-probabilities.

        noise = distribution.noise((horizon, count), generator)
        action = distribution.sample(outputs, noise[t])
        log_prob = distribution.log_prob(outputs, action)

    In training, for a loss that depends on each log-probability and on the mean entropy:

        log_prob, entropy, backward = distribution.evaluate(outputs, action)
        outputs_gradient, log_std_gradient = backward(log_prob_gradient, entropy_gradient)

    Attributes:
        output_count: Number of outputs that the actor must have.
    """

    output_count: int

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws the noise that `sample` takes: [*leading, output_count] float32 on the generator's device."""
        ...

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Samples actions for outputs [..., output_count] and noise of the same shape."""
        ...

    def mode(self, outputs: Tensor) -> Tensor:
        """Returns the most likely actions for outputs [..., output_count]."""
        ...

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Returns log-probabilities (or log-densities) [...] of actions as `sample` returns them."""
        ...

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """Computes log-probabilities, the mean entropy, and a function for their gradient.

        Args:
            outputs: [B, output_count].
            action: B actions.

        Returns:
            log_prob: [B].
            entropy: [], mean over the batch.
            backward: Takes the gradient of the loss with respect to log_prob [B] and to the mean entropy; returns its
                gradient with respect to outputs [B, output_count], and to log_std [A] if the distribution has one, else
                None.
        """
        ...


class Categorical:
    """Chooses one of n actions; the outputs are unnormalized log-probabilities. Actions are int64 [...]."""

    def __init__(self, n: int) -> None:
        self.output_count = n

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws standard Gumbel noise, -log E with E exponential: [*leading, n]."""
        noise = torch.empty(*leading, self.output_count, device=generator.device)
        return noise.exponential_(generator=generator).log_().neg_()

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Applies the Gumbel-max rule (Maddison, Tarlow and Minka 2014): argmax of outputs plus Gumbel noise."""
        return (outputs + noise).argmax(-1)

    def mode(self, outputs: Tensor) -> Tensor:
        """Returns the choice of the largest output: int64 [...]."""
        return outputs.argmax(-1)

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Returns log softmax(outputs) at the action: [...]."""
        return outputs.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """See Distribution.evaluate.

        With p = softmax(outputs) and H = -sum p log p:

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
    """Independent normals. The outputs are the means; the standard deviations do not depend on the observation.

    Actions are float32 [..., A] and unbounded. Log-probabilities are those of the action before clamping to the
    environment's bounds.

    Attributes:
        log_std: [A], a view of the caller's buffer.
    """

    def __init__(self, log_std: Tensor) -> None:
        self.log_std = log_std
        self.output_count = len(log_std)

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws standard normal noise: [*leading, A]."""
        return torch.randn(*leading, self.output_count, generator=generator, device=generator.device)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Returns mean + std noise: [..., A]."""
        return torch.addcmul(outputs, self.log_std.exp(), noise)

    def mode(self, outputs: Tensor) -> Tensor:
        """Returns the mean: [..., A]."""
        return outputs

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Returns sum_i of -((a_i - mean_i) / std_i)^2 / 2 - log std_i - log sqrt(2 pi): [...]."""
        deviation = (action - outputs) * self.log_std.neg().exp()
        return deviation.square().sum(-1) * -0.5 - self._log_normaliser()

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """See Distribution.evaluate.

        With z = (a - mean) / std and H = sum_i log std_i + A (1 + log 2 pi) / 2:

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


class GaussianOfRows:
    """As DiagonalGaussian, but each row has its own standard deviations: outputs are A means, then A values log std.

    For policies whose agents have separate standard deviations.
    """

    def __init__(self, dimensions: int) -> None:
        self.output_count = 2 * dimensions

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws standard normal noise: [*leading, A]."""
        return torch.randn(*leading, self.output_count // 2, generator=generator, device=generator.device)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Returns mean + std noise: [..., A]."""
        mean, log_std = outputs.chunk(2, -1)
        return torch.addcmul(mean, log_std.exp(), noise)

    def mode(self, outputs: Tensor) -> Tensor:
        """Returns the mean: [..., A]."""
        return outputs.chunk(2, -1)[0]

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Returns the log-density of each action: [...]."""
        mean, log_std = outputs.chunk(2, -1)
        deviation = (action - mean) * log_std.neg().exp()
        return deviation.square().sum(-1) * -0.5 - self._log_normaliser(log_std)

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """See Distribution.evaluate; the derivatives are those of DiagonalGaussian."""
        mean, log_std = outputs.chunk(2, -1)
        precision = log_std.neg().exp()
        deviation = (action - mean) * precision
        squared, log_normaliser = deviation.square(), self._log_normaliser(log_std)

        def backward(log_prob_gradient: Tensor, entropy_gradient: float) -> tuple[Tensor, None]:
            weight = log_prob_gradient.unsqueeze(-1)
            log_std_gradient = (squared - 1.0) * weight + entropy_gradient / len(outputs)
            return torch.cat((deviation * precision * weight, log_std_gradient), -1), None

        entropy = log_normaliser.mean() + 0.25 * self.output_count
        return squared.sum(-1) * -0.5 - log_normaliser, entropy, backward

    def _log_normaliser(self, log_std: Tensor) -> Tensor:
        return log_std.sum(-1) + self.output_count // 2 * _HALF_LOG_TWO_PI


class MultiCategorical:
    """Makes an independent choice for each element of an action, int64 [..., K].

    The outputs are the unnormalized log-probabilities of the first element's choices, then of the second's, and so on.
    Log-probabilities and entropies are the sums over the elements.

    Attributes:
        choices: Number of choices of each element.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self.output_count = sum(choices)
        self.choices, self._parts = list(choices), [Categorical(n) for n in choices]

    def _split(self, outputs: Tensor) -> Iterator[tuple[Categorical, Tensor]]:
        return zip(self._parts, outputs.split_with_sizes(self.choices, -1), strict=True)

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws standard Gumbel noise: [*leading, output_count]."""
        noise = torch.empty(*leading, self.output_count, device=generator.device)
        return noise.exponential_(generator=generator).log_().neg_()

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Samples each element as Categorical does: int64 [..., K]."""
        return self.mode(outputs + noise)

    def mode(self, outputs: Tensor) -> Tensor:
        """Returns the choice of the largest output for each element: int64 [..., K]."""
        return torch.stack([part.mode(own) for part, own in self._split(outputs)], -1)

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Returns the sum of the log-probabilities of the elements: [...]."""
        pairs = zip(self._split(outputs), action.unbind(-1), strict=True)
        return torch.stack([part.log_prob(own, chosen) for (part, own), chosen in pairs]).sum(0)

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """See Distribution.evaluate; the gradient of each element's outputs is that of Categorical."""
        pairs = zip(self._split(outputs), action.unbind(-1), strict=True)
        found = [part.evaluate(own, chosen) for (part, own), chosen in pairs]
        log_probs, entropies, backwards = zip(*found, strict=True)

        def backward(log_prob_gradient: Tensor, entropy_gradient: float) -> tuple[Tensor, None]:
            return torch.cat([each(log_prob_gradient, entropy_gradient)[0] for each in backwards], -1), None

        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(), backward


class Bernoulli:
    """Sets each of A flags with its own probability; the outputs z are log-odds. Actions are int64 [..., A], 0 or 1."""

    def __init__(self, flags: int) -> None:
        self.output_count = flags

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws standard logistic noise, the difference of two Gumbel variables: [*leading, A]."""
        uniform = torch.rand(*leading, self.output_count, generator=generator, device=generator.device)
        return uniform.clamp_(torch.finfo(uniform.dtype).tiny, 1.0 - torch.finfo(uniform.dtype).eps).logit_()

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Sets a flag where its log-odds plus logistic noise are positive."""
        return (outputs + noise > 0).long()

    def mode(self, outputs: Tensor) -> Tensor:
        """Sets the flags whose probability exceeds 1/2: int64 [..., A]."""
        return (outputs > 0).long()

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Returns sum_i of a_i z_i - softplus(z_i): [...]."""
        return (outputs * action - torch.nn.functional.softplus(outputs)).sum(-1)

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Backward]:
        """See Distribution.evaluate.

        With p = sigmoid(z) and H = sum_i softplus(z_i) - p_i z_i:

            d log p / d z_i = a_i - p_i
            d H / d z_i = -z_i p_i (1 - p_i)
        """
        probability = outputs.sigmoid()
        softplus = torch.nn.functional.softplus(outputs)
        entropy = (softplus - probability * outputs).sum(-1).mean()

        def backward(log_prob_gradient: Tensor, entropy_gradient: float) -> tuple[Tensor, None]:
            each = entropy_gradient / len(outputs)
            spread = outputs * (probability - probability.square())
            return (action - probability) * log_prob_gradient.unsqueeze(-1) - spread * each, None

        return (outputs * action - softplus).sum(-1), entropy, backward


def require_distribution(head: object) -> Distribution:
    """Returns a policy's head as a distribution.

    Raises:
        InvalidArgument: The head has no log-probabilities.
    """
    if not isinstance(head, Categorical | DiagonalGaussian | GaussianOfRows | MultiCategorical | Bernoulli):
        raise InvalidArgument(f"a head of type {type(head).__name__} has no log-probabilities")
    return head


def output_count(action_space: Space) -> int:
    """Returns how many outputs an actor needs: one for each choice, or for each dimension or flag.

    Raises:
        InvalidArgument: The space has neither a choice nor a dimension.
    """
    if action_space.kind == "multi_discrete":
        count = sum(action_space.choices)
    else:
        count = action_space.n if action_space.kind == "discrete" else math.prod(action_space.shape)
    if count < 1:
        raise InvalidArgument(
            f"action space {action_space} is empty: set n of a discrete space or shape of a continuous one"
        )
    return count

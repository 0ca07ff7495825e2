"""Defines how the outputs of an actor network become actions.

The heads in this module serve off-policy algorithms. Those of on-policy algorithms, which differentiate the
log-probability of an action, are in agentpod.models.distributions. No head keeps random state: noise is an argument, so
the noise of a whole rollout is drawn in one call.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from agentpod.models.action_mask import MASKED
from agentpod.models.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical, output_count
from agentpod.models.mlp import Shapes
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from simulators.base import Space

MINIMUM_LOG_STD, MAXIMUM_LOG_STD = -20.0, 2.0
"""Bounds of the log standard deviation (Haarnoja et al. 2018, the authors' implementation)."""
_LOG_TWO = math.log(2.0)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Head(Protocol):
    """Turns the outputs of an actor into actions.

        noise = head.noise((horizon, count), generator)
        action = head.sample(outputs, noise[t])

    Attributes:
        output_count: Number of outputs that the actor must have.
    """

    output_count: int

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws the noise that `sample` takes: [*leading, ...] float32 on the generator's device."""
        ...

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Samples actions for outputs [..., output_count] and noise from `noise`."""
        ...

    def mode(self, outputs: Tensor) -> Tensor:
        """Returns the actions without exploration, for outputs [..., output_count]."""
        ...


class SquashedSample(NamedTuple):
    """Actions of a squashed Gaussian, with what their gradient needs. A is the number of action dimensions."""

    action: Tensor
    """[B, A] in (-1, 1)."""
    log_prob: Tensor
    """[B], log-density of the squashed action."""
    spread: Tensor
    """[B, A], standard deviation times noise."""
    inside: Tensor
    """[B, A] bool, True where the log standard deviation was not clamped."""

    def backward(self, action_gradient: Tensor, log_prob_gradient: float | Tensor) -> Tensor:
        """Computes the gradient with respect to the outputs [B, 2 A], with the noise held fixed.

        With u = mean + spread and a = tanh(u):

            d L / d mean    = dL/da (1 - a^2) + dL/dlog_prob 2 a
            d L / d log_std = (d L / d mean) spread - dL/dlog_prob, and 0 where log_std was clamped

        Args:
            action_gradient: [B, A], of the loss with respect to the action.
            log_prob_gradient: [] or a number: of the loss with respect to each log_prob, the same for all samples.

        Returns:
            [B, 2 A], gradient with respect to the means, then to the log standard deviations.
        """
        mean_gradient = torch.addcmul(action_gradient, action_gradient * self.action, self.action, value=-1.0)
        mean_gradient += self.action * (2.0 * log_prob_gradient)
        log_std_gradient = (mean_gradient * self.spread - log_prob_gradient).mul_(self.inside)
        return torch.cat((mean_gradient, log_std_gradient), -1)


class SquashedGaussian:
    """Samples tanh of independent normals (Haarnoja et al. 2018, arXiv 1801.01290, appendix C).

    The outputs are the means, followed by the log standard deviations.
    """

    def __init__(self, dimensions: int) -> None:
        self.output_count = 2 * dimensions

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws standard normal noise: [*leading, A]."""
        return torch.randn(*leading, self.output_count // 2, generator=generator, device=generator.device)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Returns tanh(mean + std noise): [..., A] in (-1, 1)."""
        mean, log_std = outputs.chunk(2, -1)
        return torch.addcmul(mean, log_std.clamp(MINIMUM_LOG_STD, MAXIMUM_LOG_STD).exp_(), noise).tanh_()

    def mode(self, outputs: Tensor) -> Tensor:
        """Returns tanh(mean), the median, which the authors use for evaluation: [..., A]."""
        return outputs.chunk(2, -1)[0].tanh()

    def rsample(self, outputs: Tensor, noise: Tensor) -> SquashedSample:
        """Samples actions with their log-probabilities, by reparameterization.

            log pi(a) = sum_i log N(u_i; mean_i, std_i) - log(1 - tanh(u_i)^2)

        The second term is computed as log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which loses no digits at
        large |u|.

        Args:
            outputs: [B, 2 A].
            noise: [B, A], standard normal.
        """
        mean, log_std = outputs.chunk(2, -1)
        clamped = log_std.clamp(MINIMUM_LOG_STD, MAXIMUM_LOG_STD)
        spread = clamped.exp().mul_(noise)
        latent = mean + spread
        squash = torch.nn.functional.softplus(latent * -2.0).add_(latent).mul_(2.0)
        # The constants of all A dimensions are added once, after the sum.
        log_prob = torch.addcmul(squash, noise, noise, value=-0.5).sub_(clamped).sum(-1)
        log_prob -= mean.shape[-1] * (2.0 * _LOG_TWO + _HALF_LOG_TWO_PI)
        return SquashedSample(latent.tanh(), log_prob, spread, clamped == log_std)


class Deterministic:
    """Returns one action, tanh of the outputs, and explores with normal noise (Fujimoto et al. 2018, algorithm 1).

    Attributes:
        exploration: [1], standard deviation of the noise; a view of the caller's buffer.
    """

    def __init__(self, dimensions: int, exploration: Tensor) -> None:
        self.output_count, self.exploration = dimensions, exploration

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws standard normal noise: [*leading, A]."""
        return torch.randn(*leading, self.output_count, generator=generator, device=generator.device)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Returns tanh(outputs) plus exploration noise, clamped to [-1, 1]: [..., A]."""
        return torch.addcmul(outputs.tanh(), self.exploration, noise).clamp_(-1.0, 1.0)

    def mode(self, outputs: Tensor) -> Tensor:
        """Returns tanh(outputs): [..., A]."""
        return outputs.tanh()


class GreedyValues:
    """Chooses the action of the largest value, and explores by epsilon-greedy.

    The outputs are the action values Q(s, .) of n choices. With `dueling` (Wang et al. 2016) they are V(s) followed by
    n advantages, which rank the choices as the action values do.

    Attributes:
        exploration: [1], epsilon, the fraction of steps with a random choice; a view of the caller's buffer.
        choices: n.
    """

    def __init__(self, n: int, exploration: Tensor, *, dueling: bool) -> None:
        self.exploration, self.choices, self._first = exploration, n, int(dueling)
        self.output_count = n + self._first

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws uniform noise on [0, 1): [*leading, 2], for whether to explore and for which choice."""
        return torch.rand(*leading, 2, generator=generator, device=generator.device)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Returns a uniformly random choice where the first noise is below epsilon, else the best one: int64 [...]."""
        coin, place = noise.unbind(-1)
        n = self.output_count - self._first
        # The largest float32 below 1, times n, still rounds to a number below n.
        anything = (place * n).long()
        return torch.where(coin < self.exploration, anything, self.mode(outputs))

    def mode(self, outputs: Tensor) -> Tensor:
        """Returns the choice of the largest value: int64 [...]."""
        return outputs[..., self._first :].argmax(-1)


class MaskedGreedyValues(GreedyValues):
    """As GreedyValues, over the valid actions only: invalid ones have the value MASKED, and are never explored.

    If no action is valid, all are explored.
    """

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Returns a random valid choice where the first noise is below epsilon, else the best one: int64 [...]."""
        coin, place = noise.unbind(-1)
        valid = outputs[..., self._first :] > MASKED
        valid = valid | valid.any(-1, keepdim=True).logical_not()
        # The k-th valid choice is preceded by all places where at most k valid ones were seen.
        chosen = (place * valid.sum(-1)).long().unsqueeze(-1)
        anything = (valid.cumsum(-1) <= chosen).sum(-1).clamp_(max=valid.shape[-1] - 1)
        return torch.where(coin < self.exploration, anything, self.mode(outputs))


class MaskedCategorical(Categorical):
    """As Categorical, if outputs may be MASKED: where all are, the choices are equally probable."""

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """See Categorical.sample. The sum is float64: MASKED plus noise is rounded to a multiple of 8 in float32."""
        return (outputs.double() + noise).argmax(-1)


class MaskedMultiCategorical(MultiCategorical):
    """As MultiCategorical, with elements that are MaskedCategorical."""

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """See MaskedCategorical.sample."""
        return self.mode(outputs.double() + noise)


def masked_head(head: Head) -> Head:
    """Returns the head of a policy with an action mask. Only sampling depends on it."""
    match head:
        case GreedyValues():
            return MaskedGreedyValues(head.choices, head.exploration, dueling=head.output_count > head.choices)
        case Categorical():
            return MaskedCategorical(head.output_count)
        case MultiCategorical():
            return MaskedMultiCategorical(head.choices)
    return head


def dueling_values(outputs: Tensor) -> Tensor:
    """Computes Q = V + A - mean A (Wang et al. 2016, arXiv 1511.06581, equation 9).

    Args:
        outputs: [..., 1 + n]: V(s), then the advantages of n choices.

    Returns:
        Q: [..., n].
    """
    value, advantage = outputs[..., :1], outputs[..., 1:]
    return advantage + (value - advantage.mean(-1, keepdim=True))


def dueling_backward(value_gradient: Tensor) -> Tensor:
    """Computes the gradient of `dueling_values` with respect to its outputs.

        d L / d V = sum_i dL/dQ_i;  d L / d A_i = dL/dQ_i - (sum_j dL/dQ_j) / n

    Args:
        value_gradient: [..., n], of the loss with respect to Q.

    Returns:
        [..., 1 + n].
    """
    total = value_gradient.sum(-1, keepdim=True)
    return torch.cat((total, value_gradient - total / value_gradient.shape[-1]), -1)


_EXPLORATION: Shapes = {"exploration": (1,)}


class HeadKind(NamedTuple):
    """Describes a kind of head: supported action spaces, parameters besides the network, constructor."""

    action_kinds: frozenset[str]
    extra: Callable[[Space], Shapes]
    """Names and shapes of the parameters that follow the actor's in a policy's buffer."""
    make: Callable[[Space, Mapping[str, Tensor]], Head]


def _stochastic(space: Space, views: Mapping[str, Tensor]) -> Head:
    if space.kind == "multi_discrete":
        return MultiCategorical(space.choices)
    if space.kind == "multi_binary":
        return Bernoulli(output_count(space))
    return Categorical(space.n) if space.kind == "discrete" else DiagonalGaussian(views["log_std"])


def _squashed(space: Space, views: Mapping[str, Tensor]) -> Head:
    return Categorical(space.n) if space.kind == "discrete" else SquashedGaussian(output_count(space))


def _deterministic(space: Space, views: Mapping[str, Tensor]) -> Head:
    if space.kind == "discrete":
        return Categorical(space.n)
    return Deterministic(output_count(space), views["exploration"])


DEFAULT_HEAD = "stochastic"
_BOTH = frozenset({"continuous", "discrete"})
HEADS: Mapping[str, HeadKind] = {
    "stochastic": HeadKind(
        _BOTH | {"multi_discrete", "multi_binary"},
        lambda space: {"log_std": (output_count(space),)} if space.kind == "continuous" else {},
        _stochastic,
    ),
    "squashed": HeadKind(_BOTH, lambda space: {}, _squashed),
    "deterministic": HeadKind(
        _BOTH,
        lambda space: _EXPLORATION if space.kind == "continuous" else {},
        _deterministic,
    ),
    "values": HeadKind(
        frozenset({"discrete"}),
        lambda space: _EXPLORATION,
        lambda space, views: GreedyValues(space.n, views["exploration"], dueling=False),
    ),
    "dueling": HeadKind(
        frozenset({"discrete"}),
        lambda space: _EXPLORATION,
        lambda space, views: GreedyValues(space.n, views["exploration"], dueling=True),
    ),
}
"""By the name that a NetworkSpec uses."""


def action_limits(action_space: Space) -> tuple[Tensor, Tensor]:
    """Returns the lowest and the highest values of a continuous action: [A] or [1] float32 each."""
    return torch.tensor(action_space.low or (-math.inf,)), torch.tensor(action_space.high or (math.inf,))


def bounded_dimensions(low: Tensor, high: Tensor) -> Tensor:
    """Returns which dimensions of an action have two bounds whose distance is a number of float32: [A] bool.

    The largest numbers of float32 as bounds mean that there are none.
    """
    return (high - low).isfinite()


def head_kind(head: str, action_space: Space) -> HeadKind:
    """Returns the kind of head with the given name.

    Raises:
        InvalidArgument: The name is unknown, or the head does not support the action space.
    """
    if head not in HEADS:
        raise InvalidArgument(f"head {head!r} is unknown: choose one of {', '.join(HEADS)}")
    kind = HEADS[head]
    if action_space.kind not in kind.action_kinds:
        raise InvalidArgument(
            f"head {head!r} needs {' or '.join(sorted(kind.action_kinds))} actions, but the simulator's are "
            f"{action_space.kind}: choose another algorithm or another simulator",
            reason=UNSUITABLE_SPACE,
        )
    bounded = bool(bounded_dimensions(*action_limits(action_space)).all())
    if action_space.kind == "continuous" and head != "stochastic" and not bounded:
        raise InvalidArgument(
            f"head {head!r} needs bounded actions, but the simulator's action space is unbounded: give it "
            "a finite low and high, or choose an algorithm with a Gaussian policy (ppo, a2c)",
            reason=UNSUITABLE_SPACE,
        )
    return kind


def head_outputs(head: str, action_space: Space) -> int:
    """Returns how many outputs an actor with this head must have; raises as `head_kind` does."""
    extra = {name: torch.empty(shape) for name, shape in head_kind(head, action_space).extra(action_space).items()}
    return HEADS[head].make(action_space, extra).output_count

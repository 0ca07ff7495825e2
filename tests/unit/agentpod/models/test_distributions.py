"""Tests the distributions against torch.distributions and autograd in float64."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal
from torch.nn.functional import one_hot

from agentpod.models.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    output_count,
)
from podrace.errors import InvalidArgument
from simulators.base import Space

BATCH, OUTPUTS = 7, 3
CHOICES = (2, 4, 1)
KINDS = ("discrete", "continuous", "multi_discrete", "multi_binary")


def random_case(kind: str) -> tuple[Distribution, Tensor, Tensor, Tensor]:
    """Returns a distribution, outputs [B, A], actions, and log_std [A], all in float64."""
    generator = torch.Generator().manual_seed(5)
    outputs = torch.randn(BATCH, OUTPUTS, dtype=torch.float64, generator=generator)
    log_std = torch.randn(OUTPUTS, dtype=torch.float64, generator=generator) * 0.3
    if kind == "discrete":
        return Categorical(OUTPUTS), outputs, torch.randint(OUTPUTS, (BATCH,), generator=generator), log_std
    if kind == "multi_binary":
        return Bernoulli(OUTPUTS), outputs * 3.0, torch.randint(2, (BATCH, OUTPUTS), generator=generator), log_std
    if kind == "multi_discrete":
        outputs = torch.randn(BATCH, sum(CHOICES), dtype=torch.float64, generator=generator)
        drawn = torch.stack([torch.randint(n, (BATCH,), generator=generator) for n in CHOICES], -1)
        return MultiCategorical(CHOICES), outputs, drawn, log_std
    action = torch.randn(BATCH, OUTPUTS, dtype=torch.float64, generator=generator)
    return DiagonalGaussian(log_std), outputs, action, log_std


def reference(kind: str, outputs: Tensor, log_std: Tensor) -> torch.distributions.Distribution:
    if kind == "discrete":
        return TorchCategorical(logits=outputs)
    if kind == "multi_binary":
        return Independent(TorchBernoulli(logits=outputs), 1)
    return Independent(Normal(outputs, log_std.exp().expand_as(outputs)), 1)


def expected(kind: str, outputs: Tensor, action: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and entropies, [B] each."""
    if kind != "multi_discrete":
        distribution = reference(kind, outputs, log_std)
        return distribution.log_prob(action.double() if kind == "multi_binary" else action), distribution.entropy()
    parts = [TorchCategorical(logits=part) for part in outputs.split(CHOICES, -1)]
    log_probs = [part.log_prob(chosen) for part, chosen in zip(parts, action.unbind(-1), strict=True)]
    return torch.stack(log_probs).sum(0), torch.stack([part.entropy() for part in parts]).sum(0)


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_and_entropies_equal_those_of_torch(kind: str) -> None:
    distribution, outputs, action, log_std = random_case(kind)
    expected_log_prob, expected_entropy = expected(kind, outputs, action, log_std)
    log_prob, entropy, _ = distribution.evaluate(outputs, action)
    assert log_prob.shape == (BATCH,)
    assert entropy.shape == ()
    torch.testing.assert_close(log_prob, expected_log_prob)
    torch.testing.assert_close(distribution.log_prob(outputs, action), expected_log_prob)
    torch.testing.assert_close(entropy, expected_entropy.mean())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_those_of_autograd(kind: str) -> None:
    distribution, outputs, action, log_std = random_case(kind)
    weight, entropy_weight = torch.randn(BATCH, dtype=torch.float64), -0.7
    outputs_gradient, log_std_gradient = distribution.evaluate(outputs, action)[2](weight, entropy_weight)
    outputs, log_std = outputs.requires_grad_(), log_std.clone().requires_grad_()
    log_prob, entropy = expected(kind, outputs, action, log_std)
    loss = weight @ log_prob + entropy_weight * entropy.mean()
    wanted = torch.autograd.grad(loss, (outputs, log_std), allow_unused=True)
    torch.testing.assert_close(outputs_gradient, wanted[0])
    if kind == "continuous":
        torch.testing.assert_close(log_std_gradient, wanted[1])
    else:
        assert log_std_gradient is wanted[1] is None


def test_choices_have_their_probabilities() -> None:
    outputs = torch.tensor([2.0, 0.0, -1.0, -30.0])
    distribution = Categorical(4)
    noise = distribution.noise((200_000,), torch.Generator().manual_seed(0))
    drawn = distribution.sample(outputs.expand_as(noise), noise).bincount(minlength=4) / 200_000
    # Four standard errors of a frequency are at most 4 sqrt(0.25 / 200,000) = 0.0045.
    torch.testing.assert_close(drawn, outputs.softmax(0), rtol=0.0, atol=0.0045)


def test_choices_and_flags_of_an_action_have_their_probabilities() -> None:
    generator, outputs = torch.Generator().manual_seed(0), torch.tensor([2.0, 0.0, 1.0, -1.0, -30.0])
    for distribution, wanted in (
        (MultiCategorical((2, 3)), torch.cat((outputs[:2].softmax(0), outputs[2:].softmax(0)))),
        (Bernoulli(5), outputs.sigmoid()),
    ):
        noise = distribution.noise((200_000,), generator)
        drawn = distribution.sample(outputs.expand_as(noise), noise)
        assert drawn.dtype == torch.int64
        if isinstance(distribution, MultiCategorical):
            drawn = torch.cat([one_hot(drawn[:, 0], 2), one_hot(drawn[:, 1], 3)], 1)
        torch.testing.assert_close(drawn.float().mean(0), wanted, rtol=0.0, atol=0.0045)
    assert MultiCategorical((2, 3)).mode(outputs).tolist() == [0, 0]
    assert Bernoulli(5).mode(outputs).tolist() == [1, 0, 1, 0, 0]


def test_gaussian_samples_are_the_mean_plus_scaled_noise() -> None:
    distribution = DiagonalGaussian(torch.tensor([0.0, 1.0]))
    noise = distribution.noise((3,), torch.Generator().manual_seed(0))
    expected = torch.tensor([5.0, -5.0]) + noise * torch.tensor([1.0, 1.0]).exp() ** torch.tensor([0.0, 1.0])
    torch.testing.assert_close(distribution.sample(torch.tensor([5.0, -5.0]).expand(3, 2), noise), expected)


def test_noise_has_the_distribution_that_sampling_needs() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = DiagonalGaussian(torch.zeros(2)).noise((50_000,), generator)
    gumbel = Categorical(2).noise((50_000,), generator)
    assert normal.shape == gumbel.shape == (50_000, 2)
    torch.testing.assert_close(normal.mean(0), torch.zeros(2), rtol=0.0, atol=0.02)
    torch.testing.assert_close(normal.std(0), torch.ones(2), rtol=0.0, atol=0.02)
    # The mean of a standard Gumbel variable is Euler's constant, its variance pi^2 / 6.
    torch.testing.assert_close(gumbel.mean(0), torch.full((2,), 0.5772), rtol=0.0, atol=0.03)
    torch.testing.assert_close(gumbel.var(0), torch.full((2,), 1.6449), rtol=0.0, atol=0.08)


def test_the_mode_is_the_most_likely_action() -> None:
    outputs = torch.tensor([[0.1, 0.9, 0.2], [3.0, -1.0, 2.0]])
    assert Categorical(3).mode(outputs).tolist() == [1, 0]
    assert torch.equal(DiagonalGaussian(torch.zeros(3)).mode(outputs), outputs)


def test_an_empty_action_space_is_refused() -> None:
    assert output_count(Space("discrete", (), torch.int64, n=4)) == 4
    assert output_count(Space("continuous", (2, 3), torch.float32)) == 6
    with pytest.raises(InvalidArgument, match="is empty: set n"):
        output_count(Space("discrete", (), torch.int64))

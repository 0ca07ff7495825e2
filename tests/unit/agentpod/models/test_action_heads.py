"""Tests the action heads of off-policy algorithms: samples, log-probabilities, gradients and supported spaces."""

import dataclasses
import math
from typing import Any

import pytest
import references
import torch
from exactness import one_thread as one_thread
from experience import OBSERVED, OFF_POLICY, SPACES
from torch import Tensor

from agentpod.algorithms import ALGORITHMS, make
from agentpod.models.action_heads import (
    HEADS,
    MAXIMUM_LOG_STD,
    MINIMUM_LOG_STD,
    Deterministic,
    GreedyValues,
    Head,
    SquashedGaussian,
    dueling_backward,
    dueling_values,
    head_kind,
    head_outputs,
)
from agentpod.models.policy import NetworkSpec, Policy
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from simulators.base import Space

BOUNDED, CHOICES = SPACES["continuous"], SPACES["discrete"]
SUITABLE = [(name, kind) for name, head in HEADS.items() for kind in sorted(head.action_kinds)]
LARGEST = torch.finfo(torch.float32).max
WITH_OPEN_ENDS = [
    dataclasses.replace(BOUNDED, low=None, high=None),
    dataclasses.replace(BOUNDED, low=None),
    dataclasses.replace(BOUNDED, high=(2.0, math.inf)),
    dataclasses.replace(BOUNDED, low=(-math.inf, -2.0)),
    dataclasses.replace(BOUNDED, low=(-LARGEST, -2.0), high=(LARGEST, 2.0)),
]
NUMBERS = 3.0 * torch.randn(64, 4, generator=torch.Generator().manual_seed(5))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def number(value: float) -> Tensor:
    return torch.tensor([value])


def new_head(name: str, kind: str) -> Head:
    policy = Policy(OBSERVED, SPACES[kind], NetworkSpec((4,), head=name))
    policy.set_head_parameter("exploration", 0.5)
    return policy.head


@pytest.mark.parametrize(("name", "kind"), SUITABLE)
def test_noise_of_a_whole_rollout_gives_the_same_actions_as_that_of_its_rows(name: str, kind: str) -> None:
    head, space = new_head(name, kind), SPACES[kind]
    assert head.output_count == head_outputs(name, space)
    noise = head.noise((6, 5), generator())
    assert noise.shape[:2] == (6, 5)
    assert torch.equal(noise, head.noise((6, 5), generator()))
    assert not torch.equal(noise, head.noise((6, 5), generator(1)))
    outputs = torch.randn(6, 5, head.output_count, generator=generator())
    whole, rows = head.sample(outputs, noise), [head.sample(*each) for each in zip(outputs, noise, strict=True)]
    assert whole.shape == (6, 5, *space.shape)
    assert whole.dtype == space.dtype
    assert torch.equal(whole, torch.stack(rows))
    assert head.mode(outputs).shape == whole.shape
    assert head.mode(outputs).dtype == whole.dtype
    assert not torch.equal(whole, head.mode(outputs))


@pytest.mark.parametrize(("name", "kind"), SUITABLE)
def test_acting_does_not_modify_the_outputs(name: str, kind: str) -> None:
    head = new_head(name, kind)
    outputs, noise = torch.randn(5, head.output_count, generator=generator()), head.noise((5,), generator())
    before = outputs.clone(), noise.clone()
    head.sample(outputs, noise)
    head.mode(outputs)
    if isinstance(head, SquashedGaussian):
        head.rsample(outputs, noise)
    assert torch.equal(outputs, before[0])
    assert torch.equal(noise, before[1])


@pytest.mark.parametrize("name", ["deterministic", "values", "dueling"])
def test_exploration_is_set_for_acting_and_published_with_the_policy(name: str) -> None:
    kind = "continuous" if name == "deterministic" else "discrete"
    policy = Policy(OBSERVED, SPACES[kind], NetworkSpec((4,), head=name))
    policy.initialize(generator(), 1.0)
    observation, noise = torch.randn(200, 3, generator=generator()), policy.noise((200,), generator())
    policy.set_head_parameter("exploration", 0.0)
    assert torch.equal(policy.act(observation, noise), policy.act_greedily(observation))
    policy.set_head_parameter("exploration", 0.5)
    copy = Policy(OBSERVED, SPACES[kind], NetworkSpec((4,), head=name))
    copy.load(policy.flat)
    assert torch.equal(copy.act(observation, noise), policy.act(observation, noise))
    assert not torch.equal(copy.act(observation, noise), copy.act_greedily(observation))


# --- greedy values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("dueling", [False, True])
def test_epsilon_is_the_fraction_of_random_choices(epsilon: float, dueling: bool) -> None:
    steps, n = 40_000, 5
    head = GreedyValues(n, number(epsilon), dueling=dueling)
    values = torch.tensor([0.0, 0.5, 9.0, -3.0, 1.0])
    outputs = torch.cat((torch.tensor([100.0]), values)) if dueling else values
    action = head.sample(outputs.expand(steps, -1), head.noise((steps,), generator()))
    share = action.bincount(minlength=n) / steps
    expected = torch.full((n,), epsilon / n)
    expected[2] += 1.0 - epsilon
    # Five standard deviations.
    assert (share - expected).abs().le(5.0 * (expected * (1.0 - expected) / steps).sqrt()).all()
    assert head.mode(outputs.expand(steps, -1)).eq(2).all()


def test_a_greedy_step_takes_the_best_choice_of_its_row() -> None:
    head = GreedyValues(4, number(0.0), dueling=False)
    assert torch.equal(head.sample(NUMBERS, head.noise((64,), generator())), NUMBERS.argmax(1))
    assert NUMBERS.argmax(1).unique().numel() == 4


def test_whether_to_explore_is_independent_of_the_random_choice() -> None:
    head = GreedyValues(4, number(0.3), dueling=False)
    noise = head.noise((40_000,), generator())
    assert noise.shape == (40_000, 2)
    exploring = noise[noise[:, 0] < 0.3]
    action = head.sample(torch.zeros(len(exploring), 4), exploring)
    share = action.bincount(minlength=4) / len(exploring)
    assert (share - 0.25).abs().max() < 0.02


def test_rounding_never_gives_a_choice_out_of_range() -> None:
    # torch.rand returns multiples of 2^-24.
    place = torch.tensor([0.0, 1.0 - 2.0**-24])
    noise = torch.stack((torch.zeros(2), place), -1)
    for n in (*range(1, 1000), 2**20 - 1, 2**20, 2**20 + 1):
        head = GreedyValues(n, number(1.0), dueling=False)
        assert head.sample(torch.zeros(2, 1).expand(2, n), noise).tolist() == [0, n - 1]


def test_dueling_outputs_rank_choices_as_their_values_do() -> None:
    head = GreedyValues(3, number(0.0), dueling=True)
    values = dueling_values(NUMBERS)
    assert torch.equal(head.mode(NUMBERS), values.argmax(1))
    assert values.argmax(1).unique().numel() == 3


def test_dueling_values_and_their_gradient_equal_those_of_the_paper() -> None:
    outputs = NUMBERS.double().requires_grad_()
    expected = references.dueling(outputs)
    torch.testing.assert_close(dueling_values(NUMBERS).double(), expected.detach(), rtol=1e-5, atol=1e-5)
    slope = torch.randn(64, 3, generator=generator())
    (gradient,) = torch.autograd.grad((expected * slope.double()).sum(), outputs)
    torch.testing.assert_close(dueling_backward(slope).double(), gradient, rtol=1e-5, atol=1e-6)


# --- deterministic ----------------------------------------------------------------------------------------------------


def test_a_deterministic_action_is_tanh_plus_noise_clamped() -> None:
    head = Deterministic(4, number(0.5))
    noise = head.noise((64,), generator())
    assert noise.shape == (64, 4)
    action = head.sample(NUMBERS, noise)
    expected = (NUMBERS.double().tanh() + 0.5 * noise.double()).clamp(-1.0, 1.0)
    torch.testing.assert_close(action.double(), expected, rtol=1e-5, atol=1e-6)
    assert 0 < int(action.abs().eq(1.0).sum()) < action.numel()
    torch.testing.assert_close(head.mode(NUMBERS), NUMBERS.tanh())


def test_exploration_is_the_standard_deviation_of_a_deterministic_action() -> None:
    head = Deterministic(2, number(0.1))
    action = head.sample(torch.zeros(20_000, 2), head.noise((20_000,), generator()))
    assert action.std().item() == pytest.approx(0.1, rel=0.02)
    assert action.mean().abs().item() < 0.003


# --- squashed Gaussian ------------------------------------------------------------------------------------------------


def squashed_outputs() -> tuple[Tensor, Tensor]:
    """Returns means and log_stds of two dimensions, some clamped at either bound, and noise."""
    outputs = NUMBERS.clone()
    outputs[:8, 2:], outputs[8:16, 3] = -25.0, 4.0
    # Values just outside and just inside the clamping bounds.
    outputs[16, 2:], outputs[17, 2:] = MAXIMUM_LOG_STD, MINIMUM_LOG_STD
    return outputs, torch.randn(64, 2, generator=generator(3))


def test_rsample_equals_sample_and_its_density_equals_that_of_the_paper() -> None:
    outputs, noise = squashed_outputs()
    head = SquashedGaussian(2)
    assert head.noise((7, 5), generator()).shape == (7, 5, 2)
    drawn = head.rsample(outputs, noise)
    torch.testing.assert_close(drawn.action, head.sample(outputs, noise), rtol=0, atol=1e-6)
    torch.testing.assert_close(head.mode(outputs), outputs[:, :2].tanh())
    action, log_prob = references.squashed_sample(outputs.double(), noise.double())
    torch.testing.assert_close(drawn.action.double(), action, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(drawn.log_prob.double(), log_prob, rtol=1e-5, atol=1e-4)
    assert drawn.log_prob.shape == (64,)
    clamped = (outputs[:, 2:] > MAXIMUM_LOG_STD) | (outputs[:, 2:] < MINIMUM_LOG_STD)
    assert torch.equal(drawn.inside, ~clamped)
    assert 0 < int(clamped.sum()) < clamped.numel()


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.5, 0.5)])
def test_a_squashed_density_integrates_to_one(mean: float, log_std: float) -> None:
    noise = torch.linspace(-8.0, 8.0, 4001).unsqueeze(1)
    drawn = SquashedGaussian(1).rsample(torch.tensor([[mean, log_std]]).expand(4001, 2), noise)
    action, density = drawn.action[:, 0].double(), drawn.log_prob.double().exp()
    assert torch.trapezoid(density, action).item() == pytest.approx(1.0, abs=1e-3)
    expected = torch.trapezoid(density * action, action).item()
    samples = SquashedGaussian(1).sample(
        torch.tensor([[mean, log_std]]).expand(20_000, 2), torch.randn(20_000, 1, generator=generator())
    )
    assert samples.mean().item() == pytest.approx(expected, abs=0.03)


def test_the_density_stays_finite_where_the_action_rounds_to_its_bound() -> None:
    outputs = torch.tensor([[40.0, 0.0], [-40.0, 0.0], [1000.0, 2.0]])
    drawn = SquashedGaussian(1).rsample(outputs, torch.tensor([[0.5], [0.5], [-3.0]]))
    assert drawn.action.abs().eq(1.0).all()
    _, expected = references.squashed_sample(outputs.double(), torch.tensor([[0.5], [0.5], [-3.0]]).double())
    torch.testing.assert_close(drawn.log_prob.double(), expected, rtol=1e-5, atol=1e-4)
    gradient = drawn.backward(torch.ones(3, 1), 1.0)
    torch.testing.assert_close(gradient[:, 0], torch.tensor([2.0, -2.0, 2.0]))


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_the_gradient_of_rsample_equals_that_of_autograd(alpha: float) -> None:
    outputs, noise = squashed_outputs()
    slope = torch.randn(64, 2, generator=generator(4))
    leaf = outputs.double().requires_grad_()
    action, log_prob = references.squashed_sample(leaf, noise.double())
    (expected,) = torch.autograd.grad((action * slope.double()).sum() + alpha * log_prob.sum(), leaf)
    drawn = SquashedGaussian(2).rsample(outputs, noise)
    for given in (alpha, torch.tensor(alpha)):
        found = drawn.backward(slope.clone(), given).double()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert expected[:8, 2:].eq(0).all()
    assert (expected[:, 2:] != 0).any()


# --- spaces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_a_head_refuses_unsupported_kinds_of_action_space(name: str) -> None:
    refused = {"continuous", "discrete"} - HEADS[name].action_kinds
    for kind in refused:
        with pytest.raises(InvalidArgument, match=rf"head '{name}' needs \w+ actions.* are {kind}") as caught:
            head_kind(name, SPACES[kind])
        assert caught.value.reason == UNSUITABLE_SPACE
    for kind in HEADS[name].action_kinds:
        assert head_kind(name, SPACES[kind]) is HEADS[name]
    assert bool(refused) == (name not in ("stochastic", "squashed", "deterministic"))


@pytest.mark.parametrize("space", WITH_OPEN_ENDS)
@pytest.mark.parametrize("name", ["squashed", "deterministic"])
def test_a_bounded_head_refuses_unbounded_spaces(name: str, space: Space) -> None:
    with pytest.raises(InvalidArgument, match=f"head '{name}' needs bounded actions") as caught:
        head_kind(name, space)
    assert caught.value.reason == UNSUITABLE_SPACE
    assert head_kind("stochastic", space) is HEADS["stochastic"]


def test_an_unknown_head_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="head 'quantiles' is unknown: choose one of stochastic, squashed"):
        head_kind("quantiles", CHOICES)


@pytest.mark.parametrize(("name", "kind"), OFF_POLICY)
def test_an_algorithm_refuses_unsupported_spaces_with_the_reason_unsuitable_space(name: str, kind: str) -> None:
    other = "discrete" if kind == "continuous" else "continuous"
    unsuitable: list[Any] = [SPACES[other], *(WITH_OPEN_ENDS if kind == "continuous" else ())]
    for space in unsuitable:
        with pytest.raises(InvalidArgument) as caught:
            make(name, OBSERVED, space, {}, seed=0)
        assert caught.value.reason == UNSUITABLE_SPACE
    assert ALGORITHMS[name].action_kinds == {kind}

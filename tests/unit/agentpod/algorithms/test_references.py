"""Tests the float64 references themselves, by hand-computed values, finite differences, and torch's functions."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from references import (
    ACTIVATIONS,
    Batch,
    GatedRecurrentUnit,
    Tensors,
    Transition,
    a2c_loss,
    adam,
    categorical_divergence,
    deterministic_actor_loss,
    deterministic_critic_loss,
    discrete_sac_actor_loss,
    discrete_sac_critic_loss,
    dqn_loss,
    dueling,
    expected_log_prob,
    gaussian_divergence,
    huber,
    layers_of,
    n_step_return,
    norm_clipped,
    perceptron,
    polyak_averaged,
    reduced,
    sac_actor_loss,
    sac_critic_loss,
    smoothed,
    squashed_sample,
    temperature_loss,
)
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution, kl_divergence

Settings = dict[str, Any]

BATCH, OBSERVED, ACTED, CHOICES, CRITICS = 6, 3, 2, 4, 3
HALF_LOG_TWO_PI = 0.9189385332046727


def real(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def linear(weight: Sequence[object], bias: Sequence[object], name: str = "critic") -> dict[str, Tensor]:
    """Returns a perceptron without a hidden layer, whose values can be computed by hand."""
    return {f"{name}.0.weight": real(*weight), f"{name}.0.bias": real(*bias)}


def random_network(name: str, sizes: tuple[int, ...], seed: int, members: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    leading = (members,) if members else ()
    tensors = {}
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        for kind, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            drawn = torch.randn(*leading, *shape, dtype=torch.float64, generator=generator)
            tensors[f"{name}.{layer}.{kind}"] = 0.6 * drawn
    return tensors


def random_batch(kind: str) -> Batch:
    generator = torch.Generator().manual_seed(9)
    observation, following = torch.randn(2, BATCH, OBSERVED, dtype=torch.float64, generator=generator)
    reward, weight, acted = torch.randn(3, BATCH, ACTED, dtype=torch.float64, generator=generator)
    action = torch.tensor([3, 1, 0, 2, 2, 0]) if kind == "discrete" else torch.tanh(acted)
    discount = real(0.99, 0.0, 0.97, 0.99, 0.0, 0.9)
    return Batch(observation, action, reward[:, 0], discount, following, 0.2 + weight[:, 0].abs())


CHOOSER = random_network("critic", (OBSERVED, 5, 1 + CHOICES), seed=1)
CHOOSER_TARGET = random_network("critic", (OBSERVED, 5, 1 + CHOICES), seed=2)
CRITIC = random_network("critic", (OBSERVED + ACTED, 5, 1), seed=3, members=CRITICS)
CRITIC_TARGET = random_network("critic", (OBSERVED + ACTED, 5, 1), seed=4, members=CRITICS)
DISCRETE = random_network("critic", (OBSERVED, 5, CHOICES), seed=5, members=CRITICS)
DISCRETE_TARGET = random_network("critic", (OBSERVED, 5, CHOICES), seed=6, members=CRITICS)
ACTOR = random_network("actor", (OBSERVED, 5, ACTED), seed=7)
ACTOR_TARGET = random_network("actor", (OBSERVED, 5, ACTED), seed=8)
GAUSSIAN = random_network("actor", (OBSERVED, 5, 2 * ACTED), seed=10)
LOGITS = random_network("actor", (OBSERVED, 5, CHOICES), seed=11)
VALUE = random_network("critic", (OBSERVED, 5, 1), seed=12)
NOISE = torch.randn(BATCH, ACTED, dtype=torch.float64, generator=torch.Generator().manual_seed(13))
DEVIATION = {"log_std": real(-0.3, 0.2)}
CONTINUOUS_BATCH, DISCRETE_BATCH = random_batch("continuous"), random_batch("discrete")
IS_FIRST = torch.tensor([[False, True], [False, False], [True, False]])
SEEN, ADVANTAGE, RETURN = CONTINUOUS_BATCH.observation, CONTINUOUS_BATCH.reward, CONTINUOUS_BATCH.weight
ACTION, CHOICE = CONTINUOUS_BATCH.action, DISCRETE_BATCH.action
TANH: Settings = {"activation": "tanh"}
DUELING: Settings = {"activation": "elu", "is_double": True, "is_dueling": True, "delta": 0.7}
TD3: Settings = {"activation": "relu", "noise": NOISE, "deviation": 0.2, "bound": 0.3}
SOFT: Settings = {"activation": "tanh", "alpha": 0.3}
A2C: Settings = {"activation": "tanh", "entropy_coefficient": 0.1, "value_coefficient": 0.5, "standardize": True}

# Each loss, the networks that it trains, the other networks that it reads, and its further arguments.
LOSSES: dict[str, tuple[Callable[..., Any], Tensors, Tensors, Sequence[Any], Settings]] = {
    "dqn": (dqn_loss, CHOOSER, {}, (CHOOSER_TARGET, DISCRETE_BATCH), TANH),
    "dueling double dqn": (dqn_loss, CHOOSER, {}, (CHOOSER_TARGET, DISCRETE_BATCH), DUELING),
    "td3 critic": (deterministic_critic_loss, CRITIC, ACTOR, (CRITIC_TARGET | ACTOR_TARGET, CONTINUOUS_BATCH), TD3),
    "td3 actor": (deterministic_actor_loss, ACTOR, CRITIC, (SEEN,), TANH),
    "mean actor": (deterministic_actor_loss, ACTOR, CRITIC, (SEEN,), TANH | {"reduce": "mean"}),
    "sac critic": (sac_critic_loss, CRITIC, GAUSSIAN, (CRITIC_TARGET, CONTINUOUS_BATCH), SOFT | {"noise": NOISE}),
    "sac actor": (sac_actor_loss, GAUSSIAN, CRITIC, (SEEN,), SOFT | {"noise": NOISE}),
    "redq actor": (sac_actor_loss, GAUSSIAN, CRITIC, (SEEN,), SOFT | {"noise": NOISE, "reduce": "mean"}),
    "discrete sac critic": (discrete_sac_critic_loss, DISCRETE, LOGITS, (DISCRETE_TARGET, DISCRETE_BATCH), SOFT),
    "discrete sac actor": (discrete_sac_actor_loss, LOGITS, DISCRETE, (SEEN,), SOFT),
    "categorical a2c": (a2c_loss, LOGITS | VALUE, {}, (SEEN, CHOICE, ADVANTAGE, RETURN), A2C),
    "gaussian a2c": (a2c_loss, ACTOR | VALUE | DEVIATION, {}, (SEEN, ACTION, ADVANTAGE, RETURN), A2C),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_agree_with_finite_differences_and_other_networks_have_none(name: str) -> None:
    function, trained, others, arguments, settings = LOSSES[name]
    leaves = {key: tensor.clone().requires_grad_() for key, tensor in (*trained.items(), *others.items())}

    def loss(*values: Tensor) -> Any:
        result = function({**leaves, **dict(zip(trained, values, strict=True))}, *arguments, **settings)
        return result[0] if isinstance(result, tuple) else result

    assert gradcheck(loss, [leaves[key] for key in trained])
    gradients = torch.autograd.grad(loss(*(leaves[key] for key in trained)), list(leaves.values()), allow_unused=True)
    assert {key for key, gradient in zip(leaves, gradients, strict=True) if gradient is not None} == set(trained)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_perceptron_equals_that_of_torch(activation: str) -> None:
    between = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU}[activation]
    values = perceptron(layers_of(CRITIC, "critic"), torch.cat((SEEN, NOISE), -1), activation)
    for member in range(CRITICS):
        layers = [torch.nn.Linear(OBSERVED + ACTED, 5), torch.nn.Linear(5, 1)]
        for layer, module in enumerate(layers):
            module.weight = torch.nn.Parameter(CRITIC[f"critic.{layer}.weight"][member])
            module.bias = torch.nn.Parameter(CRITIC[f"critic.{layer}.bias"][member])
        network = torch.nn.Sequential(layers[0], between(), layers[1])
        torch.testing.assert_close(
            values[member], network(torch.cat((SEEN, NOISE), -1)).detach(), rtol=1e-14, atol=1e-15
        )


def test_reductions_of_critics() -> None:
    values = real([1.0, 5.0], [3.0, -1.0], [2.0, 2.0])
    assert reduced(values, "min").tolist() == [1.0, -1.0]
    assert reduced(values, "mean").tolist() == [2.0, 2.0]
    assert reduced(values, "first").tolist() == [1.0, 5.0]
    assert reduced(values, "min", [0, 2]).tolist() == [1.0, 2.0]


def test_huber_is_quadratic_then_linear() -> None:
    assert huber(real(-3.0, -0.5, 2.0, 4.0), 2.0).tolist() == [4.0, 0.125, 2.0, 6.0]
    assert huber(real(-3.0, 4.0), math.inf).tolist() == [4.5, 8.0]


def test_dueling_advantages_have_mean_zero() -> None:
    assert dueling(real([1.0, 2.0, 4.0], [0.0, -3.0, 0.0])).tolist() == [[0.0, 2.0], [-1.5, 1.5]]


@pytest.mark.parametrize(
    ("is_double", "errors", "loss", "huber_loss"),
    [(False, [-2.2, 3.0], 2.335, 1.475), (True, [-1.3, 3.0], 1.5475, 1.025)],
)
def test_dqn_by_hand(is_double: bool, errors: list[float], loss: float, huber_loss: float) -> None:
    # Q(1) = [1, 2], Q(2) = [2, 4]; Q_target(-1) = [2, 3]: y = 0.5 + 0.9 * 3, or 0.5 + 0.9 * 2 if double.
    online, target = linear([[1.0], [2.0]], [0.0, 0.0]), linear([[-2.0], [-4.0]], [0.0, -1.0])
    batch = Batch(
        real([1.0], [2.0]), torch.tensor([0, 1]), real(0.5, 1.0), real(0.9, 0.0), real([-1.0], [1.0]), real(1.0, 0.5)
    )
    for delta, expected in ((math.inf, loss), (1.0, huber_loss)):
        found, differences = dqn_loss(online, target, batch, activation="tanh", is_double=is_double, delta=delta)
        assert found.item() == pytest.approx(expected)
        assert differences.tolist() == pytest.approx(errors)


def test_the_target_noise_and_then_the_action_are_clipped() -> None:
    disturbed = smoothed(real(-0.5, 0.5, 0.8, -0.9), real(2.0, -0.2, 0.4, -7.0), bound=0.5)
    assert disturbed.tolist() == pytest.approx([0.0, 0.3, 1.0, -1.0])


def test_deterministic_losses_by_hand() -> None:
    # Target: pi(0) = 0.5, Q_1 = s + 2 a, Q_2 = 3 s - a + 1. The online critics are larger by 1, the online actor is 1.
    target = linear([[7.0]], [math.atanh(0.5)], "actor") | linear([[[1.0, 2.0]], [[3.0, -1.0]]], [[0.0], [1.0]])
    online = target | {"critic.0.bias": real([1.0], [2.0])} | linear([[0.0]], [99.0], "actor")
    batch = Batch(
        real([1.0], [0.0]), real([0.5], [-1.0]), real(1.0, 2.0), real(0.5, 0.0), real([0.0], [9.0]), real(1.0, 0.5)
    )
    # Q(1, 0.5) = (3, 4.5) and Q(0, -1) = (-1, 3). Q'(0, 0.5) = (1, 0.5): y = 1.25 (or 1.5 of the first), and 2.
    loss, errors = deterministic_critic_loss(online, target, batch, **TANH)
    assert errors.tolist() == [pytest.approx([1.75, -3.0]), pytest.approx([3.25, 1.0])]
    assert loss.item() == pytest.approx((1.75**2 + 0.5 * 9.0) / 2 + (3.25**2 + 0.5) / 2)
    _, errors = deterministic_critic_loss(online, target, batch, reduce="first", **TANH)
    assert errors[:, 0].tolist() == pytest.approx([1.5, 3.0])
    # Noise moves a' to 0.5 + 0.3: Q' = (1.6, 0.2).
    noise: Settings = {"noise": real([1.5], [0.0]), "deviation": 0.2, "bound": 0.4}
    _, errors = deterministic_critic_loss(online, target, batch, **TANH, **noise)
    assert errors[:, 0].tolist() == pytest.approx([3.0 - 1.1, 4.5 - 1.1])
    assert deterministic_actor_loss(target, real([0.0]), **TANH).item() == pytest.approx(-1.0)
    assert deterministic_actor_loss(target, real([0.0]), reduce="mean", **TANH).item() == pytest.approx(-0.75)


def test_a_squashed_log_probability_by_hand() -> None:
    # u = 0 in both cases: log N is that of the noise minus log std, and tanh has slope 1.
    outputs, noise = real([0.0, 0.0], [1.0, math.log(2.0)]), real([0.0], [-0.5])
    action, log_prob = squashed_sample(outputs, noise)
    assert action.tolist() == [[0.0], [0.0]]
    assert log_prob.tolist() == pytest.approx([-HALF_LOG_TWO_PI, -0.125 - math.log(2.0) - HALF_LOG_TWO_PI])


def test_the_squashed_density_equals_that_of_torch_and_integrates_to_one() -> None:
    outputs = perceptron(layers_of(GAUSSIAN, "actor"), SEEN, "tanh")
    mean, log_std = outputs.chunk(2, -1)
    action, log_prob = squashed_sample(outputs, NOISE)
    policy = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), TanhTransform())
    torch.testing.assert_close(log_prob, policy.log_prob(action), rtol=1e-9, atol=0)
    grid = torch.linspace(-8.0, 8.0, 4001, dtype=torch.float64).unsqueeze(1)
    action, log_prob = squashed_sample(real(0.3, -0.7).expand(4001, 2), grid)
    assert torch.trapezoid(log_prob.exp(), action[:, 0]).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("u", [-400.0, -19.0, -10.1, 10.1, 30.0, 400.0])
def test_the_squashed_log_probability_is_exact_where_the_action_rounds_to_its_bound(u: float) -> None:
    mean = torch.tensor([[u, 0.0]], dtype=torch.float64, requires_grad=True)
    _, log_prob = squashed_sample(mean, real([0.0]))
    exact = math.log(4.0) - 2.0 * abs(u) - 2.0 * math.log1p(math.exp(-2.0 * abs(u)))
    assert log_prob.item() == pytest.approx(-HALF_LOG_TWO_PI - exact, rel=1e-14)
    (gradient,) = torch.autograd.grad(log_prob.sum(), mean)
    assert gradient[0, 0].item() == pytest.approx(2.0 * math.tanh(u))


def test_a_clamped_log_std_has_no_gradient() -> None:
    outputs = torch.tensor([[0.1, 2.5], [0.1, -21.0], [0.1, 1.9]], dtype=torch.float64, requires_grad=True)
    action, log_prob = squashed_sample(outputs, real([0.3], [0.3], [0.3]))
    expected = [math.tanh(0.1 + 0.3 * math.exp(log_std)) for log_std in (2.0, -20.0, 1.9)]
    assert action[:, 0].tolist() == pytest.approx(expected, rel=1e-14)
    (gradient,) = torch.autograd.grad((action[:, 0] + log_prob).sum(), outputs)
    assert gradient[:2, 1].tolist() == [0.0, 0.0]
    assert gradient[2, 1] != 0.0


def test_soft_losses_by_hand() -> None:
    # u = s - 2, so a' = 0 and log pi = -0.5 log(2 pi). Target: Q_1 = s + 2 a, Q_2 = 3 s - a + 1, Q_3 = -4, which are
    # (2, 7, -4) at (2, 0); the online critics are larger by 1.
    actor = linear([[1.0], [0.0]], [-2.0, 0.0], "actor")
    target = linear([[[1.0, 2.0]], [[3.0, -1.0]], [[0.0, 0.0]]], [[0.0], [1.0], [-4.0]])
    online = actor | target | {"critic.0.bias": real([1.0], [2.0], [-3.0])}
    batch = Batch(real([1.0]), real([0.5]), real(1.0), real(0.5), real([2.0]), real(2.0))
    settings: Settings = {"activation": "tanh", "alpha": 0.2, "noise": real([0.0])}
    entropy = 0.2 * HALF_LOG_TWO_PI
    cases = ((("min", None), -4.0), (("mean", None), 5.0 / 3.0), (("min", [0, 1]), 2.0))
    for (reduce, subset), following in cases:
        loss, errors = sac_critic_loss(online, target, batch, reduce=reduce, subset=subset, **settings)
        y = 1.0 + 0.5 * (following + entropy)
        assert errors.flatten().tolist() == pytest.approx([3.0 - y, 4.5 - y, -3.0 - y])
        assert loss.item() == pytest.approx(2.0 * ((3.0 - y) ** 2 + (4.5 - y) ** 2 + (3.0 + y) ** 2))
    assert sac_actor_loss(actor | target, real([2.0]), **settings).item() == pytest.approx(-entropy + 4.0)
    mean = sac_actor_loss(actor | target, real([2.0]), reduce="mean", **settings)
    assert mean.item() == pytest.approx(-entropy - 5.0 / 3.0)


def test_the_temperature_falls_where_the_entropy_is_above_its_target() -> None:
    log_alpha = torch.tensor(math.log(0.5), dtype=torch.float64, requires_grad=True)
    log_prob = real(-3.0, -1.0).requires_grad_()
    for of, factor, slope in (("log_alpha", math.log(0.5), 1.0), ("alpha", 0.5, 0.5)):
        loss = temperature_loss(log_alpha, log_prob, target_entropy=1.5, of=of)
        assert loss.item() == pytest.approx(-factor * -0.5)
        gradient, untouched = torch.autograd.grad(loss, (log_alpha, log_prob), allow_unused=True)
        assert gradient.item() == pytest.approx(0.5 * slope)
        assert untouched is None


def test_discrete_soft_losses_by_hand() -> None:
    # At s' = 2: pi = (1/4, 3/4), target Q_1 = (1, 2) and Q_2 = (3, 0). At s = 1 the online values are 7 and 5.
    actor = linear([[0.0], [1.0]], [0.0, math.log(3.0) - 2.0], "actor")
    target = linear([[[0.0], [1.0]], [[1.0], [0.0]]], [[1.0, 0.0], [1.0, 0.0]])
    online = actor | linear([[[0.0], [1.0]], [[0.0], [3.0]]], [[9.0, 6.0], [9.0, 2.0]])
    batch = Batch(real([1.0]), torch.tensor([1]), real(1.0), real(0.5), real([2.0]), real(2.0))
    negative_entropy = 0.25 * math.log(0.25) + 0.75 * math.log(0.75)
    assert expected_log_prob(real([0.0, math.log(3.0)])).item() == pytest.approx(negative_entropy)
    for reduce, expected in (("min", 0.25), ("mean", 0.25 * 2.0 + 0.75)):
        y = 1.0 + 0.5 * (expected - 0.2 * negative_entropy)
        loss, errors = discrete_sac_critic_loss(online, target, batch, activation="tanh", alpha=0.2, reduce=reduce)
        assert errors.flatten().tolist() == pytest.approx([7.0 - y, 5.0 - y])
        assert loss.item() == pytest.approx(2.0 * ((7.0 - y) ** 2 + (5.0 - y) ** 2))
        loss = discrete_sac_actor_loss(actor | target, real([2.0]), activation="tanh", alpha=0.2, reduce=reduce)
        assert loss.item() == pytest.approx(0.2 * negative_entropy - expected)


def test_a2c_by_hand() -> None:
    # pi = (1/4, 3/4) and V = s in two states.
    critic = linear([[1.0]], [0.0])
    seen, advantage, returns = real([1.0], [-1.0]), real(5.0, 1.0), real(3.0, -1.0)
    actor = linear([[0.0], [0.0]], [0.0, math.log(3.0)], "actor")
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    for standardize, weights in ((False, (5.0, 1.0)), (True, (1.0, -1.0))):
        policy_loss = -(weights[0] * math.log(0.75) + weights[1] * math.log(0.25)) / 2
        settings = A2C | {"standardize": standardize}
        loss = a2c_loss(actor | critic, seen, torch.tensor([1, 0]), advantage, returns, **settings)
        assert loss.item() == pytest.approx(policy_loss - 0.1 * entropy + 0.5 * 2.0)
    # Mean 0, deviation 2: an action of 2 has log N = -0.5 - log 2 - 0.5 log(2 pi), one of 0 has 0.5 more.
    actor = linear([[0.0]], [0.0], "actor") | {"log_std": real(math.log(2.0))}
    loss = a2c_loss(actor | critic, seen, real([2.0], [0.0]), advantage, returns, **A2C | {"standardize": False})
    constant = -math.log(2.0) - HALF_LOG_TWO_PI
    entropy = 0.5 - constant
    assert loss.item() == pytest.approx(-(5.0 * (constant - 0.5) + constant) / 2 - 0.1 * entropy + 1.0)


def gated_recurrent_unit(seed: int) -> GatedRecurrentUnit:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((12, OBSERVED), (12, 4), (12,), (12,))
    return GatedRecurrentUnit(*(torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes))


def test_a_recurrent_step_by_hand() -> None:
    # Weights 0: r = sigmoid(0) = 1/2, z = sigmoid(log 3) = 3/4, n = tanh(1 + r * 2) = tanh 2.
    unit = GatedRecurrentUnit(
        real([0.0], [0.0], [0.0]), real([0.0], [0.0], [0.0]), real(0.0, math.log(3.0), 1.0), real(0.0, 0.0, 2.0)
    )
    assert unit.step(real([7.0]), real([0.8])).item() == pytest.approx(0.25 * math.tanh(2.0) + 0.75 * 0.8)


def test_an_unrolled_unit_equals_that_of_torch_and_resets_at_every_episode() -> None:
    unit, inputs, state = gated_recurrent_unit(1), SEEN.reshape(3, 2, OBSERVED), real([0.5] * 4, [-0.5] * 4)
    module = torch.nn.GRU(OBSERVED, 4).double()
    for name, tensor in zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), unit, strict=True):
        module.get_parameter(name).data.copy_(tensor)
    with torch.no_grad():
        whole, afresh = module(inputs, state.unsqueeze(0))[0], module(inputs[2:])[0]
        expected = torch.stack((whole[:, 0], module(inputs)[0][:, 1]), 1)
        expected[2, 0] = afresh[0, 0]
    torch.testing.assert_close(unit.unroll(inputs, state, IS_FIRST), expected, rtol=1e-12, atol=0)


def test_the_gradient_through_time_agrees_with_finite_differences() -> None:
    leaves = [tensor.requires_grad_() for tensor in (*gated_recurrent_unit(2), real([0.5] * 4, [-0.5] * 4))]
    inputs = SEEN.reshape(3, 2, OBSERVED)
    assert gradcheck(lambda *values: GatedRecurrentUnit(*values[:4]).unroll(inputs, values[4], IS_FIRST), leaves)


@pytest.mark.parametrize(
    ("start", "n", "expected"),
    [
        (0, 1, (1.0, 0.5, 0, 1)),
        (0, 2, (6.0, 0.25, 1, 2)),
        (0, 3, (31.0, 0.0, 2, 3)),  # terminated: no bootstrap
        (1, 9, (60.0, 0.0, 2, 2)),
        (3, 9, (6000.0, 0.25, 4, 2)),  # truncated: bootstraps from the final observation
        (5, 1, (7.0, 0.0, 5, 1)),  # both: termination takes precedence
        (6, 3, (8.0, 0.5, 6, 1)),  # the list ends
    ],
)
def test_n_step_returns_by_hand(start: int, n: int, expected: tuple[float, float, int, int]) -> None:
    lane = [Transition(1.0), Transition(10.0), Transition(100.0, terminated=True), Transition(1000.0)]
    lane += [Transition(10_000.0, truncated=True), Transition(7.0, terminated=True, truncated=True), Transition(8.0)]
    assert n_step_return(lane, start, n, gamma=0.5) == expected


def test_polyak_averages_move_by_tau() -> None:
    moved = polyak_averaged({"w": real(1.0, -2.0)}, {"w": real(5.0, 2.0), "other": real(0.0)}, tau=0.25)
    assert {name: tensor.tolist() for name, tensor in moved.items()} == {"w": [2.0, -1.0]}


def test_large_gradients_are_clipped_and_small_ones_unchanged() -> None:
    assert norm_clipped(real(3.0, -4.0), 2.5).tolist() == [1.5, -2.0]
    assert norm_clipped(real(3.0, -4.0), 6.0).tolist() == [3.0, -4.0]


def test_adam_by_hand() -> None:
    # Clipped: 2, then -0.5. m = 1, 0.25 and v = 1, 0.8125, divided by 1/2, 3/4 and by 1/4, 7/16.
    path = adam(real(10.0), [real(8.0), real(-0.5)], learning_rate=0.1, betas=(0.5, 0.75), epsilon=1.0, maximum_norm=2)
    first = 10.0 - 0.1 * 2.0 / (2.0 + 1.0)
    second = first - 0.1 * (0.25 / 0.75) / (math.sqrt(0.8125 / 0.4375) + 1.0)
    assert [tensor.item() for tensor in path] == pytest.approx([first, second], rel=1e-14)


@pytest.mark.long
def test_many_steps_of_adam_equal_those_of_torch() -> None:
    gradients = list(torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))
    parameters = torch.nn.Parameter(real(1.0, 2.0, 3.0, 4.0, 5.0))
    optimizer = torch.optim.Adam([parameters], lr=0.01, eps=1e-5)
    path = adam(parameters.detach().clone(), gradients, learning_rate=0.01, epsilon=1e-5, maximum_norm=1.0)
    for gradient, expected in zip(gradients, path, strict=True):
        parameters.grad = gradient / max(1.0, float(gradient.norm()))
        optimizer.step()
        torch.testing.assert_close(parameters.detach(), expected, rtol=1e-12, atol=0)


def test_divergences_equal_those_of_torch_and_hand_computed_ones() -> None:
    # From N(1, 2^2) to N(0, 1): -log 2 + (4 + 1) / 2 - 1/2. From (1/4, 3/4) to (1/2, 1/2): log 2 minus the entropy.
    gaussian = gaussian_divergence(real([1.0]), real([math.log(2.0)]), real([0.0]), real([0.0]))
    assert gaussian.item() == pytest.approx(2.0 - math.log(2.0))
    coin = categorical_divergence(real([0.0, math.log(3.0)]), real([5.0, 5.0]))
    assert coin.item() == pytest.approx(math.log(2.0) + 0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    gaussians = [Independent(Normal(mean, log_std.exp()), 1) for mean, log_std in ((SEEN, -SEEN), (-SEEN, SEEN / 2))]
    torch.testing.assert_close(gaussian_divergence(SEEN, -SEEN, -SEEN, SEEN / 2), kl_divergence(*gaussians))
    choices = kl_divergence(Categorical(logits=SEEN), Categorical(logits=SEEN**2))
    torch.testing.assert_close(categorical_divergence(SEEN, SEEN**2), choices)

"""Tests what the base classes of user-defined algorithms make of a loss."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from experience import OBSERVED, SPACES, Course, new_algorithm, random_rollout
from torch import Tensor, nn

from agentpod.algorithms.autograd import ReplayAlgorithm, ReplaySettings, RolloutAlgorithm
from agentpod.algorithms.autograd.torch_optimizer import TorchOptimizer
from agentpod.fusion.averaging import StateAverager
from agentpod.fusion.rounds import FusionOptions
from podrace.errors import UNUSABLE_ALGORITHM, DataLoss, InvalidArgument
from podrace.tensor_transport.group import Group
from simulators.base import Space

SMALL = {"hidden_sizes": [8], "horizon": 8}


class Likelihood(RolloutAlgorithm):
    """Makes what was done more likely."""

    def loss(self, batch: Any) -> Any:
        return -self.log_prob(self.actor(batch["observation"]), batch["action"]).mean()


@dataclass(frozen=True)
class ValueSettings(ReplaySettings):
    hidden_sizes: tuple[int, ...] = (8,)
    horizon: int = 8
    batch_size: int = 16
    replay_capacity: int = 128
    warmup_steps: int = 0
    updates_per_step: float = 0.125


class Values(ReplayAlgorithm):
    """Learns action values, with a policy and a normalized critic."""

    settings_type, action_kinds, targets = ValueSettings, frozenset({"discrete"}), True

    def modules(self) -> dict[str, nn.Module]:
        return {"critic": nn.Sequential(nn.Linear(self.observation_size, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))}

    def loss(self, batch: Any) -> Any:
        with torch.no_grad():
            best = self.target_actor(batch.next_observation).max(-1).values
            best = best + self.target("critic")(batch.next_observation).squeeze(-1)
        values = self.actor(batch.observation).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        values = values + self.module("critic")(batch.observation).squeeze(-1)
        return (values - batch.reward - batch.discount * best).square().mean()


class Momentum(Values):
    """Steps by momentum instead of Adam."""

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.hyperparameters.learning_rate, momentum=0.9)


def made(cls: type[Any], kind: str, seed: int = 1, **hyperparameters: object) -> Any:
    return cls(OBSERVED, SPACES[kind], hyperparameters, seed)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_the_gradient_of_the_actor_is_that_of_automatic_differentiation(kind: str) -> None:
    algorithm = made(Likelihood, kind, **SMALL)
    rollout = random_rollout(algorithm, kind, 0)
    batch = algorithm._prepare(rollout, rollout["reward"]).fields
    networks = algorithm._trained_networks
    networks.gradient.zero_()
    algorithm.loss(batch).backward()
    found = networks.gradient.clone()

    views = {name: view.double().requires_grad_() for name, view in algorithm.policy.tensors().items()}
    hidden = torch.tanh(batch["observation"].double() @ views["actor.0.weight"].T + views["actor.0.bias"])
    outputs = hidden @ views["actor.1.weight"].T + views["actor.1.bias"]
    if kind == "discrete":
        chosen = torch.distributions.Categorical(logits=outputs)
        wanted = -chosen.log_prob(batch["action"]).mean()
    else:
        normal = torch.distributions.Normal(outputs, views["log_std"].exp())
        wanted = -normal.log_prob(batch["action"].double()).sum(-1).mean()
    trained = [view for name, view in views.items() if not name.startswith("observation_")]
    expected = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(wanted, trained)])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


def test_convolutions_are_trained() -> None:
    images = Space("continuous", (1, 16, 16), torch.uint8)
    algorithm = Likelihood(images, SPACES["discrete"], {**SMALL, "torso": "small"}, seed=1)
    before = algorithm.policy.tensors()["actor.torso.0.weight"].clone()
    batch = {
        "observation": algorithm.policy.normalize(torch.randint(0, 256, (32, 1, 16, 16), dtype=torch.uint8)),
        "action": torch.arange(32) % 3,
    }
    algorithm._differentiate(batch)
    assert not torch.equal(algorithm.policy.tensors()["actor.torso.0.weight"], before)


@pytest.mark.parametrize("cls", [Values, Momentum])
def test_the_gradient_reaches_every_network_and_no_target(cls: type[Any]) -> None:
    algorithm = made(cls, "discrete")
    networks, course = algorithm._trained_networks, Course(algorithm, "discrete")
    batch = [course.next() for _ in range(4)][-1].sample(16, 1, 0.99, torch.Generator())
    target = networks.target.clone()
    algorithm._differentiate(batch)
    assert all(leaf.grad is not None and leaf.grad.abs().sum() > 0 for leaf in networks.leaves[:2])
    assert torch.equal(networks.target, target)
    assert not torch.equal(networks.parameters, target)
    networks.update_target(0.5)
    torch.testing.assert_close(networks.target, 0.5 * (target + networks.parameters))


@pytest.mark.parametrize("cls", [Values, Momentum])
def test_a_resumed_algorithm_makes_the_same_update(cls: type[Any]) -> None:
    straight, resumed = made(cls, "discrete"), made(cls, "discrete", seed=1)
    course = Course(straight, "discrete")
    for _ in range(3):
        straight.update(course.next())
    resumed.policy.load(straight.policy.flat)
    resumed.load_state_dict(straight.state_dict())
    experience = course.next()
    assert straight.update(experience) == resumed.update(experience)
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_frozen_parameters_get_no_gradient_but_inputs_do() -> None:
    algorithm = made(Values, "discrete")
    inputs = torch.randn(4, 3, requires_grad=True)
    algorithm._trained_networks.gradient.zero_()
    algorithm.frozen("critic", inputs).square().sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.abs().sum() > 0
    assert not algorithm._trained_networks.gradient.any()


@pytest.mark.parametrize("cls", [Values, Momentum])
def test_every_tensor_that_training_changes_is_fused_or_counted(cls: type[Any]) -> None:
    algorithm = made(cls, "discrete")
    fusible = algorithm.fusible()
    fused = {**fusible.parameters, **fusible.targets, **fusible.moments, **fusible.counts}
    missing = {name for name in algorithm._live_tensors() if name not in fused}
    assert not missing


class WithZeros(Group):
    """A group of two learners; the state of the other one is 0."""

    def __init__(self) -> None:
        super().__init__(None, 0, 2, torch.device("cpu"), 10.0)

    def _exchange(self, tensor: Tensor, gathered: Tensor) -> None:
        gathered[:] = tensor
        if tensor.is_floating_point():
            gathered[1] = 0.0


@pytest.mark.parametrize("cls", [Likelihood, Values, Momentum])
def test_a_fusion_round_averages_networks_targets_and_moments(cls: type[Any]) -> None:
    settings = SMALL if cls is Likelihood else {}
    algorithm = made(cls, "discrete", normalize_observations=False, **settings)
    algorithm.update(Course(algorithm, "discrete").next())
    fusible = algorithm.fusible()
    averager = StateAverager(fusible, FusionOptions())
    averager.group = WithZeros()
    kinds = (fusible.parameters, fusible.targets, fusible.moments)
    before = {name: tensor.clone() for kind in kinds for name, tensor in kind.items()}
    averager.apply(averager.prepare())
    for kind in kinds:
        for name, tensor in kind.items():
            torch.testing.assert_close(tensor, before[name] / 2)
    actor = algorithm.policy.tensors()["actor.0.weight"]
    assert actor.data_ptr() == algorithm._trained_networks.parameters.data_ptr()


def test_an_optimizer_of_the_user_is_clipped_and_follows_the_schedule() -> None:
    algorithm = made(Momentum, "discrete", learning_rate=0.01, maximum_gradient_norm=1e-3)
    optimizer = algorithm._trained_networks.optimizer
    before = optimizer.parameters.clone()
    optimizer.gradient.fill_(1.0)
    optimizer.rate.fill_(0.5)
    norm = optimizer.step()
    assert float(norm) == pytest.approx(len(before) ** 0.5)
    moved = torch.linalg.vector_norm(optimizer.parameters - before)
    # The exploration rate is in the buffer and has no leaf.
    assert float(moved) == pytest.approx(0.5e-3, rel=0.05)


def broken(result: object) -> type[Any]:
    class Broken(Likelihood):
        def loss(self, batch: Any) -> Any:
            if isinstance(result, Exception):
                raise result
            return result

    return Broken


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (1.0, "returned a float, expected a tensor with one element"),
        (torch.zeros(3, requires_grad=True), r"returned a tensor of shape \[3\], expected a scalar: take its mean"),
        (torch.zeros(()), "does not depend on the trained networks: use self.actor"),
        (ZeroDivisionError("nothing\nthere"), "raised ZeroDivisionError: nothing there"),
    ],
)
def test_a_wrong_loss_is_reported_in_one_line_with_class_and_line_and_changes_nothing(
    result: object, problem: str
) -> None:
    algorithm = made(broken(result), "discrete", **SMALL)
    before = algorithm.policy.flat.clone()
    with pytest.raises(InvalidArgument, match=rf"Broken\.loss \(test_autograd\.py:\d+\) .*{problem}$") as caught:
        algorithm.update(random_rollout(algorithm, "discrete", 0))
    assert caught.value.reason == UNUSABLE_ALGORITHM
    assert torch.equal(algorithm.policy.flat, before)


class Exploding(Likelihood):
    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * float("inf")


def test_a_loss_that_is_not_finite_names_the_class_and_is_undone() -> None:
    algorithm = made(Exploding, "discrete", **SMALL)
    before = algorithm.policy.flat.clone()
    with pytest.raises(DataLoss, match=r"Exploding\.loss, test_autograd\.py:\d+: training_loss is not finite"):
        algorithm.update(random_rollout(algorithm, "discrete", 0))
    assert torch.equal(algorithm.policy.flat, before)


class Prepared(Likelihood):
    def prepare(self, rollout: Any) -> Any:
        return {name: rollout[name] for name in ("observation", "action")}


def test_prepare_may_return_only_what_the_loss_needs() -> None:
    algorithm = made(Prepared, "discrete", minibatch_size=8, **SMALL)
    assert algorithm.update(random_rollout(algorithm, "discrete", 0))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (None, "returned a NoneType, expected a dictionary"),
        ({"gain": 1.0}, "returned the field 'gain' of type float, expected a tensor"),
        ({"gain": torch.zeros(8)}, r"returned the field 'gain' of shape \[8\], expected a tensor \[8, 4, ...\]"),
    ],
)
def test_fields_of_a_wrong_shape_are_reported_in_one_line(fields: object, problem: str) -> None:
    class Wrong(Likelihood):
        def prepare(self, rollout: Any) -> Any:
            return fields

    algorithm = made(Wrong, "discrete", **SMALL)
    with pytest.raises(InvalidArgument, match=rf"Wrong\.prepare \(test_autograd\.py:\d+\) {problem}"):
        algorithm.update(random_rollout(algorithm, "discrete", 0))


@pytest.mark.parametrize("rate", ["much", float("nan"), None])
def test_an_exploration_rate_that_is_no_number_is_reported_in_one_line(rate: Any) -> None:
    class Exploring(Values):
        def exploration(self) -> float:
            return rate  # type: ignore[no-any-return]

    with pytest.raises(InvalidArgument, match=r"Exploring\.exploration .* expected a finite number"):
        made(Exploring, "discrete")


class Counting(torch.optim.SGD):
    """Keeps a number that no checkpoint can hold."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["calls"] = 1
        return super().step(closure)


class Uncountable(Momentum):
    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return Counting(parameters, lr=1e-3)


def test_an_optimizer_whose_state_is_no_tensor_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"optimizer Counting: state 0\.calls is a int"):
        made(Uncountable, "discrete")


OPTIMIZERS: dict[str, dict[str, object]] = {
    "ASGD": {"t0": 2.0},
    "Adadelta": {"weight_decay": 0.1},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "Adam": {"weight_decay": 0.1, "amsgrad": True},
    "Adamax": {},
    "AdamW": {},
    "NAdam": {"weight_decay": 0.1},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True, "weight_decay": 0.1},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_torch_steps_as_it_does_alone(name: str) -> None:
    start = torch.randn(6, generator=torch.Generator().manual_seed(1))
    alone, flat, gradient = nn.Parameter(start.clone()), start.clone(), torch.zeros(6)
    inside = nn.Parameter(flat)
    inside.grad = gradient
    expected, wrapped = (getattr(torch.optim, name)([one], lr=0.01, **OPTIMIZERS[name]) for one in (alone, inside))
    adapted = TorchOptimizer(wrapped, flat, gradient, learning_rate=0.01, maximum_norm=0.0)
    for number in range(5):
        drawn = torch.randn(6, generator=torch.Generator().manual_seed(10 + number))
        alone.grad = drawn.clone()
        gradient.copy_(drawn)
        expected.step()
        adapted.step()
        torch.testing.assert_close(flat, alone.detach(), rtol=0.0, atol=0.0)


class Anchored(torch.optim.SGD):
    """Keeps the parameters as they were before the first step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("anchor", parameter.detach().clone())
        return super().step(closure)


class Unknown(Momentum):
    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return Anchored(parameters, lr=1e-3)


def test_an_optimizer_whose_initial_state_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"optimizer Anchored: state 0\.anchor is not 0 .* not known; create it"):
        made(Unknown, "discrete")


def test_prioritized_replay_needs_errors() -> None:
    algorithm = made(Values, "discrete", prioritized=True)
    with pytest.raises(InvalidArgument, match="returned no errors, which prioritized = true needs"):
        algorithm.update(Course(algorithm, "discrete").next())
    assert new_algorithm("python:tqc:TQC", "continuous", prioritized=True)

"""Tests that gradient steps which are replayed as a CUDA graph would replay them equal eager ones, bit by bit.

The tape of agentpod.qualification.operations has the properties of a CUDA graph that matter: numbers are constants,
addresses are kept, and no decision is taken twice.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from agentpod.algorithms import ALGORITHMS
from agentpod.algorithms.base import SHARED_GRADIENTS, Capturable, capture_updates
from agentpod.capture.graph_replay import GraphReplay
from agentpod.qualification import trials
from agentpod.qualification.operations import OperationCounter, record_operations

CASES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    **{name: (name, {}) for name in ALGORITHMS},
    "ppo, recurrent": ("ppo", {"recurrent_size": 8, "minibatch_size": 64, "learning_rate_steps": 4000}),
    "ppo, schedule, unequal minibatches": ("ppo", {"minibatch_size": 120, "learning_rate_steps": 4000}),
    "ppo, clipped values, adaptive rate": ("ppo", {"value_clip_range": 0.2, "desired_kl": 0.01}),
    "sac, subset of critics": ("sac", {"critics": 3, "critic_subset": 2}),
    "sac, schedule, normalized": ("sac", {"learning_rate_steps": 4000, "normalize_observations": True}),
    "dqn, rare targets": ("dqn", {"target_period": 3}),
}
OPERATIONS = {
    "ppo": 86, "a2c": 65, "dqn": 48, "double-dqn": 53, "dueling-dqn": 58, "d3qn": 66, "ddpg": 84, "td3": 89,
    "sac": 109, "sac-discrete": 92,
}  # fmt: skip
"""Most operations of a gradient step with two hidden layers: each is a launch where steps are not captured."""


def state_of(algorithm: Any) -> dict[str, torch.Tensor]:
    return {"policy": algorithm.policy.flat, **algorithm.state_dict()}


@pytest.mark.parametrize("case", CASES)
def test_replayed_updates_equal_eager_ones(case: str) -> None:
    name, hyperparameters = CASES[case]
    experience = trials.collected(name, hyperparameters)
    # Within a dispatch mode, both compute tanh by torch.
    with OperationCounter():
        eager, _ = trials.updated(experience, "cpu", hyperparameters=hyperparameters)
        replayed, _ = trials.updated(experience, "cpu", hyperparameters=hyperparameters, record=record_operations)
    assert replayed._replay.graphs >= 1  # type: ignore[attr-defined]
    expected, found = state_of(eager), state_of(replayed)
    assert expected.keys() == found.keys()
    assert [key for key in expected if not torch.equal(expected[key], found[key])] == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_replayed_step_uses_the_learning_rate_of_the_moment(name: str) -> None:
    experience = trials.collected(name)
    with OperationCounter():
        algorithm, policies = trials.updated(experience, "cpu", record=record_operations)
        assert not torch.equal(policies[-1], policies[-2])
        optimizers = algorithm._optimizers() if hasattr(algorithm, "_optimizers") else [algorithm._optimizer]  # type: ignore[attr-defined]
        for optimizer in optimizers:
            optimizer.rate.fill_(0.0)
        before = [optimizer.parameters.clone() for optimizer in optimizers]
        trials.update_of(algorithm, experience, "cpu")(0)
    assert all(torch.equal(one, each.parameters) for one, each in zip(before, optimizers, strict=True))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_gradient_step_stays_within_its_budget_of_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experience, counts = trials.collected(name), list[int]()
    algorithm = trials.new_algorithm(name, "cpu")
    body = "_learn" if algorithm.memory.replay_capacity else "_gradient_step"
    inner = getattr(algorithm, body)

    def counted(*arguments: Any) -> Any:
        with OperationCounter() as counter:
            result = inner(*arguments)
        counts.append(counter.operations)
        return result

    monkeypatch.setattr(algorithm, body, counted)
    update = trials.update_of(algorithm, experience, "cpu")
    update(0)
    update(1)
    assert 0 < max(counts) <= OPERATIONS[name]


@pytest.mark.parametrize(
    ("wanted", "device", "reason"),
    [
        (False, "cuda", "pod.captured is false"),
        (True, "cpu", "the learner computes on cpu"),
        (True, "cuda:1", ""),
    ],
)
def test_the_reason_for_eager_steps_is_reported(wanted: bool, device: str, reason: str) -> None:
    algorithm = trials.new_algorithm("ppo", "cpu")
    assert capture_updates(algorithm, wanted=wanted, device=device, record=record_operations) == reason
    algorithm.share_gradients(Alone())
    assert capture_updates(algorithm, wanted=True, device="cuda", record=record_operations) == SHARED_GRADIENTS
    assert "no method capture" in capture_updates(object(), wanted=True, device="cuda")


class Alone:
    """Shares gradients with no other learner."""

    def __call__(self, tensor: torch.Tensor) -> None:
        pass

    def finish(self) -> None:
        pass


def test_steps_with_shared_gradients_are_eager() -> None:
    algorithm = trials.new_algorithm("ppo", "cpu")
    assert isinstance(algorithm, Capturable)
    assert algorithm.capture(record_operations) == ""
    algorithm.share_gradients(Alone())
    update = trials.update_of(algorithm, trials.collected("ppo"), "cpu")
    update(0)
    replay = algorithm._replay  # type: ignore[attr-defined]
    assert isinstance(replay, GraphReplay)
    assert replay.graphs == 0

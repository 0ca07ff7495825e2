"""Tests that gradient steps which are replayed as a CUDA graph would replay them equal eager ones, bit by bit.

The tape of agentpod.qualification.operations has the properties of a CUDA graph that matter: numbers are constants,
addresses are kept, and no decision is taken twice.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from agentpod.algorithms import ALGORITHMS
from agentpod.algorithms.base import Capturable, capture_updates
from agentpod.qualification import trials
from agentpod.qualification.operations import OperationCounter, record_operations

CAPTURED = [name for name in ALGORITHMS if name not in trials.REPLAYING_TEAMS]
"""Teams with a replay memory are not captured."""
CASES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    **{name: (name, {}) for name in CAPTURED},
    "ppo, recurrent": ("ppo", {"recurrent_size": 8, "minibatch_size": 64, "learning_rate_steps": 4000}),
    "ppo, schedule, unequal minibatches": ("ppo", {"minibatch_size": 120, "learning_rate_steps": 4000}),
    "ppo, clipped values, adaptive rate": ("ppo", {"value_clip_range": 0.2, "desired_kl": 0.01}),
    "sac, subset of critics": ("sac", {"critics": 3, "critic_subset": 2}),
    "sac, schedule, normalized": ("sac", {"learning_rate_steps": 4000, "normalize_observations": True}),
    "sac, rare steps of the actor": ("sac", {"policy_delay": 3}),
    "sac-discrete, rare steps of the actor": ("sac-discrete", {"policy_delay": 3}),
    "dqn, rare targets": ("dqn", {"target_period": 3}),
    "dqn, priorities, several steps": ("dqn", {"prioritized": True, "n_step": 3}),
    "sac, priorities, subset of critics": ("sac", {"prioritized": True, "critics": 3, "critic_subset": 2}),
}
OPERATIONS = {
    "ppo": 86, "a2c": 65, "dqn": 48, "double-dqn": 53, "dueling-dqn": 58, "d3qn": 66, "ddpg": 84, "td3": 89,
    "sac": 109, "sac-discrete": 92,
    "ippo": 86, "mappo": 86,
}  # fmt: skip
"""Most operations of a gradient step with two hidden layers: each is a launch where steps are not captured."""


def graphs_of(algorithm: Any) -> int:
    captured = algorithm._captured if algorithm.memory.replay_capacity else algorithm._replay
    return int(captured.graphs)


def state_of(algorithm: Any) -> dict[str, torch.Tensor]:
    return {"policy": algorithm.policy.flat, **algorithm.state_dict()}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_replayed_updates_equal_eager_ones(case: str) -> None:
    name, hyperparameters = CASES[case]
    experience = trials.collected(name, hyperparameters)
    # Within a dispatch mode, both compute tanh by torch.
    with OperationCounter():
        eager, _ = trials.updated(experience, "cpu", hyperparameters=hyperparameters)
        replayed, _ = trials.updated(experience, "cpu", hyperparameters=hyperparameters, record=record_operations)
    assert graphs_of(replayed) >= 1
    expected, found = state_of(eager), state_of(replayed)
    assert expected.keys() == found.keys()
    assert [key for key in expected if not torch.equal(expected[key], found[key])] == []


@pytest.mark.long
@pytest.mark.parametrize("name", CAPTURED)
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


@pytest.mark.long
@pytest.mark.parametrize("name", CAPTURED)
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


def test_what_an_update_does_once_stays_within_its_budget_of_operations() -> None:
    """No graph contains it: advantages, statistics, and minibatches of 4 epochs; and, on the host, a counter."""
    algorithm = trials.new_algorithm("ppo", "cpu")
    algorithm._gradient_step = lambda minibatch: torch.zeros(len(algorithm.METRICS))  # type: ignore[attr-defined]
    update = trials.update_of(algorithm, trials.collected("ppo"), "cpu")
    update(0)
    with OperationCounter() as counter:
        update(1)
    minibatches = 16
    assert 0 < counter.operations - minibatches <= 187


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
    assert "no method capture" in capture_updates(object(), wanted=True, device="cuda")


class Halving:
    """Shares gradients with a learner that has gradients of 0 and equal numbers []."""

    def __init__(self) -> None:
        self.sizes = list[int]()

    def __call__(self, tensor: torch.Tensor) -> None:
        self.sizes.append(tensor.numel())
        if tensor.dim():
            tensor.mul_(0.5)

    def finish(self) -> None:
        pass


@pytest.mark.long
@pytest.mark.parametrize("name", ["ppo", "a2c", "td3", "sac", "d3qn"])
def test_shared_gradients_are_averaged_between_the_graphs_of_a_replayed_step(name: str) -> None:
    experience, found = trials.collected(name), []
    with OperationCounter():
        for record in (None, record_operations):
            reduce = Halving()
            algorithm, _ = trials.updated(experience, "cpu", record=record, reduce=reduce)
            found.append((reduce.sizes, state_of(algorithm)))
    assert graphs_of(algorithm) >= 1
    (sizes, expected), (replayed_sizes, state) = found
    # No average more and none less, although steps were recorded: all learners must call the same collectives.
    assert len(sizes) >= trials.SEGMENTS
    assert replayed_sizes == sizes
    assert [key for key in expected if not torch.equal(expected[key], state[key])] == []


def test_a_graph_of_a_learner_alone_is_not_replayed_when_gradients_are_shared_later() -> None:
    algorithm = trials.new_algorithm("ppo", "cpu")
    assert isinstance(algorithm, Capturable)
    assert algorithm.capture(record_operations) == ""
    update = trials.update_of(algorithm, trials.collected("ppo"), "cpu")
    update(0)
    reduce = Halving()
    algorithm.share_gradients(reduce)
    update(1)
    assert reduce.sizes


def test_graphs_of_another_replay_memory_are_not_replayed() -> None:
    algorithm, experience = trials.new_algorithm("dqn", "cpu"), trials.collected("dqn")
    assert isinstance(algorithm, Capturable)
    algorithm.capture(record_operations)
    for _ in range(2):
        update = trials.update_of(algorithm, experience, "cpu")
        update(0)
        update(1)
        assert graphs_of(algorithm) == 1


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_replayed_step_with_its_batch_copies_few_tensors(prioritized: bool) -> None:
    experience, settings = trials.collected("dqn"), {"prioritized": prioritized}
    algorithm, _ = trials.updated(experience, "cpu", 2, hyperparameters=settings, record=record_operations)
    captured = algorithm._captured  # type: ignore[attr-defined]
    (recording,) = captured._graph._recordings.values()
    object.__setattr__(captured._graph, "_recordings", {
        key: recording._replace(play=lambda: None) for key in captured._graph._recordings
    })  # fmt: skip
    replay, generator = captured._replay, torch.Generator()
    with OperationCounter() as counter:
        captured.train(replay, torch.empty(8, 0), 1.0, generator, lambda: next(iter(captured._graph._recordings))[0])
    # Random numbers, one copy for each type, and the metrics; the replay itself is one more.
    assert counter.operations / 8 + 1 <= 6

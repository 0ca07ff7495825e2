"""Tests target networks: what they follow, how fast and when; and the parameters trained with them."""

from typing import Any

import pytest
import torch
from exactness import one_thread as one_thread
from experience import OFF_POLICY, Course, new_algorithm
from references import polyak_averaged
from torch import Tensor

from agentpod.experience.transitions import TransitionBatch

EVERY_ALGORITHM = pytest.mark.parametrize(("name", "kind"), OFF_POLICY)


@pytest.mark.parametrize(("rate", "period"), [(0.3, 1), (0.05, 3), (1.0, 1), (1.0, 4)])
@EVERY_ALGORITHM
def test_targets_move_by_the_target_rate_once_per_target_period(
    name: str, kind: str, rate: float, period: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm: Any = new_algorithm(
        name, kind, target_rate=rate, target_period=period, learning_rate=0.01, updates_per_step=0.15625
    )
    with_target = {key: each for key, each in algorithm._trained.items() if each.target_flat.numel()}
    expected = {key: each.flat.double() for key, each in with_target.items()}
    descend, steps = algorithm._gradient_step, 0

    def spy(batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal steps, expected
        for key, each in with_target.items():
            torch.testing.assert_close(each.target_flat.double(), expected[key], rtol=1e-5, atol=1e-6)
        result: tuple[Tensor, Tensor] = descend(batch, noise)
        steps += 1
        if steps % period == 0:
            expected = polyak_averaged(expected, {key: each.flat.double() for key, each in with_target.items()}, rate)
        return result

    monkeypatch.setattr(algorithm, "_gradient_step", spy)
    course = Course(algorithm, kind)
    for _ in range(3):
        algorithm.update(course.next())
    assert steps == algorithm.gradient_steps == 15
    for key, each in with_target.items():
        torch.testing.assert_close(each.target_flat.double(), expected[key], rtol=1e-5, atol=1e-6)
        # Targets equal their networks only if the last step updated them at rate 1.
        assert torch.equal(each.target_flat, each.flat) == (rate == 1.0 and period == 1)


@EVERY_ALGORITHM
def test_targets_have_their_own_memory_and_start_equal_to_their_networks(name: str, kind: str) -> None:
    algorithm: Any = new_algorithm(name, kind)
    for key, each in algorithm._trained.items():
        # Soft actor-critics have no target actor.
        without = key == "actor" and name.startswith("sac")
        assert (each.target is each.network) == without
        assert each.target_flat.numel() == (0 if without else each.flat.numel())
        if not without:
            assert torch.equal(each.target_flat, each.flat)
            before = each.target_flat.clone()
            each.flat.add_(1.0)
            assert torch.equal(each.target_flat, before)
            assert not torch.equal(each.target.weights[0], each.network.weights[0])
            each.target_flat.add_(1.0)
            assert torch.equal(each.target.weights[0], each.network.weights[0])


@EVERY_ALGORITHM
def test_the_trained_actor_is_the_acting_policy(name: str, kind: str) -> None:
    algorithm: Any = new_algorithm(name, kind)
    before = algorithm.policy.flat.clone()
    algorithm._trained["actor"].flat.add_(1.0)
    tensors = algorithm.policy.tensors()
    assert not torch.equal(algorithm.policy.flat, before)
    assert torch.equal(tensors["actor.0.weight"], algorithm._trained["actor"].network.weights[0])


def test_the_actor_of_td3_is_updated_in_every_second_step_across_updates_and_checkpoints() -> None:
    settings = {"updates_per_step": 0.15625, "learning_rate": 0.01}
    algorithm: Any = new_algorithm("td3", "continuous", **settings)
    course, moved, actor_metrics = Course(algorithm, "continuous"), [], []
    experience = course.next()
    for step in range(1, 12):
        before = {key: each.flat.clone() for key, each in algorithm._trained.items()}
        targets = {key: each.target_flat.clone() for key, each in algorithm._trained.items()}
        (metrics,) = algorithm._train(experience, 1)
        named = dict(zip(algorithm.METRICS, metrics.tolist(), strict=True))
        changed = {key: not torch.equal(each.flat, before[key]) for key, each in algorithm._trained.items()}
        followed = {key: not torch.equal(each.target_flat, targets[key]) for key, each in algorithm._trained.items()}
        assert changed == {"actor": step % 2 == 0, "critic": True}
        assert followed == {"actor": step % 2 == 0, "critic": step % 2 == 0}
        moved.append(changed["actor"])
        actor_metrics.append((named["policy_loss"], named["actor_gradient_norm"]))
        if step % 3 == 0:
            resumed: Any = new_algorithm("td3", "continuous", **settings)
            resumed.policy.load(algorithm.policy.flat)
            resumed.load_state_dict(algorithm.state_dict())
            algorithm = resumed
    # In between, the metrics of the last actor step are repeated.
    assert actor_metrics[0] == (0.0, 0.0)
    assert all(actor_metrics[step] == actor_metrics[step - 1] for step in range(2, 11, 2))
    assert len(set(actor_metrics)) == 6


DELAYED = pytest.mark.parametrize(
    ("name", "kind"), [("td3", "continuous"), ("sac", "continuous"), ("sac-discrete", "discrete")]
)


@DELAYED
@pytest.mark.parametrize("delay", [1, 3])
def test_policy_delay_sets_the_delay_of_the_actor(name: str, kind: str, delay: int) -> None:
    algorithm: Any = new_algorithm(name, kind, policy_delay=delay)
    experience = Course(algorithm, kind).next()
    metrics = algorithm._train(experience, 7)
    state = algorithm.state_dict()
    assert state["actor.optimizer.step"] == 7 // delay
    assert state["critic.optimizer.step"] == 7
    # REDQ adapts the temperature together with the actor.
    assert state.get("temperature.optimizer.step", 7 // delay) == 7 // delay
    losses = metrics[:, algorithm.METRICS.index("policy_loss")].tolist()
    # In between, the loss of the last actor step is repeated.
    assert len(set(losses)) == (7 if delay == 1 else 3)
    assert delay == 1 or losses[:2] == [0.0, 0.0]


@pytest.mark.parametrize(("name", "kind"), [("sac", "continuous"), ("sac-discrete", "discrete")])
def test_a_delayed_child_of_a_parent_without_delay_can_be_trained(name: str, kind: str) -> None:
    parent: Any = new_algorithm(name, kind)
    parent.update(Course(parent, kind).next())
    child: Any = new_algorithm(name, kind, policy_delay=20)
    child.load_state_dict(parent.state_dict())
    assert child.update(Course(child, kind).next())
    back: Any = new_algorithm(name, kind)
    back.load_state_dict(child.state_dict())

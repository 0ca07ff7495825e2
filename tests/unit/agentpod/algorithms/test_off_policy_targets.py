"""Target networks: what they follow, how fast and when; and what is trained beside them."""

from typing import Any

import pytest
import torch
from exactness import one_thread as one_thread
from experience import OFF_POLICY, Course, new_algorithm
from references import polyak_averaged
from torch import Tensor

from agentpod.experience.replay_buffer import TransitionBatch

EVERY_ALGORITHM = pytest.mark.parametrize(("name", "kind"), OFF_POLICY)


@pytest.mark.parametrize(("rate", "period"), [(0.3, 1), (0.05, 3), (1.0, 1), (1.0, 4)])
@EVERY_ALGORITHM
def test_targets_follow_their_networks_by_the_rate_once_a_period(
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
        # Only where the last step was one of following at full rate is there nothing left to follow.
        assert torch.equal(each.target_flat, each.flat) == (rate == 1.0 and period == 1)


@EVERY_ALGORITHM
def test_targets_have_memory_of_their_own_and_begin_as_their_networks(name: str, kind: str) -> None:
    algorithm: Any = new_algorithm(name, kind)
    for key, each in algorithm._trained.items():
        # Soft actors are asked for the next action themselves.
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
def test_what_is_trained_is_what_acts(name: str, kind: str) -> None:
    algorithm: Any = new_algorithm(name, kind)
    before = algorithm.policy.flat.clone()
    algorithm._trained["actor"].flat.add_(1.0)
    tensors = algorithm.policy.tensors()
    assert not torch.equal(algorithm.policy.flat, before)
    assert torch.equal(tensors["actor.0.weight"], algorithm._trained["actor"].network.weights[0])


def test_the_actor_of_td3_moves_in_every_second_step_over_updates_and_checkpoints() -> None:
    settings = {"updates_per_step": 0.15625, "learning_rate": 0.01}
    algorithm: Any = new_algorithm("td3", "continuous", **settings)
    course, moved, told = Course(algorithm, "continuous"), [], []
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
        told.append((named["policy_loss"], named["actor_gradient_norm"]))
        if step % 3 == 0:
            resumed: Any = new_algorithm("td3", "continuous", **settings)
            resumed.policy.load(algorithm.policy.flat)
            resumed.load_state_dict(algorithm.state_dict())
            algorithm = resumed
    # In between, what the actor said last is told again.
    assert told[0] == (0.0, 0.0)
    assert all(told[step] == told[step - 1] for step in range(2, 11, 2))
    assert len(set(told)) == 6


@pytest.mark.parametrize("delay", [1, 3])
def test_the_delay_of_td3_is_a_setting(delay: int) -> None:
    algorithm: Any = new_algorithm("td3", "continuous", policy_delay=delay)
    experience = Course(algorithm, "continuous").next()
    algorithm._train(experience, 7)
    assert algorithm.state_dict()["actor.optimizer.step"] == 7 // delay
    assert algorithm.state_dict()["critic.optimizer.step"] == 7

"""The classic control tasks step as Gymnasium's do, by numpy and by torch, with their own distribution of first
states."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators import make
from simulators.classic import FIRST_STATES, ClassicOnCpu, ClassicOnDevice
from simulators.classic_tasks import TASKS

GYMNASIUM = {
    "cartpole": "CartPole-v1",
    "pendulum": "Pendulum-v1",
    "acrobot": "Acrobot-v1",
    "mountaincar": "MountainCar-v0",
}
LANES = 8
Simulator = ClassicOnCpu | ClassicOnDevice


def on_cpu(id: str, count: int = LANES, steps: int = 0) -> ClassicOnCpu:
    task = TASKS[id]()
    return ClassicOnCpu(task, count, steps or task.maximum_steps)


def on_device(id: str, count: int = LANES, steps: int = 0) -> ClassicOnDevice:
    task = TASKS[id]()
    return ClassicOnDevice(task, count, steps or task.maximum_steps, "cpu")


def random_actions(simulator: Simulator, steps: int) -> Tensor:
    space, generator = simulator.action_space, torch.Generator().manual_seed(7)
    if space.kind == "discrete":
        return torch.randint(space.n, (steps, simulator.count), generator=generator)
    # Also beyond the bounds, to which the task clips.
    return 6.0 * torch.rand(steps, simulator.count, *space.shape, generator=generator) - 3.0


def state_of(environment: Any) -> Any:
    return np.asarray(environment.unwrapped.state, dtype=np.float64)


@pytest.mark.long
@pytest.mark.parametrize("id", TASKS)
def test_every_step_equals_gymnasiums(id: str) -> None:
    """From equal states throughout an episode; the reference is stepped in float64."""
    environment, simulator = gymnasium.make(GYMNASIUM[id]).unwrapped, on_cpu(id, 1)
    other = on_device(id, 1)
    actions, ends = random_actions(simulator, 600), 0
    for seed, action in enumerate(actions):
        if seed % 150 == 0:
            environment.reset(seed=seed)
        # Acrobot's reward and CartPole's step counter depend only on this.
        simulator.set_state(np.zeros(1, np.int64), state_of(environment).reshape(-1, 1).astype(np.float32))
        other._state.copy_(torch.from_numpy(state_of(environment).reshape(-1, 1)))
        choice = int(action) if simulator.action_space.kind == "discrete" else action.numpy().ravel()
        expected, reward, terminated, _, _ = environment.step(choice)
        for step in (simulator.step(action), other.step(action)):
            seen = step.final_observation if bool(step.terminated | step.truncated) else step.observation
            np.testing.assert_allclose(seen.numpy()[0], expected, rtol=1e-5, atol=2e-6)
            assert float(step.reward) == pytest.approx(float(reward), rel=1e-5, abs=1e-6)
            assert bool(step.terminated) == terminated
        if terminated:
            ends += 1
            environment.reset(seed=seed)
    assert ends or id != "cartpole"


def test_an_acrobot_that_is_high_enough_terminates_without_a_cost() -> None:
    for simulator in (on_cpu("acrobot", 1), on_device("acrobot", 1)):
        upright = torch.tensor([[3.1], [0.0], [0.0], [0.0]])
        simulator._state[:] = upright.numpy() if isinstance(simulator, ClassicOnCpu) else upright
        step = simulator.step(torch.ones(1, dtype=torch.int64))
        assert (bool(step.terminated), float(step.reward)) == (True, 0.0)


def test_a_car_that_reaches_the_flag_terminates() -> None:
    for simulator in (on_cpu("mountaincar", 1), on_device("mountaincar", 1)):
        near = torch.tensor([[0.49], [0.05]])
        simulator._state[:] = near.numpy() if isinstance(simulator, ClassicOnCpu) else near
        assert bool(simulator.step(torch.ones(1, dtype=torch.int64)).terminated)


@pytest.mark.parametrize("id", TASKS)
@pytest.mark.parametrize("build", [on_cpu, on_device])
def test_spaces_and_limits_equal_gymnasiums(id: str, build: Any) -> None:
    environment, simulator = gymnasium.make(GYMNASIUM[id]), build(id)
    space = simulator.observation_space
    np.testing.assert_allclose(space.low, environment.observation_space.low, rtol=1e-6)
    np.testing.assert_allclose(space.high, environment.observation_space.high, rtol=1e-6)
    assert environment.spec is not None
    for _ in range(environment.spec.max_episode_steps or 0):
        step = simulator.step(torch.zeros(LANES, *simulator.action_space.shape, dtype=simulator.action_space.dtype))
    ended_by_itself = id == "cartpole"
    assert ended_by_itself or step.truncated.all()
    assert not (step.truncated & step.terminated).any()


@pytest.mark.parametrize("id", TASKS)
@pytest.mark.parametrize("build", [on_cpu, on_device])
def test_first_states_are_drawn_over_gymnasiums_range(id: str, build: Any) -> None:
    simulator = build(id, 4096)
    mine = simulator.reset(3)
    environment = gymnasium.make(GYMNASIUM[id])
    theirs = np.stack([environment.reset(seed=seed)[0] for seed in range(1000)])
    low, high = mine.amin(0).numpy(), mine.amax(0).numpy()
    spread = theirs.max(0) - theirs.min(0)
    np.testing.assert_allclose(low, theirs.min(0), atol=0.02 * spread.max() + 1e-6)
    np.testing.assert_allclose(high, theirs.max(0), atol=0.02 * spread.max() + 1e-6)
    np.testing.assert_allclose(mine.mean(0).numpy(), theirs.mean(0), atol=0.06 * spread.max() + 1e-6)


def roll(simulator: Simulator, seed: int, actions: Tensor) -> list[Tensor]:
    seen = [simulator.reset(seed).clone()]
    for action in actions:
        step = simulator.step(action)
        seen += [tensor.clone() for tensor in (step.observation, step.reward, step.terminated, step.truncated)]
    return seen


@pytest.mark.parametrize("build", [on_cpu, on_device])
def test_the_same_seed_and_actions_give_the_same_steps_through_many_episodes(build: Any) -> None:
    simulator = build("cartpole", LANES, 3)
    actions = random_actions(simulator, 3 * FIRST_STATES + 10)
    first, second = roll(simulator, 5, actions), roll(simulator, 5, actions)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], roll(simulator, 6, actions[:1])[0])


def test_every_episode_starts_in_a_different_state() -> None:
    simulator = on_cpu("cartpole", LANES, 1)
    beginnings = [simulator.reset(1).clone()]
    actions = random_actions(simulator, 2 * FIRST_STATES + 3)
    beginnings += [simulator.step(action).observation.clone() for action in actions]
    rows = torch.cat(beginnings)
    assert len(rows.unique(dim=0)) == len(rows)


def test_a_lane_does_not_depend_on_the_number_of_lanes() -> None:
    many, few = on_cpu("cartpole", 16, 5), on_cpu("cartpole", 4, 5)
    actions = random_actions(many, 200)
    for whole, part in zip(roll(many, 9, actions), roll(few, 9, actions[:, :4]), strict=True):
        assert torch.equal(whole[:4], part)


def test_only_lanes_that_ended_restart() -> None:
    for simulator in (on_cpu("cartpole"), on_device("cartpole")):
        simulator.reset(2)
        before = simulator._state.copy() if isinstance(simulator, ClassicOnCpu) else simulator._state.clone()
        before[2, 3] = 1.0
        simulator._state[:] = before
        step = simulator.step(torch.ones(LANES, dtype=torch.int64))
        assert step.terminated.tolist() == [lane == 3 for lane in range(LANES)]
        assert step.observation[3].abs().max() <= 0.05
        assert step.final_observation[3, 2] > 0.99
        assert (step.observation[:3, 1] > 0.1).all(), "they were pushed to the right and continue"


def test_options_are_checked() -> None:
    assert bool(make("pendulum", 2, {"max_episode_steps": 1}).step(torch.zeros(2, 1)).truncated.all())
    with pytest.raises(InvalidArgument, match="cartpole: unknown option 'steps'"):
        make("cartpole", 2, {"steps": 5})
    with pytest.raises(InvalidArgument, match="cartpole: option 'max_episode_steps' must be at least 1, or 0"):
        make("cartpole", 2, {"max_episode_steps": -5})

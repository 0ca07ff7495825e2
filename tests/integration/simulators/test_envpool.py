import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from podrace.errors import DataLoss, InvalidArgument
from podrace.spaces.entries import flattened, mask_columns
from simulators import Simulator, make
from simulators.gym.simulator import lane_seeds

if TYPE_CHECKING:
    from envpool import GymnasiumEnvPool
    from numpy.typing import NDArray

COUNT = 4


def pool(task: str, seed: int, **config: object) -> "GymnasiumEnvPool":
    # Importing it takes as long as importing torch, in each process that collects the tests.
    import envpool

    seeds = [lane_seed % 2**31 for lane_seed in lane_seeds(seed, COUNT)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = envpool.make_gymnasium(task, num_envs=COUNT, env_seed=seeds, **config)
        assert made.action_space is not None  # created, with a warning, on first access
    return made


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
@pytest.mark.parametrize(("task", "limit"), [("CartPole-v1", 500), ("Pendulum-v1", 9), ("HalfCheetah-v5", 15)])
def test_steps_equal_those_of_the_pool_without_the_step_it_ignores(task: str, limit: int) -> None:
    simulator = make(f"envpool:{task}", COUNT, {"max_episode_steps": limit, "threads": 2})
    reference = pool(task, 7, max_episode_steps=limit)
    generator = np.random.default_rng(0)
    np.testing.assert_array_equal(simulator.reset(7), reference.reset()[0].astype(np.float32))
    ends = 0
    for _ in range(40):
        actions = generator.integers(0, 2, COUNT)
        if simulator.action_space.kind == "continuous":
            actions = generator.uniform(-1, 1, (COUNT, *simulator.action_space.shape)).astype(np.float32)
        step = simulator.step(torch.from_numpy(actions))
        observation, reward, terminated, truncated, _ = reference.step(actions.astype(reference.action_space.dtype))
        np.testing.assert_array_equal(step.reward, reward)
        np.testing.assert_array_equal(step.terminated, terminated)
        np.testing.assert_array_equal(step.truncated, truncated)
        ended = np.flatnonzero(terminated | truncated).astype(np.int32)
        if len(ended):
            np.testing.assert_array_equal(step.final_observation[ended], observation[ended].astype(np.float32))
            observation[ended] = reference.reset(ended)[0]
            ends += len(ended)
        np.testing.assert_array_equal(step.observation, observation.astype(np.float32))
    assert ends >= COUNT
    simulator.close()


def test_a_termination_in_the_last_step_of_the_limit_is_a_termination() -> None:
    # The pool itself reports a truncation.
    unlimited = make("envpool:CartPole-v1", COUNT, seed=3)
    push = torch.zeros(COUNT, dtype=torch.int64)
    died, length = torch.zeros(COUNT, dtype=torch.bool), 0
    while not died.any():
        died, length = unlimited.step(push).terminated.clone(), length + 1
    limited = make("envpool:CartPole-v1", COUNT, {"max_episode_steps": length}, seed=3)
    step = [limited.step(push) for _ in range(length)][-1]
    assert step.terminated.tolist() == died.tolist()
    assert step.truncated.tolist() == (~died).tolist()
    assert step.terminated.any()


def test_lanes_do_not_depend_on_their_number_or_the_threads() -> None:
    few, many = make("envpool:CartPole-v1", 2), make("envpool:CartPole-v1", 6, {"threads": 3})
    assert torch.equal(few.reset(5), many.reset(5)[:2])
    for step in range(40):
        action = torch.full((6,), step % 2)
        assert torch.equal(few.step(action[:2]).observation, many.step(action).observation[:2])


def test_the_same_seed_starts_the_same_episodes_and_another_does_not() -> None:
    simulator = make("envpool:Acrobot-v1", COUNT)
    first = simulator.reset(1).clone()
    assert not torch.equal(simulator.reset(2), first)
    assert torch.equal(simulator.reset(1), first)


def test_images_are_bytes_and_choices_are_one_hot() -> None:
    images = make("envpool:Breakout-v5", 2)
    assert (images.observation_space.shape, images.observation_space.dtype) == ((4, 84, 84), torch.uint8)
    assert images.reset(0).dtype == torch.uint8
    lake = make("envpool:FrozenLake-v1", 2)
    assert lake.reset(0).tolist() == [[1.0] + [0.0] * 15] * 2


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
@pytest.mark.parametrize("task", ["Game2048-v1", "WalkerWalk-v1", "Parking-v0"])
def test_dict_observations_are_rows_of_their_entries(task: str) -> None:
    simulator, reference = make(f"envpool:{task}", COUNT, {"max_episode_steps": 6}), pool(task, 7, max_episode_steps=6)
    entries = simulator.observation_space.entries
    assert (mask_columns(entries) is not None) == (task == "Game2048-v1")
    same = make(f"envpool:{task}", COUNT + 1, {"max_episode_steps": 6})
    rows = simulator.reset(7)
    same.reset(7)
    generator = np.random.default_rng(0)
    np.testing.assert_array_equal(rows, flattened(entries, reference.reset()[0], COUNT))
    for number in range(1, 9):
        actions = drawn(simulator, rows, generator)
        step = simulator.step(torch.from_numpy(actions))
        received, *_ = reference.step(actions.astype(reference.action_space.dtype))
        wanted = flattened(entries, received, COUNT)
        # Some tasks of EnvPool have no limit of their own.
        ended = np.flatnonzero(step.terminated | step.truncated).astype(np.int32)
        assert list(ended) == ([*range(COUNT)] if number == 6 else [])
        if len(ended):
            np.testing.assert_array_equal(step.final_observation, wanted)
            wanted = flattened(entries, reference.reset(ended)[0], COUNT)
        np.testing.assert_array_equal(step.observation, wanted)
        following = same.step(torch.from_numpy(np.concatenate((actions, actions[:1]))))
        np.testing.assert_array_equal(following.observation[:COUNT], step.observation)
        rows = step.observation


def drawn(simulator: Simulator, rows: torch.Tensor, generator: np.random.Generator) -> "NDArray[Any]":
    """Returns actions that are valid by the mask of the rows."""
    if simulator.action_space.kind == "continuous":
        return generator.uniform(-1, 1, (COUNT, *simulator.action_space.shape)).astype(np.float32)
    return np.asarray(rows[:, mask_columns(simulator.observation_space.entries)].argmax(1))


def test_a_number_that_is_not_finite_is_named_with_its_lane_and_step() -> None:
    simulator = make("envpool:Pendulum-v1", COUNT, seed=0)
    simulator.step(torch.zeros(COUNT, 1))
    action = torch.tensor([[0.0], [0.0], [torch.nan], [0.0]])
    with pytest.raises(DataLoss, match=r"envpool:Pendulum-v1: lane 2 returned an observation or a reward .* at step 2"):
        simulator.step(action)


@pytest.mark.parametrize(
    ("id", "options", "line"),
    [
        ("envpool:CartPol-v1", {}, "EnvPool has no task 'CartPol-v1'; did you mean 'CartPole-v1'"),
        ("envpool:qqq", {}, "EnvPool has no task 'qqq'; envpool.list_all_envs"),
        ("envpool:Ant-v5", {"frame_skips": 1}, "unknown option 'frame_skips'; did you mean 'frame_skip'"),
        ("envpool:Ant-v5", {"seed": 1}, "unknown option 'seed'"),
        ("envpool:Ant-v5", {"frame_skip": "a"}, "option 'frame_skip' must be int, not 'a'"),
        ("envpool:Ant-v5", {"threads": -1}, "option 'threads' must be at least 0, not -1"),
        ("envpool:Ant-v5", {"max_episode_steps": 0}, "option 'max_episode_steps' must be at least 1, not 0"),
        ("envpool:Ant-v5", {"xml_file": "absent.xml"}, "EnvPool refuses its options: ParseXML: Error opening file"),
    ],
)
def test_an_impossible_task_or_option_is_refused_in_one_line(id: str, options: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidArgument, match=line) as caught:
        make(id, 2, options)
    assert caught.value.message.startswith(f"{id}: ")
    assert "\n" not in caught.value.message


def test_an_option_reaches_the_environment() -> None:
    plain, other = (make("envpool:Ant-v5", 1, options, seed=0) for options in ({}, {"healthy_reward": 3}))
    action = torch.zeros(1, 8)
    assert (other.step(action).reward - plain.step(action).reward).item() == pytest.approx(2.0, abs=1e-5)

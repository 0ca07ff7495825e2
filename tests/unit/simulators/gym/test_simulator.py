from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from podrace.errors import InvalidArgument, Unimplemented
from simulators import make
from simulators.gym.simulator import GymSimulator, lane_seeds


class Countdown(gymnasium.Env[Any, Any]):
    """Returns observations of its space, records every action, and has episodes of three steps."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.actions: list[Any] = []
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.steps += 1
        # Both are set at the end: the termination counts, the time limit does not.
        return self.observation_space.sample(), 1.0, self.steps == 3, self.steps == 3, {}


def missing_engine(**options: object) -> gymnasium.Env[Any, Any]:
    raise gymnasium.error.DependencyNotInstalled('The engine is missing,\n run `pip install "engine"`')


@pytest.fixture
def missing_engine_id() -> Iterator[str]:
    id = "MissingEngine-v0"
    gymnasium.register(id, entry_point=missing_engine)
    yield id
    del gymnasium.registry[id]


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "Ant-v5"])
def test_every_lane_is_the_gymnasium_environment_stepped_alone(id: str) -> None:
    count, generator = 3, np.random.default_rng(0)
    simulator = make(id, count, {"max_episode_steps": 12})
    environments = [gymnasium.make(id, max_episode_steps=12) for _ in range(count)]
    space = environments[0].action_space
    observations = simulator.reset(7).clone()
    for lane, seed in enumerate(lane_seeds(7, count)):
        np.testing.assert_array_equal(observations[lane], environments[lane].reset(seed=seed)[0].astype(np.float32))
    for _ in range(40):
        actions: NDArray[Any] = generator.integers(0, 2, count)
        if isinstance(space, spaces.Box):
            actions = generator.uniform(space.low, space.high, (count, *space.shape)).astype(np.float32)
        step = simulator.step(torch.from_numpy(actions))
        for lane, environment in enumerate(environments):
            native = actions[lane] if isinstance(space, spaces.Box) else int(actions[lane])
            observation, reward, terminated, truncated, _ = environment.step(native)
            ended = terminated or truncated
            assert (bool(step.terminated[lane]), bool(step.truncated[lane])) == (terminated, ended and not terminated)
            assert step.reward[lane].item() == np.float32(reward)
            if ended:
                np.testing.assert_array_equal(step.final_observation[lane], observation.astype(np.float32))
                observation, _ = environment.reset()
            np.testing.assert_array_equal(step.observation[lane], observation.astype(np.float32))


def test_a_time_limit_truncates_and_does_not_terminate() -> None:
    simulator = make("Pendulum-v1", 2, {"max_episode_steps": 4})
    simulator.reset(0)
    flags = [simulator.step(torch.zeros(2, 1)).truncated.tolist() for _ in range(8)]
    assert flags == [[False] * 2] * 3 + [[True] * 2] + [[False] * 2] * 3 + [[True] * 2]


def test_the_seed_of_a_lane_does_not_depend_on_the_number_of_lanes() -> None:
    assert lane_seeds(5, 3) == lane_seeds(5, 8)[:3]
    assert len(set(lane_seeds(5, 64)) | set(lane_seeds(6, 64))) == 128


def test_truncated_is_false_where_terminated() -> None:
    simulator = GymSimulator("countdown", [Countdown(spaces.Box(0, 1, (2,)), spaces.Discrete(2))])
    simulator.reset(0)
    step = [simulator.step(torch.tensor([0])) for _ in range(3)][-1]
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True], [False])


def test_discrete_observations_are_one_hot_from_the_start_of_their_space() -> None:
    space = spaces.Discrete(3, start=5)
    simulator = GymSimulator("countdown", [Countdown(space, spaces.Discrete(2))])
    assert simulator.observation_space.shape == (3,)
    # `Space.n` is the number of choices from 0.
    numbered = GymSimulator("countdown", [Countdown(spaces.Discrete(3), spaces.Discrete(2))]).observation_space
    assert (simulator.observation_space.n, numbered.n) == (0, 3)
    for seed in range(6):
        observation = simulator.reset(seed)
        space.seed(lane_seeds(seed, 1)[0])
        expected = [0.0, 0.0, 0.0]
        expected[int(space.sample()) - 5] = 1.0
        assert observation[0].tolist() == expected


def test_discrete_actions_count_from_zero_for_any_start_of_their_space() -> None:
    environment = Countdown(spaces.Box(0, 1, (2,)), spaces.Discrete(3, start=-1))
    simulator = GymSimulator("countdown", [environment])
    simulator.reset(0)
    for choice in range(3):
        simulator.step(torch.tensor([choice]))
    assert environment.actions == [-1, 0, 1]


@pytest.mark.parametrize(("given", "kept"), [(np.uint8, np.uint8), (np.float64, np.float32), (np.int64, np.float32)])
def test_images_stay_bytes_and_everything_else_becomes_float32(given: type, kept: type) -> None:
    space = spaces.Box(0, 200, (2, 3), given)
    simulator = GymSimulator("countdown", [Countdown(space, spaces.Discrete(2))])
    observation = simulator.reset(0)
    space.seed(lane_seeds(0, 1)[0])
    np.testing.assert_array_equal(observation[0], space.sample().astype(kept))
    assert observation.dtype == simulator.observation_space.dtype == torch.from_numpy(np.zeros(1, kept)).dtype


def test_actions_arrive_in_the_type_of_the_environments_space() -> None:
    environment = Countdown(spaces.Box(0, 1, (2,)), spaces.Box(-1, 1, (2,), np.float64))
    GymSimulator("countdown", [environment]).step(torch.tensor([[0.5, -0.5]]))
    assert environment.actions[0].dtype == np.float64
    assert environment.actions[0].tolist() == [0.5, -0.5]


def test_bounds_are_flat_and_none_when_nothing_is_bounded() -> None:
    half_open = spaces.Box(np.array([[0.0, -np.inf]], np.float32), np.array([[np.inf, np.inf]], np.float32))
    space = GymSimulator("countdown", [Countdown(half_open, spaces.Discrete(2))]).observation_space
    assert (space.low, space.high) == ((0.0, -np.inf), None)


@pytest.mark.parametrize("space", [spaces.Dict({"a": spaces.Text(2)}), spaces.Sequence(spaces.Discrete(2))])
def test_structured_spaces_are_refused_with_their_name(space: spaces.Space[Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"countdown: observation space {type(space).__name__}.*is not supported"):
        GymSimulator("countdown", [Countdown(space, spaces.Discrete(2))])
    with pytest.raises(InvalidArgument, match=f"countdown: action space {type(space).__name__}.*is not supported"):
        GymSimulator("countdown", [Countdown(spaces.Discrete(2), space)])


def test_a_missing_engine_is_reported_in_one_line_that_says_what_to_install(missing_engine_id: str) -> None:
    with pytest.raises(Unimplemented) as caught:
        make(missing_engine_id, 1)
    assert caught.value.message == f'{missing_engine_id}: The engine is missing, run `pip install "engine"`'

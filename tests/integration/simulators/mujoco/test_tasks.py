"""Compares the tasks with Gymnasium step by step: both are put into equal states and receive equal actions."""

import inspect
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from podrace.errors import InvalidArgument
from podrace.specification import catalog
from simulators import SIMULATORS, make
from simulators.mujoco.simulator import MujocoSimulator
from simulators.mujoco.tasks import TASKS

LANES = 3
STEPS = 200
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((task, {}) for task in TASKS),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "frame_skip": 2, "healthy_z_range": [0.6, 0.9]}),
    ("Ant-v5", {"contact_cost_weight": 0.0, "contact_force_range": [-50, 50], "healthy_reward": 0.25}),
    ("Ant-v5", {"contact_cost_weight": 0.0, "include_cfrc_ext_in_observation": False, "forward_reward_weight": 3}),
    ("Humanoid-v5", {"include_cinert_in_observation": False, "include_qfrc_actuator_in_observation": False}),
    (
        "Humanoid-v5",
        {"contact_cost_weight": 1e-3, "contact_cost_range": [0.1, 0.5], "include_cvel_in_observation": False},
    ),
    ("Humanoid-v5", {"contact_cost_weight": 0.0, "contact_cost_range": [0.1, 0.5], "frame_skip": 3}),
    ("HalfCheetah-v5", {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 2.0}),
    ("Hopper-v5", {"healthy_state_range": [-2.5, 2.5], "healthy_angle_range": [-1.0, 1.0], "ctrl_cost_weight": 0.5}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}),
    ("Walker2d-v5", {"healthy_angle_range": [-0.3, 0.3], "healthy_z_range": [1.0, 1.5], "reset_noise_scale": 0.05}),
]


class Pair:
    """The lanes of a simulator, and as many environments of Gymnasium."""

    def __init__(self, task: str, options: dict[str, Any]) -> None:
        ours = make(f"mujoco:{task}", LANES, options)
        assert isinstance(ours, MujocoSimulator)
        self.ours = ours
        self.environments = [gymnasium.make(task, **options) for _ in range(LANES)]
        self.generator = np.random.default_rng(7)
        for lane, environment in enumerate(self.environments):
            environment.reset(seed=lane)
        self.begin(np.arange(LANES))

    def states(self, name: str, lanes: np.ndarray) -> np.ndarray:
        return np.stack([getattr(self.environments[lane].unwrapped.data, name).copy() for lane in lanes])

    def begin(self, lanes: np.ndarray) -> None:
        """Puts lanes into the states of Gymnasium's environments."""
        observation = self.ours.set_state(lanes, self.states("qpos", lanes), self.states("qvel", lanes)).numpy()
        expected = [self.environments[lane].unwrapped._get_obs() for lane in lanes]
        np.testing.assert_array_equal(observation[lanes], np.float32(expected))

    def step(self) -> list[tuple[int, bool]]:
        """Steps both, compares all results, resets ended episodes; returns (lane, truncated) of each."""
        space = self.environments[0].action_space
        action = self.generator.uniform(space.low, space.high, (LANES, *space.shape)).astype(np.float32)
        step = self.ours.step(torch.from_numpy(action))
        ended = []
        for lane, environment in enumerate(self.environments):
            observation, reward, terminated, truncated, _ = environment.step(action[lane])
            assert bool(step.terminated[lane]) == terminated
            assert bool(step.truncated[lane]) == (truncated and not terminated)
            seen = step.final_observation if terminated or truncated else step.observation
            np.testing.assert_array_equal(seen[lane].numpy(), np.float32(observation))
            # Gymnasium computes the cost of an action in float32.
            np.testing.assert_allclose(step.reward[lane].item(), reward, rtol=1e-6, atol=1e-6)
            if terminated or truncated:
                environment.reset()
                ended.append((lane, truncated))
        return ended


@pytest.mark.parametrize(("task", "options"), VARIANTS)
def test_every_step_equals_gymnasiums(task: str, options: dict[str, Any]) -> None:
    pair = Pair(task, options)
    ends = 0
    for _ in range(STEPS):
        going_on = set(range(LANES))
        for lane, _ in (ended := pair.step()):
            pair.begin(np.array([lane]))
            going_on.remove(lane)
        ends += len(ended)
        lanes = np.array(sorted(going_on), dtype=int)
        if len(lanes):
            np.testing.assert_array_equal(pair.ours.physics.qpos[lanes], pair.states("qpos", lanes))
            np.testing.assert_array_equal(pair.ours.physics.qvel[lanes], pair.states("qvel", lanes))
    can_end = task != "HalfCheetah-v5" and options.get("terminate_when_unhealthy", True)
    assert (ends > 0) == can_end


@pytest.mark.parametrize(("task", "limit"), [("HalfCheetah-v5", 1000), ("Ant-v5", 1000), ("Hopper-v5", 13)])
def test_every_lane_is_truncated_at_its_own_time_limit(task: str, limit: int) -> None:
    options: dict[str, object] = {"frame_skip": 1}
    if task != "HalfCheetah-v5":
        options["terminate_when_unhealthy"] = False
    if limit != 1000:
        options["max_episode_steps"] = limit
    simulator = make(f"mujoco:{task}", 2, options)
    assert isinstance(simulator, MujocoSimulator)
    still, model = torch.zeros(2, *simulator.action_space.shape), simulator.physics.model
    cut = []
    for step_number in range(1, limit + 6):
        step = simulator.step(still)
        assert not step.terminated.any()
        cut += [(step_number, lane) for lane in step.truncated.nonzero().flatten().tolist()]
        if step_number == 5:
            simulator.set_state(np.array([1]), model.qpos0[None], np.zeros((1, model.nv)))
    assert cut == [(limit, 0), (limit + 5, 1)]


def test_a_fall_in_the_last_step_terminates_and_does_not_truncate() -> None:
    simulator = make("mujoco:Hopper-v5", 2, {"max_episode_steps": 1})
    assert isinstance(simulator, MujocoSimulator)
    fallen = simulator.physics.model.qpos0.copy()
    fallen[2] = 1.5
    simulator.set_state(np.array([1]), fallen[None], np.zeros((1, 6)))
    step = simulator.step(torch.zeros(2, 3))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([False, True], [True, False])


@pytest.mark.parametrize("lane_state", [math.nan, math.inf])
def test_an_ant_with_a_non_finite_state_is_not_healthy(lane_state: float) -> None:
    simulator = make("mujoco:Ant-v5", 2)
    assert isinstance(simulator, MujocoSimulator)
    simulator.physics.qvel[1, 3] = lane_state
    healthy = simulator._task.healthy()
    assert healthy is not None
    assert healthy.tolist() == [True, False]


def test_a_hopper_with_any_number_out_of_range_is_not_healthy() -> None:
    options = {"healthy_state_range": [-1, 1], "healthy_angle_range": [-9, 9]}
    simulator = make("mujoco:Hopper-v5", 12, options)
    assert isinstance(simulator, MujocoSimulator)
    # In lane i the i-th number is out of range; x may have any value, z any below infinity.
    simulator.physics.positions_and_velocities[:] += 2 * np.eye(12)
    healthy = simulator._task.healthy()
    assert healthy is not None
    assert healthy.tolist() == [True, True] + [False] * 10


@pytest.mark.parametrize("task", TASKS)
def test_options_have_the_names_and_defaults_of_gymnasiums_constructor(task: str) -> None:
    parameters = inspect.signature(type(gymnasium.make(task).unwrapped).__init__).parameters
    not_ours = {"self", "kwargs", "xml_file", "default_camera_config", "main_body"}
    theirs = {name: entry.default for name, entry in parameters.items() if name not in not_ours}
    ours = dict(vars(TASKS[task].options_class()))
    assert ours.pop("threads") == 0
    assert ours.pop("max_episode_steps") == gymnasium.spec(task).max_episode_steps
    assert ours == theirs


@pytest.mark.parametrize("task", TASKS)
def test_spaces_equal_gymnasiums(task: str) -> None:
    simulator, environment = make(f"mujoco:{task}", 1), gymnasium.make(task)
    assert simulator.observation_space.shape == environment.observation_space.shape
    assert simulator.action_space.low == tuple(environment.action_space.low.tolist())
    assert simulator.action_space.high == tuple(environment.action_space.high.tolist())


def test_all_tasks_are_simulators_and_in_the_catalog() -> None:
    ids = {f"mujoco:{task}" for task in TASKS}
    assert ids == {id for id in SIMULATORS if id.startswith("mujoco:")}
    assert ids == {id for id in catalog.SIMULATORS if id.startswith("mujoco:")}


@pytest.mark.parametrize(
    ("task", "options", "line"),
    [
        ("Ant-v4", {}, "mujoco: has no task 'Ant-v4'; did you mean 'Ant-v5'\\? \\(tasks: Ant-v5, .*one by one"),
        ("Swimmer-v5", {}, "no task 'Swimmer-v5'.*without the prefix"),
        ("Ant-v5", {"frame_skips": 5}, "mujoco:Ant-v5: unknown option 'frame_skips'; did you mean 'frame_skip'"),
        ("Hopper-v5", {"contact_cost_weight": 1.0}, "unknown option 'contact_cost_weight'"),
        ("Ant-v5", {"frame_skip": 0}, "mujoco:Ant-v5: option 'frame_skip' must be at least 1, not 0"),
        ("Ant-v5", {"threads": -1}, "'threads' must be at least 0, not -1"),
        ("Ant-v5", {"max_episode_steps": 0}, "'max_episode_steps' must be at least 1"),
        ("Ant-v5", {"reset_noise_scale": -0.1}, "'reset_noise_scale' must be at least 0"),
        ("Ant-v5", {"reset_noise_scale": math.nan}, "'reset_noise_scale' must be at least 0"),
        ("Ant-v5", {"healthy_reward": "much"}, "'healthy_reward' must be float, not 'much'"),
        ("Ant-v5", {"healthy_z_range": 0.2}, "'healthy_z_range' must be a list of two numbers, not 0.2"),
        ("Ant-v5", {"healthy_z_range": [0.2, True]}, "'healthy_z_range' must be a list of two numbers"),
        ("Ant-v5", {"healthy_z_range": [0.1, 0.2, 0.3]}, "'healthy_z_range' must be a list of two numbers"),
        (
            "Hopper-v5",
            {"healthy_z_range": [2, 1]},
            "'healthy_z_range' must be \\[low, high\\] with low <= high, not \\[2.0, 1.0\\]",
        ),
    ],
)
def test_an_invalid_option_is_refused_in_one_line(task: str, options: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidArgument, match=line) as caught:
        make(f"mujoco:{task}", 1, options)
    assert "\n" not in caught.value.message

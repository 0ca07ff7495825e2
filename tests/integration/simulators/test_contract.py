"""One suite for every implementation of the Simulator interface."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray
from torch import Tensor

from agentpod.roles.repeatability import find_difference
from simulators import Simulator, Space, make
from simulators.classic import ClassicOnDevice
from simulators.classic_tasks import CartPole
from simulators.gym.simulator import GymSimulator
from simulators.wrappers import parse, wrap

# On a machine without compiled kernels, the first test waits for those of a body.
pytestmark = pytest.mark.timeout(600)
COUNT = 5
WRAPPED: list[dict[str, Any]] = [
    {"name": "time_limit", "steps": 70},
    {"name": "clip_actions"},
    {"name": "normalize_observations"},
    {"name": "normalize_rewards"},
    {"name": "frame_stack"},
]


def wrapped(*tables: dict[str, Any]) -> Simulator:
    return make("pendulum", COUNT, {"max_episode_steps": 7, "wrappers": list(tables)})


class Camera(GymSimulator):
    """Pendulums observed as pictures: each column is a bar as high as an element of the observation."""

    def __init__(self) -> None:
        environments = [gymnasium.make("Pendulum-v1", max_episode_steps=7) for _ in range(COUNT)]
        super().__init__(
            "camera",
            [
                gymnasium.wrappers.TransformObservation(environment, self.picture, self.space)
                for environment in environments
            ],
        )

    space = gymnasium.spaces.Box(0, 255, (90, 96, 3), np.uint8)

    @staticmethod
    def picture(observation: NDArray[Any]) -> NDArray[np.uint8]:
        heights = (45 + 40 * np.tanh(observation)).repeat(32)
        bars = 255 * np.clip(heights - np.arange(90)[:, None], 0, 1)
        return np.repeat(bars[:, :, None], 3, 2).astype(np.uint8)


IMPLEMENTATIONS: dict[str, Callable[[], Simulator]] = {
    "gym, discrete actions": lambda: make("CartPole-v1", COUNT),
    "gym, continuous actions": lambda: make("Pendulum-v1", COUNT, {"max_episode_steps": 7}),
    "gym, discrete observations": lambda: make("FrozenLake-v1", COUNT),
    "gym, processes": lambda: make("gym:CartPole-v1", COUNT, {"processes": 2}),
    "envpool, discrete actions": lambda: make("envpool:CartPole-v1", COUNT),
    "envpool, continuous actions": lambda: make("envpool:Hopper-v5", COUNT, {"max_episode_steps": 20, "threads": 2}),
    "atari": lambda: make("atari:Breakout", COUNT, {"max_episode_steps": 10, "maximum_noops": 4}),
    **{f"wrapped in {table['name']}": lambda table=table: wrapped(table) for table in WRAPPED},
    "wrapped in pixels": lambda: wrap(Camera(), parse("camera", [{"name": "pixels"}]), "cpu"),
    "wrapped in several": lambda: wrapped(*WRAPPED),
    "stocks, windows": lambda: make("stocks", COUNT, {"episode_days": 20}),
    "stocks, whole split": lambda: make("stocks", COUNT, {"train_end": "2005-01-01"}),
    "stocks, staggered": lambda: make("stocks", COUNT, {"layout": "finrl", "episode_days": 20, "staggered": True}),
    "stocks, minutes": lambda: make(
        "stocks", COUNT, {"layout": "minute", "path": "synthetic:minute?days=20&bar_minutes=30", "episode_days": 2}
    ),
    "classic, discrete actions": lambda: make("cartpole", COUNT),
    "classic, continuous actions": lambda: make("pendulum", COUNT, {"max_episode_steps": 7}),
    "classic by torch": lambda: ClassicOnDevice(CartPole(), COUNT, 500, "cpu"),
    "games, boards": lambda: make("game:connect-four", COUNT),
    "games, tables": lambda: make("game:rock-paper-scissors", COUNT),
    "mujoco, bodies that fall": lambda: make("mujoco:Hopper-v5", COUNT, {"threads": 2}),
    "mujoco, contact forces": lambda: make("mujoco:Ant-v5", COUNT, {"max_episode_steps": 20}),
    "warp, gymnasium": lambda: make("warp:ant", COUNT, {"max_episode_steps": 20}),
    "warp, isaac": lambda: make("warp:humanoid", COUNT, {"max_episode_steps": 20, "style": "isaac"}),
}


class Lane(gymnasium.Env[NDArray[Any], Any]):
    """The first lane of a simulator as a Gymnasium environment."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        space, action_space = simulator.observation_space, simulator.action_space
        self.observation_space = self._box(space)
        self.action_space = gymnasium.spaces.Discrete(action_space.n) if action_space.n else self._box(action_space)

    @staticmethod
    def _box(space: Space) -> gymnasium.spaces.Box:
        low, high = np.array(space.low or -np.inf), np.array(space.high or np.inf)
        dtype: Any = np.uint8 if space.dtype == torch.uint8 else np.float32
        shape = space.shape
        low, high = (np.broadcast_to(bound.reshape(shape if bound.ndim else ()), shape) for bound in (low, high))
        return gymnasium.spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.simulator.reset(int(self.np_random.integers(2**31)))[0].clone().numpy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self.simulator.step(torch.as_tensor(np.stack([action] * COUNT)))
        over = bool(step.terminated[0] | step.truncated[0])
        observation = (step.final_observation if over else step.observation)[0].clone().numpy()
        return observation, step.reward[0].item(), bool(step.terminated[0]), bool(step.truncated[0]), {}


@pytest.fixture(params=IMPLEMENTATIONS)
def simulator(request: pytest.FixtureRequest) -> Iterator[Simulator]:
    made = IMPLEMENTATIONS[request.param]()
    yield made
    made.close()


def random_action(space: Space, generator: torch.Generator) -> Tensor:
    if space.kind == "discrete":
        return torch.randint(space.n, (COUNT,), generator=generator)
    if space.low is None or space.high is None:
        return 2 * torch.randn((COUNT, *space.shape), generator=generator)
    low, high = torch.tensor(space.low).view(space.shape), torch.tensor(space.high).view(space.shape)
    return low + (high - low) * torch.rand((COUNT, *space.shape), generator=generator)


def roll(simulator: Simulator, steps: int, seed: int) -> list[Tensor]:
    """Returns copies of all results of random actions, flattened into one list."""
    generator = torch.Generator().manual_seed(0)
    seen = [simulator.reset(seed).clone()]
    for _ in range(steps):
        step = simulator.step(random_action(simulator.action_space, generator))
        ended = (step.terminated | step.truncated).view(-1, *[1] * (step.observation.dim() - 1))
        final_observation = torch.where(ended, step.final_observation, 0)
        tensors = (step.observation, step.reward, step.terminated, step.truncated, final_observation)
        seen += [tensor.clone() for tensor in tensors]
    return seen


def test_tensors_have_the_shapes_and_types_that_the_spaces_state(simulator: Simulator) -> None:
    space, generator = simulator.observation_space, torch.Generator().manual_seed(0)
    assert simulator.count == COUNT
    assert simulator.reset(3).shape == (COUNT, *space.shape)
    step = simulator.step(random_action(simulator.action_space, generator))
    for observation in (step.observation, step.final_observation):
        assert (observation.shape, observation.dtype) == ((COUNT, *space.shape), space.dtype)
    assert (step.reward.shape, step.reward.dtype) == ((COUNT,), torch.float32)
    for flag in (step.terminated, step.truncated):
        assert (flag.shape, flag.dtype) == ((COUNT,), torch.bool)


def test_the_same_seed_and_actions_give_the_same_steps(simulator: Simulator) -> None:
    first, second = roll(simulator, 50, seed=11), roll(simulator, 50, seed=11)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_evaluations_recognize_that_episodes_are_repeated(simulator: Simulator) -> None:
    assert find_difference(simulator, 3) == ""


# Running statistics cover all lanes.
SHARED = ("wrapped in normalize_observations", "wrapped in normalize_rewards", "wrapped in several")


@pytest.mark.parametrize("simulator", [name for name in IMPLEMENTATIONS if name not in SHARED], indirect=True)
def test_a_first_episode_does_not_depend_on_what_other_lanes_do(simulator: Simulator) -> None:
    """Episode i of an evaluation is lane i of a batch: other policies must meet the same episode."""

    def first_episode_of_lane_0(seed_of_others: int) -> list[Tensor]:
        own, others = torch.Generator().manual_seed(1), torch.Generator().manual_seed(seed_of_others)
        seen = [simulator.reset(9)[0].clone()]
        for _ in range(60):
            action = random_action(simulator.action_space, others)
            action[0] = random_action(simulator.action_space, own)[0]
            step = simulator.step(action)
            over = bool(step.terminated[0] | step.truncated[0])
            observation = (step.final_observation if over else step.observation)[0].clone()
            seen += [observation, step.reward[0].clone()]
            if over:
                break
        return seen

    first, second = first_episode_of_lane_0(2), first_episode_of_lane_0(3)
    assert len(first) == len(second)
    # The lanes of a physics engine are computed together, in an order that may change the last digits.
    assert all(torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "id", ["CartPole-v1", "cartpole", "pendulum", "envpool:CartPole-v1", "mujoco:Hopper-v5", "gym:Pendulum-v1"]
)
def test_a_lane_starts_in_the_same_way_for_every_number_of_lanes(id: str) -> None:
    few, many = make(id, 2), make(id, 6)
    assert torch.equal(few.reset(4), many.reset(4)[:2])
    few.close()
    many.close()


def test_an_episode_ends_in_exactly_one_way_and_restarts_in_the_same_step(simulator: Simulator) -> None:
    simulator.reset(0)
    generator = torch.Generator().manual_seed(1)
    ends = 0
    for _ in range(60):
        step = simulator.step(random_action(simulator.action_space, generator))
        assert not (step.terminated & step.truncated).any()
        ended = step.terminated | step.truncated
        differs = (step.observation != step.final_observation).flatten(1).any(1)
        assert differs[ended].all()
        ends += int(ended.sum())
    assert ends >= COUNT


def test_observations_are_finite(simulator: Simulator) -> None:
    assert all(torch.isfinite(tensor).all() for tensor in roll(simulator, 60, seed=2))


# The checker resets a dozen times, and each time ALE loads its game again for every lane.
@pytest.mark.parametrize("simulator", [name for name in IMPLEMENTATIONS if name != "atari"], indirect=True)
@pytest.mark.filterwarnings("ignore:.*(probably too|recommend using a symmetric|not having a spec)")
@pytest.mark.filterwarnings("error")
def test_a_lane_is_an_environment_that_gymnasiums_checker_accepts(simulator: Simulator) -> None:
    check_env(Lane(simulator), skip_render_check=True)


@pytest.mark.parametrize(
    "name",
    [
        "gym, discrete actions",
        "gym, continuous actions",
        "gym, processes",
        "envpool, discrete actions",
        "wrapped in several",
        "classic, discrete actions",
        "classic by torch",
        "stocks, windows",
        "mujoco, contact forces",
        "warp, isaac",
    ],
)
def test_lanes_and_seeds_start_differently(name: str) -> None:
    simulator = IMPLEMENTATIONS[name]()
    first, second = simulator.reset(1).clone(), simulator.reset(2).clone()
    assert len({tuple(lane) for lane in first.tolist()}) == COUNT
    assert not torch.equal(first, second)

"""One suite for every implementation of the Simulator interface."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from simulators import Simulator, Space, make
from simulators.classic import ClassicOnDevice
from simulators.classic_tasks import CartPole

COUNT = 5
IMPLEMENTATIONS: dict[str, Callable[[], Simulator]] = {
    "gym, discrete actions": lambda: make("CartPole-v1", COUNT),
    "gym, continuous actions": lambda: make("Pendulum-v1", COUNT, {"max_episode_steps": 7}),
    "gym, discrete observations": lambda: make("FrozenLake-v1", COUNT),
    "stocks, windows": lambda: make("stocks", COUNT, {"episode_days": 20}),
    "stocks, whole split": lambda: make("stocks", COUNT, {"train_end": "2005-01-01"}),
    "classic, discrete actions": lambda: make("cartpole", COUNT),
    "classic, continuous actions": lambda: make("pendulum", COUNT, {"max_episode_steps": 7}),
    "classic by torch": lambda: ClassicOnDevice(CartPole(), COUNT, 500, "cpu"),
    "mujoco, bodies that fall": lambda: make("mujoco:Hopper-v5", COUNT, {"threads": 2}),
    "mujoco, contact forces": lambda: make("mujoco:Ant-v5", COUNT, {"max_episode_steps": 20}),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def simulator(request: pytest.FixtureRequest) -> Simulator:
    return IMPLEMENTATIONS[request.param]()


def random_action(space: Space, generator: torch.Generator) -> Tensor:
    if space.kind == "discrete":
        return torch.randint(space.n, (COUNT,), generator=generator)
    assert space.low is not None
    assert space.high is not None
    low, high = torch.tensor(space.low).view(space.shape), torch.tensor(space.high).view(space.shape)
    return low + (high - low) * torch.rand((COUNT, *space.shape), generator=generator)


def roll(simulator: Simulator, steps: int, seed: int) -> list[Tensor]:
    """Everything that random actions bring, flattened into one list of copies."""
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


def test_an_episode_ends_in_exactly_one_way_and_begins_anew_in_the_same_step(simulator: Simulator) -> None:
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


@pytest.mark.parametrize(
    "name",
    [
        "gym, discrete actions",
        "gym, continuous actions",
        "classic, discrete actions",
        "classic by torch",
        "stocks, windows",
        "mujoco, contact forces",
    ],
)
def test_lanes_and_seeds_begin_differently(name: str) -> None:
    simulator = IMPLEMENTATIONS[name]()
    first, second = simulator.reset(1).clone(), simulator.reset(2).clone()
    assert len({tuple(lane) for lane in first.tolist()}) == COUNT
    assert not torch.equal(first, second)

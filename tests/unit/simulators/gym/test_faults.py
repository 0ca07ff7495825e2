"""A failing environment is reported in one line that names the id, the lane and the step."""

import math
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from podrace.errors import DataLoss, Internal, InvalidArgument, PodraceError
from simulators.gym.simulator import GymSimulator

EPISODE_STEPS = 5
FOUR_ITEMS = object()


class Faulty(gymnasium.Env[Any, Any]):
    """Misbehaves at the steps listed in `faults`, counted over its whole life; the first reset is step 0."""

    def __init__(self, faults: dict[int, Any] | None = None, shape: tuple[int, ...] = (3,)) -> None:
        self.observation_space, self.action_space = spaces.Box(-9, 9, shape), spaces.Discrete(2)
        self.faults, self.steps = faults or {}, 0

    def _observation(self) -> Any:
        fault = self.faults.pop(self.steps, None)
        if isinstance(fault, Exception):
            raise fault
        return np.zeros(self.observation_space.shape, np.float32) if fault is None else fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        fault = self.faults.get(self.steps)
        if isinstance(fault, float):
            self.faults.clear()
            return np.zeros(3, np.float32), fault, False, False, {}
        if fault is FOUR_ITEMS:
            return np.zeros(3, np.float32), 0.0, False, {}  # type: ignore[return-value]
        return self._observation(), 0.0, self.steps % EPISODE_STEPS == 0, False, {}


def roll(simulator: GymSimulator, steps: int) -> None:
    simulator.reset(0)
    for _ in range(steps):
        simulator.step(torch.zeros(simulator.count, dtype=torch.int64))


def fault_of(faults: dict[int, Any], lane: int = 1, steps: int = 12) -> PodraceError:
    environments = [Faulty(faults if index == lane else None) for index in range(3)]
    simulator = GymSimulator("faulty", environments)
    with pytest.raises(PodraceError) as caught:
        roll(simulator, steps)
    assert "\n" not in caught.value.message
    return caught.value


def row(value: float) -> np.ndarray[Any, Any]:
    return np.array([0.0, value, 0.0], np.float32)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_named_with_its_lane_and_step(value: float) -> None:
    error = fault_of({7: value})
    assert isinstance(error, DataLoss)
    assert error.message.startswith(f"faulty: lane 1 returned a reward that is not finite ({value}) at step 2 of its")


@pytest.mark.parametrize(("step", "reported"), [(0, 0), (3, 3), (8, 3)])
def test_an_observation_that_is_not_finite_is_named_with_its_lane_and_step(step: int, reported: int) -> None:
    error = fault_of({step: row(math.nan)})
    assert isinstance(error, DataLoss)
    assert (
        f"lane 1 returned an observation whose element 1 is not finite (nan) at step {reported} of its" in error.message
    )


def test_a_final_observation_that_is_not_finite_belongs_to_the_episode_that_ended() -> None:
    error = fault_of({10: row(math.inf)})
    assert "element 1 is not finite (inf) at step 5 of its episode" in error.message


def test_numbers_whose_squares_are_infinite_are_finite() -> None:
    simulator = GymSimulator("faulty", [Faulty({1: row(3e38)})])
    simulator.reset(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = simulator.step(torch.zeros(1, dtype=torch.int64))
    assert step.observation[0, 1] == torch.tensor(3e38)


def test_a_reset_leaves_nothing_of_a_number_that_was_not_finite() -> None:
    environment = Faulty({5: row(math.nan), 6: math.nan})
    simulator = GymSimulator("faulty", [environment])
    for steps in (5, 1):
        with pytest.raises(DataLoss):
            roll(simulator, steps)
    roll(simulator, 1)


@pytest.mark.parametrize("observation", [np.zeros(1, np.float32), np.float32(0), np.zeros((3, 1), np.float32), [0.0]])
def test_an_observation_of_another_shape_is_refused_even_if_it_could_be_broadcast(observation: Any) -> None:
    error = fault_of({3: observation})
    assert isinstance(error, InvalidArgument)
    assert error.message == (
        f"faulty: lane 1 returned an observation of shape {np.shape(observation)} at step 3 of its episode; its "
        "observation space has the shape (3,)"
    )


def test_an_observation_may_be_a_list() -> None:
    simulator = GymSimulator("faulty", [Faulty({1: [1.0, 2.0, 3.0]})])
    simulator.reset(0)
    assert simulator.step(torch.zeros(1, dtype=torch.int64)).observation.tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize(("step", "where"), [(0, "at the reset of its episode"), (9, "at step 4 of its episode")])
def test_an_exception_is_named_with_its_lane_its_step_and_its_line(step: int, where: str) -> None:
    error = fault_of({step: ZeroDivisionError("division\n by zero")}, lane=2)
    assert isinstance(error, Internal)
    prefix, _, suffix = error.message.partition("(test_faults.py:")
    assert prefix == "faulty: lane 2 raised ZeroDivisionError: division by zero "
    assert suffix.endswith(f") {where}")


def test_an_exception_in_the_reset_within_a_step_is_reported_as_one_of_the_reset() -> None:
    class FailsAtSecondReset(Faulty):
        def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
            if self.steps:
                raise KeyError("level")
            return super().reset(**arguments)

    simulator = GymSimulator("faulty", [FailsAtSecondReset()])
    with pytest.raises(Internal, match=r"lane 0 raised KeyError: 'level' .* at the reset of its episode"):
        roll(simulator, EPISODE_STEPS)


@pytest.mark.parametrize("fault", [FOUR_ITEMS, np.array(["a", "b", "c"])])
def test_violations_of_gymnasiums_interface_are_reported_as_such(fault: Any) -> None:
    error = fault_of({2: fault})
    assert isinstance(error, Internal)
    assert "lane 1 violates Gymnasium's interface at step 2 of its episode: ValueError" in error.message


def test_images_are_not_checked_but_their_rewards_are() -> None:
    class Images(Faulty):
        def __init__(self) -> None:
            super().__init__({2: math.nan})
            self.observation_space = spaces.Box(0, 255, (3,), np.uint8)

        def _observation(self) -> Any:
            return np.full(3, 255, np.uint8)

    simulator = GymSimulator("images", [Images()])
    simulator.reset(0)
    assert simulator.step(torch.zeros(1, dtype=torch.int64)).observation.tolist() == [[255] * 3]
    with pytest.raises(DataLoss, match="images: lane 0 returned a reward that is not finite"):
        simulator.step(torch.zeros(1, dtype=torch.int64))

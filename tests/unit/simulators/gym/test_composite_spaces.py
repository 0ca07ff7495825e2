"""Environments with Dict and Tuple observations, MultiDiscrete and MultiBinary actions, and action masks."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from examples.custom.sorting import Sorting
from podrace.errors import InvalidArgument
from podrace.spaces.entries import columns, mask_columns, split
from simulators import make
from simulators.gym.simulator import GymSimulator
from simulators.messages import space_message, space_of
from simulators.wrappers import WRAPPERS

SORTING = "python:examples.custom.sorting:make"


class Echo(gymnasium.Env[Any, Any]):
    """Returns its action as the observation."""

    def __init__(self, action_space: spaces.Space[Any], *, broken: bool = False) -> None:
        self.action_space = action_space
        self.observation_space = spaces.Dict({"action": spaces.Box(-100.0, 100.0, action_space.shape)})
        self._broken = broken

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return {"action": np.zeros(self.action_space.shape or (), np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return {"wrong" if self._broken else "action": np.asarray(action, np.float32)}, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "actions", "native"),
    [
        (spaces.MultiDiscrete([3, 4]), [[2, 3], [0, 1]], [[2, 3], [0, 1]]),
        (spaces.MultiDiscrete([3, 4], start=[1, -2]), [[2, 3], [0, 1]], [[3, 1], [1, -1]]),
        (spaces.MultiDiscrete([[3, 4], [2, 2]]), [[[2, 3], [1, 0]]] * 2, [[[2, 3], [1, 0]]] * 2),
        (spaces.MultiBinary(3), [[1, 0, 1], [0, 0, 1]], [[1, 0, 1], [0, 0, 1]]),
    ],
)
def test_environments_receive_actions_of_their_space(space: spaces.Space[Any], actions: Any, native: Any) -> None:
    simulator = GymSimulator("echo", [Echo(space), Echo(space)])
    simulator.reset(0)
    step = simulator.step(torch.tensor(actions))
    assert simulator.action_space.shape == space.shape
    entries = simulator.observation_space.entries
    assert split(entries, step.observation.numpy())["action"].tolist() == native


def test_an_observation_without_an_entry_is_an_error_that_names_lane_and_step() -> None:
    simulator = GymSimulator("echo", [Echo(spaces.MultiBinary(2), broken=True)])
    simulator.reset(0)
    with pytest.raises(InvalidArgument, match=r"echo: lane 0 .* whose entry 'action' is absent at step 1"):
        simulator.step(torch.tensor([[0, 1]]))


def test_rows_are_those_of_the_environment() -> None:
    simulator, environment = make(SORTING, 2), Sorting()
    places = {entry.name: place for entry, place in columns(simulator.observation_space.entries)}
    observation = simulator.reset(3)
    assert observation.shape == (2, 15)
    assert (observation[:, places["kind"]].sum(1) == 1.0).all()
    assert (observation[:, places["action_mask"]][:, 4:] == 1.0).all()
    found = split(simulator.observation_space.entries, observation[0].numpy())
    assert environment.observation_space["size"].contains(found["size"])
    assert 1 <= int(found["kind"]) <= 4


def test_spaces_survive_their_messages() -> None:
    for id, options in ((SORTING, {}), ("Blackjack-v1", {}), ("Taxi-v4", {"info_action_mask": True})):
        simulator = make(id, 1, options)
        for space in (simulator.observation_space, simulator.action_space):
            assert space_of(space_message(space)) == space


def test_damaged_messages_of_spaces_are_refused() -> None:
    simulator = make(SORTING, 1)
    observed, acted = space_message(simulator.observation_space), space_message(simulator.action_space)
    observed.entries[0].encoding = "tree"
    acted.element_choices.pop()
    for message, problem in ((observed, "encoding 'tree'"), (acted, "has the choices")):
        with pytest.raises(InvalidArgument, match=problem):
            space_of(message)


@pytest.mark.parametrize("name", ["frame_stack", "normalize_observations"])
def test_wrappers_that_would_mix_entries_are_refused(name: str) -> None:
    with pytest.raises(
        InvalidArgument, match=f"wrapper '{name}': the observations are composite .action_mask, density"
    ):
        make(SORTING, 1, {"wrappers": [{"name": name}]})


KEEPING: dict[str, dict[str, object]] = {
    "time_limit": {"steps": 3},
    "normalize_rewards": {},
    "shape_rewards": {"function": "python:unchanged_rewards:shaped"},
}
REFUSING = {"frame_stack", "normalize_observations", "clip_actions", "scale_actions", "pixels"}


def test_every_wrapper_keeps_action_masks_or_refuses_them() -> None:
    assert {*KEEPING, *REFUSING} == set(WRAPPERS)


UNCHANGED = """
def shaped(observation, action, reward, next_observation, terminated):
    return reward
"""


@pytest.mark.parametrize("name", KEEPING)
def test_a_wrapper_leaves_entries_and_action_masks_as_they_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unchanged_rewards.py").write_text(UNCHANGED)
    monkeypatch.syspath_prepend(tmp_path)
    plain, wrapped = make(SORTING, 3), make(SORTING, 3, {"wrappers": [{"name": name, **KEEPING[name]}]})
    assert wrapped.observation_space == plain.observation_space
    mask = mask_columns(wrapped.observation_space.entries)
    assert mask is not None
    observed, found = plain.reset(4).clone(), wrapped.reset(4)
    for _ in range(3):
        assert torch.equal(found, observed)
        flags = observed[:, mask].split(plain.action_space.choices, dim=1)
        action = torch.stack([element.argmax(1) for element in flags], dim=1)
        observed, found = plain.step(action).observation.clone(), wrapped.step(action).observation


@pytest.mark.parametrize("name", sorted(REFUSING))
def test_a_wrapper_that_is_not_defined_for_masked_observations_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        make(SORTING, 1, {"wrappers": [{"name": name}]})
    assert name in refused.value.message
    assert "\n" not in refused.value.message


def test_clipping_needs_continuous_actions() -> None:
    with pytest.raises(InvalidArgument, match="the actions are multi-discrete, not continuous"):
        make(SORTING, 1, {"wrappers": [{"name": "clip_actions"}]})


@pytest.mark.parametrize(
    ("id", "value", "problem"),
    [
        ("Taxi-v4", 1, "'info_action_mask' must be true or false"),
        ("gym:Pendulum-v1", True, "action masks are for Discrete, MultiDiscrete and MultiBinary actions"),
        ("FrozenLake-v1", True, "info has no 'action_mask'"),
    ],
)
def test_the_option_for_masks_in_info_is_checked(id: str, value: object, problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        make(id, 1, {"info_action_mask": value}).reset(0)

"""Composite observations become one row of numbers, and the row becomes the observation again."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from podrace.spaces.entries import (
    MASK,
    Entry,
    EntryError,
    columns,
    flattened,
    mask_columns,
    problem_of,
    row_type,
    split,
    width,
)
from podrace.spaces.gymnasium_spaces import MaskFromInfo, UnsupportedSpaceError, entries_of

ACTIONS = spaces.MultiDiscrete([3, 4])
PICTURE = spaces.Box(0, 255, (1, 4, 5), np.uint8)
MIXED = spaces.Dict(
    {
        "position": spaces.Box(-5.0, 5.0, (2, 3)),
        "speed": spaces.Box(-1.0, 1.0, ()),
        "kind": spaces.Discrete(4, start=-2),
        "hands": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
        "lamps": spaces.MultiBinary([2, 2]),
        "camera": PICTURE,
        "pair": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"x": spaces.Box(0.0, 1.0, (2,))}))),
        "action_mask": spaces.MultiBinary(7),
    }
)


def by_name(observation: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(observation, dict | tuple):
        items = observation.items() if isinstance(observation, dict) else enumerate(observation)
        return {name: leaf for key, part in items for name, leaf in by_name(part, f"{prefix}{key}.").items()}
    return {prefix.removesuffix("."): observation}


@pytest.mark.parametrize("space", [MIXED, spaces.Tuple((PICTURE, spaces.Discrete(3))), spaces.Dict({"a": PICTURE})])
def test_splitting_a_row_gives_back_every_observation(space: spaces.Space[Any]) -> None:
    entries = entries_of(space, ACTIONS)
    space.seed(1)
    for _ in range(20):
        observation = space.sample()
        row = flattened(entries, observation)
        assert row.shape == (width(entries),)
        assert row.dtype == row_type(entries)
        found = split(entries, row)
        wanted = by_name(observation)
        assert set(found) == set(wanted)
        for name, leaf in wanted.items():
            np.testing.assert_allclose(found[name], np.asarray(leaf, found[name].dtype), rtol=1e-6)


def test_rows_of_a_batch_are_those_of_its_observations() -> None:
    entries = entries_of(MIXED, ACTIONS)
    vector = spaces.Dict({name: part for name, part in MIXED.spaces.items() if name != "pair"})
    entries = entries_of(vector, ACTIONS)
    observations = [vector.sample() for _ in range(3)]
    batch = {name: np.stack([one[name] for one in observations]) for name in vector.spaces}
    rows = flattened(entries, batch, lanes=3)
    np.testing.assert_array_equal(rows, np.stack([flattened(entries, one) for one in observations]))


def test_a_row_of_bytes_stays_bytes_and_any_vector_makes_it_float32() -> None:
    assert row_type(entries_of(spaces.Dict({"a": PICTURE, "b": spaces.Discrete(2)}), ACTIONS)) == np.uint8
    assert row_type(entries_of(MIXED, ACTIONS)) == np.float32
    assert row_type(entries_of(spaces.Tuple((spaces.Discrete(2),)), ACTIONS)) == np.float32


def test_the_key_action_mask_is_a_mask_only_where_actions_can_be_masked() -> None:
    place = mask_columns(entries_of(MIXED, ACTIONS))
    assert place is not None
    assert place.stop - place.start == 7
    assert mask_columns(entries_of(MIXED, spaces.Box(-1.0, 1.0, (2,)))) is None
    flags = mask_columns(entries_of(MIXED, spaces.MultiBinary((7, 1))))
    assert flags == place, "one flag for each element of a MultiBinary action"
    for actions in (spaces.Discrete(5), spaces.MultiBinary(5)):
        with pytest.raises(UnsupportedSpaceError, match="one flag for each of 5 choices"):
            entries_of(MIXED, actions)
    with pytest.raises(UnsupportedSpaceError, match="no entry besides the action mask"):
        entries_of(spaces.Dict({"action_mask": spaces.MultiBinary(5)}), spaces.Discrete(5))


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        (spaces.Dict({"a": spaces.Text(5)}), "'a' is a Text"),
        (spaces.Dict({"a": spaces.Tuple((spaces.Sequence(spaces.Discrete(2)),))}), "'a.0' is a Sequence"),
        (spaces.Dict({"a.b": spaces.Discrete(2)}), "'a.b' must be a non-empty string without dots"),
        (spaces.Dict({}), "0 entries"),
    ],
)
def test_other_spaces_are_refused_by_name(space: spaces.Space[Any], problem: str) -> None:
    with pytest.raises(UnsupportedSpaceError, match=problem):
        entries_of(space, ACTIONS)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": 2}, "'kind' has the value .2."),
        ({"kind": -3}, "'kind' has the value .-3."),
        ({"position": np.zeros(6)}, r"'position' has the shape \[6\] instead of \[2, 3\]"),
        ({"pair": (1,)}, "'pair.1.x' is absent"),
    ],
)
def test_an_observation_that_its_space_does_not_contain_is_refused(change: dict[str, Any], problem: str) -> None:
    observation = {**MIXED.sample(), **change}
    with pytest.raises(EntryError, match=problem):
        flattened(entries_of(MIXED, ACTIONS), observation)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([], "0 entries"),
        ([Entry("m", MASK, (3,))], "1 entries and 1 of them masks"),
        ([Entry("a", "vector", (3,)), Entry("a", "vector", ())], "one name"),
        ([Entry("a", "tree", (4,))], "encoding 'tree'"),
        ([Entry("a", "one_hot", (2,), (4,), (0,))], "choices of 1 elements in the entry 'a', expected 2"),
        ([Entry("a", "vector", (5,))], "4 elements, but its entries have 5"),
    ],
)
def test_entries_from_another_process_are_checked(entries: list[Entry], problem: str) -> None:
    assert problem in problem_of(entries, 4)
    assert not problem_of([Entry("a", "vector", (4,))], 4)


class Taxi(gymnasium.Env[Any, Any]):
    """Returns its mask in `info`."""

    action_space = spaces.MultiDiscrete([2, 2])
    observation_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        return 1, {"action_mask": (np.array([1, 0]), np.array([0, 1]))}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 2, 0.0, False, False, {}


def test_a_mask_in_info_becomes_an_entry() -> None:
    environment = MaskFromInfo(Taxi())
    entries = entries_of(environment.observation_space, environment.action_space)
    observation, _ = environment.reset()
    places = {entry.name: place for entry, place in columns(entries)}
    row = flattened(entries, observation)
    assert row[places["action_mask"]].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert row[places["observation"]].tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(KeyError, match="info_action_mask"):
        environment.step(np.array([0, 1]))

"""Tasks of Isaac Lab with choices, several parts of an observation, and masks, against a test double (stand_in)."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators import Simulator, make

STAND_IN = str(Path(__file__).parent / "stand_in" / "python")
Start = Callable[[str, int], Any]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts tasks by their names, and ends them with the test."""
    monkeypatch.setenv("ISAAC_STAND_IN_PYTHON", sys.executable)
    made: list[Simulator] = []

    def started(task: str, count: int) -> Simulator:
        options = {"interpreter": STAND_IN, "simulation_device": "cpu"}
        made.append(make(f"isaaclab:Isaac-{task}-Direct", count, options))
        return made[-1]

    yield started
    for simulator in made:
        simulator.close()


ONE_ROW = {
    "target": ("one_hot", 4),
    "pair": ("one_hot", 5),
    "lamps": ("flags", 2),
    "camera": ("bytes", 4),
    "more.0": ("vector", 1),
    "more.1": ("vector", 1),
    "action_mask": ("mask", 4),
}


def parts_of(simulator: Simulator, row: Tensor) -> dict[str, Tensor]:
    entries = simulator.observation_space.entries
    sizes = [entry.size for entry in entries]
    return dict(zip((entry.name for entry in entries), row.split(sizes, 1), strict=True))


def best_of(parts: dict[str, Tensor]) -> Tensor:
    target = parts["target"].argmax(1)
    valid = parts["action_mask"].gather(1, target.unsqueeze(1)).squeeze(1) > 0
    return torch.where(valid, target, (target + 1) % 4)


def test_entries_of_every_kind_are_numbers_of_one_row_and_the_mask_is_that_of_the_actions(start: Start) -> None:
    simulator = start("Choices", 64)
    assert (simulator.action_space.kind, simulator.action_space.n) == ("discrete", 4)
    entries = simulator.observation_space.entries
    assert {entry.name: (entry.encoding, entry.size) for entry in entries} == ONE_ROW
    parts = parts_of(simulator, simulator.reset(3))
    target = parts["target"].argmax(1)
    assert (parts["target"].sum(1) == 1).all()
    assert (parts["pair"][:, :2].argmax(1) == target % 2).all()
    assert (parts["pair"][:, 2:].argmax(1) == target % 3).all()
    assert parts["lamps"][:, 0].equal((target > 1).float())
    assert [parts[name].unique().tolist() for name in ("camera", "more.0", "more.1")] == [[9], [0.5], [7]]
    assert (parts["action_mask"].sum(1) == 3).all()
    assert (simulator.step(best_of(parts)).reward == 1).all()


def test_an_action_of_several_choices_has_a_mask_of_all_of_them(start: Start) -> None:
    simulator = start("Pairs", 8)
    assert (simulator.action_space.kind, simulator.action_space.choices) == ("multi_discrete", (4, 2))
    best = best_of(parts_of(simulator, simulator.reset(1)))
    step = simulator.step(torch.stack((best, torch.ones(8, dtype=torch.int64)), 1))
    assert (step.reward == 1).all()


def test_a_number_without_a_dict_is_an_entry(start: Start) -> None:
    simulator = start("Number", 4)
    assert [(entry.name, entry.choices) for entry in simulator.observation_space.entries] == [("policy", (4,))]
    assert (simulator.reset(2).sum(1) == 1).all()


@pytest.mark.parametrize(
    ("task", "line"),
    [
        ("Text", "the entry 'order' of the observations is a Text, which is not supported"),
        ("ShortMask", "the entry 'action_mask' has the shape .3., expected one flag for each of 4 choices"),
    ],
)
def test_a_space_that_cannot_be_used_is_refused_by_name(start: Start, task: str, line: str) -> None:
    with pytest.raises(InvalidArgument, match=line):
        start(task, 1)

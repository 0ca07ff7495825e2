"""Wrappers of users, and functions that shape rewards: what they do, and what is wrong with them in one line."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from podrace.errors import BAD_SPEC, InvalidArgument
from podrace.limits.config import EVERYTHING, Allowed
from simulators import make

SOURCE = """
from dataclasses import replace
from subprocess import Popen

import torch
from simulators.wrappers.wrapper import Wrapper


class Doubled(Wrapper):
    def __init__(self, inner, factor=2.0):
        super().__init__(inner)
        self.factor = factor

    def step(self, action):
        step = self.inner.step(action)
        return replace(step, reward=step.reward * self.factor)


class Raising(Wrapper):
    def step(self, action):
        raise ValueError("no\\nluck")


class Refusing(Wrapper):
    def __init__(self, inner):
        raise RuntimeError("cannot wrap this")


class Shrinking(Wrapper):
    def reset(self, seed):
        return self.inner.reset(seed)[:, :2]


def nothing(inner):
    return None


def progress(observation, action, reward, next_observation, terminated):
    return reward + next_observation[:, 0] - observation[:, 0]


def total(observation, action, reward, next_observation, terminated):
    return reward.sum()


def broken(observation, action, reward, next_observation, terminated):
    return reward + missing
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_wrappers.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_wrappers", None)


def wrapped(*wrappers: dict[str, Any], allowed: Allowed | None = None) -> Any:
    return make("cartpole", 3, {"wrappers": list(wrappers)}, allowed=allowed or EVERYTHING)


def one_step(*wrappers: dict[str, Any], allowed: Allowed | None = None) -> None:
    simulator = wrapped(*wrappers, allowed=allowed)
    simulator.reset(1)
    simulator.step(torch.zeros(3, dtype=torch.int64))


def refusal(*wrappers: dict[str, Any], allowed: Allowed | None = None) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        one_step(*wrappers, allowed=allowed)
    assert "\n" not in caught.value.message
    return caught.value


def test_a_users_wrapper_changes_steps_and_takes_its_options() -> None:
    simulator = wrapped({"name": "python:own_wrappers:Doubled", "factor": 5.0}, {"name": "frame_stack", "count": 2})
    assert simulator.reset(1).shape == (3, 8)
    assert simulator.step(torch.zeros(3, dtype=torch.int64)).reward.tolist() == [5.0] * 3


def test_shaped_rewards_are_those_of_the_function_also_where_an_episode_ends() -> None:
    plain = make("cartpole", 3)
    simulator = wrapped({"name": "shape_rewards", "function": "python:own_wrappers:progress"})
    before, ends = plain.reset(1).clone(), 0
    simulator.reset(1)
    for _ in range(40):
        expected, found = plain.step(torch.ones(3, dtype=torch.int64)), simulator.step(torch.ones(3, dtype=torch.int64))
        over = expected.terminated | expected.truncated
        following = torch.where(over.unsqueeze(1), expected.final_observation, expected.observation)
        assert torch.equal(found.reward, expected.reward + following[:, 0] - before[:, 0])
        assert torch.equal(found.observation, expected.observation)
        before, ends = expected.observation.clone(), ends + int(over.sum())
    assert ends > 0


OWNER = "cartpole: wrapper 'python:own_wrappers:"


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (
            {"name": "python:own_wrappers:Raising"},
            "own_wrappers.Raising (own_wrappers.py:21) raised ValueError: no luck",
        ),
        (
            {"name": "python:own_wrappers:Refusing"},
            "own_wrappers.Refusing (own_wrappers.py:26) raised RuntimeError: cannot wrap this",
        ),
        (
            {"name": "python:own_wrappers:Shrinking"},
            "own_wrappers.Shrinking (own_wrappers.py:29)"
            " returned observation [3, 2] from reset, expected a tensor [3, 4]",
        ),
        (
            {"name": "python:own_wrappers:nothing"},
            "own_wrappers.nothing (own_wrappers.py:34) returned a NoneType, expected a simulators.Simulator",
        ),
        ({"name": "python:own_wrappers:Doubled", "facto": 2.0}, "option 'facto'"),
        ({"name": "python:own_wrappers:Dubled"}, "module 'own_wrappers' has no function 'Dubled'"),
        ({"name": "python:own_absent:Doubled"}, "module 'own_absent' cannot be imported"),
        ({"name": "python:own_wrappers"}, "expected python:module:name, not 'python:own_wrappers'"),
    ],
)
def test_what_is_wrong_with_a_wrapper_is_reported_in_one_line_with_its_address_and_line(
    wrapper: dict[str, Any], message: str
) -> None:
    found = refusal(wrapper).message
    assert found.startswith("cartpole: ")
    assert wrapper["name"] in found
    assert message in found


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("total", "own_wrappers.total (own_wrappers.py:42) returned [], expected rewards [3]"),
        ("broken", "own_wrappers.broken (own_wrappers.py:47) raised NameError: name 'missing' is not defined"),
        ("absent", "module 'own_wrappers' has no function 'absent'"),
    ],
)
def test_what_is_wrong_with_a_shaping_function_is_reported_in_one_line(function: str, message: str) -> None:
    found = refusal({"name": "shape_rewards", "function": f"python:own_wrappers:{function}"}).message
    assert found == f"cartpole: wrapper 'shape_rewards': {message}" or message in found


def test_a_wrapper_needs_the_permission_of_the_operator() -> None:
    wrapper = {"name": "python:own_wrappers:Doubled"}
    error = refusal(wrapper, allowed=Allowed())
    assert error.reason == BAD_SPEC
    assert error.message == (
        "environment.options.wrappers.0.name = 'python:own_wrappers:Doubled': module 'own_wrappers' is not allowed"
        " here; the setting of its operator is allow.modules"
    )
    assert "own_wrappers" not in sys.modules
    wrapped(wrapper, allowed=Allowed(modules=("own_wrappers",)))


def test_what_an_allowed_module_has_imported_is_not_allowed_with_it() -> None:
    found = refusal({"name": "python:own_wrappers:Popen"}, allowed=Allowed(modules=("own_wrappers",)))
    assert "is defined elsewhere: module 'subprocess' is not allowed here" in found.message

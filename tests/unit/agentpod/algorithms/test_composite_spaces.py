"""Algorithms learn from Dict observations with masks, and refuse actions that they are not defined for."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from exactness import one_thread as one_thread
from gymnasium import spaces
from learning import evaluate, train

from agentpod.algorithms import ALGORITHMS, make
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from podrace.spaces.entries import Entry
from podrace.specification import catalog
from simulators.base import Space

SORTING = "python:examples.custom.sorting:make"
FAST: dict[str, object] = {"hidden_sizes": [64, 64], "learning_rate": 3e-3, "discount": 0.5}
ON_ROLLOUTS = {**FAST, "horizon": 32, "minibatch_size": 256}
ON_REPLAY: dict[str, object] = {
    "hidden_sizes": [32, 32],
    "learning_rate": 2e-3,
    "discount": 0.3,
    "horizon": 8,
    "batch_size": 64,
    "updates_per_step": 0.125,
    "warmup_steps": 256,
}


class Picking(gymnasium.Env[Any, Any]):
    """Pick the number that the row shows, if the mask allows it, else the one after it; continuous: come close."""

    def __init__(self, *, continuous: bool) -> None:
        entries: dict[str, spaces.Space[Any]] = {"target": spaces.Discrete(4), "noise": spaces.Box(-1.0, 1.0, (2,))}
        self._continuous, self._steps, self._rest = continuous, 0, np.ones(4, np.int8)
        if continuous:
            self.action_space: Any = spaces.Box(-1.0, 1.0, (1,))
        else:
            self.action_space = spaces.Discrete(4)
            entries["action_mask"] = spaces.MultiBinary(4)
        self.observation_space = spaces.Dict(entries)

    def _next(self) -> dict[str, Any]:
        self._target = int(self.np_random.integers(4))
        self._mask = np.ones(4, np.int8)
        self._mask[int(self.np_random.integers(4))] = 0
        noise = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return {"target": self._target, "noise": noise, "action_mask": self._mask}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._continuous:
            reward = 1.0 - abs(float(action[0]) - (self._target / 2.0 - 0.75))
        else:
            assert self._mask[action], "an invalid action was taken"
            reward = float(action == (self._target if self._mask[self._target] else (self._target + 1) % 4))
        return self._next(), reward, self._steps == 10, False, {}


def picking_numbers() -> Picking:
    return Picking(continuous=False)


def picking_places() -> Picking:
    return Picking(continuous=True)


@pytest.mark.long
@pytest.mark.parametrize("recurrent_size", [0, 8])
def test_ppo_learns_two_masked_choices_from_a_dict(recurrent_size: int) -> None:
    trained = train("ppo", SORTING, {**ON_ROLLOUTS, "recurrent_size": recurrent_size}, 1, 16_000)
    # Random valid actions are worth about 6.5 of 20.
    assert evaluate(SORTING, trained.policy) > 14.0


FOR_CHOICES = [
    name for name, entry in catalog.ALGORITHMS.items() if "discrete" in entry.action_kinds and not entry.teams
]


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FOR_CHOICES))
def test_algorithms_for_choices_learn_from_a_dict_with_a_mask(name: str) -> None:
    settings = ON_REPLAY if ALGORITHMS[name].settings_type().memory.replay_capacity else dict(ON_ROLLOUTS)
    if name == "a2c":
        settings = {**FAST, "hidden_sizes": [32, 32], "horizon": 8}
    if name == "sac-discrete":
        settings = {**settings, "initial_temperature": 0.1, "target_entropy_scale": 0.2}
    elif settings is ON_REPLAY:
        settings = {**settings, "exploration_steps": 4000}
    id = f"python:{__name__}:picking_numbers"
    trained = train(name, id, settings, 1, 10_000)
    # Random valid actions are worth 3.3 of 10.
    assert evaluate(id, trained.policy) > 8.0


@pytest.mark.long
@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_algorithms_for_continuous_actions_learn_from_a_dict(name: str) -> None:
    id = f"python:{__name__}:picking_places"
    trained = train(name, id, ON_REPLAY, 1, 8000)
    # The best constant action is worth 5 of 10.
    assert evaluate(id, trained.policy) > 7.5


MULTI = {
    "multi_discrete": Space("multi_discrete", (2,), torch.int64, choices=(3, 2)),
    "multi_binary": Space("multi_binary", (2,), torch.int64),
}
REFUSING = [
    (name, kind) for name, algorithm in ALGORITHMS.items() for kind in MULTI if kind not in algorithm.action_kinds
]


@pytest.mark.parametrize(("name", "kind"), REFUSING)
def test_algorithms_that_are_not_defined_for_several_choices_report_that_in_one_line(name: str, kind: str) -> None:
    entries = (Entry("place", "vector", (2,)),)
    observed = Space("composite", (2,), torch.float32, entries=entries)
    with pytest.raises(InvalidArgument, match=f"algorithm '{name}' needs .* actions, but .* are {kind}") as refused:
        make(name, observed, MULTI[kind], {}, 1)
    assert refused.value.reason == UNSUITABLE_SPACE
    assert "\n" not in refused.value.message

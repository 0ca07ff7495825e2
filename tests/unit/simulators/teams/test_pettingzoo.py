"""Environments of PettingZoo become teams; whatever is wrong with one is a line that names environment and agent."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from podrace.errors import DataLoss, Internal, InvalidArgument, Unimplemented
from podrace.limits.config import Allowed
from podrace.limits.names import environment_problem, imported_module
from simulators import make

MODULE = "team_of_pettingzoo"
ID = f"pettingzoo:{MODULE}"


class Mixed(ParallelEnv[str, Any, Any]):
    """Agent `a` sees 2 numbers and has 2 choices, `b` sees 1 and has 3. `a` leaves after one step, the end is after 3.

    An observation is the number of the step. The reward is the action. `fault` says what is wrong in the second step,
    `cut` that the episode of `a` is truncated, not terminated.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "mixed"}

    def __init__(self, fault: str = "", *, cut: bool = False) -> None:
        self.possible_agents, self._fault, self._cut = ["a", "b"], fault, cut
        self.observation_spaces = {"a": spaces.Box(-9, 9, (2,)), "b": spaces.Box(-9, 9, (1,))}
        self.action_spaces = {"a": spaces.Discrete(2), "b": spaces.Discrete(3)}

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def _seen(self) -> dict[str, Any]:
        return {"a": np.full(2, self._steps, np.float32), "b": np.full(1, self._steps, np.float32)}

    def reset(self, seed: Any = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._steps = list(self.possible_agents), 0
        return self._seen(), {}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents), "only those who are present act"
        self._steps += 1
        names, seen = list(self.agents), self._seen()
        rewards = {name: float(actions[name]) for name in names}
        ends = {"a": self._steps >= 1 and not self._cut, "b": False}
        cuts = {"a": self._steps >= 1 and self._cut, "b": self._steps >= 3}
        if self._steps == 2 and self._fault:
            if self._fault == "raises":
                raise ValueError("out of order")
            seen = {
                "missing": {},
                "shape": {"b": np.zeros(4, np.float32)},
                "nan": {"b": np.full(1, np.nan, np.float32)},
            }[self._fault]
        self.agents = [name for name in names if not ends[name] and not cuts[name]]
        return (
            {name: seen[name] for name in names if name in seen},
            rewards,
            {name: ends[name] for name in names},
            {name: cuts[name] for name in names},
            {},
        )


class Arms(ParallelEnv[str, Any, Any]):
    """Agent `a` moves one joint in [-2, 2], `b` two in [0, 1] and [0, 4]; the observation of `b` is what it did."""

    metadata: ClassVar[dict[str, Any]] = {"name": "arms"}

    def __init__(self, kind: str = "") -> None:
        self.possible_agents = ["a", "b"]
        second = spaces.Box(np.array([0.0, 0.0]), np.array([1.0, np.inf if kind == "open" else 4.0]), dtype=np.float64)
        self.action_spaces = {"a": spaces.Box(-2, 2, (1,)), "b": spaces.Discrete(2) if kind == "mixed" else second}

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9, 9, (2,))

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: Any = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        return {name: np.zeros(2, np.float32) for name in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        seen = {"a": np.repeat(actions["a"], 2).astype(np.float32), "b": actions["b"].astype(np.float32)}
        for name, action in actions.items():
            assert self.action_spaces[name].contains(action), (name, action)
        flags = dict.fromkeys(self.agents, False)
        return seen, dict.fromkeys(self.agents, 0.0), flags, flags, {}


@pytest.fixture(autouse=True)
def module() -> Iterator[None]:
    made: Any = ModuleType(MODULE)
    made.parallel_env, made.other, made.arms = Mixed, Mixed, Arms
    sys.modules[MODULE] = made
    yield
    del sys.modules[MODULE]


def test_agents_with_different_spaces_are_padded_marked_and_masked() -> None:
    team = make(ID, 2)
    assert team.observation_space.agents == ("a", "b")
    assert [(entry.name, entry.size) for entry in team.observation_space.entries] == [
        ("observation", 4),
        ("action_mask", 3),
    ]
    # Two numbers, which agent, which choices.
    assert team.reset(1).tolist() == [[0, 0, 1, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1]] * 2
    step = team.step(torch.tensor([1, 2, 0, 1]))
    assert step.reward.tolist() == [1, 2, 0, 1]
    assert step.terminated.tolist() == [True, False] * 2
    # What `a` saw last, and then nothing; `b` continues.
    assert step.final_observation[0].tolist() == [1, 1, 1, 0, 1, 1, 0]
    assert step.observation[:2].tolist() == [[0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 1, 1, 1, 1]]


def test_an_agent_that_left_is_absent_until_its_environment_ends() -> None:
    team = make(f"{ID}:other", 1)
    begun = team.reset(1).clone()
    team.step(torch.tensor([1, 2]))
    step = team.step(torch.tensor([1, 2]))
    assert (step.reward.tolist(), step.terminated.tolist()) == ([0, 2], [True, False])
    step = team.step(torch.tensor([1, 2]))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True, False], [False, True])
    assert step.final_observation[1].tolist() == [3, 0, 0, 1, 1, 1, 1]
    assert torch.equal(step.observation, begun)
    assert team.step(torch.tensor([1, 2])).reward.tolist() == [1, 2]


def test_an_agent_whose_episode_alone_is_truncated_has_left() -> None:
    both = [make(ID, 1, {"cut": cut}) for cut in (False, True)]
    for team in both:
        team.reset(1)
    for _ in range(4):
        ended, cut = (team.step(torch.tensor([1, 2])) for team in both)
        assert (cut.terminated.tolist(), cut.truncated.tolist()) == (
            ended.terminated.tolist(),
            ended.truncated.tolist(),
        )
        assert torch.equal(cut.observation, ended.observation)


def test_agents_may_act_at_random() -> None:
    team = make(ID, 1, {"random_agents": ["a"]})
    team.reset(1)
    assert (team.observation_space.agents, team.observation_space.shape, team.count) == (("b",), (1,), 1)
    ends = [bool(team.step(torch.tensor([2])).truncated) for _ in range(6)]
    assert ends == [False, False, True] * 2


def test_spread_of_mpe2_is_the_same_task_as_spread() -> None:
    theirs, ours = make("pettingzoo:mpe2.simple_spread_v3", 2, {"max_cycles": 4}), make("spread", 2)
    assert theirs.observation_space.agents == ours.observation_space.agents
    assert theirs.observation_space.shape == ours.observation_space.shape
    assert theirs.action_space == ours.action_space
    assert torch.equal(theirs.reset(3), theirs.reset(3))
    steps = [theirs.step(torch.zeros(6, dtype=torch.int64)).truncated.tolist() for _ in range(4)]
    assert steps == [[False] * 6] * 3 + [[True] * 6]
    theirs.close()


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("missing", InvalidArgument, "agent 'b', step 2 of its episode: no observation; the agents of an episode are"),
        (
            "shape",
            InvalidArgument,
            "agent 'b', step 2 of its episode: an observation of the shape [4], its space has",
        ),
        ("nan", DataLoss, "agent 'b', step 2 of its episode: an observation that is not finite"),
        (
            "raises",
            Internal,
            "environment 0, step 1 of its episode: step raised ValueError: out of order (test_pettingzoo.py:",
        ),
    ],
)
def test_a_faulty_environment_is_reported_in_one_line(fault: str, kind: type[Exception], message: str) -> None:
    team = make(ID, 1, {"fault": fault})
    team.reset(0)
    team.step(torch.tensor([0, 0]))
    with pytest.raises(kind) as caught:
        team.step(torch.tensor([0, 0]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        (ID, {"random_agents": ["c"]}, "option 'random_agents' names 'c', but the agents are a, b"),
        (ID, {"random_agents": ["a", "b"]}, "all agents act at random (a, b): leave one to learn"),
        (ID, {"speed": 3}, "cannot be made with these options"),
        (f"{ID}:nothing", {}, f"module '{MODULE}' has no function 'nothing'"),
    ],
)
def test_what_cannot_be_made_is_reported_in_one_line(id: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make(id, 1, options)
    assert message in caught.value.message


def test_random_agents_do_not_repeat_the_numbers_that_drew_the_initial_state() -> None:
    options = {"random_agents": ["agent_0"], "continuous_actions": True}
    tag = make("pettingzoo:mpe2.simple_tag_v3", 1, options)
    seen: list[Any] = []
    (environment,) = tag._environments  # type: ignore[attr-defined]
    step = environment.step
    environment.step = lambda actions: seen.append(actions["agent_0"]) or step(actions)
    tag.reset(1)
    positions = np.concatenate([agent.state.p_pos for agent in environment.unwrapped.world.agents])
    tag.step(torch.zeros(tag.count, *tag.action_space.shape))
    low, high = environment.action_space("agent_0").low, environment.action_space("agent_0").high
    drawn = (seen[0] - low) / (high - low)
    assert np.abs(drawn[:, None] - (positions + 1) / 2).min() > 1e-4


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(Unimplemented, match=r"module 'no_such_team' cannot be imported .*podrace\[pettingzoo\]"):
        make("pettingzoo:no_such_team", 1)


def test_a_module_must_be_allowed() -> None:
    allowed = Allowed(modules=("mpe2.*",))
    assert environment_problem("pettingzoo:mpe2.simple_spread_v3", {}, allowed) == ""
    problem = environment_problem("pettingzoo:os:popen", {}, allowed)
    assert problem.startswith("environment.id = 'pettingzoo:os:popen': module 'os' is not allowed here")
    assert imported_module("pettingzoo:mpe2.simple_spread_v3") == "mpe2.simple_spread_v3"


def test_different_continuous_actions_are_scaled_to_the_bounds_of_each_agent() -> None:
    team = make(f"{ID}:arms", 1)
    assert team.action_space.shape == (2,)
    assert (team.action_space.low, team.action_space.high) == ((-1.0, -1.0), (1.0, 1.0))
    team.reset(0)
    # The second element of `a` has no meaning.
    step = team.step(torch.tensor([[0.5, 0.7], [0.0, 1.0]]))
    assert step.observation[:, :2].tolist() == [[1.0, 1.0], [0.5, 4.0]]
    assert step.observation[:, 2:].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    step = team.step(torch.tensor([[-3.0, 0.0], [-1.0, 9.0]]))
    assert step.observation[:, :2].tolist() == [[-2.0, -2.0], [0.0, 4.0]]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("open", "agents have different continuous actions, which need finite bounds to be made alike"),
        ("mixed", "some agents have continuous actions, and others discrete ones or a mask"),
    ],
)
def test_actions_that_cannot_be_made_alike_are_refused(kind: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make(f"{ID}:arms", 1, {"kind": kind})
    assert caught.value.message == f"{ID}:arms: {problem}"

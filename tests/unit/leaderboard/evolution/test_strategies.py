"""What holds for every strategy."""

import copy
import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from known_strategies import CONTROL, EVERY, WITH_CHILDREN, WITH_SEATS, has_population, settings_of

from leaderboard.decision_replay import differences
from leaderboard.evolution.agents import make, needs_history
from leaderboard.evolution.ancestor import first_agents
from leaderboard.evolution.history import NOTHING, history_of
from leaderboard.evolution.space import is_structural, plain, spaces_of
from leaderboard.store.records import Generation
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_CONTINUATION, ORIGIN_FRESH, Agent
from podrace.specification import evolution_settings

MakeRace = Callable[..., Any]
TOURNAMENT = "cartpole-abc123"
AGENTS = 40
MIX = {
    "ppo": {
        "ratio": 2,
        "hyperparameters": {
            "learning_rate": {"low": 1e-5, "high": 1e-1, "value": 1e-5},
            "epochs": {"low": 1, "high": 9},
            "activation": {"choices": ["tanh", "relu"]},
            "minibatch_size": {"choices": [128, 256, 512]},
        },
    },
    "a2c": {"ratio": 1, "hyperparameters": {"learning_rate": {"low": 1e-6, "high": 1e-3, "value": 1e-4}}},
}
SETTINGS: dict[str, Any] = {"board_capacity": 5}


@pytest.fixture(params=[*EVERY, "halving"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "halving":
        return SETTINGS | {"strategy": "truncation", "population_size": 6, "allocation": "halving"}
    return settings_of(request.param, population_size=6, **SETTINGS)


RACED: dict[str, Any] = {}
"""Simulated tournaments by their settings; never modified."""


@pytest.fixture
def raced(make_race: MakeRace, settings: dict[str, Any]) -> Any:
    key = str(settings)
    if key not in RACED:
        RACED[key] = make_race(settings, algorithms=MIX, seed=3, noise=2.0).run(AGENTS)
    return RACED[key]


def agents_of(race: Any) -> list[Agent]:
    return [generation.agent for generation in race.generations]


@pytest.mark.long
def test_the_same_seed_gives_the_same_population_and_another_seed_another(
    make_race: MakeRace, raced: Any, settings: dict[str, Any]
) -> None:
    again = make_race(settings, algorithms=MIX, seed=3, noise=2.0).run(AGENTS)
    assert agents_of(again) == agents_of(raced)
    other = make_race(settings, algorithms=MIX, seed=4, noise=2.0).run(AGENTS)
    assert [one.hyperparameters for one in agents_of(other)] != [one.hyperparameters for one in agents_of(raced)]


@pytest.mark.long
def test_a_replay_of_the_log_finds_no_difference(raced: Any) -> None:
    assert list(differences(raced.log())) == []


@pytest.mark.long
def test_a_replay_finds_a_decision_that_was_altered(raced: Any) -> None:
    altered = copy.deepcopy(raced)
    last = altered.generations[-1].agent
    last.reason += "!"
    assert [line.partition(":")[0] for line in differences(altered.log())] == [f"agent {last.agent_id}"]


@pytest.mark.long
def test_decisions_do_not_depend_on_the_order_of_the_history(raced: Any) -> None:
    number = len(raced.generations)
    unfinished = list(raced.training)
    agents, candidates = list(raced.agents.values()), list(raced.candidates)
    expected = raced.next()
    for seed in range(3):
        for listed in (agents, candidates, unfinished):
            Random(seed).shuffle(listed)
        known = needs_history(raced.spec)
        history = history_of(raced.spec, number, agents, candidates, unfinished, []) if known else NOTHING
        by_id = {agent.agent_id: agent for agent in agents}
        again = make(
            TOURNAMENT,
            raced.spec,
            number,
            raced.board,
            by_id,
            raced.unfinished_children,
            history,
            trials=raced.trials(),
            clock=raced.clock,
        )
        assert again == expected


def test_parents_exist_and_their_files_fit(raced: Any) -> None:
    seen: dict[str, Agent] = {}
    candidates = {candidate.candidate_id: candidate for candidate in raced.candidates}
    for agent in agents_of(raced):
        assert (agent.origin == ORIGIN_FRESH) == (not agent.parent_agent_ids)
        for parent_id in agent.parent_agent_ids:
            parent, start = seen[parent_id], candidates[agent.starting_checkpoint.manifest_digest]
            assert start.agent_id == parent_id == agent.starting_checkpoint.agent_id
            assert parent.algorithm == agent.algorithm
            for name, value in agent.hyperparameters.fields.items():
                spec = raced.spec.algorithms[agent.algorithm]
                assert not is_structural(agent.algorithm, spec, name) or value == parent.hyperparameters.fields[name]
        seen[agent.agent_id] = agent


def test_the_first_agents_are_fresh(raced: Any) -> None:
    first = agents_of(raced)[: first_agents(raced.spec)]
    assert {agent.origin for agent in first} == {ORIGIN_FRESH}


def test_every_agent_has_every_hyperparameter_within_its_range(raced: Any) -> None:
    for agent in agents_of(raced):
        algorithm = raced.spec.algorithms[agent.algorithm]
        spaces = spaces_of(agent.algorithm, algorithm)
        assert set(agent.hyperparameters.fields) == set(algorithm.hyperparameters)
        for name, spec in algorithm.hyperparameters.items():
            value = plain(agent.hyperparameters.fields[name])
            space = spaces.get(name)
            if space is None:
                assert value == plain(spec.value)
            else:
                assert space.contains(value)


def test_the_best_ever_submitted_is_never_lost(raced: Any) -> None:
    best = max(raced.candidates, key=lambda candidate: candidate.score)
    assert raced.board[0].score == best.score


def test_the_ratio_holds_among_fresh_agents_and_seats(raced: Any) -> None:
    if raced.spec.evolution.allocation == "halving":
        pytest.skip("it moves them")
    first = [agent.algorithm for agent in agents_of(raced)[:6]]
    if has_population(raced.spec.evolution.strategy):
        assert sorted(first) == ["a2c", "a2c", "ppo", "ppo", "ppo", "ppo"]
    fresh = [agent.algorithm for agent in agents_of(raced) if agent.origin == ORIGIN_FRESH]
    assert {"ppo", "a2c"} == set(fresh)


def ended_of(generation: Generation) -> float:
    return math.inf if generation.ended is None else generation.ended


@pytest.mark.long
@pytest.mark.parametrize("strategy", WITH_SEATS)
def test_no_seat_of_a_population_of_seats_has_two_agents_at_a_time(make_race: MakeRace, strategy: str) -> None:
    raced = make_race(settings_of(strategy, population_size=6), algorithms=MIX, seed=3, noise=2.0).run(AGENTS)
    for generation in raced.generations:
        taken = [
            other.agent.seat for other in raced.generations if other.position < generation.position < ended_of(other)
        ]
        assert generation.agent.seat not in taken


def test_depth_counts_generations_from_a_fresh_ancestor(raced: Any) -> None:
    depths = {generation.agent.agent_id: generation.depth for generation in raced.generations}
    for generation in raced.generations:
        parents = generation.agent.parent_agent_ids
        deeper = generation.agent.origin != ORIGIN_CONTINUATION
        assert generation.depth == (depths[parents[0]] + deeper if parents else 0)


def test_every_decision_has_a_reason(raced: Any) -> None:
    assert all(agent.reason and "\n" not in agent.reason for agent in agents_of(raced))


@pytest.mark.long
@pytest.mark.parametrize("strategy", WITH_CHILDREN)
def test_a_strategy_beats_the_control(make_race: MakeRace, strategy: str) -> None:
    def best(name: str) -> float:
        races = [make_race({"strategy": name}, seed=seed, pods=4).run(32) for seed in range(3)]
        return sum(max(race.skills.values()) for race in races) / 3

    assert best(strategy) > 1.5 * best(CONTROL)


def test_settings_of_one_strategy_are_refused_with_another(make_spec: Callable[..., Any]) -> None:
    for name, own in evolution_settings.SETTINGS.items():
        # Without a budget nothing is derived.
        resolved = make_spec(evolution={"strategy": name}, objective={"target_return": 1.0}).evolution
        for setting, default in own.items():
            assert getattr(resolved, setting) == default
        for other in evolution_settings.SETTINGS.values():
            for setting in other.keys() - own.keys() - evolution_settings.DEFAULTS.keys():
                assert not resolved.HasField(setting)
                with pytest.raises(InvalidArgument, match=f"evolution.{setting} = .*: is a setting of"):
                    make_spec(evolution={"strategy": name, setting: other[setting]})

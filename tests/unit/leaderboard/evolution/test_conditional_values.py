from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from leaderboard.evolution.fresh import draw
from leaderboard.evolution.mutation import settled_child
from leaderboard.evolution.space import Value, declared_values
from leaderboard.score_statistics import statistics_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.specification.conditions import is_active, settled
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec, TournamentSpec

CHAIN: Mapping[str, Any] = {
    "prioritized": {"choices": [False, True]},
    "priority_exponent": {"choices": [0.6, 0.7, 0.8], "when": {"prioritized": True}},
    "batch_size": {"low": 32, "high": 512, "value": 64, "when": {"priority_exponent": [0.7, 0.8]}},
}
DQN: Mapping[str, Any] = {
    "n_step": {"choices": [1, 3, 5]},
    "huber_delta": {"low": 0.1, "high": 2.0, "value": 1.0, "when": {"n_step": [3, 5]}},
}


def specification(hyperparameters: Mapping[str, Any] = DQN, strategy: str = "tournament") -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"dqn": {"hyperparameters": hyperparameters}},
        "objective": {"target_return": 475.0},
        "evolution": {"strategy": strategy},
    }
    return resolve(parse(values, source="test"))


def dqn(hyperparameters: Mapping[str, Any] = DQN) -> AlgorithmSpec:
    return specification(hyperparameters).algorithms["dqn"]


def child_of(parent: Mapping[str, Value], seed: int = 0, **changes: Value) -> dict[str, Value]:
    return settled_child("dqn", dqn(), parent, {**parent, **changes}, Random(seed))


def test_an_inactive_hyperparameter_has_the_value_of_the_specification() -> None:
    algorithm = dqn()
    declared = declared_values(algorithm)
    assert settled(algorithm.hyperparameters, declared | {"n_step": 1.0, "huber_delta": 0.4})["huber_delta"] == 1.0
    assert settled(algorithm.hyperparameters, declared | {"n_step": 5.0, "huber_delta": 0.4})["huber_delta"] == 0.4


def test_chains_of_conditions_settle_from_the_first_to_the_last() -> None:
    algorithm = dqn(CHAIN)
    values = declared_values(algorithm) | {"prioritized": False, "priority_exponent": 0.8, "batch_size": 300.0}
    assert settled(algorithm.hyperparameters, values) == declared_values(algorithm)
    active = settled(algorithm.hyperparameters, values | {"prioritized": True})
    assert (active["priority_exponent"], active["batch_size"]) == (0.8, 300.0)


def test_fresh_agents_have_drawn_values_exactly_where_the_condition_is_met() -> None:
    spec, met = specification(), []
    for number in range(1, 60):
        values = draw(spec, number)[1]
        met.append(is_active(spec.algorithms["dqn"].hyperparameters["huber_delta"], values))
        assert (values["huber_delta"] != 1.0) == met[-1] == (values["n_step"] != 1.0)
    assert {True, False} == set(met)


def test_a_child_draws_what_became_active_unless_it_was_chosen() -> None:
    parent = declared_values(dqn()) | {"n_step": 1.0}
    drawn = {child_of(parent, seed, n_step=3.0)["huber_delta"] for seed in range(20)}
    assert len(drawn) == 20
    assert all(isinstance(value, float) and 0.1 <= value <= 2.0 for value in drawn)
    assert child_of(parent, n_step=3.0, huber_delta=0.5)["huber_delta"] == 0.5


def test_a_child_keeps_what_stays_active_and_resets_what_is_not_active_any_more() -> None:
    parent = declared_values(dqn()) | {"n_step": 3.0, "huber_delta": 0.4}
    assert child_of(parent, n_step=5.0)["huber_delta"] == 0.4
    assert child_of(parent, n_step=1.0)["huber_delta"] == 1.0
    assert child_of(parent) == parent


def test_a_list_is_one_value_of_a_hyperparameter_whose_values_are_lists() -> None:
    sizes = {"choices": [[8], [16, 16], [32]]}
    for wanted, met in (([16, 16], [16.0, 16.0]), ([[8], [16, 16]], [8.0])):
        delta = {"low": 0.1, "high": 2.0, "when": {"hidden_sizes": wanted}}
        algorithm = dqn({"hidden_sizes": sizes, "huber_delta": delta})
        assert is_active(algorithm.hyperparameters["huber_delta"], {"hidden_sizes": met})
        assert not is_active(algorithm.hyperparameters["huber_delta"], {"hidden_sizes": [32.0]})


@pytest.mark.parametrize("strategy", ["tournament", "truncation", "dexpbt", "generational"])
def test_agents_of_every_strategy_respect_conditions(strategy: str, make_race: Any) -> None:
    searched = {
        "learning_rate": {"low": 1e-5, "high": 1e-1, "value": 1e-5},
        "epochs": {"choices": [2, 4]},
        "clip_range": {"low": 0.1, "high": 0.3, "when": {"epochs": 2}},
    }
    small = {} if strategy == "tournament" else {"population_size": 4}
    race = make_race({"strategy": strategy} | small, algorithms={"ppo": {"hyperparameters": searched}}).run(40)
    values = [
        (one.agent.hyperparameters["epochs"], one.agent.hyperparameters["clip_range"]) for one in race.generations
    ]
    assert all(clip == 0.2 for epochs, clip in values if epochs == 4)
    assert any(clip != 0.2 for epochs, clip in values if epochs == 2)


def test_covariances_leave_out_agents_in_which_the_condition_is_not_met(make_candidate: Any) -> None:
    spec = specification()
    rows = [(3.0, 0.5, 1.0), (5.0, 1.5, 3.0), (1.0, 1.0, 100.0)]
    agents, candidates = [], []
    for number, (n_step, delta, score) in enumerate(rows):
        candidates.append(make_candidate(number, score, algorithm="dqn"))
        agents.append(Agent(agent_id=candidates[-1].agent_id, number=number, algorithm="dqn"))
        values = declared_values(spec.algorithms["dqn"]) | {"n_step": n_step, "huber_delta": delta}
        agents[-1].hyperparameters.update(values)
    found = statistics_of(spec, agents, candidates)[0].hyperparameter_score_covariance
    # Of two points: half the product of the differences.
    assert found["huber_delta"] == pytest.approx(0.5 * 1.0 * 2.0)

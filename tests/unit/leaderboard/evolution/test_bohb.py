"""Which values a new trial gets. What a pod gets at all is in test_asha.py."""

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from trial_log import Log

from leaderboard.evolution.agents import make
from leaderboard.evolution.bohb import observed
from leaderboard.evolution.space import spaces_of
from leaderboard.evolution.strategy import Continue, Fresh
from podrace.leaderboard.v1.leaderboard_pb2 import Agent

MakeLog = Callable[..., Log]
ALWAYS: dict[str, Any] = {"strategy": "bohb", "initial_agents": 1, "random_probability": 0.0}


@pytest.fixture
def log(make_log: MakeLog) -> Log:
    return make_log(**ALWAYS)


def trial(log: Log, rate: float, epochs: float, *scores: float, rung: int = 0) -> Agent:
    return log.finished(log.fresh(rung=rung, learning_rate=rate, epochs=epochs), *scores)


def promoted(log: Log, agent: Agent, rung: int, score: float) -> None:
    log.finished(log.again(agent, rung=rung), score, score, score, score)


def log_with_a_best(log: Log, best: float, trials: int = 30, seed: int = 5) -> Log:
    """Trials whose score is the higher, the nearer the position of their learning rate to the best."""
    random = Random(seed)
    for _ in range(trials):
        position, epochs = random.random(), 1.0 + int(random.random() * 9)
        score = 100 - 100 * abs(position - best)
        trial(log, 1e-5 * 1e4**position, epochs, score, score)
    return log


def proposal(log: Log, seed: int = 0) -> Fresh:
    answer = log.next(seed)
    while isinstance(answer, Continue):
        # The rung's quota is promoted first; it stays in training.
        log.again(next(one for one in log.agents if one.trial == answer.parent.trial), rung=answer.rung)
        answer = log.next(seed)
    assert isinstance(answer, Fresh)
    return answer


def rows(log: Log, algorithm: str = "ppo") -> Any:
    return observed(log.race, algorithm, spaces_of(algorithm, log.spec.algorithms[algorithm]))


# --- the model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("best", [0.2, 0.85])
def test_proposed_values_are_near_those_of_good_trials(log: Log, best: float) -> None:
    log_with_a_best(log, best)
    positions = []
    for seed in range(8):
        rate = proposal(log, seed).hyperparameters["learning_rate"]
        assert isinstance(rate, float)
        positions.append(math.log10(rate / 1e-5) / 4)
    assert sum(positions) / 8 == pytest.approx(best, abs=0.12)


def test_every_searched_hyperparameter_has_a_proposed_value(log: Log) -> None:
    answer = proposal(log_with_a_best(log, 0.5))
    assert set(answer.hyperparameters) == {"learning_rate", "epochs"}
    assert answer.hyperparameters["epochs"] in [float(n) for n in range(1, 10)]
    assert "proposed by a model of 30 trials on rung 0" in answer.reason


def test_a_proposed_value_is_in_the_agent(log: Log) -> None:
    log_with_a_best(log, 0.5)
    proposal(log)
    made = make("t", log.spec, len(log.agents), (), {}, {}, trials=log.race, clock=log.clock)
    assert isinstance(made, tuple)
    agent = made[0]
    assert "proposed by a model" in agent.reason
    assert not agent.parent_agent_ids


def test_no_model_is_asked_before_enough_trials_have_reached_a_rung(log: Log) -> None:
    # Two hyperparameters are searched: five trials are needed.
    for score in (1.0, 2.0, 3.0, 4.0):
        trial(log, 1e-3, 3.0, score, score)
    answer = proposal(log)
    assert not answer.hyperparameters
    assert answer.reason.endswith("no model asked")
    trial(log, 1e-2, 3.0, 5.0, 5.0)
    assert proposal(log).hyperparameters


def test_values_are_drawn_at_random_with_the_probability_of_the_setting(make_log: MakeLog) -> None:
    log = log_with_a_best(make_log(**ALWAYS | {"random_probability": 0.3}), 0.5, trials=5)
    proposal(log)
    asked = [bool(proposal(log, seed).hyperparameters) for seed in range(100)]
    assert sum(asked) / 100 == pytest.approx(0.7, abs=0.12)


def test_the_first_trial_and_the_starts_are_not_proposed(make_log: MakeLog) -> None:
    searched = {"learning_rate": {"low": 1e-5, "high": 1e-1}}
    starts = [{"learning_rate": 1e-4}, {"learning_rate": 2e-4}]
    log = make_log(algorithms={"ppo": {"hyperparameters": searched, "starts": starts}}, **ALWAYS)
    assert not proposal(log).hyperparameters
    trial(log, 1e-4, 3.0, 1.0, 1.0)
    assert proposal(log).reason == "a new trial"


# --- observations ------------------------------------------------------------------------------------------------


def test_trials_are_listed_the_best_first(log: Log) -> None:
    for rate, epochs, score in (
        (1e-5, 1.0, 2.0),
        (1e-3, 5.0, 9.0),
        (1e-1, 9.0, 4.0),
        (1e-4, 3.0, 1.0),
        (1e-2, 7.0, 5.0),
    ):
        trial(log, rate, epochs, score, score)
    rung, found = rows(log)
    assert rung == 0
    assert [round(row[1], 9) for row in found] == [0.5, 0.75, 1.0, 0.0, 0.25]
    assert [row[0] for row in found] == [pytest.approx(position) for position in (0.5, 0.75, 1.0, 0.0, 0.25)]


def test_the_highest_rung_with_enough_trials_is_used_with_the_scores_there(log: Log) -> None:
    agents = [trial(log, 1e-5 * 10 ** (n / 2), 5.0, 10.0 * n, 10.0 * n) for n in range(8)]
    for n, agent in enumerate(agents[3:7]):
        promoted(log, agent, 1, -10.0 * n)
    assert rows(log)[0] == 0
    promoted(log, agents[7], 1, 5.0)
    rung, found = rows(log)
    assert rung == 1
    assert [round(row[1] * 8) for row in found] == [7, 3, 4, 5, 6]


def test_a_trial_that_failed_is_the_worst_of_the_rung_that_it_did_not_reach(log: Log) -> None:
    for n in range(4):
        trial(log, 1e-3, 1.0 + 2 * n, -100.0 * n, -100.0 * n)
    log.end(log.fresh(learning_rate=1e-1, epochs=9.0), failed=True)
    rung, found = rows(log)
    assert (rung, len(found)) == (0, 5)
    assert found[-1] == (1.0, 1.0)
    survivor = log.agents[0]
    log.end(log.again(survivor, rung=1), failed=True)
    assert len(rows(log)[1]) == 5, "on rung 0 it keeps its score"
    assert rows(log)[1][0][1] == found[0][1]


def test_each_algorithm_has_its_own_model(make_log: MakeLog) -> None:
    searched = {"learning_rate": {"low": 1e-5, "high": 1e-1}}
    algorithms = {"ppo": {"hyperparameters": searched}, "a2c": {"hyperparameters": searched}}
    log = make_log(algorithms=algorithms, **ALWAYS)
    for n in range(12):
        log.finished(log.fresh("ppo", learning_rate=1e-5 * 2**n), 1.0, 1.0)
    assert len(rows(log, "ppo")[1]) == 12
    assert rows(log, "a2c") == (0, [])


def test_a_hyperparameter_whose_condition_is_not_met_has_no_value(make_log: MakeLog) -> None:
    searched = {
        "learning_rate": {"low": 1e-5, "high": 1e-1},
        "epochs": {"choices": [2, 4]},
        "clip_range": {"low": 0.1, "high": 0.3, "when": {"epochs": 2}},
        "discount": 0.99,
        "gae_lambda": 0.95,
        "entropy_coefficient": 0.01,
    }
    log = make_log(algorithms={"ppo": {"hyperparameters": searched}}, **ALWAYS)
    for n in range(8):
        values = {"learning_rate": 1e-3, "epochs": 2.0 + 2 * (n % 2), "clip_range": 0.2}
        log.finished(log.fresh(**values), 1.0, 1.0)
    _, found = rows(log)
    assert [(row[0], row[1]) for row in found] == [(pytest.approx(0.5), 0.0), (None, 1.0)] * 4

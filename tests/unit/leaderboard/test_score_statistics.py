import math
from collections.abc import Callable
from typing import Any

import pytest

from leaderboard.score_statistics import statistics_of
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
MakeCandidate = Callable[..., Candidate]
SEARCHED = {
    "learning_rate": {"low": 1e-4, "high": 1e-2},
    "clip_range": {"low": 0.1, "high": 0.3},
    "activation": {"choices": ["tanh", "relu"]},
    "minibatch_size": {"choices": [128, 256]},
    "gae_lambda": 0.95,
    "entropy_coefficient": 0.01,
}


@pytest.fixture
def spec(make_spec: MakeSpec) -> TournamentSpec:
    return make_spec(algorithms={"ppo": {"hyperparameters": SEARCHED}})


def agent(number: int, make_candidate: MakeCandidate, **hyperparameters: Any) -> Agent:
    made = Agent(agent_id=make_candidate(number, 0.0).agent_id, algorithm="ppo", number=number)
    values: dict[str, Any] = {"activation": "tanh", "learning_rate": 1e-3, "clip_range": 0.2, "minibatch_size": 128}
    made.hyperparameters.update(values | hyperparameters)
    return made


def test_an_agent_counts_once_with_its_best(spec: TournamentSpec, make_candidate: MakeCandidate) -> None:
    agents = [agent(number, make_candidate) for number in range(3)]
    submissions = [
        make_candidate(0, 1.0, agent_environment_steps=100, core_seconds=1.0),
        make_candidate(0, 5.0, agent_environment_steps=200, core_seconds=2.0),
        make_candidate(0, 3.0, agent_environment_steps=300, core_seconds=3.0),
        make_candidate(1, 9.0, agent_environment_steps=50, core_seconds=0.5),
    ]
    (ppo,) = statistics_of(spec, agents, submissions)
    assert (ppo.algorithm, ppo.agents, ppo.submissions) == ("ppo", 3, 4)
    assert (ppo.mean_best_score, ppo.best_score) == (7.0, 9.0)
    assert (ppo.environment_steps, ppo.core_seconds) == (350, 3.5)


def test_covariance_is_the_sample_covariance_on_the_scale_of_the_hyperparameter(
    spec: TournamentSpec, make_candidate: MakeCandidate
) -> None:
    agents = [
        agent(0, make_candidate, learning_rate=1e-4, clip_range=0.1, minibatch_size=128),
        agent(1, make_candidate, learning_rate=1e-3, clip_range=0.2, minibatch_size=256),
        agent(2, make_candidate, learning_rate=1e-2, clip_range=0.3, minibatch_size=256),
        agent(3, make_candidate, learning_rate=5e-3),
    ]
    submissions = [make_candidate(0, 1.0), make_candidate(1, 2.0), make_candidate(2, 6.0)]
    (ppo,) = statistics_of(spec, agents, submissions)
    # Deviations of the scores from their mean 3: -2, -1, 3; the divisor is 3 - 1; agent 3 has no score.
    assert ppo.hyperparameter_score_covariance == {
        "learning_rate": pytest.approx(math.log(10) * (2 + 3) / 2),
        "clip_range": pytest.approx(0.1 * (2 + 3) / 2),
        "minibatch_size": pytest.approx((128 * -2 + 256 * -1 + 256 * 3) / 2),
    }


def test_one_scored_agent_has_no_covariance(spec: TournamentSpec, make_candidate: MakeCandidate) -> None:
    (ppo,) = statistics_of(spec, [agent(0, make_candidate)], [make_candidate(0, 1.0)])
    assert not ppo.hyperparameter_score_covariance


def test_statistics_have_speed_and_variance(spec: TournamentSpec, make_candidate: MakeCandidate) -> None:
    agents = [agent(number, make_candidate, learning_rate=10.0 ** (number - 4)) for number in range(3)]
    agents[2].starting_checkpoint.CopyFrom(Checkpoint(manifest_digest="start"))
    submissions = [
        make_candidate(0, 1.0, environment_steps=1000),
        make_candidate(0, 5.0, environment_steps=3000, candidate_id="start"),
        make_candidate(1, 7.0, environment_steps=1000),
        make_candidate(2, 2.0, environment_steps=7000),
    ]
    (ppo,) = statistics_of(spec, agents, submissions)
    # Agent 0 gained 4 in 2,000 steps, agent 2 lost 3 in 4,000; agent 1 has one score. The bests are 5, 7 and 2.
    assert ppo.learning_speed == pytest.approx((4 - 3) / 6000)
    assert ppo.best_score_variance == pytest.approx(19 / 3)
    speeds = {0: 4 / 2000, 2: -3 / 4000}
    # Two points of a logarithm two decades apart: the product of half the distances, twice.
    expected = 2 * math.log(10) * (speeds[2] - speeds[0]) / 2
    assert ppo.hyperparameter_speed_covariance["learning_rate"] == pytest.approx(expected)


def test_statistics_have_the_reason_why_an_algorithm_left_the_draw(
    spec: TournamentSpec, make_candidate: MakeCandidate
) -> None:
    made = agent(0, make_candidate)
    made.left_algorithms["ppo"] = "it is bad"
    (ppo,) = statistics_of(spec, [made], [])
    assert ppo.left_draw_reason == "it is bad"
    assert (ppo.learning_speed, ppo.best_score_variance) == (0.0, 0.0)


def test_an_algorithm_without_agents_is_listed_with_zeros(spec: TournamentSpec) -> None:
    (ppo,) = statistics_of(spec, [], [])
    assert (ppo.algorithm, ppo.agents, ppo.submissions, ppo.best_score) == ("ppo", 0, 0, 0.0)

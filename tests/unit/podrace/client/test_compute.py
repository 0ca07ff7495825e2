import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.client.compute import early_stops, kind_of, summary_of
from podrace.leaderboard.v1.leaderboard_pb2 import GetStatisticsResponse
from podrace.orchestrator.v1.orchestrator_pb2 import Event
from podrace.tournament.v1.tournament_pb2 import Tournament

BEHIND = "a5 (312 ± 8.1) is behind the incumbent a0 (401 ± 2) by 89.3, more than 1.5 standard errors of 9.5"
BELOW = "a7 (-1.2e+03 ± 8) is more than 1.5 standard errors of 0.5 below -12.5, the median of rung 0"


def stopped(agent: str, reason: str) -> Event:
    return Event(kind="agent_stopped", message=f"race-abc123-{agent} stopped early after 3000 steps: {reason}")


def test_reasons_that_differ_in_agents_and_numbers_are_of_one_kind() -> None:
    other = "a12 (-3 ± nan) is behind the incumbent race-abc123-a9 (1e-05 ± 0.2) by 3, more than 2 standard errors of 1"
    assert kind_of(other) == kind_of(BEHIND)
    assert kind_of(BEHIND) == "… is behind the incumbent … by …, more than … standard errors of …"
    assert kind_of(BELOW) != kind_of(BEHIND)


@pytest.mark.parametrize("reason", ["its algorithm a2c has been eliminated", "top-level reason", ""])
def test_a_reason_without_agents_and_numbers_is_its_own_kind(reason: str) -> None:
    assert kind_of(reason) == reason


def test_stops_are_grouped_by_kind_with_the_last_reason_as_an_example() -> None:
    later = BEHIND.replace("312", "250")
    events = [
        stopped("a7", BELOW),
        stopped("a5", BEHIND),
        Event(kind="agent_failed", message="a6 failed after 3 steps: out of memory"),
        stopped("a5", later),
    ]
    first, second = early_stops(events)
    assert (first.agents, first.example) == (2, later)
    assert (second.agents, second.example) == (1, BELOW)


def statistics(**compute: float) -> GetStatisticsResponse:
    response = GetStatisticsResponse()
    response.compute.SetInParent()
    for name, value in compute.items():
        setattr(response.compute, name, value)
    return response


def test_the_shares_are_of_all_steps_and_of_the_time_of_pods() -> None:
    known = statistics(champion_environment_steps=250, pod_seconds=80.0, evaluation_seconds=20.0)
    evaluations = [Evaluation(wall_seconds=3.0), Evaluation(wall_seconds=4.0)]
    found = summary_of(Tournament(environment_steps=1000, stopped_agents=3), known, [], evaluations)
    assert (found.champion_share, found.evaluation_share) == (0.25, 0.25)
    assert (found.separate_evaluation_seconds, found.stopped_agents) == (7.0, 3)


@pytest.mark.parametrize("response", [GetStatisticsResponse(), statistics(), statistics(pod_seconds=5.0)])
def test_shares_that_are_not_known_are_none(response: GetStatisticsResponse) -> None:
    found = summary_of(Tournament(environment_steps=1000), response, [], [])
    assert (found.champion_share, found.evaluation_share, found.correlation) == (None, None, None)

"""Which tournaments and files are deleted."""

from typing import Any

import pytest

from podrace.cli.pruning.decisions import Criteria, ResultsDecision, judge, leftover_logs, leftover_results
from podrace.cli.results.origin import OWN_MESH
from podrace.tournament.v1.tournament_pb2 import Tournament, TournamentState

NOW = 1_000_000.0
DAY = 86_400
STATES = sorted(set(TournamentState.keys()) - {"TOURNAMENT_STATE_UNSPECIFIED"})


def tournament(number: int, state: str = "COMPLETED", ended_seconds_ago: float = 0.0) -> Tournament:
    """A tournament; higher numbers are newer."""
    entry = Tournament(tournament_id=f"t{number}", state=TournamentState.Value(f"TOURNAMENT_STATE_{state}"))
    entry.create_time.FromSeconds(number)
    entry.end_time.FromSeconds(int(NOW - ended_seconds_ago))
    return entry


def deleted(tournaments: list[Tournament], criteria: Criteria) -> list[str]:
    return [each.tournament.tournament_id for each in judge(tournaments, criteria, now=NOW) if each.delete]


@pytest.mark.parametrize("state", STATES)
def test_only_tournaments_that_have_ended_are_deleted(state: str) -> None:
    name = state.removeprefix("TOURNAMENT_STATE_")
    (verdict,) = judge([tournament(1, name, DAY)], Criteria(), now=NOW)
    assert verdict.delete == (name in {"COMPLETED", "CANCELLED", "FAILED"})
    assert verdict.reason


def test_a_running_tournament_that_a_criterion_names_is_kept() -> None:
    assert deleted([tournament(1, "RUNNING", 9 * DAY)], Criteria(DAY, {"RUNNING"})) == []


def test_age_counts_from_the_end_and_its_limit_is_included() -> None:
    tournaments = [tournament(1, ended_seconds_ago=DAY), tournament(2, ended_seconds_ago=DAY - 1)]
    assert deleted(tournaments, Criteria(older_than_seconds=DAY)) == ["t1"]


def test_a_tournament_without_a_recorded_end_is_as_old_as_its_creation() -> None:
    entry = tournament(1)
    entry.ClearField("end_time")
    assert deleted([entry], Criteria(older_than_seconds=NOW - 1)) == ["t1"]
    assert deleted([entry], Criteria(older_than_seconds=NOW)) == []


def test_all_criteria_must_hold() -> None:
    tournaments = [tournament(1, "FAILED", 2 * DAY), tournament(2, "FAILED", 0), tournament(3, "COMPLETED", 2 * DAY)]
    assert deleted(tournaments, Criteria(DAY, {"FAILED"})) == ["t1"]


@pytest.mark.parametrize(("keep", "expected"), [(0, ["t3", "t2", "t1"]), (1, ["t2", "t1"]), (3, []), (9, [])])
def test_the_newest_ended_tournaments_are_kept(keep: int, expected: list[str]) -> None:
    assert deleted([tournament(number) for number in (2, 3, 1)], Criteria(keep=keep)) == expected


def test_a_running_tournament_does_not_count_among_the_newest() -> None:
    tournaments = [tournament(1), tournament(2), tournament(3, "RUNNING")]
    assert deleted(tournaments, Criteria(keep=1)) == ["t1"]


def test_leftover_results_are_those_of_the_own_mesh_without_a_tournament() -> None:
    origins = {"known": OWN_MESH, "b": OWN_MESH, "a": OWN_MESH, "remote": "10.0.0.7:50051", "old": None, "kept": None}
    assert leftover_results(origins, {"known", "kept"}) == ResultsDecision(["a", "b"], ["old"])


def test_leftover_logs_are_those_of_pods_whose_tournaments_do_not_exist() -> None:
    known: Any = {"cartpole-abc", "p1"}
    logs = ["orchestrator.log", "leaderboard.log", "cartpole-abc-p1.log", "cartpole-xyz-p12.log", "notes-p1.txt"]
    assert leftover_logs([*logs, "cartpole-xyz-p12.log.1", "orchestrator.log.1"], known) == [
        "cartpole-xyz-p12.log",
        "cartpole-xyz-p12.log.1",
    ]

"""Answers hold bounded text, numbers that JSON can represent, and the events that match."""

import json

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import MatchResult
from podrace.dashboard import views
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1.orchestrator_pb2 import Event, GpuUse, Pod
from podrace.tournament.v1.tournament_pb2 import Tournament


def test_text_of_the_mesh_is_cut_and_escaped():
    assert views.text("a\x1b[31m\nb") == "a\\x1b[31m\\nb"
    assert len(views.text("x" * 100_000)) == views.LONGEST_TEXT


@pytest.mark.parametrize("shape", [views.tournament, views.details])
def test_an_empty_tournament_has_a_shape(shape):
    assert json.dumps(shape(Tournament()), allow_nan=False)


def test_numbers_that_json_cannot_represent_become_null():
    found = Candidate(score=float("nan"), standard_error=float("inf"))
    found.episode_metrics["sharpe"] = float("-inf")
    shown = views.candidate(found)
    assert (shown["score"], shown["standard_error"], shown["metrics"]) == (None, None, {"sharpe": None})


def test_a_rated_candidate_has_its_games_over_all_opponents():
    rated = Candidate(matches=[MatchResult(wins=3, draws=1), MatchResult(wins=2, losses=5)])
    assert views.candidate(rated)["games"] == [5, 1, 5]
    assert views.candidate(Candidate())["games"] is None


def test_a_state_that_this_build_does_not_know_is_shown():
    assert views.tournament(Tournament(state=99))["state"] == "running"
    assert views.pod(Pod(activity=99))["activity"] == "unspecified"


EVENTS = [
    Event(sequence=1, kind="pod_started", pod_id="t-p1", message="Free capacity"),
    Event(sequence=2, kind="agent_assigned", pod_id="t-p1", agent_id="t-a1", message="with lease epoch 1"),
    Event(sequence=3, kind="agent_assigned", pod_id="t-p2", agent_id="t-a11", message="with lease epoch 1"),
]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [3, 2, 1]),
        ({"kinds": frozenset({"pod_started"})}, [1]),
        ({"agent": "a1"}, [2]),
        ({"agent": "t-a11"}, [3]),
        ({"pod_id": "p1"}, [2, 1]),
        ({"words": "CAPACITY"}, [1]),
        ({"before": 3}, [2, 1]),
        ({"limit": 1}, [3]),
        ({"agent": "a1", "words": "capacity"}, []),
    ],
)
def test_events_match_all_filters(filters, expected):
    assert [one.sequence for one in views.matching(EVENTS, **filters)] == expected


def test_a_page_states_how_many_entries_there_are():
    assert views.page(list(range(10)), 4, 3) == {"entries": [4, 5, 6], "total": 10, "offset": 4}


def test_a_pod_has_the_use_of_its_gpus_and_null_for_what_is_not_reported():
    entry = Pod()
    assert views.pod(entry)["gpus"] == []
    entry.progress.gpus.add(uuid="GPU-a", utilization_percent=0, memory_used_bytes=5, memory_total_bytes=9)
    entry.progress.gpus.add(uuid="MIG-b\x1b")
    assert views.pod(entry)["gpus"] == [
        {"uuid": "GPU-a", "utilization_percent": 0, "memory_used_bytes": 5, "memory_total_bytes": 9},
        {"uuid": "MIG-b\\x1b", "utilization_percent": None, "memory_used_bytes": None, "memory_total_bytes": None},
    ]
    entry.progress.gpus.extend([GpuUse(uuid="x")] * 100)
    assert len(views.pod(entry)["gpus"]) == views.MOST_GPUS

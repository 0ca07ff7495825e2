"""Hyperparameters are arranged by the agents' scores and by the time of their generation."""

from messages import agent, candidate

from podrace.dashboard import hyperparameters
from podrace.dashboard.hyperparameters import parallel, schedules
from podrace.dashboard.points import SubmissionPoints
from podrace.tournament.v1.tournament_pb2 import SCALE_LOG, TournamentSpec

AGENTS = {
    one.agent_id: one
    for one in (
        agent(0, values={"rate": 0.1, "gamma": 0.9, "units": [16]}),
        agent(1, 0, {"rate": 0.2, "gamma": 0.9, "units": [32]}),
        agent(2, values={"rate": 0.4, "gamma": 0.9, "units": [16]}),
    )
}


def points_of(**scores):
    points = SubmissionPoints(0.0)
    for sequence, (name, score) in enumerate(scores.items(), 1):
        points.add(candidate(sequence, int(name[1:]), score))
    return points


def spec():
    found = TournamentSpec()
    entry = found.algorithms["ppo"].hyperparameters["rate"]
    entry.low, entry.high, entry.scale = 0.01, 1.0, SCALE_LOG
    return found


def test_agents_without_a_score_have_no_line():
    found = parallel(spec(), AGENTS, points_of(a0=1.0, a1=2.0), "ppo")
    assert [row["agent_id"] for row in found["rows"]] == ["t-abcdef-a1", "t-abcdef-a0"]


def test_axes_are_those_that_are_searched_or_differ():
    found = parallel(spec(), AGENTS, points_of(a0=1.0, a1=2.0), "ppo")
    assert found["axes"] == [
        {"name": "rate", "scale": "log", "low": 0.1, "high": 0.2},
        {"name": "units", "scale": "choice", "choices": ["[16]", "[32]"]},
    ]
    assert found["rows"][0]["values"] == [0.2, "[32]"]


def test_of_too_many_agents_the_best_are_shown(monkeypatch):
    monkeypatch.setattr(hyperparameters, "MOST_ROWS", 1)
    found = parallel(spec(), AGENTS, points_of(a0=1.0, a1=3.0, a2=2.0), "ppo")
    assert [row["score"] for row in found["rows"]] == [3.0]


def test_no_agents_have_no_axes():
    found = parallel(spec(), {}, points_of(), "ppo")
    assert (found["axes"], found["rows"]) == ([], [])


def test_a_schedule_follows_the_ancestry_of_the_champion():
    (rate,) = schedules(AGENTS, points_of(a0=1.0, a1=2.0, a2=3.0), "t-abcdef-a1", "ppo")
    assert rate["name"] == "rate"
    assert (rate["x"], rate["y"]) == ([0.0, 1.0, 2.0], [0.1, 0.2, 0.4])
    assert rate["champion"] == [0.1, 0.2, None]

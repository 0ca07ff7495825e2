"""`podrace ensemble`: its members, its requests and its output."""

from typing import Any

import pytest

from podrace.cli.commands.ensemble import best_of_agents
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


@pytest.fixture
def scored(mesh: Any) -> Any:
    evaluation = mesh.known.evaluation
    evaluation.mean_return, evaluation.variance, evaluation.episodes = 450.0, 400.0, 16
    return mesh


def test_members_are_the_best_candidates_of_different_agents() -> None:
    board = [Candidate(agent_id=agent, candidate_id=digest) for agent, digest in ("ax", "bx", "ay", "cx", "dx")]
    assert [(c.agent_id, c.candidate_id) for c in best_of_agents(board, 3)] == [("a", "x"), ("b", "x"), ("c", "x")]
    assert len(best_of_agents(board, 9)) == 4
    assert best_of_agents([], 3) == []


def test_the_ensemble_and_each_member_are_evaluated_on_the_same_episodes(type_: Any, scored: Any) -> None:
    arguments = "--top", "2", "--episodes", "16", "--seed", "3", "--option", "split=backtest"
    answer = type_("ensemble", "latest", *arguments, "--orchestrator", scored.address, "--json")
    assert answer.code == 0, answer.err
    together, *alone = scored.known.asked(pb.CreateEvaluationRequest)
    assert len(alone) == 2
    members = [together.checkpoint, *together.members]
    assert [request.checkpoint for request in alone] == members
    assert not any(request.members for request in alone)
    assert {(r.episodes, r.seed, r.options["split"]) for r in (together, *alone)} == {(16, 3, "backtest")}
    assert answer.json["ensemble"]["mean_return"] == 450.0
    assert [member["agent_id"] for member in answer.json["members"]] == [member.agent_id for member in members]


def test_the_ensemble_is_listed_above_its_members(type_: Any, scored: Any) -> None:
    answer = type_("ensemble", "latest", "--top", "2", "--orchestrator", scored.address)
    assert answer.code == 0, answer.err
    rows = [line.split()[0] for line in answer.out.splitlines() if "±" in line and "agent" not in line]
    assert rows[0] == "ensemble"
    assert len(rows) == 3


def test_a_single_episode_has_no_standard_error(type_: Any, scored: Any) -> None:
    scored.known.evaluation.variance, scored.known.evaluation.episodes = 0.0, 1
    arguments = "ensemble", "latest", "--top", "2", "--episodes", "1", "--orchestrator", scored.address
    assert type_(*arguments).out.count("±") == 1, "only in the header of the table"
    assert type_(*arguments, "--json").json["ensemble"]["standard_error"] is None


def test_a_tournament_without_candidates_is_an_error(type_: Any, scored: Any) -> None:
    scored.known.board.clear()
    answer = type_("ensemble", "latest", "--orchestrator", scored.address)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "has no candidate yet" in answer.err


def test_an_ensemble_has_at_least_two_members(type_: Any, scored: Any) -> None:
    answer = type_("ensemble", "latest", "--top", "1", "--orchestrator", scored.address)
    assert answer.code == 2
    assert "--top" in answer.err

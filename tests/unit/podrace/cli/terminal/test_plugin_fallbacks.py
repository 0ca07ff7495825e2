from typing import Any

import pytest

from podrace.cli.terminal.plugin_fallbacks import built_in_scores_note
from podrace.client.plugin_fallbacks import PluginFallbacks, count_fallbacks
from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_BY_RANK, Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

NAME = "cartpole-abc123"


@pytest.fixture
def spec() -> TournamentSpec:
    """A specification that names a plugin for every part."""
    made = TournamentSpec()
    made.evolution.generator, made.evolution.updater = "python:mine:propose", "grpc://u:1"
    made.evaluation.evaluator = "python:mine:evaluate"
    return made


def test_a_plugin_without_fallbacks_is_left_out(spec: TournamentSpec) -> None:
    judged = Candidate(opinion=OPINION_BY_RANK, opinion_reason="grpc://u:1: surely 3")
    assert count_fallbacks(spec, [Agent()], [judged]) == []


def test_each_plugin_with_fallbacks_is_listed_with_count_and_last_reason(spec: TournamentSpec) -> None:
    agents = [
        Agent(generator_fault="the generator python:mine:propose failed"),
        Agent(),
        Agent(generator_fault="the generator python:mine:propose failed: no idea"),
    ]
    submissions = [
        Candidate(opinion_reason="the updater grpc://u:1 cannot be reached", opinion=OPINION_BY_RANK),
        Candidate(opinion_reason="the updater grpc://u:1 cannot be reached"),
        Candidate(evaluator_fault="evaluator python:mine:evaluate: it exited", opinion=OPINION_BY_RANK),
    ]
    assert count_fallbacks(spec, agents, submissions) == [
        PluginFallbacks("generator", "python:mine:propose", 2, 3, "agent", "failed: no idea"),
        PluginFallbacks("updater", "grpc://u:1", 1, 3, "candidate", "cannot be reached"),
        PluginFallbacks("evaluator", "python:mine:evaluate", 1, 3, "score", "it exited"),
    ]


def test_a_tournament_without_plugins_has_no_fallbacks() -> None:
    assert count_fallbacks(TournamentSpec(), [Agent()], [Candidate()]) == []


def test_a_board_names_agents_scored_by_the_built_in_evaluator() -> None:
    board = [Candidate(agent_id=f"{NAME}-a{number}") for number in range(3)]
    assert built_in_scores_note(board, NAME) == ""
    board[1].evaluator_fault = board[2].evaluator_fault = "it exited"
    assert built_in_scores_note(board, NAME).endswith("ranked after all others: a1, a2")


def test_show_standings_and_json_report_fallbacks(type_: Any, mesh: Any) -> None:
    mesh.known.tournaments[0].spec.evaluation.evaluator = "python:mine:evaluate"
    for candidate in [*mesh.known.board, *mesh.known.submissions]:
        candidate.evaluator_fault = "evaluator python:mine:evaluate: it exited"
    here = "latest", "--orchestrator", mesh.address
    (fallbacks,) = type_("show", *here, "--json").json["plugin_fallbacks"]
    assert (fallbacks["part"], fallbacks["address"], fallbacks["last"]) == (
        "evaluator",
        "python:mine:evaluate",
        "it exited",
    )
    assert "evaluator python:mine:evaluate: the built-in evaluator was used for " in " ".join(
        type_("show", *here).out.split()
    )
    assert "scored by the built-in evaluator" in type_("standings", *here).out
    assert type_("standings", *here, "--json").json[0]["evaluator_fault"] == mesh.known.board[0].evaluator_fault

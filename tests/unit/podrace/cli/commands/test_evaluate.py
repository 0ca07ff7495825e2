from typing import Any

import pytest

from podrace.orchestrator.v1 import orchestrator_pb2 as pb


@pytest.fixture
def scored(mesh: Any) -> Any:
    evaluation = mesh.known.evaluation
    evaluation.mean_return, evaluation.variance, evaluation.episodes = 450.0, 400.0, 16
    evaluation.metrics["sharpe_ratio"] = 1.5
    return mesh


def test_a_tournament_selects_its_champion(type_: Any, scored: Any, canned: Any) -> None:
    scored.known.tournaments[0].spec.evaluation.options.update({"split": "validation", "folds": 3})
    arguments = "--episodes", "16", "--option", "split=backtest", "--option", "episode_days=0", "--seed", "3"
    answer = type_("evaluate", "latest", *arguments, "--stochastic", "--orchestrator", scored.address, "--json")
    assert answer.code == 0, answer.err
    (request,) = scored.known.asked(pb.CreateEvaluationRequest)
    assert (request.episodes, request.seed, request.stochastic) == (16, 3, True)
    assert dict(request.options) == {"split": "backtest", "episode_days": 0.0, "folds": 3.0}
    assert request.checkpoint.manifest_digest == canned.DIGEST
    assert answer.json["agent_id"] == "cartpole-abc123-a2"
    assert answer.json["candidate_id"] == canned.DIGEST
    assert answer.json["mean_return"] == 450.0
    assert answer.json["standard_error"] == 5.0
    assert answer.json["metrics"] == {"sharpe_ratio": 1.5}


def test_a_champion_that_is_an_ensemble_is_evaluated_with_all_its_members(type_: Any, scored: Any, canned: Any) -> None:
    member = scored.known.tournaments[0].champion_selection.members.add()
    member.agent_id, member.manifest_digest = "cartpole-abc123-a1", "feed" + 60 * "0"
    answer = type_("evaluate", "latest", "--orchestrator", scored.address, "--json")
    (request,) = scored.known.asked(pb.CreateEvaluationRequest)
    assert (request.checkpoint.manifest_digest, list(request.members)) == (canned.DIGEST, [member])
    assert answer.json["candidate_id"] == canned.DIGEST
    assert answer.json["members"] == [
        {"agent_id": member.agent_id, "candidate_id": member.manifest_digest, "hyperparameters": None}
    ]
    out = type_("evaluate", "latest", "--orchestrator", scored.address).out
    assert f"cartpole-abc123-a2 ({canned.DIGEST[:12]}) + cartpole-abc123-a1 (feed00000000): mean return" in out


def test_the_environment_is_that_of_the_evaluations_of_the_tournament(type_: Any, scored: Any) -> None:
    scored.known.tournaments[0].spec.evaluation.options.update({"split": "validation"})
    type_("evaluate", "latest", "--orchestrator", scored.address)
    type_("ensemble", "latest", "--top", "2", "--orchestrator", scored.address)
    asked = scored.known.asked(pb.CreateEvaluationRequest)
    assert len(asked) == 4
    assert all(dict(request.options) == {"split": "validation"} for request in asked)


def test_an_agent_selects_its_best_candidate(type_: Any, scored: Any, canned: Any) -> None:
    worse = canned.candidate("cartpole-abc123", 1, 10.0)
    worse.candidate_id = "dead" + 60 * "0"
    scored.known.submissions.append(worse)
    type_("evaluate", "latest-a1", "--orchestrator", scored.address, "--json")
    (request,) = scored.known.asked(pb.CreateEvaluationRequest)
    assert request.checkpoint.manifest_digest == scored.known.submissions[1].candidate_id
    assert request.episodes == 32


def test_a_candidate_is_found_by_a_prefix_of_its_id(type_: Any, scored: Any, canned: Any) -> None:
    answer = type_("evaluate", "0001a", "--orchestrator", scored.address)
    assert answer.code == 0, answer.err
    (request,) = scored.known.asked(pb.CreateEvaluationRequest)
    assert request.checkpoint.agent_id == "cartpole-abc123-a1"
    assert "mean return 450.0 ± 5.0 over 16 episodes" in answer.out
    assert "sharpe ratio" in answer.out


def test_a_failed_evaluation_shows_the_error_of_the_pod(type_: Any, scored: Any) -> None:
    scored.known.evaluation_error = "stocks: unknown option 'splitt'; did you mean 'split'?"
    answer = type_("evaluate", "latest", "--option", "splitt=backtest", "--orchestrator", scored.address)
    assert answer.code == 1
    assert answer.err == f"error: evaluation cartpole-abc123-e1 failed: {scored.known.evaluation_error}\n"


def test_a_score_of_the_built_in_evaluator_is_reported(type_: Any, scored: Any) -> None:
    scored.known.evaluation.evaluator_fault = "evaluator grpc://there:1: cannot be reached"
    answer = type_("evaluate", "latest", "--orchestrator", scored.address, "--json")
    assert answer.code == 0, answer.err
    assert answer.err == (
        "cartpole-abc123-e1 was scored by the built-in evaluator instead of the plugin:"
        " evaluator grpc://there:1: cannot be reached\n"
    )
    assert answer.json["mean_return"] == 450.0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["latest", "--option", "split"], "--option split: expected KEY=VALUE, for instance split=backtest"),
        (["deadbeef"], "unknown candidate 'deadbeef'"),
        (["latest-a9"], "agent cartpole-abc123-a9 has no candidate"),
        (["latest", "--episodes", "0"], "Invalid value for '--episodes'"),
    ],
)
def test_an_error_is_reported_in_one_line(type_: Any, scored: Any, arguments: list[str], line: str) -> None:
    answer = type_("evaluate", *arguments, "--orchestrator", scored.address)
    assert answer.code == 2
    assert line in answer.err
    assert answer.err.count("\n") == 1


def test_a_tournament_without_candidates_has_no_champion(type_: Any, scored: Any) -> None:
    scored.known.tournaments[0].champion_manifest_digest = ""
    answer = type_("evaluate", "latest", "--orchestrator", scored.address)
    assert answer.err == "error: tournament cartpole-abc123 has no candidate yet\n"

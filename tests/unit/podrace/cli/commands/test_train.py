import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from podrace.cli import session
from podrace.cli.results.origin import OWN_MESH, read_origin
from podrace.cli.views import plain_lines
from podrace.client.follow import TournamentView
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

SPEC = """
[environment]
id = "CartPole-v1"
[algorithms.ppo]
[objective]
target_return = 475
"""
DOCUMENTED = [
    "tournament_id", "state", "reason", "objective", "best_score", "best_score_standard_error", "best_agent_id",
    "champion_hyperparameters", "total_environment_steps", "failed_agents", "wall_seconds", "champion_checkpoint",
    "reported_episodes", "selection_score", "selection_score_standard_error", "champion_reason", "champion_members",
    "folder",
]  # fmt: skip


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "cartpole.toml"
    path.write_text(SPEC)
    return str(path)


@pytest.mark.long
def test_train_prints_one_json_object_with_the_documented_keys(type_: Any, mesh: Any, canned: Any, spec: str) -> None:
    mesh.known.tournaments = []
    answer = type_("train", spec, "--set", "name=race", "--orchestrator", mesh.address, "--json")
    assert answer.code == 0, answer.err
    assert list(answer.json) == DOCUMENTED
    assert answer.json["tournament_id"] == "race-abc123"
    assert answer.json["state"] == "COMPLETED"
    assert answer.json["objective"] == {"target_return": 475.0}
    assert answer.json["best_score"] == 480.0
    assert answer.json["champion_checkpoint"] == canned.DIGEST
    assert answer.json["wall_seconds"] == 42.0
    assert answer.json["selection_score"] is None, "this champion was not evaluated again"


@pytest.mark.long
def test_the_orchestrator_receives_a_resolved_specification(type_: Any, mesh: Any, spec: str) -> None:
    type_("train", spec, "--set", "seed=7", "--set", "pool.maximum_pods=2", "--orchestrator", mesh.address, "--json")
    (request,) = mesh.known.asked(pb.CreateTournamentRequest)
    assert request.spec.seed == 7
    assert request.spec.pool.maximum_pods == 2
    assert request.spec.algorithms["ppo"].hyperparameters["discount"].value.number_value == 0.99
    assert request.request_id


@pytest.mark.long
def test_failed_agents_are_reported_with_the_reason_of_the_last_one(type_: Any, mesh: Any, spec: str) -> None:
    def fail_two() -> None:
        mesh.known.tournaments[0].failed_agents = 2

    mesh.known.on_watch = fail_two
    mesh.known.events = [
        pb.Event(kind="agent_failed", message="a1 failed: out of room"),
        pb.Event(kind="agent_failed", message="a2 failed: value_loss is nan"),
        pb.Event(kind="agent_finished", message="a0 finished"),
    ]
    answer = type_("train", spec, "--orchestrator", mesh.address)
    assert "failed: 2 of 3 agents; the last: a2 failed: value_loss is nan" in answer.err
    assert "over 3 agents, 2 failed" in answer.out


def test_results_are_in_the_reported_folder(type_: Any, mesh: Any, spec: str) -> None:
    answer = type_("train", spec, "--orchestrator", mesh.address, "--json")
    folder = Path(answer.json["folder"])
    assert folder == Path("podrace-home/tournaments/cartpole-v1-abc123").resolve()
    assert (folder / "learning_curves.png").stat().st_size > 10_000
    report = json.loads((folder / "report.json").read_text())
    about_compute = {name: report.pop(name) for name in ("compute", "early_stops", "episode_correlation")}
    assert report == answer.json | {"importance": [], "reports": {}}
    assert about_compute["compute"]["environment_steps"] == answer.json["total_environment_steps"]
    assert about_compute["episode_correlation"] == {"correlation": 0.81, "pairs": 228}


def test_results_record_the_mesh_that_they_are_from(
    type_: Any, mesh: Any, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("podrace-home/tournaments/cartpole-v1-abc123")
    type_("train", spec, "--orchestrator", mesh.address)
    assert read_origin(folder) == mesh.address
    monkeypatch.setattr(session, "open_mesh", lambda *_, **__: contextlib.nullcontext(mesh.address))
    mesh.known.tournaments = []
    assert type_("train", spec).code == 0
    assert read_origin(folder) == OWN_MESH


def test_reports_evaluate_the_champion_only_after_the_end(type_: Any, mesh: Any, canned: Any, tmp_path: Path) -> None:
    path = tmp_path / "stocks.toml"
    reports = '[reports.backtest]\nepisodes = 1\n[reports.backtest.options]\nsplit = "backtest"\nepisode_days = 0\n'
    path.write_text(SPEC.replace("CartPole-v1", "stocks") + reports)
    evaluation = mesh.known.evaluation
    evaluation.mean_return, evaluation.episodes, evaluation.mean_length_steps = 8.5, 1, 416.0
    evaluation.metrics.update({"sharpe_ratio": 1.234, "cumulative_return": 0.321, "equal_weight_sharpe_ratio": 0.9})
    for name in ("account_value", "equal_weight_value"):
        evaluation.traces[name].values.extend([1e6, 1.1e6, 1.2e6])
        evaluation.traces[name].labels.extend(["2011-07-01", "2011-07-05", "2011-07-06"])
    at_the_end = []
    mesh.known.on_watch = lambda: at_the_end.extend(mesh.known.asked(pb.CreateEvaluationRequest))
    answer = type_("train", str(path), "--orchestrator", mesh.address)
    assert answer.code == 0, answer.err
    assert at_the_end == []
    (request,) = mesh.known.asked(pb.CreateEvaluationRequest)
    assert request.checkpoint.agent_id == "stocks-abc123-a2"
    assert request.checkpoint.manifest_digest == canned.DIGEST
    assert request.episodes == 1
    assert dict(request.options) == {"split": "backtest", "episode_days": 0.0}
    folder = tmp_path / "podrace-home/tournaments/stocks-abc123"
    assert (folder / "account_value_backtest.png").stat().st_size > 10_000
    report = json.loads((folder / "report.json").read_text())["reports"]["backtest"]
    assert report["metrics"]["sharpe_ratio"] == 1.234
    assert report["traces"]["account_value"]["labels"][0] == "2011-07-01"
    rows = [line.split() for line in answer.out.splitlines()]
    assert ["cumulative", "return", "32.1", "%", "-"] in rows
    assert ["sharpe", "ratio", "1.23", "0.90"] in rows
    assert str(folder) in answer.out


MEMBER_DIGEST = "fe" * 32


def test_a_champion_that_is_an_ensemble_is_named_and_reported_with_all_its_members(
    type_: Any, mesh: Any, tmp_path: Path
) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC + "[reports.again]\nepisodes = 4\n")

    def select() -> None:
        selection = mesh.known.tournaments[0].champion_selection
        if not selection.members:
            selection.members.add(agent_id="cartpole-v1-abc123-a1", manifest_digest=MEMBER_DIGEST)
        selection.reported_episodes, selection.selection_score = 64, 490.0

    mesh.known.on_watch = select
    answer = type_("train", str(path), "--orchestrator", mesh.address)
    assert answer.code == 0, answer.err
    assert "champion a2 + a1: 480.0 ± 2.5" in answer.out
    assert "its score is on 64 new episodes that were not used for selection; selected by 490.0" in answer.out
    (request,) = mesh.known.asked(pb.CreateEvaluationRequest)
    assert [member.manifest_digest for member in request.members] == [MEMBER_DIGEST]
    report = json.loads((tmp_path / "podrace-home/tournaments/cartpole-v1-abc123/report.json").read_text())
    assert report["champion_members"] == [
        {"agent_id": "cartpole-v1-abc123-a1", "candidate_id": MEMBER_DIGEST, "hyperparameters": None}
    ]


def test_a_report_of_an_account_states_the_deflated_sharpe_ratio(type_: Any, mesh: Any, tmp_path: Path) -> None:
    path = tmp_path / "stocks.toml"
    path.write_text(SPEC.replace("CartPole-v1", "stocks") + "[reports.whole]\nepisodes = 1\n")
    mesh.known.evaluation.traces["account_value"].values.extend([1e6, 1.1e6, 1.05e6, 1.2e6, 1.3e6])
    for number, entry in enumerate(mesh.known.submissions):
        entry.episode_metrics["sharpe_ratio"] = 0.5 + number
    mesh.known.submissions[-1].episode_correlation = 0.5
    answer = type_("train", str(path), "--orchestrator", mesh.address)
    assert answer.code == 0, answer.err
    tried = len(mesh.known.submissions)
    folder = tmp_path / "podrace-home/tournaments/stocks-abc123"
    found = json.loads((folder / "report.json").read_text())["reports"]["whole"]["deflated_sharpe"]
    assert (found["candidates"], found["independent_trials"]) == (tried, 0.5 + 0.5 * tried)
    assert found["returns"] == 4
    assert 0 < found["deflated_sharpe_ratio"] < found["probabilistic_sharpe_ratio"] < 1
    line = f"deflated Sharpe ratio {found['deflated_sharpe_ratio']:.3f}"
    assert line in " ".join(answer.out.split())
    assert line in (folder / "whole.html").read_text()


def test_a_failed_report_is_shown_and_does_not_affect_the_others(type_: Any, mesh: Any, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC + "[reports.again]\nepisodes = 4\n")
    mesh.known.evaluation_error = "the checkpoint is gone"
    answer = type_("train", str(path), "--orchestrator", mesh.address)
    assert answer.code == 0
    assert "the checkpoint is gone" in answer.out
    report = json.loads((tmp_path / "podrace-home/tournaments/cartpole-v1-abc123/report.json").read_text())
    assert "the checkpoint is gone" in report["reports"]["again"]["error"]


def test_a_broken_watch_resumes_after_the_last_event(type_: Any, mesh: Any, spec: str) -> None:
    mesh.known.breaks = 2
    assert type_("train", spec, "--orchestrator", mesh.address).code == 0
    assert [request.resume_token for request in mesh.known.asked(pb.WatchTournamentRequest)] == [0, 1, 1]


def test_a_failed_tournament_fails_with_its_reason_in_one_line(type_: Any, mesh: Any, spec: str) -> None:
    mesh.known.end_state = "FAILED"
    answer = type_("train", spec, "--orchestrator", mesh.address, "--json")
    assert answer.code == 1
    assert answer.json["state"] == "FAILED"
    last = answer.err.splitlines()[-1]
    assert last.startswith("error: tournament cartpole-v1-abc123 failed: target return")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_cancels_and_shows_how_to_resume(
    type_: Any, mesh: Any, spec: str, number: signal.Signals
) -> None:
    mesh.known.ends_by_itself = False
    mesh.known.on_watch = lambda: os.kill(os.getpid(), number)
    answer = type_("train", spec, "--orchestrator", mesh.address, "--json")
    assert answer.code == 130
    assert answer.json["state"] == "CANCELLED"
    assert answer.json["reason"] == "stopped from the keyboard"
    assert len(mesh.known.asked(pb.CancelTournamentRequest)) == 1
    assert f"podrace train --resume cartpole-v1-abc123 --orchestrator {mesh.address}\n" in answer.err


def test_the_second_interrupt_does_not_wait(type_: Any, mesh: Any, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from podrace.client import Client

    async def interrupt_again(client: Client, tournament_id: str, reason: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    mesh.known.ends_by_itself = False
    mesh.known.on_watch = lambda: os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr(Client, "cancel_tournament", interrupt_again)
    answer = type_("train", spec, "--orchestrator", mesh.address)
    assert answer.code == 130
    assert "podrace train --resume cartpole-v1-abc123" in answer.err


def test_resume_continues_a_cancelled_tournament(type_: Any, mesh: Any, canned: Any) -> None:
    mesh.known.tournaments = [canned.tournament("cartpole-abc123", "CANCELLED")]
    answer = type_("train", "--resume", "latest", "--orchestrator", mesh.address, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["state"] == "COMPLETED"
    (request,) = mesh.known.asked(pb.ResumeTournamentRequest)
    assert request.tournament_id == "cartpole-abc123"


def test_a_completed_tournament_gets_its_missing_report_and_is_not_resumed(type_: Any, mesh: Any) -> None:
    made = type_("train", "--resume", "latest", "--orchestrator", mesh.address, "--json")
    assert made.code == 0, made.err
    assert (Path(made.json["folder"]) / "report.json").exists()
    answer = type_("train", "--resume", "latest", "--orchestrator", mesh.address)
    assert answer.code == 1
    assert answer.err.startswith("error: tournament cartpole-abc123 is complete")
    assert answer.err.count("\n") == 1
    assert mesh.known.asked(pb.ResumeTournamentRequest) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["train"], "train: name a specification, for instance examples/cartpole.toml, or --resume TOURNAMENT"),
        (["train", "missing.toml"], "missing.toml: cannot be read: No such file or directory"),
        (["train", "broken.toml"], "broken.toml: not valid TOML: "),
        (["train", "typing.toml"], "typing.toml: environment.coutn: unknown key 'coutn'; did you mean 'count'?"),
        (
            ["train", "good.toml", "--set", "algorithms.pppo.ratio=1"],
            "good.toml: algorithms.pppo: unknown algorithm 'pppo'; did you mean 'ppo'?",
        ),
        (["train", "good.toml", "--set", "seed"], "--set seed: expected KEY=VALUE, for instance pool.maximum_pods=2"),
        (["train", "good.toml", "--set", "seed=-1"], "good.toml: seed = -1: expected a whole number"),
        (["train", "good.toml", "--resume", "x"], "train: good.toml and --resume x: a tournament keeps its"),
        (
            ["train", "--resume", "x", "--set", "seed=1"],
            "train: --set, --label, --print-config, --check and --ancestor need a spec",
        ),
        (
            ["train", "good.toml", "--check", "--print-config"],
            "train: --print-config and --check: give only one of them",
        ),
        (["train", "--resume", "x"], "podrace-home: there are no tournaments"),
        (["trian"], "podrace: unknown command 'trian'; did you mean 'train'?"),
    ],
)
def test_an_error_is_reported_in_one_line_that_names_its_source(
    type_: Any, tmp_path: Path, arguments: list[str], line: str
) -> None:
    (tmp_path / "good.toml").write_text(SPEC)
    (tmp_path / "typing.toml").write_text(SPEC.replace('id = "CartPole-v1"', 'id = "CartPole-v1"\ncoutn = 3'))
    (tmp_path / "broken.toml").write_text("[environment\n")
    answer = type_(*arguments)
    assert answer.code == 2
    assert answer.err.startswith(f"error: {line}")
    assert answer.err.count("\n") == 1
    assert answer.out == ""
    assert not (tmp_path / "podrace-home").exists()


def test_debug_adds_the_traceback(type_: Any) -> None:
    answer = type_("train", "missing.toml", "--debug")
    assert "Traceback" in answer.err
    assert answer.err.splitlines()[-1].startswith("error: missing.toml")


def test_without_a_terminal_progress_is_printed_every_few_seconds_and_at_the_end(canned: Any) -> None:
    lines: list[str] = []
    times = iter([100.0, 100.0, 100.2, 104.9, 105.0, 105.2, 105.3, 120.0])
    screen = plain_lines.PlainLines(lines.append, clock=lambda: next(times))
    running, ended = canned.tournament("race-1", "RUNNING"), canned.tournament("race-1", "COMPLETED")
    for _ in range(5):
        screen.draw(TournamentView(running, last_update=100.0))
    assert len(lines) == 2
    screen.draw(TournamentView(ended, last_update=100.0))
    screen.draw(TournamentView(ended, last_update=100.0))
    assert len(lines) == 3
    assert lines[1].startswith("race-1  RUNNING  0:47  return 480.0 ± 2.5 of 475.0  1.2M steps  40.0k steps/s")


@pytest.mark.long
@pytest.mark.parametrize(
    ("ancestor", "agent_id"), [("cartpole", "cartpole-abc123-a2"), ("cartpole-abc123-a1", "cartpole-abc123-a1")]
)
def test_an_ancestor_is_an_agent_or_the_champion_of_a_tournament(
    type_: Any, mesh: Any, spec: str, ancestor: str, agent_id: str
) -> None:
    type_("train", spec, "--ancestor", ancestor, "--orchestrator", mesh.address, "--json")
    (request,) = mesh.known.asked(pb.CreateTournamentRequest)
    assert request.spec.evolution.ancestor_agent_id == agent_id


def test_an_unknown_ancestor_is_refused_before_a_tournament_is_created(type_: Any, mesh: Any, spec: str) -> None:
    answer = type_("train", spec, "--ancestor", "unknown", "--orchestrator", mesh.address)
    assert answer.code == 2
    assert "unknown tournament 'unknown'" in answer.err
    assert not mesh.known.asked(pb.CreateTournamentRequest)

import io
from typing import Any

import pytest
from rich.console import Console

from podrace.cli.views import plain_lines
from podrace.cli.views.live_table import render
from podrace.cli.views.progress import elapsed_seconds, progress
from podrace.client.follow import TournamentView
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


@pytest.fixture
def view(known: Any, canned: Any) -> TournamentView:
    running = canned.tournament("cartpole-abc123", "RUNNING")
    running.spec.objective.wall_clock_duration.FromSeconds(180)
    return TournamentView(
        running, known.pods, known.board, first_score=120.0, last_event="2 cores are free", last_update=50.0
    )


def drawn(view: TournamentView, *, now: float = 51.0, width: int = 80, height: int = 40) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(view, now=now, height=height))
    return console.export_text().splitlines()


def row(lines: list[str], begin: str) -> list[str]:
    return next(line.split() for line in lines if line.strip(" │").startswith(begin))


def test_the_leaderboard_shows_rank_agent_algorithm_score_steps_and_parents(view: TournamentView) -> None:
    lines = drawn(view)
    assert row(lines, "rank") == ["rank", "agent", "algorithm", "score", "±", "standard", "error", "steps", "parents"]
    assert row(lines, "1") == ["1", "a2", "ppo", "480.0", "±", "2.5", "300k", "a1"]
    assert row(lines, "3") == ["3", "a0", "ppo", "120.0", "±", "2.5", "100k", "-"]


def test_the_pods_are_shown_with_their_activity(view: TournamentView) -> None:
    view.pods[0].progress.steps_per_second, view.pods[0].progress.policy_lag = 40_400.0, 0.5
    view.pods[0].progress.plane = "shared"
    view.pods.append(pb.Pod(pod_id="cartpole-abc123-p2", activity=pb.POD_ACTIVITY_IDLE))
    lines = drawn(view)
    assert row(lines, "pod ") == ["pod", "activity", "agent", "steps", "steps/s", "policy", "lag", "plane"]
    assert row(lines, "p1") == ["p1", "training", "a2", "123k", "40.4k", "0.50", "shared"]
    assert row(lines, "p2") == ["p2", "idle", "-", "-", "-", "-", "-"]


def test_the_header_shows_the_progress_towards_each_objective(view: TournamentView) -> None:
    text = "\n".join(drawn(view))
    for expected in (
        "cartpole-abc123",
        "RUNNING",
        "0:43 of 3:00",
        "480.0 ± 2.5 of 475.0",
        "1.2M",
        "40.0k per second",
        "3 agents so far",
        "by a2",
        "2 cores are free",
    ):
        assert expected in text


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_the_terminal(view: TournamentView, width: int) -> None:
    view.last_event = "a long story " * 20
    assert max(len(line) for line in drawn(view, width=width)) <= width


def test_a_long_board_is_cut_to_the_terminal_with_a_note(view: TournamentView, canned: Any) -> None:
    view.board = [canned.candidate("cartpole-abc123", number, 1.0, rank=number + 1) for number in range(50)]
    lines = drawn(view, height=30)
    assert len(lines) <= 30
    assert any("leaderboard (first" in line and "of 50)" in line for line in lines)


def test_silence_of_the_orchestrator_is_reported(view: TournamentView) -> None:
    assert "no message from the orchestrator" not in "\n".join(drawn(view, now=54.0))
    assert "no message from the orchestrator for 0:06" in "\n".join(drawn(view, now=56.0))


def test_the_running_time_is_constant_while_the_tournament_does_not_run(canned: Any) -> None:
    assert elapsed_seconds(canned.tournament("t", "RUNNING"), 3.0) == 45.0
    assert elapsed_seconds(canned.tournament("t", "COMPLETED"), 3.0) == 42.0


@pytest.mark.parametrize(
    ("target", "first", "best", "fraction"),
    [(-200.0, -1200.0, -700.0, 0.5), (475.0, 0.0, 600.0, 1.0), (475.0, 500.0, 500.0, 1.0), (100.0, 0.0, -50.0, 0.0)],
)
def test_progress_towards_the_target_return_starts_at_the_first_score(
    canned: Any, target: float, first: float, best: float, fraction: float
) -> None:
    tournament = canned.tournament("t")
    tournament.spec.objective.target_return, tournament.best_score = target, best
    assert progress(tournament, 0.0, first)[1].fraction == fraction


def test_what_an_episode_is_worth_is_named(canned: Any) -> None:
    tournament = canned.tournament("t")
    tournament.spec.evaluation.objective = "sharpe_ratio"
    view = TournamentView(tournament, last_update=100.0)
    assert "  sharpe ratio 480.0 ± 2.5 of 475.0  " in plain_lines.line(view, now=100.0)


def test_a_quantity_that_is_not_an_objective_has_no_progress(canned: Any) -> None:
    tournament = canned.tournament("t")
    tournament.spec.objective.Clear()
    assert [quantity.fraction for quantity in progress(tournament, 1.0, 0.0)] == [None, None, None]
    tournament.spec.objective.environment_steps = 2 * tournament.environment_steps
    assert progress(tournament, 1.0, 0.0)[2].fraction == 0.5

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from podrace.cli.grid.axes import make_cells, parse_axes
from podrace.cli.grid.results import CellOutcome, Grid
from podrace.cli.grid.screen import GridLines, render, shown_cells
from podrace.client.follow import TournamentView

VALUES = {
    "environment": {"id": "CartPole-v1"},
    "algorithms": {"ppo": {}},
    "objective": {"environment_steps": 2_000_000},
}
DONE = CellOutcome("COMPLETED", "steps", "t-1", 480.0, 2.5, 1_234_567, 42.0, 40.0)


@pytest.fixture
def grid() -> Grid:
    axes = parse_axes(["strategy=pb2,softmax", "seed=0..9"])
    return Grid("g", tuple(axes), tuple(make_cells(VALUES, axes, source="x")), Path("out"))


@pytest.fixture
def view(known: Any, canned: Any) -> TournamentView:
    running = canned.tournament("cartpole-abc123", "RUNNING")
    running.spec.objective.Clear()
    running.spec.objective.environment_steps = 2_000_000
    return TournamentView(running, known.pods, known.board, first_score=120.0, last_update=50.0)


def drawn(grid: Grid, views: dict[str, TournamentView], *, height: int = 40) -> list[str]:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(grid, views, now=51.0, height=height))
    return console.export_text().splitlines()


def test_every_cell_has_a_row_with_its_state(grid: Grid, view: TournamentView) -> None:
    first, second, third, *_ = (cell.spec.name for cell in grid.cells)
    grid.outcomes[first] = DONE
    grid.outcomes[third] = CellOutcome("FAILED", "pods die", "t-3")
    lines = drawn(grid, {second: view})
    rows = [line.split() for line in lines if line.startswith(("pb2", "softmax"))]
    assert len(rows) == 20
    assert rows[0] == ["pb2", "0", "COMPLETED", "0:40", "480.0", "±", "2.5", "1.2M"]
    assert rows[1] == ["pb2", "1", "RUNNING", "0:43", "480.0", "±", "2.5", "1.2M", "of", "2.0M", "40.0k", "1"]
    assert rows[2][:3] == ["pb2", "2", "FAILED"]
    assert rows[3] == ["pb2", "3", "not", "started"]
    assert "1 of 20 cells done, 1 running, 1 not completed" in lines[-1]


def test_a_small_terminal_shows_running_then_waiting_then_ended_cells(grid: Grid) -> None:
    names = [cell.spec.name for cell in grid.cells]
    for name in names[:10]:
        grid.outcomes[name] = DONE
    shown = shown_cells(grid, {names[10], names[11]}, room=8)
    assert shown == {*names[10:12], *names[12:14], *names[6:10]}
    lines = drawn(grid, {}, height=14)
    assert len(lines) <= 14
    assert "12 not shown" in lines[-1]


def test_without_a_terminal_a_running_cell_prints_a_line_every_few_seconds(grid: Grid, view: TournamentView) -> None:
    lines_written: list[str] = []
    now = [100.0]
    lines = GridLines(lines_written.append, clock=lambda: now[0])
    views = {grid.cells[1].spec.name: view, grid.cells[2].spec.name: view}
    for seconds in (0.0, 1.0, 4.9, 5.0):
        now[0] = 100.0 + seconds
        lines.draw(grid, views)
    assert [line.split("  ")[0] for line in lines_written] == ["strategy=pb2 seed=1:", "strategy=pb2 seed=2:"] * 2
    assert "cartpole-abc123  RUNNING" in lines_written[0]


def test_an_ended_cell_is_reported_with_its_result(grid: Grid) -> None:
    lines_written: list[str] = []
    lines = GridLines(lines_written.append)
    lines.ended(grid.cells[0], DONE)
    lines.ended(grid.cells[1], CellOutcome("FAILED", "five pods in a row died"))
    lines.ended(grid.cells[2], CellOutcome("COMPLETED", "no agent was scored before the end"))
    assert lines_written == [
        "strategy=pb2 seed=0:  COMPLETED  return 480.0 ± 2.5  1.2M steps  0:40",
        "strategy=pb2 seed=1:  FAILED  five pods in a row died",
        "strategy=pb2 seed=2:  COMPLETED  no agent was scored before the end",
    ]

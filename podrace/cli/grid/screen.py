"""Shows a running grid: a table on a terminal, otherwise a line per cell every few seconds."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Group, RenderableType
from rich.text import Text

from podrace.cli.grid.axes import Cell
from podrace.cli.grid.results import COMPLETED, NOT_STARTED, CellOutcome, Grid
from podrace.cli.terminal import formats
from podrace.cli.terminal.live_area import LiveArea
from podrace.cli.views import tables
from podrace.cli.views.plain_lines import LINE_SECONDS, line
from podrace.cli.views.progress import elapsed_seconds, progress
from podrace.client.follow import TournamentView

_FIXED_LINES = 6
"""Upper bound of the lines of a full screen besides the rows of cells."""
_STATE_STYLES = {COMPLETED: "green", NOT_STARTED: "dim"}


def render(grid: Grid, views: dict[str, TournamentView], *, now: float, height: int = 40) -> RenderableType:
    """Returns a table with the state of the cells.

    Args:
        grid: The grid with its outcomes so far.
        views: State of the running cells, by the name of their specification.
        now: Current time on the monotonic clock.
        height: Lines of the terminal. If not all cells fit, `shown_cells` chooses which are shown.
    """
    names = list(grid.cells[0].labels)
    numbers = "time", "return", "steps", "steps/s", "pods"
    table = tables.plain_table(*names, "state", *numbers, right=numbers)
    shown = shown_cells(grid, set(views), room=max(3, height - _FIXED_LINES))
    for cell in grid.cells:
        if cell.spec.name in shown:
            view = views.get(cell.spec.name)
            row = _ended_row(grid.outcome(cell)) if view is None else _running_row(view, now)
            table.add_row(*cell.labels.values(), *row)
    return Group(table, Text(_summary(grid, len(views), len(shown)), style="dim"))


def shown_cells(grid: Grid, running: set[str], *, room: int) -> set[str]:
    """Returns the names of the cells that are shown, if there is room for only some of them."""
    names = [cell.spec.name for cell in grid.cells]
    ended = [name for name in grid.outcomes if name not in running]
    waiting = [name for name in names if name not in running and name not in grid.outcomes]
    first = [name for name in names if name in running]
    # Running cells, then a few waiting ones, then those that ended last, then the other waiting ones.
    kept = first + waiting[: room // 4] + ended[::-1] + waiting[room // 4 :]
    return set(kept[:room])


def _running_row(view: TournamentView, now: float) -> list[str | Text]:
    tournament = view.tournament
    elapsed, best, steps = progress(tournament, elapsed_seconds(tournament, now - view.last_update), view.first_score)
    speed = formats.count(tournament.steps_per_second)
    return [tables.state_text(tournament), elapsed.text, best.text, steps.text, speed, str(len(view.pods))]


def _ended_row(outcome: CellOutcome) -> list[str | Text]:
    started = outcome.state != NOT_STARTED
    state = Text(outcome.state if started else "not started", style=_STATE_STYLES.get(outcome.state, "red"))
    if not started:
        return [state]
    known = outcome.score is not None and outcome.standard_error is not None
    best = formats.score(outcome.score or 0.0, outcome.standard_error or 0.0) if known else tables.NOTHING
    return [state, formats.duration(outcome.training_seconds), best, formats.count(outcome.environment_steps)]


def _summary(grid: Grid, running: int, shown: int) -> str:
    good = sum(outcome.good for outcome in grid.outcomes.values())
    bad = len(grid.outcomes) - good
    parts = [f"{good} of {formats.things(len(grid.cells), 'cell')} done", f"{running} running"]
    parts += [f"{bad} not completed"] if bad else []
    parts += [f"{len(grid.cells) - shown} not shown"] if shown < len(grid.cells) else []
    return ", ".join(parts)


class GridTable(LiveArea):
    """Shows a running grid on a terminal."""

    def draw(self, grid: Grid, views: dict[str, TournamentView]) -> None:
        """Shows the current state."""
        self.show(render(grid, views, now=time.monotonic(), height=self.console.height))

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        """Reports why a cell failed; a successful cell is visible in the table."""
        if not outcome.good:
            self.notify(f"{cell.title}: {outcome.state.lower()}: {outcome.reason}")


class GridLines:
    """Writes a line for each running cell every `LINE_SECONDS`, and a line for each cell that has ended."""

    def __init__(self, notify: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the function that writes a line, and a monotonic clock in seconds."""
        self.notify = notify
        self._clock = clock
        self._due: dict[str, float] = {}

    def __enter__(self) -> "GridLines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves the lines as they are."""

    def draw(self, grid: Grid, views: dict[str, TournamentView]) -> None:
        """Writes the lines of the running cells if it is time for them."""
        now = self._clock()
        for cell in grid.cells:
            view = views.get(cell.spec.name)
            if view is not None and now >= self._due.get(cell.spec.name, now):
                self._due[cell.spec.name] = now + LINE_SECONDS
                self.notify(f"{cell.title}:  {line(view, now=now)}")

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        """Reports how a cell ended."""
        if outcome.score is None or outcome.standard_error is None or not outcome.good:
            self.notify(f"{cell.title}:  {outcome.state}  {outcome.reason}")
            return
        score = formats.score(outcome.score, outcome.standard_error)
        steps = f"{formats.count(outcome.environment_steps)} steps"
        self.notify(
            f"{cell.title}:  {outcome.state}  return {score}  {steps}  {formats.duration(outcome.training_seconds)}"
        )

"""Shows a running tournament on a terminal: progress, board and pods. Fits 80 to 120 columns."""

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from podrace.cli.terminal import formats
from podrace.cli.terminal.live_area import LiveArea
from podrace.cli.views import tables
from podrace.cli.views.progress import ObjectiveProgress, elapsed_seconds, progress
from podrace.client.calls.tournaments import END_STATES
from podrace.client.follow import TournamentView
from podrace.printable import printable
from podrace.tournament.v1.tournament_pb2 import Tournament

SILENCE_SECONDS = 5.0
"""After this time without a message from the orchestrator, the table reports it."""
BAR_WIDTH = 24
_FIXED_LINES = 16
"""Upper bound of the lines of a full screen besides the rows of candidates and pods."""


def render(view: TournamentView, *, now: float, height: int = 40) -> RenderableType:
    """Returns the live table.

    Args:
        view: State of the tournament.
        now: Current time on the monotonic clock, as `view.last_update`.
        height: Lines of the terminal. Longer tables are cut, and their title states it.
    """
    tournament_id = view.tournament.tournament_id
    room = max(6, height - _FIXED_LINES)
    pods = view.pods[: max(2, room // 3)]
    board = view.board[: max(3, room - len(pods))]
    parts: list[RenderableType] = [_header(view, now)]
    if board:
        title = _title("leaderboard", board, view.board)
        parts.append(_spaced(tables.standings_table(board, tournament_id, title=title)))
    if pods:
        title = _title("pods", pods, view.pods)
        parts.append(_spaced(tables.pods_table(pods, tournament_id, title=title)))
    return Group(*parts)


def _spaced(table: Table) -> Padding:
    return Padding(table, (1, 1, 0, 2))


def _title(name: str, shown: Sequence[object], there: Sequence[object]) -> str:
    return name if len(shown) == len(there) else f"{name} (first {len(shown)} of {len(there)})"


def _header(view: TournamentView, now: float) -> Panel:
    tournament = view.tournament
    rows = tables.EscapingTable.grid(padding=(0, 2), expand=True)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    silence = now - view.last_update
    steps = progress(tournament, elapsed_seconds(tournament, silence), view.first_score)
    for step, remark in zip(steps, _remarks(tournament), strict=True):
        rows.add_row(step.name, step.text, _bar(step), Text(printable(remark), style="dim"))
    last = tables.EscapingTable.grid(padding=(0, 2), expand=True)
    last.add_column(style="dim", no_wrap=True)
    last.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    last.add_row("last  ", Text(printable(_last(view, silence)), overflow="ellipsis"))
    title = Text.assemble((printable(tournament.tournament_id), "bold"), "  ", tables.state_text(tournament))
    return Panel(Group(rows, last), title=title, title_align="left", border_style="dim", width=None)


def _remarks(tournament: Tournament) -> tuple[str, str, str]:
    """Returns the texts next to time, return and steps."""
    best = tables.champion_name(tournament) if tournament.champion_manifest_digest else ""
    agents = f"{formats.agents(tournament)} so far"
    return agents, f"by {best}" if best else "", f"{formats.count(tournament.steps_per_second)} per second"


def _bar(step: ObjectiveProgress) -> RenderableType:
    if step.fraction is None:
        return ""
    return ProgressBar(
        total=1.0, completed=step.fraction, width=BAR_WIDTH, complete_style="cyan", finished_style="green"
    )


def _last(view: TournamentView, silence_seconds: float) -> str:
    if view.tournament.state in END_STATES:
        return view.tournament.reason or view.last_event
    if silence_seconds > SILENCE_SECONDS:
        return f"no message from the orchestrator for {formats.duration(silence_seconds)}"
    if view.stopping:
        return "stopping: pods publish their results (Ctrl-C again: stop immediately)"
    if view.tournament.pause_reason:
        return f"paused: {view.tournament.pause_reason}"
    return view.last_event or tables.NOTHING


class LiveTable(LiveArea):
    """Shows a running tournament on a terminal."""

    def draw(self, view: TournamentView) -> None:
        """Shows the current state."""
        self.show(render(view, now=time.monotonic(), height=self.console.height))

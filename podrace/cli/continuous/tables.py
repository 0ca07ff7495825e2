"""Shows the state of a continuous training: its activity, its champion and the verdict on each version."""

from collections.abc import Callable, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podrace.cli.continuous.dataset import DIGEST_CHARACTERS
from podrace.cli.continuous.journal import FIRST, REPLACED, JournalEntry, JournalState, ScoredAgent
from podrace.cli.continuous.process import TrainingProcess
from podrace.cli.terminal import formats
from podrace.cli.views import tables

SHOWN_VERSIONS = 20
"""Number of versions shown; --json lists all."""
NOT_RUNNING, WAITING, TRAINING, COMPARING = "not running", "waiting", "training", "comparing"


def activity(state: JournalState, process: TrainingProcess | None) -> str:
    """Returns the current activity: not running, waiting, training or comparing."""
    if process is None:
        return NOT_RUNNING
    if state.work is None:
        return WAITING
    return TRAINING if state.work.challenger is None else COMPARING


def overview(state: JournalState, process: TrainingProcess | None) -> RenderableType:
    """Returns the state, the champion and the latest versions as tables."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _facts(state, process).items():
        table.add_row(f"  {label}", text)
    parts: list[RenderableType] = [Text(state.name, style="bold"), table]
    if state.history:
        shown = state.history[: -SHOWN_VERSIONS - 1 : -1]
        parts += [Text(), _history(shown), Text(), *(_why(entry) for entry in shown)]
    return Group(*parts, Text())


def _facts(state: JournalState, process: TrainingProcess | None) -> dict[str, str]:
    facts = {"state": activity(state, process) + (f" (pid {process.pid})" if process else "")}
    facts["watches"] = state.reference
    if state.trouble:
        facts["trouble"] = state.trouble
    work = state.work
    if work:
        facts["version"] = f"{work.version.digest[:DIGEST_CHARACTERS]}, arrived {_moment(work.version.arrive_time)}"
        facts["tournament"] = work.tournament_id or "not created yet"
        if work.ancestor_agent_id:
            facts["tournament"] += f", from {work.ancestor_agent_id}"
    elif state.history:
        last = state.history[-1]
        facts["version"] = f"{last.digest[:DIGEST_CHARACTERS]}, arrived {_moment(last.arrive_time)}"
    if state.pending:
        facts["next"] = f"{state.pending.digest[:DIGEST_CHARACTERS]} waits"
    if state.champion:
        version = state.champion_version[:DIGEST_CHARACTERS]
        facts["champion"] = f"{state.champion.agent_id}, {_score(state.champion)} on version {version}"
    else:
        facts["champion"] = "none yet"
    return facts


def _history(newest_first: Sequence[JournalEntry]) -> Table:
    numbers = "challenger's score", "champion's score"
    table = tables.plain_table("arrived", "version", "verdict", "tournament", *numbers, right=numbers)
    for entry in newest_first:
        table.add_row(
            _moment(entry.arrive_time),
            entry.digest[:DIGEST_CHARACTERS],
            entry.verdict,
            entry.tournament_id or tables.NOTHING,
            _score(entry.challenger),
            _score(entry.incumbent),
            style="bold" if entry.verdict in (FIRST, REPLACED) else "",
        )
    return table


def _why(entry: JournalEntry) -> Text:
    """Returns the reason of a verdict as a separate line, because it is too long for a column."""
    return Text.assemble((entry.digest[:DIGEST_CHARACTERS], "dim"), f"  {entry.verdict}: {entry.reason}")


def _score(one: ScoredAgent | None) -> str:
    if one is None or one.score is None:
        return tables.NOTHING
    return formats.score(one.score.mean_return, one.score.standard_error)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def timed(notify: Callable[[str], None]) -> Callable[[str], None]:
    """Returns a function that writes a line with the current time, for a log."""

    def notify_timed(line: str) -> None:
        notify(f"{datetime.now().isoformat(sep=' ', timespec='seconds')} {line}")

    return notify_timed

"""Continuous training for a person: where it stands, who is champion, what came of each version."""

from collections.abc import Callable, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podrace.cli.continuous.dataset import DIGEST_CHARACTERS
from podrace.cli.continuous.process import Identity
from podrace.cli.continuous.state import FIRST, REPLACED, Contestant, Entry, Memory
from podrace.cli.terminal import formats
from podrace.cli.views import tables

SHOWN_VERSIONS = 20
"""Of the history; --json has all."""
NOT_RUNNING, WAITING, TRAINING, COMPARING = "not running", "waiting", "training", "comparing"


def state(memory: Memory, process: Identity | None) -> str:
    """Where it stands, in a word."""
    if process is None:
        return NOT_RUNNING
    if memory.work is None:
        return WAITING
    return TRAINING if memory.work.challenger is None else COMPARING


def overview(memory: Memory, process: Identity | None) -> RenderableType:
    """All that is worth knowing on a screen."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _facts(memory, process).items():
        table.add_row(f"  {label}", text)
    parts: list[RenderableType] = [Text(memory.name, style="bold"), table]
    if memory.history:
        shown = memory.history[: -SHOWN_VERSIONS - 1 : -1]
        parts += [Text(), _history(shown), Text(), *(_why(entry) for entry in shown)]
    return Group(*parts, Text())


def _facts(memory: Memory, process: Identity | None) -> dict[str, str]:
    facts = {"state": state(memory, process) + (f" (pid {process.pid})" if process else "")}
    facts["watches"] = memory.reference
    if memory.trouble:
        facts["trouble"] = memory.trouble
    work = memory.work
    if work:
        facts["version"] = f"{work.version.digest[:DIGEST_CHARACTERS]}, arrived {_moment(work.version.arrive_time)}"
        facts["tournament"] = work.tournament_id or "about to be created"
        if work.ancestor_agent_id:
            facts["tournament"] += f", from {work.ancestor_agent_id}"
    elif memory.history:
        last = memory.history[-1]
        facts["version"] = f"{last.digest[:DIGEST_CHARACTERS]}, arrived {_moment(last.arrive_time)}"
    if memory.pending:
        facts["next"] = f"{memory.pending.digest[:DIGEST_CHARACTERS]} waits"
    if memory.champion:
        version = memory.champion_version[:DIGEST_CHARACTERS]
        facts["champion"] = f"{memory.champion.agent_id}, {_score(memory.champion)} on version {version}"
    else:
        facts["champion"] = "none yet"
    return facts


def _history(newest_first: Sequence[Entry]) -> Table:
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


def _why(entry: Entry) -> Text:
    """In a line of its own: a column would be a word wide."""
    return Text.assemble((entry.digest[:DIGEST_CHARACTERS], "dim"), f"  {entry.verdict}: {entry.reason}")


def _score(one: Contestant | None) -> str:
    if one is None or one.score is None:
        return tables.NOTHING
    return formats.score(one.score.mean_return, one.score.standard_error)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def timed(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Lines for a log, each with its time."""

    def tell_timed(line: str) -> None:
        tell(f"{datetime.now().isoformat(sep=' ', timespec='seconds')} {line}")

    return tell_timed

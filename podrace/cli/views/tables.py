"""Builds tables of candidates, pods, events, tournaments and metrics.

Tables escape control characters in their cells.
"""

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import RenderableType
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from podrace.cli.terminal import formats
from podrace.client.champion import members_of_champion
from podrace.client.enum_values import UNSPECIFIED, word_of
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1.orchestrator_pb2 import Event, Pod, PodActivity
from podrace.printable import printable
from podrace.tournament.v1.tournament_pb2 import Tournament

NOTHING = "-"
_STATE_STYLES = {
    "RUNNING": "green",
    "ENDING": "yellow",
    "COMPLETED": "bold green",
    "CANCELLED": "yellow",
    "FAILED": "red",
}
_ACTIVITY_STYLES = {"training": "green", "evaluating": "cyan", "publishing": "magenta"}
_RANK_STYLES = {1: "bold"}


class EscapingTable(Table):
    """A table that escapes control characters, line feeds included, in cells that are strings."""

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        """Adds a row."""
        escaped = (printable(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*escaped, style=style, end_section=end_section)


def plain_table(*columns: str, title: str = "", right: Sequence[str] = ()) -> Table:
    """Returns an empty table in the style of all commands.

    Args:
        columns: Names of the columns.
        title: Title above the table.
        right: Columns that are aligned to the right, because they contain numbers.
    """
    table = EscapingTable(
        box=box.SIMPLE_HEAD,
        title=printable(title) or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True, header_style="dim")
    return table


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Returns a table of names and texts without lines."""
    table = EscapingTable.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(name, text)
    return table


def standings_table(candidates: Sequence[Candidate], tournament_id: str, *, title: str = "") -> Table:
    """Returns the board: ranks, agents, scores with standard errors, and parents."""
    numbers = "rank", "score ± standard error", "steps"
    table = plain_table("rank", "agent", "algorithm", *numbers[1:], "parents", title=title, right=numbers)
    # All scores have the decimals of the best one, so that the column is aligned.
    digits = formats.decimals(candidates[0].score, candidates[0].standard_error) if candidates else 0
    for candidate in candidates:
        table.add_row(
            str(candidate.rank),
            formats.short(candidate.agent_id, tournament_id),
            candidate.algorithm,
            formats.score(candidate.score, candidate.standard_error, digits),
            formats.count(candidate.environment_steps),
            formats.short_all(candidate.parent_agent_ids, tournament_id) or NOTHING,
            style=_RANK_STYLES.get(candidate.rank, ""),
        )
    return table


def pods_table(pods: Iterable[Pod], tournament_id: str, *, title: str = "") -> Table:
    """Returns the pods and their activities."""
    numbers = "steps", "steps/s", "policy lag"
    table = plain_table("pod", "activity", "agent", *numbers, "plane", title=title, right=numbers)
    for pod in pods:
        activity = word_of(PodActivity.DESCRIPTOR, pod.activity)
        held = pod.progress if pod.agent_id else None
        table.add_row(
            formats.short(pod.pod_id, tournament_id),
            Text(NOTHING if activity == UNSPECIFIED else activity, style=_ACTIVITY_STYLES.get(activity, "dim")),
            formats.short(pod.agent_id, tournament_id) or NOTHING,
            formats.count(held.environment_steps) if held else NOTHING,
            formats.count(held.steps_per_second) if held else NOTHING,
            f"{held.policy_lag:.2f}" if held else NOTHING,
            (held.plane if held else "") or NOTHING,
        )
    return table


def events_table(events: Sequence[Event], tournament_id: str, *, title: str = "", dated: bool = False) -> Table:
    """Returns events with their messages.

    Args:
        events: The events, oldest first.
        tournament_id: Their tournament.
        title: Title above the table.
        dated: Whether to show the date; it is also shown if any event is not of today.
    """
    dated = dated or not all(formats.is_today(event.time) for event in events)
    table = plain_table("time", "event", "what happened", title=title)
    table.columns[-1].no_wrap = False
    for event in events:
        time = formats.local_second(event.time) if dated else formats.clock_time(event.time)
        # Short names such as a7 instead of stocks-x2k4qz-a7, which would fill half of the line.
        table.add_row(time, event.kind, event.message.replace(f"{tournament_id}-", ""))
    return table


def tournaments_table(tournaments: Iterable[Tournament]) -> Table:
    """Returns one row per tournament."""
    numbers = "best score", "agents", "steps", "time"
    table = plain_table("tournament", "state", *numbers, "created", right=numbers)
    for tournament in tournaments:
        table.add_row(
            tournament.tournament_id,
            state_text(tournament),
            best_score(tournament),
            formats.count(tournament.agents),
            formats.count(tournament.environment_steps),
            formats.duration(formats.seconds(tournament.running_duration)),
            formats.local_time(tournament.create_time),
        )
    return table


def state_text(tournament: Tournament) -> Text:
    """Returns the state of a tournament in its color."""
    state = formats.state(tournament)
    return Text(state, style=_STATE_STYLES.get(state, ""))


def best_score(tournament: Tournament) -> str:
    """Returns the best score with its standard error; a dash while the board is empty."""
    if not tournament.HasField("best_score"):
        return NOTHING
    return formats.score(tournament.best_score, tournament.best_score_standard_error)


def champion_name(tournament: Tournament) -> str:
    """Returns the short names of the agents that are the champion, joined by plus signs; a dash if there is none."""
    names = [formats.short(one.agent_id, tournament.tournament_id) for one in members_of_champion(tournament)]
    return " + ".join(names) or NOTHING


def score_source(tournament: Tournament) -> str:
    """Returns in one line how the champion's score was measured; empty before the champion has been selected."""
    if not tournament.HasField("champion_selection"):
        return ""
    selection = tournament.champion_selection
    selected = formats.score(selection.selection_score, selection.selection_standard_error)
    if not selection.reported_episodes:
        return "the score by which it was selected, which is too high on average"
    episodes = formats.things(selection.reported_episodes, "new episode")
    return f"on {episodes} that were not used for selection; selected by {selected}"


# --- metrics of an evaluation ------------------------------------------------------------------------------------

BASELINE = "equal_weight_"
"""Prefix of metrics of the baseline, which buys and holds the equal-weight pool."""
_FRACTIONS = {"cumulative_return", "annual_return", "annual_volatility", "maximum_drawdown"}


def metrics_table(metrics: Mapping[str, float], *, column: str) -> Table:
    """Returns the metrics of a simulator next to those of its baseline, if there are any.

    Args:
        metrics: Values by name; those of the baseline have the prefix `BASELINE`.
        column: Title of the column of the policy.
    """
    own = [name for name in metrics if not name.startswith(BASELINE)]
    has_baseline = any(name.startswith(BASELINE) for name in metrics)
    columns = (column, "equal weight") if has_baseline else (column,)
    table = plain_table("measure", *columns, right=columns)
    for name in _in_order(own):
        row = [_measure(name, metrics[name])]
        if has_baseline:
            row.append(_measure(name, metrics[BASELINE + name]) if BASELINE + name in metrics else NOTHING)
        table.add_row(name.replace("_", " "), *row)
    return table


_ORDER = (
    "cumulative_return", "annual_return", "annual_volatility", "sharpe_ratio", "maximum_drawdown", "calmar_ratio",
)  # fmt: skip


def _in_order(names: Iterable[str]) -> list[str]:
    """Sorts metrics: those of the papers in their order, then the others by name."""
    return sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def _measure(name: str, value: float) -> str:
    if name in _FRACTIONS:
        return formats.percent(value)
    return f"{value:.2f}" if name.endswith("_ratio") else formats.number(value)

"""Tables of candidates, pods, tournaments and measures, the same live and after."""

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from podrace.cli.terminal import formats
from podrace.client.enum_values import UNSPECIFIED, word_of
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1.orchestrator_pb2 import Event, Pod, PodActivity
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


def plain_table(*columns: str, title: str = "", right: Sequence[str] = ()) -> Table:
    """A table in the house's style; columns in `right` hold numbers."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True, header_style="dim")
    return table


def standings_table(candidates: Sequence[Candidate], tournament_id: str, *, title: str = "") -> Table:
    """The board: who is best, how sure that is, and where it comes from."""
    numbers = "rank", "score ± standard error", "steps"
    table = plain_table("rank", "agent", "algorithm", *numbers[1:], "parents", title=title, right=numbers)
    # As many decimals as the best one's error is worth, so that the column lines up.
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
    """The pods and what each does."""
    numbers = "steps", "steps/s", "policy lag"
    table = plain_table("pod", "does", "agent", *numbers, "plane", title=title, right=numbers)
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
    """Decisions with their reasons; with the day if `dated`, or if any is of another than today."""
    dated = dated or not all(formats.is_today(event.time) for event in events)
    table = plain_table("time", "event", "what happened", title=title)
    table.columns[-1].no_wrap = False
    for event in events:
        time = formats.local_second(event.time) if dated else formats.clock_time(event.time)
        # Within their tournament: a7 instead of stocks-x2k4qz-a7, which would fill half of the line.
        table.add_row(time, event.kind, Text(event.message.replace(f"{tournament_id}-", "")))
    return table


def tournaments_table(tournaments: Iterable[Tournament]) -> Table:
    """One line a tournament."""
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
    """The state in its colour."""
    state = formats.state(tournament)
    return Text(state, style=_STATE_STYLES.get(state, ""))


def best_score(tournament: Tournament) -> str:
    """The best score with its error; a dash while the board is empty."""
    if not tournament.HasField("best_score"):
        return NOTHING
    return formats.score(tournament.best_score, tournament.best_score_standard_error)


# --- measures of an evaluation -----------------------------------------------------------------------------------

BASELINE = "equal_weight_"
"""What simulators put before the name of a measure when it is that of buy and hold of the equal-weight pool."""
_FRACTIONS = {"cumulative_return", "annual_return", "annual_volatility", "maximum_drawdown"}


def metrics_table(metrics: Mapping[str, float], *, column: str) -> Table:
    """What a simulator measured, beside its baseline if it has one.

    Args:
        metrics: Values by name, those of the baseline with its prefix.
        column: Whose measures these are.
    """
    own = [name for name in metrics if not name.startswith(BASELINE)]
    beside = any(name.startswith(BASELINE) for name in metrics)
    columns = (column, "equal weight") if beside else (column,)
    table = plain_table("measure", *columns, right=columns)
    for name in _in_order(own):
        row = [_measure(name, metrics[name])]
        if beside:
            row.append(_measure(name, metrics[BASELINE + name]) if BASELINE + name in metrics else NOTHING)
        table.add_row(name.replace("_", " "), *row)
    return table


_ORDER = (
    "cumulative_return", "annual_return", "annual_volatility", "sharpe_ratio", "maximum_drawdown", "calmar_ratio",
)  # fmt: skip


def _in_order(names: Iterable[str]) -> list[str]:
    """The papers' order, then the alphabet's."""
    return sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def _measure(name: str, value: float) -> str:
    if name in _FRACTIONS:
        return formats.percent(value)
    return f"{value:.2f}" if name.endswith("_ratio") else formats.number(value)

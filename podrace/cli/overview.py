"""All about one tournament on a page, for `podrace show`."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podrace.cli import formats, tables
from podrace.cli.progress import progress
from podrace.leaderboard.v1.leaderboard_pb2 import AlgorithmStatistics
from podrace.orchestrator.v1.orchestrator_pb2 import Event, Pod
from podrace.tournament.v1.tournament_pb2 import Tournament, TournamentSpec


def overview(
    tournament: Tournament, pods: Sequence[Pod], events: Sequence[Event], statistics: Sequence[AlgorithmStatistics]
) -> RenderableType:
    """Draws a tournament.

    Args:
        tournament: With its specification.
        pods: All of its pods.
        events: The latest, oldest first.
        statistics: One an algorithm.
    """
    parts: list[RenderableType] = [_facts(tournament), Text()]
    if pods:
        parts += [tables.pods_table(pods, tournament.tournament_id, title="pods"), Text()]
    if statistics:
        parts += [_statistics_table(statistics), Text()]
    if events:
        parts.append(_events_table(events))
    return Group(*parts)


def _facts(tournament: Tournament) -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    facts.add_row("tournament", Text(tournament.tournament_id, style="bold"))
    facts.add_row("state", Text.assemble(tables.state_text(tournament), f"  {tournament.reason}"))
    for quantity in progress(tournament, formats.seconds(tournament.running_duration), first_score=None):
        facts.add_row(quantity.name, quantity.text)
    facts.add_row("champion", formats.short(tournament.best_agent_id, tournament.tournament_id) or tables.NOTHING)
    facts.add_row("trained", formats.agents(tournament))
    facts.add_row("created", formats.local_time(tournament.create_time))
    for name, text in _settings(tournament.spec):
        facts.add_row(name, text)
    return facts


def _settings(spec: TournamentSpec) -> list[tuple[str, str]]:
    """What was asked for, as far as a line each says it."""
    mix = ", ".join(f"{name} ({spec.algorithms[name].ratio:g})" for name in sorted(spec.algorithms))
    agent = f"{formats.count(spec.assignment.environment_steps)} steps an agent"
    return [
        ("environment", f"{spec.environment.id}, {spec.environment.count} side by side"),
        ("algorithms", mix),
        ("evolution", f"{spec.evolution.strategy}, {agent}, seed {spec.seed}"),
        ("evaluation", f"{spec.evaluation.episodes} episodes"),
    ]


def _statistics_table(statistics: Sequence[AlgorithmStatistics]) -> Table:
    numbers = "agents", "submissions", "mean of bests", "best", "steps", "core time"
    table = tables.plain_table("algorithm", *numbers, title="algorithms", right=numbers)
    for entry in statistics:
        table.add_row(
            entry.algorithm,
            formats.count(entry.agents),
            formats.count(entry.submissions),
            formats.number(entry.mean_best_score) if entry.submissions else tables.NOTHING,
            formats.number(entry.best_score) if entry.submissions else tables.NOTHING,
            formats.count(entry.environment_steps),
            formats.duration(entry.core_seconds),
        )
    return table


def _events_table(events: Sequence[Event]) -> Table:
    table = tables.plain_table("time", "event", "what happened", title="latest events")
    table.columns[-1].no_wrap = False
    for event in events:
        table.add_row(formats.clock_time(event.time), event.kind, event.message)
    return table

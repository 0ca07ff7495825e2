"""All about one tournament on a page, for `podrace show`."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podrace.cli.terminal import formats
from podrace.cli.terminal.plugin_fallbacks import describe_fallbacks
from podrace.cli.views import tables
from podrace.cli.views.progress import progress
from podrace.client.plugin_fallbacks import PluginFallbacks, named_plugins
from podrace.leaderboard.v1.leaderboard_pb2 import AlgorithmStatistics
from podrace.orchestrator.v1.orchestrator_pb2 import Event, Pod
from podrace.tournament.v1.tournament_pb2 import Tournament, TournamentSpec

PER_STEPS = 1_000_000
"""Environment steps to which learning speeds are told."""
STATISTICS_NOTE = "mean and variance over the best scores of agents; speed: score gained in a million steps"
COVARIANCE_NOTE = "+: agents with higher values scored higher; of the logarithm where a range is logarithmic"


def overview(
    tournament: Tournament,
    pods: Sequence[Pod],
    events: Sequence[Event],
    statistics: Sequence[AlgorithmStatistics],
    fallbacks: Sequence[PluginFallbacks] = (),
) -> RenderableType:
    """Draws a tournament.

    Args:
        tournament: With its specification.
        pods: All of its pods.
        events: The latest, oldest first.
        statistics: One an algorithm.
        fallbacks: Plugins that built-in components replaced.
    """
    parts: list[RenderableType] = [_facts(tournament), Text()]
    if fallbacks:
        parts += [*(Text(describe_fallbacks(one), style="yellow") for one in fallbacks), Text()]
    if pods:
        parts += [tables.pods_table(pods, tournament.tournament_id, title="pods"), Text()]
    if statistics:
        notes = Text(STATISTICS_NOTE, style="dim"), *_departures(statistics)
        parts += [_statistics_table(statistics), *notes, Text()]
    if any(entry.hyperparameter_score_covariance for entry in statistics):
        parts += [_covariance_table(statistics), Text(COVARIANCE_NOTE, style="dim"), Text()]
    if events:
        parts.append(tables.events_table(events, tournament.tournament_id, title="latest events"))
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
        *([("allocation", _allocation(spec))] if len(spec.algorithms) > 1 else []),
        ("evaluation", f"{spec.evaluation.episodes} episodes"),
        *named_plugins(spec).items(),
    ]


def _allocation(spec: TournamentSpec) -> str:
    """Which algorithms the next agents have."""
    if spec.evolution.allocation == "halving":
        agents = formats.things(spec.evolution.halving_agents, "scored agent")
        return f"halving: after {agents} of each the worse half of the algorithms gets no more"
    return "ratio: fresh agents as the algorithms' ratios say"


def _statistics_table(statistics: Sequence[AlgorithmStatistics]) -> Table:
    numbers = "agents", "scores", "best", "mean", "variance", "speed", "steps", "core time"
    table = tables.plain_table("algorithm", *numbers, title="algorithms", right=numbers)
    for entry in statistics:
        scores = entry.best_score, entry.mean_best_score, entry.best_score_variance
        table.add_row(
            entry.algorithm,
            formats.count(entry.agents),
            formats.count(entry.submissions),
            *(formats.number(score) if entry.submissions else tables.NOTHING for score in scores),
            formats.number(entry.learning_speed * PER_STEPS) if entry.learning_speed else tables.NOTHING,
            formats.count(entry.environment_steps),
            formats.duration(entry.core_seconds),
            style="dim" if entry.left_draw_reason else "",
        )
    return table


def _departures(statistics: Sequence[AlgorithmStatistics]) -> list[Text]:
    """Why algorithms get no more agents."""
    left = [entry for entry in statistics if entry.left_draw_reason]
    return [Text(f"{entry.algorithm} left the draw: {entry.left_draw_reason}") for entry in left]


def _covariance_table(statistics: Sequence[AlgorithmStatistics]) -> Table:
    """What searched hyperparameters had to do with scores."""
    numbers = "with best score", "with speed"
    table = tables.plain_table("algorithm", "hyperparameter", *numbers, title="covariance over agents", right=numbers)
    for entry in statistics:
        speeds = entry.hyperparameter_speed_covariance
        for name, covariance in sorted(entry.hyperparameter_score_covariance.items()):
            speed = f"{speeds[name] * PER_STEPS:+.3g}" if name in speeds else tables.NOTHING
            table.add_row(entry.algorithm, name, f"{covariance:+.3g}", speed)
    return table

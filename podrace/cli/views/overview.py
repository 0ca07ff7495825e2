"""Shows one tournament in full, for `podrace show`."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podrace.cli.terminal import formats
from podrace.cli.terminal.plugin_fallbacks import describe_fallbacks
from podrace.cli.views import compute as compute_view
from podrace.cli.views import tables
from podrace.cli.views.progress import progress
from podrace.client.compute import ComputeSummary
from podrace.client.plugin_fallbacks import PluginFallbacks, named_plugins
from podrace.leaderboard.v1.leaderboard_pb2 import AlgorithmStatistics
from podrace.orchestrator.v1.orchestrator_pb2 import Event, Pod
from podrace.printable import printable
from podrace.tournament.v1.tournament_pb2 import Tournament, TournamentSpec

PER_STEPS = 1_000_000
"""Environment steps per unit of learning speed."""
STATISTICS_NOTE = "mean and variance of the best scores of agents; speed: score gained per million steps"
COVARIANCE_NOTE = "positive: agents with higher values scored higher; of the logarithm on a log scale"


def overview(
    tournament: Tournament,
    pods: Sequence[Pod],
    events: Sequence[Event],
    statistics: Sequence[AlgorithmStatistics],
    compute: ComputeSummary,
    fallbacks: Sequence[PluginFallbacks] = (),
) -> RenderableType:
    """Returns everything about a tournament as text and tables.

    Args:
        tournament: The tournament with its specification.
        pods: All of its pods.
        events: Its latest events, oldest first.
        statistics: Statistics of each algorithm.
        compute: What its compute was used for.
        fallbacks: Fallbacks of each plugin that built-in components replaced.
    """
    parts: list[RenderableType] = [_facts(tournament, compute), Text()]
    if fallbacks:
        parts += [*(Text(printable(describe_fallbacks(one)), style="yellow") for one in fallbacks), Text()]
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


def _facts(tournament: Tournament, compute: ComputeSummary) -> Table:
    facts = tables.EscapingTable.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    facts.add_row("tournament", Text(printable(tournament.tournament_id), style="bold"))
    facts.add_row("state", Text.assemble(tables.state_text(tournament), f"  {printable(tournament.reason)}"))
    if tournament.pause_reason:
        facts.add_row("paused", printable(tournament.pause_reason))
    for quantity in progress(tournament, formats.seconds(tournament.running_duration), first_score=None):
        facts.add_row(quantity.name, quantity.text)
    facts.add_row("champion", tables.champion_name(tournament))
    if source := tables.score_source(tournament):
        facts.add_row("its score", f"{tables.best_score(tournament)} {source}")
    facts.add_row("trained", formats.agents(tournament))
    facts.add_row("created", formats.local_time(tournament.create_time))
    if tournament.owner:
        namespace = f" of {tournament.namespace}" if tournament.namespace else ""
        facts.add_row("owner", printable(f"{tournament.owner}{namespace}"))
    for name, text in [*compute_view.facts(compute), *_settings(tournament.spec)]:
        facts.add_row(name, text)
    return facts


def _settings(spec: TournamentSpec) -> list[tuple[str, str]]:
    """Returns the most important settings of a specification, one line each."""
    mix = ", ".join(f"{name} ({spec.algorithms[name].ratio:g})" for name in sorted(spec.algorithms))
    agent = f"{formats.count(spec.assignment.environment_steps)} steps per agent"
    return [
        ("environment", f"{spec.environment.id}, {spec.environment.count} in parallel"),
        ("algorithms", mix),
        ("evolution", f"{spec.evolution.strategy}, {agent}, seed {spec.seed}"),
        *([("allocation", _allocation(spec))] if len(spec.algorithms) > 1 else []),
        ("evaluation", f"{'up to ' * spec.evaluation.racing}{spec.evaluation.episodes} episodes"),
        *named_plugins(spec).items(),
    ]


def _allocation(spec: TournamentSpec) -> str:
    """Describes how the algorithms of new agents are chosen."""
    if spec.evolution.allocation == "halving":
        agents = formats.things(spec.evolution.halving_agents, "scored agent")
        return f"halving: after {agents} of each algorithm, the worse half gets no new agents"
    return "ratio: fresh agents use the algorithms in the specified ratios"


def _statistics_table(statistics: Sequence[AlgorithmStatistics]) -> Table:
    numbers = "agents", "scores", "best", "mean", "variance", "speed", "steps", "core time", "share"
    total = sum(entry.core_seconds for entry in statistics)
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
            formats.percent(entry.core_seconds / total) if total else tables.NOTHING,
            style="dim" if entry.left_draw_reason else "",
        )
    return table


def _departures(statistics: Sequence[AlgorithmStatistics]) -> list[Text]:
    """Returns a line for each algorithm that gets no new agents, with the reason."""
    left = [entry for entry in statistics if entry.left_draw_reason]
    return [Text(printable(f"{entry.algorithm} gets no new agents: {entry.left_draw_reason}")) for entry in left]


def _covariance_table(statistics: Sequence[AlgorithmStatistics]) -> Table:
    """Returns the covariances of searched hyperparameters with scores and learning speeds."""
    numbers = "with best score", "with speed"
    table = tables.plain_table("algorithm", "hyperparameter", *numbers, title="covariance over agents", right=numbers)
    for entry in statistics:
        speeds = entry.hyperparameter_speed_covariance
        for name, covariance in sorted(entry.hyperparameter_score_covariance.items()):
            speed = f"{speeds[name] * PER_STEPS:+.3g}" if name in speeds else tables.NOTHING
            table.add_row(entry.algorithm, name, f"{covariance:+.3g}", speed)
    return table

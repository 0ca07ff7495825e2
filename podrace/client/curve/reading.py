"""Reads a learning curve: chooses the snapshots of a tournament, and has pods evaluate them.

snapshots = await snapshots_of(client, tournament, CHAMPION)
points, failures = await read_curve(client, tournament, snapshots, CurveSettings(), print)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from google.protobuf.struct_pb2 import Struct

from podrace.client.client import Client
from podrace.client.curve.evaluations import EvaluationSettings, evaluate_snapshots
from podrace.client.curve.points import (
    AGENTS,
    ALL,
    CHAMPION,
    CurvePoint,
    chosen,
    curve_seed,
    final,
    seconds_of,
    with_totals,
    within,
)
from podrace.client.evaluating import evaluation_options
from podrace.errors import InvalidArgument, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Snapshot
from podrace.tournament.v1.tournament_pb2 import Tournament

EPISODES = 32
"""Episodes on which a snapshot is evaluated by default."""


@dataclass(frozen=True)
class CurveSettings:
    """Which snapshots are evaluated, and how."""

    of: str = CHAMPION
    """`champion`, `agents` or `all`."""
    episodes: int = EPISODES
    options: Struct = field(default_factory=Struct)
    """Options of the environment, merged over those of the tournament's evaluation."""
    seed: int = 0
    """Number of a set of episodes that were not used for selection."""
    stochastic: bool = False
    """Whether actions are sampled, also if the tournament evaluates without exploration."""

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a value that no curve can have."""
        if self.of not in (CHAMPION, AGENTS, ALL):
            raise InvalidArgument(f"curve: {self.of!r}: expected {CHAMPION}, {AGENTS} or {ALL}")
        if self.episodes < 1 or self.seed < 0:
            raise InvalidArgument(
                f"curve: episodes = {self.episodes}, seed = {self.seed}: expected at least 1 episode, and a seed of"
                " 0 or more"
            )


async def snapshots_of(client: Client, tournament: Tournament, of: str) -> list[Snapshot]:
    """Returns the snapshots of a curve, in order of time.

    Raises:
        NotFound: There are none; the message explains why.
    """
    snapshots = within(await client.list_snapshots(tournament), tournament)
    if not chosen(snapshots, of):
        raise NotFound(why_none(tournament, of, others=len(snapshots)))
    end = final(tournament, await client.list_submissions(tournament))
    return chosen(with_totals([*snapshots, end] if end else snapshots), of)


async def read_curve(
    client: Client,
    tournament: Tournament,
    snapshots: Sequence[Snapshot],
    settings: CurveSettings,
    notify: Callable[[str], None],
) -> tuple[list[CurvePoint], dict[str, str]]:
    """Evaluates snapshots, and returns their points and the errors of those that failed, by digest of the manifest.

    Raises:
        PodraceError: The mesh does not answer.
    """
    how = evaluation_settings(settings, tournament)
    ensembles = {tournament.champion_manifest_digest: tournament.champion_selection.members}
    results = await evaluate_snapshots(client, tournament, snapshots, how, notify, ensembles)
    points = [
        CurvePoint(one, results.evaluations[one.manifest_digest])
        for one in snapshots
        if one.manifest_digest in results.evaluations
    ]
    return points, results.failures


def evaluation_settings(settings: CurveSettings, tournament: Tournament) -> EvaluationSettings:
    """Returns how snapshots are evaluated: as the tournament evaluates, changed by the settings."""
    options = evaluation_options(tournament, settings.options)
    stochastic = settings.stochastic or not tournament.spec.evaluation.greedy
    return EvaluationSettings(settings.episodes, options, curve_seed(settings.seed), stochastic)


def why_none(tournament: Tournament, of: str, *, others: int) -> str:
    """Explains why there are no snapshots to draw, and how to get some."""
    name, evaluation = tournament.tournament_id, tournament.spec.evaluation
    if others:
        other = AGENTS if of == CHAMPION else CHAMPION
        return f"tournament {name} has no snapshots for --of {of}, but {others} for --of {other}"
    if not evaluation.HasField("snapshot_period"):
        return (
            f"tournament {name} has no snapshots: its specification has no evaluation.snapshot_period (for instance"
            ' "10s"); start another tournament with `podrace train SPEC --set evaluation.snapshot_period=\'"10s"\'`'
        )
    period, ran = seconds_of(evaluation.snapshot_period), seconds_of(tournament.running_duration)
    return (
        f"tournament {name} has no snapshots: the first is due after {period:g} s (evaluation.snapshot_period), and the"
        f" tournament has been running for {ran:.1f} s; the champion has snapshots only after the first submission"
    )

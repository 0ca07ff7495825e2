"""Runs one tournament of podrace on an embedded mesh with a new home folder."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison.fresh import ROOT, Policy
from benchmarks.comparison.outcome import Moment, Outcome
from podrace.client import Client
from podrace.client.calls.tournaments import END_STATES
from podrace.client.compute import ComputeSummary, read_compute
from podrace.client.follow import TournamentView, follow_to_end, wait_for_pods_to_exit
from podrace.errors import DeadlineExceeded
from podrace.leaderboard.v1.leaderboard_pb2 import Snapshot
from podrace.mesh import open_mesh
from podrace.mesh.home import Folders
from podrace.mesh.store_choice import choose_store
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_COMPLETED, Tournament, TournamentSpec

PODS_EXIT_SECONDS = 30.0
LATE_SECONDS = 300.0
"""A tournament that has not ended this long after its budget is a failure: its last evaluations take this long at
most."""


@dataclass(frozen=True)
class _Ended:
    tournament: Tournament
    snapshots: Sequence[Snapshot]
    agents: int
    compute: ComputeSummary


def run(spec: TournamentSpec, folder: Path, budget_seconds: float, notify: Callable[[str], None]) -> Outcome:
    """Runs a tournament to its end.

    Args:
        spec: Resolved specification.
        folder: An empty folder with a short path, for the home. The policies of the outcome are in it.
        budget_seconds: Wall-clock budget, after which it must end soon.
        notify: Receives progress messages.

    Raises:
        PodraceError: The mesh does not start or does not answer, or the tournament does not end.
    """
    # Pods find the tasks of the benchmarks in the same way as a user's simulator.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *_python_path()]))
    home = folder.resolve() / "home"
    ended = asyncio.run(_run(spec, home, budget_seconds, notify))
    return outcome_of(ended, choose_store(Folders.of(home), "", writes=False))


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


async def _run(spec: TournamentSpec, home: Path, budget_seconds: float, notify: Callable[[str], None]) -> _Ended:
    async with open_mesh(home, notify=notify) as address, Client(address) as client:
        view = TournamentView(await client.create_tournament(spec))
        began = time.monotonic()
        try:
            async with asyncio.timeout(budget_seconds + LATE_SECONDS):
                await follow_to_end(client, view, draw=lambda _: None, stop=asyncio.Event(), stop_reason="")
        except TimeoutError:
            raise DeadlineExceeded(
                f"tournament {view.tournament.tournament_id} has not ended {time.monotonic() - began:.0f} s after its"
                f" begin; its budget was {budget_seconds:g} s"
            ) from None
        await wait_for_pods_to_exit(client, view, deadline_seconds=PODS_EXIT_SECONDS)
        tournament = await client.get_tournament(view.tournament.tournament_id)
        return _Ended(
            tournament,
            await client.list_snapshots(tournament),
            len(await client.list_agents(tournament)),
            await read_compute(client, tournament),
        )


def outcome_of(ended: _Ended, store: str) -> Outcome:
    """Returns the outcome of a tournament."""
    tournament = ended.tournament
    seconds = tournament.running_duration.ToTimedelta().total_seconds()
    steps, digest = tournament.environment_steps, tournament.champion_manifest_digest
    if tournament.state != TOURNAMENT_STATE_COMPLETED or not digest:
        reason = tournament.reason or "no agent was scored before the end"
        return Outcome(None, seconds, steps, ended.agents, reason=reason)
    # Several, if the champion is an ensemble.
    digests = [digest, *(member.manifest_digest for member in tournament.champion_selection.members)]
    return Outcome(
        policy=Policy("podrace", store, digests),
        wall_seconds=seconds,
        environment_steps=steps,
        agents=ended.agents,
        reported_score=tournament.best_score,
        reported_error=tournament.best_score_standard_error,
        share_behind=ended.compute.champion_share,
        evaluation_share=ended.compute.evaluation_share,
        stopped_agents=ended.compute.stopped_agents,
        correlation=ended.compute.correlation.correlation if ended.compute.correlation else None,
        moments=moments_of(ended.snapshots, tournament, store),
    )


def moments_of(snapshots: Sequence[Snapshot], tournament: Tournament, store: str) -> list[Moment]:
    """Returns the champion's snapshots until the end of the tournament, in order of time.

    The environment steps of all agents are a lower bound, late by up to one lease renewal.
    """
    assert tournament.state in END_STATES
    end = tournament.running_duration.ToNanoseconds()
    champions = [one for one in snapshots if one.champion and one.running_duration.ToNanoseconds() <= end]
    return [
        Moment(
            one.running_duration.ToTimedelta().total_seconds(),
            one.tournament_environment_steps,
            Policy("podrace", store, [one.manifest_digest]),
        )
        for one in sorted(champions, key=lambda one: one.number)
    ]

"""Implements `podrace tensorboard`."""

import functools
import time
from pathlib import Path

import click

from podrace.cli import session
from podrace.cli.session import find_tournament
from podrace.cli.tensorboard.event_files import EventFiles
from podrace.cli.tensorboard.scalars import PodHistory, SubmissionHistory
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import notify, show, show_json
from podrace.client import Client
from podrace.client.hyperparameters import hyperparameters_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.mesh.home_lock import Use
from podrace.tasks import first_finished
from podrace.tournament.v1.tournament_pb2 import Tournament


@click.command()
@click.argument("tournament")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--follow", is_flag=True, help="Write new values until the tournament has ended.")
@mesh_options
def tensorboard(settings: Settings, tournament: str, folder: Path, follow: bool) -> int:
    """Write event files for TensorBoard.

    TOURNAMENT is an id, a prefix of one, or `latest`. FOLDER gets a run for each agent and one for the champion. A
    later call adds what is new. Evaluations of the whole tournament are written; the progress of training is written
    only while --follow runs. Show them with `tensorboard --logdir FOLDER`.
    """
    session.require_tournaments(settings)
    return session.run(functools.partial(_run, settings, tournament, folder, follow))


async def _run(settings: Settings, name: str, folder: Path, follow: bool, interrupts: Interrupts) -> int:
    async with session.open_client(settings, Use.QUERY, interrupts) as client:
        found = await find_tournament(client, name, settings)
        files = EventFiles(folder, found.tournament_id)
        recording = Recording(client, found, files)
        try:
            await recording.catch_up()
            if follow:
                notify(f"following {found.tournament_id}: tensorboard --logdir {folder}")
                await first_finished(recording.follow_pods(), recording.follow_submissions())
                await recording.catch_up()
        finally:
            files.save()
    answer = {"tournament_id": found.tournament_id, "folder": str(files.folder), "values": files.written}
    if settings.as_json:
        show_json(answer)
    else:
        show(f"wrote {files.written} values to {files.folder}; show them with: tensorboard --logdir {folder}")
    return 0


class Recording:
    """Writes the values of one tournament, each once."""

    def __init__(self, client: Client, tournament: Tournament, files: EventFiles) -> None:
        """Writes nothing until it is asked to.

        Args:
            client: Client of the mesh.
            tournament: The tournament.
            files: Where its values go.
        """
        self._client, self._tournament, self._files = client, tournament, files
        self._submissions, self._pods = SubmissionHistory(), PodHistory()
        self._seen = 0

    async def catch_up(self) -> None:
        """Writes all submissions until now, and the hyperparameters of all agents."""
        for agent in await self._client.list_agents(self._tournament):
            self._describe(agent)
        for candidate in await self._client.list_submissions(self._tournament):
            self._add(candidate)

    async def follow_submissions(self) -> None:
        """Writes each new submission; never returns."""
        async for update in self._client.follow_submissions(self._tournament, self._seen):
            self._describe(await self._client.get_agent(self._tournament, update.candidate.agent_id))
            self._add(update.candidate)

    async def follow_pods(self) -> None:
        """Writes the progress of pods until the tournament has ended."""
        async for update in self._client.follow(self._tournament):
            self._files.write(self._pods.add(update.pods, time.time()))

    def _describe(self, agent: Agent) -> None:
        self._files.describe(agent.agent_id, {"algorithm": agent.algorithm} | hyperparameters_of(agent))

    def _add(self, candidate: Candidate) -> None:
        if candidate.sequence <= self._seen:
            return
        self._seen = candidate.sequence
        points = self._submissions.add(candidate)
        if candidate.sequence > self._files.state.sequence:
            self._files.write(points)
            self._files.state.sequence = candidate.sequence

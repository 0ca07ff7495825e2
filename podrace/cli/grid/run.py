"""Runs the cells of a grid as tournaments, so many at once, and goes on where an earlier command was ended.

What has been done is asked of the mesh and noted nowhere else: a cell's tournament is the newest of the cell's name. If
it is complete, its results are read; if it runs, because a command on a standing mesh was killed, it is followed; if it
was stopped or has failed, it is resumed, agents and all; if there is none, it is created.
"""

import asyncio
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from podrace.cli.grid import results
from podrace.cli.grid.axes import Cell
from podrace.cli.grid.results import FAILED, Grid, Outcome
from podrace.cli.grid.screen import GridLines, GridTable
from podrace.cli.grid.statistics import best_so_far, running_seconds
from podrace.cli.results.report import make_report
from podrace.cli.terminal import formats
from podrace.cli.terminal.options import Settings
from podrace.client import Client
from podrace.client.follow import TournamentView, follow_to_end, wait_for_pods_to_exit
from podrace.errors import PodraceError
from podrace.mesh.home import Folders
from podrace.orchestrator.v1.orchestrator_pb2 import Event
from podrace.tournament.v1.tournament_pb2 import (
    TOURNAMENT_STATE_CANCELLED,
    TOURNAMENT_STATE_COMPLETED,
    TOURNAMENT_STATE_FAILED,
    Tournament,
)

PODS_GO_SECONDS = 30.0
"""How long the pods of a cell may take to go before the next one begins beside them."""
STOP_REASON = "the grid was stopped from the keyboard"
NO_SCORE = "no agent was scored before the end"
_STANDS_STILL = {"tournament_cancelled", "tournament_failed"}
_GOES_ON = "agent_assigned"


class Runner:
    """The cells of one grid on one mesh.

    await Runner(settings, client, grid, screen, stop).run(parallel=2)
    """

    def __init__(
        self, settings: Settings, client: Client, grid: Grid, screen: GridTable | GridLines, stop: asyncio.Event
    ) -> None:
        """Asks nothing yet; when `stop` is set, what runs is stopped and nothing more is begun."""
        self._settings = settings
        self._client = client
        self._grid = grid
        self._screen = screen
        self._stop = stop
        self._known: dict[str, Tournament] = {}
        self._views: dict[str, TournamentView] = {}

    async def run(self, *, parallel: int) -> None:
        """Runs every cell that is not complete, in order, and fills in the grid's outcomes.

        Args:
            parallel: Tournaments at once; their pods share what the mesh has.

        Raises:
            PodraceError: The mesh does not answer at all, or results cannot be written. What goes wrong with one cell
                is its outcome instead.
        """
        # Newest first: of several tournaments of one name the newest stays.
        self._known = {entry.spec.name: entry for entry in reversed(await self._client.list_tournaments())}
        cells = iter(self._grid.cells)
        lanes = [asyncio.create_task(self._run_one_by_one(cells)) for _ in range(parallel)]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)

    async def _run_one_by_one(self, cells: Iterator[Cell]) -> None:
        """Takes cells from an iterator that the lanes share."""
        for cell in cells:
            if self._stop.is_set():
                return
            outcome = await self._run_cell(cell)
            self._grid.outcomes[cell.spec.name] = outcome
            self._views.pop(cell.spec.name, None)
            self._screen.ended(cell, outcome)
            self._screen.draw(self._grid, self._views)
            results.write(self._grid)

    async def _run_cell(self, cell: Cell) -> Outcome:
        tournament = Tournament()
        try:
            tournament = await self._begin(cell)
            if tournament.state != TOURNAMENT_STATE_COMPLETED:
                tournament = await self._follow(cell, tournament)
            return await self._outcome(cell, tournament)
        except PodraceError as error:
            return Outcome(state=FAILED, reason=error.message, tournament_id=tournament.tournament_id)

    async def _begin(self, cell: Cell) -> Tournament:
        found = self._known.get(cell.spec.name)
        if found is None:
            return await self._client.create_tournament(cell.spec)
        if found.state not in (TOURNAMENT_STATE_CANCELLED, TOURNAMENT_STATE_FAILED):
            return found
        ended = f"which was {formats.state(found).lower()}: {found.reason}"
        self._screen.tell(f"{cell.title}: goes on with {found.tournament_id}, {ended}")
        return await self._client.resume_tournament(found.tournament_id)

    async def _follow(self, cell: Cell, tournament: Tournament) -> Tournament:
        view = self._views[cell.spec.name] = TournamentView(tournament)
        await follow_to_end(self._client, view, draw=self._draw, stop=self._stop, stop_reason=STOP_REASON)
        # The next cell is to have the machine, or its share of it, from its first second.
        await wait_for_pods_to_exit(self._client, view, deadline_seconds=PODS_GO_SECONDS)
        return view.tournament

    def _draw(self, _: TournamentView) -> None:
        """Shows all cells, whichever has changed."""
        self._screen.draw(self._grid, self._views)

    async def _outcome(self, cell: Cell, tournament: Tournament) -> Outcome:
        submissions = await self._client.list_submissions(tournament)
        pauses = pauses_of(await self._client.list_events(tournament.tournament_id), tournament.create_time)
        arrived = {
            entry.candidate_id: running_seconds(_since(tournament.create_time, entry.submit_time), pauses)
            for entry in submissions
        }
        end = tournament.end_time if tournament.HasField("end_time") else tournament.create_time
        seconds = running_seconds(_since(tournament.create_time, end), pauses)
        scored = tournament.HasField("best_score")
        complete = tournament.state == TOURNAMENT_STATE_COMPLETED
        return Outcome(
            state=formats.state(tournament),
            reason=tournament.reason if scored or not complete else NO_SCORE,
            tournament_id=tournament.tournament_id,
            score=tournament.best_score if scored else None,
            standard_error=tournament.best_score_standard_error if scored else None,
            environment_steps=tournament.environment_steps,
            wall_seconds=formats.seconds(tournament.running_duration),
            training_seconds=seconds,
            curve=best_so_far(submissions, arrived, end_steps=tournament.environment_steps, end_seconds=seconds),
            reports=await self._reports(cell, tournament) if scored and complete else {},
        )

    async def _reports(self, cell: Cell, tournament: Tournament) -> Mapping[str, Any]:
        """Makes the report that `podrace train` would have made, unless it is there already."""
        folder = Folders.of(self._settings.home).tournament(tournament.tournament_id)
        path = folder / "report.json"
        if not path.exists() and tournament.champion_manifest_digest and not self._stop.is_set():
            tell = functools.partial(self._tell, cell)
            await make_report(self._client, tournament, folder, tell=tell)
        return _read_reports(path)

    def _tell(self, cell: Cell, line: str) -> None:
        self._screen.tell(f"{cell.title}: {line}")


def _read_reports(path: Path) -> Mapping[str, Any]:
    reports: Mapping[str, Any] = json.loads(path.read_text())["reports"] if path.exists() else {}
    return reports


def pauses_of(events: Sequence[Event], create_time: Timestamp) -> list[tuple[float, float]]:
    """When a tournament stood still, in seconds since it was created.

    It does from its creation, and from where it was stopped or failed, until an agent is given to a pod: what the first
    pods of a mesh take to start, which is longer than those of the next tournament take, is no cell's doing.

    Args:
        events: Of the tournament, oldest first.
        create_time: Of the tournament.
    """
    pauses: list[tuple[float, float]] = []
    begin: float | None = 0.0
    for event in events:
        moment = _since(create_time, event.time)
        if event.kind in _STANDS_STILL and begin is None:
            begin = moment
        elif event.kind == _GOES_ON and begin is not None:
            pauses.append((begin, moment))
            begin = None
    return pauses


def _since(begin: Timestamp, moment: Timestamp) -> float:
    return (moment.ToNanoseconds() - begin.ToNanoseconds()) / 1e9

"""Runs the cells of a grid as tournaments, several at once, and resumes an earlier run of the same grid.

The state of a grid is recorded only in the mesh: the tournament of a cell is the newest one with the name of the cell.
A complete tournament is reused. A running one is followed; it may run on a remote mesh although an earlier command was
killed. A cancelled or failed one is resumed, and a missing one is created.
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
from podrace.cli.grid.results import FAILED, CellOutcome, Grid
from podrace.cli.grid.screen import GridLines, GridTable
from podrace.cli.grid.statistics import best_so_far, running_seconds
from podrace.cli.results.report import REPORT_FILE, make_report
from podrace.cli.terminal import formats
from podrace.cli.terminal.options import Settings
from podrace.cli.views import compute as compute_view
from podrace.client import Client
from podrace.client.compute import read_compute
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

PODS_EXIT_SECONDS = 30.0
"""Time limit for the pods of a cell to exit before the next cell starts."""
STOP_REASON = "the grid was stopped from the keyboard"
NO_SCORE = "no agent was scored before the end"
_PAUSE_KINDS = {"tournament_paused", "tournament_cancelled", "tournament_failed"}
"""Kinds of events at which a tournament stops running."""
_RESUME_KIND = "agent_assigned"
"""Kind of the event at which training starts or resumes."""


class Runner:
    """Runs the cells of one grid on one mesh.

    await Runner(settings, client, grid, screen, stop).run(parallel=2)
    """

    def __init__(
        self, settings: Settings, client: Client, grid: Grid, screen: GridTable | GridLines, stop: asyncio.Event
    ) -> None:
        """Creates a runner. When `stop` is set, running tournaments are cancelled and no more are started."""
        self._settings = settings
        self._client = client
        self._grid = grid
        self._screen = screen
        self._stop = stop
        self._known: dict[str, Tournament] = {}
        self._views: dict[str, TournamentView] = {}

    async def run(self, *, parallel: int) -> None:
        """Runs every cell that is not complete, in order, and records the results in the grid.

        Args:
            parallel: Number of tournaments to run at once; their pods share the resources of the mesh.

        Raises:
            PodraceError: The mesh does not answer, or the results cannot be written. Failures of a single cell are
                recorded as its result instead.
        """
        # The list has the newest tournaments first. Reversed, the newest of several with the same name is kept.
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
        """Takes cells from an iterator that all lanes share."""
        for cell in cells:
            if self._stop.is_set():
                return
            outcome = await self._run_cell(cell)
            self._grid.outcomes[cell.spec.name] = outcome
            self._views.pop(cell.spec.name, None)
            self._screen.ended(cell, outcome)
            self._screen.draw(self._grid, self._views)
            results.write(self._grid)

    async def _run_cell(self, cell: Cell) -> CellOutcome:
        tournament = Tournament()
        try:
            tournament = await self._begin(cell)
            if tournament.state != TOURNAMENT_STATE_COMPLETED:
                tournament = await self._follow(cell, tournament)
            return await self._outcome(cell, tournament)
        except PodraceError as error:
            return CellOutcome(state=FAILED, reason=error.message, tournament_id=tournament.tournament_id)

    async def _begin(self, cell: Cell) -> Tournament:
        found = self._known.get(cell.spec.name)
        if found is None:
            return await self._client.create_tournament(cell.spec)
        if found.state not in (TOURNAMENT_STATE_CANCELLED, TOURNAMENT_STATE_FAILED):
            return found
        ended = f"which was {formats.state(found).lower()}: {found.reason}"
        self._screen.notify(f"{cell.title}: resuming {found.tournament_id}, {ended}")
        return await self._client.resume_tournament(found.tournament_id)

    async def _follow(self, cell: Cell, tournament: Tournament) -> Tournament:
        view = self._views[cell.spec.name] = TournamentView(tournament)
        await follow_to_end(self._client, view, draw=self._draw, stop=self._stop, stop_reason=STOP_REASON)
        # The next cell should have the resources of the machine from its start.
        await wait_for_pods_to_exit(self._client, view, deadline_seconds=PODS_EXIT_SECONDS)
        return view.tournament

    def _draw(self, _: TournamentView) -> None:
        """Shows all cells after one of them has changed."""
        self._screen.draw(self._grid, self._views)

    async def _outcome(self, cell: Cell, tournament: Tournament) -> CellOutcome:
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
        return CellOutcome(
            state=formats.state(tournament),
            reason=tournament.reason if scored or not complete else NO_SCORE,
            tournament_id=tournament.tournament_id,
            score=tournament.best_score if scored else None,
            standard_error=tournament.best_score_standard_error if scored else None,
            environment_steps=tournament.environment_steps,
            wall_seconds=formats.seconds(tournament.running_duration),
            training_seconds=seconds,
            curve=best_so_far(submissions, arrived, end_steps=tournament.environment_steps, end_seconds=seconds),
            compute=compute_view.as_json(await read_compute(self._client, tournament)),
            reports=await self._reports(cell, tournament) if scored and complete else {},
        )

    async def _reports(self, cell: Cell, tournament: Tournament) -> Mapping[str, Any]:
        """Writes the same report as `podrace train` unless it exists, and returns its content."""
        folder = Folders.of(self._settings.home).tournament(tournament.tournament_id)
        path = folder / REPORT_FILE
        if not path.exists() and tournament.champion_manifest_digest and not self._stop.is_set():
            notify = functools.partial(self._notify, cell)
            orchestrator = self._settings.orchestrator
            await make_report(self._client, tournament, folder, orchestrator=orchestrator, notify=notify)
        return _read_reports(path)

    def _notify(self, cell: Cell, line: str) -> None:
        self._screen.notify(f"{cell.title}: {line}")


def _read_reports(path: Path) -> Mapping[str, Any]:
    reports: Mapping[str, Any] = json.loads(path.read_text())["reports"] if path.exists() else {}
    return reports


def pauses_of(events: Sequence[Event], create_time: Timestamp) -> list[tuple[float, float]]:
    """Returns the pauses of a tournament as (begin, end), in seconds since its creation.

    A pause begins when the tournament is created, paused, cancelled or fails, and ends when the next agent is assigned
    to a pod. This excludes the time in which pods start, which is longer for the first tournament of a mesh.

    Args:
        events: Events of the tournament, oldest first.
        create_time: Creation time of the tournament.
    """
    pauses: list[tuple[float, float]] = []
    begin: float | None = 0.0
    for event in events:
        moment = _since(create_time, event.time)
        if event.kind in _PAUSE_KINDS and begin is None:
            begin = moment
        elif event.kind == _RESUME_KIND and begin is not None:
            pauses.append((begin, moment))
            begin = None
    return pauses


def _since(begin: Timestamp, moment: Timestamp) -> float:
    return (moment.ToNanoseconds() - begin.ToNanoseconds()) / 1e9

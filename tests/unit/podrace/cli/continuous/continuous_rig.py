"""A continuous training that a test can start repeatedly and kill at a chosen step."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podrace.cli.continuous.controller import Controller, TrainingPlan
from podrace.cli.continuous.journal import Journal, JournalState
from podrace.cli.continuous.source import LocalSource
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.files import load


class KilledError(BaseException):
    """Simulates `kill -9`: no later step is executed."""


@dataclass
class Rig:
    """Starts controllers one after another on the same mesh, journal and dataset."""

    folder: Path
    mesh: Any
    scores: dict[str, float] = field(default_factory=dict)
    """Mean return by agent id; 1 if the agent is missing."""
    faults: dict[str, str] = field(default_factory=dict)
    """Why the built-in evaluator scored, by agent id."""
    scored: list[tuple[str, str]] = field(default_factory=list)
    """Agent id and request id of every evaluation."""
    members: list[list[str]] = field(default_factory=list)
    """Digests of the other members of the ensemble of every evaluation."""
    lines: list[str] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)
    """Agent ids of the champions that policy servers got."""
    changes: int = 0
    killed_at: int = 0
    """Number of the journal change at which the controller is killed; 0: never."""
    written: bool = False
    """Whether that change is written to the disk before."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def write(self, text: str) -> None:
        self.data.mkdir(exist_ok=True)
        (self.data / "prices").write_text(text)

    def keep(self, until: Callable[[JournalState], bool], *, seconds: float = 10.0) -> JournalState:
        """Runs the controller until its journal satisfies `until`, and restarts it when it is killed."""
        while True:
            try:
                return asyncio.run(self._keep(until, seconds))
            except KilledError:
                self.killed_at = 0

    async def _keep(self, until: Callable[[JournalState], bool], seconds: float) -> JournalState:
        home = self.folder / "home"
        plan = TrainingPlan(load(self.folder / "race.toml", ()), "data", 0.01, home / "continuous" / "race")
        plan.versions.mkdir(parents=True, exist_ok=True)
        journal = Journal.open(plan.folder, name="race", reference=str(self.data))
        task = asyncio.current_task()
        assert task is not None
        stop, settings = asyncio.Event(), Settings(home, self.mesh.address, debug=False, as_json=False)
        controller = Controller(
            settings,
            plan,
            LocalSource(self.data),
            journal,
            Interrupts(task),
            stop,
            notify=self.lines.append,  # type: ignore[arg-type]
            deliver=self._deliver,
        )
        change = journal.change

        def counted(**changes: Any) -> None:
            self.changes += 1
            if self.changes == self.killed_at and not self.written:
                raise KilledError
            change(**changes)
            if self.changes == self.killed_at:
                raise KilledError
            if until(journal.state):
                stop.set()

        journal.change = counted  # type: ignore[method-assign]
        if until(journal.state):
            stop.set()
        async with asyncio.timeout(seconds):
            await controller.run()
        return journal.state

    async def _deliver(self, tournament: Any, champion: Any, folder: Path, notify: Any) -> None:
        assert folder == self.folder / "home" / "continuous" / "race" / "champion"
        assert champion.agent_id.startswith(tournament.tournament_id)
        self.delivered.append(champion.agent_id)

    def created(self) -> list[Any]:
        return [request.spec for request in self.mesh.known.asked(pb.CreateTournamentRequest)]


def decided(count: int) -> Callable[[JournalState], bool]:
    return lambda state: len(state.history) >= count


def champion_of(state: JournalState) -> str:
    assert state.champion is not None
    return state.champion.agent_id

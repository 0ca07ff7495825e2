"""Continuous training that is started as often as a test likes, and killed where it likes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podrace.cli.continuous.dataset import LocalSource
from podrace.cli.continuous.run import Keeper, Plan
from podrace.cli.continuous.state import Diary, Memory
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.files import load


class KilledError(BaseException):
    """Stands for `kill -9`: nothing that follows is done."""


@dataclass
class Rig:
    """A keeper as often as it is started, on one mesh, one diary and one dataset."""

    folder: Path
    mesh: Any
    scores: dict[str, float] = field(default_factory=dict)
    """Mean return by agent id; 1 if it is not named."""
    faults: dict[str, str] = field(default_factory=dict)
    """Why the pod's own evaluator scored, by agent id."""
    scored: list[tuple[str, str]] = field(default_factory=list)
    """Agent and request of every evaluation."""
    lines: list[str] = field(default_factory=list)
    changes: int = 0
    killed_at: int = 0
    """The change at which it is killed; 0: never."""
    written: bool = False
    """Whether that change is on the disk by then."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def write(self, text: str) -> None:
        self.data.mkdir(exist_ok=True)
        (self.data / "prices").write_text(text)

    def keep(self, until: Callable[[Memory], bool], *, seconds: float = 10.0) -> Memory:
        """Runs it until its diary says what is waited for; started anew when it is killed."""
        while True:
            try:
                return asyncio.run(self._keep(until, seconds))
            except KilledError:
                self.killed_at = 0

    async def _keep(self, until: Callable[[Memory], bool], seconds: float) -> Memory:
        home = self.folder / "home"
        plan = Plan(load(self.folder / "race.toml", ()), "data", 0.01, home / "continuous" / "race")
        plan.versions.mkdir(parents=True, exist_ok=True)
        diary = Diary.open(plan.folder, name="race", reference=str(self.data))
        task = asyncio.current_task()
        assert task is not None
        stop, settings = asyncio.Event(), Settings(home, self.mesh.address, debug=False, as_json=False)
        keeper = Keeper(
            settings,
            plan,
            LocalSource(self.data),
            diary,
            Interrupts(task),
            stop,
            tell=self.lines.append,  # type: ignore[arg-type]
        )
        change = diary.change

        def counted(**changes: Any) -> None:
            self.changes += 1
            if self.changes == self.killed_at and not self.written:
                raise KilledError
            change(**changes)
            if self.changes == self.killed_at:
                raise KilledError
            if until(diary.memory):
                stop.set()

        diary.change = counted  # type: ignore[method-assign]
        if until(diary.memory):
            stop.set()
        async with asyncio.timeout(seconds):
            await keeper.run()
        return diary.memory

    def created(self) -> list[Any]:
        return [request.spec for request in self.mesh.known.asked(pb.CreateTournamentRequest)]


def decided(count: int) -> Callable[[Memory], bool]:
    return lambda memory: len(memory.history) >= count


def champion_of(memory: Memory) -> str:
    assert memory.champion is not None
    return memory.champion.agent_id

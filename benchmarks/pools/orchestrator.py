"""Runs the real orchestrator with unlimited resources and a launcher whose pods other processes simulate.

    python -m pools.orchestrator NOTES --set key=value ...

Only the launcher and the capacity differ from `python -m orchestrator`. On exit it writes to the file NOTES how long
the leaderboard took for each agent, as a JSON list of [monotonic begin, seconds].
"""

import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from orchestrator.__main__ import serve
from orchestrator.config import Config
from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.launchers import LAUNCHERS
from orchestrator.launchers.base import Launcher, ListedPod, NewPod, PodEnvironment
from orchestrator.launchers.options import LauncherOptions
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state.clock import SystemClock
from orchestrator.state.records import AgentRecord, TournamentRecord
from podrace import service
from podrace.access.tokens import PodTokens
from podrace.leaderboard.v1.leaderboard_pb2 import Agent

ENDLESS_CORES = 1e6
ENDLESS_BYTES = 1 << 60
TOKEN_SECONDS = 3600.0


class SimulatedPods:
    """A launcher whose pods run as soon as they are started, simulated by other processes. See Launcher."""

    def __init__(self, pod_tokens: PodTokens, folder: Path) -> None:
        self._pods: dict[str, ListedPod] = {}
        self._pod_tokens, self._folder = pod_tokens, folder

    async def list(self) -> Sequence[ListedPod]:
        """See Launcher."""
        return list(self._pods.values())

    async def start(self, pod: NewPod) -> None:
        """See Launcher."""
        reserved = Resources(pod.spec.cores, pod.spec.memory_bytes, pod.spec.gpus)
        if token := self._pod_tokens.first(pod.pod_id, pod.tournament_id, TOKEN_SECONDS):
            (self._folder / f"{pod.pod_id}.token").write_text(token)
        self._pods[pod.pod_id] = ListedPod(pod.pod_id, pod.tournament_id, time.time(), pod.spec.layout, reserved)

    async def capacity(self) -> Capacity:
        """See Launcher."""
        return Capacity(Resources(ENDLESS_CORES, ENDLESS_BYTES, 0), ENDLESS_BYTES)

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        """See Launcher."""
        self._pods.pop(pod_id, None)

    def last_log_line(self, pod_id: str) -> str:
        """See Launcher."""
        return ""


@contextlib.asynccontextmanager
async def _open(
    pod_environment: PodEnvironment, options: LauncherOptions, on_death: Callable[[], None]
) -> AsyncIterator[Launcher]:
    yield SimulatedPods(pod_environment.pod_tokens, pod_environment.log_folder)


class TimedLeaderboardClient(LeaderboardClient):
    """A leaderboard client that times the generation of agents."""

    notes: list[tuple[float, float]] = []  # noqa: RUF012 - one list per process

    async def generate(
        self, tournament: TournamentRecord, agent: AgentRecord, *others: Sequence[str], **named: Sequence[str]
    ) -> Agent:
        """See LeaderboardClient."""
        begin = time.monotonic()
        made = await super().generate(tournament, agent, *others, **named)  # type: ignore[arg-type]
        self.notes.append((begin, time.monotonic() - begin))
        return made


def main() -> int:
    """Serves until SIGTERM."""
    notes, *arguments = sys.argv[1:]
    LAUNCHERS["simulated"] = _open
    sys.modules["orchestrator.__main__"].LeaderboardClient = TimedLeaderboardClient  # type: ignore[attr-defined]
    code = service.run("orchestrator", Config, lambda config: serve(config, SystemClock()), arguments)
    Path(notes).write_text(json.dumps(TimedLeaderboardClient.notes))
    return code


if __name__ == "__main__":
    sys.exit(main())

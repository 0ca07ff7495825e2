import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leaderboard import queries, records
from leaderboard.arrivals import Arrivals
from leaderboard.generator import Generator
from leaderboard.replay import differences
from leaderboard.state import DATABASE_FORMAT
from leaderboard.updater import Updater, record
from podrace import spec as specification
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation, Manifest
from podrace.checkpoints.folder import FolderStore
from podrace.checkpoints.publish import claim, publish
from podrace.checkpoints.store import digest
from podrace.database import Database
from podrace.leaderboard.v1.leaderboard_pb2 import (
    Agent,
    Candidate,
    GenerateAgentRequest,
    SubmitCandidateRequest,
    SubmitCandidateResponse,
)
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "cartpole-abc123"


@dataclass
class Clock:
    """A clock that goes when told."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Mesh:
    """A leaderboard with a store, and what an orchestrator and learners do with them."""

    state: Database
    store: FolderStore
    updater: Updater
    generator: Generator
    clock: Clock
    database: Path

    async def generate(
        self, spec: TournamentSpec, number: int, unfinished: Sequence[str] = (), tournament_id: str = TOURNAMENT
    ) -> Agent:
        request = GenerateAgentRequest(
            request_id=f"{tournament_id}-a{number}",
            tournament_id=tournament_id,
            spec=spec,
            number=number,
            unfinished_agent_ids=unfinished,
        )
        return await self.generator.generate(request)

    def publish(self, agent: Agent, score: float, *, lease_epoch: int = 1, **changes: Any) -> SubmitCandidateRequest:
        """Publishes a checkpoint of an agent and returns the request that submits it."""
        policy = f"policy of {agent.agent_id} worth {score} {sorted(changes.items())}".encode()
        evaluation = Evaluation(
            mean_return=score,
            variance=changes.pop("variance", 4.0),
            episodes=changes.pop("episodes", 16),
            policy_digest=changes.pop("policy_digest", digest(policy)),
        )
        steps = changes.pop("environment_steps", 1000)
        manifest = Manifest(
            tournament_id=agent.tournament_id,
            algorithm=agent.algorithm,
            environment_steps=steps,
            lineage_environment_steps=changes.pop("lineage_environment_steps", steps),
            core_seconds=changes.pop("core_seconds", 10.0),
            evaluation=evaluation,
        )
        for name, value in changes.items():
            setattr(manifest, name, value)
        claim(self.store, agent.agent_id, lease_epoch)
        name = publish(self.store, agent.agent_id, lease_epoch, {"policy": policy}, manifest)
        checkpoint = Checkpoint(agent_id=agent.agent_id, manifest_digest=name)
        return SubmitCandidateRequest(request_id=name, checkpoint=checkpoint, lease_epoch=lease_epoch)

    async def submit(self, agent: Agent, score: float, **changes: Any) -> SubmitCandidateResponse:
        return await self.updater.submit(self.publish(agent, score, **changes))

    async def judge(self, agent: Agent, score: float, standard_error: float) -> SubmitCandidateResponse:
        """Has a candidate judged that nobody published."""
        candidate = Candidate(
            candidate_id=digest(f"{agent.agent_id} {score}".encode()),
            tournament_id=agent.tournament_id,
            agent_id=agent.agent_id,
            algorithm=agent.algorithm,
            score=score,
            standard_error=standard_error,
            environment_steps=1000,
            agent_number=agent.number,
            depth=(await self.state.transact(records.get_generation, agent.agent_id)).depth,
        )
        return await self.state.transact(record, candidate, SubmitCandidateRequest())

    async def board(self, tournament_id: str = TOURNAMENT) -> list[Candidate]:
        return list(await self.state.transact(records.read_board, tournament_id))

    async def replay(self, tournament_id: str = TOURNAMENT) -> list[str]:
        return list(differences(await self.state.transact(queries.log, tournament_id)))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mesh(tmp_path: Path, clock: Clock) -> Iterator[Mesh]:
    database = tmp_path / "leaderboard.sqlite"
    state = Database.open(database, DATABASE_FORMAT, clock)
    store = FolderStore(tmp_path / "store", clock)
    yield Mesh(state, store, Updater(state, store, Arrivals()), Generator(state), clock, database)
    state.close()


@pytest.fixture
def make_spec() -> Callable[..., TournamentSpec]:
    """Resolved specifications; keyword arguments are sections laid over a small one."""

    def make(**sections: Any) -> TournamentSpec:
        values = {
            "environment": {"id": "CartPole-v1"},
            "algorithms": {"ppo": {}},
            "objective": {"environment_steps": 1_000_000},
            "evolution": {"initial_agents": 2, "fresh_probability": 0.0},
        }
        return specification.resolve(specification.parse(values | sections, source="test"))

    return make


@pytest.fixture
def make_candidate() -> Callable[..., Candidate]:
    """Candidates of agents by number; the id is made of what is given."""

    def make(agent_number: int, score: float, standard_error: float = 0.0, **others: Any) -> Candidate:
        assert math.isfinite(score)
        values: dict[str, Any] = {
            "candidate_id": f"a{agent_number} {score} {standard_error} {sorted(others.items())}",
            "tournament_id": TOURNAMENT,
            "agent_id": f"{TOURNAMENT}-a{agent_number}",
            "algorithm": "ppo",
            "environment_steps": 1000,
        }
        return Candidate(agent_number=agent_number, score=score, standard_error=standard_error, **values | others)

    return make

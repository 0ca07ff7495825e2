"""A candidate that would lead is played again by another pod before it may lead (`evaluation.verify`).

Before, a pod published returns that it had invented, led the board at once, and every strategy built on its score.
"""

import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from policy_files import manifest_of, policy_file

from leaderboard import queries
from leaderboard.checkpoints.held_candidates import wanted_verification
from leaderboard.decision_replay import differences
from leaderboard.garbage import collect_once
from leaderboard.generator import Generator
from leaderboard.ranking.retention import Retention
from leaderboard.rebuilding.rebuild import rebuild
from leaderboard.store import records
from leaderboard.store.refusal_records import refusals_after
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish, read_manifest
from podrace.database import Database
from podrace.errors import NOT_VERIFIED, InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import (
    VERDICT_ACCEPTED,
    VERDICT_HELD,
    Agent,
    Candidate,
    GenerateAgentRequest,
    RecordVerificationRequest,
    RecordVerificationResponse,
    SubmitCandidateRequest,
)
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

NAME = "cartpole-abc123"


def spec_of(**evaluation: Any) -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1", "count": 8},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 1_000_000},
        "evaluation": {"episodes": 16, "verify": 8} | evaluation,
        "evolution": {"strategy": "tournament", "initial_agents": 8},
    }
    return specification.resolve(specification.parse(values, source="test"))


class Service:
    """A leaderboard of a tournament whose leaders are verified, with its pods."""

    def __init__(self, folder: Path) -> None:
        self.state = Database.open(folder / "l.sqlite", DATABASE_FORMAT, time.time)
        self.store = FolderStore(folder / "store")
        self.updater = Updater(self.state, self.store, SubmissionWatch())
        self.generator = Generator(self.state)
        self.spec = spec_of()
        self.agents: list[Agent] = []

    async def start(self, agents: int) -> None:
        for number in range(agents):
            request = GenerateAgentRequest(
                request_id=f"{NAME}-a{number}", tournament_id=NAME, spec=self.spec, number=number
            )
            made = await self.generator.generate(request)
            assert isinstance(made, Agent)
            self.agents.append(made)

    def published(self, number: int, returns: list[float]) -> SubmitCandidateRequest:
        agent = self.agents[number]
        policy = policy_file(agent, f"{number} {returns}")
        evaluation = evaluation_of(returns)
        manifest = manifest_of(agent, policy, evaluation.mean_return)
        evaluation.policy_digest = manifest.evaluation.policy_digest
        evaluation.epoch = 0
        manifest.evaluation.CopyFrom(evaluation)
        manifest.spec.update(json_format.MessageToDict(self.spec, preserving_proto_field_name=True))
        manifest.publish_time.FromNanoseconds(time.time_ns())
        claim(self.store, agent.agent_id, 1)
        name = publish(self.store, agent.agent_id, 1, {"policy": policy}, manifest)
        checkpoint = Checkpoint(agent_id=agent.agent_id, manifest_digest=name)
        return SubmitCandidateRequest(request_id=name, checkpoint=checkpoint, lease_epoch=1)

    async def submit(self, number: int, score: float) -> Candidate:
        answer = await self.updater.submit(self.published(number, around(score)))
        return answer.candidate

    async def wanted(self) -> tuple[Any, int]:
        return await self.state.transact(wanted_verification, NAME)

    async def verify(self, score: float | None, error: str = "") -> RecordVerificationResponse:
        """Reports what another pod measured for the candidate that is wanted."""
        wanted, _ = await self.wanted()
        request = RecordVerificationRequest(tournament_id=NAME, candidate_id=wanted.candidate.candidate_id, error=error)
        if score is not None:
            request.evaluation.CopyFrom(evaluation_of(around(score)[: wanted.episodes]))
        return await self.updater.record_verification(request)

    async def board(self) -> list[int]:
        return [one.agent_number for one in await self.state.transact(records.read_board, NAME)]

    async def replayed(self) -> list[str]:
        return list(differences(await self.state.transact(queries.decision_log, NAME)))


def around(score: float) -> list[float]:
    return [score + 2.0 * ((i % 4) - 1.5) for i in range(16)]


def evaluation_of(returns: list[float]) -> Evaluation:
    mean = sum(returns) / len(returns)
    variance = sum((one - mean) ** 2 for one in returns) / (len(returns) - 1)
    return Evaluation(mean_return=mean, variance=variance, episodes=len(returns), episode_returns=returns)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(tmp_path)
    await made.start(4)
    yield made
    await made.updater.close()
    made.state.close()


async def test_a_pod_that_invents_a_score_never_leads_and_is_reported(service: Service) -> None:
    await service.submit(0, 20.0)
    await service.verify(20.0)
    invented = await service.submit(1, 500.0)
    assert (invented.verdict, invented.rank) == (VERDICT_HELD, 0)
    assert await service.board() == [0]
    decided = await service.verify(21.0)
    assert decided.refused
    assert "stated 500, another pod measured 21" in decided.reason
    assert await service.board() == [0]
    (refusal,) = await service.state.transact(refusals_after, NAME, 0)
    assert (refusal.agent_id, refusal.error_reason) == (service.agents[1].agent_id, NOT_VERIFIED)
    assert await service.replayed() == []


async def test_a_verified_candidate_leads(service: Service) -> None:
    held = await service.submit(0, 20.0)
    assert held.verdict == VERDICT_HELD
    assert "waits until another pod has played 8 of its episodes" in held.reason
    assert not (await service.verify(20.0)).refused
    assert await service.board() == [0]
    assert (await service.wanted()) == (None, 0)
    assert await service.replayed() == []


async def test_a_candidate_that_does_not_lead_needs_no_verification(service: Service) -> None:
    await service.submit(0, 20.0)
    await service.verify(20.0)
    assert (await service.submit(1, 10.0)).verdict == VERDICT_ACCEPTED
    assert await service.board() == [0, 1]


async def test_the_best_is_verified_first_and_those_behind_it_arrive_with_it(service: Service) -> None:
    for number, score in enumerate((20.0, 40.0, 30.0)):
        assert (await service.submit(number, score)).verdict == VERDICT_HELD
    wanted, waiting = await service.wanted()
    assert (wanted.candidate.agent_number, wanted.episodes, wanted.lanes, waiting) == (1, 8, 8, 2)
    await service.verify(40.0)
    assert await service.board() == [1, 2, 0]
    assert await service.replayed() == []


async def test_an_invented_score_whose_estimate_rises_while_it_is_held_does_not_lead_unverified(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every estimate is the mean of two scores, which changes most.
    monkeypatch.setattr("leaderboard.ranking.score_history.CLEAR_ERRORS", math.inf)
    await service.submit(0, 10.0)
    await service.verify(10.0)
    assert (await service.submit(1, 0.0)).verdict == VERDICT_ACCEPTED
    # Estimates of a trial use all its scores: the invented one is behind the next score now, and ahead of it later.
    assert (await service.submit(1, 62.0)).verdict == VERDICT_HELD
    assert (await service.submit(2, 40.0)).verdict == VERDICT_HELD
    await service.submit(1, 19.0)
    wanted, _ = await service.wanted()
    assert wanted.candidate.agent_number == 2
    assert not (await service.verify(40.0)).refused
    assert (await service.board())[0] == 2
    wanted, _ = await service.wanted()
    assert wanted.candidate.agent_number == 1
    assert (await service.verify(5.0)).refused
    assert (await service.board())[0] == 2


async def test_a_refused_leader_uncovers_the_next_one(service: Service) -> None:
    for number, score in enumerate((20.0, 4000.0)):
        await service.submit(number, score)
    assert (await service.verify(10.0)).refused
    wanted, _ = await service.wanted()
    assert wanted.candidate.agent_number == 0
    await service.verify(20.0)
    assert await service.board() == [0]


async def test_a_refused_candidate_stays_refused_and_a_held_one_is_held_once(service: Service) -> None:
    request = service.published(0, around(500.0))
    first = await service.updater.submit(request)
    assert await service.updater.submit(request) == first
    assert (await service.wanted())[1] == 0
    await service.verify(20.0)
    with pytest.raises(InvalidArgument, match="may not lead: stated 500") as refused:
        await service.updater.submit(request)
    assert refused.value.reason == NOT_VERIFIED


async def test_an_agent_that_invents_again_and_again_gets_no_more_verifications(service: Service) -> None:
    for attempt in range(3):
        await service.submit(0, 500.0 + attempt)
        assert (await service.verify(20.0)).refused
    with pytest.raises(InvalidArgument, match=r"3 candidates of .* were refused"):
        await service.submit(0, 900.0)
    assert (await service.wanted()) == (None, 0)
    assert (await service.submit(1, 20.0)).verdict == VERDICT_HELD, "other agents are not affected"


async def test_what_could_not_be_played_does_not_lead(service: Service) -> None:
    await service.submit(0, 20.0)
    decided = await service.verify(None, "cancelled after 3 pods were lost while they ran it")
    assert decided.refused
    assert "could not be verified: cancelled after 3 pods" in decided.reason
    assert await service.board() == []


async def test_fewer_episodes_than_wanted_verify_nothing(service: Service) -> None:
    await service.submit(0, 20.0)
    wanted, _ = await service.wanted()
    request = RecordVerificationRequest(tournament_id=NAME, candidate_id=wanted.candidate.candidate_id)
    request.evaluation.CopyFrom(evaluation_of(around(20.0)[:4]))
    assert (await service.updater.record_verification(request)).refused


async def test_a_held_candidate_survives_a_restart_and_keeps_its_files(service: Service, tmp_path: Path) -> None:
    held = await service.submit(0, 20.0)
    claim(service.store, service.agents[0].agent_id, 2)
    service.published(1, around(1.0))
    await collect_once(service.state, service.store, grace_seconds=0.0, retention=Retention())
    assert read_manifest(service.store, held.candidate_id).agent_id == service.agents[0].agent_id
    await service.updater.close()
    service.state.close()
    again = Service(tmp_path)
    service.state, service.updater = again.state, again.updater
    assert (await service.wanted())[0].candidate.candidate_id == held.candidate_id


async def test_a_rebuilt_board_has_the_candidates_that_were_verified(service: Service, tmp_path: Path) -> None:
    for score in (20.0, 30.0):
        await service.submit(0, score)
        await service.verify(score)
    await service.submit(1, 10.0)
    empty = Database.open(tmp_path / "new.sqlite", DATABASE_FORMAT, time.time)
    await rebuild(empty, service.store)
    assert [one.agent_number for one in await empty.transact(records.read_board, NAME)] == [0, 1]
    empty.close()


async def test_verification_needs_the_epoch_of_the_episodes(service: Service) -> None:
    agent = service.agents[0]
    policy = policy_file(agent)
    claim(service.store, agent.agent_id, 1)
    name = publish(service.store, agent.agent_id, 1, {"policy": policy}, manifest_of(agent, policy, 5.0))
    checkpoint = Checkpoint(agent_id=agent.agent_id, manifest_digest=name)
    with pytest.raises(InvalidArgument, match=r"evaluation\.epoch is missing"):
        await service.updater.submit(SubmitCandidateRequest(request_id=name, checkpoint=checkpoint, lease_epoch=1))


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"synchronous": True, "pool": {"maximum_pods": 2}}, "not reproducible"),
        ({"pool": {"maximum_pods": 1}}, "set pool.maximum_pods to 2 or more"),
        ({"evaluation": {"episodes": 16, "verify": 17}}, "expected 0, or 8 to evaluation.episodes = 16"),
        ({"evaluation": {"episodes": 16, "verify": 3}}, "expected 0, or 8 to evaluation.episodes = 16"),
    ],
)
def test_a_setting_that_cannot_verify_is_refused(sections: dict[str, Any], line: str) -> None:
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 1000},
        "evaluation": {"episodes": 16, "verify": 8},
    }
    with pytest.raises(InvalidArgument, match=line):
        specification.resolve(specification.parse(values | sections, source="test"))


def test_by_default_scores_are_taken_as_pods_state_them() -> None:
    values = {"environment": {"id": "CartPole-v1"}, "algorithms": {"ppo": {}}, "objective": {"environment_steps": 1000}}
    assert specification.resolve(specification.parse(values, source="test")).evaluation.verify == 0

"""Fakes a launcher and a leaderboard in memory."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.decisions.resources import Resources
from orchestrator.launchers.base import ListedPod, NewPod
from podrace.errors import FailedPrecondition, NotFound, PodraceError, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc

STARTING_SILENT_SECONDS = 150.0
TOGETHER_SECONDS = 120.0
ORPHANED_SECONDS = 300.0


@dataclass
class FakeLauncher:
    """A launcher whose pods are entries of a dictionary."""

    pods: dict[str, ListedPod] = field(default_factory=dict)
    stopped: list[tuple[str, bool]] = field(default_factory=list)
    refusal: Exception | None = None
    stubborn: bool = False
    waits_for_a_node: bool = False
    log_line: str = ""
    unavailable: bool = False
    stopping: Callable[[str], Awaitable[object]] | None = None
    """Called while a pod is stopped."""

    async def list(self) -> list[ListedPod]:
        if self.unavailable:
            raise Unavailable("the API does not respond")
        return list(self.pods.values())

    async def start(self, pod: NewPod) -> None:
        if self.refusal:
            raise self.refusal
        reserved = Resources(pod.spec.cores, pod.spec.memory_bytes, pod.spec.gpus)
        self.pods[pod.pod_id] = ListedPod(
            *(pod.pod_id, pod.tournament_id, 1_700_000_000.0, pod.spec.layout, reserved),
            started=not self.waits_for_a_node,
        )

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        self.stopped.append((pod_id, kill))
        if self.stopping:
            await self.stopping(pod_id)
        if kill or not self.stubborn:
            self.pods.pop(pod_id, None)

    def last_log_line(self, pod_id: str) -> str:
        return self.log_line


class FakeLeaderboard(
    leaderboard_pb2_grpc.LeaderboardServiceServicer,
    leaderboard_pb2_grpc.GeneratorServiceServicer,
    leaderboard_pb2_grpc.UpdaterServiceServicer,
):
    """A leaderboard whose answers a test sets."""

    def __init__(self) -> None:
        self.best: dict[str, leaderboard_pb2.Candidate] = {}
        self.generate_requests: list[leaderboard_pb2.GenerateAgentRequest] = []
        self.known_agents: list[leaderboard_pb2.GenerateAgentRequest] = []
        self.refusal: PodraceError | None = None
        self.no_work_reason = ""
        self.refusals: list[leaderboard_pb2.Refusal] = []
        self.verification: leaderboard_pb2.Verification | None = None
        self.incumbent: leaderboard_pb2.Incumbent | None = None
        self.quota_report = ""
        self.verified: list[leaderboard_pb2.RecordVerificationRequest] = []
        self.unreachable = False
        self.contenders: list[leaderboard_pb2.Candidate] = []
        self.name_champion_refusal: PodraceError | None = None
        self.others: list[leaderboard_pb2.Candidate] = []
        self.ensemble = False
        self.snapshots: list[leaderboard_pb2.SnapshotChampionRequest] = []
        self.snapshot_refusal: PodraceError | None = None
        self.registered: dict[str, tuple[str, str]] = {}
        self.registrations: asyncio.Queue[list[str]] = asyncio.Queue()
        self.register_refusal: PodraceError | None = None
        self.forgetful = False
        self.continued_trial: int | None = None

    def score(self, tournament_id: str, score: float, agent: int = 0) -> None:
        self.best[tournament_id] = leaderboard_pb2.Candidate(
            candidate_id=f"digest-of-{score:g}",
            tournament_id=tournament_id,
            agent_id=f"{tournament_id}-a{agent}",
            score=score,
            standard_error=0.5,
            rank=1,
        )

    async def ListCandidates(
        self, request: leaderboard_pb2.ListCandidatesRequest, context: Any
    ) -> leaderboard_pb2.ListCandidatesResponse:
        if self.unreachable:
            raise FailedPrecondition("unreachable")
        if self.forgetful and request.tournament_id not in self.registered:
            raise NotFound("unknown")
        best = self.best.get(request.tournament_id)
        board = [best, *self.others] if best else []
        return leaderboard_pb2.ListCandidatesResponse(candidates=board[: request.page_size])

    async def RegisterTournaments(
        self, request: leaderboard_pb2.RegisterTournamentsRequest, context: Any
    ) -> leaderboard_pb2.RegisterTournamentsResponse:
        """Records the tournaments, unless the test refuses them."""
        self.registrations.put_nowait([one.tournament_id for one in request.tournaments])
        if self.register_refusal:
            raise self.register_refusal
        self.registered |= {one.tournament_id: (one.owner, one.namespace) for one in request.tournaments}
        return leaderboard_pb2.RegisterTournamentsResponse()

    async def ReviewAgents(
        self, request: leaderboard_pb2.ReviewAgentsRequest, context: Any
    ) -> leaderboard_pb2.ReviewAgentsResponse:
        """Stops no agent, and returns the refusals and the report that the test sets."""
        new = [one for one in self.refusals if one.number > request.refusals_after]
        return leaderboard_pb2.ReviewAgentsResponse(
            refusals=new,
            verification=self.verification,
            incumbent=self.incumbent,
            quota_report=self.quota_report,
        )

    async def RecordVerification(
        self, request: leaderboard_pb2.RecordVerificationRequest, context: Any
    ) -> leaderboard_pb2.RecordVerificationResponse:
        """Accepts a score of at least 100, and wants nothing more."""
        self.verified.append(request)
        self.verification = None
        refused = request.evaluation.mean_return < 100.0
        return leaderboard_pb2.RecordVerificationResponse(refused=refused, reason="as measured")

    async def NameChampion(
        self, request: leaderboard_pb2.NameChampionRequest, context: Any
    ) -> leaderboard_pb2.NameChampionResponse:
        """Selects the contender with the best score on seed 7; its score on seed 8 is the reported one."""
        if self.unreachable:
            raise Unavailable("unreachable")
        if self.name_champion_refusal:
            raise self.name_champion_refusal
        chosen, reported = (
            {one.candidate_id: one for one in request.evaluations if one.seed == seed} for seed in (7, 8)
        )
        answer = leaderboard_pb2.NameChampionResponse()
        missing = [candidate for candidate in self.contenders if candidate.candidate_id not in chosen]
        scores = {name: one.evaluation.mean_return for name, one in chosen.items() if one.HasField("evaluation")}
        if self.contenders:
            best = max(self.contenders, key=lambda candidate: scores.get(candidate.candidate_id, -math.inf))
            answer.champion.CopyFrom(best)
            answer.reason = answer.selection.reason = "the best score"
            answer.score = answer.selection.selection_score = scores.get(best.candidate_id, best.score)
            answer.standard_error = 0.25
            others = [one for one in self.contenders if one is not best] if self.ensemble else []
            for other in others:
                answer.selection.members.add(agent_id=other.agent_id, manifest_digest=other.candidate_id)
            if not missing and best.candidate_id not in reported:
                answer.contenders.add(candidate=best, members=others, episodes=60, seed=8)
            elif not missing and reported[best.candidate_id].HasField("evaluation"):
                answer.score = reported[best.candidate_id].evaluation.mean_return
                answer.selection.reported_episodes = 60
        answer.contenders.extend(
            leaderboard_pb2.Contender(candidate=candidate, episodes=50, seed=7) for candidate in missing
        )
        return answer

    async def SnapshotChampion(
        self, request: leaderboard_pb2.SnapshotChampionRequest, context: Any
    ) -> leaderboard_pb2.SnapshotChampionResponse:
        if self.snapshot_refusal:
            raise self.snapshot_refusal
        self.snapshots.append(request)
        return leaderboard_pb2.SnapshotChampionResponse()

    async def GenerateAgent(
        self, request: leaderboard_pb2.GenerateAgentRequest, context: Any
    ) -> leaderboard_pb2.GenerateAgentResponse:
        if self.refusal:
            raise self.refusal
        if request.HasField("agent"):
            self.known_agents.append(request)
            return leaderboard_pb2.GenerateAgentResponse(agent=request.agent)
        self.generate_requests.append(request)
        if self.no_work_reason:
            return leaderboard_pb2.GenerateAgentResponse(no_work_reason=self.no_work_reason)
        agent = leaderboard_pb2.Agent(
            agent_id=f"{request.tournament_id}-a{request.number}",
            tournament_id=request.tournament_id,
            number=request.number,
            algorithm="ppo",
            reason="fresh",
            trial=self.continued_trial if self.continued_trial is not None else request.number,
        )
        return leaderboard_pb2.GenerateAgentResponse(agent=agent)

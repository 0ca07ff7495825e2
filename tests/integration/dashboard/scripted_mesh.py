"""A mesh with prepared tournaments, real gRPC servers on Unix sockets, which tests change while it serves."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from orchestrator.discovery import DiscoveryServicer
from podrace import rpc
from podrace.access.authenticators.signed import SignedTokenAuthenticator
from podrace.access.guard import Guard
from podrace.access.mesh_key import MeshKey
from podrace.access.ownership import Ownership, visible
from podrace.access.principal import Principal, current_principal
from podrace.access.rules import Decision, Resource, Rule
from podrace.access.tokens import AUDIENCE
from podrace.checkpoint.v1 import delivery_pb2, delivery_pb2_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Part
from podrace.client.calls.tournaments import END_STATES
from podrace.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as board_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tasks import ChangeSignal, wait_at_most
from podrace.tournament.v1 import tournament_pb2 as tournaments_pb

START = 1_700_000_000
KINDS = ("agent_generated", "agent_assigned", "agent_finished")


class Prepared:
    """One tournament and everything that belongs to it."""

    def __init__(self, tournament_id: str, leaderboard: str) -> None:
        self.tournament = tournaments_pb.Tournament(
            tournament_id=tournament_id,
            state=tournaments_pb.TOURNAMENT_STATE_RUNNING,
            reason="created",
            leaderboard_address=leaderboard,
            owner="alice",
        )
        spec = self.tournament.spec
        spec.name, spec.environment.id, spec.evolution.strategy = tournament_id, "CartPole-v1", "pbt"
        spec.objective.target_return = 500.0
        rate = spec.algorithms["ppo"].hyperparameters["learning_rate"]
        rate.low, rate.high, rate.scale = 1e-5, 1e-1, tournaments_pb.SCALE_LOG
        spec.algorithms["sac"].ratio = 1.0
        spec.evaluation.options.update({"split": "validation"})
        for split in ("validation", "backtest"):
            spec.reports[split].episodes = 1
            spec.reports[split].options.update({"split": split})
        self.tournament.create_time.seconds = START
        self.candidates: list[Any] = []
        self.agents: list[Any] = []
        self.events: list[Any] = []
        self.pods: list[Any] = []
        self.changes = ChangeSignal()
        self._ranked: tuple[int, Sequence[Any]] = (0, [])

    def generate(self, parent: int | None = None, rate: float = 1e-3, algorithm: str = "ppo") -> Any:
        """Adds an agent with its event."""
        number = len(self.agents)
        name = self.tournament.tournament_id
        agent = board_pb.Agent(
            agent_id=f"{name}-a{number}",
            tournament_id=name,
            number=number,
            algorithm=algorithm,
            origin=board_pb.ORIGIN_FRESH if parent is None else board_pb.ORIGIN_MUTATION,
            parent_agent_ids=[] if parent is None else [f"{name}-a{parent}"],
            reason="fresh" if parent is None else f"child of a{parent}: learning_rate changed",
        )
        agent.hyperparameters.update({"learning_rate": rate, "gamma": 0.99 - 0.001 * (number % 7), "horizon": 64})
        agent.running_duration.seconds = 3 * number
        self.agents.append(agent)
        self.tournament.agents = len(self.agents)
        self.record("agent_generated", f"agent a{number}: {agent.reason}", agent_id=agent.agent_id)
        return agent

    def submit(self, number: int, score: float, steps: int = 0) -> Any:
        """Adds a submission of an agent."""
        sequence = len(self.candidates) + 1
        agent = self.agents[number]
        found = board_pb.Candidate(
            candidate_id=f"{sequence:064x}",
            tournament_id=self.tournament.tournament_id,
            agent_id=agent.agent_id,
            agent_number=number,
            algorithm=agent.algorithm,
            score=score,
            standard_error=2.5,
            episodes=32,
            sequence=sequence,
            verdict=board_pb.VERDICT_ACCEPTED,
            environment_steps=steps or 1000 * sequence,
            agent_environment_steps=steps or 1000 * sequence,
            core_seconds=0.5 * sequence,
            reason="there is room on the board",
        )
        found.submit_time.seconds = START + sequence
        self.candidates.append(found)
        if not self.tournament.HasField("best_score") or score > self.tournament.best_score:
            self.tournament.best_score, self.tournament.best_agent_id = score, agent.agent_id
            self.tournament.champion_manifest_digest = found.candidate_id
        self.changes.notify_all()
        return found

    def record(self, kind: str, message: str, **ids: str) -> None:
        """Adds an event."""
        event = pb.Event(sequence=len(self.events) + 1, kind=kind, message=message, **ids)
        event.tournament_id = self.tournament.tournament_id
        event.time.seconds = START + len(self.events)
        self.events.append(event)
        self.changes.notify_all()

    def start_pod(self, number: int) -> None:
        """Adds a pod that trains an agent."""
        name = self.tournament.tournament_id
        pod = pb.Pod(
            pod_id=f"{name}-p{number}",
            tournament_id=name,
            activity=pb.POD_ACTIVITY_TRAINING,
            agent_id=f"{name}-a{number}",
            layout=tournaments_pb.LAYOUT_SEPARATE,
        )
        pod.progress.plane, pod.progress.steps_per_second = "shared", 12_345.0
        self.pods.append(pod)
        self.record("pod_started", f"p{number}: free capacity for one more pod", pod_id=pod.pod_id)

    def set_state(self, state: "tournaments_pb.TournamentState.ValueType", reason: str) -> None:
        """Changes the state."""
        self.tournament.state, self.tournament.reason = state, reason
        self.changes.notify_all()

    def board(self) -> Sequence[Any]:
        """The best submission of each agent, best first."""
        if self._ranked[0] == len(self.candidates):
            return self._ranked[1]
        best: dict[str, Any] = {}
        for one in self.candidates:
            if one.agent_id not in best or one.score > best[one.agent_id].score:
                best[one.agent_id] = one
        ranked = sorted(best.values(), key=lambda one: -one.score)
        for rank, one in enumerate(ranked, 1):
            one.rank = rank
        self._ranked = (len(self.candidates), ranked)
        return ranked


class ScriptedMesh:
    """Serves prepared tournaments; an asynchronous context manager."""

    def __init__(self, folder: Path, key: MeshKey | None = None) -> None:
        """Prepares a mesh; with a key, callers need tokens that it has signed, and owners and roles matter."""
        self._guard: Guard | None = None
        if key:
            self.replace_key(key)
        self.audited: list[tuple[str, str, bool]] = []
        """Calls that may change something, and refusals: name of the caller, method, and whether it was allowed."""
        self.address, self.leaderboard = f"unix:{folder}/o.sock", f"unix:{folder}/l.sock"
        self.prepared: dict[str, Prepared] = {}
        self.refuses_changes = False
        """Whether the caller has only the role `viewer`."""
        self.evaluations_end = asyncio.Event()
        """Set: evaluations have a result."""
        self.evaluations_end.set()
        self.requests: list[Any] = []
        self._servers: list[rpc.Server] = []

    def add(self, tournament_id: str) -> Prepared:
        """Adds an empty tournament."""
        self.prepared[tournament_id] = Prepared(tournament_id, self.leaderboard)
        return self.prepared[tournament_id]

    def replace_key(self, key: MeshKey) -> None:
        """Lets holders of tokens of another key in, from the next start."""
        self._guard = Guard([SignedTokenAuthenticator(key.public, [AUDIENCE])], owners=self, audit=self._audit)

    def ownership_of(self, tournament_id: str) -> Ownership | None:
        found = self.prepared.get(tournament_id)
        return found and Ownership(found.tournament.owner, found.tournament.namespace)

    def tournament_ids(self) -> list[str]:
        return list(self.prepared)

    def _audit(self, who: Principal | None, peer: str, rule: Rule, resource: Resource, decision: Decision) -> None:
        self.audited.append((who.name if who else "", rule.method.rpartition("/")[2], decision.allowed))

    def find(self, tournament_id: str) -> Prepared:
        if tournament_id not in self.prepared:
            raise NotFound(f"tournament {tournament_id} is not known")
        return self.prepared[tournament_id]

    def change(self, request: Any) -> None:
        """Records a request that changes something, or refuses it."""
        if self.refuses_changes:
            raise PermissionDenied("alice: the role viewer may not call this method; it needs user")
        self.requests.append(request)

    async def __aenter__(self) -> "ScriptedMesh":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts both services, again after `stop` too."""
        for address, services in (
            (
                self.leaderboard,
                [
                    rpc.Service(
                        board_pb.DESCRIPTOR.services_by_name["LeaderboardService"],
                        board_grpc.add_LeaderboardServiceServicer_to_server,
                        ScriptedLeaderboard(self),
                    ),
                    rpc.Service(
                        delivery_pb2.DESCRIPTOR.services_by_name["CheckpointService"],
                        delivery_pb2_grpc.add_CheckpointServiceServicer_to_server,
                        ScriptedCheckpoints(),
                    ),
                ],
            ),
            (
                self.address,
                [
                    rpc.Service(
                        pb.DESCRIPTOR.services_by_name["OrchestratorService"],
                        pb_grpc.add_OrchestratorServiceServicer_to_server,
                        ScriptedOrchestrator(self),
                    ),
                    *(
                        [
                            rpc.Service(
                                discovery_pb2.DESCRIPTOR.services_by_name["DiscoveryService"],
                                discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server,
                                DiscoveryServicer(discovery_pb2.GetServerResponse()),
                            )
                        ]
                        if self._guard
                        else []
                    ),
                ],
            ),
        ):
            config = rpc.ServerConfig(listen=address, grace_seconds=0.0)
            self._servers.append(await rpc.Server.start(config, services, guard=self._guard))

    async def stop(self) -> None:
        """Stops both services, as if they were killed."""
        for server in self._servers:
            await server.drain()
        self._servers = []


def part_of(entries: Sequence[Any], request: Any) -> tuple[Sequence[Any], str]:
    """The requested page of a list, and the token of the next one."""
    begin = int(request.page_token or 0)
    end = begin + (request.page_size or 100)
    return entries[begin:end], str(end) if end < len(entries) else ""


class ScriptedOrchestrator(pb_grpc.OrchestratorServiceServicer):
    def __init__(self, mesh: ScriptedMesh) -> None:
        self._mesh = mesh

    async def ListTournaments(self, request: Any, context: Any) -> Any:
        principal = current_principal()
        seen = visible(principal, self._mesh) if principal else None
        found = [one.tournament for name, one in reversed(self._mesh.prepared.items()) if seen is None or name in seen]
        page, token = part_of(found, request)
        return pb.ListTournamentsResponse(tournaments=page, next_page_token=token)

    async def GetTournament(self, request: Any, context: Any) -> Any:
        return pb.GetTournamentResponse(tournament=self._mesh.find(request.tournament_id).tournament)

    async def WatchTournament(self, request: Any, context: Any) -> AsyncIterator[Any]:
        entry, token = self._mesh.find(request.tournament_id), request.resume_token
        while True:
            change = entry.changes.next_change()
            events = entry.events[token : token + 2000]
            token += len(events)
            yield pb.WatchTournamentResponse(
                tournament=entry.tournament, pods=entry.pods, events=events, resume_token=token
            )
            if entry.tournament.state in END_STATES:
                return
            if token == len(entry.events):
                await wait_at_most(change.wait(), 60.0)

    async def ListPods(self, request: Any, context: Any) -> Any:
        return pb.ListPodsResponse(pods=self._mesh.find(request.tournament_id).pods)

    async def CreateTournament(self, request: Any, context: Any) -> Any:
        if request.spec.environment.id == "unknown":
            raise InvalidArgument("environment.id = 'unknown': there is no such environment")
        if request.validate_only:
            return pb.CreateTournamentResponse(
                tournament=tournaments_pb.Tournament(spec=request.spec), unchecked=["resources: no machine answers"]
            )
        self._mesh.change(request)
        entry = self._mesh.add(f"{request.spec.name}-new{len(self._mesh.prepared)}")
        principal = current_principal()
        if principal:
            entry.tournament.owner, entry.tournament.namespace = principal.name, principal.namespace
        return pb.CreateTournamentResponse(tournament=entry.tournament)

    async def CancelTournament(self, request: Any, context: Any) -> Any:
        self._mesh.change(request)
        entry = self._mesh.find(request.tournament_id)
        entry.set_state(tournaments_pb.TOURNAMENT_STATE_CANCELLED, request.reason)
        return pb.CancelTournamentResponse(tournament=entry.tournament)

    async def PauseTournament(self, request: Any, context: Any) -> Any:
        self._mesh.change(request)
        entry = self._mesh.find(request.tournament_id)
        entry.tournament.pause_reason = f"paused by alice: {request.reason}"
        entry.changes.notify_all()
        return pb.PauseTournamentResponse(tournament=entry.tournament)

    async def ResumeTournament(self, request: Any, context: Any) -> Any:
        self._mesh.change(request)
        entry = self._mesh.find(request.tournament_id)
        entry.tournament.pause_reason = ""
        entry.set_state(tournaments_pb.TOURNAMENT_STATE_RUNNING, "resumed")
        return pb.ResumeTournamentResponse(tournament=entry.tournament)

    async def UpdateTournament(self, request: Any, context: Any) -> Any:
        self._mesh.change(request)
        entry = self._mesh.find(request.tournament_id)
        entry.tournament.spec.pool.MergeFrom(request.pool)
        entry.changes.notify_all()
        return pb.UpdateTournamentResponse(tournament=entry.tournament)

    async def DeleteTournament(self, request: Any, context: Any) -> Any:
        self._mesh.change(request)
        entry = self._mesh.find(request.tournament_id)
        if entry.tournament.state not in END_STATES:
            raise FailedPrecondition(f"tournament {request.tournament_id} has not ended; stop it first")
        del self._mesh.prepared[request.tournament_id]
        return pb.DeleteTournamentResponse()

    async def CreateEvaluation(self, request: Any, context: Any) -> Any:
        self._mesh.change(request)
        return pb.CreateEvaluationResponse(evaluation_id=f"{request.tournament_id}-e1")

    async def WaitEvaluation(self, request: Any, context: Any) -> Any:
        await self._mesh.evaluations_end.wait()
        return pb.WaitEvaluationResponse(done=True, evaluation=backtest(days=120))


def backtest(days: int) -> Evaluation:
    """An evaluation of an account in the stock market."""
    draws = random.Random(days)
    found = Evaluation(mean_return=0.21, episodes=1, mean_length_steps=days)
    value, index, highest = 1e6, 1e6, 0.0
    for _ in range(days):
        value, index = value * (1 + draws.gauss(0.0015, 0.01)), index * (1 + draws.gauss(0.0005, 0.01))
        highest = max(highest, value)
        row = {
            "account_value": value,
            "index_value": index,
            "equal_weight_value": 0.9 * index + 1e5,
            "drawdown": value / highest - 1,
            "exposure": draws.uniform(0.4, 1.0),
        }
        for name, one in row.items():
            found.traces[name].values.append(one)
    first = date(2012, 1, 2)
    found.traces["account_value"].labels.extend(str(first + timedelta(days=day)) for day in range(days))
    for prefix, sharpe in (("", 1.4), ("index_", 0.6), ("equal_weight_", 0.7)):
        found.metrics.update({f"{prefix}cumulative_return": 0.2, f"{prefix}sharpe_ratio": sharpe})
    found.metrics.update({"mean_exposure": 0.7, "costs_paid": 1234.0, "fills": 321.0})
    return found


class ScriptedLeaderboard(board_grpc.LeaderboardServiceServicer):
    def __init__(self, mesh: ScriptedMesh) -> None:
        self._mesh = mesh

    async def ListCandidates(self, request: Any, context: Any) -> Any:
        entry = self._mesh.find(request.tournament_id)
        found = entry.candidates if request.all_submissions else entry.board()
        page, token = part_of(found, request)
        return board_pb.ListCandidatesResponse(candidates=page, next_page_token=token)

    async def WatchCandidates(self, request: Any, context: Any) -> AsyncIterator[Any]:
        entry, token = self._mesh.find(request.tournament_id), request.resume_token
        while True:
            change = entry.changes.next_change()
            while token < len(entry.candidates):
                token += 1
                yield board_pb.WatchCandidatesResponse(candidate=entry.candidates[token - 1], resume_token=token)
            await wait_at_most(change.wait(), 60.0)

    async def GetLineage(self, request: Any, context: Any) -> Any:
        page, token = part_of(self._mesh.find(request.tournament_id).agents, request)
        return board_pb.GetLineageResponse(agents=page, next_page_token=token)


class ScriptedCheckpoints(delivery_pb2_grpc.CheckpointServiceServicer):
    async def ListParts(self, request: Any, context: Any) -> Any:
        sizes = {"policy": 1 << 20, "learner": 3 << 20}
        parts = [Part(name=name, digest=f"{size:064x}", size_bytes=size) for name, size in sizes.items()]
        return delivery_pb2.ListPartsResponse(parts=[delivery_pb2.DeliveredPart(part=part) for part in parts])


def fill(entry: Prepared, *, agents: int, points: int, pods: int = 4, seed: int = 1) -> None:
    """Adds agents whose curves rise with noise, with a lineage, pods and events."""
    draws = random.Random(seed)
    for number in range(agents):
        parent = draws.randrange(number) if number > 4 and draws.random() < 0.8 else None
        algorithm = entry.agents[parent].algorithm if parent is not None else draws.choice(["ppo", "ppo", "sac"])
        entry.generate(parent, 10 ** draws.uniform(-5, -1), algorithm)
    for number in range(min(pods, agents)):
        entry.start_pod(number)
    best = [draws.uniform(200, 480) for _ in range(agents)]
    each = max(1, points // agents)
    for number in range(points):
        agent = number % agents
        progress = (number // agents + 1) / each
        score = best[agent] * (1 - 2.718 ** (-4 * progress)) + draws.gauss(0, 15)
        entry.submit(agent, score, steps=1000 * (number // agents + 1))


async def serve(folder: Path, *, agents: int, points: int) -> None:
    """Serves a large tournament until the process is stopped."""
    async with ScriptedMesh(folder) as mesh:
        fill(mesh.add("large-abc123"), agents=agents, points=points)
        print(mesh.address, flush=True)
        await asyncio.Event().wait()

"""Builds every servicer in this process with something in it, and lists requests and texts that reach its code."""

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from fuzzed_policies import served_policies
from google.protobuf.message import Message
from policy_files import manifest_of, policy_file, steps_behind

from agentpod.compute_thread import ComputeThread
from agentpod.experience.rollout import rollout_fields
from agentpod.experience.slots import tensor_spec
from agentpod.fusion.rendezvous import LeaderRendezvous
from agentpod.fusion.rounds import FusionOptions
from agentpod.fusion.shared_training import SharedTraining
from agentpod.learner.leader import LearnerServicer
from agentpod.models.messages import policy_message
from agentpod.models.policy import NetworkSpec
from agentpod.roles.evaluator import EvaluatorServicer
from agentpod.roles.worker import WorkerServicer
from leaderboard.checkpoints.archiving import TournamentArchiving
from leaderboard.checkpoints.deletion import TournamentDeletion
from leaderboard.delivery.checkpoint_delivery import CheckpointDelivery
from leaderboard.delivery.servicer import delivery_service
from leaderboard.generator import Generator
from leaderboard.plugins.function_server import EvolutionServicer
from leaderboard.service import services as leaderboard_services
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store.owners import TournamentOwners
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store_access.access import StoreAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from orchestrator.archiving import Archiving
from orchestrator.assignments.evaluation_epochs import EvaluationEpochs
from orchestrator.assignments.external_pods import ExternalPods
from orchestrator.assignments.service import Assignments
from orchestrator.config import Config
from orchestrator.discovery import with_discovery
from orchestrator.service import OrchestratorServicer
from orchestrator.state.database import DATABASE_FORMAT as STATE_FORMAT
from orchestrator.state.database import StateDatabase
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.saved_state import load_saved_state
from orchestrator.tournaments.deletion import Deletion
from orchestrator.tournaments.evaluations import Evaluations
from orchestrator.tournaments.lifecycle import Tournaments
from orchestrator.tournaments.queries import Queries
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pod_pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pod_grpc
from podrace.checkpoint.v1 import delivery_pb2, store_pb2
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation, Pointer
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish
from podrace.database import Database
from podrace.database.database import _Change
from podrace.digests import digest
from podrace.evolution.v1 import evolution_pb2, evolution_pb2_grpc
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.page_tokens import token_after
from podrace.simulator.v1 import simulator_pb2
from podrace.specification.resolve import parse, resolve
from podrace.tensor.v1 import tensor_pb2, tensor_pb2_grpc
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.probe import PROBE_SPEC
from podrace.tensor_transport.remote import GrpcPlane, TensorServicer
from podrace.tensor_transport.transfer import GroupPlane, TransferServicer
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec, TournamentSpec
from simulators.config import Limits
from simulators.messages import space_of
from simulators.service import SimulatorServicer
from simulators.service import services as simulator_services

NOW = 1_700_000_000.0
SPEC = {
    "name": "race",
    "environment": {"id": "CartPole-v1"},
    "algorithms": {"ppo": {"hyperparameters": {"learning_rate": {"low": 1e-5, "high": 1e-2}}}},
    "objective": {"environment_steps": 1_000_000, "wall_clock_duration": 600},
    "pool": {"minimum_pods": 1, "maximum_pods": 4},
    "evaluation": {"options": {"x": 1.0}},
}


@dataclass
class World:
    """A service and what is in it; `seeds` are requests that succeed, or nearly do."""

    service: rpc.Service
    seeds: Sequence[Message] = ()
    words: Sequence[str] = ()


@dataclass
class StillClock:
    """A clock that stands still."""

    now: float = 1000.0

    def wall(self) -> float:
        return NOW + self.now

    def monotonic(self) -> float:
        return self.now


class OwnLeaderboard:
    """Answers the orchestrator without a leaderboard."""

    async def generate(self, tournament: Any, agent: Any, *_: Any, **__: Any) -> board_pb.GenerateAgentResponse:
        made = board_pb.Agent(agent_id=agent.agent_id, tournament_id=tournament.tournament_id, algorithm="ppo")
        return board_pb.GenerateAgentResponse(agent=made)

    async def register_agent(self, *_: Any) -> None:
        """Knows every agent."""

    async def delete_tournament(self, tournament_id: str) -> None:
        """Deletes nothing."""

    async def archive_tournament(self, tournament_id: str, records: bytes) -> None:
        """Keeps nothing."""


@dataclass
class Worlds:
    """All services of a mesh and of a pod, below one folder."""

    folder: Path
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def build(self) -> list[World]:
        """Builds all of them."""
        worlds = [await self._orchestrator(), discovery(), *await self._leaderboard(), self._simulator()]
        worlds += [*await self._roles(), self._learner(), self._tensors(), self._transfers(), await self._evolution()]
        return [*worlds, *(World(*served) for served in await served_policies(self.folder, self.stack))]

    async def _orchestrator(self) -> World:
        clock = StillClock()
        database = run_inline(Database.open(self.folder / "orchestrator.sqlite", STATE_FORMAT, clock.wall))
        state = StateDatabase(database)
        self.stack.callback(state.close)
        runtime = RuntimeState(10.0)
        runtime.restore(await state.transact(load_saved_state), clock.monotonic())
        state.on_saved(runtime.cache.apply_saved)
        tournaments = Tournaments(state, runtime, mesh_id="", start_pods=True, random_bytes=Random(1).randbytes)
        pods, leaderboard = ExternalPods(state, runtime, clock), OwnLeaderboard()
        assignments = Assignments(state, runtime, leaderboard, clock, external_pods=pods)  # type: ignore[arg-type]
        queries, evaluations = Queries(state, runtime), Evaluations(state, runtime, clock)
        servicer = OrchestratorServicer(
            *(tournaments, queries, assignments, runtime, clock),
            leaderboard_address="unix:/nowhere",
            watch_pause_seconds=0.0,
            evaluations=evaluations,
            evaluation_epochs=EvaluationEpochs(state, runtime, clock),
            deletion=self._deletion(state, runtime, clock),
        )
        created = await tournaments.create(pb.CreateTournamentRequest(request_id="first", spec=given_spec()))
        name = created.tournament_id
        checkpoint = Checkpoint(agent_id=f"{name}-a0", manifest_digest="0" * 64)
        queued = pb.CreateEvaluationRequest(request_id="e", tournament_id=name, checkpoint=checkpoint, episodes=4)
        await tournaments.create_evaluation(queued)
        progress = pb.Progress(activity=pb.POD_ACTIVITY_TRAINING, environment_steps=100, score=1.0, plane="shared")
        renew = pb.RenewAssignmentRequest(assignment_id=f"{name}-e0.1", lease_epoch=1, progress=progress)
        complete = pb.CompleteAssignmentRequest(
            request_id="c", assignment_id=f"{name}-e0.1", lease_epoch=1, outcome=pb.OUTCOME_FINISHED, progress=progress
        )
        complete.evaluation.CopyFrom(an_evaluation())
        seeds = [
            pb.CreateTournamentRequest(request_id="new", spec=given_spec()),
            pb.GetTournamentRequest(tournament_id=name),
            pb.ListTournamentsRequest(page_size=2),
            pb.WatchTournamentRequest(tournament_id=name, resume_token=1),
            pb.UpdateTournamentRequest(request_id="u", tournament_id=name, pool=given_spec().pool),
            pb.CancelTournamentRequest(request_id="x", tournament_id=name, reason="enough"),
            pb.PauseTournamentRequest(request_id="p", tournament_id=name, reason="the node is needed"),
            pb.ResumeTournamentRequest(request_id="r", tournament_id=name),
            pb.DeleteTournamentRequest(tournament_id=name),
            queued,
            pb.GetEvaluationRequest(evaluation_id=f"{name}-e0"),
            pb.ListEvaluationsRequest(tournament_id=name),
            pb.ListPodsRequest(tournament_id=name),
            pb.ListEventsRequest(tournament_id=name, page_size=2, page_token=token_after(["events", name], 1)),
            pb.AcquireAssignmentRequest(pod_id=f"{name}-p0", incarnation="i"),
            renew,
            complete,
        ]
        words = (name, f"{name}-a0", f"{name}-p0", f"{name}-e0", f"{name}-e0.1", "0" * 64, "ppo", "CartPole-v1", "1")
        service = rpc.Service(
            pb.DESCRIPTOR.services_by_name["OrchestratorService"],
            pb_grpc.add_OrchestratorServiceServicer_to_server,
            servicer,
        )
        return World(service, seeds, words)

    def _deletion(self, state: StateDatabase, runtime: RuntimeState, clock: Any) -> Deletion:
        leaderboard: Any = OwnLeaderboard()
        archive = Archiving(state, runtime, leaderboard, clock).archive
        return Deletion(state, runtime, leaderboard, clock, log_folder=self.folder, archive=archive)

    async def _leaderboard(self) -> list[World]:
        state = run_inline(Database.open(self.folder / "leaderboard.sqlite", DATABASE_FORMAT, lambda: NOW))
        self.stack.callback(state.close)
        store, watch = FolderStore(self.folder / "store"), SubmissionWatch()
        self.stack.push_async_callback(watch.close)
        owners = TournamentOwners()
        updater, generator = Updater(state, store, watch), Generator(state, owners=owners)
        name, spec = "race-abcdef", resolve(given_spec())
        agents, submissions = [], []
        for number in range(3):
            request = board_pb.GenerateAgentRequest(
                request_id=f"{name}-a{number}", tournament_id=name, spec=spec, number=number
            )
            agents.append(request)
            agent: Any = await generator.generate(request)
            submissions.append(published(store, agent, float(number)))
            await updater.submit(submissions[-1])
        candidate = submissions[0].checkpoint.manifest_digest
        snapshot = board_pb.SubmitSnapshotRequest(
            request_id="s", checkpoint=submissions[0].checkpoint, lease_epoch=1, number=1
        )
        champion = board_pb.NameChampionRequest(tournament_id=name)
        champion.evaluations.add(candidate_id=candidate, evaluation=an_evaluation(), seed=7)
        seeds = [
            *agents,
            *submissions,
            snapshot,
            champion,
            board_pb.GetAgentRequest(agent_id=f"{name}-a0"),
            board_pb.ListCandidatesRequest(tournament_id=name, page_size=1),
            board_pb.ListCandidatesRequest(tournament_id=name, page_size=1, all_submissions=True),
            board_pb.GetLineageRequest(agent_id=f"{name}-a0"),
            board_pb.GetLineageRequest(tournament_id=name, page_size=1),
            board_pb.WatchCandidatesRequest(tournament_id=name),
            board_pb.GetStatisticsRequest(tournament_id=name, champion_candidate_ids=[candidate]),
            board_pb.ReplayTournamentRequest(tournament_id=name),
            board_pb.ListSnapshotsRequest(tournament_id=name),
            board_pb.PlanEvaluationRequest(agent_id=f"{name}-a0", evaluation_epoch=1),
            board_pb.ListExperienceRequest(agent_id=f"{name}-a0", after_sequence=1),
            board_pb.SnapshotChampionRequest(request_id="c", tournament_id=name, number=1),
            board_pb.ReviewAgentsRequest(tournament_id=name),
            board_pb.RegisterTournamentsRequest(tournaments=[board_pb.RegisteredTournament(tournament_id=name)]),
            board_pb.ArchiveTournamentRequest(tournament_id=name, records=bytes(9)),
            board_pb.DeleteTournamentRequest(tournament_id=name),
        ]
        words = (name, *(f"{name}-a{number}" for number in range(4)), candidate, "ppo", "WyJ0Iiw0XQ==")
        lease = {"tournament_id": name, "agent_id": f"{name}-a0", "lease_epoch": 1}
        pointer = Pointer(agent_id=f"{name}-a0", lease_epoch=2)
        seeds += [
            store_pb2.GetPointerRequest(**lease),
            store_pb2.SwapPointerRequest(**lease, pointer=pointer),
            store_pb2.GrantUploadsRequest(**lease, files=[store_pb2.StoredFile(digest="0" * 64, size_bytes=7)]),
            store_pb2.GrantReadsRequest(**lease, manifest_digest=candidate),
            store_pb2.RenewObjectsRequest(**lease),
        ]
        access = StoreAccess(state, store, renew_after_seconds=1800.0)
        recorder = SnapshotRecorder(state, store)
        deletion = await self.stack.enter_async_context(TournamentDeletion(state, store, owners, watch))
        archiving = TournamentArchiving(state, store, lambda: NOW)
        found = leaderboard_services(
            state, watch, updater, generator, recorder, access, None, owners, deletion, archiving
        )
        delivery = CheckpointDelivery(store)
        self.stack.callback(delivery.close)
        named = {"tournament_id": name, "manifest_digest": candidate}
        seeds += [
            delivery_pb2.GetManifestRequest(**named),
            delivery_pb2.ListPartsRequest(**named, all_parts=True),
            delivery_pb2.ReadPartRequest(**named, digest=candidate),
        ]
        found.append(delivery_service(delivery))
        return [World(service, seeds, words) for service in found]

    def _simulator(self) -> World:
        request, service = simulator_pb2.StreamStepsRequest, SimulatorServicer(Limits(maximum_environments=8))
        seeds = [
            simulator_pb2.GetSimulatorRequest(id="cartpole"),
            request(open=request.Open(id="cartpole", count=2)),
            request(reset=request.Reset(seed=1)),
            request(act=request.Act(step=1, action=bytes(16))),
            request(report=request.Report()),
        ]
        words = ("cartpole", "CartPole-v1", "Pendulum-v1", "wrappers", "max_episode_steps", "shared", "observation")
        return World(simulator_services(service)[0], seeds, words)

    async def _roles(self) -> list[World]:
        plane = MemoryPlane()
        self.stack.callback(plane.close)
        probe = plane.create("probe", [PROBE_SPEC]).refs()[0]
        common: dict[str, Any] = {
            "session": "s",
            "environment": EnvironmentSpec(id="cartpole", count=2),
            "policy": policy_message(NetworkSpec(hidden_sizes=(4,))),
            "probe": probe,
        }
        computes = [ComputeThread(), ComputeThread()]
        for compute in computes:
            self.stack.callback(compute.close)
        worker: Any = WorkerServicer(Planes(plane), computes[0])
        evaluator: Any = EvaluatorServicer(Planes(plane), computes[1])
        opened = await worker.OpenWorker(pod_pb.OpenWorkerRequest(horizon=4, **common), None)
        await evaluator.OpenEvaluator(pod_pb.OpenEvaluatorRequest(**common), None)
        spaces = [space_of(message) for message in (opened.observation_space, opened.action_space)]
        slot = plane.create("slot", [tensor_spec(one) for one in rollout_fields(*spaces, 4, 2).values()]).refs()
        parameters = sum(math.prod(tensor.shape) for tensor in opened.policy.tensors)
        flat = TensorSpec(name="policy", data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[parameters], layout_version=1)
        policy = pod_pb.PolicyRef(policy_version=1, tensor=plane.create("policy", [flat]).refs()[0])
        seeds = [
            pod_pb.OpenWorkerRequest(horizon=4, **common),
            pod_pb.CollectRolloutRequest(session="s", policy=policy, slot=pod_pb.RolloutSlot(tensors=slot)),
            pod_pb.CloseWorkerRequest(session="s"),
            pod_pb.OpenEvaluatorRequest(**common),
            pod_pb.EvaluatePolicyRequest(session="s", policy=policy, episodes=2),
            pod_pb.CloseEvaluatorRequest(session="s"),
        ]
        uris = {ref.plane_uri for ref in (*slot, policy.tensor, probe)}
        words = ("s", "s", "s", "cartpole", "Pendulum-v1", "tanh", "relu", "deterministic", "policy", "reward", *uris)
        worlds = []
        for name, servicer in (("WorkerService", worker), ("EvaluatorService", evaluator)):
            add = getattr(pod_grpc, f"add_{name}Servicer_to_server")
            service = rpc.Service(pod_pb.DESCRIPTOR.services_by_name[name], add, servicer)
            worlds.append(World(service, seeds, words))
        return worlds

    def _learner(self) -> World:
        shared = SharedTraining(3, 3, 60.0)
        rendezvous = LeaderRendezvous("t-a0.1", 3, FusionOptions(), lambda index: None, clock=lambda: 0.0)
        shared.share(pod_pb.GetTrainingResponse(session="t-a0.1"), rendezvous)
        config, roles = SimpleNamespace(pod_id="p"), SimpleNamespace(plane="shared")
        leader: Any = SimpleNamespace(config=config, lease=None, roles=roles, training=None, shared_training=shared)
        seeds = [
            pod_pb.GetLearnerRequest(),
            pod_pb.GetTrainingRequest(session="", learner_index=1),
            pod_pb.JoinFusionRequest(session="t-a0.1", learner_index=1, incarnation="i"),
            pod_pb.CommitFusionRequest(session="t-a0.1", learner_index=1, incarnation="i", round=1, epoch=1),
        ]
        service = rpc.Service(
            pod_pb.DESCRIPTOR.services_by_name["LearnerService"],
            pod_grpc.add_LearnerServiceServicer_to_server,
            LearnerServicer(leader),
        )
        return World(service, seeds, ("t-a0.1", "i", "0" * 64))

    def _tensors(self) -> World:
        plane = GrpcPlane("unix:/nowhere")
        self.stack.callback(plane.close)
        ref = plane.create("r", [a_tensor()]).refs()[0]
        data = bytes(48)
        chunk = tensor_pb2.TensorChunk(tensor=ref, starts=[0, 0], sizes=[3, 4], data=data, digest=digest(data))
        seeds = [tensor_pb2.ReadTensorsRequest(tensors=[ref]), tensor_pb2.WriteTensorsRequest(chunk=chunk)]
        service = rpc.Service(
            tensor_pb2.DESCRIPTOR.services_by_name["TensorService"],
            tensor_pb2_grpc.add_TensorServiceServicer_to_server,
            TensorServicer(plane),
        )
        return World(service, seeds, (ref.plane_uri, "x", digest(data)))

    def _transfers(self) -> World:
        plane = GroupPlane("unix:/nowhere", timeout_seconds=0.05)
        self.stack.callback(plane.close)
        ref = plane.create("r", [a_tensor()]).refs()[0]
        box = tensor_pb2.TensorBox(tensor=ref, starts=[0, 0], sizes=[3, 4])
        seeds = [
            tensor_pb2.SendTensorsRequest(prefix="p", tensors=[ref]),
            tensor_pb2.ReceiveTensorsRequest(prefix="p", boxes=[box]),
        ]
        servicer = TransferServicer(plane)
        self.stack.callback(servicer.close)
        service = rpc.Service(
            tensor_pb2.DESCRIPTOR.services_by_name["TransferService"],
            tensor_pb2_grpc.add_TransferServiceServicer_to_server,
            servicer,
        )
        return World(service, seeds, (ref.plane_uri, "x", "p"))

    async def _evolution(self) -> World:
        spec = resolve(given_spec())

        class Known:
            """Takes the place of a loaded function."""

            address = "python:fuzz:known"

            def check(self) -> None:
                """Is always loaded."""

            async def run(self, work: Any, *args: Any) -> Any:
                return await asyncio.to_thread(work, *args)

            def __call__(self, request: Any) -> Any:
                return evolution_pb2.ProposeAgentResponse(reason=str(request)[:20])

        seeds = [
            evolution_pb2.ProposeAgentRequest(tournament_id="t", spec=spec, number=1),
            evolution_pb2.JudgeCandidateRequest(tournament_id="t", spec=spec),
        ]
        servicer: Any = EvolutionServicer(Known(), "generator")  # type: ignore[arg-type]
        service = rpc.Service(
            evolution_pb2.DESCRIPTOR.services_by_name["EvolutionService"],
            evolution_pb2_grpc.add_EvolutionServiceServicer_to_server,
            servicer,
        )
        return World(service, seeds, ("t", "ppo"))


def run_inline(database: Database) -> Database:
    """Lets a database execute changes in the thread of the caller: most of a case's time is waiting for another one."""

    def submit(function: Any) -> Future[Any]:
        done: Future[Any] = Future()
        database._execute([_Change(function, done)])
        return done

    database.submit = submit  # type: ignore[method-assign]
    return database


def discovery() -> World:
    """Describes an orchestrator with the default configuration."""
    return World(with_discovery(Config(), ())[0])


def given_spec() -> TournamentSpec:
    """Returns a specification as a client sends it."""
    return parse(SPEC, source="fuzz")


def a_tensor() -> TensorSpec:
    return TensorSpec(name="x", data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[3, 4], layout_version=1)


def an_evaluation() -> Evaluation:
    made = Evaluation(mean_return=1.0, variance=0.5, episodes=2, policy_digest="0" * 64, episode_returns=[0.5, 1.5])
    made.metrics["sharpe_ratio"] = 1.0
    made.traces["account_value"].values.extend([1.0, 2.0])
    return made


def published(store: FolderStore, agent: board_pb.Agent, score: float) -> board_pb.SubmitCandidateRequest:
    """Publishes a checkpoint and returns the request that submits it."""
    policy = policy_file(agent, f"{agent.agent_id} {score}")
    manifest = manifest_of(agent, policy, score, lineage_environment_steps=steps_behind(store, agent) + 1000)
    claim(store, agent.agent_id, 1)
    name = publish(store, agent.agent_id, 1, {"policy": policy}, manifest)
    checkpoint = Checkpoint(agent_id=agent.agent_id, manifest_digest=name)
    return board_pb.SubmitCandidateRequest(request_id=name, checkpoint=checkpoint, lease_epoch=1)

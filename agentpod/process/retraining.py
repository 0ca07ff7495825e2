"""Owns the retraining of one agent, as its manifest says, by a pod that differs from no other; nobody else is asked.

    python -m agentpod retrain --set store=URI --set manifest=DIGEST --set folder=FOLDER

This process is orchestrator and updater at once: it hands out the one assignment, takes the checkpoints, and sends the
pod home when the one that was asked for is reached. The training goes on from a copy of the agent's starting checkpoint
in a store of its own; the agent's store is only read. What was published is printed as one line of JSON.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import structlog
from google.protobuf.duration_pb2 import Duration

from agentpod.config import PodConfig, RetrainConfig
from agentpod.learner.provenance import spec_of, versions
from podrace import rpc, telemetry
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Manifest
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.manifest import canonical_json
from podrace.checkpoint_store.publish import read_manifest
from podrace.checkpoint_store.store import CheckpointStore, check_digest
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as board_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.processes import lifeline
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import PodSpec

LEASE_SECONDS = 3.0
"""A pod that is to stop learns it within a third of this."""
GRACE_SECONDS = 10.0
"""Roles end with their head within this time."""
REACHED = "the checkpoint that was asked for is reached"

Context = grpc.aio.ServicerContext[Any, Any]
_log = structlog.get_logger(__name__)


def run(config: RetrainConfig) -> int:
    """Trains the agent again and prints what came of it.

    Raises:
        InvalidArgument: The folder holds something already.
        PodraceError: As retrain.
    """
    telemetry.configure_logging(config.telemetry)
    if config.folder.is_dir() and any(config.folder.iterdir()):
        raise InvalidArgument(f"folder = {config.folder}: is not empty, and is removed in the end; name another")
    try:
        print(json.dumps(asyncio.run(retrain(config))), flush=True)
    finally:
        shutil.rmtree(config.folder, ignore_errors=True)
    return 0


async def retrain(config: RetrainConfig) -> dict[str, Any]:
    """Trains an agent again.

    Returns:
        `outcome` and `message` of the assignment, the `versions` that were used, and `manifests`: what was published,
        in order.

    Raises:
        NotFound, DataLoss: The manifest or the starting checkpoint is no longer there, or damaged.
        FailedPrecondition: The manifest does not say enough, or a process of the pod ended by itself.
    """
    check_digest(config.manifest)
    source = open_store(config.store, only_reading=True)
    target = await asyncio.to_thread(read_manifest, source, config.manifest)
    assignment = assignment_of(target)
    store = FolderStore(config.folder / "store")
    if target.starting_manifest_digest:
        await asyncio.to_thread(copy_checkpoint, source, store, target.starting_manifest_digest)
    # What else the contracts have, a pod with one agent to train never calls.
    mesh = SingleAssignmentMesh(assignment, store, target.environment_steps)  # type: ignore[abstract]
    pod = pod_config(assignment.spec.pod, config, store.uri)
    async with AsyncExitStack() as resources:
        server = await rpc.Server.start(rpc.ServerConfig(listen=pod.orchestrator), mesh.services())
        resources.push_async_callback(server.drain)
        with lifeline.hold(Path(pod.lifeline)):
            await _run_pod(pod, config)
    if not mesh.ended:
        raise FailedPrecondition(f"agent {target.agent_id}: its pod ended before it had trained; see the lines above")
    return {
        "outcome": pb.Outcome.Name(mesh.outcome).removeprefix("OUTCOME_").lower(),
        "message": mesh.message,
        "versions": versions(),
        "manifests": [json.loads(canonical_json(manifest)) for manifest in mesh.manifests],
    }


# --- what is trained ---------------------------------------------------------------------------------------------


def assignment_of(manifest: Manifest) -> pb.Assignment:
    """The assignment that led to a manifest, with everything scored whose turn it was. Pure.

    Raises:
        FailedPrecondition: The manifest does not say how its agent was trained.
    """
    if not manifest.HasField("spec") or manifest.snapshot:
        raise FailedPrecondition(
            f"agent {manifest.agent_id}: this manifest does not say how it was trained: it is a snapshot's, or was"
            " published by an earlier version"
        )
    spec = spec_of(manifest)
    # Whether there is time for an evaluation depends on how fast the pod is; what is trained does not.
    spec.synchronous = True
    spec.evaluation.ClearField("snapshot_period")
    agent = board_pb.Agent(
        agent_id=manifest.agent_id,
        tournament_id=manifest.tournament_id,
        number=_number_of(manifest),
        algorithm=manifest.algorithm,
        hyperparameters=manifest.hyperparameters,
        seed=manifest.seed,
    )
    if manifest.starting_manifest_digest:
        # Whose it is, its own manifest says.
        agent.starting_checkpoint.CopyFrom(Checkpoint(manifest_digest=manifest.starting_manifest_digest))
    return pb.Assignment(
        assignment_id=f"{manifest.agent_id}.1",
        tournament_id=manifest.tournament_id,
        spec=spec,
        lease_epoch=1,
        lease_duration=lease_duration(),
        train=agent,
    )


def _number_of(manifest: Manifest) -> int:
    number = manifest.agent_id.removeprefix(f"{manifest.tournament_id}-a")
    return int(number) if number.isdecimal() else 0


def lease_duration() -> Duration:
    """As long as the only lease lasts."""
    length = Duration()
    length.FromNanoseconds(round(LEASE_SECONDS * 1e9))
    return length


def copy_checkpoint(source: CheckpointStore, target: CheckpointStore, manifest_digest: str) -> None:
    """Copies a manifest and its parts, each verified, one at a time; blocks.

    Raises:
        NotFound, DataLoss: Something of it is no longer there, or damaged.
    """
    try:
        for part in read_manifest(source, manifest_digest).parts:
            target.put_object(source.get_object(part.digest))
        target.put_object(source.get_object(manifest_digest))
    except NotFound as error:
        raise NotFound(
            f"the starting checkpoint was collected, and the agent cannot begin again: {error.message}"
        ) from None


# --- who trains it -----------------------------------------------------------------------------------------------


def pod_config(spec: PodSpec, config: RetrainConfig, store_uri: str) -> PodConfig:
    """The configuration of a pod as a launcher of this machine would give it. Pure."""
    layout = "fused" if spec.layout == tournament_pb2.LAYOUT_FUSED else "separate"
    learners = spec.learners or 1
    computing = 1 if layout == "fused" else learners * (1 + spec.workers)
    address = f"unix:{config.folder}/stage.sock"
    return PodConfig(
        pod_id=f"retrain-{config.folder.name}",
        orchestrator=address,
        leaderboard=address,
        store=store_uri,
        folder=config.folder,
        layout=layout,
        workers=spec.workers,
        learners=learners,
        precision=spec.precision or "float32",
        plane=spec.plane or "auto",
        cores=spec.cores,
        memory_bytes=spec.memory_bytes,
        threads=max(1, int(spec.cores / computing)),
        gpus=tuple(range(spec.gpus)),
        lifeline=str(config.folder / "retrain.lifeline"),
        telemetry=config.telemetry,
    )


async def _run_pod(pod: PodConfig, config: RetrainConfig) -> None:
    """Runs the processes of a pod until its head has ended, or somebody wants this to end."""
    roles = {role: await _start_role(pod, role) for role in pod.roles}
    ends = [asyncio.ensure_future(process.wait()) for process in roles.values()]
    stop = asyncio.ensure_future(rpc.shutdown_requested(*([lifeline.lost(config.lifeline)] if config.lifeline else [])))
    try:
        # A role that is lost is not started again: the training would not be the same any more.
        await asyncio.wait([stop, *ends], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        await _end(list(roles.values()))


async def _end(processes: Sequence[asyncio.subprocess.Process]) -> None:
    """Lets processes end by themselves, as roles do when their head has gone, and makes those that do not."""
    waiting = [asyncio.ensure_future(process.wait()) for process in processes]
    for process in processes:
        if process.returncode is None:
            process.terminate()
    _, late = await asyncio.wait(waiting, timeout=GRACE_SECONDS)
    for process in processes:
        if late and process.returncode is None:
            process.kill()
    await asyncio.gather(*waiting)


async def _start_role(pod: PodConfig, role: str) -> asyncio.subprocess.Process:
    overrides = [argument for key, value in settings_of(pod).items() for argument in ("--set", f"{key}={value}")]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agentpod",
        role,
        *overrides,
        stdin=asyncio.subprocess.DEVNULL,
        # What is printed is the answer alone.
        stdout=sys.stderr,
    )


def settings_of(pod: PodConfig) -> dict[str, object]:
    """Keys of a pod's configuration as they are given on a command line."""
    names = (
        "pod_id", "orchestrator", "leaderboard", "store", "folder", "layout", "workers", "learners", "precision",
        "plane", "cores", "memory_bytes", "threads", "lifeline",
    )  # fmt: skip
    settings = {name: getattr(pod, name) for name in names}
    gpus = {"gpus": ",".join(map(str, pod.gpus))} if pod.gpus else {}
    return {**settings, **gpus, "telemetry.log_level": pod.telemetry.log_level}


# --- what it is told ---------------------------------------------------------------------------------------------


class SingleAssignmentMesh(pb_grpc.OrchestratorServiceServicer, board_grpc.UpdaterServiceServicer):
    """All of a mesh that a pod with one assignment sees."""

    def __init__(self, assignment: pb.Assignment, store: CheckpointStore, last_steps: int) -> None:
        """Waits for the pod.

        Args:
            assignment: What it is to do.
            store: Where it publishes.
            last_steps: With a checkpoint of so many environment steps it may go.
        """
        self._assignment, self._store, self._last_steps = assignment, store, last_steps
        self._given = self._reached = False
        self.manifests: list[Manifest] = []
        self.ended = False
        self.outcome: pb.Outcome.ValueType = pb.OUTCOME_DRAINED
        self.message = ""

    def services(self) -> list[rpc.Service]:
        """Both services, for one server."""
        orchestrator = pb.DESCRIPTOR.services_by_name["OrchestratorService"]
        updater = board_pb.DESCRIPTOR.services_by_name["UpdaterService"]
        return [
            rpc.Service(orchestrator, pb_grpc.add_OrchestratorServiceServicer_to_server, self),
            rpc.Service(updater, board_grpc.add_UpdaterServiceServicer_to_server, self),
        ]

    async def AcquireAssignment(
        self, request: pb.AcquireAssignmentRequest, context: Context
    ) -> pb.AcquireAssignmentResponse:
        """Gives the assignment once; see the contract."""
        if self._given:
            return pb.AcquireAssignmentResponse(drain="there was only one agent to train")
        self._given = True
        return pb.AcquireAssignmentResponse(assignment=self._assignment)

    async def RenewAssignment(self, request: pb.RenewAssignmentRequest, context: Context) -> pb.RenewAssignmentResponse:
        """Lets the pod go on until it has come far enough; see the contract."""
        directive = pb.DIRECTIVE_CANCEL if self._reached else pb.DIRECTIVE_CONTINUE
        self.ended = self.ended or self._reached
        return pb.RenewAssignmentResponse(
            directive=directive, lease_duration=lease_duration(), reason=REACHED if self._reached else ""
        )

    async def CompleteAssignment(
        self, request: pb.CompleteAssignmentRequest, context: Context
    ) -> pb.CompleteAssignmentResponse:
        """Takes note of the end; see the contract."""
        self.ended, self.outcome, self.message = True, request.outcome, request.message
        return pb.CompleteAssignmentResponse()

    async def SubmitCandidate(
        self, request: board_pb.SubmitCandidateRequest, context: Context
    ) -> board_pb.SubmitCandidateResponse:
        """Takes a checkpoint without judging it; see the contract."""
        manifest = await asyncio.to_thread(read_manifest, self._store, request.checkpoint.manifest_digest)
        if manifest not in self.manifests:
            self.manifests.append(manifest)
        self._reached = manifest.environment_steps >= self._last_steps
        if self._reached and self.outcome == pb.OUTCOME_DRAINED:
            self.message = REACHED
        _log.info("published again", environment_steps=manifest.environment_steps)
        candidate = board_pb.Candidate(candidate_id=request.checkpoint.manifest_digest, reason="trained again")
        return board_pb.SubmitCandidateResponse(candidate=candidate)

"""Trains one agent again from its manifest, with an ordinary pod and without any service.

    python -m agentpod retrain --set store=URI --set manifest=DIGEST --set folder=FOLDER

This process acts as orchestrator and updater at once. It hands out the only assignment, accepts the checkpoints, and
cancels the assignment once the requested checkpoint is reached. The training starts from a copy of the agent's starting
checkpoint in a separate store; the store of the agent is only read. The published manifests are printed as one line of
JSON.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import structlog
from google.protobuf.duration_pb2 import Duration

from agentpod.config import FUSED, PodConfig, RetrainConfig
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
from podrace.limits.config import command_settings
from podrace.limits.user_code import runs_apart
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.ownership import make_private_folder
from podrace.processes import lifeline
from podrace.specification.pods.exchange import REPLAYED
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import PodSpec

LEASE_SECONDS = 3.0
"""Lease of the only assignment. A pod renews it, and so learns that it must stop, every third of this."""
GRACE_SECONDS = 10.0
"""Time in which the roles must exit after their leader."""
REACHED = "the requested checkpoint is reached"

Context = grpc.aio.ServicerContext[Any, Any]
_log = structlog.get_logger(__name__)


def run(config: RetrainConfig) -> int:
    """Trains the agent again and prints the result; returns the exit code.

    Raises:
        InvalidArgument: The folder is not empty.
        PodraceError: As `retrain`.
    """
    telemetry.configure_logging(config.telemetry)
    if config.folder.is_dir() and any(config.folder.iterdir()):
        raise InvalidArgument(
            f"folder = {config.folder}: is not empty, and would be removed in the end; name another folder"
        )
    try:
        print(json.dumps(asyncio.run(retrain(config))), flush=True)
    finally:
        shutil.rmtree(config.folder, ignore_errors=True)
    return 0


async def retrain(config: RetrainConfig) -> dict[str, Any]:
    """Trains an agent again.

    Returns:
        `outcome` and `message` of the assignment, the `versions` of the software used, and `manifests`, which were
        published, in order.

    Raises:
        NotFound, DataLoss: The manifest or the starting checkpoint is missing or damaged.
        FailedPrecondition: The manifest does not describe the training, a process of the pod exited by itself, or
            others can enter the folder.
    """
    check_digest(config.manifest)
    source = open_store(config.store, only_reading=True)
    target = await asyncio.to_thread(read_manifest, source, config.manifest)
    assignment = assignment_of(target)
    # Before the store creates it with access for everyone.
    make_private_folder(config.folder, "name another folder", key="folder")
    store = FolderStore(config.folder / "store")
    if target.starting_manifest_digest:
        # Into the shared folder of the new store, which the pod can read whichever tournament the parent belongs to.
        await asyncio.to_thread(copy_checkpoint, source, store, target.starting_manifest_digest)
    # A pod with one agent to train calls none of the other methods.
    mesh = SingleAssignmentMesh(assignment, store, target.environment_steps)  # type: ignore[abstract]
    pod = replace(
        pod_config(assignment.spec.pod, config, store.uri), isolated=runs_apart(assignment.spec, config.allow)
    )
    async with AsyncExitStack() as resources:
        server = await rpc.Server.start(rpc.ServerConfig(listen=pod.orchestrator), mesh.services())
        resources.push_async_callback(server.drain)
        with lifeline.hold(Path(pod.lifeline)):
            await _run_pod(pod, config)
    if not mesh.ended:
        raise FailedPrecondition(
            f"agent {target.agent_id}: its pod exited before the training had finished; see the log lines above"
        )
    return {
        "outcome": pb.Outcome.Name(mesh.outcome).removeprefix("OUTCOME_").lower(),
        "message": mesh.message,
        "versions": versions(),
        "manifests": [json.loads(canonical_json(manifest)) for manifest in mesh.manifests],
    }


# --- the assignment ----------------------------------------------------------------------------------------------


def assignment_of(manifest: Manifest) -> pb.Assignment:
    """Returns the assignment that led to a manifest, with every scheduled evaluation made. Pure.

    Raises:
        FailedPrecondition: The manifest does not record how its agent was trained.
    """
    if not manifest.HasField("spec") or manifest.snapshot:
        raise FailedPrecondition(
            f"agent {manifest.agent_id}: this manifest does not record how it was trained: it is that of a snapshot, or"
            " was published by an earlier version"
        )
    spec = spec_of(manifest)
    if spec.experience.shared and _replays(manifest):
        raise FailedPrecondition(
            f"agent {manifest.agent_id}: it also learned from steps of other agents (experience.shared), which cannot"
            " be repeated"
        )
    if manifest.mate_manifest_digests:
        raise FailedPrecondition(
            f"agent {manifest.agent_id}: it started from the average of several agents"
            " (evolution.crossover_probability), which cannot be repeated"
        )
    # Whether there is time for an evaluation depends on the speed of the pod. Synchronous, the result does not.
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
        # The agent that it belongs to is in its own manifest.
        agent.starting_checkpoint.CopyFrom(Checkpoint(manifest_digest=manifest.starting_manifest_digest))
    return pb.Assignment(
        assignment_id=f"{manifest.agent_id}.1",
        tournament_id=manifest.tournament_id,
        spec=spec,
        lease_epoch=1,
        lease_duration=lease_duration(),
        train=agent,
        evaluation_epoch=manifest.evaluation.epoch,
    )


def _replays(manifest: Manifest) -> bool:
    return REPLAYED in manifest.hyperparameters


def _number_of(manifest: Manifest) -> int:
    number = manifest.agent_id.removeprefix(f"{manifest.tournament_id}-a")
    return int(number) if number.isdecimal() else 0


def lease_duration() -> Duration:
    """Returns the duration of the only lease."""
    length = Duration()
    length.FromNanoseconds(round(LEASE_SECONDS * 1e9))
    return length


def copy_checkpoint(source: CheckpointStore, target: CheckpointStore, manifest_digest: str) -> None:
    """Copies a manifest and its parts, one at a time, and verifies each. Blocks.

    Raises:
        NotFound, DataLoss: An object is missing or damaged.
    """
    try:
        manifest = read_manifest(source, manifest_digest)
        own = source.within(manifest.tournament_id)
        for part in manifest.parts:
            target.put_object(own.get_object(part.digest))
        target.put_object(own.get_object(manifest_digest))
    except NotFound as error:
        raise NotFound(
            f"the starting checkpoint was garbage-collected, so the agent cannot be trained again: {error.message}"
        ) from None


# --- the pod -----------------------------------------------------------------------------------------------------


def pod_config(spec: PodSpec, config: RetrainConfig, store_uri: str) -> PodConfig:
    """Returns the configuration that a launcher on this machine would give the pod. Pure."""
    layout = FUSED if spec.layout == tournament_pb2.LAYOUT_FUSED else "separate"
    learners = spec.learners or 1
    computing = learners * (1 if layout == FUSED else 1 + spec.workers)
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
        captured=spec.captured or not spec.HasField("captured"),
        cores=spec.cores,
        memory_bytes=spec.memory_bytes,
        threads=max(1, int(spec.cores / computing)),
        gpus=tuple(map(str, range(spec.gpus))),
        pod_gpus=spec.gpus,
        lifeline=str(config.folder / "retrain.lifeline"),
        telemetry=config.telemetry,
        allow=config.allow,
    )


async def _run_pod(pod: PodConfig, config: RetrainConfig) -> None:
    """Runs the processes of a pod until one of them has exited, or this process is asked to stop."""
    roles = {role: await _start_role(pod, role) for role in pod.roles}
    ends = [asyncio.ensure_future(process.wait()) for process in roles.values()]
    stop = asyncio.ensure_future(rpc.shutdown_requested(*([lifeline.lost(config.lifeline)] if config.lifeline else [])))
    try:
        # A lost role is not started again: the training would no longer be the same.
        await asyncio.wait([stop, *ends], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        await _end(list(roles.values()))


async def _end(processes: Sequence[asyncio.subprocess.Process]) -> None:
    """Terminates processes, and kills those that have not exited within GRACE_SECONDS."""
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
        # The standard output of this process is the result alone.
        stdout=sys.stderr,
    )


def settings_of(pod: PodConfig) -> dict[str, object]:
    """Returns the configuration of a pod as keys and values for a command line."""
    names: tuple[str, ...] = (
        "pod_id", "orchestrator", "leaderboard", "store", "store_access", "folder", "layout", "isolated", "workers",
        "learners", "precision", "plane", "captured", "cores", "memory_bytes", "pod_gpus", "threads", "lifeline",
    )  # fmt: skip
    if pod.hosts > 1:
        names += ("hosts", "host_index", "head", "host", "key", "insecure", "unprotected_collectives")
    settings = {name: getattr(pod, name) for name in names}
    gpus = {"gpus": ",".join(pod.gpus)} if pod.gpus else {}
    return {**settings, **gpus, **command_settings(pod.allow), "telemetry.log_level": pod.telemetry.log_level}


# --- the services ------------------------------------------------------------------------------------------------


class SingleAssignmentMesh(pb_grpc.OrchestratorServiceServicer, board_grpc.UpdaterServiceServicer):  # type: ignore[misc]  # DeleteTournament of both, which no pod calls
    """The part of a mesh that a pod with one assignment calls: an orchestrator and an updater."""

    def __init__(self, assignment: pb.Assignment, store: CheckpointStore, last_steps: int) -> None:
        """Waits for the pod.

        Args:
            assignment: The only assignment.
            store: Store that the pod publishes to.
            last_steps: Environment steps of the requested checkpoint, with which the training is complete.
        """
        self._assignment, self._store, self._last_steps = assignment, store, last_steps
        self._given = self._reached = False
        self.manifests: list[Manifest] = []
        self.ended = False
        self.outcome: pb.Outcome.ValueType = pb.OUTCOME_DRAINED
        self.message = ""

    def services(self) -> list[rpc.Service]:
        """Returns both services, for one server."""
        orchestrator = pb.DESCRIPTOR.services_by_name["OrchestratorService"]
        updater = board_pb.DESCRIPTOR.services_by_name["UpdaterService"]
        return [
            rpc.Service(orchestrator, pb_grpc.add_OrchestratorServiceServicer_to_server, self),
            rpc.Service(updater, board_grpc.add_UpdaterServiceServicer_to_server, self),
        ]

    async def AcquireAssignment(
        self, request: pb.AcquireAssignmentRequest, context: Context
    ) -> pb.AcquireAssignmentResponse:
        """Hands out the assignment once; see the contract."""
        if self._given:
            return pb.AcquireAssignmentResponse(drain="there is only one agent to train")
        self._given = True
        return pb.AcquireAssignmentResponse(assignment=self._assignment)

    async def RenewAssignment(self, request: pb.RenewAssignmentRequest, context: Context) -> pb.RenewAssignmentResponse:
        """Continues the assignment until the requested checkpoint is reached, then cancels it; see the contract."""
        directive = pb.DIRECTIVE_CANCEL if self._reached else pb.DIRECTIVE_CONTINUE
        self.ended = self.ended or self._reached
        return pb.RenewAssignmentResponse(
            directive=directive, lease_duration=lease_duration(), reason=REACHED if self._reached else ""
        )

    async def CompleteAssignment(
        self, request: pb.CompleteAssignmentRequest, context: Context
    ) -> pb.CompleteAssignmentResponse:
        """Records the outcome; see the contract."""
        self.ended, self.outcome, self.message = True, request.outcome, request.message
        return pb.CompleteAssignmentResponse()

    async def SubmitCandidate(
        self, request: board_pb.SubmitCandidateRequest, context: Context
    ) -> board_pb.SubmitCandidateResponse:
        """Records a checkpoint without ranking it; see the contract."""
        manifest = await asyncio.to_thread(read_manifest, self._store, request.checkpoint.manifest_digest)
        if manifest not in self.manifests:
            self.manifests.append(manifest)
        self._reached = manifest.environment_steps >= self._last_steps
        if self._reached and self.outcome == pb.OUTCOME_DRAINED:
            self.message = REACHED
        _log.info("published again", environment_steps=manifest.environment_steps)
        candidate = board_pb.Candidate(candidate_id=request.checkpoint.manifest_digest, reason="trained again")
        return board_pb.SubmitCandidateResponse(candidate=candidate)

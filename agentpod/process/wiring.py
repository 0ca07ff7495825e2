"""Constructs and runs the processes of a pod: one for each role (`separate`), or one for each learner (`fused`)."""

import asyncio
import importlib
import os
import time
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import grpc.aio
import structlog
import torch

from agentpod.compute_thread import ComputeThread
from agentpod.config import LEADER_ROLE, PodConfig
from agentpod.current_device import use_device
from agentpod.learner.follower import Follower
from agentpod.learner.leader import Leader, LearnerServicer
from agentpod.liveness import stacks
from agentpod.process.gpu_binding import bind_gpus
from agentpod.roles.evaluation_host import EvaluationHost
from agentpod.roles.evaluator import EvaluatorServicer
from agentpod.roles.placement import placed
from agentpod.roles.user_worker import UserWorkerServicer
from agentpod.roles.worker import WorkerServicer
from agentpod.session.session import GPU_MEMORY
from podrace import rpc, telemetry, tracing
from podrace.access.authenticators.pod_key import PodKeyAuthenticator
from podrace.access.guard import Guard
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1 import store_pb2_grpc
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.assignment_store import (
    GRANTED,
    AssignmentStores,
    DirectStores,
    GrantedStores,
    check_store_access,
)
from podrace.errors import (
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    PodraceError,
    ResourceExhausted,
    Unavailable,
)
from podrace.limits.user_environment import leader_variables
from podrace.processes import lifeline, metrics_ports
from podrace.processes.user_ids import hide_memory
from podrace.rpc import Server, ServerConfig, Service
from podrace.tasks import cancel_all, finish_unless_stopped
from podrace.tensor.v1 import tensor_pb2, tensor_pb2_grpc
from podrace.tensor_transport import shared
from podrace.tensor_transport.cuda import CudaPlane
from podrace.tensor_transport.cupy_driver import CupyDriver
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.plane import Plane, Planes
from podrace.tensor_transport.remote import GrpcPlane, TensorServicer
from podrace.tensor_transport.shared import SharedPlane
from podrace.tensor_transport.transfer import GroupPlane, TransferServicer

_log = structlog.get_logger(__name__)
FAULTS_THAT_MAY_PASS = FailedPrecondition, PermissionDenied, ResourceExhausted, Unavailable
"""Errors of the check of a store that another process of the mesh has used."""
EVALUATOR_NICENESS = 5
"""Priority of the evaluator: training comes first."""
ROLE_APPEAR_SECONDS = 30.0
"""Time in which the leader's lifeline must appear after a role has started."""
PRELOADED = (
    "gymnasium.envs.registration",
    "simulators.classic",
    "simulators.gym.simulator",
    "simulators.mujoco.simulator",
    "simulators.stocks",
)
SERVICES = pb.DESCRIPTOR.services_by_name
TENSOR_SERVICES = tensor_pb2.DESCRIPTOR.services_by_name


def run_role(config: PodConfig, role: str, *, forked: bool = True) -> int:
    """Runs one process of a pod until it has finished and returns its exit code.

    Args:
        config: Settings of the pod.
        role: Role of the process.
        forked: Whether the pod's file lists the process, so that the leader can send it signals.

    Raises:
        InvalidArgument: The pod has no such role, or a GPU of the pod does not exist.
        FailedPrecondition: The pod has GPUs, but the driver shows none to this process, or PyTorch cannot use it.
        Unavailable: An address cannot be bound.
    """
    if role not in config.roles:
        raise InvalidArgument(f"role {role!r}: pod {config.pod_id} has {', '.join(config.roles)}")
    config = bind_gpus(config if role == LEADER_ROLE else replace(config, token=""), role)
    use_device(config.device(role))
    torch.set_num_threads(config.threads)
    if role == "evaluator":
        os.nice(EVALUATOR_NICENESS)
    metrics = telemetry.start(config.telemetry, service=role, pod_id=config.pod_id)
    metrics_ports.record(config.folder_of(role), role, metrics)
    if not config.is_other_user(role):
        stacks.dump_on_signal(config.folder, role)
    _log.info("role starts", pid=os.getpid(), metrics=metrics)
    dumps = not forked and role != LEADER_ROLE and not config.is_other_user(role)
    try:
        return asyncio.run(_run_and_dump(config, role) if dumps else _run(config, role))
    finally:
        tracing.flush()


async def _run_and_dump(config: PodConfig, role: str) -> int:
    """Runs a role that dumps its stacks regularly, because the leader cannot send it a signal."""
    dumping = asyncio.create_task(stacks.dump_regularly(config.folder, role, config.progress.floor_seconds))
    try:
        return await _run(config, role)
    finally:
        await cancel_all(dumping)


def _run(config: PodConfig, role: str) -> Coroutine[Any, Any, int]:
    if role.partition("-")[0] != LEADER_ROLE:
        return _run_worker_or_evaluator(config, role)
    return run_follower(config, role) if config.learner_of(role) else run_leader(config, own_process=True)


def preload() -> None:
    """Imports what the roles need, and limits torch to one interop thread, before anything is forked."""
    torch.set_num_interop_threads(1)
    for module in PRELOADED:
        # A pod that needs a missing package reports it when it makes its environment.
        with suppress(ModuleNotFoundError):
            importlib.import_module(module)


def learner_planes(config: PodConfig, role: str) -> list[Plane]:
    """Returns the planes on which a learner may share memory with its other roles, the preferred one first."""
    device = config.device(role)
    if config.shares_processes:
        on_gpu = [MemoryPlane(f"{GPU_MEMORY}:", device)] if config.gpus else []
        return [*on_gpu, MemoryPlane()]
    if config.plane == "auto":
        on_gpus = ["cuda", *(["group"] if config.one_gpu_each else [])] if config.gpus else []
        return [_plane(config, role, name) for name in (*on_gpus, "shared", "grpc")]
    return [_plane(config, role, config.plane)]


def _plane(config: PodConfig, role: str, name: str) -> Plane:
    """Returns a plane on which a learner allocates regions, or another role opens those of its learner."""
    address = config.address(role) if role.startswith(LEADER_ROLE) else ""
    device = config.device(role)
    if name == "grpc":
        return GrpcPlane(address)
    if name == "group":
        return GroupPlane(address, f"{config.pod_id}/{role}/{os.getpid()}", device, host=config.host)
    if name == "cuda":
        make_driver = partial(CupyDriver, torch.device(device).index or 0)
        return CudaPlane(config.region_prefix, make_driver, config.plane_folder, group=config.user_code_uid)
    pinned = torch.device(device).type == "cuda"
    return SharedPlane(config.region_prefix, config.plane_folder, group=config.user_code_uid, pinned=pinned)


def _tensor_services(planes: Sequence[Plane], resources: ExitStack) -> list[Service]:
    """Returns the services of the planes that transfer regions over gRPC, valid until the resources are released."""
    services = []
    for plane in planes:
        if isinstance(plane, GrpcPlane):
            add_copies = tensor_pb2_grpc.add_TensorServiceServicer_to_server
            services.append(Service(TENSOR_SERVICES["TensorService"], add_copies, TensorServicer(plane)))
        elif isinstance(plane, GroupPlane):
            add_transfers = tensor_pb2_grpc.add_TransferServiceServicer_to_server
            servicer = TransferServicer(plane)
            resources.callback(servicer.close)
            services.append(Service(TENSOR_SERVICES["TransferService"], add_transfers, servicer))
    return services


async def run_leader(config: PodConfig, *, own_process: bool = False) -> int:
    """Runs the process of the leader and returns its exit code.

    It serves the LearnerService; in a fused pod also the WorkerService and the EvaluatorService.

    Args:
        config: Settings of the pod.
        own_process: Whether only the pod uses this process, so that it can forget the keys of the store.
    """
    if config.isolated:
        # User code may have the user id of this process: not every launcher can give it another one.
        hide_memory()
    if not config.shares_processes and (left := shared.remove_regions(config.region_prefix, config.plane_folder)):
        # A previous run of this pod was killed. No other process of this run owns regions before the leader starts.
        _log.warning("removed the shared memory of a previous run of this pod", files=len(left))
    planes, compute = learner_planes(config, LEADER_ROLE), ComputeThread(config.device(LEADER_ROLE))
    leader = Leader(config, planes, compute, partial(_stores, config), device=config.device(LEADER_ROLE))
    if own_process:
        # The store is open. In a fused pod, simulators of users run in this process.
        for name in leader_variables(os.environ, config.allow):
            del os.environ[name]
    learner = LearnerServicer(leader)
    services = [Service(SERVICES["LearnerService"], pb_grpc.add_LearnerServiceServicer_to_server, learner)]
    services += _services_within(config, LEADER_ROLE, planes, compute)
    with ExitStack() as resources:
        resources.callback(compute.close)
        resources.callback(Planes(*planes).close)
        services += _tensor_services(planes, resources)
        resources.enter_context(lifeline.hold(config.leader_lifeline, config.user_code_uid))
        servers = [await Server.start(ServerConfig(listen=config.address(LEADER_ROLE)), services)]
        if config.hosts > 1:
            reachable = ServerConfig(listen=_reachable(config), insecure=config.insecure)
            servers.append(await Server.start(reachable, services[:1], guard=_guard_of_hosts(config)))
        stop = asyncio.ensure_future(_stop_requested(config))
        started = time.monotonic()
        try:
            exit_code = await leader.run(stop)
        finally:
            stop.cancel()
            await asyncio.gather(*(server.drain() for server in servers))
        _log.info("leader exits", exit_code=exit_code, seconds=round(time.monotonic() - started, 1))
        return exit_code


def _guard_of_hosts(config: PodConfig) -> Guard:
    """Returns the guard of the port that followers on other hosts call: they have the key of the pod."""
    return Guard([PodKeyAuthenticator(config.key, config.pod_id)] if config.key else [], pod_id=config.pod_id)


def _stores(config: PodConfig, leaderboard: grpc.aio.Channel) -> AssignmentStores:
    """Opens the checkpoint store."""
    check_store_access(config.store_access)
    if config.store_access == GRANTED:
        stub: Any = store_pb2_grpc.StoreServiceStub(leaderboard)
        return GrantedStores(config.store, stub, asyncio.get_running_loop())
    # The leaderboard has used the store, so these may pass, and a pod that holds an agent reports them.
    return DirectStores(open_store(config.store, tolerated=FAULTS_THAT_MAY_PASS))


def _reachable(config: PodConfig) -> str:
    """Returns the address that the leader serves followers of other hosts at: this host, and the port of `head`."""
    return f"{config.host}:{config.head.rpartition(':')[2]}"


async def run_follower(config: PodConfig, role: str) -> int:
    """Runs the process of a follower and returns its exit code."""
    index, is_first = config.learner_of(role), role == LEADER_ROLE
    planes, compute = learner_planes(config, role), ComputeThread(config.device(role))
    device = config.device(role)
    with ExitStack() as resources:
        resources.callback(compute.close)
        resources.callback(Planes(*planes).close)
        held = config.leader_lifeline if is_first else config.folder / f"{role}.lifeline"
        resources.enter_context(lifeline.hold(held, config.user_code_uid if is_first else 0))
        services = _tensor_services(planes, resources) + _services_within(config, role, planes, compute)
        server = await Server.start(ServerConfig(listen=config.address(role), grace_seconds=0.0), services)
        following = asyncio.ensure_future(Follower(config, planes, compute, index, device=device).run())
        stopping = asyncio.ensure_future(_stop_requested(config) if is_first else _leader_exited(config))
        await finish_unless_stopped(following, stopping)
        await cancel_all(stopping)
        await server.drain()
        try:
            await following
        except asyncio.CancelledError:
            _log.info("role exits")
            return 0
        except PodraceError:
            return 1
    return 0


async def _run_worker_or_evaluator(config: PodConfig, role: str) -> int:
    planes = Planes(*(_plane(config, role, name) for name in ("shared", "grpc", "cuda", "group")))
    compute = ComputeThread(config.device(role))
    with ExitStack() as resources:
        resources.callback(compute.close)
        resources.callback(planes.close)
        roles = [each for each in dict.fromkeys((role, "evaluator")) if config.process_of(each) == role]
        services = [service for each in roles for service in _role_services(config, each, planes, compute)]
        hosts_functions = config.isolated and "evaluator" in roles
        functions = await EvaluationHost.start(config) if hosts_functions else None
        server = await Server.start(ServerConfig(listen=config.address(role), grace_seconds=0.0), services)
        reason = await _leader_exited(config)
        _log.info("role exits", reason=reason)
        await server.drain()
        if functions:
            await functions.close()
    return 0


async def _stop_requested(config: PodConfig) -> str:
    """Waits until the first learner of a host has to stop, and returns the reason."""
    return await rpc.shutdown_requested(*([lifeline.lost(config.lifeline)] if config.lifeline else []))


async def _leader_exited(config: PodConfig) -> str:
    """Waits until another role has to stop, and returns the reason.

    As long as the leader lives, a signal does not end the role. A pod is ended by a signal to all its processes at
    once, and the leader first finishes its work and publishes.
    """
    reason = await rpc.shutdown_requested(lifeline.lost(config.leader_lifeline, appear_seconds=ROLE_APPEAR_SECONDS))
    # Returns at once if the leader does not live.
    await lifeline.lost(config.leader_lifeline)
    return reason


def _services_within(config: PodConfig, role: str, planes: Sequence[Plane], compute: ComputeThread) -> list[Service]:
    """Returns the services of the worker and the evaluator that the process of a learner has, in a fused pod."""
    others = [*config.workers_of(config.learner_of(role)), "evaluator"]
    seen = Planes(*planes)
    return [
        service
        for other in others
        if config.process_of(other) == role
        for service in _role_services(config, other, seen, compute)
    ]


def _role_services(config: PodConfig, role: str, planes: Planes, compute: ComputeThread) -> list[Service]:
    place = placed(config, role)
    if role != "evaluator":

        def make(cls: type[WorkerServicer]) -> WorkerServicer:
            return cls(planes, compute, place, config.allow, captured=config.captured)

        named = config.worker_class
        servicer = UserWorkerServicer(named, config.allow, make) if named else make(WorkerServicer)
        return [Service(SERVICES["WorkerService"], pb_grpc.add_WorkerServiceServicer_to_server, servicer)]
    return [
        Service(
            SERVICES["EvaluatorService"],
            pb_grpc.add_EvaluatorServiceServicer_to_server,
            EvaluatorServicer(planes, compute, place=place, allowed=config.allow),
        )
    ]

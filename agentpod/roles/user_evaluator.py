"""A tournament's own evaluator as the head of a pod asks it: an EvaluatorService that somebody else wrote.

Either one that all pods share, or a user's function in a process of this pod; to the head both are the same, an address
that speaks the contract and the plane `grpc`. Nothing depends on it: what it fails to score, the pod's own evaluator
does.
"""

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import grpc.aio
import prometheus_client
import structlog
import torch

from agentpod.config import PodConfig
from agentpod.experience.rollout import Field
from agentpod.experience.slots import POLICY, PolicySlot, tensor_spec
from agentpod.models.mlp import flat_views
from agentpod.roles.evaluator_faults import Pauses, nonsense
from agentpod.roles.function_process import FunctionProcess
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import (
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    PodraceError,
    Unavailable,
)
from podrace.plugins import address as custom
from podrace.rpc import Server, ServerConfig, Service
from podrace.specification import catalog, plugin_settings
from podrace.tensor.v1 import tensor_pb2, tensor_pb2_grpc
from podrace.tensor_transport.codec import digest, encode
from podrace.tensor_transport.plane import Region
from podrace.tensor_transport.probe import PROBE_SPEC, check_probe, write_probe
from podrace.tensor_transport.remote import GrpcPlane, TensorServicer
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec, EvaluationSpec

FAULTS = prometheus_client.Counter(
    "podrace_learner_evaluator_faults", "Policies that the tournament's own evaluator did not score", ["code"]
)
CONNECT_SECONDS = 10.0
START_SECONDS = 120.0
"""Of a process: it imports torch."""
POLL_SECONDS = 0.1
OPEN_DEADLINE_SECONDS = 120.0
CLOSE_DEADLINE_SECONDS = 2.0
LONGEST_FAULT = 400
"""Characters of what a stranger says that are told on."""
_log = structlog.get_logger(__name__)


class Asked(NamedTuple):
    """Who is asked, and how long it may take."""

    name: str
    """`python:module:function` or `grpc://host:port`."""
    answer_seconds: float


def asked_of(spec: EvaluationSpec) -> Asked | None:
    """The evaluator of a specification, if it has one of its own."""
    if not spec.evaluator:
        return None
    return Asked(spec.evaluator, plugin_settings.answer_seconds(spec))


class CustomEvaluator:
    """A tournament's own evaluator.

        custom = CustomEvaluator(config, asked)
        custom.expect(environment, policies)                    # whenever the roles of the pod are opened
        evaluation = await custom.score(slots, episodes=..., seed=..., greedy=...)
        if evaluation is None:
            ...                                                 # somebody else has to; custom.fault says why
        await custom.close()

    Attributes:
        asked: Who.
        fault: Why it did not score last time; empty if it did.
    """

    def __init__(self, config: PodConfig, asked: Asked, clock: Callable[[], float] = time.monotonic) -> None:
        """Dials and starts nothing yet."""
        self.asked, self.fault = asked, ""
        self._config, self._clock = config, clock
        found = custom.parse(asked.name)
        self._target = found.target if isinstance(found, custom.Served) else ""
        self._process: FunctionProcess | None = None
        if isinstance(found, custom.Imported):
            self._process = FunctionProcess(config, f"{found.module}:{found.function}")
            self._target = f"unix:{self._process.socket}"
        self._pauses = Pauses()
        self._plane = GrpcPlane()
        self._server: Server | None = None
        self._channel: grpc.aio.Channel | None = None
        self._environment = EnvironmentSpec()
        self._policies: Sequence[pb.PolicySpec] = ()
        self._opened, self._session, self._regions = 0, "", list[Region]()
        self._closing: set[asyncio.Future[None]] = set()
        # Unlike those of any other pod, and of any other life of this one.
        self._sessions = f"{config.pod_id}.{uuid.uuid4().hex[:12]}"

    def expect(self, environment: EnvironmentSpec, policies: Sequence[pb.PolicySpec]) -> None:
        """Says what is going to be scored, so that it can be got ready.

        Args:
            environment: With the options of the evaluation.
            policies: One, or the members of an ensemble, with their tensors listed.
        """
        if (environment, list(policies)) != (self._environment, list(self._policies)):
            self._leave()
            self._environment, self._policies = environment, policies
        if self._process and self._pauses.due(self._clock()):
            # If it cannot be started now, that is told when it is missed.
            with suppress(OSError):
                self._process.start(self._device)

    async def score(self, slots: Sequence[PolicySlot], *, episodes: int, seed: int, greedy: bool) -> Evaluation | None:
        """Scores the policies in some held slots together.

        Returns:
            None where it did not, or is not asked so soon after a fault; never later than it was given time, beside
            what it takes to open it.
        """
        started = self._clock()
        if not self._pauses.due(started):
            return None
        request = pb.EvaluatePolicyRequest(episodes=episodes, seed=seed, greedy=greedy)
        try:
            evaluation = await self._ask(slots, request)
        except (PodraceError, OSError) as error:
            await self._note(error, started)
            return None
        except (Exception, asyncio.CancelledError):
            # Called off: nobody must wait for what it is doing.
            await self._drop()
            raise
        self._pauses.well()
        self.fault = ""
        evaluation.evaluator, evaluation.evaluator_fault, evaluation.seed = self.asked.name, "", seed
        evaluation.wall_seconds = self._clock() - started
        return evaluation

    async def close(self) -> None:
        """Ends its session, and its process where it has one."""
        self._leave()
        if self._process:
            await self._process.end()
        await asyncio.gather(*self._closing)
        if self._channel:
            await self._channel.close()
        if self._server:
            await self._server.drain()
        self._plane.close()

    # --- asking -----------------------------------------------------------------------------------------------

    async def _ask(self, slots: Sequence[PolicySlot], request: pb.EvaluatePolicyRequest) -> Evaluation:
        begin = self._clock()
        try:
            return await self._ask_once(slots, request, self.asked.answer_seconds)
        except (Unavailable, FailedPrecondition, NotFound):
            left_seconds = self.asked.answer_seconds - (self._clock() - begin)
            if self._process or left_seconds <= 0:
                raise
            # It was restarted, or has dropped the session.
            self._leave()
            return await self._ask_once(slots, request, left_seconds)

    async def _ask_once(
        self, slots: Sequence[PolicySlot], request: pb.EvaluatePolicyRequest, answer_seconds: float
    ) -> Evaluation:
        stub = await self._connected()
        if not self._session:
            await self._open(stub)
        for region, slot in zip(self._regions, slots, strict=True):
            region.renew()
            region[POLICY].copy_(slot.region[POLICY])
        policy, *members = [
            pb.PolicyRef(policy_version=slot.version, tensor=region.refs()[0])
            for region, slot in zip(self._regions, slots, strict=True)
        ]
        whole = pb.EvaluatePolicyRequest(session=self._session, policy=policy, members=members)
        whole.MergeFrom(request)
        try:
            response = await rpc.call(stub.EvaluatePolicy, whole, deadline_seconds=answer_seconds)
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"it took longer than evaluation.answer_duration = {self.asked.answer_seconds:g} s"
            ) from None
        # Of what was published, not of the copy: that is within its reach.
        digests = await asyncio.to_thread(self._digests, slots)
        if problem := nonsense(response.evaluation, request.episodes, digests):
            raise DataLoss(problem)
        evaluation: Evaluation = response.evaluation
        return evaluation

    async def _open(self, stub: Any) -> None:
        self._opened += 1
        session = f"{self._sessions}.{self._opened}"
        policy, *members = self._policies
        probe = self._plane.create(f"{self._opened}_probe", [PROBE_SPEC])
        try:
            sent = write_probe(probe, self._opened)
            request = pb.OpenEvaluatorRequest(
                session=session,
                environment=self._environment,
                policy=policy,
                probe=probe.refs()[0],
                members=members,
            )
            response = await rpc.call(stub.OpenEvaluator, request, deadline_seconds=OPEN_DEADLINE_SECONDS)
        finally:
            probe.close()
        check_probe(self._plane.scheme, sent, response.probe_sum)
        for index, spec in enumerate(self._policies):
            size = sum(torch.Size(tensor.shape).numel() for tensor in spec.tensors)
            field = tensor_spec(Field(POLICY, (size,), torch.float32))
            self._regions.append(self._plane.create(f"{self._opened}_policy_{index}", [field]))
        self._session = session

    def _digests(self, slots: Sequence[PolicySlot]) -> list[str]:
        shapes = [{tensor.name: tuple(tensor.shape) for tensor in spec.tensors} for spec in self._policies]
        return [
            digest(encode(flat_views(slot.region[POLICY], names), {}))
            for slot, names in zip(slots, shapes, strict=True)
        ]

    # --- connecting -------------------------------------------------------------------------------------------

    async def _connected(self) -> Any:
        """A stub of whoever answers now; raises Unavailable where nobody does."""
        if self._process:
            if self._process.ended():
                self._leave()
            self._process.start(self._device)
        if self._server is None:
            self._server = await self._serve()
        if self._channel is None:
            self._channel = rpc.connect(self._target)
        ready = asyncio.ensure_future(self._channel.channel_ready())
        deadline = self._clock() + (START_SECONDS if self._process else CONNECT_SECONDS)
        try:
            while not ready.done():
                await asyncio.wait([ready], timeout=POLL_SECONDS)
                if self._process and (ended := self._process.ended()):
                    raise Unavailable(ended)
                if not ready.done() and self._clock() > deadline:
                    raise Unavailable(f"nobody answers at {self._target}")
        finally:
            ready.cancel()
        stub: Any = pb_grpc.EvaluatorServiceStub(self._channel)
        return stub

    async def _serve(self) -> Server:
        """Serves the regions of the plane where it can reach them."""
        if self._target.startswith("unix:"):
            listen = f"unix:{self._config.folder / 'scored.sock'}"
        else:
            listen = f"{await asyncio.to_thread(local_address, self._target)}:0"
        service = Service(
            tensor_pb2.DESCRIPTOR.services_by_name["TensorService"],
            tensor_pb2_grpc.add_TensorServiceServicer_to_server,
            TensorServicer(self._plane),
        )
        server = await Server.start(ServerConfig(listen=listen, grace_seconds=0.0), [service])
        self._plane.serve_at(server.address)
        return server

    @property
    def _device(self) -> str:
        return self._config.device("evaluator") if catalog.steps_on_gpu(self._environment.id) else "cpu"

    # --- giving up --------------------------------------------------------------------------------------------

    async def _note(self, error: Exception, started: float) -> None:
        """Says what went wrong, once and for all to hear, and when it is asked again."""
        now = self._clock()
        pause_seconds = self._pauses.fault(now, now - started)
        said = error.message if isinstance(error, PodraceError) else str(error)
        if self._process and isinstance(error, Unavailable):
            # That it is gone says more than what its connection says of it.
            said = await asyncio.to_thread(self._process.ended, 1.0) or said
        if isinstance(error, Unavailable | DeadlineExceeded | Cancelled):
            await self._drop()
        self.fault = f"evaluator {self.asked.name}: {' '.join(said.split())[:LONGEST_FAULT]}"
        FAULTS.labels(error.code.lower() if isinstance(error, PodraceError) else "os_error").inc()
        _log.warning(
            "the pod's own evaluator scores in the place of the tournament's",
            error=self.fault,
            again_in_seconds=round(pause_seconds),
        )

    async def _drop(self) -> None:
        """Ends what it is doing: it has not answered, and may never do."""
        self._leave()
        if self._process:
            await self._process.end()

    def _leave(self) -> None:
        """Gives the session up."""
        for region in self._regions:
            region.close()
        self._regions.clear()
        session, self._session = self._session, ""
        if session and self._channel and not self._process:
            closing = asyncio.ensure_future(_close_session(self._channel, session))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def _close_session(channel: grpc.aio.Channel, session: str) -> None:
    """Says that a session is over; whoever does not hear of it drops it some time."""
    stub: Any = pb_grpc.EvaluatorServiceStub(channel)
    with suppress(PodraceError):
        request = pb.CloseEvaluatorRequest(session=session)
        await rpc.call(stub.CloseEvaluator, request, deadline_seconds=CLOSE_DEADLINE_SECONDS)


def local_address(target: str) -> str:
    """Address of this machine from which `host:port` is reached, and so the one it can reach; nothing is sent.

    Raises:
        Unavailable: There is no way there.
    """
    host, _, port = target.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            found: str = probe.getsockname()[0]
    except OSError as error:
        raise Unavailable(f"there is no way to {target}: {error.strerror or error}") from None
    return f"[{found}]" if family == socket.AF_INET6 else found

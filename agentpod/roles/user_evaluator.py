"""Scores policies with the evaluator of a tournament's user: a Python function, or an EvaluatorService at an address.

A function runs in a child process of this pod and serves the same contract, so both are called in the same way, and
policies reach both over the plane `grpc`. When the evaluator fails, the caller uses the pod's built-in evaluator.
"""

import asyncio
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import grpc.aio
import prometheus_client
import structlog
import torch

from agentpod.config import PodConfig
from agentpod.experience.rollout import Field
from agentpod.experience.slots import POLICY, PolicySlot, tensor_spec
from agentpod.liveness.activity import Activity
from agentpod.models.mlp import flat_views
from agentpod.roles.evaluation_check import MOST_RETURNS, find_fault
from agentpod.roles.evaluation_host import KIND, START_SECONDS, function_connection, host_address
from podrace import rpc
from podrace.access.authenticators.anyone import AnyoneAuthenticator
from podrace.access.authenticators.unix_socket import UnixSocketAuthenticator
from podrace.access.guard import Guard
from podrace.access.v1 import access_pb2
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import (
    NOT_OPEN,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    PodraceError,
    Unavailable,
)
from podrace.limits.services import check_transport, service_token
from podrace.limits.specification import plugin_refusal
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_PREPARING, ROLE_PHASE_WAITING
from podrace.plugins.address import GrpcService, parse
from podrace.plugins.child import PluginConnection, ServiceConnection
from podrace.plugins.circuit_breaker import CircuitBreaker
from podrace.plugins.host import NamedPlugin
from podrace.plugins.hosted import HostedConnection
from podrace.rpc import Server, ServerConfig, Service
from podrace.specification import catalog, plugin_settings
from podrace.specification.messages import bad_spec
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
"""How long a service that restarts is waited for."""
OPEN_DEADLINE_SECONDS = 120.0
CLOSE_DEADLINE_SECONDS = 2.0
NO_RETURNS = "the evaluator plugin gave no returns of single episodes"
LONGEST_FAULT = 400
"""Characters of an evaluator's error that are recorded."""
_log = structlog.get_logger(__name__)


class UserEvaluatorSettings(NamedTuple):
    """Which evaluator a specification names, and how long a score may take."""

    address: str
    """`python:module:function` or `grpc://host:port`."""
    answer_seconds: float


def user_evaluator_settings(spec: EvaluationSpec) -> UserEvaluatorSettings | None:
    """Returns the evaluator that a specification names; None if it names none."""
    if not spec.evaluator:
        return None
    return UserEvaluatorSettings(spec.evaluator, plugin_settings.evaluation_answer_seconds(spec))


class InvalidScoreError(DataLoss):
    """The evaluator answered with something that cannot be used as a score."""


class UserEvaluator:
    """The evaluator that a tournament's specification names.

        evaluator = UserEvaluator(config, settings)
        evaluator.expect(environment, policies)                 # whenever the roles of the pod are opened
        evaluation = await evaluator.score(slots, episodes=..., seed=..., greedy=...)
        if evaluation is None:
            ...                                                 # use the built-in one; evaluator.fault says why
        await evaluator.close()

    Attributes:
        settings: What the specification names.
        fault: Why it did not score the last time; empty if it did.
    """

    def __init__(
        self,
        config: PodConfig,
        settings: UserEvaluatorSettings,
        activity: Activity | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.fault = settings, ""
        self._activity = activity or Activity()
        self._config, self._clock = config, clock
        found = parse(settings.address)
        self._target = found.target if isinstance(found, GrpcService) else ""
        """Address of a service; empty for a function."""
        self._hosted = config.isolated and not self._target
        """Whether the process of the evaluator starts that of the function, because user code is apart from here."""
        self._child_settings: dict[str, object] = {}
        self._connection = self._connect()
        self._breaker = CircuitBreaker()
        self._plane = GrpcPlane()
        self._server: Server | None = None
        self._channel: grpc.aio.Channel | None = None
        self._environment = EnvironmentSpec()
        self._policies: Sequence[pb.PolicySpec] = ()
        self._opened, self._session, self._regions = 0, "", list[Region]()
        # Part of the names of all regions: a caller that knows a name got it from this pod.
        self._secret = secrets.token_hex(16)
        self._closing: set[asyncio.Future[None]] = set()
        # Differs from the names of every other pod, and of every other run of this pod.
        self._sessions = f"{config.pod_id}.{uuid.uuid4().hex[:12]}"

    def expect(self, environment: EnvironmentSpec, policies: Sequence[pb.PolicySpec]) -> None:
        """Sets what will be scored, and starts the child process of a function.

        Args:
            environment: With the options of the evaluation.
            policies: One, or the members of an ensemble, with their tensors listed.
        """
        if (environment, list(policies)) != (self._environment, list(self._policies)):
            self._leave()
            self._environment, self._policies = environment, policies
        # For the next start of the process; one that runs keeps its device.
        self._child_settings["device"] = self._device
        if isinstance(self._connection, HostedConnection):
            plugin = self._connection.plugin
            self._connection.plugin = replace(plugin, on_gpu=catalog.steps_on_gpu(environment.id))
        if not self._breaker.is_open(self._clock()):
            # `score` reports it if the process cannot be started.
            with suppress(PodraceError):
                self._connection.start()

    async def score(self, slots: Sequence[PolicySlot], *, episodes: int, seed: int, greedy: bool) -> Evaluation | None:
        """Scores the policies in some held slots together.

        Returns:
            None if the evaluator failed or is paused after failures; `fault` has the reason. The call takes at most
            the answer time of the specification, and what it takes to start the process and to open the session.
        """
        started = self._clock()
        if self._breaker.is_open(started):
            self.fault = self._line(self._breaker.summary)
            return None
        request = pb.EvaluatePolicyRequest(episodes=episodes, seed=seed, greedy=greedy)
        try:
            # Every step has its own deadline.
            with self._activity.doing(ROLE_PHASE_WAITING):
                evaluation = await self._ask(slots, request)
        except (PodraceError, OSError) as error:
            await self._record_failure(error if isinstance(error, PodraceError) else Unavailable(str(error)))
            return None
        except (Exception, asyncio.CancelledError):
            # No caller waits for the score any more: a function is killed, a service is left.
            self._leave()
            await self._connection.failed(Cancelled("the evaluation was cancelled"))
            raise
        self._breaker = CircuitBreaker()
        self.fault = ""
        evaluation.evaluator, evaluation.evaluator_fault, evaluation.seed = self.settings.address, "", seed
        # The pod decides about epochs, whatever a plugin answers.
        evaluation.ClearField("epoch")
        evaluation.ClearField("other_epochs")
        if len(evaluation.episode_returns) > MOST_RETURNS:
            evaluation.ClearField("episode_returns")
        reason = " ".join(evaluation.unpaired_reason.split())[:LONGEST_FAULT] or NO_RETURNS
        evaluation.unpaired_reason = "" if evaluation.episode_returns else reason
        evaluation.wall_seconds = self._clock() - started
        return evaluation

    async def close(self) -> None:
        """Closes the session, and kills the child process of a function."""
        self._leave()
        await asyncio.gather(*self._closing)
        await self._connection.close()
        if self._server:
            await self._server.drain()
        self._plane.close()

    # --- scoring ----------------------------------------------------------------------------------------------

    async def _ask(self, slots: Sequence[PolicySlot], request: pb.EvaluatePolicyRequest) -> Evaluation:
        begin = self._clock()
        try:
            return await self._ask_once(slots, request, self.settings.answer_seconds)
        except (Unavailable, FailedPrecondition, NotFound) as error:
            left_seconds = self.settings.answer_seconds - (self._clock() - begin)
            restarted = self._target or (self._hosted and error.reason == NOT_OPEN)
            if not restarted or left_seconds <= 0:
                raise
            # The service or the process of the function was restarted, or has dropped the session.
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
            raise DeadlineExceeded(f"no answer within {self.settings.answer_seconds:g} s") from None
        # Of the published policy, and not of the copy, which the evaluator can write to.
        digests = await self._activity.run(ROLE_PHASE_PREPARING, self._digests, slots)
        if problem := find_fault(response.evaluation, request.episodes, digests):
            raise InvalidScoreError(f"invalid answer: {problem}")
        evaluation: Evaluation = response.evaluation
        return evaluation

    async def _open(self, stub: Any) -> None:
        self._opened += 1
        session = f"{self._sessions}.{self._opened}"
        policy, *members = self._policies
        probe = self._plane.create(f"{self._secret}_{self._opened}_probe", [PROBE_SPEC])
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
            self._regions.append(self._plane.create(f"{self._secret}_{self._opened}_policy_{index}", [field]))
        self._session = session

    def _digests(self, slots: Sequence[PolicySlot]) -> list[str]:
        shapes = [{tensor.name: tuple(tensor.shape) for tensor in spec.tensors} for spec in self._policies]
        return [
            digest(encode(flat_views(slot.region[POLICY], names), {}))
            for slot, names in zip(slots, shapes, strict=True)
        ]

    # --- connecting -------------------------------------------------------------------------------------------

    def _connect(self) -> PluginConnection:
        allowed = self._config.allow
        if problem := plugin_refusal("evaluation.evaluator", self.settings.address, allowed):
            raise bad_spec(problem)
        if self._target:
            check_transport(self._target, allowed)
            return ServiceConnection(self._target, CONNECT_SECONDS, service_token(self._target, allowed))
        if self._hosted:
            owner = self._config.user_code_uid or None
            return HostedConnection(host_address(self._config), NamedPlugin(self.settings.address, KIND), owner=owner)
        connection, self._child_settings = function_connection(self._config, self.settings.address)
        return connection

    async def _connected(self) -> Any:
        """Returns a stub of the evaluator; a session that a previous process held is dropped."""
        channel = await self._connection.ready(CONNECT_SECONDS if self._target or self._hosted else START_SECONDS)
        if channel is not self._channel:
            self._leave()
            self._channel = channel
        if self._server is None:
            self._server = await self._serve()
        stub: Any = pb_grpc.EvaluatorServiceStub(channel)
        return stub

    async def _serve(self) -> Server:
        """Serves the regions of the plane at an address that the evaluator can reach."""
        if self._target and not self._target.startswith("unix:"):
            listen = f"{await asyncio.to_thread(local_address, self._target)}:0"
        elif self._config.user_code_uid:
            # Another user, who cannot enter the folder of this pod.
            listen = "127.0.0.1:0"
        else:
            listen = f"unix:{self._config.folder / 'scored.sock'}"
        service = Service(
            tensor_pb2.DESCRIPTOR.services_by_name["TensorService"],
            tensor_pb2_grpc.add_TensorServiceServicer_to_server,
            TensorServicer(self._plane),
        )
        settings = ServerConfig(listen=listen, grace_seconds=0.0, insecure=self._config.insecure)
        # A service of a third party has no token of the mesh: it reads what this pod has given it a reference to.
        guard = Guard([UnixSocketAuthenticator(), AnyoneAuthenticator({access_pb2.ROLE_PLUGIN})])
        server = await Server.start(settings, [service], guard=guard)
        self._plane.serve_at(server.address)
        return server

    @property
    def _device(self) -> str:
        return self._config.device("evaluator") if catalog.steps_on_gpu(self._environment.id) else "cpu"

    # --- failing ----------------------------------------------------------------------------------------------

    async def _record_failure(self, error: PodraceError) -> None:
        """Keeps the reason, opens the circuit breaker if it is due, and drops what cannot be used any more."""
        problem = error.message
        if not isinstance(error, InvalidScoreError):
            problem = await self._connection.failed(error)
        if isinstance(error, Unavailable | DeadlineExceeded | Cancelled | FailedPrecondition):
            self._leave()
        now = self._clock()
        self._breaker = self._breaker.after_failure(now, " ".join(problem.split())[:LONGEST_FAULT])
        self.fault = self._line(self._breaker.last_failure)
        FAULTS.labels(error.code.lower()).inc()
        _log.warning(
            "built-in evaluator used instead of the tournament's",
            error=self.fault,
            failures_in_a_row=self._breaker.failures,
            pause_seconds=max(0.0, round(self._breaker.open_until - now)),
        )

    def _line(self, problem: str) -> str:
        return f"evaluator {self.settings.address}: {problem}"

    def _leave(self) -> None:
        """Drops the session and its memory; a service is notified."""
        for region in self._regions:
            region.close()
        self._regions.clear()
        session, self._session = self._session, ""
        if session and self._channel and self._target:
            closing = asyncio.ensure_future(_close_session(self._channel, session))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def _close_session(channel: grpc.aio.Channel, session: str) -> None:
    """Closes a session; a service that cannot be reached drops it after its own timeout."""
    stub: Any = pb_grpc.EvaluatorServiceStub(channel)
    with suppress(PodraceError):
        request = pb.CloseEvaluatorRequest(session=session)
        await rpc.call(stub.CloseEvaluator, request, deadline_seconds=CLOSE_DEADLINE_SECONDS)


def local_address(target: str) -> str:
    """Returns the address of this machine from which `host:port` is reached, without sending anything.

    Raises:
        Unavailable: The host is unknown or there is no route to it.
    """
    host, _, port = target.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            found: str = probe.getsockname()[0]
    except OSError as error:
        raise Unavailable(f"no route to {target}: {error.strerror or error}") from None
    return f"[{found}]" if family == socket.AF_INET6 else found

"""Steps a simulator behind a SimulatorService: `grpc://host:port`.

The option `id` names the simulator at the service. One request is in flight at a time. Tensors travel in the messages.
If the service can map memory of this host, they lie in that memory instead, and the messages only say that a request or
an answer is ready.
"""

import queue
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import grpc
import structlog
import torch
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from torch import Tensor

from podrace import rpc, tls
from podrace.access.credentials import AUTHORIZATION, BEARER, TokenSource
from podrace.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    PodraceError,
    ResourceExhausted,
    Unavailable,
)
from podrace.limits.config import EVERYTHING, Allowed
from podrace.limits.services import check_transport, simulator_token
from podrace.simulator.v1 import simulator_pb2_grpc as pb_grpc
from podrace.simulator.v1.simulator_pb2 import StreamStepsRequest as Request
from podrace.simulator.v1.simulator_pb2 import StreamStepsResponse as Response
from podrace.tensor_transport.probe import check_probe, write_probe
from podrace.tensor_transport.shared import SharedPlane
from simulators.base import Report, Space, Step
from simulators.messages import ROW_FIELDS, SHARED_PREFIX, Inbox, bytes_of, pieces, space_of, step_specs

PREFIX = "grpc://"
PLANES = ("auto", "grpc", SharedPlane.scheme)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Deadlines:
    """How long a caller waits, in seconds."""

    connect_seconds: float = 10.0
    """For the service to accept the connection."""
    open_seconds: float = 110.0
    """For the environments to be made; less than a learner waits for its worker, so that the user sees this error."""
    step_seconds: float = 60.0
    """For any other answer."""


def make(
    id: str,
    count: int,
    options: Mapping[str, object],
    device: str,
    allowed: Allowed = EVERYTHING,
    deadlines: Deadlines | None = None,
) -> "RemoteSimulator":
    """Opens a batch at a service.

    Args:
        id: `grpc://host:port`, or `grpc://unix:/path`.
        count: Number of lanes.
        options: `id`: the simulator's name at the service. `plane`: `grpc` (messages), `shared` (memory of this host)
            or `auto`, the default (shared memory if the service can map it). All others go to the simulator.
        device: Where observations are returned.
        allowed: Whether the call needs TLS.
        deadlines: Replaces the default deadlines.

    Raises:
        InvalidArgument: The address or `id` is missing, the operator demands TLS and there is no certificate, or the
            service refuses the simulator or an option.
        Unavailable: No service answers there; the message names the address.
        PodraceError: Any other error that the service returned.
    """
    address = id.removeprefix(PREFIX)
    own = dict(options)
    name, plane = own.pop("id", None), own.pop("plane", "auto")
    if not address or not isinstance(name, str) or not name:
        raise InvalidArgument(
            f"{id}: expected {PREFIX}host:port, and the option 'id' with the simulator's name at that service"
        )
    if plane not in PLANES:
        raise InvalidArgument(f"{id}: option 'plane' must be one of {', '.join(PLANES)}, not {plane!r}")
    try:
        struct = json_format.ParseDict(own, Struct())
    except json_format.ParseError as error:
        raise InvalidArgument(f"{id}: options {own} cannot be sent: {error}") from error
    check_transport(address, allowed)
    conversation = Conversation(address, deadlines or Deadlines(), simulator_token(address, allowed))
    try:
        return RemoteSimulator(conversation, Request.Open(id=name, options=struct, count=count), str(plane), device)
    except BaseException:
        conversation.close()
        raise


def _channel(address: str) -> grpc.Channel:
    options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    identity = tls.identity_for(address)
    if identity is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, identity.of_channel(), options=[*options, *identity.options])


class Conversation:
    """One stream of requests and responses with deadlines, using gRPC's blocking API.

    The blocking API is as fast as the asynchronous one here, and needs no second event loop in the worker's process.
    """

    def __init__(self, address: str, deadlines: Deadlines, token: TokenSource | None = None) -> None:
        """Connects and opens a stream.

        Args:
            address: `host:port` or `unix:/path`.
            deadlines: How long it waits.
            token: Token whose audience is this service; None: it gets none.

        Raises:
            Unavailable: No service answers at the address.
            InvalidArgument, FailedPrecondition: The TLS files of podrace.tls cannot be used.
            PodraceError: The token cannot be read.
        """
        self.address, self.deadlines = address, deadlines
        self._channel = _channel(address)
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._due_time = float("inf")
        self._overdue = False
        self._closed = threading.Event()
        try:
            self._responses = self._open_stream(token)
            threading.Thread(target=self._watch, name="simulator-deadline", daemon=True).start()
        except BaseException:
            self.close()
            raise

    def _open_stream(self, token: TokenSource | None) -> Any:
        try:
            grpc.channel_ready_future(self._channel).result(timeout=self.deadlines.connect_seconds)
        except grpc.FutureTimeoutError:
            raise Unavailable(
                f"no simulator service at {self.address} (waited {self.deadlines.connect_seconds:g} s): start it, or"
                f" correct the address in {PREFIX}{self.address}"
            ) from None
        stub: Any = pb_grpc.SimulatorServiceStub(self._channel)
        metadata = ((AUTHORIZATION, f"{BEARER}{token()}"),) if token else ()
        return stub.StreamSteps(iter(self._requests.get, None), metadata=metadata)

    def ask(self, *requests: Request, deadline_seconds: float | None = None) -> Iterator[Response]:
        """Sends the parts of one request and yields responses until the caller stops iterating.

        Raises:
            PodraceError: The error that the service returned; Unavailable if it is gone or has waited too long for a
                request, DeadlineExceeded if it did not answer in time.
        """
        seconds = self.deadlines.step_seconds if deadline_seconds is None else deadline_seconds
        self._due_time = time.monotonic() + seconds
        try:
            for request in requests:
                self._requests.put(request)
            while True:
                yield next(self._responses)
        except StopIteration:
            raise Unavailable(f"the simulator service at {self.address} ended the stream: open a new one") from None
        except grpc.RpcError as error:
            raise self._translated(error, seconds) from None
        finally:
            self._due_time = float("inf")

    def answer(self, request: Request, kind: str, deadline_seconds: float | None = None) -> Any:
        """Sends a request that has exactly one response, and returns that response's field `kind`.

        Raises:
            Internal: The service answered with another kind of response.
            PodraceError: As `ask`.
        """
        response = next(self.ask(request, deadline_seconds=deadline_seconds))
        if response.WhichOneof("response") != kind:
            raise Internal(
                f"the simulator service at {self.address} answered {response.WhichOneof('response')} to"
                f" {request.WhichOneof('request')}, expected {kind}"
            )
        return getattr(response, kind)

    def _translated(self, error: Any, seconds: float) -> PodraceError:
        if self._overdue:
            return DeadlineExceeded(f"the simulator service at {self.address} did not answer within {seconds:g} s")
        translated = rpc.from_rpc_error(error)
        if isinstance(translated, Unavailable):
            return Unavailable(f"the simulator service at {self.address} is gone: {translated.message}")
        if isinstance(translated, DeadlineExceeded):
            # The service ended the stream: no request came, or its simulator did not answer. A new stream may work.
            return Unavailable(f"the simulator service at {self.address} ended the stream: {translated.message}")
        return type(translated)(f"{PREFIX}{self.address}: {translated.message}", reason=translated.reason)

    def _watch(self) -> None:
        """Cancels the stream when a response is overdue: the blocking API has no timeout per response."""
        period_seconds = min(self.deadlines.step_seconds, self.deadlines.open_seconds) / 8
        while not self._closed.wait(period_seconds):
            if time.monotonic() > self._due_time:
                self._overdue = True
                self._responses.cancel()
                return

    def close(self) -> None:
        """Ends the stream, which closes the environments at the service; may be called repeatedly."""
        self._closed.set()
        self._requests.put(None)
        self._channel.close()


class RemoteSimulator:
    """N lanes at a service. See simulators.base.Simulator for the methods.

    Attributes:
        observation_space: As reported by the service.
        action_space: As reported by the service.
        count: Number of lanes, N.
        plane: How tensors travel: `grpc` or `shared`.
    """

    def __init__(self, conversation: Conversation, opening: Request.Open, plane: str, device: str) -> None:
        """Opens the environments.

        Args:
            conversation: Used by this object alone; closed by `close`, or when this object is garbage-collected.
            opening: The request that opens the environments.
            plane: One of PLANES.
            device: Where observations are returned.
        """
        self._conversation = conversation
        self._end: Callable[[], object] = weakref.finalize(self, conversation.close)
        open_seconds = conversation.deadlines.open_seconds
        opened: Response.Opened = conversation.answer(Request(open=opening), "opened", open_seconds)
        self.observation_space: Space = space_of(opened.observation_space)
        self.action_space: Space = space_of(opened.action_space)
        self.count = opening.count * self.observation_space.lanes
        self._device = torch.device(device)
        self._step = 0
        self._shared: dict[str, Tensor] = {}
        if plane != "grpc":
            self._share(opened, plane)
        self.plane = SharedPlane.scheme if self._shared else "grpc"
        self._live = self._allocate()
        _log.info("remote simulator opened", service=conversation.address, plane=self.plane)

    def _share(self, opened: Response.Opened, plane: str) -> None:
        """Moves steps into shared memory if the service can map it; raises if the plane `shared` requires it."""
        reason = "the service does not offer shared memory"
        if SharedPlane.scheme in opened.planes:
            specs = step_specs(self.observation_space, self.action_space, self.count)
            memory = SharedPlane(f"{SHARED_PREFIX}{secrets.token_hex(8)}-")
            try:
                region = memory.create("step", list(specs.values()))
                sent = write_probe(region, seed=secrets.randbits(32))
                request = Request(share=Request.Share(tensors=region.refs()))
                shared: Response.Shared = self._conversation.answer(request, "shared")
                if shared.HasField("probe_sum"):
                    check_probe(SharedPlane.scheme, sent, shared.probe_sum)
                    self._shared = dict(region)
                    return
                reason = "the service cannot map memory of this host"
            except ResourceExhausted as error:
                reason = error.message
            finally:
                # Both processes have mapped the file by now: nothing is left behind, however they end.
                memory.close()
        if plane == SharedPlane.scheme:
            raise FailedPrecondition(f"plane 'shared' is required for {PREFIX}{self._conversation.address}: {reason}")

    def _allocate(self) -> Step:
        specs = step_specs(self.observation_space, self.action_space, self.count)
        dtypes = {"reward": torch.float32, "terminated": torch.bool, "truncated": torch.bool}
        tensors = {
            name: self._shared[name]
            if self._shared
            else torch.zeros(tuple(specs[name].shape), dtype=dtypes.get(name, self.observation_space.dtype))
            for name in (*ROW_FIELDS, "final_observation")
        }
        if not self._shared:
            # Flags arrive as bytes of any value; a bool tensor may hold only 0 and 1.
            self._flags = {name: torch.zeros(self.count, dtype=torch.uint8) for name in ("terminated", "truncated")}
            self._finals = torch.zeros_like(tensors["final_observation"])
            rows = {**tensors, **self._flags, "final_observation": self._finals}
            self._inboxes = {name: Inbox(f"{name} of a step", tensor, Internal) for name, tensor in rows.items()}
        return Step(**tensors)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self._step = 0
        self._receive(Request(reset=Request.Reset(seed=seed)))
        return self._live.observation.to(self._device)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator; raises the errors of Conversation.ask."""
        self._step += 1
        wanted = action.reshape(self.count, *self.action_space.shape).to("cpu", self.action_space.dtype)
        if self._shared:
            self._shared["action"].copy_(wanted)
            self._receive(Request(act=Request.Act(step=self._step)))
        else:
            parts = [part["action"] for part in pieces({"action": bytes_of(wanted)})]
            self._receive(
                *(
                    Request(act=Request.Act(step=self._step, action=part, more=number < len(parts) - 1))
                    for number, part in enumerate(parts)
                )
            )
        return self._live if self._device.type == "cpu" else self._copy_to_device()

    def _receive(self, *requests: Request) -> None:
        """Sends the parts of one request and assembles the parts of its response."""
        final_lanes: list[int] = []
        for response in self._conversation.ask(*requests):
            stepped = response.stepped
            if response.WhichOneof("response") != "stepped" or stepped.step != self._step:
                raise Internal(
                    f"the simulator service at {self._conversation.address} answered"
                    f" {response.WhichOneof('response')} of step {stepped.step} to step {self._step}"
                )
            if self._shared:
                return
            for name, inbox in self._inboxes.items():
                if piece := getattr(stepped, name):
                    inbox.put(piece)
            final_lanes += stepped.final_lanes
            if not stepped.more:
                self._finish(final_lanes)
                return

    def _finish(self, final_lanes: list[int]) -> None:
        inboxes, live = self._inboxes, self._live
        inboxes["observation"].finish()
        if self._step == 0:
            return
        for name in ("reward", "terminated", "truncated"):
            inboxes[name].finish()
        row_bytes = self._finals[0].numel() * self._finals.element_size()
        inboxes["final_observation"].finish(len(final_lanes) * row_bytes)
        for name, flags in self._flags.items():
            torch.ne(flags, 0, out=getattr(live, name))
        ended = (live.terminated | live.truncated).nonzero().flatten()
        if ended.tolist() != final_lanes:
            raise Internal(
                f"the simulator service at {self._conversation.address} ended lanes {ended.tolist()} and sent the last"
                f" observations of lanes {final_lanes}"
            )
        if final_lanes:
            live.final_observation[ended] = self._finals[: len(final_lanes)]

    def _copy_to_device(self) -> Step:
        return Step(**{field.name: getattr(self._live, field.name).to(self._device) for field in fields(Step)})

    def report(self) -> Report:
        """See simulators.base.Simulator."""
        reported: Response.Reported = self._conversation.answer(Request(report=Request.Report()), "reported")
        return Report(
            metrics=dict(reported.metrics),
            traces={name: list(trace.values) for name, trace in reported.traces.items()},
            labels={name: list(labels.values) for name, labels in reported.labels.items()},
            episode_metrics={name: list(trace.values) for name, trace in reported.episode_metrics.items()},
        )

    def close(self) -> None:
        """Ends the stream; the service then closes the environments."""
        self._end()

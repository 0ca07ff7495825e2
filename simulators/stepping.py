"""Owns what a simulator service does for one stream, request by request; knows messages, and nothing of calls.

Computes on the thread of whoever calls.
"""

from collections.abc import Iterator, Mapping

import structlog
import torch
from torch import Tensor

from podrace.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from podrace.simulator.v1.simulator_pb2 import GetSimulatorRequest, GetSimulatorResponse
from podrace.simulator.v1.simulator_pb2 import StreamStepsRequest as Request
from podrace.simulator.v1.simulator_pb2 import StreamStepsResponse as Response
from podrace.tensor_transport.codec import size_bytes
from podrace.tensor_transport.probe import PROBE_SPEC
from podrace.tensor_transport.shared import SharedPlane
from simulators import SIMULATORS, Simulator, Step, make
from simulators.config import Limits
from simulators.messages import (
    ROW_FIELDS,
    SHARED_PREFIX,
    Inbox,
    bytes_of,
    options_of,
    pieces,
    space_message,
    step_specs,
)

HARMLESS_PREFIXES = ("mujoco:", "warp:", "envpool:", "atari:", "gym:")
"""Of ids that make nothing but what this package, or Gymnasium, has of its own."""
INTERPRETER = "interpreter"
"""The option that says which program to start: whoever runs the service chooses that, by the environment."""

COSTLY = ("threads", "processes")
"""Options of simulators that say how much of the machine they take."""

_log = structlog.get_logger(__name__)


def check_served(id: str, options: Mapping[str, object], limits: Limits) -> None:
    """Refuses an environment that callers may not have.

    Raises:
        InvalidArgument: The id is not served, or an option is not theirs to set.
        ResourceExhausted: An option asks for more threads or processes than they may have.
    """
    serves = limits.serves
    if serves:
        served = any(id.startswith(name[:-1]) if name.endswith("*") else id == name for name in serves)
    else:
        own = next((prefix for prefix in HARMLESS_PREFIXES if id.startswith(prefix)), "")
        served = id in SIMULATORS or ":" not in id.removeprefix(own)
    if not served:
        listed = f"serves {', '.join(serves)}" if serves else "serves no ids that import a module or start a process"
        raise InvalidArgument(f"{id}: this service {listed}; whoever runs it can add --set limits.serves={id}")
    if INTERPRETER in options:
        raise InvalidArgument(f"{id}: option {INTERPRETER!r} is set where the service runs, not by its callers")
    for name in COSTLY:
        wanted = options.get(name, 0)
        if isinstance(wanted, int) and wanted > limits.maximum_threads:
            raise ResourceExhausted(
                f"{id}: option {name!r} asks for {wanted}, this service gives {limits.maximum_threads}"
                " (limits.maximum_threads)"
            )


def describe(request: GetSimulatorRequest, limits: Limits, device: str) -> GetSimulatorResponse:
    """Answers GetSimulator; raises as check_served and simulators.make do."""
    options = options_of(request.options)
    check_served(request.id, options, limits)
    simulator = make(request.id, 1, options, device)
    try:
        return GetSimulatorResponse(
            observation_space=space_message(simulator.observation_space),
            action_space=space_message(simulator.action_space),
            maximum_environments=limits.maximum_environments,
            reproducible=True,
            planes=[SharedPlane.scheme],
        )
    finally:
        simulator.close()


class Stepping:
    """One batch of environments and where its caller stands with it.

    stepping = Stepping(limits, "cpu")
    for request in stream:
        for response in stepping.answer(request):
            send(response)
    stepping.close()
    """

    def __init__(self, limits: Limits, device: str) -> None:
        """Opens nothing yet."""
        self._limits, self._device = limits, device
        self._simulator: Simulator | None = None
        self._step: int | None = None
        """Steps since the reset; None before it."""
        self._shared: dict[str, Tensor] = {}

    def answer(self, request: Request) -> list[Response]:
        """Does what a request asks for.

        Returns:
            The responses, in order; none for a piece that others follow.

        Raises:
            InvalidArgument: The request is out of order, of the wrong size, or asks for what cannot be made.
            ResourceExhausted: It asks for more than the limits allow.
            Unimplemented: A package is missing.
        """
        kind = request.WhichOneof("request")
        if kind == "open":
            return [self._open(request.open)]
        simulator = self._simulator
        if simulator is None:
            raise InvalidArgument(f"a stream begins with open, not with {kind or 'a request this build does not know'}")
        if kind == "share":
            return [self._share(request.share)]
        if kind == "reset":
            self._step = 0
            observation = simulator.reset(request.reset.seed)
            return list(self._stepped({"observation": observation}))
        if kind == "act":
            return self._act(simulator, request.act)
        if kind == "report":
            return [_reported(simulator)]
        raise InvalidArgument("a request of a kind this build does not know")

    def _open(self, request: Request.Open) -> Response:
        if self._simulator is not None:
            raise InvalidArgument("a stream opens once: open another stream for other environments")
        limits, options = self._limits, options_of(request.options)
        check_served(request.id, options, limits)
        if request.count > limits.maximum_environments:
            raise ResourceExhausted(
                f"{request.id}: {request.count} environments are more than the {limits.maximum_environments} that a"
                " stream may open here (limits.maximum_environments)"
            )
        simulator = self._simulator = make(request.id, request.count, options, self._device)
        self._specs = step_specs(simulator.observation_space, simulator.action_space, simulator.count)
        taken = sum(map(size_bytes, self._specs.values()))
        if taken > limits.maximum_step_bytes:
            raise ResourceExhausted(
                f"{request.id}: a step of {request.count} environments has {taken} bytes, this service takes"
                f" {limits.maximum_step_bytes} (limits.maximum_step_bytes)"
            )
        self._action = torch.zeros((simulator.count, *simulator.action_space.shape), dtype=simulator.action_space.dtype)
        self._inbox = Inbox("the action", self._action, InvalidArgument)
        opened = Response.Opened(
            observation_space=space_message(simulator.observation_space),
            action_space=space_message(simulator.action_space),
            planes=[SharedPlane.scheme],
        )
        return Response(opened=opened)

    def _share(self, request: Request.Share) -> Response:
        if self._shared or self._step is not None:
            raise InvalidArgument("memory is shared once, before the first reset")
        if len(request.tensors) != len(self._specs) or any(
            ref.spec != self._specs.get(ref.spec.name)
            or not ref.plane_uri.startswith(f"{SharedPlane.scheme}:{SHARED_PREFIX}")
            for ref in request.tensors
        ):
            raise InvalidArgument(
                f"memory to step in holds {', '.join(self._specs)} of this batch, in files named {SHARED_PREFIX}*"
            )
        plane = SharedPlane(SHARED_PREFIX)
        try:
            tensors = plane.open(request.tensors)
        except FailedPrecondition as error:
            _log.info("memory cannot be shared, steps travel by messages", reason=error.message)
            return Response(shared=Response.Shared())
        finally:
            plane.close()
        self._shared = tensors
        return Response(shared=Response.Shared(probe_sum=float(tensors[PROBE_SPEC.name].sum())))

    def _act(self, simulator: Simulator, request: Request.Act) -> list[Response]:
        if self._step is None:
            raise InvalidArgument("the first action comes after a reset")
        if request.step != self._step + 1:
            raise InvalidArgument(f"step {request.step} cannot follow step {self._step}: one comes after the other")
        if self._shared:
            # Copied, as a message would be: what lies there belongs to the caller.
            self._action.copy_(self._shared["action"])
        else:
            self._inbox.put(request.action)
            if request.more:
                return []
            self._inbox.finish()
        _check_choices(simulator, self._action)
        self._step += 1
        return list(self._stepped(_fields(simulator.step(self._action.to(self._device)))))

    def _stepped(self, tensors: Mapping[str, Tensor]) -> Iterator[Response]:
        step = self._step or 0
        if self._shared:
            for name, tensor in tensors.items():
                self._shared[name].copy_(tensor)
            yield Response(stepped=Response.Stepped(step=step))
            return
        fields = {name: bytes_of(tensors[name]) for name in ROW_FIELDS if name in tensors}
        lanes: list[int] = []
        if step:
            ended = (tensors["terminated"] | tensors["truncated"]).cpu().nonzero().flatten()
            lanes = ended.tolist()
            if lanes:
                fields["final_observation"] = bytes_of(tensors["final_observation"].cpu()[ended])
        parts = list(pieces(fields))
        for number, part in enumerate(parts):
            more = number < len(parts) - 1
            # Each piece continues the fields of the one before: the lanes come once.
            final_lanes = [] if more else lanes
            stepped = Response.Stepped(step=step, final_lanes=final_lanes, more=more, **part)
            yield Response(stepped=stepped)

    def close(self) -> None:
        """Closes the environments; repeating is harmless."""
        if self._simulator is not None:
            simulator, self._simulator = self._simulator, None
            simulator.close()


def _fields(step: Step) -> dict[str, Tensor]:
    return {name: getattr(step, name) for name in (*ROW_FIELDS, "final_observation")}


def _check_choices(simulator: Simulator, action: Tensor) -> None:
    """Refuses choices that are none: what a simulator would do with them is anybody's guess."""
    space = simulator.action_space
    if space.kind == "discrete" and not 0 <= int(action.min()) <= int(action.max()) < space.n:
        raise InvalidArgument(
            f"actions go from {int(action.min())} to {int(action.max())}, choices from 0 to {space.n - 1}"
        )


def _reported(simulator: Simulator) -> Response:
    report = simulator.report()
    reported = Response.Reported(
        metrics=report.metrics,
        traces={name: Response.Trace(values=values) for name, values in report.traces.items()},
        labels={name: Response.Labels(values=values) for name, values in report.labels.items()},
    )
    return Response(reported=reported)

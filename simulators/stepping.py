"""Answers the requests of one stream of a simulator service; knows the messages, but not gRPC.

Computes on the caller's thread.
"""

from collections.abc import Iterator, Mapping

import structlog
import torch
from torch import Tensor

from podrace.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from podrace.limits.config import NOTHING, Allowed
from podrace.limits.names import INTERPRETER, environment_problem, with_id
from podrace.simulator.v1.simulator_pb2 import GetSimulatorRequest, GetSimulatorResponse
from podrace.simulator.v1.simulator_pb2 import StreamStepsRequest as Request
from podrace.simulator.v1.simulator_pb2 import StreamStepsResponse as Response
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport.codec import size_bytes
from podrace.tensor_transport.probe import PROBE_SPEC
from podrace.tensor_transport.shared import SharedPlane
from simulators import Simulator, Step, make
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

MOST_MEASURED_LANES = 4096
"""Number of lanes up to which measures of single episodes are sent, so that a report fits in a message."""
LARGEST_PROBE_BYTES = 1 << 20
COSTLY = ("threads", "processes")
"""Options by which a simulator takes more threads or processes of the machine."""

_log = structlog.get_logger(__name__)


def check_served(id: str, options: Mapping[str, object], limits: Limits, allowed: Allowed = NOTHING) -> Allowed:
    """Refuses environments that callers may not use, and returns what the environment may name.

    Args:
        id: The environment.
        options: Its options.
        limits: What callers may use; an id that `limits.serves` lists is allowed.
        allowed: What ids and options may name.

    Raises:
        InvalidArgument: The id is not served, or callers may not set an option.
        ResourceExhausted: An option asks for more threads or processes than the limit.
    """
    if limits.serves:
        if not any(id.startswith(name[:-1]) if name.endswith("*") else id == name for name in limits.serves):
            raise InvalidArgument(
                f"{id}: this service serves {', '.join(limits.serves)}; its operator can add --set limits.serves={id}"
            )
        allowed = with_id(allowed, id)
    if problem := environment_problem(id, options, allowed, id_key="id", options_key="options"):
        raise InvalidArgument(problem)
    if INTERPRETER in options:
        raise InvalidArgument(f"{id}: option {INTERPRETER!r} can be set only where the service runs, not by callers")
    for name in COSTLY:
        wanted = options.get(name, 0)
        if isinstance(wanted, int) and wanted > limits.maximum_threads:
            raise ResourceExhausted(
                f"{id}: option {name!r} asks for {wanted}, this service allows {limits.maximum_threads}"
                " (limits.maximum_threads)"
            )
    return allowed


def describe(
    request: GetSimulatorRequest, limits: Limits, device: str, allowed: Allowed = NOTHING
) -> GetSimulatorResponse:
    """Answers GetSimulator; raises the errors of check_served and simulators.make."""
    options = options_of(request.options)
    allowed = check_served(request.id, options, limits, allowed)
    simulator = make(request.id, 1, options, device, allowed=allowed)
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
    """One batch of environments, and the state of its stream.

    stepping = Stepping(limits, "cpu")
    for request in stream:
        for response in stepping.answer(request):
            send(response)
    stepping.close()
    """

    def __init__(self, limits: Limits, device: str, allowed: Allowed = NOTHING) -> None:
        """Creates the state of a stream on which nothing is open yet."""
        self._limits, self._device, self._allowed = limits, device, allowed
        self._simulator: Simulator | None = None
        self._step: int | None = None
        """Steps since the last reset; None before the first one."""
        self._shared: dict[str, Tensor] = {}

    def answer(self, request: Request) -> list[Response]:
        """Executes a request.

        Returns:
            The responses, in order; none for a part that others follow.

        Raises:
            InvalidArgument: The request is out of order, has the wrong size, or names what cannot be made.
            ResourceExhausted: The request exceeds the limits.
            Unimplemented: A package is missing.
        """
        kind = request.WhichOneof("request")
        if kind == "open":
            return [self._open(request.open)]
        simulator = self._simulator
        if simulator is None:
            raise InvalidArgument(f"a stream starts with open, not with {kind or 'a request unknown to this build'}")
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
        raise InvalidArgument("a request of a kind unknown to this build")

    def _open(self, request: Request.Open) -> Response:
        if self._simulator is not None:
            raise InvalidArgument("a stream opens once: use another stream for other environments")
        limits, options = self._limits, options_of(request.options)
        allowed = check_served(request.id, options, limits, self._allowed)
        if request.count > limits.maximum_environments:
            raise ResourceExhausted(
                f"{request.id}: {request.count} environments exceed the {limits.maximum_environments} that a stream may"
                " open at this service (limits.maximum_environments)"
            )
        simulator = self._simulator = make(request.id, request.count, options, self._device, allowed=allowed)
        self._specs = step_specs(simulator.observation_space, simulator.action_space, simulator.count)
        taken = sum(map(size_bytes, self._specs.values()))
        if taken > limits.maximum_step_bytes:
            raise ResourceExhausted(
                f"{request.id}: a step of {request.count} environments has {taken} bytes, this service allows"
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
            raise InvalidArgument("memory can be shared only once, before the first reset")
        if len(request.tensors) != len(self._specs) or any(
            not _suits(ref.spec, self._specs) or not ref.plane_uri.startswith(f"{SharedPlane.scheme}:{SHARED_PREFIX}")
            for ref in request.tensors
        ):
            raise InvalidArgument(
                f"memory to step in must hold {', '.join(self._specs)} of this batch, in files named {SHARED_PREFIX}*; "
                f"{PROBE_SPEC.name} has float64 numbers, at most {LARGEST_PROBE_BYTES} bytes"
            )
        plane = SharedPlane(SHARED_PREFIX)
        try:
            tensors = plane.open(request.tensors)
        except FailedPrecondition as error:
            _log.info("memory cannot be shared, tensors travel in messages", reason=error.message)
            return Response(shared=Response.Shared())
        finally:
            plane.close()
        self._shared = tensors
        return Response(shared=Response.Shared(probe_sum=float(tensors[PROBE_SPEC.name].sum())))

    def _act(self, simulator: Simulator, request: Request.Act) -> list[Response]:
        if self._step is None:
            raise InvalidArgument("an action must follow a reset")
        if request.step != self._step + 1:
            raise InvalidArgument(f"step {request.step} cannot follow step {self._step}: steps are consecutive")
        if self._shared:
            # Copied, as from a message: the caller may overwrite the shared memory at any time.
            self._action.copy_(self._shared["action"])
        else:
            self._inbox.put(request.action)
            if request.more:
                return []
            self._inbox.finish()
        _check_choices(simulator, self._action)
        self._step += 1
        # A copy: an environment may keep its action, and this tensor will hold the next one.
        return list(self._stepped(_fields(simulator.step(self._action.to(self._device, copy=True)))))

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
            # Each part continues the fields of the one before; the lanes are sent once, with the last part.
            final_lanes = [] if more else lanes
            stepped = Response.Stepped(step=step, final_lanes=final_lanes, more=more, **part)
            yield Response(stepped=stepped)

    def close(self) -> None:
        """Closes the environments; may be called repeatedly."""
        if self._simulator is not None:
            simulator, self._simulator = self._simulator, None
            simulator.close()


def _fields(step: Step) -> dict[str, Tensor]:
    return {name: getattr(step, name) for name in (*ROW_FIELDS, "final_observation")}


def _suits(spec: TensorSpec, wanted: Mapping[str, TensorSpec]) -> bool:
    """Whether an offered tensor is one of a step, or a probe; raises InvalidArgument if it is malformed."""
    if spec.name != PROBE_SPEC.name:
        return spec == wanted.get(spec.name)
    return spec.data_type == PROBE_SPEC.data_type and size_bytes(spec) <= LARGEST_PROBE_BYTES


def _check_choices(simulator: Simulator, action: Tensor) -> None:
    """Refuses choices out of range, for which the behavior of a simulator is undefined."""
    space = simulator.action_space
    if space.kind == "discrete" and not 0 <= int(action.min()) <= int(action.max()) < space.n:
        raise InvalidArgument(
            f"actions range from {int(action.min())} to {int(action.max())}, choices from 0 to {space.n - 1}"
        )
    if space.kind in ("multi_discrete", "multi_binary"):
        most = torch.tensor(space.choices or (2,)).expand(action[0].numel())
        rows = action.flatten(1)
        if ((rows < 0) | (rows >= most)).any():
            raise InvalidArgument(
                f"actions range from {int(rows.min())} to {int(rows.max())}, choices from 0 to {(most - 1).tolist()}"
            )


def _reported(simulator: Simulator) -> Response:
    report = simulator.report()
    reported = Response.Reported(
        metrics=report.metrics,
        traces={name: Response.Trace(values=values) for name, values in report.traces.items()},
        labels={name: Response.Labels(values=values) for name, values in report.labels.items()},
        episode_metrics={
            name: Response.Trace(values=values)
            for name, values in report.episode_metrics.items()
            if simulator.count <= MOST_MEASURED_LANES
        },
    )
    return Response(reported=reported)

"""A simulator service that keeps the contract, and services that break it; written from simulator.proto alone.

`breaks` of a broken service is the requirement of the contract that it breaks, in the words of the contract.
"""

import os
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import grpc
import numpy as np

from podrace.agentpod.v1.agentpod_pb2 import Space
from podrace.simulator.v1 import simulator_pb2 as pb
from podrace.simulator.v1 import simulator_pb2_grpc as pb_grpc
from podrace.tensor.v1 import tensor_pb2

LIMIT, LONGEST = 6, 8
OBSERVATIONS = Space(kind=Space.KIND_CONTINUOUS, shape=[3], data_type=tensor_pb2.DATA_TYPE_FLOAT32)
ACTIONS = Space(kind=Space.KIND_DISCRETE, data_type=tensor_pb2.DATA_TYPE_INT64, choices=2)


class Refused(Exception):
    """A request that the service refuses."""

    def __init__(self, message: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> None:
        super().__init__(message)
        self.code = code


class Walks:
    """Walks on a line that end at its borders (terminated) or after some steps (truncated), one for each lane."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.step_number = 0
        self.begun = False

    def reset(self, seed: int) -> None:
        """Begins new episodes."""
        self.begun, self.step_number = True, 0
        self.randoms = [Random(f"{seed} {lane}") for lane in range(self.count)]
        self.states = np.zeros((self.count, 3), np.float32)
        for lane in range(self.count):
            self.begin(lane)

    def begin(self, lane: int) -> None:
        """Begins a new episode in one lane."""
        self.states[lane] = (self.randoms[lane].randint(1, LIMIT - 1), 0, self.randoms[lane].random())

    def act(self, actions: np.ndarray) -> pb.StreamStepsResponse.Stepped:
        """Steps every lane."""
        self.step_number += 1
        self.states[:, 0] += np.where(actions == 1, 1, -1)
        self.states[:, 1] += 1
        terminated = (self.states[:, 0] <= 0) | (self.states[:, 0] >= LIMIT)
        truncated = ~terminated & (self.states[:, 1] >= LONGEST)
        lanes = np.flatnonzero(terminated | truncated)
        finals = self.states[lanes]
        reward = np.where(terminated, 1.0, -0.1).astype(np.float32)
        for lane in lanes:
            self.begin(lane)
        return pb.StreamStepsResponse.Stepped(
            step=self.step_number,
            observation=self.states.tobytes(),
            reward=reward.tobytes(),
            terminated=terminated.tobytes(),
            truncated=truncated.tobytes(),
            final_lanes=[int(lane) for lane in lanes],
            final_observation=finals.tobytes(),
        )


class Simulator(pb_grpc.SimulatorServiceServicer):
    """Serves the simulator `walk`, and keeps the contract."""

    breaks = ""
    maximum = 4096
    walks_type = Walks
    observation_space, action_space = OBSERVATIONS, ACTIONS

    def GetSimulator(self, request: Any, context: Any) -> pb.GetSimulatorResponse:
        """Describes the simulator."""
        try:
            self.check(request)
        except Refused as refusal:
            context.abort(refusal.code, str(refusal))
        return pb.GetSimulatorResponse(
            observation_space=self.observation_space,
            action_space=self.action_space,
            maximum_environments=self.maximum,
            reproducible=True,
        )

    def check(self, request: Any) -> None:
        """Refuses another simulator, and options."""
        if request.id != "walk":
            raise Refused(f"there is no simulator '{request.id}', only 'walk'")
        if request.options.fields:
            raise Refused("walk: there are no options")

    def StreamSteps(self, requests: Any, context: Any) -> Iterator[pb.StreamStepsResponse]:
        """Makes and steps the environments of one stream."""
        walks: Walks | None = None
        for request in requests:
            kind = request.WhichOneof("request")
            try:
                if kind == "open":
                    walks = self.open(request.open, walks)
                    yield self.opened()
                elif walks is None or kind not in ("reset", "act", "report"):
                    raise Refused(f"a request that cannot be answered here: {kind}")
                else:
                    yield from self.answer(request, walks)
            except Refused as refusal:
                self.refuse(context, refusal)

    def refuse(self, context: Any, refusal: Refused) -> None:
        """Ends the stream."""
        context.abort(refusal.code, str(refusal))

    def opened(self) -> pb.StreamStepsResponse:
        """Answers open."""
        opened = pb.StreamStepsResponse.Opened(observation_space=self.observation_space, action_space=self.action_space)
        return pb.StreamStepsResponse(opened=opened)

    def open(self, request: Any, walks: Walks | None) -> Walks:
        """Makes the environments."""
        if walks is not None:
            raise Refused("a stream opens once")
        self.check(request)
        if not request.count:
            raise Refused("there must be at least 1 environment")
        if request.count > self.maximum:
            raise Refused("too many environments", grpc.StatusCode.RESOURCE_EXHAUSTED)
        return self.walks_type(request.count)

    def answer(self, request: Any, walks: Walks) -> Iterator[pb.StreamStepsResponse]:
        """Answers a request of an open stream."""
        if request.HasField("report"):
            yield pb.StreamStepsResponse(reported=pb.StreamStepsResponse.Reported())
        elif request.HasField("reset"):
            walks.reset(request.reset.seed)
            stepped = pb.StreamStepsResponse.Stepped(step=0, observation=walks.states.tobytes())
            yield from self.pieces(stepped)
        else:
            self.check_act(request.act, walks)
            yield from self.pieces(walks.act(np.frombuffer(request.act.action, np.int64)))

    def check_act(self, act: Any, walks: Walks) -> None:
        """Refuses an action that does not fit."""
        if not walks.begun or act.step != walks.step_number + 1:
            raise Refused(f"step {act.step} cannot follow here")
        if len(act.action) != 8 * walks.count or act.more:
            raise Refused(f"the action has {len(act.action)} bytes instead of {8 * walks.count}")

    def pieces(self, stepped: pb.StreamStepsResponse.Stepped) -> Iterator[pb.StreamStepsResponse]:
        """The messages of a step."""
        yield pb.StreamStepsResponse(stepped=stepped)


class WrongShape(Simulator):
    """Sends two of the three numbers of each observation."""

    breaks = "of the data type of the observation space: the observation to act on next"

    def pieces(self, stepped: Any) -> Iterator[Any]:
        states = np.frombuffer(stepped.observation, np.float32).reshape(-1, 3)
        stepped.observation = states[:, :2].tobytes()
        yield pb.StreamStepsResponse(stepped=stepped)


class NoDataType(Simulator):
    """Does not state the data type of observations."""

    breaks = "Set of values that an observation or an action can take."
    observation_space = Space(kind=Space.KIND_CONTINUOUS, shape=[3])


class NoChoices(Simulator):
    """States no choices of a discrete action."""

    breaks = "Set of values that an observation or an action can take."
    action_space = Space(kind=Space.KIND_DISCRETE, data_type=tensor_pb2.DATA_TYPE_INT64)


class OpensOtherSpaces(Simulator):
    """States a space without a data type when a stream is opened."""

    breaks = "Set of values that an observation or an action can take."

    def opened(self) -> pb.StreamStepsResponse:
        opened = super().opened()
        opened.opened.observation_space.ClearField("data_type")
        return opened


class LateReset(Simulator):
    """Returns the last observation of an episode as the one to act on next, and resets with the next step."""

    breaks = "In a lane whose episode has just ended, this is the first observation of the next episode"

    class LateWalks(Walks):
        def act(self, actions: np.ndarray) -> Any:
            stepped = super().act(actions)
            shown = np.frombuffer(stepped.observation, np.float32).reshape(-1, 3).copy()
            finals = np.frombuffer(stepped.final_observation, np.float32).reshape(-1, 3)
            shown[list(stepped.final_lanes)] = finals
            stepped.observation = shown.tobytes()
            return stepped

    walks_type = LateWalks


class IgnoresSeed(Simulator):
    """Begins episodes by the randomness of the machine, and says that it is reproducible."""

    breaks = "Whether the same seed and the same actions give the same steps"

    class UnseededWalks(Walks):
        def reset(self, seed: int) -> None:
            super().reset(int.from_bytes(os.urandom(8)))

    walks_type = UnseededWalks


class EqualLanes(Simulator):
    """Begins the same episode in every lane."""

    breaks = "Lanes differ from each other"

    class EqualWalks(Walks):
        def reset(self, seed: int) -> None:
            super().reset(seed)
            self.randoms = [Random(seed) for _ in range(self.count)]
            for lane in range(self.count):
                self.begin(lane)

    walks_type = EqualWalks


class LosesFinalObservations(Simulator):
    """Names the lanes whose episodes have ended, without the last observations of these episodes."""

    breaks = "the last observation of each of these episodes"

    def pieces(self, stepped: Any) -> Iterator[Any]:
        stepped.final_observation = b""
        yield pb.StreamStepsResponse(stepped=stepped)


class ForgetsLanes(Simulator):
    """Does not list the lanes whose episode has ended."""

    breaks = "The E lanes whose episode has just ended, ascending"

    def pieces(self, stepped: Any) -> Iterator[Any]:
        del stepped.final_lanes[:]
        stepped.final_observation = b""
        yield pb.StreamStepsResponse(stepped=stepped)


class EndsTwice(Simulator):
    """Says of an episode that terminated that it was truncated as well."""

    breaks = "False wherever `terminated` is true"

    def pieces(self, stepped: Any) -> Iterator[Any]:
        both = np.frombuffer(stepped.terminated, np.bool_) | np.frombuffer(stepped.truncated, np.bool_)
        stepped.truncated = both.tobytes()
        yield pb.StreamStepsResponse(stepped=stepped)


class AnswersUnknown(Simulator):
    """Raises an exception for what it refuses, which gRPC turns into UNKNOWN."""

    breaks = "INVALID_ARGUMENT for an environment that cannot be made, and for a request that is unknown"

    def refuse(self, context: Any, refusal: Refused) -> None:
        raise refusal


class AcceptsAnyOrder(Simulator):
    """Steps whatever the number of the step is."""

    breaks = "out of order or of the wrong size"

    def check_act(self, act: Any, walks: Walks) -> None:
        if not walks.begun:
            walks.reset(0)


class Unlimited(Simulator):
    """Opens more environments than it says one stream may open."""

    breaks = "RESOURCE_EXHAUSTED for more environments or streams than the service allows"

    def open(self, request: Any, walks: Walks | None) -> Walks:
        self.maximum = 10**7
        try:
            return super().open(request, walks)
        finally:
            self.maximum = 4096


class OneForAll(Simulator):
    """Steps the same environments for all streams."""

    breaks = "The environments belong to the stream and are closed with it"

    def __init__(self) -> None:
        self.shared: dict[int, Walks] = {}

    def open(self, request: Any, walks: Walks | None) -> Walks:
        opened = super().open(request, walks)
        return self.shared.setdefault(request.count, opened)

    def check_act(self, act: Any, walks: Walks) -> None:
        if act.step <= walks.step_number:
            walks.step_number = act.step - 1
        super().check_act(act, walks)


class LongMessages(Simulator):
    """Sends a step in one message, however long it is."""

    breaks = "The byte fields of one message hold at most 1 MiB together"
    maximum = 200_000


class Hangs(Simulator):
    """Never answers the third step."""

    breaks = "Deadline for the response to `open`: 110 s; to any other request: 60 s"

    def pieces(self, stepped: Any) -> Iterator[Any]:
        if stepped.step == 3:
            threading.Event().wait(20)
        yield pb.StreamStepsResponse(stepped=stepped)


BROKEN = [
    WrongShape,
    NoDataType,
    NoChoices,
    OpensOtherSpaces,
    LateReset,
    IgnoresSeed,
    EqualLanes,
    LosesFinalObservations,
    ForgetsLanes,
    EndsTwice,
    AnswersUnknown,
    AcceptsAnyOrder,
    Unlimited,
    OneForAll,
    LongMessages,
    Hangs,
]

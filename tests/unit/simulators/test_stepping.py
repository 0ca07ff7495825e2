"""The requests of one stream of a simulator service: their order, sizes and limits."""

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf.struct_pb2 import Struct

from podrace.agentpod.v1 import agentpod_pb2
from podrace.errors import InvalidArgument, ResourceExhausted
from podrace.simulator.v1.simulator_pb2 import GetSimulatorRequest
from podrace.simulator.v1.simulator_pb2 import StreamStepsRequest as Request
from podrace.simulator.v1.simulator_pb2 import StreamStepsResponse as Response
from podrace.tensor.v1.tensor_pb2 import DATA_TYPE_FLOAT32, DATA_TYPE_FLOAT64, DataType, TensorSpec
from podrace.tensor_transport.codec import DATA_TYPES
from podrace.tensor_transport.plane import Region
from podrace.tensor_transport.probe import write_probe
from podrace.tensor_transport.shared import SharedPlane
from simulators import Simulator, Space, Step, make
from simulators.base import Report
from simulators.config import Limits
from simulators.messages import KINDS, SHARED_PREFIX, bytes_of, pieces, space_message, space_of, step_specs
from simulators.stepping import Stepping, check_served, describe

COUNT = 3
RESET = Request(reset=Request.Reset(seed=1))


def opening(id: str = "cartpole", count: int = COUNT, **options: object) -> Request:
    struct = Struct()
    struct.update(options)
    return Request(open=Request.Open(id=id, options=struct, count=count))


def act(step: int, action: bytes | None = None, *, more: bool = False) -> Request:
    chosen = bytes_of(torch.zeros(COUNT, dtype=torch.int64)) if action is None else action
    return Request(act=Request.Act(step=step, action=chosen, more=more))


@pytest.fixture
def stepping() -> Iterator[Stepping]:
    stepping = Stepping(Limits(), "cpu")
    yield stepping
    stepping.close()


@pytest.mark.parametrize(
    ("requests", "complaint"),
    [
        ([RESET], "starts with open, not with reset"),
        ([act(1)], "starts with open, not with act"),
        ([Request()], "starts with open, not with a request unknown to this build"),
        ([opening(), opening()], "opens once"),
        ([opening(), Request()], "of a kind unknown to this build"),
        ([opening(), act(1)], "an action must follow a reset"),
        ([opening(), RESET, act(2)], "step 2 cannot follow step 0"),
        ([opening(), RESET, act(1), act(1)], "step 1 cannot follow step 1"),
        ([opening(), RESET, act(1), RESET, act(2)], "step 2 cannot follow step 0"),
        ([opening(), RESET, act(1, bytes(23))], "action has 23 bytes, expected 24"),
        ([opening(), RESET, act(1, bytes(25))], "action has at least 25 bytes, expected at most 24"),
        ([opening(), RESET, act(1, bytes(20), more=True), act(1, bytes(5))], "action has at least 25 bytes"),
        (
            [opening(), RESET, act(1, bytes_of(torch.tensor([0, 2, 1])))],
            "actions range from 0 to 2, choices from 0 to 1",
        ),
        ([opening(), RESET, act(1, bytes_of(torch.tensor([0, -1, 1])))], "actions range from -1 to 1"),
        ([opening(), RESET, Request(share=Request.Share())], "memory can be shared only once, before the first reset"),
        ([opening(), Request(share=Request.Share())], "memory to step in must hold action, observation"),
        ([opening(count=0)], "at least 1"),
        ([opening(id="python:os:system")], "is not allowed here"),
        ([opening(speed=2)], "unknown option 'speed'"),
    ],
)
def test_requests_out_of_order_or_of_the_wrong_size_are_refused(
    requests: list[Request], complaint: str, stepping: Stepping
) -> None:
    for request in requests[:-1]:
        stepping.answer(request)
    with pytest.raises(InvalidArgument, match=complaint):
        stepping.answer(requests[-1])


def test_an_action_sent_in_parts_equals_one_sent_at_once(stepping: Stepping) -> None:
    whole = Stepping(Limits(), "cpu")
    action = bytes_of(torch.tensor([0, 1, 0]))
    for each in (stepping, whole):
        each.answer(opening())
        each.answer(RESET)
    assert stepping.answer(act(1, action[:7], more=True)) == []
    assert stepping.answer(act(1, action[7:8], more=True)) == []
    assert stepping.answer(act(1, action[8:])) == whole.answer(act(1, action))
    whole.close()


def test_more_than_the_limits_allow_is_refused() -> None:
    with pytest.raises(ResourceExhausted, match=r"3 environments exceed the 2 .*limits.maximum_environments"):
        Stepping(Limits(maximum_environments=2), "cpu").answer(opening())
    stepping = Stepping(Limits(maximum_step_bytes=500), "cpu")
    with pytest.raises(ResourceExhausted, match=r"has 6\d\d bytes, this service allows 500"):
        stepping.answer(opening())
    stepping.close()


def test_only_listed_ids_are_served_if_a_list_is_given() -> None:
    limits = Limits(serves=("cartpole", "python:mine:*"))
    check_served("python:mine:make", {}, limits)
    with pytest.raises(InvalidArgument, match=r"pendulum: this service serves cartpole, python:mine:\*"):
        check_served("pendulum", {}, limits)
    with pytest.raises(InvalidArgument, match="interpreter = '/bin/sh': only the operator names programs"):
        check_served("isaacgym:Ant", {"interpreter": "/bin/sh"}, Limits(serves=("isaacgym:Ant",)))


@pytest.mark.parametrize("name", ["threads", "processes"])
def test_an_option_that_exceeds_the_thread_limit_is_refused(name: str) -> None:
    check_served("mujoco:Ant-v5", {name: 4}, Limits(maximum_threads=4))
    with pytest.raises(ResourceExhausted, match=f"'{name}' asks for 5, this service allows 4"):
        check_served("mujoco:Ant-v5", {name: 5}, Limits(maximum_threads=4))


def test_a_description_equals_the_opened_simulator() -> None:
    described = describe(GetSimulatorRequest(id="pendulum"), Limits(maximum_environments=7), "cpu")
    stepping = Stepping(Limits(), "cpu")
    (response,) = stepping.answer(opening("pendulum"))
    assert described.observation_space == response.opened.observation_space
    assert described.action_space == response.opened.action_space
    assert (described.maximum_environments, list(described.planes)) == (7, ["shared"])
    stepping.close()


# --- shared memory ---------------------------------------------------------------------------------------------------

OBSERVED, ACTION = Space("continuous", (4,), torch.float32), Space("discrete", (), torch.int64, n=2)


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    plane = SharedPlane(f"{SHARED_PREFIX}{os.getpid()}-{tmp_path.name}-")
    yield plane.create("step", list(step_specs(OBSERVED, ACTION, COUNT).values()))
    plane.close()


def sharing(region: Region) -> Request:
    return Request(share=Request.Share(tensors=region.refs()))


def test_steps_in_shared_memory_equal_those_in_messages(stepping: Stepping, region: Region) -> None:
    by_messages = Stepping(Limits(), "cpu")
    sent = write_probe(region, seed=3)
    stepping.answer(opening())
    by_messages.answer(opening())
    (shared,) = stepping.answer(sharing(region))
    assert shared.shared.probe_sum == sent
    tensors = dict(region)
    (in_memory,), (in_message,) = stepping.answer(RESET), by_messages.answer(RESET)
    assert in_memory == Response(stepped=Response.Stepped(step=0))
    assert bytes_of(tensors["observation"]) == in_message.stepped.observation
    ends = 0
    for step in range(1, 40):
        tensors["action"].fill_(1)
        (in_memory,) = stepping.answer(Request(act=Request.Act(step=step)))
        (in_message,) = by_messages.answer(act(step, bytes_of(tensors["action"])))
        assert in_memory == Response(stepped=Response.Stepped(step=step))
        for name in ("observation", "reward", "terminated", "truncated"):
            assert bytes_of(tensors[name]) == getattr(in_message.stepped, name)
        lanes = list(in_message.stepped.final_lanes)
        assert bytes_of(tensors["final_observation"][lanes]) == in_message.stepped.final_observation
        ends += len(lanes)
    assert ends
    by_messages.close()


def test_without_the_memory_tensors_travel_in_messages(stepping: Stepping, region: Region) -> None:
    request = sharing(region)
    region.close()
    stepping.answer(opening())
    (response,) = stepping.answer(request)
    assert not response.shared.HasField("probe_sum")
    (stepped,) = stepping.answer(RESET)
    assert len(stepped.stepped.observation) == COUNT * 16


def test_memory_with_a_wrong_name_or_shape_is_not_used(stepping: Stepping, tmp_path: Path, region: Region) -> None:
    stepping.answer(opening())
    plane = SharedPlane(f"podrace-{os.getpid()}-{tmp_path.name}-")
    foreign = plane.create("step", list(step_specs(OBSERVED, ACTION, COUNT).values()))
    with pytest.raises(InvalidArgument, match=r"in files named podrace-steps-\*"):
        stepping.answer(sharing(foreign))
    plane.close()
    request = sharing(region)
    request.share.tensors[0].spec.shape[0] = 2
    with pytest.raises(InvalidArgument, match="memory to step in must hold"):
        stepping.answer(request)


@pytest.mark.parametrize("shape", [[], [1], [2, 3], [131_072]])
def test_a_probe_of_any_shape_is_read(stepping: Stepping, tmp_path: Path, shape: list[int]) -> None:
    response = _offered(stepping, tmp_path, DATA_TYPE_FLOAT64, shape)
    assert response.shared.probe_sum == 0.5 * math.prod(shape)


@pytest.mark.parametrize(("data_type", "shape"), [(DATA_TYPE_FLOAT32, [64]), (DATA_TYPE_FLOAT64, [131_073])])
def test_a_probe_of_another_type_or_more_than_1_mib_is_refused(
    stepping: Stepping, tmp_path: Path, data_type: DataType.ValueType, shape: list[int]
) -> None:
    with pytest.raises(InvalidArgument, match="probe has float64 numbers, at most 1048576 bytes"):
        _offered(stepping, tmp_path, data_type, shape)


def _offered(stepping: Stepping, tmp_path: Path, data_type: DataType.ValueType, shape: list[int]) -> Response:
    probe = TensorSpec(name="probe", data_type=data_type, shape=shape, layout_version=1)
    plane = SharedPlane(f"{SHARED_PREFIX}{os.getpid()}-{tmp_path.name}-")
    region = plane.create("step", list({**step_specs(OBSERVED, ACTION, COUNT), "probe": probe}.values()))
    region["probe"].fill_(0.5)
    stepping.answer(opening())
    try:
        (response,) = stepping.answer(sharing(region))
        return response
    finally:
        plane.close()


# --- messages --------------------------------------------------------------------------------------------------------


def joined(parts: list[dict[str, bytes]]) -> Mapping[str, bytes]:
    whole: dict[str, bytes] = {}
    for part in parts:
        for name, data in part.items():
            whole[name] = whole.get(name, b"") + data
    return whole


@pytest.mark.parametrize("most_bytes", [1, 3, 4, 7, 10, 11, 12, 100])
def test_parts_respect_the_size_limit_and_add_up_to_the_whole(most_bytes: int) -> None:
    fields = {"observation": b"abcdefg", "reward": b"", "terminated": b"hij", "truncated": b"k"}
    parts = list(pieces(fields, most_bytes))
    assert all(sum(map(len, part.values())) <= most_bytes for part in parts)
    assert len(parts) == -(-11 // most_bytes)
    assert {name: data for name, data in joined(parts).items() if data} == {
        name: data for name, data in fields.items() if data
    }
    assert list(pieces({}, most_bytes)) == [{}]


@pytest.mark.parametrize(
    "space",
    [
        Space("continuous", (3,), torch.float32, (-1.0, 0.0, float("-inf")), (1.0, 2.0, float("inf"))),
        Space("continuous", (84, 84, 4), torch.uint8, (0.0,) * 28224, (255.0,) * 28224),
        Space("continuous", (2, 2), torch.float32),
        ACTION,
    ],
    ids=["bounds", "pictures", "unbounded", "choices"],
)
def test_a_space_arrives_as_it_was_sent(space: Space) -> None:
    assert space_of(space_message(space)) == space
    assert space_message(space).ByteSize() < 1000


def test_a_space_with_a_wrong_number_of_bounds_is_refused() -> None:
    message = space_message(dataclasses.replace(OBSERVED, low=(0.0, 0.0, 0.0, 1.0)))
    del message.low[-1]
    with pytest.raises(InvalidArgument, match="a space of 4 elements has 3 bounds"):
        space_of(message)


@pytest.mark.parametrize(
    ("kind", "shape", "problem"),
    [
        ("continuous", [2**61], "has 2305843009213693952 elements, more than"),
        ("continuous", [2**12, 2**12, 2], "has 33554432 elements, more than"),
        ("continuous", [2**63] * 9, "has 9 dimensions"),
        ("multi_discrete", [0], r"a space of 0 elements has the choices \[\]"),
    ],
)
def test_spaces_of_too_many_elements_or_of_none_to_choose_are_refused(
    kind: str, shape: list[int], problem: str
) -> None:
    message = agentpod_pb2.Space(kind=KINDS[kind], shape=shape, data_type=DATA_TYPES[torch.float32], low=[0.0])
    with pytest.raises(InvalidArgument, match=problem):
        space_of(message)


@pytest.mark.parametrize(
    ("kind", "counts"),
    [("discrete", {"choices": 2**24 + 1}), ("multi_discrete", {"shape": [2], "element_choices": [2**24, 1]})],
)
def test_a_space_of_too_many_choices_is_refused(kind: str, counts: dict[str, Any]) -> None:
    message = agentpod_pb2.Space(kind=KINDS[kind], data_type=DATA_TYPES[torch.int64], **counts)
    with pytest.raises(InvalidArgument, match="a space has 16777217 choices, more than 16777216"):
        space_of(message)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.int64, torch.bool, torch.bfloat16])
def test_elements_travel_in_c_order_for_any_strides(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).view(2, 3).to(dtype).t()
    assert bytes_of(tensor) == bytes_of(tensor.contiguous())
    assert torch.equal(torch.frombuffer(bytearray(bytes_of(tensor)), dtype=dtype).view(3, 2), tensor)


class Remembering(Simulator):
    """Keeps the action tensor itself, as an environment with a penalty on changes of the action may."""

    def __init__(self, inner: Simulator) -> None:
        self._inner, self.kept = inner, list[torch.Tensor]()
        self.observation_space, self.action_space, self.count = inner.observation_space, inner.action_space, inner.count

    def step(self, action: torch.Tensor) -> Step:
        self.kept.append(action)
        return self._inner.step(action)

    def reset(self, seed: int) -> torch.Tensor:
        return self._inner.reset(seed)

    def report(self) -> Report:
        return self._inner.report()

    def close(self) -> None:
        self._inner.close()


def test_an_action_that_an_environment_keeps_is_not_overwritten_by_the_next(
    stepping: Stepping, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Remembering] = []

    def remembering(*arguments: object, **named: object) -> Remembering:
        opened.append(Remembering(make(*arguments, **named)))  # type: ignore[arg-type]
        return opened[0]

    monkeypatch.setattr("simulators.stepping.make", remembering)
    stepping.answer(opening())
    stepping.answer(Request(reset=Request.Reset(seed=1)))
    first, second = torch.zeros(COUNT, dtype=torch.int64), torch.ones(COUNT, dtype=torch.int64)
    for step, action in enumerate((first, second), 1):
        stepping.answer(act(step, action.numpy().tobytes()))
    assert [kept.tolist() for kept in opened[0].kept] == [first.tolist(), second.tolist()]

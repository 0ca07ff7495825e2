"""Tests simulators behind a service: their results, and the errors of failing services."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from torch import Tensor

from podrace.errors import DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, PodraceError, Unavailable
from podrace.simulator.v1.simulator_pb2 import StreamStepsRequest as Request
from podrace.simulator.v1.simulator_pb2 import StreamStepsResponse as Response
from simulators import Simulator, Space, make, remote
from simulators.messages import MESSAGE_BYTES, bytes_of, space_message

OBSERVED = Space("continuous", (3,), torch.float32, (-1.0,) * 3, (1.0,) * 3)
ACTION = Space("discrete", (), torch.int64, n=4)
QUICK = remote.Deadlines(connect_seconds=0.2, open_seconds=5.0, step_seconds=0.2)


def random_action(space: Space, count: int, generator: torch.Generator) -> Tensor:
    if space.kind == "discrete":
        return torch.randint(space.n, (count,), generator=generator)
    return torch.rand((count, *space.shape), generator=generator) * 2 - 1


def roll(simulator: Simulator, steps: int) -> Iterator[list[Tensor]]:
    """Yields the results of random actions, as a list of copies for each step."""
    generator = torch.Generator().manual_seed(0)
    yield [simulator.reset(11).clone()]
    for _ in range(steps):
        step = simulator.step(random_action(simulator.action_space, simulator.count, generator))
        ended = step.terminated | step.truncated
        tensors = (step.observation, step.reward, step.terminated, step.truncated, step.final_observation[ended])
        yield [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("plane", ["grpc", "shared"])
@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("CartPole-v1", {}),
        ("mujoco:Hopper-v5", {"max_episode_steps": 9}),
        ("FrozenLake-v1", {"is_slippery": False}),
        ("Blackjack-v1", {}),
        ("Taxi-v4", {"info_action_mask": True, "max_episode_steps": 9}),
        ("tag", {"prey_policy": "random", "max_episode_steps": 9}),
    ],
)
def test_results_equal_those_of_the_simulator(id: str, options: dict[str, object], plane: str, service: str) -> None:
    here = make(id, 7, options)
    there = make(service, 7, {"id": id, "plane": plane, **options})
    assert isinstance(there, remote.RemoteSimulator)
    assert (there.observation_space, there.action_space, there.plane) == (
        here.observation_space,
        here.action_space,
        plane,
    )
    ends = 0
    for ours, theirs in zip(roll(here, 60), roll(there, 60), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        ends += len(ours[-1])
    assert ends > 7
    there.close()


def test_a_batch_larger_than_a_message_arrives_in_parts(service: str) -> None:
    id, count, options = "mujoco:Humanoid-v5", 800, {"max_episode_steps": 2}
    here, there = make(id, count, options), make(service, count, {"id": id, "plane": "grpc", **options})
    assert here.reset(0).nbytes > MESSAGE_BYTES
    for ours, theirs in zip(roll(here, 3), roll(there, 3), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    there.close()


def test_memory_is_shared_if_the_service_can_map_it_and_no_file_is_left(service: str) -> None:
    simulator = make(service, 3, {"id": "cartpole"})
    assert isinstance(simulator, remote.RemoteSimulator)
    assert simulator.plane == "shared"
    mapped = [
        line.split()[-2:] for line in Path("/proc/self/maps").read_text().splitlines() if "podrace-steps-" in line
    ]
    assert mapped
    assert all(deleted == "(deleted)" for _, deleted in mapped)
    simulator.close()


def test_the_domains_measures_are_returned(service: str) -> None:
    options = {"train_end": "2005-01-01"}
    here, there = make("stocks", 2, options), make(service, 2, {"id": "stocks", **options})
    for _ in zip(roll(here, 60), roll(there, 60), strict=True):
        pass
    assert here.report().metrics
    assert there.report() == here.report()
    there.close()


def test_the_measures_of_single_episodes_are_returned(service: str) -> None:
    options = {"split": "validation", "episode_days": 5}
    here, there = make("stocks", 3, options), make(service, 3, {"id": "stocks", **options})
    for simulator in (here, there):
        for _ in roll(simulator, 4):
            pass
    assert len(here.report().episode_metrics["sharpe_ratio"]) == 3
    assert there.report().episode_metrics == here.report().episode_metrics
    there.close()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"id": "CartPole-v9"}, "CartPole-v9"),
        ({"id": "pendulum", "max_episode_step": 7}, "unknown option 'max_episode_step'; did you mean"),
        ({"id": "python:subprocess:run", "args": ["true"]}, "is not allowed here"),
        ({"id": "subprocess:Name-v0"}, "is not allowed here"),
        ({"id": "gym:subprocess:Name-v0"}, "is not allowed here"),
        ({"id": "isaacgym:Ant"}, "is not allowed here"),
        ({"id": "grpc://localhost:1"}, "is not allowed here"),
        ({"id": "CartPole-v1", "interpreter": "/bin/sh"}, "options.interpreter = '/bin/sh': files are named as"),
        ({"id": "CartPole-v1", "plane": "cuda"}, "'plane' must be one of auto, grpc, shared"),
        ({"id": "CartPole-v1", "when": object()}, "cannot be sent"),
        ({}, "the option 'id' with the simulator's name at that service"),
    ],
)
def test_an_impossible_simulator_is_refused_in_one_line(
    options: dict[str, object], complaint: str, service: str
) -> None:
    with pytest.raises(InvalidArgument, match=complaint) as refusal:
        make(service, 2, options)
    assert len(refusal.value.message.splitlines()) == 1


def test_an_address_without_a_service_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=rf"no simulator service at unix:{tmp_path}/s.sock \(waited 0.2 s\)"):
        remote.make(f"grpc://unix:{tmp_path}/s.sock", 2, {"id": "cartpole"}, "cpu", deadlines=QUICK)


def test_without_a_token_the_connection_is_closed(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    channels: list[grpc.Channel] = []
    make_channel = remote._channel
    monkeypatch.setattr(remote, "_channel", lambda address: channels.append(make_channel(address)) or channels[-1])

    def token() -> str:
        raise FailedPrecondition("the token file is empty")

    with pytest.raises(FailedPrecondition, match="the token file is empty"):
        remote.Conversation(scripted.address, remote.Deadlines(), token)
    with pytest.raises(ValueError, match="closed channel"):
        channels[0].unary_unary("/service/Method")(b"")


# --- services that violate the contract ------------------------------------------------------------------------------


def scripted_answers(request: Request) -> list[Response]:
    """Answers for three lanes: lane 1 ends at step 2, the others never end."""
    kind = request.WhichOneof("request")
    if kind == "open":
        spaces = {"observation_space": space_message(OBSERVED), "action_space": space_message(ACTION)}
        return [Response(opened=Response.Opened(**spaces))]
    step = request.act.step
    stepped = Response.Stepped(step=step, observation=bytes_of(torch.full((3, 3), float(step))))
    if kind == "act":
        flags = torch.tensor([False, step == 2, False])
        stepped.reward = bytes_of(torch.ones(3))
        stepped.terminated, stepped.truncated = bytes_of(flags), bytes_of(torch.zeros(3, dtype=torch.bool))
        if step == 2:
            stepped.final_lanes.append(1)
            stepped.final_observation = bytes_of(torch.full((1, 3), 7.0))
    return [Response(stepped=stepped)]


@pytest.fixture
def opened(scripted: Any) -> Iterator[remote.RemoteSimulator]:
    scripted.answers = scripted_answers
    simulator = remote.make(f"grpc://{scripted.address}", 3, {"id": "anything"}, "cpu", deadlines=QUICK)
    yield simulator
    simulator.close()


NOTHING = torch.zeros(3, dtype=torch.int64)


def test_a_service_without_shared_memory_is_used_by_messages(opened: remote.RemoteSimulator) -> None:
    assert opened.plane == "grpc"
    assert opened.reset(1).tolist() == [[0.0] * 3] * 3
    assert opened.step(NOTHING).terminated.tolist() == [False] * 3
    step = opened.step(NOTHING)
    assert step.terminated.tolist() == [False, True, False]
    assert step.final_observation[1].tolist() == [7.0] * 3


def test_required_memory_that_is_not_offered_is_an_error(scripted: Any) -> None:
    scripted.answers = scripted_answers
    with pytest.raises(
        FailedPrecondition, match=r"'shared' is required for grpc://unix:.*does not offer shared memory"
    ):
        make(f"grpc://{scripted.address}", 3, {"id": "anything", "plane": "shared"})


def test_memory_that_the_service_cannot_map_is_not_used(scripted: Any) -> None:
    def answers(request: Request) -> list[Response]:
        if request.HasField("share"):
            return [Response(shared=Response.Shared())]
        responses = scripted_answers(request)
        if request.HasField("open"):
            responses[0].opened.planes.append("shared")
        return responses

    scripted.answers = answers
    simulator = make(f"grpc://{scripted.address}", 3, {"id": "anything"})
    assert isinstance(simulator, remote.RemoteSimulator)
    assert simulator.plane == "grpc"
    assert simulator.reset(0).tolist() == [[0.0] * 3] * 3
    simulator.close()
    with pytest.raises(FailedPrecondition, match="cannot map memory of this host"):
        make(f"grpc://{scripted.address}", 3, {"id": "anything", "plane": "shared"})


def test_memory_with_a_wrong_probe_sum_is_refused(scripted: Any) -> None:
    def answers(request: Request) -> list[Response]:
        if request.HasField("share"):
            return [Response(shared=Response.Shared(probe_sum=1.0))]
        responses = scripted_answers(request)
        if request.HasField("open"):
            responses[0].opened.planes.append("shared")
        return responses

    scripted.answers = answers
    with pytest.raises(FailedPrecondition, match="failed its self-test"):
        make(f"grpc://{scripted.address}", 3, {"id": "anything"})


def shortened(field: str) -> Callable[[Response], None]:
    return lambda response: setattr(response.stepped, field, getattr(response.stepped, field)[:-1])


def lengthened(field: str) -> Callable[[Response], None]:
    return lambda response: setattr(response.stepped, field, getattr(response.stepped, field) + b"\0")


BREAKS: dict[str, tuple[Callable[[Response], None], str]] = {
    "another step": (lambda response: setattr(response.stepped, "step", 7), "answered stepped of step 7 to step 2"),
    "another kind": (lambda response: response.reported.SetInParent(), "answered reported of step 0 to step 2"),
    "short observation": (shortened("observation"), "observation of a step has 35 bytes, expected 36"),
    "long observation": (lengthened("observation"), "observation of a step has at least 37 bytes, expected at most 36"),
    "short reward": (shortened("reward"), "reward of a step has 11 bytes, expected 12"),
    "short flags": (shortened("terminated"), "terminated of a step has 2 bytes, expected 3"),
    "short last": (shortened("final_observation"), "final_observation of a step has 11 bytes, expected 12"),
    "another lane": (
        lambda response: response.stepped.final_lanes.__setitem__(0, 2),
        r"ended lanes \[1\] and sent the last observations of lanes \[2\]",
    ),
    "no lane": (
        lambda response: (response.stepped.ClearField("final_lanes"), response.stepped.ClearField("final_observation")),
        r"ended lanes \[1\] and sent the last observations of lanes \[\]",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_an_answer_that_violates_the_contract_is_reported_and_not_used(
    name: str, scripted: Any, opened: remote.RemoteSimulator
) -> None:
    spoil, complaint = BREAKS[name]

    def answers(request: Request) -> list[Response]:
        responses = scripted_answers(request)
        if request.act.step == 2:
            spoil(responses[0])
        return responses

    scripted.answers = answers
    opened.reset(1)
    opened.step(NOTHING)
    with pytest.raises(Internal, match=complaint):
        opened.step(NOTHING)


def test_a_flag_of_any_nonzero_value_is_true(scripted: Any, opened: remote.RemoteSimulator) -> None:
    def answers(request: Request) -> list[Response]:
        (response,) = scripted_answers(request)
        response.stepped.terminated = response.stepped.terminated.replace(b"\1", b"\2")
        return [response]

    scripted.answers = answers
    opened.reset(1)
    opened.step(NOTHING)
    terminated = opened.step(NOTHING).terminated
    assert terminated.view(torch.uint8).tolist() == [0, 1, 0]


def test_a_silent_service_exceeds_the_deadline(scripted: Any, opened: remote.RemoteSimulator) -> None:
    opened.reset(1)
    scripted.answers = lambda request: []
    with pytest.raises(DeadlineExceeded, match=rf"at {scripted.address} did not answer within 0.2 s"):
        opened.step(NOTHING)
    with pytest.raises(PodraceError):
        opened.step(NOTHING)


def test_a_stream_that_the_service_ended_because_it_was_idle_is_to_be_replaced(
    scripted: Any, opened: remote.RemoteSimulator
) -> None:
    opened.reset(1)
    scripted.ending = grpc.StatusCode.DEADLINE_EXCEEDED, "no request arrived for 1800 s"
    with pytest.raises(Unavailable, match=rf"at {scripted.address} ended the stream: no request arrived for 1800 s"):
        opened.step(NOTHING)


@pytest.mark.parametrize("sort", ["the process", "the stream"])
def test_a_service_that_disappears_is_named(sort: str, scripted: Any, opened: remote.RemoteSimulator) -> None:
    opened.reset(1)
    stopped = []

    def answers(request: Request) -> list[Response]:
        if sort == "the process":
            stopped.append(scripted.server.stop(0))
            return []
        raise RuntimeError("the simulator broke")

    scripted.answers = answers
    expected = Unavailable if sort == "the process" else PodraceError
    with pytest.raises(expected, match=scripted.address) as failure:
        opened.step(NOTHING)
    assert len(failure.value.message.splitlines()) == 1
    with contextlib.suppress(PodraceError):
        opened.step(NOTHING)
        pytest.fail("a stream that ended was stepped")

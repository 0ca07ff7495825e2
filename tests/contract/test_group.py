"""Tests groups and their collectives on each backend."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from members import Member, everywhere

from podrace.errors import InvalidArgument
from podrace.tensor_transport.group import Group, MemberLost
from podrace.tensor_transport.group_store import GroupStore

BACKENDS = [pytest.param("cpu", id="gloo"), pytest.param("cuda", id="nccl", marks=pytest.mark.gpu)]
SIZE = 3
TIMEOUT_SECONDS = 20.0
SOON_SECONDS = 5.0
"""Longest time until the others detect a dead member: its connections close, so they need not wait for the timeout."""

NCCL_SECONDS = 8.0
"""Timeout of groups that lose a member, with NCCL: it needs seconds to connect, and between the GPUs of a machine a
lost member is detected by the timeout alone."""

Start = Callable[..., list[Member]]


def timeout_of(device: str, seconds: float) -> float:
    """Timeout of a group that loses a member."""
    return NCCL_SECONDS if device == "cuda" else seconds


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and torch.cuda.device_count() < SIZE:
        pytest.skip(f"needs {SIZE} GPUs")
    return str(request.param)


@pytest.fixture
def store() -> Iterator[GroupStore]:
    store = GroupStore()
    yield store
    store.close()


@pytest.fixture
def start(device: str, store: GroupStore) -> Iterator[Start]:
    """Returns a function that starts members and lets them join one group."""
    started: list[Member] = []

    def start(size: int = SIZE, timeout_seconds: float = TIMEOUT_SECONDS) -> list[Member]:
        started.extend(Member() for _ in range(size))
        everywhere(started, join, store.address, "first", size, device, timeout_seconds)
        return started

    yield start
    for member in started:
        member.kill()


def test_joining_ends_at_once_when_the_store_is_closed(store: GroupStore) -> None:
    store.close()
    begin = time.monotonic()
    with pytest.raises(MemberLost, match="not all of the 2 members joined"):
        Group.join(store.address, "closed", 0, 2, "cpu", timeout_seconds=TIMEOUT_SECONDS)
    assert time.monotonic() - begin < SOON_SECONDS


# --- what members do -----------------------------------------------------------------------------------------------


def join(state: Any, rank: int, address: str, prefix: str, size: int, device: str, timeout_seconds: float) -> None:
    place = torch.device(device, rank) if device == "cuda" else torch.device(device)
    state.group = Group.join(address, prefix, rank, size, place, timeout_seconds=timeout_seconds)


def draw(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(rank)) * 100
    # For integer types, numbers that fit into a byte.
    return (values if dtype.is_floating_point else values.abs() % 64).to(dtype)


def own(state: Any, rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return draw(rank, dtype, *shape).to(state.group.device)


def all_collectives(state: Any, rank: int, dtype: torch.dtype) -> dict[str, Any]:
    tensor, group = own(state, rank, dtype, 5, 7), state.group
    return {
        "own": tensor.cpu(),
        "gather": [part.cpu() for part in group.gather(tensor)],
        "broadcast": group.broadcast(tensor, 1).cpu(),
        "untouched": torch.equal(tensor, own(state, rank, dtype, 5, 7)),
    }


def mean(state: Any, rank: int, count: int) -> list[torch.Tensor]:
    """Computes the same mean with a new buffer, with a reused buffer, and in a non-contiguous tensor."""
    tensors = [own(state, rank, torch.float32, count) for _ in range(2)]
    strided = torch.zeros(count, 2, device=state.group.device)
    tensors.append(strided[:, 0].copy_(tensors[0]))
    for tensor in tensors:
        assert state.group.mean_(tensor) is tensor
    if state.group.device.type == "cpu":
        # Between GPUs NCCL sums in another order.
        tensors.append(state.group.average_(own(state, rank, torch.float32, count)))
        state.group.finish()
    assert not strided[:, 1].any()
    return [tensor.cpu() for tensor in tensors]


def average(state: Any, rank: int) -> torch.Tensor:
    tensor = state.group.average_(own(state, rank, torch.float32, 1000))
    state.group.finish()
    return tensor.cpu()


def unusual_shapes(state: Any, rank: int) -> dict[str, list[torch.Tensor]]:
    group = state.group
    empty = torch.zeros(0, 3, device=group.device)
    transposed = torch.arange(6.0, device=group.device).view(2, 3).mT + rank
    results = {
        "empty": [*group.gather(empty), group.broadcast(empty, 1), group.mean_(empty)],
        "transposed": [*group.gather(transposed), group.broadcast(transposed, 1)],
        "scalar": group.gather(torch.tensor(float(rank), device=group.device)),
    }
    return {name: [part.cpu() for part in parts] for name, parts in results.items()}


def run_until_lost(state: Any, rank: int) -> tuple[float, bool]:
    """Runs collectives until a member is lost; returns the seconds taken and whether the tensor is unchanged."""
    tensor, began = own(state, rank, torch.float32, 1000), time.monotonic()
    before = tensor.clone()
    with suppress(MemberLost):
        while True:
            state.group.mean_(tensor)
            tensor.copy_(before)
    return time.monotonic() - began, torch.equal(tensor, before)


def gather_once(state: Any, rank: int) -> None:
    state.group.gather(torch.zeros(1, device=state.group.device))


def abort_from_another_thread(state: Any, rank: int, after_seconds: float) -> float:
    tensor, timer = own(state, rank, torch.float32, 1000), threading.Timer(after_seconds, state.group.abort)
    timer.start()
    began = time.monotonic()
    with pytest.raises(MemberLost, match="aborted"):
        state.group.mean_(tensor)
    timer.join()
    return time.monotonic() - began


# --- tests ---------------------------------------------------------------------------------------------------------


def test_every_member_receives_the_tensors_of_all(start: Start) -> None:
    members = start()
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8):
        answers = everywhere(members, all_collectives, dtype)
        given = [answer["own"] for answer in answers]
        assert not torch.equal(given[0], given[1])
        for answer in answers:
            assert torch.equal(torch.stack(answer["gather"]), torch.stack(given))
            assert torch.equal(answer["broadcast"], given[1])
            assert answer["untouched"]


def test_a_mean_is_summed_in_float64_rounded_once_and_bitwise_equal_on_all_members(start: Start) -> None:
    members = start()
    for count in (5, 100_001, 40_000):
        given = [draw(rank, torch.float32, count) for rank in range(SIZE)]
        expected = (given[0].double() + given[1].double() + given[2].double()) / SIZE
        for answer in everywhere(members, mean, count):
            assert all(torch.equal(tensor, expected.float()) for tensor in answer)


def test_an_average_has_the_same_bits_on_all_members(start: Start) -> None:
    answers = everywhere(start(), average)
    expected = sum(draw(rank, torch.float32, 1000).double() for rank in range(SIZE)) / SIZE
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    torch.testing.assert_close(answers[0].double(), expected, rtol=1e-5, atol=1e-4)


def test_empty_transposed_and_scalar_tensors_are_transferred(start: Start) -> None:
    for answer in everywhere(start(), unusual_shapes):
        assert [part.shape for part in answer["empty"]] == [(0, 3)] * (SIZE + 2)
        for rank, part in zip((0, 1, 2, 1), answer["transposed"], strict=True):
            assert torch.equal(part, torch.arange(6.0).view(2, 3).mT + rank)
        assert [float(part) for part in answer["scalar"]] == [0.0, 1.0, 2.0]


def test_a_killed_member_is_detected_at_once_by_a_survivor_and_the_survivors_form_a_new_group(
    start: Start, store: GroupStore, device: str
) -> None:
    timeout = timeout_of(device, TIMEOUT_SECONDS)
    members = start(timeout_seconds=timeout)
    for rank in (0, 1):
        members[rank].send(run_until_lost, rank)
    members[2].kill()
    results = [member.result() for member in members[:2]]
    # A survivor that waits for the other survivor, not for the killed member, may notice only at its timeout.
    assert min(seconds for seconds, _ in results) < SOON_SECONDS + (timeout if device == "cuda" else 0.0)
    assert max(seconds for seconds, _ in results) < timeout + SOON_SECONDS
    assert all(unchanged for _, unchanged in results)
    everywhere(members[:2], join, store.address, "second", 2, device, TIMEOUT_SECONDS)
    expected = (draw(0, torch.float32, 3).double() + draw(1, torch.float32, 3).double()) / 2
    assert torch.equal(everywhere(members[:2], mean, 3)[1][0], expected.float())


def test_a_member_that_does_not_respond_is_lost_after_the_timeout(start: Start, device: str) -> None:
    timeout = timeout_of(device, 1.0)
    members = start(timeout_seconds=timeout)
    members[2].freeze()
    for rank in (0, 1):
        members[rank].send(run_until_lost, rank)
    assert all(0.9 * timeout < member.result()[0] < timeout + SOON_SECONDS for member in members[:2])


def test_a_group_that_lost_a_member_refuses_every_collective(start: Start) -> None:
    members = start(size=2)
    members[1].kill()
    members[0].send(run_until_lost, 0).result()
    with pytest.raises(MemberLost, match="has left its group"):
        members[0].send(gather_once, 0).result()


def test_an_abort_ends_a_collective_that_runs_in_another_thread(start: Start) -> None:
    members = start(size=2)
    assert 0.1 < members[0].send(abort_from_another_thread, 0, 0.1).result() < SOON_SECONDS


def test_an_abort_ends_the_collectives_of_the_other_members(start: Start, device: str) -> None:
    timeout = timeout_of(device, 2.0)
    members = start(timeout_seconds=timeout)
    members[1].send(run_until_lost, 1)
    members[0].send(abort_from_another_thread, 0, 0.1).result()
    assert members[1].result()[0] < timeout + SOON_SECONDS


def test_joining_fails_at_the_timeout_if_a_member_is_missing(store: GroupStore) -> None:
    began = time.monotonic()
    with pytest.raises(
        MemberLost, match=r"group lonely: not all of the 2 members joined at 127\.0\.0\.1:\d+ within 0\.5 s"
    ):
        Group.join(store.address, "lonely", 0, 2, "cpu", timeout_seconds=0.5)
    assert time.monotonic() - began < SOON_SECONDS


def test_joining_fails_at_the_timeout_if_the_store_is_unreachable() -> None:
    store = GroupStore()
    store.close()
    with pytest.raises(MemberLost, match="not all of the 2 members joined"):
        Group.join(store.address, "gone", 0, 2, "cpu", timeout_seconds=0.5)


def test_a_store_listens_only_on_its_own_address(store: GroupStore) -> None:
    host, _, port = store.address.rpartition(":")
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    listening = [fields[1] for fields in sockets if fields[1].endswith(f":{int(port):04X}") and fields[3] == "0A"]
    assert host == "127.0.0.1"
    assert listening == [f"0100007F:{int(port):04X}"]


def test_a_store_on_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"cannot listen on '192\.0\.2\.1'"):
        GroupStore("192.0.2.1")


def test_a_group_of_one_needs_no_store() -> None:
    group = Group.join("nowhere:1", "alone", 0, 1, "cpu", timeout_seconds=1.0)
    tensor = torch.tensor([1.0, 2.0])
    assert torch.equal(group.gather(tensor)[0], tensor)
    assert torch.equal(group.mean_(tensor.clone()), tensor)
    assert torch.equal(group.broadcast(tensor, 0), tensor)
    group.close()

"""Tests what a group between GPUs asks of NCCL and of the host, with a fake NCCL in memory of the host."""

import threading
from typing import Any

import pytest
import torch
from fake_streams import FakeCuda
from torch._C._distributed_c10d import ReduceOp

from podrace.tensor_transport import group as group_module
from podrace.tensor_transport.group import Group, MemberLost
from podrace.tensor_transport.stream_collectives import StreamCollectives

SIZE, RANK = 3, 1


class FakeNccl:
    """The backend of one member; the other members have the tensors of `others`."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.calls: list[str] = []
        self.others = [torch.tensor([3.0, 6.0]), torch.tensor([9.0, 0.0])]
        self.cuda, self.failure = cuda, ""

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> None:
        self._called("allreduce")
        assert (options.reduceOp, options.asyncOp) == (ReduceOp.AVG, False)
        (tensor,) = tensors
        assert tensor.is_contiguous()
        tensor.copy_((tensor + sum(self.others)) / SIZE)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, options: Any) -> None:
        self._called("allgather")
        assert options.asyncOp is False
        first, second = self.others
        output.copy_(torch.stack([first, tensor, second]))

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> None:
        self._called(f"broadcast from {options.rootRank}")
        assert options.asyncOp is False

    def _start_coalescing(self) -> None:
        self._called("start")

    def _end_coalescing(self) -> None:
        self._called("end")

    def abort(self) -> None:
        # The collectives on the stream end.
        self.calls.append("abort")
        self.cuda.finished.set()

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.failure:
            raise RuntimeError(self.failure)


class Ends:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, timeout_seconds: float = 20.0) -> None:
        self.cuda = FakeCuda().install(monkeypatch)
        self.nccl = FakeNccl(self.cuda)
        self.group = Group(self.nccl, RANK, SIZE, torch.device("cuda:1"), timeout_seconds)


def own() -> torch.Tensor:
    return torch.tensor([0.0, 3.0])


def joined(monkeypatch: pytest.MonkeyPatch, nccl: FakeNccl) -> Group:
    """Joins a group of a fake NCCL, by tensors that are on the host."""
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: zeros(*shape))
    monkeypatch.setattr(group_module, "open_store", lambda *_: None)
    monkeypatch.setattr(group_module, "_connect_nccl", lambda *_: nccl)
    nccl.others = [zeros(1), zeros(1)]
    return Group.join("127.0.0.1:1", "prefix", RANK, SIZE, "cuda:1", timeout_seconds=20.0)


def test_joining_returns_after_all_members_have_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL connects in the first collective, which does not wait for other work of the GPU."""
    cuda = FakeCuda().install(monkeypatch)
    nccl = FakeNccl(cuda)
    group = joined(monkeypatch, nccl)
    assert nccl.calls == ["allgather"]
    assert (cuda.streams, len(cuda.waits)) == (1, 1)
    # The thread may have another GPU than that of the group, where it would create a context.
    assert cuda.used == [1]
    group.close()


def test_a_member_that_does_not_join_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = FakeNccl(FakeCuda().install(monkeypatch))
    nccl.failure = "NCCL timeout in communicator initialization"
    with pytest.raises(MemberLost, match="communicator initialization"):
        joined(monkeypatch, nccl)
    assert nccl.calls == ["allgather", "abort"]


def test_a_group_is_left_without_waiting_for_members_that_may_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    ends.group.close()
    assert ends.nccl.calls == ["abort"]
    ends.group.close()
    assert ends.nccl.calls == ["abort"]


def test_averages_are_one_all_reduce_each_and_the_host_waits_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    for _ in range(100):
        assert torch.equal(ends.group.average_(own()), torch.tensor([4.0, 3.0]))
    assert ends.nccl.calls == ["allreduce"] * 100
    assert ends.cuda.waits == []
    ends.group.finish()
    assert ends.cuda.waits == [threading.current_thread().name]
    ends.group.close()


def test_an_average_of_a_tensor_with_gaps_is_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    wide = torch.zeros(2, 2)
    wide[:, 0] = own()
    ends.group.average_(wide[:, 0])
    assert wide.tolist() == [[4.0, 0.0], [3.0, 0.0]]
    ends.group.close()


def test_tensors_of_all_members_arrive_by_one_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    assert [part.tolist() for part in ends.group.gather(own())] == [[3.0, 6.0], [0.0, 3.0], [9.0, 0.0]]
    assert torch.equal(ends.group.mean_(own()), torch.tensor([4.0, 3.0]))
    assert ends.nccl.calls == ["allgather"] * 2
    assert len(ends.cuda.waits) == 2
    ends.group.close()


def test_several_tensors_are_broadcast_as_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    ends.group.broadcast_([own(), torch.empty(0), own()], 2)
    assert ends.nccl.calls == ["start", "broadcast from 2", "broadcast from 2", "end"]
    assert len(ends.cuda.waits) == 1
    ends.group.close()


def test_nothing_is_called_for_an_empty_tensor_or_a_group_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    ends.group.average_(torch.empty(0))
    ends.group.gather(torch.empty(0))
    alone = Group(None, 0, 1, torch.device("cuda:0"), 1.0)
    assert torch.equal(alone.average_(own()), own())
    alone.finish()
    assert (ends.nccl.calls, ends.cuda.waits) == ([], [])


def test_a_member_that_does_not_respond_ends_the_wait_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch, timeout_seconds=0.05)
    ends.cuda.finished.clear()
    ends.group.average_(own())
    with pytest.raises(MemberLost, match=r"rank 1 of 3: a member of the group was lost \(a member did not respond for"):
        ends.group.finish()
    assert ends.nccl.calls == ["allreduce", "abort"]
    # On another GPU than that of the process, the watching thread would create a context.
    assert {device for what, device in ends.cuda.devices if what == "query"} == {1}
    with pytest.raises(MemberLost, match="has left its group"):
        ends.group.average_(own())


def test_an_abort_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    ends.cuda.finished.clear()
    ends.group.average_(own())
    timer = threading.Timer(0.05, ends.group.abort)
    timer.start()
    with pytest.raises(MemberLost, match="aborted"):
        ends.group.finish()
    timer.join()


def test_an_error_of_nccl_is_a_lost_member(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    ends.nccl.failure = "NCCL communicator was aborted on rank 1. This is typically\nmore"
    with pytest.raises(MemberLost, match=r"\(NCCL communicator was aborted on rank 1"):
        ends.group.average_(own())
    assert ends.nccl.calls == ["allreduce", "abort"]


def test_the_watching_thread_ends_with_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    before = {thread for thread in threading.enumerate() if thread.name == "group-watch"}
    ends.group.average_(own())
    (watching,) = {thread for thread in threading.enumerate() if thread.name == "group-watch"} - before
    ends.group.close()
    watching.join(5.0)
    assert not watching.is_alive()


class Happening:
    """An event that the test lets happen."""

    def __init__(self) -> None:
        self.happened = False

    def query(self) -> bool:
        return self.happened


def test_time_counts_from_the_end_of_the_collective_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    watched = StreamCollectives(torch.device("cuda:0"), 10.0, lambda: None, lambda: now[0])
    first, second = Happening(), Happening()
    watched._unfinished.extend([(0.0, first), (0.0, second)])
    now[0] = 9.0
    assert not watched.is_late()
    first.happened = True
    assert not watched.is_late()
    now[0] = 18.0
    assert not watched.is_late(), "9 s after the first one ended"
    now[0] = 19.5
    assert watched.is_late()
    second.happened = True
    assert not watched.is_late()
    now[0] = 100.0
    assert not watched.is_late(), "nothing is unfinished"

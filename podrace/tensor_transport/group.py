"""Runs collectives in groups of processes that can lose members: NCCL on GPUs, gloo on CPUs.

A group is never repaired. When a member is lost, an error is raised in all others within the timeout. They drop the
group and join a new one under a new prefix of the same store. Every wait has a limit, and a failing collective never
terminates its process. torch's default process group is not used.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo

from podrace.errors import Unavailable
from podrace.tensor_transport.group_store import open_store
from podrace.tensor_transport.stream_collectives import StreamCollectives

ABORT_SLICE_SECONDS = 0.1
"""Interval at which a waiting collective checks whether the group was aborted."""
MAXIMUM_THREADS = 8
"""Threads of gloo per group; each waits for the broadcast of one member."""
CACHED_ELEMENTS = 32_768
"""Elements summed at a time on a CPU, so that the float64 sums stay in its cache; measured 7 times faster."""


class MemberLost(Unavailable):
    """A member of the group died or did not respond in time. The group is unusable; the others can form a new one."""


class Group:
    """Collectives over a fixed set of processes.

    Every member must call the same collectives in the same order with tensors of the same shapes and dtypes: gloo
    terminates a process that receives more than its buffer holds.

        group = Group.join(store_address, prefix, rank, size, device, timeout_seconds=10.0)
        try:
            group.mean_(gradient)
        except MemberLost:
            ...                            # the others agree on the members and on a prefix never used before
            group = Group.join(store_address, another_prefix, rank, size, device, timeout_seconds=10.0)

    Every collective but `average_` receives the tensors of all members and computes locally in the order of the ranks.
    So the results have the same bits on every member, independent of the backend. Each member receives size x tensor;
    an all-reduce in float64 would move two tensors of twice the width, which is not less for up to four members.

    Between GPUs collectives run on the current stream. All but `average_` wait for it; a thread of the group aborts a
    collective that takes longer than the timeout, which ends the wait.

    A collective that fails has not changed the caller's tensors, except `broadcast_` and, between GPUs, `average_`. A
    group of one needs no store.

    Attributes:
        rank: Rank of this member.
        size: Number of members.
        device: Device that the tensors must be on.
    """

    def __init__(self, backend: Any, rank: int, size: int, device: torch.device, timeout_seconds: float) -> None:
        """Wraps a connected backend of torch, or None for a group of one. Use `join` instead."""
        self.rank, self.size, self.device = rank, size, device
        self._backend, self._timeout_seconds = backend, timeout_seconds
        self._closed = threading.Event()
        self._buffers: dict[torch.dtype, Tensor] = {}
        self._problem = "aborted"
        self._on_stream: StreamCollectives | None = None
        if device.type == "cuda":
            self._on_stream = StreamCollectives(device, timeout_seconds, self._lose)

    @classmethod
    def join(
        cls,
        store_address: str,
        prefix: str,
        rank: int,
        size: int,
        device: torch.device | str,
        *,
        timeout_seconds: float,
        host: str = "127.0.0.1",
    ) -> "Group":
        """Waits for the other members and connects to them.

        Args:
            store_address: Address of a GroupStore.
            prefix: Name of the group: the same for all members and never used before.
            rank: 0 to size - 1, different for each member.
            size: Number of members.
            device: CPU: gloo. CUDA: NCCL.
            timeout_seconds: Limit for joining, and for each collective.
            host: Address of this machine that the other members can reach (gloo; NCCL chooses its own).

        torch asks for the host name of each address that it connects to. A name server that does not answer delays
        joining by 5 s a question, or by what RES_OPTIONS says (resolv.conf(5)).

        Raises:
            MemberLost: Not all members joined in time, or the store is unreachable.
        """
        device = torch.device(device)
        if size == 1:
            return cls(None, rank, size, device, timeout_seconds)
        connect = _connect_nccl if device.type == "cuda" else _connect_gloo
        timeout = timedelta(seconds=timeout_seconds)
        try:
            backend = connect(open_store(store_address, prefix, timeout), rank, size, device, timeout, host)
        except RuntimeError as error:
            raise MemberLost(
                f"group {prefix}: not all of the {size} members joined at {store_address} within {timeout_seconds:g} s"
                f" ({_first_line(error)})"
            ) from None
        group = cls(backend, rank, size, device, timeout_seconds)
        if device.type == "cuda":
            group._meet()
        return group

    def _meet(self) -> None:
        """Exchanges a number: NCCL, which does not block, connects its members in their first collective."""
        # Not behind the work of the current stream, which may take longer than the timeout.
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        # The thread may be new, and start with the first GPU. Leaving the stream alone would create a context on it.
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            self.gather(torch.zeros(1, device=self.device))

    # --- collectives ------------------------------------------------------------------------------------------

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """Returns the tensors of all members in the order of their ranks, all of one shape and dtype.

        Raises:
            MemberLost: A member has exited, or has not responded within the timeout.
        """
        gathered = tensor.new_empty(self.size, *tensor.shape)
        self._exchange(tensor, gathered)
        return list(gathered)

    def mean_(self, tensor: Tensor, ranks: Sequence[int] | None = None) -> Tensor:
        """Replaces a tensor by its mean over the members, summed in float64 and rounded once. Raises as `gather`.

        Args:
            tensor: Of this member; all take part.
            ranks: Members whose tensors the mean is of, the same on all members; None: all.
        """
        if self.size > 1:
            gathered = self._buffer(tensor).view(self.size, *tensor.shape)
            self._exchange(tensor, gathered)
            target = tensor if tensor.is_contiguous() else torch.empty_like(gathered[0])
            _mean_into(target, [gathered[rank] for rank in (range(self.size) if ranks is None else ranks)])
            if target is not tensor:
                tensor.copy_(target)
        return tensor

    def average_(self, tensor: Tensor) -> Tensor:
        """Replaces a tensor by its mean over the members; between GPUs without waiting.

        Between CPUs this is `mean_`. Between GPUs it is one all-reduce on the current stream, which sums in the type of
        the tensor; all members get the same bits.

        Raises:
            MemberLost: A member was lost. Between GPUs this is noticed at the latest by `finish`; all tensors that were
                averaged since the previous `finish` are then undefined.
        """
        on_stream = self._on_stream
        if on_stream is None or self.size == 1 or not tensor.numel():
            return self.mean_(tensor)
        target = tensor.detach().contiguous()
        self._run(lambda backend: on_stream.average(backend, target))
        if target.data_ptr() != tensor.data_ptr():
            tensor.copy_(target)
        return tensor

    def finish(self) -> None:
        """Waits until all averages have been computed. Raises as `gather`."""
        if self._on_stream is not None and self.size > 1:
            self._run(lambda backend: None)
            self._on_stream.finish()
            if self._closed.is_set():
                raise self._lost()

    def broadcast(self, tensor: Tensor, source: int) -> Tensor:
        """Returns the tensor of rank `source`; the others pass the same shape and dtype. Raises as `gather`."""
        received = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._broadcast([(source, received)])
        return received

    def broadcast_(self, tensors: Sequence[Tensor], source: int) -> None:
        """Overwrites contiguous tensors with those of rank `source`.

        Raises:
            MemberLost: As `gather`; the content of the tensors is then undefined.
        """
        self._broadcast([(source, tensor.detach()) for tensor in tensors if tensor.numel()])

    def _exchange(self, tensor: Tensor, gathered: Tensor) -> None:
        """Fills [size, ...] with the tensors of all members."""
        on_stream = self._on_stream
        if on_stream is not None and self.size > 1 and tensor.numel():
            source = tensor.detach().contiguous()
            self._run(lambda backend: on_stream.gather(backend, source, gathered))
            self.finish()
            return
        gathered[self.rank].copy_(tensor.detach())
        # Received in place: gloo's own gather copies everything and allocates new pages each time.
        self._broadcast(list(enumerate(gathered)))

    def _buffer(self, tensor: Tensor) -> Tensor:
        """Returns memory for the tensors of all members. It is reused: new pages cost more than the arithmetic."""
        wanted, held = self.size * tensor.numel(), self._buffers.get(tensor.dtype)
        if held is None or held.numel() < wanted:
            held = self._buffers[tensor.dtype] = tensor.new_empty(wanted)
        return held[:wanted]

    # --- leaving ----------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Leaves the group at once, from any thread. Idempotent.

        A collective that is running here raises MemberLost immediately. Those of the other members raise it when the
        connections close, or at the latest at their timeout.
        """
        self._closed.set()
        if self._on_stream is not None:
            self._on_stream.close()
        # In a list, so that the thread drops the last reference to the backend.
        held, self._backend = [self._backend], None
        if held[0] is None:
            return
        # gloo ends an operation only at its timeout, and its destructor waits for that, so a separate thread calls it.
        thread = threading.Thread(target=_abandon, args=(held,), name="group-abort", daemon=True)
        thread.start()
        if self.device.type == "cuda":
            # NCCL requires that a communicator is gone before the next is created. Its abort may hang, hence the limit.
            thread.join(self._timeout_seconds)

    def close(self) -> None:
        """Leaves the group. No member may be running a collective, or still be in the last one.

        Between GPUs this aborts: NCCL waits for the other members when it destroys a communicator, and some may be
        gone.
        """
        if self.device.type == "cuda":
            self.abort()
            return
        self._closed.set()
        self._backend = None

    def _lose(self) -> None:
        """Aborts the group because a collective on the stream takes too long."""
        self._problem = f"a member did not respond for {self._timeout_seconds:g} s"
        self.abort()

    def _lost(self, problem: str = "") -> MemberLost:
        reason = problem or self._problem
        return MemberLost(f"rank {self.rank} of {self.size}: a member of the group was lost ({reason})")

    def _run(self, collective: Callable[[Any], None]) -> None:
        """Puts a collective on the stream; aborts the group if that fails."""
        try:
            collective(self._open_backend())
        except MemberLost:
            raise
        except RuntimeError as error:
            self.abort()
            raise self._lost(_first_line(error)) from None

    def _broadcast(self, tensors: Sequence[tuple[int, Tensor]]) -> None:
        """Broadcasts tensors, each from the rank given with it, all at once, and waits for all.

        Drops every reference to the operations before it raises, because they would keep connections open.
        """
        if self.size == 1 or not any(tensor.numel() for _, tensor in tensors):
            return
        on_stream = self._on_stream
        if on_stream is not None:
            self._run(lambda backend: on_stream.broadcast(backend, tensors))
            self.finish()
            return
        deadline, problem, works = time.monotonic() + self._timeout_seconds, "", list[Any]()
        try:
            for source, tensor in tensors:
                options = BroadcastOptions()
                options.rootRank = source
                works.append(self._open_backend().broadcast([tensor], options))
            while works and not problem:
                problem = self._wait(works[0], deadline)
                del works[0]
        except RuntimeError as error:
            problem = _first_line(error)
        works.clear()
        if problem:
            self.abort()
            raise self._lost(problem)

    def _open_backend(self) -> Any:
        backend = self._backend
        if backend is None:
            raise MemberLost(f"rank {self.rank} of {self.size} has left its group; join a new one")
        return backend

    def _wait(self, work: Any, deadline: float) -> str:
        """Waits for an operation. Returns a problem found on this side, or ""; raises the error of the operation."""
        while not work.is_completed():
            if self._closed.is_set():
                return "aborted"
            if time.monotonic() > deadline:
                return f"a member did not respond for {self._timeout_seconds:g} s"
            # Also raised by a failed operation; the next call of is_completed shows that.
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=min(ABORT_SLICE_SECONDS, self._timeout_seconds)))
        work.wait()
        return "aborted" if self._closed.is_set() else ""


def _connect_gloo(store: PrefixStore, rank: int, size: int, device: torch.device, timeout: timedelta, host: str) -> Any:
    backend: Any = ProcessGroupGloo
    options = backend._Options()
    options._timeout = timeout
    options._threads = min(size, MAXIMUM_THREADS)
    # By default gloo binds to the address that the host name resolves to, which may be wrong in a container.
    options._devices = [backend.create_device(hostname=host)]
    return backend(store, rank, size, options)


def _connect_nccl(store: PrefixStore, rank: int, size: int, device: torch.device, timeout: timedelta, host: str) -> Any:
    """Connects NCCL without blocking, so that it can be aborted. Only Group enforces timeouts."""
    from torch.distributed import ProcessGroupNCCL  # not in builds without CUDA

    # Read when a group is created. By default torch's watchdog terminates the process on any error.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    # Read once in a process, with its first group.
    os.environ["TORCH_NCCL_NONBLOCKING_TIMEOUT"] = str(max(1, round(timeout.total_seconds())))
    options = ProcessGroupNCCL.Options()
    options.config.blocking = 0
    # The timeout of the watchdog, which must never expire before that of Group.
    options._timeout = timedelta(days=1)
    with torch.cuda.device(device):
        backend = ProcessGroupNCCL(store, rank, size, options)
        backend.eager_connect_single_device(device)
    return backend


def _abandon(held: list[Any]) -> None:
    """Aborts a backend and drops the only reference to it."""
    with suppress(RuntimeError):
        held[0].abort()
    held.clear()


def _mean_into(target: Tensor, gathered: Sequence[Tensor]) -> None:
    """Writes the mean of tensors of one shape into a contiguous tensor."""
    step = CACHED_ELEMENTS if target.is_cpu else max(1, target.numel())
    rows = [torch.split(row.flatten(), step) for row in gathered]
    for pieces in zip(torch.split(target.view(-1), step), *rows, strict=True):
        total = pieces[1].double()
        for piece in pieces[2:]:
            total += piece
        pieces[0].copy_(total.div_(len(gathered)))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". This is typically")[0]

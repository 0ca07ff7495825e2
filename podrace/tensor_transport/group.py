"""Owns collectives between processes whose membership changes: NCCL on GPUs, gloo on CPUs.

A group is never repaired. When a member is lost, all others hear of it within the deadline, drop the group and join a
new one under a fresh prefix of the same store; nobody ever waits for ever, and no process is ended by its collectives.
torch's default process group is not touched.
"""

import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from podrace.errors import InvalidArgument, Unavailable

ABORT_SLICE_SECONDS = 0.1
"""How long a verb waits before it looks whether somebody aborted."""
POLL_SECONDS = 0.0002
MAXIMUM_THREADS = 8
"""Of gloo, for one group; each waits for one member's broadcast."""
CACHED_ELEMENTS = 32_768
"""Summed at a time on a CPU, so that the sums in float64 never leave its cache: measured 7 times faster than whole."""


class MemberLost(Unavailable):
    """A member of the group died or fell silent; the group is of no more use, its survivors can form another."""


class GroupStore:
    """Where members of groups find each other; lives in one process, which has to outlive the groups.

    Attributes:
        address: `host:port`, for Group.join.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        """Listens on a free port.

        Args:
            host: Address of this machine that members can reach; nothing else is bound.

        Raises:
            InvalidArgument: It is none of this machine's addresses.
        """
        try:
            listener = socket.create_server((host, 0))
        except OSError as error:
            raise InvalidArgument(f"cannot listen on {host!r} for the members of groups: {error.strerror}") from None
        port = listener.getsockname()[1]
        self.address = f"{host}:{port}"
        # The store would bind to all addresses of the machine; a socket that is bound already is taken as it is.
        self._store: TCPStore | None = TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def close(self) -> None:
        """Stops listening; repeating is harmless."""
        self._store = None


class Group:
    """Collectives over a fixed set of processes.

    Every member calls the same verbs in the same order with tensors of the same shapes and dtypes. Whoever forms a
    group has to make sure of it: gloo ends a process that receives more than it has room for.

        group = Group.join(store_address, prefix, rank, size, device, timeout_seconds=10.0)
        try:
            group.mean_(gradient)
        except MemberLost:
            ...                            # whoever is left agrees on members and on a prefix never used before
            group = Group.join(store_address, another_prefix, rank, size, device, timeout_seconds=10.0)

    Every verb is a broadcast from each member, all at once, and arithmetic on this side in the order of the ranks: the
    results have the same bits on every member, whatever the backend does. That moves size x tensor to each where a
    reduction would move two tensors twice as wide: up to four members it is the shorter way as well.

    A verb that fails has changed nothing of the caller's. A group of one needs no store and no peers.

    Attributes:
        rank: Of this member.
        size: Members.
        device: Where the tensors must be.
    """

    def __init__(self, backend: Any, rank: int, size: int, device: torch.device, timeout_seconds: float) -> None:
        """Wraps a connected backend of torch; None for a group of one. Use `join`."""
        self.rank, self.size, self.device = rank, size, device
        self._backend, self._timeout_seconds = backend, timeout_seconds
        self._closed = threading.Event()
        self._buffers: dict[torch.dtype, Tensor] = {}

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
        """Meets the other members and connects to them.

        Args:
            store_address: Of a GroupStore.
            prefix: The same for all members and never used before.
            rank: 0 to size - 1, each once.
            size: Members.
            device: CPU: gloo. CUDA: NCCL.
            timeout_seconds: How long this may take, and each verb.
            host: Address of this machine that the other members can reach (gloo; NCCL chooses by itself).

        Raises:
            MemberLost: Not all came in time, or the store is gone.
        """
        device = torch.device(device)
        if size == 1:
            return cls(None, rank, size, device, timeout_seconds)
        connect = _connect_nccl if device.type == "cuda" else _connect_gloo
        try:
            server, _, port = store_address.rpartition(":")
            timeout = timedelta(seconds=timeout_seconds)
            store = PrefixStore(prefix, TCPStore(server, int(port), wait_for_workers=False, timeout=timeout))
            backend = connect(store, rank, size, device, timeout, host)
        except RuntimeError as error:
            raise MemberLost(
                f"group {prefix}: not all of the {size} members met at {store_address} within {timeout_seconds:g} s"
                f" ({_first_line(error)})"
            ) from None
        return cls(backend, rank, size, device, timeout_seconds)

    # --- verbs ------------------------------------------------------------------------------------------------

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """What every member gave, in the order of the ranks: size copies of one shape and dtype.

        Raises:
            MemberLost: A member is gone, or silent for longer than the timeout.
        """
        gathered = tensor.new_empty(self.size, *tensor.shape)
        self._exchange(tensor, gathered)
        return list(gathered)

    def mean_(self, tensor: Tensor) -> Tensor:
        """Replaces a tensor by its mean over the members, summed in float64 and rounded once. Raises as `gather`."""
        if self.size > 1:
            gathered = self._buffer(tensor).view(self.size, *tensor.shape)
            self._exchange(tensor, gathered)
            target = tensor if tensor.is_contiguous() else torch.empty_like(gathered[0])
            _mean_into(target, gathered)
            if target is not tensor:
                tensor.copy_(target)
        return tensor

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the members, in the tensor's dtype; floats are summed in float64. Raises as `gather`."""
        first, *others = self.gather(tensor)
        total = first.to(torch.float64 if tensor.is_floating_point() else torch.int64)
        for other in others:
            total += other
        return total.to(tensor.dtype)

    def maximum(self, tensor: Tensor) -> Tensor:
        """The largest over the members, elementwise. Raises as `gather`."""
        return torch.stack(list(self.gather(tensor))).amax(0)

    def broadcast(self, tensor: Tensor, source: int) -> Tensor:
        """What the member of rank `source` gave; the others give the same shape and dtype. Raises as `gather`."""
        received = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._broadcast([(source, received)])
        return received

    def broadcast_(self, tensors: Sequence[Tensor], source: int) -> None:
        """Overwrites contiguous tensors with those of the member of rank `source`.

        Raises:
            MemberLost: As `gather`; what the tensors hold is undefined then.
        """
        self._broadcast([(source, tensor.detach()) for tensor in tensors if tensor.numel()])

    def barrier(self) -> None:
        """Returns when all members have come here. Raises as `gather`."""
        self.gather(torch.zeros(1, device=self.device))

    def _exchange(self, tensor: Tensor, gathered: Tensor) -> None:
        """Fills [size, ...] with what every member gives."""
        gathered[self.rank].copy_(tensor.detach())
        # Straight into place: gloo's own gather makes a copy of everything, and starts with fresh pages each time.
        self._broadcast(list(enumerate(gathered)))

    def _buffer(self, tensor: Tensor) -> Tensor:
        """Memory for what all members give, used again and again: fresh pages cost more than the arithmetic."""
        wanted, held = self.size * tensor.numel(), self._buffers.get(tensor.dtype)
        if held is None or held.numel() < wanted:
            held = self._buffers[tensor.dtype] = tensor.new_empty(wanted)
        return held[:wanted]

    # --- the end ----------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Leaves without the others, from any thread: a verb under way here raises MemberLost at once, the others'
        as soon as the connections close, no later than their timeout. Repeating is harmless.
        """
        self._closed.set()
        # In a list, so that the thread drops the last reference.
        held, self._backend = [self._backend], None
        if held[0] is None:
            return
        # gloo ends an operation only at its own timeout, and its destructor waits for that: nobody else should.
        thread = threading.Thread(target=_abandon, args=(held,), name="group-abort", daemon=True)
        thread.start()
        if self.device.type == "cuda":
            # NCCL wants one communicator gone before the next one comes; its abort has been known to hang.
            thread.join(self._timeout_seconds)

    def close(self) -> None:
        """Leaves; to be called when no verb is under way anywhere."""
        self._closed.set()
        self._backend = None

    def _broadcast(self, tensors: Sequence[tuple[int, Tensor]]) -> None:
        """Sends tensors from their sources, each with its rank, to everybody, all at once, and waits for all.

        Drops every reference to what is under way before it raises: connections would stay open.
        """
        if self.size == 1 or not any(tensor.numel() for _, tensor in tensors):
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
            raise MemberLost(f"rank {self.rank} of {self.size}: a member of the group was lost ({problem})")

    def _open_backend(self) -> Any:
        backend = self._backend
        if backend is None:
            raise MemberLost(f"rank {self.rank} of {self.size} has left its group; join a new one")
        return backend

    def _wait(self, work: Any, deadline: float) -> str:
        """Returns what is wrong if that is found on this side; raises what the operation ended with."""
        while not work.is_completed():
            if self._closed.is_set():
                return "aborted"
            if time.monotonic() > deadline:
                return f"a member was silent for {self._timeout_seconds:g} s"
            self._pause(work)
        work.wait()
        # NCCL calls aborted operations successful.
        return "aborted" if self._closed.is_set() else ""

    def _pause(self, work: Any) -> None:
        if self.device.type == "cuda":
            # Waiting with a timeout would make NCCL abort at its end.
            time.sleep(POLL_SECONDS)
        else:
            # Also raised for an operation that failed; the caller finds that out.
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=min(ABORT_SLICE_SECONDS, self._timeout_seconds)))


def _connect_gloo(store: PrefixStore, rank: int, size: int, device: torch.device, timeout: timedelta, host: str) -> Any:
    backend: Any = ProcessGroupGloo
    options = backend._Options()
    options._timeout = timeout
    options._threads = min(size, MAXIMUM_THREADS)
    # By default gloo binds to what the host's name resolves to, which in a container may be anything.
    options._devices = [backend.create_device(hostname=host)]
    return backend(store, rank, size, options)


def _connect_nccl(store: PrefixStore, rank: int, size: int, device: torch.device, timeout: timedelta, host: str) -> Any:
    """Not blocking, so that it can be aborted; deadlines are kept by Group alone."""
    from torch.distributed import ProcessGroupNCCL  # not in builds without CUDA

    # Read when a group is made; by default torch's watchdog ends the process on any error.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    os.environ["TORCH_NCCL_NONBLOCKING_TIMEOUT"] = str(max(1, round(timeout.total_seconds())))
    options = ProcessGroupNCCL.Options()
    options.config.blocking = 0
    # The watchdog's own, which must never come first.
    options._timeout = timedelta(days=1)
    with torch.cuda.device(device):
        backend = ProcessGroupNCCL(store, rank, size, options)
        backend.eager_connect_single_device(device)
    return backend


def _abandon(held: list[Any]) -> None:
    """Ends a backend by dropping the only reference to it."""
    with suppress(RuntimeError):
        held[0].abort()
    held.clear()


def _mean_into(target: Tensor, gathered: Tensor) -> None:
    """Writes the mean over the first dimension of [size, ...] into a contiguous tensor."""
    step = CACHED_ELEMENTS if target.is_cpu else max(1, target.numel())
    rows = [torch.split(row.flatten(), step) for row in gathered]
    for pieces in zip(torch.split(target.view(-1), step), *rows, strict=True):
        total = pieces[1].double()
        for piece in pieces[2:]:
            total += piece
        pieces[0].copy_(total.div_(len(gathered)))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". This is typically")[0]

"""Implements the plane `group`: copies regions between two processes with collectives of a group of two.

Between GPUs the group uses NCCL, so that data moves from GPU to GPU, within a host or between hosts. Between CPUs it
uses gloo. Messages announce each transfer: the peer requests it, the owner confirms that it starts, and both call the
same collective. A failed transfer makes its group unusable; the next transfer joins a new group with a new prefix.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import grpc
import torch
from torch import Tensor

from podrace import rpc
from podrace.errors import NOT_OPEN, FailedPrecondition, InvalidArgument, ResourceExhausted
from podrace.tensor.v1 import tensor_pb2 as pb
from podrace.tensor.v1 import tensor_pb2_grpc as pb_grpc
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.copy_stream import waiting_for
from podrace.tensor_transport.group import Group
from podrace.tensor_transport.group_store import GroupStore
from podrace.tensor_transport.mirrors import MirrorPlane

SCHEME = "group"
OWNER, PEER = 0, 1
"""Ranks."""
JOIN_DEADLINE_SECONDS = 10.0
TRANSFER_DEADLINE_SECONDS = 60.0
TIMEOUT_SECONDS = 30.0
"""Time after which a peer that has not closed its connections counts as lost."""
MOST_JOINS = 256
"""Peers of one owner that may be joining at a time; each has a thread."""


@dataclass
class Link:
    """One process's side of a group of two."""

    prefix: str = ""
    """Name of the group; empty before the first join."""
    group: "asyncio.Future[Group] | None" = None
    """The group, once it is joined; None: not joined, or dropped."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a transfer, so that both ends call the collectives in the same order."""


class GroupPlane(MirrorPlane):
    """Regions that are copied to peers on other GPUs and hosts by collectives. See Plane for the methods.

    Attributes:
        host: Address of this machine that the other end can reach.
        timeout_seconds: Limit for joining, and for each collective. A lost end is detected then, or when its
            connections close.
    """

    def __init__(
        self,
        address: str = "",
        peer: str = "",
        device: torch.device | str = "cpu",
        *,
        host: str = "127.0.0.1",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Starts without regions and groups.

        Args:
            address: Address of the TransferService of this process; empty: it creates no regions.
            peer: Name of this process among the peers of an owner.
            device: Device of regions and mirrors.
            host: Address of this machine that the other end can reach.
            timeout_seconds: As the attribute.
        """
        super().__init__(SCHEME, address, device)
        self.host, self.timeout_seconds = host, timeout_seconds
        self._peer = peer
        self._links: dict[str, Link] = {}
        # Separate threads: joins that wait for a peer must not take those of other work.
        self._threads = ThreadPoolExecutor(MOST_JOINS, "join")
        self._leaving: list[threading.Thread] = []

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Receives tensors of other processes into their mirrors; raises as Plane.pull does."""
        for address, group in self.of_others(refs):
            views = self.open(group)
            request = pb.SendTensorsRequest(tensors=group)
            await self._move(address, "SendTensors", request, [views[ref.spec.name] for ref in group], OWNER)

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Sequence[Box]]) -> None:
        """Sends boxes of the mirrors back; raises as Plane.push does."""
        for address, group in self.of_others(refs):
            views = self.open(group)
            parts = [(ref, box) for ref in group for box in boxes[ref.spec.name]]
            wanted = [pb.TensorBox(tensor=ref, starts=box.starts, sizes=box.sizes) for ref, box in parts]
            data = [views[ref.spec.name][box.index].contiguous() for ref, box in parts]
            await self._move(address, "ReceiveTensors", pb.ReceiveTensorsRequest(boxes=wanted), data, PEER)

    async def _move(self, address: str, method: str, request: Any, tensors: Sequence[Tensor], source: int) -> None:
        """Makes one transfer. If the owner no longer has the group, joins a new one and tries once more."""
        link = self._links.setdefault(address, Link())
        async with link.turn:
            try:
                await self._move_once(link, address, method, request, tensors, source)
            except FailedPrecondition as error:
                if error.reason != NOT_OPEN:
                    raise
                self.leave(link)
                await self._move_once(link, address, method, request, tensors, source)

    async def _move_once(
        self, link: Link, address: str, method: str, request: Any, tensors: Sequence[Tensor], source: int
    ) -> None:
        stub: Any = pb_grpc.TransferServiceStub(self.channel(address))
        try:
            group = await self._joined(link, stub)
            request.prefix = link.prefix
            answers = rpc.stream(getattr(stub, method), request, deadline_seconds=TRANSFER_DEADLINE_SECONDS)
            await anext(answers)
            await self.broadcast(group, flat_bytes(tensors), source)
            async for _ in answers:
                pass
        except (FailedPrecondition, InvalidArgument):
            raise  # refused before the transfer started: the group is still usable
        except BaseException:
            self.leave(link)
            raise

    async def broadcast(self, group: Group, tensors: Sequence[Tensor], source: int) -> None:
        """Calls `broadcast_` of a group in a thread.

        On a GPU this happens on another stream, after what the current stream has been given so far. So the thread
        waits for the transfer alone, and a lost peer does not stop other work on the GPU.
        """
        if self.device.type != "cuda":
            await asyncio.to_thread(group.broadcast_, tensors, source)
            return
        ready = torch.cuda.current_stream(self.device).record_event()

        def transfer() -> None:
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            # A new thread starts with the first GPU. Leaving the stream alone would create a context on it.
            with torch.cuda.device(self.device), torch.cuda.stream(stream):
                stream.wait_event(ready)
                group.broadcast_(tensors, source)

        await asyncio.to_thread(transfer)

    async def finish(self) -> None:
        """Waits, in a thread, for what the current stream has been given so far: others may use another stream."""
        if self.device.type == "cuda":
            event = torch.cuda.current_stream(self.device).record_event()
            await asyncio.to_thread(waiting_for(event, self.device))

    async def _joined(self, link: Link, stub: Any) -> Group:
        if link.group is None:
            request = pb.JoinTransferRequest(peer=self._peer)
            answer = await rpc.call(stub.JoinTransfer, request, deadline_seconds=JOIN_DEADLINE_SECONDS)
            link.prefix = answer.prefix
            link.group = self.join(answer.store_address, answer.prefix, PEER)
        return await asyncio.shield(link.group)

    def join(self, store_address: str, prefix: str, rank: int) -> "asyncio.Future[Group]":
        """Joins a group of two in a separate thread, once the aborts of earlier groups have finished."""
        self._leaving = leaving = [thread for thread in self._leaving if thread.is_alive()]

        def join() -> Group:
            # NCCL requires that a communicator is gone before the next is created.
            for thread in leaving:
                thread.join()
            timeout = self.timeout_seconds
            return Group.join(store_address, prefix, rank, 2, self.device, timeout_seconds=timeout, host=self.host)

        return asyncio.get_running_loop().run_in_executor(self._threads, join)

    def leave(self, link: Link) -> None:
        """Leaves the group of a link, which may still be joining; a collective that is waiting in it fails."""
        group, link.group = link.group, None
        if group is None:
            return
        if group.done():
            self._abort(group)
        else:
            group.add_done_callback(self._abort)

    def _abort(self, joined: "asyncio.Future[Group]") -> None:
        if joined.cancelled() or joined.exception() is not None:
            return
        # In a thread: between GPUs this may take until the timeout, and the event loop renews leases meanwhile.
        thread = threading.Thread(target=joined.result().abort, name="leave", daemon=True)
        self._leaving.append(thread)
        thread.start()

    def close(self) -> None:
        """Closes regions, mirrors and channels, and leaves every group."""
        for link in self._links.values():
            self.leave(link)
        self._links.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)
        super().close()


class TransferServicer(pb_grpc.TransferServiceServicer):
    """Serves the regions of a GroupPlane."""

    def __init__(self, plane: GroupPlane) -> None:
        """Serves the regions of `plane`, which must have the address of this service."""
        self._plane = plane
        self._store: GroupStore | None = None
        self._links: dict[str, Link] = {}
        self._prefix_of: dict[str, str] = {}
        self._numbers = count()

    async def JoinTransfer(
        self, request: pb.JoinTransferRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.JoinTransferResponse:
        """Creates a group; see tensor.proto."""
        if not request.peer:
            raise InvalidArgument("peer is empty: set it to the name of the process that joins")
        if self._store is None:
            self._store = GroupStore(self._plane.host)
        before = self._links.pop(self._prefix_of.pop(request.peer, ""), None)
        if before:
            self._plane.leave(before)
        waiting = sum(link.group is not None and not link.group.done() for link in self._links.values())
        if waiting >= MOST_JOINS:
            raise ResourceExhausted(f"{waiting} peers have called JoinTransfer and have not joined yet; call later")
        prefix = self._prefix_of[request.peer] = f"transfer/{request.peer}/{next(self._numbers)}"
        self._links[prefix] = Link(prefix, self._plane.join(self._store.address, prefix, OWNER))
        return pb.JoinTransferResponse(store_address=self._store.address, prefix=prefix)

    async def SendTensors(
        self, request: pb.SendTensorsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.SendTensorsResponse]:
        """Sends tensors; see tensor.proto."""
        async with self._transfer(request.prefix) as group:
            views = self._plane.open_own(request.tensors)
            yield pb.SendTensorsResponse()
            await self._plane.broadcast(group, flat_bytes([views[ref.spec.name] for ref in request.tensors]), OWNER)
            # Raises if a region was handed out again, and possibly written, during the transfer.
            self._plane.open_own(request.tensors)

    async def ReceiveTensors(
        self, request: pb.ReceiveTensorsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ReceiveTensorsResponse]:
        """Receives boxes of tensors; see tensor.proto."""
        async with self._transfer(request.prefix) as group:
            # Received into other memory first: data for a region that was handed out again must not be written.
            received = [
                torch.empty_like(target, memory_format=torch.contiguous_format) for target in self._targets(request)
            ]
            yield pb.ReceiveTensorsResponse()
            await self._plane.broadcast(group, flat_bytes(received), PEER)
            for target, data in zip(self._targets(request), received, strict=True):
                target.copy_(data)
            await self._plane.finish()

    def close(self) -> None:
        """Leaves every group."""
        for link in self._links.values():
            self._plane.leave(link)
        self._links.clear()
        if self._store:
            self._store.close()

    @asynccontextmanager
    async def _transfer(self, prefix: str) -> AsyncIterator[Group]:
        """Yields the group for one transfer; leaves it if the transfer fails."""
        link = self._links.get(prefix) or Link()
        async with link.turn:
            if link.group is None:
                # Never joined, or left while this transfer waited for its turn.
                raise FailedPrecondition(f"group {prefix!r} does not exist in this process; join one", reason=NOT_OPEN)
            try:
                yield await asyncio.shield(link.group)
            except (FailedPrecondition, InvalidArgument):
                raise  # refused before the transfer started, or after it was complete
            except BaseException:
                self._links.pop(prefix, None)
                self._plane.leave(link)
                raise

    def _targets(self, request: pb.ReceiveTensorsRequest) -> list[Tensor]:
        """Returns views of the boxes to write; raises InvalidArgument if one does not fit its tensor."""
        # A tensor may have several boxes.
        refs = {part.tensor.SerializeToString(deterministic=True): part.tensor for part in request.boxes}
        views = self._plane.open_own(list(refs.values()))
        targets = []
        for part in request.boxes:
            view, box = views[part.tensor.spec.name], Box(tuple(part.starts), tuple(part.sizes))
            if not box.fits(view.shape):
                raise InvalidArgument(
                    f"a box of {list(box.sizes)} elements starting at {list(box.starts)} does not fit tensor"
                    f" {part.tensor.spec.name!r} of {list(view.shape)}"
                )
            targets.append(view[box.index])
        return targets


def flat_bytes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views contiguous tensors of any element type as uint8 [size]; leaves out empty ones."""
    return [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]

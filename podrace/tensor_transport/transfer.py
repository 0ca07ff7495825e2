"""Owns the plane `group`: regions of one process, copied to and from peers by a group of the two.

Between GPUs the group is NCCL's, so that bytes go from GPU to GPU, within a host or between hosts; between CPUs it is
gloo's. Messages say what moves next: the peer asks, the owner says that it begins, and both call the same collective.
A transfer that fails takes its group with it; the next one begins with a new group under a prefix never used before.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import grpc
import torch
from torch import Tensor

from podrace import rpc
from podrace.errors import NOT_OPEN, FailedPrecondition, InvalidArgument
from podrace.tensor.v1 import tensor_pb2 as pb
from podrace.tensor.v1 import tensor_pb2_grpc as pb_grpc
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.group import Group, GroupStore
from podrace.tensor_transport.mirrors import MirrorPlane

SCHEME = "group"
OWNER, PEER = 0, 1
"""Ranks."""
JOIN_DEADLINE_SECONDS = 10.0
TRANSFER_DEADLINE_SECONDS = 60.0
TIMEOUT_SECONDS = 30.0
"""By when a lost end is noticed that did not even close its connections."""


@dataclass
class Link:
    """A group of two as one of them sees it."""

    prefix: str = ""
    """Names the group; empty before it was joined."""
    group: "asyncio.Future[Group] | None" = None
    """Joined, or about to be."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a transfer: both ends call the collectives in one order."""

    def drop(self) -> None:
        """Gives the group up; whoever waits in it is released."""
        group, self.group = self.group, None
        if group is None:
            return
        group.add_done_callback(_abort)


def _abort(joined: "asyncio.Future[Group]") -> None:
    if not joined.cancelled() and joined.exception() is None:
        joined.result().abort()


class GroupPlane(MirrorPlane):
    """Regions that peers on other GPUs and hosts work on by collectives. See Plane for the verbs.

    Attributes:
        host: Address of this machine that the other end can reach.
        timeout_seconds: For joining, and for each collective: a lost end is noticed then, or as soon as it closes its
            connections.
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
        """Begins without regions and groups.

        Args:
            address: Where the TransferService of this process answers; empty: nothing is created here.
            peer: Names this process among those that open what another owns.
            device: Where regions and mirrors are.
            host: Address of this machine that the other end can reach.
            timeout_seconds: As the attribute.
        """
        super().__init__(SCHEME, address, device)
        self.host, self.timeout_seconds = host, timeout_seconds
        self._peer = peer
        self._links: dict[str, Link] = {}

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Receives tensors of other processes into their mirrors; raises as Plane.pull does."""
        for address, group in self.of_others(refs):
            views = self.open(group)
            request = pb.SendTensorsRequest(tensors=group)
            await self._move(address, "SendTensors", request, [views[ref.spec.name] for ref in group], OWNER)

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Box]) -> None:
        """Sends boxes of the mirrors back; raises as Plane.push does."""
        for address, group in self.of_others(refs):
            views = self.open(group)
            parts = [(ref, boxes[ref.spec.name]) for ref in group]
            wanted = [pb.TensorBox(tensor=ref, starts=box.starts, sizes=box.sizes) for ref, box in parts]
            data = [views[ref.spec.name][box.index].contiguous() for ref, box in parts]
            await self._move(address, "ReceiveTensors", pb.ReceiveTensorsRequest(boxes=wanted), data, PEER)

    async def _move(self, address: str, method: str, request: Any, tensors: Sequence[Tensor], source: int) -> None:
        """Makes one transfer; an owner that began anew is joined anew, once."""
        link = self._links.setdefault(address, Link())
        async with link.turn:
            try:
                await self._move_once(link, address, method, request, tensors, source)
            except FailedPrecondition as error:
                if error.reason != NOT_OPEN:
                    raise
                link.drop()
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
            await asyncio.to_thread(group.broadcast_, flat_bytes(tensors), source)
            async for _ in answers:
                pass
        except (FailedPrecondition, InvalidArgument):
            raise  # refused before anything moved: the group is as good as before
        except BaseException:
            link.drop()
            raise

    async def _joined(self, link: Link, stub: Any) -> Group:
        if link.group is None:
            request = pb.JoinTransferRequest(peer=self._peer)
            answer = await rpc.call(stub.JoinTransfer, request, deadline_seconds=JOIN_DEADLINE_SECONDS)
            link.prefix = answer.prefix
            link.group = self.join(answer.store_address, answer.prefix, PEER)
        return await asyncio.shield(link.group)

    def join(self, store_address: str, prefix: str, rank: int) -> "asyncio.Future[Group]":
        """Joins a group of two in a thread of its own."""
        work = asyncio.to_thread(
            Group.join,
            store_address,
            prefix,
            rank,
            2,
            self.device,
            timeout_seconds=self.timeout_seconds,
            host=self.host,
        )
        return asyncio.ensure_future(work)

    def close(self) -> None:
        """As MirrorPlane.close; leaves every group."""
        for link in self._links.values():
            link.drop()
        self._links.clear()
        super().close()


class TransferServicer(pb_grpc.TransferServiceServicer):
    """Serves the regions of a GroupPlane."""

    def __init__(self, plane: GroupPlane) -> None:
        """Serves what `plane` has created, at the address it was given."""
        self._plane = plane
        self._store: GroupStore | None = None
        self._links: dict[str, Link] = {}
        self._prefix_of: dict[str, str] = {}
        self._numbers = count()

    async def JoinTransfer(
        self, request: pb.JoinTransferRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.JoinTransferResponse:
        """Begins a group; see the contract."""
        if not request.peer:
            raise InvalidArgument("peer is empty: name the process that joins")
        if self._store is None:
            self._store = GroupStore(self._plane.host)
        before = self._links.pop(self._prefix_of.pop(request.peer, ""), None)
        if before:
            before.drop()
        prefix = self._prefix_of[request.peer] = f"transfer/{request.peer}/{next(self._numbers)}"
        self._links[prefix] = Link(prefix, self._plane.join(self._store.address, prefix, OWNER))
        return pb.JoinTransferResponse(store_address=self._store.address, prefix=prefix)

    async def SendTensors(
        self, request: pb.SendTensorsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.SendTensorsResponse]:
        """Sends; see the contract."""
        async with self._transfer(request.prefix) as group:
            views = self._plane.open_own(request.tensors)
            yield pb.SendTensorsResponse()
            await asyncio.to_thread(
                group.broadcast_, flat_bytes([views[ref.spec.name] for ref in request.tensors]), OWNER
            )
            # It may have been handed out anew, and written, meanwhile: what was sent is void then.
            self._plane.open_own(request.tensors)

    async def ReceiveTensors(
        self, request: pb.ReceiveTensorsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ReceiveTensorsResponse]:
        """Receives; see the contract."""
        async with self._transfer(request.prefix) as group:
            # Aside first: what arrives for memory that was handed out anew meanwhile must not be written.
            aside = [
                torch.empty_like(target, memory_format=torch.contiguous_format) for target in self._targets(request)
            ]
            yield pb.ReceiveTensorsResponse()
            await asyncio.to_thread(group.broadcast_, flat_bytes(aside), PEER)
            for target, received in zip(self._targets(request), aside, strict=True):
                target.copy_(received)
            self._finish()

    def close(self) -> None:
        """Leaves every group."""
        for link in self._links.values():
            link.drop()
        self._links.clear()
        if self._store:
            self._store.close()

    @asynccontextmanager
    async def _transfer(self, prefix: str) -> AsyncIterator[Group]:
        """Lends the group for one transfer; gives it up when that fails."""
        link = self._links.get(prefix) or Link()
        async with link.turn:
            if link.group is None:
                # Never there, or given up while this transfer waited for its turn.
                raise FailedPrecondition(f"there is no group {prefix!r} here; join one", reason=NOT_OPEN)
            try:
                yield await asyncio.shield(link.group)
            except (FailedPrecondition, InvalidArgument):
                raise  # refused before anything moved, or moved whole
            except BaseException:
                self._links.pop(prefix, None)
                link.drop()
                raise

    def _targets(self, request: pb.ReceiveTensorsRequest) -> list[Tensor]:
        """Where the boxes go; raises InvalidArgument where one does not fit its tensor."""
        views = self._plane.open_own([box.tensor for box in request.boxes])
        targets = []
        for part in request.boxes:
            view, box = views[part.tensor.spec.name], Box(tuple(part.starts), tuple(part.sizes))
            if not box.fits(view.shape):
                raise InvalidArgument(
                    f"a box of {list(box.sizes)} elements from {list(box.starts)} on does not fit tensor"
                    f" {part.tensor.spec.name!r} of {list(view.shape)}"
                )
            targets.append(view[box.index])
        return targets

    def _finish(self) -> None:
        """Whoever is told that all is written may read it on another stream."""
        if self._plane.device.type == "cuda":
            torch.cuda.current_stream(self._plane.device).synchronize()


def flat_bytes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views contiguous tensors as uint8 [size], of any element type; empty ones are left out, for nothing moves."""
    return [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]

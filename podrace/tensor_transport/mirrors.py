"""Keeps the regions of a process and the mirrors of other processes' regions, for the planes `grpc` and `group`.

The two processes share no memory. The owner holds the region. A peer keeps a copy, the mirror: it pulls what it will
read into the mirror and pushes what it has written from the mirror.
"""

from collections.abc import Sequence
from itertools import groupby

import grpc
import torch
from torch import Tensor

from podrace import rpc
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.codec import size_bytes
from podrace.tensor_transport.layout import GENERATION_WORD, check_distinct, open_tensors
from podrace.tensor_transport.memory import Block, MemoryPlane
from podrace.tensor_transport.plane import Region


class MirrorPlane:
    """A plane without `pull` and `push`, which subclasses implement.

    Attributes:
        scheme: See Plane.
        address: Address at which this process serves its regions; empty: it creates none.
        device: Device of regions and mirrors.
    """

    copies = True

    def __init__(self, scheme: str, address: str, device: torch.device | str = "cpu") -> None:
        """Starts without regions and connections."""
        self.scheme, self.address, self.device = scheme, address, torch.device(device)
        self._own = MemoryPlane(f"{scheme}:{address}/", device)
        self._mirrors: dict[str, Block] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}

    def serve_at(self, address: str) -> None:
        """Sets the address at which this process serves its regions; must precede the first `create`."""
        self.address = address
        self._own = MemoryPlane(f"{self.scheme}:{address}/", self.device)

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates memory for tensors; raises as Plane.create does."""
        if not self.address:
            raise FailedPrecondition(
                f"plane {self.scheme!r} cannot create regions in a process that does not serve them"
            )
        return self._own.create(name, specs)

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views tensors of this process in place and others in their mirrors; raises as Plane.open does.

        Whether a region of another process still exists, and its generation, is checked by `pull` and `push`.
        """
        check_distinct(refs)
        own = [ref for ref in refs if self.address_of(ref) == self.address]
        others = [ref for ref in refs if self.address_of(ref) != self.address]
        for plane_uri, group in groupby(sorted(others, key=_uri), key=_uri):
            self._reflect(plane_uri, list(group))
        mirrored = open_tensors(
            others,
            lambda uri: self._mirrors[uri].memory,
            lambda uri: self._mirrors[uri].words,
            # The owner may keep its header, if it has one, outside of the block.
            first_byte=0,
        )
        return {**self._own.open(own), **mirrored}

    def open_own(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views tensors that a peer referenced.

        Raises:
            InvalidArgument: One is not of this process, or the reference has another shape, type or place.
            FailedPrecondition: As Plane.open.
        """
        for ref in refs:
            if self.address_of(ref) != self.address:
                elsewhere = self.address_of(ref) or "no address"
                raise InvalidArgument(f"{ref.plane_uri} is not served here, but at {elsewhere}")
        views = self._own.open(refs)
        for ref in refs:
            name, view = ref.spec.name, views[ref.spec.name]
            own = self._own.own(ref.plane_uri, name)
            if own is None or (view.shape, view.dtype, view.data_ptr()) != (own.shape, own.dtype, own.data_ptr()):
                found = "missing" if own is None else f"{list(own.shape)} of {own.dtype}"
                raise InvalidArgument(
                    f"tensor {name!r} of {ref.plane_uri} is {found}, the reference says {list(view.shape)} of"
                    f" {view.dtype} from byte {ref.offset_bytes} on"
                )
        return views

    def _reflect(self, plane_uri: str, refs: Sequence[TensorRef]) -> None:
        """Creates or enlarges a mirror and sets its generation to that of the references."""
        end = max(ref.offset_bytes + size_bytes(ref.spec) for ref in refs)
        mirror = self._mirrors.get(plane_uri)
        if mirror is None or mirror.memory.numel() < end:
            mirror = self._mirrors[plane_uri] = Block(max(end, 1), self.device, header_apart=True)
        mirror.words[GENERATION_WORD] = refs[0].generation

    def forget(self, plane_uri: str) -> None:
        """Drops a mirror."""
        self._mirrors.pop(plane_uri, None)

    def close(self) -> None:
        """Closes the regions created here and drops all mirrors and channels."""
        self._own.close()
        self._mirrors.clear()
        self._channels.clear()

    def of_others(self, refs: Sequence[TensorRef]) -> list[tuple[str, list[TensorRef]]]:
        """Returns the tensors of other processes, grouped by the address of their owner.

        Raises:
            InvalidArgument: A plane URI is malformed.
        """
        by_address = groupby(sorted(refs, key=self.address_of), key=self.address_of)
        return [(address, list(group)) for address, group in by_address if address != self.address]

    def address_of(self, ref: TensorRef) -> str:
        """Returns the address of the owner of a tensor.

        Raises:
            InvalidArgument: The plane URI is malformed.
        """
        scheme, _, rest = ref.plane_uri.partition(":")
        address, separator, name = rest.rpartition("/")
        if scheme != self.scheme or not separator or not name:
            raise InvalidArgument(f"plane URI {ref.plane_uri!r} must be '{self.scheme}:', an address, '/' and a name")
        return address

    def channel(self, address: str) -> grpc.aio.Channel:
        """Returns the channel to an owner; it is kept."""
        # Without retries: a repeated write could arrive after the owner has handed out the slot again.
        if address not in self._channels:
            self._channels[address] = rpc.connect(address)
        return self._channels[address]


def _uri(ref: TensorRef) -> str:
    return ref.plane_uri

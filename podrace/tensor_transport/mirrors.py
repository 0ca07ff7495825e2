"""Owns what the planes `grpc` and `group` share: regions of one process, and mirrors of them in others.

Two processes that share no memory see one region all the same: its owner holds it, a peer keeps a mirror of it, pulls
into the mirror what it will read and pushes from it what it has written.
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
    """All of a plane but `pull` and `push`, which are the ways to copy.

    Attributes:
        scheme: See Plane.
        address: Where this process serves its regions; empty: nothing is created here.
        device: Where regions and mirrors are.
    """

    def __init__(self, scheme: str, address: str, device: torch.device | str = "cpu") -> None:
        """Begins without regions; dials nobody yet."""
        self.scheme, self.address, self.device = scheme, address, torch.device(device)
        self._own = MemoryPlane(f"{scheme}:{address}/", device)
        self._mirrors: dict[str, Block] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}

    def serve_at(self, address: str) -> None:
        """Says where this process serves its regions, where that is found out later; before the first is created."""
        self.address = address
        self._own = MemoryPlane(f"{self.scheme}:{address}/", self.device)

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates memory for some tensors; raises as Plane.create does."""
        if not self.address:
            raise FailedPrecondition(f"plane {self.scheme!r} owns nothing in a process that does not serve it")
        return self._own.create(name, specs)

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views the tensors: in place where they are ours, else in the mirror; raises as Plane.open does.

        That a region of another process is still there, and of which generation, `pull` and `push` find out.
        """
        check_distinct(refs)
        own = [ref for ref in refs if self.address_of(ref) == self.address]
        others = [ref for ref in refs if self.address_of(ref) != self.address]
        for plane_uri, group in groupby(sorted(others, key=_uri), key=_uri):
            self._reflect(plane_uri, list(group))
        mirrored = open_tensors(others, lambda uri: self._mirrors[uri].memory, lambda uri: self._mirrors[uri].words)
        return {**self._own.open(own), **mirrored}

    def open_own(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views tensors that a peer named and that must be ours; raises as Plane.open does."""
        for ref in refs:
            if self.address_of(ref) != self.address:
                elsewhere = self.address_of(ref) or "no address at all"
                raise InvalidArgument(f"{ref.plane_uri} is not served here, but at {elsewhere}")
        return self._own.open(refs)

    def _reflect(self, plane_uri: str, refs: Sequence[TensorRef]) -> None:
        """Makes a mirror large enough, and of the generation of the references: only they can be checked here."""
        end = max(ref.offset_bytes + size_bytes(ref.spec) for ref in refs)
        mirror = self._mirrors.get(plane_uri)
        if mirror is None or mirror.memory.numel() < end:
            mirror = self._mirrors[plane_uri] = Block(end, self.device)
        mirror.words[GENERATION_WORD] = refs[0].generation

    def forget(self, plane_uri: str) -> None:
        """Drops a mirror."""
        self._mirrors.pop(plane_uri, None)

    def close(self) -> None:
        """Closes the regions created here, drops all mirrors, and hangs up."""
        self._own.close()
        self._mirrors.clear()
        self._channels.clear()

    def of_others(self, refs: Sequence[TensorRef]) -> list[tuple[str, list[TensorRef]]]:
        """The tensors that are not ours, by the address of their owner.

        Raises:
            InvalidArgument: A plane URI is malformed.
        """
        by_address = groupby(sorted(refs, key=self.address_of), key=self.address_of)
        return [(address, list(group)) for address, group in by_address if address != self.address]

    def address_of(self, ref: TensorRef) -> str:
        """Where the owner of a tensor answers.

        Raises:
            InvalidArgument: The plane URI is malformed.
        """
        scheme, _, rest = ref.plane_uri.partition(":")
        address, separator, name = rest.rpartition("/")
        if scheme != self.scheme or not separator or not name:
            raise InvalidArgument(f"plane URI {ref.plane_uri!r} must be '{self.scheme}:', an address, '/' and a name")
        return address

    def channel(self, address: str) -> grpc.aio.Channel:
        """To an owner, kept."""
        # Without retries: whoever hands a slot out anew after a failure must not meet a write of before.
        if address not in self._channels:
            self._channels[address] = rpc.connect(address)
        return self._channels[address]


def _uri(ref: TensorRef) -> str:
    return ref.plane_uri

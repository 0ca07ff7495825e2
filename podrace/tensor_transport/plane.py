"""Owns the interface of a plane and the set of planes a process offers; knows no particular one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from podrace.errors import FailedPrecondition
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.layout import GENERATION_WORD, check_distinct, header, place, view


class Region(Mapping[str, Tensor]):
    """Memory as its owner sees it: tensors by name, the references to them, and the generation.

    One region is one slot: it is handed out and taken back as a whole. Fresh memory reads as zeros.

    Attributes:
        plane_uri: Names the region to the peers.
    """

    def __init__(
        self,
        plane_uri: str,
        memory: Tensor,
        specs: Sequence[TensorSpec],
        release: Callable[[], None],
        words: Tensor | None = None,
    ) -> None:
        """Cuts a block into tensors.

        Args:
            plane_uri: Names the region to the peers.
            memory: uint8 [size] with its header written.
            specs: What lies there.
            release: Called once, at close.
            words: The header, int64 [8], where it does not lie at the beginning of the block.
        """
        self.plane_uri = plane_uri
        self._specs = list(specs)
        self._offsets, _ = place(specs)
        self._views = {
            spec.name: view(memory, offset, spec) for spec, offset in zip(self._specs, self._offsets, strict=True)
        }
        self._header: Tensor | None = header(memory) if words is None else words
        self._release = release

    def __getitem__(self, name: str) -> Tensor:
        """Views a tensor in place."""
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        """Goes through the names in the order of the specifications."""
        return iter(self._views)

    def __len__(self) -> int:
        """Counts the tensors."""
        return len(self._views)

    @property
    def generation(self) -> int:
        """The generation that references of now carry.

        Raises:
            FailedPrecondition: The region is closed.
        """
        return int(self._open_header()[GENERATION_WORD])

    def refs(self) -> list[TensorRef]:
        """Returns a reference to each tensor, of the present generation.

        Raises:
            FailedPrecondition: The region is closed.
        """
        generation = self.generation
        return [
            TensorRef(plane_uri=self.plane_uri, offset_bytes=offset, spec=spec, generation=generation)
            for spec, offset in zip(self._specs, self._offsets, strict=True)
        ]

    def renew(self) -> int:
        """Raises the generation, so that references given before are refused, and returns it.

        Raises:
            FailedPrecondition: The region is closed.
        """
        self._open_header()[GENERATION_WORD] += 1
        return self.generation

    def close(self) -> None:
        """Gives the memory up; peers can no longer open it; it is freed when nobody views it. Repeating is harmless."""
        if self._header is not None:
            self._header = None
            self._views.clear()
            self._release()

    def _open_header(self) -> Tensor:
        if self._header is None:
            raise FailedPrecondition(f"region {self.plane_uri} is closed")
        return self._header


class Plane(Protocol):
    """A way for tensors to travel. The owner allocates and hands out, the peer opens and works in place.

    The owner, one region a slot:

        region = plane.create("rollout_0", specs)
        while training:
            region.renew()
            await worker.CollectRollout(slot=region.refs())  # the slot is the worker's until the reply
            update(region["observation"], region["action"])
        region.close()

    The peer:

        await plane.pull(request.policy)                     # before what the owner wrote is read
        policy.load(plane.open(request.policy)["policy"])
        tensors = plane.open(request.slot)
        tensors["observation"][step] = observation
        await plane.push(request.slot, boxes)                # before the reply, which hands the slot back
        plane.forget(plane_uri)                              # when the slot will not come again

    Where both ends see one memory, pull and push do nothing and nothing is copied. Nothing is locked: whoever has no
    message that gives it the slot must not touch the views.
    """

    @property
    def scheme(self) -> str:
        """What a plane URI begins with, and the name in settings and metrics."""
        ...

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates memory for some tensors; its pages come into being when they are first touched.

        Args:
            name: Letters, digits, `_` and `.`; free on this plane.
            specs: What lies there, of distinct names.

        Raises:
            AlreadyExists: A region of that name is there.
            InvalidArgument: The name or a specification is malformed.
            ResourceExhausted: There is no room.
        """
        ...

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views the tensors in place, by name; mappings are kept, so that opening again is cheap.

        Raises:
            FailedPrecondition: The memory is not there, is no region, or has been handed out anew since.
            InvalidArgument: A reference is malformed.
        """
        ...

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Makes the views of some tensors what their owner sees.

        Raises:
            FailedPrecondition: The memory is not there, or has been handed out anew since.
            DataLoss: What arrived is damaged.
            Unavailable, DeadlineExceeded: The owner does not answer.
        """
        ...

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Box]) -> None:
        """Makes what was written into the views seen by their owner.

        Args:
            refs: As they were opened.
            boxes: The part of each that was written, by name.

        Raises:
            FailedPrecondition, DataLoss, Unavailable, DeadlineExceeded: As `pull`; the slot is lost.
        """
        ...

    def forget(self, plane_uri: str) -> None:
        """Drops what `open` kept of a region; unknown regions are ignored. Views in use stay valid."""
        ...

    def close(self) -> None:
        """Closes the regions created here and forgets all others."""
        ...


class Planes:
    """The planes of one process; a reference is opened by the plane its URI names."""

    def __init__(self, *planes: Plane) -> None:
        """Offers some planes of distinct schemes."""
        self._planes = {plane.scheme: plane for plane in planes}

    def require(self, scheme: str) -> Plane:
        """Returns the plane that was asked for; there is no silent second choice.

        Raises:
            FailedPrecondition: This process does not offer it.
        """
        if scheme not in self._planes:
            offered = ", ".join(sorted(self._planes))
            raise FailedPrecondition(f"plane {scheme!r} is required, this process offers only: {offered}")
        return self._planes[scheme]

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views tensors that may lie on several planes; raises as Plane.open and `require` do."""
        check_distinct(refs)
        tensors: dict[str, Tensor] = {}
        for plane, group in self._by_plane(refs):
            tensors.update(plane.open(group))
        return tensors

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Makes the views what their owners see; raises as Plane.pull and `require` do."""
        for plane, group in self._by_plane(refs):
            await plane.pull(group)

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Box]) -> None:
        """Makes what was written seen by the owners; raises as Plane.push and `require` do."""
        for plane, group in self._by_plane(refs):
            await plane.push(group, boxes)

    def _by_plane(self, refs: Sequence[TensorRef]) -> list[tuple[Plane, list[TensorRef]]]:
        by_scheme: dict[str, list[TensorRef]] = {}
        for ref in refs:
            by_scheme.setdefault(ref.plane_uri.partition(":")[0], []).append(ref)
        return [(self.require(scheme), group) for scheme, group in by_scheme.items()]

    def forget(self, plane_uri: str) -> None:
        """Drops what `open` kept of a region; unknown regions, and planes not offered here, are ignored."""
        plane = self._planes.get(plane_uri.partition(":")[0])
        if plane:
            plane.forget(plane_uri)

    def close(self) -> None:
        """Closes every plane."""
        for plane in self._planes.values():
            plane.close()

"""Defines the interface of a plane and the set of planes that a process offers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from podrace.errors import FailedPrecondition
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.layout import GENERATION_WORD, check_distinct, header, place, view


class Region(Mapping[str, Tensor]):
    """Memory of an owner: tensors by name, references to them, and a generation.

    One region is one slot: it is handed out and handed back as a whole. New memory is filled with zeros.

    Attributes:
        plane_uri: Names the region for the peers.
    """

    def __init__(
        self,
        plane_uri: str,
        memory: Tensor,
        specs: Sequence[TensorSpec],
        release: Callable[[], None],
        words: Tensor | None = None,
    ) -> None:
        """Divides a block into tensors.

        Args:
            plane_uri: Names the region for the peers.
            memory: The block, uint8 [size], with its header written.
            specs: The tensors in the block.
            release: Called once, by `close`.
            words: The header, int64 [8], if it is not at the start of the block.
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
        """Iterates over the names in the order of the specifications."""
        return iter(self._views)

    def __len__(self) -> int:
        """Counts the tensors."""
        return len(self._views)

    @property
    def generation(self) -> int:
        """The present generation, which new references carry.

        Raises:
            FailedPrecondition: The region is closed.
        """
        return int(self._open_header()[GENERATION_WORD])

    def refs(self) -> list[TensorRef]:
        """Returns a reference to each tensor, with the present generation.

        Raises:
            FailedPrecondition: The region is closed.
        """
        generation = self.generation
        return [
            TensorRef(plane_uri=self.plane_uri, offset_bytes=offset, spec=spec, generation=generation)
            for spec, offset in zip(self._specs, self._offsets, strict=True)
        ]

    def renew(self) -> int:
        """Increments the generation, so that older references are refused, and returns it.

        Raises:
            FailedPrecondition: The region is closed.
        """
        self._open_header()[GENERATION_WORD] += 1
        return self.generation

    def close(self) -> None:
        """Releases the memory: peers can no longer open it, and it is freed with its last view. Idempotent."""
        if self._header is not None:
            self._header = None
            self._views.clear()
            self._release()

    def _open_header(self) -> Tensor:
        if self._header is None:
            raise FailedPrecondition(f"region {self.plane_uri} is closed")
        return self._header


class Plane(Protocol):
    """Transfers tensors between two processes. The owner allocates and hands out slots, the peer works on them.

    The owner, with one region per slot:

        region = plane.create("rollout_0", specs)
        while training:
            region.renew()
            await worker.CollectRollout(slot=region.refs())  # the slot belongs to the worker until the reply
            update(region["observation"], region["action"])
        region.close()

    The peer:

        await plane.pull(request.policy)                     # before reading what the owner wrote
        policy.load(plane.open(request.policy)["policy"])
        tensors = plane.open(request.slot)
        tensors["observation"][step] = observation
        await plane.push(request.slot, boxes)                # before the reply, which returns the slot
        plane.forget(plane_uri)                              # when the slot is no longer used

    If both ends share memory, `pull` and `push` do nothing and nothing is copied. There are no locks: a process must
    not access the views unless a message has given it the slot.
    """

    @property
    def scheme(self) -> str:
        """Scheme of the plane URIs, and name of the plane in settings and metrics."""
        ...

    @property
    def copies(self) -> bool:
        """Whether the two ends share no memory, so that `pull` and `push` copy."""
        ...

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates memory for tensors; its pages are allocated when they are first accessed.

        Args:
            name: Letters, digits, `_` and `.`; not in use on this plane.
            specs: The tensors, with distinct names.

        Raises:
            AlreadyExists: A region with this name exists.
            InvalidArgument: The name or a specification is malformed.
            ResourceExhausted: There is not enough memory.
            FailedPrecondition, Unimplemented: The memory of this machine cannot be shared with other processes.
        """
        ...

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Returns views of the tensors by name; mappings are kept, so that opening again is cheap.

        Raises:
            FailedPrecondition: The memory does not exist, is not a region, or was handed out again since.
            InvalidArgument: A reference is malformed.
        """
        ...

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Updates the views of tensors to the content that their owner wrote.

        Raises:
            FailedPrecondition: The memory does not exist, or was handed out again since.
            DataLoss: The received data is damaged.
            Unavailable, DeadlineExceeded: The owner does not answer.
        """
        ...

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Sequence[Box]]) -> None:
        """Transfers what was written into the views to their owner.

        Args:
            refs: The references that were opened.
            boxes: What was written of each tensor, by name: boxes that do not overlap.

        Raises:
            FailedPrecondition, DataLoss, Unavailable, DeadlineExceeded: As `pull`; the slot is lost.
        """
        ...

    def forget(self, plane_uri: str) -> None:
        """Drops the mapping of a region that `open` kept; unknown regions are ignored. Views in use stay valid."""
        ...

    def close(self) -> None:
        """Closes the regions created here and drops the mappings of all others."""
        ...


class Planes:
    """The planes of one process. A reference is opened by the plane that its URI names."""

    def __init__(self, *planes: Plane) -> None:
        """Offers planes with distinct schemes."""
        self._planes = {plane.scheme: plane for plane in planes}

    def require(self, scheme: str) -> Plane:
        """Returns the plane with a scheme; never another one.

        Raises:
            FailedPrecondition: This process does not offer it.
        """
        if scheme not in self._planes:
            offered = ", ".join(sorted(self._planes))
            raise FailedPrecondition(f"plane {scheme!r} is required, this process offers only: {offered}")
        return self._planes[scheme]

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views tensors that may be on several planes; raises as Plane.open and `require` do."""
        check_distinct(refs)
        tensors: dict[str, Tensor] = {}
        for plane, group in self._by_plane(refs):
            tensors.update(plane.open(group))
        return tensors

    def copies(self, refs: Sequence[TensorRef]) -> bool:
        """Whether `push` copies what was written into these tensors; raises as `require` does."""
        return any(plane.copies for plane, _ in self._by_plane(refs))

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Updates the views to what their owners wrote; raises as Plane.pull and `require` do."""
        for plane, group in self._by_plane(refs):
            await plane.pull(group)

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Sequence[Box]]) -> None:
        """Transfers what was written to the owners; raises as Plane.push and `require` do."""
        for plane, group in self._by_plane(refs):
            await plane.push(group, boxes)

    def _by_plane(self, refs: Sequence[TensorRef]) -> list[tuple[Plane, list[TensorRef]]]:
        by_scheme: dict[str, list[TensorRef]] = {}
        for ref in refs:
            by_scheme.setdefault(ref.plane_uri.partition(":")[0], []).append(ref)
        return [(self.require(scheme), group) for scheme, group in by_scheme.items()]

    def forget(self, plane_uri: str) -> None:
        """Drops the mapping of a region; unknown regions, and planes not offered here, are ignored."""
        plane = self._planes.get(plane_uri.partition(":")[0])
        if plane:
            plane.forget(plane_uri)

    def close(self) -> None:
        """Closes every plane."""
        for plane in self._planes.values():
            plane.close()

"""The memory a learner hands out: slots of rollouts that a worker fills, and a small ring of policies that others copy.

Ownership passes only by message. A rollout slot is FREE (the learner's), FILLING (a worker's, from CollectRollout to
its reply), then READY and TRAINING (the learner's again). When a call fails, nobody knows who still writes: the slot is
LOST, and the whole memory is dropped and made anew, which cannot go wrong.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.rollout import Field
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import ResourceExhausted
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensors.codec import DATA_TYPES, LAYOUT_VERSION
from podrace.tensors.plane import Plane, Region

POLICY = "policy"
"""Name of the one tensor of a policy slot."""


def tensor_spec(field: Field) -> TensorSpec:
    """A field of a rollout as the plane wants it."""
    return TensorSpec(
        name=field.name, data_type=DATA_TYPES[field.dtype], shape=field.shape, layout_version=LAYOUT_VERSION
    )


class RolloutSlots:
    """A fixed number of equal rollout slots.

    slot = slots.take()
    await collect(slot.refs())  # the worker's, until the reply
    update(slot)
    slots.give_back(slot)
    """

    def __init__(self, plane: Plane, name: str, fields: Mapping[str, Field], count: int) -> None:
        """Allocates them; raises as Plane.create does."""
        specs = [tensor_spec(field) for field in fields.values()]
        self._regions: list[Region] = []
        try:
            self._regions.extend(plane.create(f"{name}_rollout_{index}", specs) for index in range(count))
        except BaseException:
            self.close()
            raise
        self._free = deque(self._regions)

    def take(self) -> Region:
        """Takes a free slot; references given for its earlier use are refused from now on.

        Raises:
            ResourceExhausted: All are out; the caller grants more than it has.
        """
        if not self._free:
            raise ResourceExhausted(f"all {len(self._regions)} rollout slots are out")
        region = self._free.popleft()
        region.renew()
        return region

    def give_back(self, region: Region) -> None:
        """Frees a slot that was trained on."""
        self._free.append(region)

    def close(self) -> None:
        """Gives the memory up."""
        for region in self._regions:
            region.close()


@dataclass
class PolicySlot:
    """One policy version in the ring, and how many still read it."""

    region: Region
    version: int = 0
    readers: int = 0

    def ref(self) -> pb.PolicyRef:
        """What an rpc carries."""
        return pb.PolicyRef(policy_version=self.version, tensor=self.region.refs()[0])


class PolicyRing:
    """Published policy versions; a slot is written only while nobody reads it.

    ring.publish(policy.flat, version)
    slot = ring.hold()               # the newest
    await collect(slot.ref())        # the reader copies it out before it answers
    ring.release(slot)
    """

    SLOTS = 4
    """The newest, one that a worker still reads, one that the evaluator still reads, and the one being written."""

    def __init__(self, plane: Plane, name: str, parameter_count: int) -> None:
        """Allocates the slots; raises as Plane.create does."""
        spec = tensor_spec(Field(POLICY, (parameter_count,), torch.float32))
        self._slots = [PolicySlot(plane.create(f"{name}_policy_{index}", [spec])) for index in range(self.SLOTS)]
        self._newest: PolicySlot | None = None

    def publish(self, flat: Tensor, version: int) -> None:
        """Copies [P] float32 into a slot that nobody reads and makes it the newest.

        Raises:
            ResourceExhausted: Every slot is being read; more readers were let in than the ring is made for.
        """
        slot = next((slot for slot in self._slots if slot is not self._newest and not slot.readers), None)
        if slot is None:
            raise ResourceExhausted(f"all {self.SLOTS} policy slots are being read")
        slot.region.renew()
        slot.region[POLICY].copy_(flat)
        slot.version = version
        self._newest = slot

    def hold(self) -> PolicySlot:
        """The newest slot, kept from being written until `release`."""
        if self._newest is None:
            raise ResourceExhausted("no policy was published yet")
        self._newest.readers += 1
        return self._newest

    def release(self, slot: PolicySlot) -> None:
        """One reader less."""
        slot.readers -= 1

    def close(self) -> None:
        """Gives the memory up."""
        for slot in self._slots:
            slot.region.close()

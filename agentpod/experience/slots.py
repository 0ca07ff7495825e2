"""The memory a learner hands out: slots that a worker fills, and a small ring of policies that others copy.

Ownership passes only by message. A slot is FREE (the learner's), FILLING (a worker's, from CollectRollout to its
reply), then READY and TRAINING (the learner's again). When a call fails, nobody knows who still writes: the slot is
LOST until every worker is open again, for whoever opens a session has ended what it did in the one before.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from agentpod.experience.memory_spec import MemorySpec
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.rollout import Field, Rollout
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import ResourceExhausted
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport.codec import DATA_TYPES, LAYOUT_VERSION
from podrace.tensor_transport.plane import Plane, Region

POLICY = "policy"
"""Name of the one tensor of a policy slot."""


def tensor_spec(field: Field) -> TensorSpec:
    """A field of a rollout as the plane wants it."""
    return TensorSpec(
        name=field.name, data_type=DATA_TYPES[field.dtype], shape=field.shape, layout_version=LAYOUT_VERSION
    )


@dataclass(frozen=True)
class Grant:
    """A slot on its way to the workers and back."""

    region: Region
    first_row: int = 0


class ExperienceSlots(Protocol):
    """Where experience lies, and whose it is.

    grant = experience.grant()
    await collect(grant.region.refs(), grant.first_row)   # the workers', until they have all replied
    algorithm.update(experience.receive(grant))
    experience.release(grant)
    """

    def grant(self) -> Grant:
        """Takes a free slot.

        Raises:
            ResourceExhausted: All are out; the caller grants more than there is.
        """
        ...

    def receive(self, grant: Grant) -> Any:
        """Takes a full slot back; returns what an algorithm learns from."""
        ...

    def release(self, grant: Grant) -> None:
        """Frees a slot that was trained on."""
        ...

    def reclaim(self) -> None:
        """Takes back every grant whose rollout never came: all workers are open anew, nobody writes any more.

        References given before are refused from now on.
        """
        ...

    def close(self) -> None:
        """Gives the memory up."""
        ...


class RolloutSlots:
    """A fixed number of equal rollouts, each trained on as a whole and forgotten."""

    def __init__(self, plane: Plane, name: str, fields: Mapping[str, Field], count: int) -> None:
        """Allocates them; raises as Plane.create does."""
        specs = [tensor_spec(field) for field in fields.values()]
        self._grants: list[Grant] = []
        try:
            self._grants.extend(Grant(plane.create(f"{name}_rollout_{index}", specs)) for index in range(count))
        except BaseException:
            self.close()
            raise
        self._free = deque(self._grants)

    def grant(self) -> Grant:
        """See Experience."""
        if not self._free:
            raise ResourceExhausted(f"all {len(self._grants)} rollout slots are out")
        grant = self._free.popleft()
        grant.region.renew()
        return grant

    def receive(self, grant: Grant) -> Rollout:
        """See Experience: the rollout itself."""
        return grant.region

    def release(self, grant: Grant) -> None:
        """See Experience."""
        self._free.append(grant)

    def reclaim(self) -> None:
        """See Experience."""
        self._free = deque(self._grants)

    def close(self) -> None:
        """See Experience."""
        for grant in self._grants:
            grant.region.close()


class ReplaySlots:
    """A replay memory whose oldest segment is handed out to be written over.

    Attributes:
        replay: What is learned from.
    """

    def __init__(
        self, plane: Plane, name: str, fields: Mapping[str, Field], memory: MemorySpec, device: torch.device | str
    ) -> None:
        """Allocates it.

        Args:
            plane: On which the workers see it.
            name: Free on that plane.
            fields: As `agentpod.experience.replay_layout.replay_fields` lays them out.
            memory: What the algorithm wants.
            device: Where it is trained on.

        Raises:
            ResourceExhausted: There is no room for it.
        """
        self._region = plane.create(f"{name}_replay", [tensor_spec(field) for field in fields.values()])
        self.replay = ReplayBuffer(
            self._region,
            horizon=memory.horizon,
            device=device,
            prioritized=memory.prioritized,
            priority_exponent=memory.priority_exponent,
        )

    def grant(self) -> Grant:
        """See Experience."""
        return Grant(self._region, self.replay.grant())

    def receive(self, grant: Grant) -> ReplayBuffer:
        """See Experience: the whole memory, with one more segment."""
        self.replay.receive(grant.first_row)
        return self.replay

    def release(self, grant: Grant) -> None:
        """See Experience: what was received stays."""

    def reclaim(self) -> None:
        """See Experience; episodes under way end here."""
        self._region.renew()
        self.replay.reclaim()

    def close(self) -> None:
        """See Experience."""
        self._region.close()


@dataclass
class PolicySlot:
    """One policy version in the ring, and how many still read it."""

    region: Region
    version: int = 0
    readers: int = 0

    def ref(self) -> pb.PolicyRef:
        """What an rpc carries."""
        return pb.PolicyRef(policy_version=self.version, tensor=self.region.refs()[0])

    def release(self) -> None:
        """One reader less."""
        self.readers -= 1


class PolicyRing:
    """Published policy versions; a slot is written only while nobody reads it.

    ring.publish(policy.flat, version)
    slot = ring.hold()               # the newest
    await collect(slot.ref())        # the reader copies it out before it answers
    slot.release()
    """

    SLOTS = 4
    """The newest, one that a worker still reads, one that the evaluator still reads, and the one being written."""

    def __init__(self, plane: Plane, name: str, parameter_count: int) -> None:
        """Allocates the slots; raises as Plane.create does."""
        spec = tensor_spec(Field(POLICY, (parameter_count,), torch.float32))
        self._slots: list[PolicySlot] = []
        self._newest: PolicySlot | None = None
        try:
            for index in range(self.SLOTS):
                self._slots.append(PolicySlot(plane.create(f"{name}_policy_{index}", [spec])))
        except BaseException:
            self.close()
            raise

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

    def close(self) -> None:
        """Gives the memory up."""
        for slot in self._slots:
            slot.region.close()

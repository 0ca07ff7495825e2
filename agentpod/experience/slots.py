"""Allocates the memory that a learner shares with workers: slots for experience, and a ring of published policies.

Access passes only by messages. A slot is FREE (accessed by the learner), FILLING (accessed by workers, from
CollectRollout to its reply), then READY and TRAINING (accessed by the learner again). After a failed call it is unknown
whether a worker still writes: the slot is LOST until all workers were opened again, because opening a session ends
whatever the worker did in the previous one.
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
"""Name of the single tensor of a policy slot."""


def tensor_spec(field: Field) -> TensorSpec:
    """Returns the tensor specification of a rollout field."""
    return TensorSpec(
        name=field.name, data_type=DATA_TYPES[field.dtype], shape=field.shape, layout_version=LAYOUT_VERSION
    )


@dataclass(frozen=True)
class Grant:
    """A slot that is given to the workers to fill."""

    region: Region
    first_row: int = 0


class ExperienceSlots(Protocol):
    """Memory of experience that the learner and the workers access in turn.

    grant = slots.grant()
    await collect(grant.region.refs(), grant.first_row)   # until all workers have replied
    algorithm.update(slots.receive(grant))
    slots.release(grant)
    """

    def grant(self) -> Grant:
        """Takes a free slot.

        Raises:
            ResourceExhausted: All slots are in use; the caller grants more than there are.
        """
        ...

    def receive(self, grant: Grant) -> Any:
        """Takes back a filled slot; returns the experience that an algorithm learns from."""
        ...

    def release(self, grant: Grant) -> None:
        """Frees a slot after training on it."""
        ...

    def reclaim(self) -> None:
        """Takes back all LOST slots, after all workers were opened again and none can still write.

        References handed out before are refused from now on.
        """
        ...

    def close(self) -> None:
        """Frees the memory."""
        ...


class RolloutSlots:
    """A fixed number of rollouts of equal size; each is trained on as a whole and then overwritten."""

    def __init__(self, plane: Plane, name: str, fields: Mapping[str, Field], count: int) -> None:
        """Allocates the rollouts; raises as Plane.create does."""
        specs = [tensor_spec(field) for field in fields.values()]
        self._grants: list[Grant] = []
        try:
            self._grants.extend(Grant(plane.create(f"{name}_rollout_{index}", specs)) for index in range(count))
        except BaseException:
            self.close()
            raise
        self._free = deque(self._grants)

    def grant(self) -> Grant:
        """See ExperienceSlots.grant."""
        if not self._free:
            raise ResourceExhausted(f"all {len(self._grants)} rollout slots are in use")
        grant = self._free.popleft()
        grant.region.renew()
        return grant

    def receive(self, grant: Grant) -> Rollout:
        """See ExperienceSlots.receive; returns the rollout."""
        return grant.region

    def release(self, grant: Grant) -> None:
        """See ExperienceSlots.release."""
        self._free.append(grant)

    def reclaim(self) -> None:
        """See ExperienceSlots.reclaim."""
        self._free = deque(self._grants)

    def close(self) -> None:
        """See ExperienceSlots.close."""
        for grant in self._grants:
            grant.region.close()


class ReplaySlots:
    """A replay buffer whose oldest segment is granted to be overwritten.

    Attributes:
        replay: The replay buffer.
    """

    def __init__(
        self, plane: Plane, name: str, fields: Mapping[str, Field], memory: MemorySpec, device: torch.device | str
    ) -> None:
        """Allocates the replay buffer.

        Args:
            plane: Shares the memory with the workers.
            name: Unused name on that plane.
            fields: Layout, from `agentpod.experience.replay_layout.replay_fields`.
            memory: Requirements of the algorithm.
            device: Where batches are sampled.

        Raises:
            ResourceExhausted: There is not enough memory.
        """
        self._region = plane.create(f"{name}_replay", [tensor_spec(field) for field in fields.values()])
        try:
            self.replay = ReplayBuffer(
                self._region,
                horizon=memory.horizon,
                device=device,
                prioritized=memory.prioritized,
                priority_exponent=memory.priority_exponent,
            )
        except BaseException:
            self._region.close()
            raise

    def grant(self) -> Grant:
        """See ExperienceSlots.grant."""
        return Grant(self._region, self.replay.grant())

    def receive(self, grant: Grant) -> ReplayBuffer:
        """See ExperienceSlots.receive; returns the whole buffer, with one more segment."""
        self.replay.receive(grant.first_row)
        return self.replay

    def release(self, grant: Grant) -> None:
        """See ExperienceSlots.release; the received segment stays in the buffer."""

    def reclaim(self) -> None:
        """See ExperienceSlots.reclaim; unfinished episodes are truncated."""
        self._region.renew()
        self.replay.reclaim()

    def close(self) -> None:
        """See ExperienceSlots.close."""
        self._region.close()


@dataclass
class PolicySlot:
    """A policy version in the ring, and the number of its readers."""

    region: Region
    version: int = 0
    readers: int = 0

    def ref(self) -> pb.PolicyRef:
        """Returns the reference that an rpc carries."""
        return pb.PolicyRef(policy_version=self.version, tensor=self.region.refs()[0])

    def release(self) -> None:
        """Ends one read."""
        self.readers -= 1


class PolicyRing:
    """Ring of published policy versions; a slot is written only while it has no reader.

    ring.publish(policy.flat, version)
    slot = ring.hold()               # the newest version
    await collect(slot.ref())        # the reader copies it before it replies
    slot.release()
    """

    SLOTS = 4
    """The newest version, one that a worker still reads, one that the evaluator still reads, and one being written."""

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

    @property
    def on_gpu(self) -> bool:
        """Whether the slots are in memory of a GPU."""
        return self._slots[0].region[POLICY].is_cuda

    def publish(self, flat: Tensor, version: int) -> None:
        """Copies `flat` [P] float32 into a slot without readers and makes it the newest version.

        Raises:
            ResourceExhausted: Every slot is being read; there are more readers than the ring is made for.
        """
        slot = next((slot for slot in self._slots if slot is not self._newest and not slot.readers), None)
        if slot is None:
            raise ResourceExhausted(f"all {self.SLOTS} policy slots are being read")
        slot.region.renew()
        slot.region[POLICY].copy_(flat)
        slot.version = version
        self._newest = slot

    def hold(self) -> PolicySlot:
        """Returns the newest slot, which is not overwritten until its `release`.

        Raises:
            ResourceExhausted: No policy was published yet.
        """
        if self._newest is None:
            raise ResourceExhausted("no policy was published yet")
        self._newest.readers += 1
        return self._newest

    def close(self) -> None:
        """Frees the memory."""
        for slot in self._slots:
            slot.region.close()

"""Keeps the policies that play against an agent in memory that its roles read."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.experience.rollout import Field
from agentpod.experience.slots import POLICY, tensor_spec
from agentpod.models.messages import policy_message
from agentpod.models.policy import NetworkSpec
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.tensor_transport.plane import Plane, Region


@dataclass(frozen=True)
class OpponentPolicy:
    """A policy that plays against the agent."""

    network: NetworkSpec
    """Its network; not recurrent."""
    flat: Tensor
    """Its parameters, [P] float32."""
    version: int = 0
    """Its policy version."""
    candidate_id: str = ""
    """Candidate that it is; empty if it is none."""


class OpponentSlots:
    """Some policies in memory, which never change. The memory is freed after the last reader.

    slots = OpponentSlots(plane, name, policies)
    with slots.reading() as opponents:
        await collect(opponents)
    slots.retire()                # frees the memory now, or after the last reader; then there are no opponents
    """

    def __init__(self, plane: Plane, name: str, policies: Sequence[OpponentPolicy | None]) -> None:
        """Copies the policies; raises as Plane.create does.

        Args:
            plane: Connects the roles.
            name: Unused name on that plane.
            policies: What to copy; None is the built-in opponent of the simulator.
        """
        self._regions: list[Region] = []
        self._readers, self._retired = 0, False
        self._messages: list[pb.Opponent] = []
        try:
            for index, one in enumerate(policies):
                if one is None:
                    self._messages.append(pb.Opponent())
                    continue
                spec = tensor_spec(Field(POLICY, (one.flat.numel(),), torch.float32))
                region = plane.create(f"{name}_opponent_{index}", [spec])
                self._regions.append(region)
                region.renew()
                region[POLICY].copy_(one.flat)
                ref = pb.PolicyRef(policy_version=one.version, tensor=region.refs()[0])
                self._messages.append(
                    pb.Opponent(policy=policy_message(one.network), ref=ref, candidate_id=one.candidate_id)
                )
        except BaseException:
            self.retire()
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[Sequence[pb.Opponent]]:
        """Keeps the memory while it is read; returns what the call of a role carries."""
        self._readers += 1
        try:
            yield self._messages
        finally:
            self._readers -= 1
            if self._retired:
                self._free()

    def retire(self) -> None:
        """Frees the memory as soon as it has no reader."""
        self._retired = True
        self._free()

    def _free(self) -> None:
        if not self._readers:
            for region in self._regions:
                region.close()
            self._regions.clear()
            # The session may be used for another tournament next, whose simulator may know no opponents.
            self._messages.clear()

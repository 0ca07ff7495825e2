"""Learners that call each other by rpc, while the collectives of one of them fail: the others continue without it."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import prometheus_client
import pytest
import torch

from agentpod.algorithms.fusible import Fusible
from agentpod.compute_thread import ComputeThread
from agentpod.fusion import member as fusion_member
from agentpod.fusion.member import FusionMember
from agentpod.fusion.reachability import MOST_FAILURES, LeaderIsolated
from agentpod.fusion.rendezvous import LeaderRendezvous
from agentpod.fusion.rounds import FusionOptions
from podrace.tournament.v1.tournament_pb2 import FusionSpec

HERE = "127.0.0.1"
WRONG_INTERFACE = "192.0.2.1"
"""No address of this machine: documentation uses it (RFC 5737), so gloo cannot listen there."""


class Parameters:
    """The part of an algorithm that fusion uses."""

    def __init__(self, value: float) -> None:
        self.tensor = torch.full((4,), value)

    def fusible(self) -> Fusible:
        return Fusible({"actor": self.tensor})

    def refresh(self) -> None:
        """Nothing is derived."""


class Learners:
    """Learners in this process that meet at one rendezvous and form groups over gloo."""

    def __init__(self, hosts: list[str]) -> None:
        spec = FusionSpec(mode="average", every_updates=1, outer_learning_rate=0.7, outer_momentum=0.9)
        self.rendezvous = LeaderRendezvous("s", len(hosts), FusionOptions(), lambda index: None)
        self.computes = [ComputeThread() for _ in hosts]
        self.parameters = [Parameters(float(index)) for index in range(len(hosts))]
        self.members = [
            FusionMember(self.rendezvous, compute, parameters, "s", index, spec, "cpu", host=host)  # type: ignore[arg-type]
            for index, (compute, parameters, host) in enumerate(zip(self.computes, self.parameters, hosts, strict=True))
        ]

    async def close(self) -> None:
        await self.rendezvous.close()
        for member in self.members:
            await member.close()
        for compute in self.computes:
            compute.close()


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_member, "COLLECTIVE_SECONDS", 1.0)


def aborted_rounds() -> float:
    return prometheus_client.REGISTRY.get_sample_value("podrace_learner_fusion_rounds_aborted_total") or 0.0


async def test_a_learner_on_a_wrong_interface_is_left_out_and_the_others_are_averaged(
    short_timeout: None, log_lines: list[MutableMapping[str, Any]]
) -> None:
    learners, before = Learners([HERE, HERE, WRONG_INTERFACE]), aborted_rounds()
    unreachable = asyncio.create_task(learners.members[2].fuse())
    try:
        async with asyncio.timeout(60):
            while learners.members[0].size < 2:
                await asyncio.gather(*(member.fuse() for member in learners.members[:2]))
        assert torch.equal(learners.parameters[0].tensor, learners.parameters[1].tensor)
        assert not unreachable.done()
        # The third round that fails, counted by both.
        assert aborted_rounds() - before >= 2 * MOST_FAILURES
        # It is tried, and then left out.
        async with asyncio.timeout(60):
            await asyncio.gather(*(member.fuse() for member in learners.members[:2]))
        assert learners.members[0].size == 2
        (warning,) = [line["event"] for line in log_lines if "left out of fusion rounds for 60 s" in line["event"]]
        assert warning.startswith("learner 2 ")
    finally:
        unreachable.cancel()
        await learners.close()


async def test_a_leader_on_a_wrong_interface_ends_the_training_with_advice(short_timeout: None) -> None:
    learners = Learners([WRONG_INTERFACE, HERE, HERE])
    followers = [asyncio.create_task(member.fuse()) for member in learners.members[1:]]
    try:
        async with asyncio.timeout(60):
            with pytest.raises(LeaderIsolated, match="NCCL_SOCKET_IFNAME"):
                await learners.members[0].fuse()
    finally:
        await learners.close()
        await asyncio.gather(*followers, return_exceptions=True)

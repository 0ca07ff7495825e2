"""Tests that a tournament with a slow generator does not delay the pods of other tournaments."""

import asyncio
from typing import Any

import pytest
from fake_services import FakeLeaderboard

from orchestrator.assignments.generation_slots import CONCURRENT_GENERATIONS, GENERATIONS_OF_A_TOURNAMENT
from podrace.leaderboard.v1 import leaderboard_pb2

PODS = CONCURRENT_GENERATIONS + 2


class SlowLeaderboard(FakeLeaderboard):
    """Holds the requests of one tournament until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.slow_tournament_id = ""
        self.waiting = self.most_waiting = self.held = 0
        self.called, self.released = asyncio.Event(), asyncio.Event()

    async def GenerateAgent(
        self, request: leaderboard_pb2.GenerateAgentRequest, context: Any
    ) -> leaderboard_pb2.GenerateAgentResponse:
        if request.tournament_id == self.slow_tournament_id:
            self.held += 1
            self.waiting += 1
            self.most_waiting = max(self.waiting, self.most_waiting)
            self.called.set()
            await self.released.wait()
            self.waiting -= 1
        return await super().GenerateAgent(request, context)


@pytest.mark.parametrize("synchronous", [False, True])
async def test_a_slow_generator_of_one_tournament_does_not_delay_another(
    open_mesh: Any, spec: Any, synchronous: bool
) -> None:
    leaderboard = SlowLeaderboard()
    async with open_mesh(leaderboard=leaderboard) as mesh:
        name = await mesh.create(spec(minimum_pods=PODS, maximum_pods=PODS, synchronous=synchronous))
        leaderboard.slow_tournament_id = name
        await mesh.cycle()
        requests = [asyncio.create_task(mesh.assigned(f"{name}-p0"))]
        await leaderboard.called.wait()
        # The whole round has numbers now.
        requests += [asyncio.create_task(mesh.assigned(f"{name}-p{number}")) for number in range(1, PODS)]
        while len(mesh.runtime.connected_pods) < PODS:
            await asyncio.sleep(0)
        other = await mesh.create(spec())
        await mesh.cycle()
        assert (await mesh.assigned(f"{other}-p0")).train.agent_id == f"{other}-a0"
        assert not any(request.done() for request in requests)
        leaderboard.released.set()
        works = await asyncio.gather(*requests)
    assert sorted(work.train.number for work in works) == list(range(PODS))
    # A round is generated once, and not once for each request.
    assert leaderboard.held == PODS
    assert leaderboard.most_waiting == (1 if synchronous else GENERATIONS_OF_A_TOURNAMENT)

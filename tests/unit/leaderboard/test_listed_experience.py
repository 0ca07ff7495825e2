"""Tests that only recent replay memories are listed for the agents that learn from others."""

from collections.abc import Callable
from typing import Any

from leaderboard.store.experience_records import OLDEST_SECONDS
from podrace.leaderboard.v1.leaderboard_pb2 import ListExperienceRequest
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


async def test_memories_that_were_submitted_too_long_ago_are_not_listed(
    mesh: Any, make_spec: Callable[..., TournamentSpec]
) -> None:
    spec = make_spec(evolution={"initial_agents": 3})
    agents = [await mesh.generate(spec, number) for number in range(3)]
    request = ListExperienceRequest(agent_id=agents[2].agent_id)

    async def listed() -> tuple[list[str], int]:
        answer = await mesh.updater.list_experience(request)
        return [source.agent_id for source in answer.sources], answer.sequence

    first, second = (agent.agent_id for agent in agents[:2])
    await mesh.submit(agents[0], 1.0, replay_steps=100, replay_memory_steps=100)
    mesh.clock.now += 60.0
    await mesh.submit(agents[1], 2.0, replay_steps=100, replay_memory_steps=100)
    mesh.clock.now += OLDEST_SECONDS - 60.0
    assert await listed() == ([second, first], 2)
    mesh.clock.now += 1.0
    assert await listed() == ([second], 2)
    mesh.clock.now += 60.0
    assert await listed() == ([], 2)

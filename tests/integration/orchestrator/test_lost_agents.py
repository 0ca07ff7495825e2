"""Agents that a leaderboard lost, because its database was restored from a backup or rebuilt, are registered again."""

from typing import Any

import pytest

from podrace.errors import InvalidArgument, PodraceError, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2

REASON = "the leaderboard does not know the agent"


async def give_back(mesh: Any, name: str) -> pb.Assignment:
    """Assigns an agent to the first pod, which gives it back because the leaderboard does not know it."""
    work: pb.Assignment = await mesh.assigned(f"{name}-p0")
    await mesh.complete(work, pb.OUTCOME_DRAINED, message=REASON)
    return work


async def test_an_agent_is_registered_again_as_it_was_generated_before_it_is_assigned_again(
    mesh: Any, spec: Any
) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    first = await give_back(mesh, name)
    assert mesh.leaderboard.known_agents == [], "a new agent is not registered, it is generated"
    again = await mesh.assigned(f"{name}-p0")
    assert again.train == first.train
    (request,) = mesh.leaderboard.known_agents
    assert (request.agent, request.number, request.tournament_id) == (first.train, 0, name)
    assert request.spec == again.spec
    assert len(mesh.leaderboard.generate_requests) == 1


async def test_agents_that_the_leaderboard_lost_are_not_failures_however_many_there_are(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    for _ in range(5):
        await give_back(mesh, name)
    tournament = await mesh.get(name)
    assert (tournament.state, tournament.failed_agents) == (tournament_pb2.TOURNAMENT_STATE_RUNNING, 0)
    events = [one.message for one in await mesh.events(name) if one.kind == "agent_drained"]
    assert events == [f"{name}-a0 drained after 0 steps: {REASON}"] * 5


@pytest.mark.parametrize("refusal", [Unavailable("it starts"), InvalidArgument("another specification")])
async def test_an_agent_is_assigned_again_although_it_cannot_be_registered(
    mesh: Any, spec: Any, refusal: PodraceError
) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    first = await give_back(mesh, name)
    mesh.leaderboard.refusal = refusal
    assert (await mesh.assigned(f"{name}-p0")).train == first.train
    assert (await mesh.get(name)).state == tournament_pb2.TOURNAMENT_STATE_RUNNING

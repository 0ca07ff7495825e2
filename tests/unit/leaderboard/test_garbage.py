from collections.abc import Callable
from typing import Any

from leaderboard.garbage import collect_once
from podrace.checkpoints.publish import fetch
from podrace.errors import NotFound
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
HOUR = 3600.0


def readable(mesh: Any, manifest_digest: str) -> bool:
    try:
        fetch(mesh.store, manifest_digest)
    except NotFound:
        return False
    return True


def one_place(make_spec: MakeSpec) -> TournamentSpec:
    return make_spec(evolution={"initial_agents": 2, "fresh_probability": 0.0, "board_capacity": 1})


async def publish_more(mesh: Any, agent: Any) -> None:
    """Moves the agent's pointer on, so that it keeps none of the earlier checkpoints."""
    for attempt in range(3):
        mesh.publish(agent, -1.0 - attempt)


async def test_candidates_on_a_board_outlive_their_agents_later_checkpoints(mesh: Any, make_spec: MakeSpec) -> None:
    agent = await mesh.generate(one_place(make_spec), 0)
    accepted = (await mesh.submit(agent, 5.0)).candidate.candidate_id
    refused = (await mesh.submit(agent, 4.0)).candidate.candidate_id
    await publish_more(mesh, agent)
    mesh.clock.now += 2 * HOUR
    deleted = await collect_once(mesh.state, mesh.store, grace_seconds=HOUR)
    assert readable(mesh, accepted)
    assert not readable(mesh, refused)
    assert refused in deleted


async def test_nothing_younger_than_the_grace_age_goes(mesh: Any, make_spec: MakeSpec) -> None:
    agent = await mesh.generate(one_place(make_spec), 0)
    await mesh.submit(agent, 5.0)
    refused = (await mesh.submit(agent, 4.0)).candidate.candidate_id
    await publish_more(mesh, agent)
    mesh.clock.now += HOUR / 2
    assert await collect_once(mesh.state, mesh.store, grace_seconds=HOUR) == []
    assert readable(mesh, refused)


async def test_an_evicted_candidate_stays_until_the_agents_that_start_from_it_are_finished(
    mesh: Any, make_spec: MakeSpec
) -> None:
    spec = one_place(make_spec)
    first, second = [await mesh.generate(spec, number) for number in range(2)]
    start = (await mesh.submit(first, 5.0)).candidate.candidate_id
    child = await mesh.generate(spec, 2, [first.agent_id, second.agent_id])
    assert child.starting_checkpoint.manifest_digest == start
    await mesh.submit(second, 50.0)
    await publish_more(mesh, first)
    mesh.clock.now += 2 * HOUR
    await collect_once(mesh.state, mesh.store, grace_seconds=HOUR)
    assert readable(mesh, start), "the last agent that was generated is not finished"

    await mesh.generate(spec, 3, [child.agent_id])
    mesh.clock.now += 2 * HOUR
    await collect_once(mesh.state, mesh.store, grace_seconds=HOUR)
    assert readable(mesh, start), "it was listed as unfinished with the last agent"

    await mesh.generate(spec, 4, [])
    await collect_once(mesh.state, mesh.store, grace_seconds=HOUR)
    assert not readable(mesh, start)


async def test_agents_generated_within_the_grace_age_keep_their_start(mesh: Any, make_spec: MakeSpec) -> None:
    spec = one_place(make_spec)
    first, second = [await mesh.generate(spec, number) for number in range(2)]
    start = (await mesh.submit(first, 5.0)).candidate.candidate_id
    mesh.clock.now += 2 * HOUR
    await mesh.generate(spec, 2, [])
    await mesh.submit(second, 50.0)
    await publish_more(mesh, first)
    mesh.clock.now += HOUR / 2
    await mesh.generate(spec, 3, [])  # its request crossed that of agent 2 and does not list it
    await collect_once(mesh.state, mesh.store, grace_seconds=HOUR)
    assert readable(mesh, start)

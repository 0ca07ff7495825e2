"""The leaderboard generates no agents for an owner whose tournaments have stored more than its quota."""

from collections.abc import Callable
from typing import Any

import pytest

from leaderboard.garbage import collect_once
from leaderboard.generator import Generator
from leaderboard.ranking.retention import Retention
from leaderboard.store.owners import TournamentOwners
from podrace.errors import ResourceExhausted
from podrace.leaderboard.v1.leaderboard_pb2 import GenerateAgentRequest
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

HOUR = 3600.0
MakeSpec = Callable[..., TournamentSpec]


def request(spec: TournamentSpec, tournament_id: str, owner: str, number: int, limit: int) -> GenerateAgentRequest:
    return GenerateAgentRequest(
        request_id=f"{tournament_id}-a{number}",
        tournament_id=tournament_id,
        spec=spec,
        number=number,
        owner=owner,
        maximum_stored_bytes=limit,
    )


async def measured(mesh: Any, owners: TournamentOwners) -> dict[str, int]:
    found: dict[str, int] = {}

    def on_measured(measured: Any) -> None:
        found.update(measured.kept_bytes)
        owners.measure(measured)

    await collect_once(mesh.state, mesh.store, grace_seconds=HOUR, retention=Retention(), on_measured=on_measured)
    return found


async def test_bytes_of_all_tournaments_of_an_owner_count_and_those_of_others_do_not(
    mesh: Any, make_spec: MakeSpec
) -> None:
    owners, spec = TournamentOwners(), make_spec()
    generator = Generator(mesh.state, owners=owners)
    for name, owner in (("one-aaaaaa", "alice"), ("two-aaaaaa", "alice"), ("own-aaaaaa", "bob")):
        agent: Any = await generator.generate(request(spec, name, owner, 0, 1))
        await mesh.submit(agent, 1.0)
    sizes = await measured(mesh, owners)
    stored = list(mesh.store.list_objects())
    assert sum(sizes.values()) == sum(each.size_bytes for each in stored)
    limit = sizes["one-aaaaaa"] + sizes["two-aaaaaa"]
    await generator.generate(request(spec, "one-aaaaaa", "alice", 1, limit))
    await generator.generate(request(spec, "own-aaaaaa", "bob", 1, limit - 1))
    await generator.generate(request(spec, "two-aaaaaa", "alice", 1, 0))
    with pytest.raises(ResourceExhausted, match=rf"alice have stored {limit} bytes, and quota.stored_bytes") as refused:
        await generator.generate(request(spec, "one-aaaaaa", "alice", 2, limit - 1))
    assert refused.value.reason == "ERROR_REASON_QUOTA_EXCEEDED"
    assert refused.value.metadata["owner"] == "alice"


async def test_bytes_that_were_collected_no_longer_count(mesh: Any, make_spec: MakeSpec) -> None:
    owners, spec = TournamentOwners(), make_spec()
    generator = Generator(mesh.state, owners=owners)
    agent: Any = await generator.generate(request(spec, "one-aaaaaa", "alice", 0, 0))
    await mesh.submit(agent, 1.0)
    before = (await measured(mesh, owners))["one-aaaaaa"]
    mesh.store.within("one-aaaaaa").put_object(bytes(1000))
    assert (await measured(mesh, owners))["one-aaaaaa"] == before + 1000
    mesh.clock.now += 2 * HOUR
    assert (await measured(mesh, owners))["one-aaaaaa"] == before
    await generator.generate(request(spec, "one-aaaaaa", "alice", 1, before))

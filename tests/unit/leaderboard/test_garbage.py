import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from leaderboard import garbage
from leaderboard.checkpoints.deletion import TournamentDeletion
from leaderboard.garbage import MISSING, RecentAgents, collect_once, collect_periodically, tournaments
from leaderboard.ranking.retention import Retention
from leaderboard.store.owners import TournamentOwners
from podrace.checkpoint_store import collect
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import fetch, read_manifest
from podrace.checkpoint_store.replay_parts import PIECE, PREFIX, STATE, piece_name
from podrace.digests import digest
from podrace.errors import DataLoss, NotFound, ResourceExhausted, Unavailable
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
HOUR = 3600.0
TOURNAMENT = "cartpole-abc123"


async def collected(mesh: Any, retention: Retention = Retention()) -> list[str]:  # noqa: B008  # it never changes
    return await collect_once(mesh.state, mesh.store, grace_seconds=HOUR, retention=retention)


async def collected_as_in_service(mesh: Any, recent: RecentAgents) -> list[str]:
    return await collect_once(
        *(mesh.state, mesh.store),
        grace_seconds=recent.grace_seconds,
        retention=Retention(),
        recent_after=await recent.position(),
    )


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


async def test_candidates_on_a_board_and_last_submissions_are_kept_after_later_checkpoints(
    mesh: Any, make_spec: MakeSpec
) -> None:
    agent = await mesh.generate(one_place(make_spec), 0)
    accepted, refused, last = [(await mesh.submit(agent, score)).candidate.candidate_id for score in (5.0, 4.0, 3.0)]
    await publish_more(mesh, agent)
    mesh.clock.now += 2 * HOUR
    deleted = await collected(mesh)
    assert [readable(mesh, candidate) for candidate in (accepted, refused, last)] == [True, False, True]
    assert refused in deleted


async def test_the_configured_number_of_last_submissions_is_kept(mesh: Any, make_spec: MakeSpec) -> None:
    agent = await mesh.generate(one_place(make_spec), 0)
    candidates = [(await mesh.submit(agent, score)).candidate.candidate_id for score in (9.0, 4.0, 3.0, 2.0)]
    await publish_more(mesh, agent)
    mesh.clock.now += 2 * HOUR
    await collected(mesh, Retention(checkpoints_of_agent=2))
    assert [readable(mesh, candidate) for candidate in candidates] == [True, False, True, True]


async def test_an_idle_board_is_cut_to_its_best_only_if_configured(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec(evolution={"initial_agents": 4, "fresh_probability": 0.0, "board_capacity": 4})
    spec.champion.reevaluate_top = 2
    agents = [await mesh.generate(spec, number) for number in range(4)]
    mesh.clock.now += 12 * HOUR
    board = [(await mesh.submit(agent, 9.0 - number)).candidate.candidate_id for number, agent in enumerate(agents)]
    for number, agent in enumerate(agents):
        await mesh.submit(agent, -9.0 - number)  # the last ones: those on the board are not the last of any agent
        await publish_more(mesh, agent)
    cut = Retention(best_of_idle_board=1, idle_seconds=24 * HOUR)
    mesh.clock.now += 23 * HOUR
    await collected(mesh, cut)
    assert all(readable(mesh, candidate) for candidate in board)
    mesh.clock.now += HOUR
    await collected(mesh)
    assert all(readable(mesh, candidate) for candidate in board)
    await collected(mesh, cut)
    assert [readable(mesh, candidate) for candidate in board] == [True, True, False, False]  # two may be champion


async def test_possible_parents_of_a_running_synchronous_round_are_kept(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec(
        synchronous=True,
        pool={"maximum_pods": 2},
        evolution={"initial_agents": 2, "fresh_probability": 0.0, "board_capacity": 2},
    )
    first, second = [await mesh.generate(spec, number) for number in range(2)]
    best, other = [(await mesh.submit(agent, score)).candidate for agent, score in ((first, 5.0), (second, 1.0))]
    for agent in (first, second):
        await mesh.submit(agent, -5.0)
        await publish_more(mesh, agent)
    # The next round has begun: its first agent is through, and has taken a place on the board from one of them.
    third = await mesh.generate(spec, 2)
    assert third.starting_checkpoint.manifest_digest == best.candidate_id
    await mesh.submit(third, 50.0)
    assert other.candidate_id not in {candidate.candidate_id for candidate in await mesh.board()}
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    assert readable(mesh, other.candidate_id)


async def test_objects_younger_than_the_grace_period_are_kept(mesh: Any, make_spec: MakeSpec) -> None:
    agent = await mesh.generate(one_place(make_spec), 0)
    await mesh.submit(agent, 5.0)
    refused = (await mesh.submit(agent, 4.0)).candidate.candidate_id
    await mesh.submit(agent, 3.0)
    await publish_more(mesh, agent)
    mesh.clock.now += HOUR / 2
    assert await collected(mesh) == []
    assert readable(mesh, refused)


async def test_an_evicted_candidate_is_kept_until_the_agents_that_start_from_it_have_finished(
    mesh: Any, make_spec: MakeSpec
) -> None:
    spec = one_place(make_spec)
    first, second = [await mesh.generate(spec, number) for number in range(2)]
    start = (await mesh.submit(first, 5.0)).candidate.candidate_id
    await mesh.submit(first, 4.0)
    child = await mesh.generate(spec, 2, [first.agent_id, second.agent_id])
    assert child.starting_checkpoint.manifest_digest == start
    await mesh.submit(second, 50.0)
    await publish_more(mesh, first)
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    assert readable(mesh, start), "the last agent that was generated is not finished"

    await mesh.generate(spec, 3, [child.agent_id])
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    assert readable(mesh, start), "it was listed as unfinished with the last agent"

    await mesh.generate(spec, 4, [])
    await collected(mesh)
    assert not readable(mesh, start)


async def test_an_evicted_mate_is_kept_until_the_agent_that_may_be_averaged_with_it_has_finished(
    mesh: Any, make_spec: MakeSpec
) -> None:
    settings = {"initial_agents": 1, "fresh_probability": 0.0, "board_capacity": 2, "crossover_probability": 1.0}
    spec = make_spec(evolution=settings)
    first = await mesh.generate(spec, 0)
    await mesh.submit(first, 5.0)
    one = await mesh.generate(spec, 1, [])
    other = await mesh.generate(spec, 2, [one.agent_id])
    await mesh.submit(one, 50.0)
    mate = (await mesh.submit(other, 40.0)).candidate.candidate_id
    child = await mesh.generate(spec, 3, [])
    assert [found.manifest_digest for found in child.mates] == [mate]
    await mesh.submit(one, 60.0)
    await mesh.submit(other, 30.0)
    await mesh.submit(child, 100.0)
    await publish_more(mesh, other)
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    assert readable(mesh, mate)
    await mesh.generate(spec, 4, [])
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    assert not readable(mesh, mate)


async def crossed(mesh: Any, make_spec: MakeSpec, tournament_id: str = TOURNAMENT) -> str:
    """Records agent 2 as ended though it has just been generated; returns what it starts from, which is evicted."""
    spec = one_place(make_spec)
    first, second = [await mesh.generate(spec, number, tournament_id=tournament_id) for number in range(2)]
    start: str = (await mesh.submit(first, 5.0)).candidate.candidate_id
    await mesh.submit(first, 4.0)
    mesh.clock.now += 2 * HOUR
    child = await mesh.generate(spec, 2, [], tournament_id)
    assert child.starting_checkpoint.manifest_digest == start
    await mesh.submit(second, 50.0)
    await publish_more(mesh, first)
    await mesh.generate(spec, 3, [], tournament_id)  # its request crossed that of agent 2 and does not list it
    return start


async def test_agents_generated_within_the_grace_period_keep_their_starting_checkpoint(
    mesh: Any, make_spec: MakeSpec
) -> None:
    recent = await RecentAgents.load(mesh.state, HOUR, mesh.clock)
    start = await crossed(mesh, make_spec)
    for passed in (0.0, HOUR / 2, HOUR / 2 - 1):
        mesh.clock.now += passed
        await collected_as_in_service(mesh, recent)
        assert readable(mesh, start)
    for _ in range(2):
        mesh.clock.now += HOUR
        await collected_as_in_service(mesh, recent)
    assert not readable(mesh, start), "two marks were set since, so the agent is older"


async def test_a_restarted_leaderboard_keeps_what_recent_agents_start_from(mesh: Any, make_spec: MakeSpec) -> None:
    recent = await RecentAgents.load(mesh.state, HOUR, mesh.clock)
    mesh.clock.now += HOUR
    await collected_as_in_service(mesh, recent)
    start = await crossed(mesh, make_spec)
    for _ in range(10):
        # Another process cannot know how long ago the last mark was set.
        recent = await RecentAgents.load(mesh.state, HOUR, mesh.clock)
        mesh.clock.now += HOUR - 1
        await collected_as_in_service(mesh, recent)
        assert readable(mesh, start)


async def test_a_database_that_is_full_does_not_prevent_the_collection_that_frees_space(
    mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_mark(_: object) -> None:
        raise ResourceExhausted("database l.sqlite: database or disk is full")

    recent = await RecentAgents.load(mesh.state, HOUR, mesh.clock)
    monkeypatch.setattr(garbage.generation_marks, "add_mark", add_mark)
    name = litter(mesh)
    assert await collected_as_in_service(mesh, recent) == [name]


async def test_an_agent_with_the_position_of_a_deleted_one_is_recent(mesh: Any, make_spec: MakeSpec) -> None:
    recent = await RecentAgents.load(mesh.state, HOUR, mesh.clock)
    for number in range(9):
        await mesh.generate(make_spec(), number, tournament_id="deleted-abc123")
    for _ in range(2):
        mesh.clock.now += HOUR
        await collected_as_in_service(mesh, recent)
    assert await recent.position() == 9
    await TournamentDeletion(mesh.state, mesh.store, TournamentOwners()).delete("deleted-abc123")
    start = await crossed(mesh, make_spec)
    await collected_as_in_service(mesh, recent)
    assert readable(mesh, start)


async def test_the_start_of_an_agent_generated_during_a_collection_is_kept_though_its_parent_is_evicted(
    mesh: Any, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = one_place(make_spec)
    first, second = [await mesh.generate(spec, number) for number in range(2)]
    start = (await mesh.submit(first, 5.0)).candidate.candidate_id
    await mesh.submit(first, 4.0)
    await publish_more(mesh, first)
    mesh.clock.now += 2 * HOUR
    transact, children = mesh.state.transact, []

    async def transact_while_the_race_continues(function: Any, *arguments: Any) -> Any:
        if function is tournaments:  # between two of the collection's reads
            monkeypatch.setattr(mesh.state, "transact", transact)
            children.append(await mesh.generate(spec, 2, [first.agent_id, second.agent_id]))
            await mesh.submit(second, 50.0)
        return await transact(function, *arguments)

    monkeypatch.setattr(mesh.state, "transact", transact_while_the_race_continues)
    await collected(mesh)
    assert children[0].starting_checkpoint.manifest_digest == start
    assert readable(mesh, start)


# --- what is gone ------------------------------------------------------------------------------------------------

CUT = Retention(best_of_idle_board=1, idle_seconds=24 * HOUR)


async def cut_board(mesh: Any, make_spec: MakeSpec) -> tuple[list[Any], list[str]]:
    """An idle board of two that was cut to its best: its agents, which have later checkpoints, and its candidates."""
    spec = make_spec(
        evolution={"initial_agents": 2, "fresh_probability": 0.0, "board_capacity": 2}, champion={"reevaluate_top": 1}
    )
    agents = [await mesh.generate(spec, number) for number in range(2)]
    board = [(await mesh.submit(agent, 9.0 - number)).candidate.candidate_id for number, agent in enumerate(agents)]
    for number, agent in enumerate(agents):
        await mesh.submit(agent, -9.0 - number)
        await publish_more(mesh, agent)
    mesh.clock.now += 25 * HOUR
    await collected(mesh, CUT)
    assert [readable(mesh, candidate) for candidate in board] == [True, False]
    return agents, board


def litter(mesh: Any) -> str:
    """An unreferenced object, old enough to be deleted."""
    name: str = mesh.store.put_object(b"a part whose manifest was never written")
    mesh.clock.now += 2 * HOUR
    return name


async def test_a_cut_board_that_is_used_again_is_collected_and_loses_nothing_more(
    mesh: Any, make_spec: MakeSpec
) -> None:
    agents, board = await cut_board(mesh, make_spec)
    # It is used again: the whole board counts again, and some of its files are missing.
    latest = (await mesh.submit(agents[1], 7.0)).candidate.candidate_id
    await publish_more(mesh, agents[1])
    garbage = litter(mesh)
    assert garbage in await collected(mesh, CUT)
    assert [readable(mesh, candidate) for candidate in (board[0], latest)] == [True, True]


async def test_a_missing_ancestor_does_not_prevent_garbage_collection(mesh: Any, make_spec: MakeSpec) -> None:
    agents, board = await cut_board(mesh, make_spec)
    spec = make_spec(evolution={"initial_agents": 3, "ancestor_agent_id": agents[1].agent_id})
    child = await mesh.generate(spec, 0, tournament_id="next-def456")
    assert child.starting_checkpoint.manifest_digest == board[1]
    garbage = litter(mesh)
    assert garbage in await collected(mesh, CUT)
    assert MISSING._value.get() == 1
    assert readable(mesh, board[0])


async def test_nothing_is_deleted_if_every_needed_checkpoint_is_missing(
    mesh: Any, make_spec: MakeSpec, tmp_path: Path
) -> None:
    agent = await mesh.generate(make_spec(), 0)
    await mesh.submit(agent, 5.0)
    elsewhere = FolderStore(tmp_path / "another store", mesh.clock)
    foreign_object = elsewhere.put_object(b"what another leaderboard keeps")
    mesh.clock.now += 2 * HOUR
    with pytest.raises(NotFound, match="is it the store of this leaderboard"):
        await collect_once(mesh.state, elsewhere, grace_seconds=HOUR, retention=CUT)
    assert elsewhere.get_object(foreign_object)


async def test_nothing_is_deleted_if_another_replica_takes_over_meanwhile(
    mesh: Any, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cut_board(mesh, make_spec)
    deleted = litter(mesh)

    async def replaced(*_: object) -> None:
        raise Unavailable("another replica of the leaderboard leads")

    def survey(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(mesh.state, "transact", replaced)
        return collect.survey(*arguments, **options)

    monkeypatch.setattr(garbage, "survey", survey)
    with pytest.raises(Unavailable):
        await collected(mesh, CUT)
    assert mesh.store.get_object(deleted)


async def test_nothing_is_deleted_if_a_needed_manifest_is_damaged(mesh: Any, make_spec: MakeSpec) -> None:
    _, board = await cut_board(mesh, make_spec)
    garbage = litter(mesh)
    mesh.store._object_path(TOURNAMENT, board[0]).write_bytes(b"{}")
    with pytest.raises(DataLoss):
        await collected(mesh, CUT)
    assert mesh.store.get_object(garbage)


def replay_of(agent: Any, first: int, end: int) -> dict[str, bytes]:
    """Parts of a replay memory: pieces of 1,000 bytes that are the same in all checkpoints of an agent."""
    pieces = {piece_name(number): f"{agent.agent_id} {number}".encode().ljust(1000) for number in range(first, end)}
    return {**pieces, STATE: f"{agent.agent_id} {first} {end}".encode()}


def pieces_of(mesh: Any, manifest_digest: str) -> int:
    """Returns how many pieces of a checkpoint's replay memory are in the store."""
    manifest = read_manifest(mesh.store, manifest_digest)
    assert fetch(mesh.store, manifest_digest, without=PREFIX)
    return sum(stored(mesh, part.digest) for part in manifest.parts if part.name.startswith(PIECE))


def stored(mesh: Any, name: str) -> bool:
    return any(found.digest == name for found in mesh.store.list_objects())


async def submit_growing(mesh: Any, agent: Any, score: float) -> list[str]:
    """Submits three checkpoints whose replay memories have 10, 20 and the newest 20 of 30 pieces."""
    windows = ((0, 10), (0, 20), (10, 30))
    answers = [
        await mesh.submit(
            agent, score + k, replay=replay_of(agent, *window), replay_steps=1000 * (window[1] - window[0])
        )
        for k, window in enumerate(windows)
    ]
    return [answer.candidate.candidate_id for answer in answers]


async def test_pieces_are_kept_while_a_checkpoint_that_is_kept_lists_them(mesh: Any, make_spec: MakeSpec) -> None:
    agent = await mesh.generate(make_spec(), 0)
    candidates = await submit_growing(mesh, agent, 1.0)
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    # The pointer keeps the second one; of the first, the pieces that the second one lists as well are left.
    assert [pieces_of(mesh, candidate) for candidate in candidates[1:]] == [20, 20]
    for score in (10.0, 11.0):
        await mesh.submit(agent, score, replay=replay_of(agent, 20, 30 + int(score)))
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    names = [digest(replay_of(agent, number, number + 1)[piece_name(number)]) for number in range(41)]
    assert [number for number, name in enumerate(names) if stored(mesh, name)] == list(range(20, 41))


async def test_a_quota_reduces_the_memories_of_ended_agents_only(mesh: Any, make_spec: MakeSpec) -> None:
    spec = make_spec(evolution={"board_capacity": 2}, assignment={"tournament_replay_bytes": 45_000})
    ended, running = [await mesh.generate(spec, number, [f"{TOURNAMENT}-a0"][:number]) for number in range(2)]
    first, second = [await submit_growing(mesh, agent, 10.0 - agent.number) for agent in (ended, running)]
    await mesh.generate(spec, 2, [running.agent_id])
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    # The running agent has 30 pieces; the board is that of the ended one.
    assert [pieces_of(mesh, candidate) for candidate in second[1:]] == [20, 20]
    assert 0 < sum(pieces_of(mesh, candidate) for candidate in first[1:]) <= 2 * 15
    left = [stored_object.size_bytes for stored_object in mesh.store.list_objects()]
    assert sum(size for size in left if size == 1000) <= 45_000


async def test_a_quota_of_one_tournament_does_not_touch_another(mesh: Any, make_spec: MakeSpec) -> None:
    small = make_spec(assignment={"tournament_replay_bytes": 0})
    large = make_spec()
    poor = await mesh.generate(small, 0, tournament_id="poor-abc123")
    rich = await mesh.generate(large, 0, tournament_id="rich-abc123")
    candidates = [(await submit_growing(mesh, agent, 1.0))[-1] for agent in (poor, rich)]
    for spec, agent in ((small, poor), (large, rich)):
        await mesh.generate(spec, 1, tournament_id=agent.tournament_id)
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    assert [pieces_of(mesh, candidate) for candidate in candidates] == [0, 20]
    assert await collected(mesh) == []


async def test_an_urgent_collection_does_not_wait_for_the_period(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    collected_at = asyncio.Event()

    async def collect(*_: object, **__: object) -> list[str]:
        collected_at.set()
        return []

    monkeypatch.setattr(garbage, "collect_once", collect)
    monkeypatch.setattr(garbage, "SHORTEST_PERIOD_SECONDS", 0.0)
    urgent = asyncio.Event()
    recent = await RecentAgents.load(mesh.state, HOUR)
    collecting = asyncio.create_task(
        collect_periodically(mesh.state, mesh.store, recent, period_seconds=HOUR, retention=Retention(), urgent=urgent)
    )
    urgent.set()
    async with asyncio.timeout(10):
        await collected_at.wait()
    collecting.cancel()
    await asyncio.wait([collecting])
    assert not urgent.is_set()


@pytest.mark.parametrize("fault", [KeyError("strategy"), DataLoss("a manifest is damaged")], ids=["defect", "damage"])
async def test_a_collection_that_fails_for_any_reason_is_counted_and_repeated(
    mesh: Any, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    calls, repeated = [0], asyncio.Event()

    async def collect(*_: object, **__: object) -> list[str]:
        calls[0] += 1
        if calls[0] == 1:
            raise fault
        repeated.set()
        return []

    monkeypatch.setattr(garbage, "collect_once", collect)
    failed = REGISTRY.get_sample_value("podrace_leaderboard_collections_failed_total")
    collecting = asyncio.create_task(
        collect_periodically(
            *(mesh.state, mesh.store, await RecentAgents.load(mesh.state, HOUR)),
            period_seconds=0.0,
            retention=Retention(),
            urgent=asyncio.Event(),
        )
    )
    async with asyncio.timeout(10):
        await repeated.wait()
    collecting.cancel()
    await asyncio.wait([collecting])
    assert failed is not None
    assert REGISTRY.get_sample_value("podrace_leaderboard_collections_failed_total") == failed + 1

from collections.abc import Callable
from typing import Any

import pytest
from policy_files import policy_file

from leaderboard import snapshots
from leaderboard.garbage import collect_once
from leaderboard.ranking.retention import Retention
from leaderboard.snapshots import SnapshotRecorder
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Manifest
from podrace.checkpoint_store.publish import claim, read_manifest, read_part
from podrace.checkpoint_store.snapshots import store_snapshot
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import (
    Agent,
    ListSnapshotsRequest,
    Snapshot,
    SnapshotChampionRequest,
    SubmitSnapshotRequest,
)

MakeSpec = Callable[..., Any]
TOURNAMENT = "cartpole-abc123"
HOUR = 3600.0
ABSENT = 64 * "0"


@pytest.fixture
def recorder(mesh: Any) -> SnapshotRecorder:
    return SnapshotRecorder(mesh.state, mesh.store)


def stored(mesh: Any, agent: Agent, policy: str, **changes: Any) -> str:
    manifest = Manifest(
        tournament_id=agent.tournament_id,
        agent_id=agent.agent_id,
        algorithm=agent.algorithm,
        hyperparameters=agent.hyperparameters,
        seed=agent.seed,
        environment_steps=100,
        lineage_environment_steps=100,
        lease_epoch=1,
    )
    for name, value in changes.items():
        setattr(manifest, name, value)
    return store_snapshot(mesh.store, policy_file(agent, policy), manifest)


def request(agent: Agent, manifest_digest: str, number: int, *, epoch: int = 1, at: float = 0.0) -> Any:
    made = SubmitSnapshotRequest(
        request_id="r",
        checkpoint=Checkpoint(agent_id=agent.agent_id, manifest_digest=manifest_digest),
        lease_epoch=epoch,
        number=number,
    )
    made.running_duration.FromMilliseconds(round(1000 * (at or 10.0 * number)))
    return made


def champions(number: int, steps: int = 5000, at: float = 0.0) -> SnapshotChampionRequest:
    made = SnapshotChampionRequest(request_id="r", tournament_id=TOURNAMENT, number=number, environment_steps=steps)
    made.running_duration.FromMilliseconds(round(1000 * (at or 10.0 * number)))
    return made


async def listed(mesh: Any, size: int = 1000, token: str = "") -> list[Snapshot]:
    page = ListSnapshotsRequest(tournament_id=TOURNAMENT, page_size=size, page_token=token)
    answer = await mesh.state.transact(snapshots.page_of_snapshots, page)
    more = await listed(mesh, size, answer.next_page_token) if answer.next_page_token else []
    return [*answer.snapshots, *more]


async def first_agent(mesh: Any, make_spec: MakeSpec, number: int = 0) -> Agent:
    agent: Agent = await mesh.generate(make_spec(), number)
    claim(mesh.store, agent.agent_id, 1)
    return agent


# --- of agents ---------------------------------------------------------------------------------------------------


async def test_a_snapshot_is_recorded_with_its_time_and_steps(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec
) -> None:
    agent = await first_agent(mesh, make_spec)
    digest = stored(mesh, agent, "policy")
    answer = (await recorder.submit(request(agent, digest, 3, at=30.25))).snapshot
    assert (answer.agent_id, answer.algorithm, answer.number, answer.champion) == (agent.agent_id, "ppo", 3, False)
    assert answer.running_duration.ToMilliseconds() == 30_250
    assert (answer.environment_steps, answer.agent_environment_steps) == (100, 100)
    assert await listed(mesh) == [answer]


async def test_the_first_snapshot_of_an_agent_and_number_is_final(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec
) -> None:
    agent = await first_agent(mesh, make_spec)
    first = await recorder.submit(request(agent, stored(mesh, agent, "policy"), 3, at=30.0))
    assert await recorder.submit(request(agent, stored(mesh, agent, "policy"), 3, at=30.0)) == first
    # Another pod resumed from an earlier checkpoint and took the snapshot again.
    claim(mesh.store, agent.agent_id, 2)
    again = await recorder.submit(request(agent, stored(mesh, agent, "another policy"), 3, epoch=2, at=31.0))
    assert again == first
    fourth = await recorder.submit(request(agent, stored(mesh, agent, "another policy"), 4, epoch=2))
    assert await listed(mesh) == [first.snapshot, fourth.snapshot]


async def test_a_pod_that_lost_its_agent_cannot_submit_snapshots(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec
) -> None:
    agent = await first_agent(mesh, make_spec)
    claim(mesh.store, agent.agent_id, 2)
    with pytest.raises(FailedPrecondition, match="epoch 1 is stale"):
        await recorder.submit(request(agent, stored(mesh, agent, "policy"), 1))
    assert not await listed(mesh)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"agent_id": "t-a9"}, "agent_id = 't-a9': expected"),
        ({"tournament_id": "u"}, "tournament_id = 'u': expected"),
        ({"algorithm": "sac"}, "algorithm = 'sac': expected 'ppo'"),
    ],
)
async def test_another_agents_snapshot_is_refused(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec, changes: dict[str, str], line: str
) -> None:
    agent = await first_agent(mesh, make_spec)
    with pytest.raises(InvalidArgument, match=line):
        await recorder.submit(request(agent, stored(mesh, agent, "policy", **changes), 1))


async def test_a_checkpoint_is_not_accepted_as_a_snapshot(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec
) -> None:
    agent = await first_agent(mesh, make_spec)
    digest = mesh.publish(agent, 5.0).checkpoint.manifest_digest
    with pytest.raises(InvalidArgument, match="is not a snapshot"):
        await recorder.submit(request(agent, digest, 1))


async def test_an_invalid_submission_is_refused_and_not_recorded(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec
) -> None:
    agent = await first_agent(mesh, make_spec)
    digest = stored(mesh, agent, "policy")
    unknown_agent = Agent(agent_id="t-a9")
    for wrong, error in [
        (request(agent, ABSENT, 1), NotFound),
        (request(agent, "nonsense", 1), InvalidArgument),
        (request(agent, digest, 0), InvalidArgument),
        (request(agent, digest, 1, at=-1.0), InvalidArgument),
        (request(unknown_agent, digest, 1), NotFound),
    ]:
        with pytest.raises(error):
            await recorder.submit(wrong)
    path = mesh.store._object_path("", digest)
    path.write_bytes(path.read_bytes()[:-1] + b"~")
    with pytest.raises(DataLoss):
        await recorder.submit(request(agent, digest, 1))
    assert not await listed(mesh)


# --- of the champion ---------------------------------------------------------------------------------------------


async def test_the_champions_snapshot_is_the_policy_of_the_best_at_that_time(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec
) -> None:
    first, second = [await mesh.generate(make_spec(), number) for number in range(2)]
    assert not (await recorder.champion(champions(1))).HasField("snapshot")
    best = (await mesh.submit(first, 5.0, environment_steps=800)).candidate
    early = (await recorder.champion(champions(2, steps=1800))).snapshot
    assert (early.agent_id, early.champion, early.number) == (first.agent_id, True, 2)
    assert (early.environment_steps, early.tournament_environment_steps) == (800, 1800)
    await mesh.submit(second, 9.0)
    assert (await recorder.champion(champions(2, steps=99))).snapshot == early, "that time has passed"
    late = (await recorder.champion(champions(3))).snapshot
    assert late.agent_id == second.agent_id
    manifest = read_manifest(mesh.store, early.manifest_digest)
    assert [part.name for part in manifest.parts] == ["policy"]
    assert manifest.parts == read_manifest(mesh.store, best.candidate_id).parts
    assert not manifest.HasField("evaluation")
    assert [one.number for one in await listed(mesh)] == [2, 3]


async def test_an_unchanged_champion_has_one_manifest_for_all_snapshots(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec
) -> None:
    agent = await mesh.generate(make_spec(), 0)
    await mesh.submit(agent, 5.0)
    digests = [(await recorder.champion(champions(number))).snapshot.manifest_digest for number in (1, 2, 3)]
    assert len(set(digests)) == 1
    assert len(await listed(mesh)) == 3


async def test_an_agents_snapshot_has_the_tournament_steps_of_the_champions_of_its_number(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec
) -> None:
    agent = await mesh.generate(make_spec(), 0)
    await mesh.submit(agent, 5.0)
    for number in (1, 2, 3):
        await recorder.submit(request(agent, stored(mesh, agent, f"{number}"), number))
    await recorder.champion(champions(2, steps=4321))
    found = {(one.champion, one.number): one.tournament_environment_steps for one in await listed(mesh)}
    assert found == {(False, 1): 0, (False, 2): 4321, (False, 3): 0, (True, 2): 4321}


@pytest.mark.parametrize("number", [0])
async def test_a_champions_snapshot_needs_a_number(recorder: SnapshotRecorder, number: int) -> None:
    with pytest.raises(InvalidArgument, match="number = 0"):
        await recorder.champion(champions(number))


async def test_a_policy_recorded_while_its_candidate_is_evicted_and_collected_stays_readable(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await one_place_for_two(mesh, make_spec)
    evicted = await old_best(mesh, first)
    noting = recorder._record

    async def note_late(draft: Snapshot) -> Snapshot:
        await mesh.submit(second, 9.0)
        await collect_once(mesh.state, mesh.store, grace_seconds=HOUR, retention=Retention())
        return await noting(draft)

    monkeypatch.setattr(recorder, "_record", note_late)
    snapshot = (await recorder.champion(champions(1))).snapshot
    assert snapshot.agent_id == first.agent_id
    with pytest.raises(NotFound):
        read_manifest(mesh.store, evicted)
    for part in read_manifest(mesh.store, snapshot.manifest_digest).parts:
        read_part(mesh.store, part)


async def test_the_next_candidate_is_recorded_if_the_first_was_collected_before_its_policy_was_read(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await one_place_for_two(mesh, make_spec)
    await old_best(mesh, first)
    transact = mesh.state.transact

    async def transact_then_lose(function: Any, *arguments: Any) -> Any:
        found = await transact(function, *arguments)
        if function is snapshots._snapshot_or_best:
            monkeypatch.setattr(mesh.state, "transact", transact)
            await mesh.submit(second, 9.0)
            await collect_once(mesh.state, mesh.store, grace_seconds=HOUR, retention=Retention())
        return found

    monkeypatch.setattr(mesh.state, "transact", transact_then_lose)
    assert (await recorder.champion(champions(1))).snapshot.agent_id == second.agent_id


async def test_missing_files_of_the_first_candidate_are_reported(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec
) -> None:
    agent = await mesh.generate(make_spec(), 0)
    best = (await mesh.submit(agent, 5.0)).candidate.candidate_id
    mesh.store._object_path(TOURNAMENT, best).unlink()
    with pytest.raises(NotFound, match=best):
        await recorder.champion(champions(1))
    assert not await listed(mesh)


async def one_place_for_two(mesh: Any, make_spec: MakeSpec) -> list[Agent]:
    one_place = {"initial_agents": 2, "fresh_probability": 0.0, "board_capacity": 1}
    return [await mesh.generate(make_spec(evolution=one_place), number) for number in range(2)]


async def old_best(mesh: Any, agent: Agent) -> str:
    """A candidate that only its place on the board keeps, older than the grace age."""
    best: str = (await mesh.submit(agent, 5.0)).candidate.candidate_id
    for attempt in range(3):
        await mesh.submit(agent, -1.0 - attempt)
    mesh.clock.now += 2 * HOUR
    return best


# --- lists and garbage -------------------------------------------------------------------------------------------


async def test_pages_together_are_the_whole_list(mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec) -> None:
    agent = await first_agent(mesh, make_spec)
    for number in range(1, 6):
        await recorder.submit(request(agent, stored(mesh, agent, f"{number}"), number))
    whole = await listed(mesh)
    assert [one.number for one in whole] == [1, 2, 3, 4, 5]
    assert [one.sequence for one in whole] == [1, 2, 3, 4, 5]
    for size in (1, 2, 4, 5):
        assert await listed(mesh, size) == whole
    with pytest.raises(InvalidArgument, match="does not belong to this list"):
        await listed(mesh, 1, "nonsense")


async def test_snapshots_are_kept_as_long_as_the_board_without_other_checkpoint_files(
    mesh: Any, recorder: SnapshotRecorder, make_spec: MakeSpec
) -> None:
    one_place = {"initial_agents": 2, "fresh_probability": 0.0, "board_capacity": 1}
    first, second = [await mesh.generate(make_spec(evolution=one_place), number) for number in range(2)]
    evicted = (await mesh.submit(first, 5.0)).candidate.candidate_id
    champion_digest = (await recorder.champion(champions(1))).snapshot.manifest_digest
    own = (await recorder.submit(request(first, stored(mesh, first, "own"), 1))).snapshot.manifest_digest
    lost = stored(mesh, first, "published, never submitted")
    await mesh.submit(second, 9.0)
    for attempt in range(3):
        await mesh.submit(first, -1.0 - attempt)
    mesh.clock.now += 2 * HOUR
    await collect_once(mesh.state, mesh.store, grace_seconds=HOUR, retention=Retention())
    for digest in (champion_digest, own):
        for part in read_manifest(mesh.store, digest).parts:
            read_part(mesh.store, part)
    for digest in (evicted, lost):
        with pytest.raises(NotFound):
            read_manifest(mesh.store, digest)
    mesh.clock.now += 48 * HOUR
    cut = Retention(best_of_idle_board=1, idle_seconds=24 * HOUR)
    await collect_once(mesh.state, mesh.store, grace_seconds=HOUR, retention=cut)
    for digest in (champion_digest, own):
        with pytest.raises(NotFound):
            read_manifest(mesh.store, digest)

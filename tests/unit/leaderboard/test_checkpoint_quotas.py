"""A tournament with `assignment.tournament_checkpoint_bytes` keeps its checkpoints within it, or gets no agents."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import structlog

from leaderboard import garbage
from leaderboard.checkpoints.checkpoint_quotas import RETRY_SECONDS, CheckpointQuotas, Measured
from leaderboard.garbage import MISSING, collect_once, tournament_record
from leaderboard.generator import Generator
from leaderboard.ranking.checkpoint_quota import Cut
from leaderboard.ranking.retention import Retention
from leaderboard.storage_quotas import NEWEST, SUBMISSIONS, quota_plan
from podrace.checkpoint_store.publish import fetch
from podrace.errors import NotFound, ResourceExhausted
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

HOUR = 3600.0
TOURNAMENT = "cartpole-abc123"
MakeSpec = Callable[..., TournamentSpec]


def limited(make_spec: MakeSpec, quota: int, **evolution: Any) -> TournamentSpec:
    settings = {"strategy": "tournament", "initial_agents": 6, "fresh_probability": 0.0, "board_capacity": 1}
    return make_spec(evolution=settings | evolution, assignment={"tournament_checkpoint_bytes": quota})


async def collected(mesh: Any, grace_seconds: float = HOUR) -> Measured:
    found: list[Measured] = []
    await collect_once(
        mesh.state, mesh.store, grace_seconds=grace_seconds, retention=Retention(), on_measured=found.append
    )
    return found[0]


def readable(mesh: Any, manifest_digest: str) -> bool:
    try:
        fetch(mesh.store, manifest_digest)
    except NotFound:
        return False
    return True


async def six_agents(mesh: Any, spec: TournamentSpec) -> tuple[list[str], list[str], str]:
    """Trains six agents that end, and a seventh that has not.

    Returns the last submissions of the six, the newest checkpoints of the six, and that of the seventh.
    """
    agents = [await mesh.generate(spec, number) for number in range(6)]
    submissions = [(await mesh.submit(agent, 9.0 - agent.number)).candidate.candidate_id for agent in agents]
    newest = [mesh.publish(agent, -1.0).checkpoint.manifest_digest for agent in agents]
    running = await mesh.generate(spec, 6)
    last = mesh.publish(running, -2.0).checkpoint.manifest_digest
    return submissions, newest, last


async def test_checkpoints_of_ended_agents_are_deleted_until_the_others_fit(mesh: Any, make_spec: MakeSpec) -> None:
    submissions, newest, last = await six_agents(mesh, limited(make_spec, 10**9))
    mesh.clock.now += 2 * HOUR
    whole = (await collected(mesh)).needed_bytes[TOURNAMENT]
    assert all(readable(mesh, name) for name in (*submissions, *newest, last))

    await set_quota(mesh, whole - 1)
    measured = await collected(mesh)
    assert measured.needed_bytes[TOURNAMENT] <= whole - 1
    assert measured.kept_bytes[TOURNAMENT] == measured.needed_bytes[TOURNAMENT]
    (cut,) = measured.cuts.values()
    assert cut.counts == {NEWEST: 1}
    assert whole - measured.needed_bytes[TOURNAMENT] == cut.deleted_bytes
    assert sum(readable(mesh, name) for name in newest) == 5
    assert all(readable(mesh, name) for name in (*submissions, last))


async def set_quota(mesh: Any, quota: int) -> None:
    """Changes the quota that is recorded, as no user can."""

    def change(transaction: Any) -> None:
        (row,) = transaction.execute("SELECT spec FROM tournaments WHERE tournament_id = ?", TOURNAMENT)
        spec = TournamentSpec.FromString(row[0])
        spec.assignment.tournament_checkpoint_bytes = quota
        transaction.execute(
            "UPDATE tournaments SET spec = ? WHERE tournament_id = ?", spec.SerializeToString(), TOURNAMENT
        )

    await mesh.state.transact(change)


async def test_what_agents_may_start_from_is_kept_although_it_exceeds_the_quota(mesh: Any, make_spec: MakeSpec) -> None:
    submissions, newest, last = await six_agents(mesh, limited(make_spec, 1))
    mesh.clock.now += 2 * HOUR
    measured = await collected(mesh)
    assert readable(mesh, submissions[0]), "it is on the board"
    assert readable(mesh, last), "its agent has not ended"
    assert not any(readable(mesh, name) for name in (*submissions[1:], *newest))
    assert measured.cuts[TOURNAMENT].counts == {NEWEST: 6, SUBMISSIONS: 5}
    assert measured.needed_bytes[TOURNAMENT] > 1


async def test_a_later_collection_misses_nothing_that_was_deleted_on_purpose(mesh: Any, make_spec: MakeSpec) -> None:
    await six_agents(mesh, limited(make_spec, 1))
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    with structlog.testing.capture_logs() as lines:
        measured = await collected(mesh)
    assert measured.cuts == {}
    assert MISSING._value.get() == 0
    assert not [line for line in lines if line["log_level"] == "error"]


async def test_files_younger_than_the_grace_age_are_kept_and_do_not_count(mesh: Any, make_spec: MakeSpec) -> None:
    submissions, newest, _ = await six_agents(mesh, limited(make_spec, 1))
    measured = await collected(mesh)
    assert all(readable(mesh, name) for name in (*submissions, *newest))
    assert measured.cuts == {}
    assert measured.needed_bytes[TOURNAMENT] < measured.kept_bytes[TOURNAMENT]


@pytest.mark.parametrize(
    ("changes", "deletable"),
    [({}, 1), ({"strategy": "incumbent"}, 0), ({"strategy": "truncation"}, 0), ({"generator": "python:a:b"}, 0)],
)
async def test_submissions_are_deleted_only_if_agents_start_from_the_board_alone(
    mesh: Any, make_spec: MakeSpec, changes: dict[str, Any], deletable: int
) -> None:
    spec = limited(make_spec, 1)
    agents = [await mesh.generate(spec, number) for number in range(2)]
    for agent in agents:
        await mesh.submit(agent, 9.0 - agent.number)
    record = await mesh.state.transact(tournament_record, TOURNAMENT)
    for name, value in changes.items():
        setattr(spec.evolution, name, value)
    kept = [candidate.candidate_id for candidate in record.submissions]
    assert len(quota_plan(TOURNAMENT, spec, record, kept).submissions) == deletable


async def test_another_tournament_without_a_quota_keeps_everything(mesh: Any, make_spec: MakeSpec) -> None:
    other = await mesh.generate(make_spec(), 0, tournament_id="rich-abc123")
    candidates = [(await mesh.submit(other, score)).candidate.candidate_id for score in (1.0, 2.0)]
    await mesh.generate(make_spec(), 1, tournament_id="rich-abc123")
    await six_agents(mesh, limited(make_spec, 1))
    mesh.clock.now += 2 * HOUR
    measured = await collected(mesh)
    assert measured.cuts.keys() == measured.quotas.keys() == {TOURNAMENT}
    assert all(readable(mesh, name) for name in candidates)


async def test_no_agent_is_generated_while_needed_checkpoints_exceed_the_quota(mesh: Any, make_spec: MakeSpec) -> None:
    quotas, spec = CheckpointQuotas(), limited(make_spec, 1)
    mesh.generator = Generator(mesh.state, quotas=quotas)
    await six_agents(mesh, spec)
    quotas.measure(await collected(mesh))
    with pytest.raises(ResourceExhausted, match=r"needs exceed its quota: \d+ bytes, and assignment") as refused:
        await mesh.generate(spec, 7)
    assert (refused.value.reason, refused.value.metadata["limit"]) == ("ERROR_REASON_QUOTA_EXCEEDED", "1")
    quotas.measure(Measured({}, {TOURNAMENT: 1}, {TOURNAMENT: 1}, {}))
    await mesh.generate(spec, 7)


def test_a_refused_agent_requests_a_collection_but_not_without_end() -> None:
    requested, now = [], [0.0]
    quotas = CheckpointQuotas(lambda: requested.append(now[0]), lambda: now[0])
    quotas.measure(Measured({}, {"t": 2}, {"t": 1}, {}))
    for moment in (0.0, 1.0, RETRY_SECONDS, RETRY_SECONDS + 1):
        now[0] = moment
        with pytest.raises(ResourceExhausted):
            quotas.check("t", "alice")
    assert requested == [0.0, RETRY_SECONDS]
    quotas.check("another", "alice")


def test_the_report_adds_up_what_was_deleted_and_ends_with_the_tournament() -> None:
    quotas = CheckpointQuotas()
    assert quotas.report("t") == ""
    cut = Cut({"a": NEWEST, "b": SUBMISSIONS}, {"a": 3, "b": 4})
    for _ in range(2):
        quotas.measure(Measured({}, {}, {"t": 1}, {"t": cut}))
    quotas.measure(Measured({}, {}, {"t": 1}, {}))
    assert (
        quotas.report("t")
        == f"2 {SUBMISSIONS}, 2 {NEWEST}: 14 bytes, because of assignment.tournament_checkpoint_bytes"
    )
    quotas.measure(Measured({}, {}, {}, {}))
    assert quotas.report("t") == ""


async def test_what_is_published_during_a_collection_does_not_stop_the_tournament(
    mesh: Any, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = limited(make_spec, 10**9)
    await six_agents(mesh, spec)
    running = await mesh.generate(spec, 7)
    mesh.clock.now += 2 * HOUR
    whole = (await collected(mesh)).needed_bytes[TOURNAMENT]
    await set_quota(mesh, whole)
    survey = garbage.survey

    def publish_and_survey(*arguments: Any, **options: Any) -> Any:
        mesh.publish(running, -3.0)
        return survey(*arguments, **options)

    monkeypatch.setattr(garbage, "survey", publish_and_survey)
    quotas = CheckpointQuotas()
    quotas.measure(await collected(mesh))
    quotas.check(TOURNAMENT, "alice")


async def test_what_an_unfinished_agent_starts_from_is_kept_after_it_left_the_board(
    mesh: Any, make_spec: MakeSpec
) -> None:
    spec = limited(make_spec, 1, initial_agents=1)
    first = await mesh.generate(spec, 0)
    start = (await mesh.submit(first, 5.0)).candidate.candidate_id
    child = await mesh.generate(spec, 1)
    assert child.starting_checkpoint.manifest_digest == start
    other = await mesh.generate(spec, 2, [child.agent_id])
    await mesh.submit(other, 50.0)
    await mesh.generate(spec, 3, [child.agent_id])
    mesh.clock.now += 2 * HOUR
    await collected(mesh)
    assert readable(mesh, start)


async def test_submissions_of_an_unfinished_agent_off_the_board_are_kept(mesh: Any, make_spec: MakeSpec) -> None:
    spec = limited(make_spec, 1)
    best, running = [await mesh.generate(spec, number) for number in range(2)]
    await mesh.submit(best, 9.0)
    submitted = (await mesh.submit(running, 1.0)).candidate.candidate_id
    # Its pointer names it, and later two others.
    for later in (0, 3):
        for number in range(later):
            mesh.publish(running, -1.0 - number)
        mesh.clock.now += 2 * HOUR
        await collected(mesh)
        assert readable(mesh, submitted)
    await mesh.generate(spec, 2, [])
    await mesh.generate(spec, 3, [])
    await collected(mesh)
    assert not readable(mesh, submitted), "its agent has ended"


async def test_former_leaders_of_games_are_kept_as_opponents(mesh: Any, make_spec: MakeSpec) -> None:
    spec = limited(make_spec, 1)
    agents = [await mesh.generate(spec, number) for number in range(3)]
    board = [(await mesh.submit(agent, score)).candidate for agent, score in zip(agents, (5.0, 1.0, 9.0), strict=True)]
    record = await mesh.state.transact(tournament_record, TOURNAMENT)
    kept = [candidate.candidate_id for candidate in board]
    assert list(quota_plan(TOURNAMENT, spec, record, kept).submissions) == kept[:2]
    assert list(quota_plan(TOURNAMENT, spec, replace(record, leaders=kept[:1]), kept).submissions) == kept[1:2]

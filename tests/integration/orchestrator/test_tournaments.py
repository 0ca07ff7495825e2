import asyncio
import dataclasses
from typing import Any

import pytest

from orchestrator.scale import Resources
from podrace import rpc
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec, TournamentSpec

RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING
ENDING = tournament_pb2.TOURNAMENT_STATE_ENDING
COMPLETED = tournament_pb2.TOURNAMENT_STATE_COMPLETED
CANCELLED = tournament_pb2.TOURNAMENT_STATE_CANCELLED
FAILED = tournament_pb2.TOURNAMENT_STATE_FAILED


def seconds(count: int) -> ObjectiveSpec:
    objective = ObjectiveSpec()
    objective.wall_clock_duration.FromSeconds(count)
    return objective


# --- creating and changing ---------------------------------------------------------------------------------------


async def test_create_fills_in_every_default_and_names_the_tournament(mesh: Any, spec: Any) -> None:
    request = pb.CreateTournamentRequest(request_id="r", spec=spec())
    created = (await mesh.call("CreateTournament", request)).tournament
    assert created.tournament_id == "race-aaaaaa"
    assert created.state == RUNNING
    assert created.spec.evaluation.episodes == 32
    assert created.leaderboard_address


async def test_create_is_done_once_however_often_it_is_asked(mesh: Any, spec: Any) -> None:
    request = pb.CreateTournamentRequest(request_id="r", spec=spec())
    names = {(await mesh.call("CreateTournament", request)).tournament.tournament_id for _ in range(3)}
    assert len(names) == 1
    assert await mesh.create(spec()) not in names


async def test_a_bad_specification_is_refused_and_leaves_nothing(mesh: Any) -> None:
    request = pb.CreateTournamentRequest(request_id="r", spec=TournamentSpec(name="race"))
    with pytest.raises(InvalidArgument, match=r"environment\.id: missing") as raised:
        await mesh.call("CreateTournament", request)
    assert raised.value.reason == "ERROR_REASON_BAD_SPEC"
    assert not (await mesh.call("ListTournaments", pb.ListTournamentsRequest())).tournaments


async def test_an_unknown_tournament_is_answered_with_the_nearest(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    with pytest.raises(NotFound, match=f"did you mean '{name}'"):
        await mesh.get(f"{name[:-1]}x")


async def test_tournaments_are_listed_newest_first_page_by_page(mesh: Any, spec: Any) -> None:
    names = [await mesh.create(spec()) for _ in range(3)]
    first = await mesh.call("ListTournaments", pb.ListTournamentsRequest(page_size=2))
    second = await mesh.call(
        "ListTournaments", pb.ListTournamentsRequest(page_size=2, page_token=first.next_page_token)
    )
    assert [found.tournament_id for found in (*first.tournaments, *second.tournaments)] == names[::-1]
    assert second.next_page_token == ""
    with pytest.raises(InvalidArgument, match="page_token 'x'"):
        await mesh.call("ListTournaments", pb.ListTournamentsRequest(page_token="x"))


async def test_update_changes_what_is_set_and_nothing_else(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(minimum_pods=1, maximum_pods=1))
    await mesh.look()
    request = pb.UpdateTournamentRequest(request_id="u", tournament_id=name)
    request.pool.maximum_pods = 2
    changed = (await mesh.call("UpdateTournament", request)).tournament.spec
    assert (changed.pool.minimum_pods, changed.pool.maximum_pods) == (1, 2)
    assert changed.objective.environment_steps == 1_000_000_000
    await mesh.look()
    assert len(await mesh.pods()) == 2


async def test_update_is_checked_like_a_new_specification(mesh: Any, spec: Any) -> None:
    request = pb.UpdateTournamentRequest(request_id="u", tournament_id=await mesh.create(spec(minimum_pods=3)))
    request.pool.maximum_pods = 2
    with pytest.raises(InvalidArgument, match=r"pool\.maximum_pods = 2: less than"):
        await mesh.call("UpdateTournament", request)


async def test_the_size_of_a_round_cannot_be_changed(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True))
    request = pb.UpdateTournamentRequest(request_id="u", tournament_id=name)
    request.pool.maximum_pods = 3
    with pytest.raises(InvalidArgument, match="size of a round"):
        await mesh.call("UpdateTournament", request)


async def test_a_tournament_that_has_ended_cannot_be_changed(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cancel(name)
    with pytest.raises(FailedPrecondition) as raised:
        await mesh.call("UpdateTournament", pb.UpdateTournamentRequest(request_id="u", tournament_id=name))
    assert raised.value.reason == "ERROR_REASON_TOURNAMENT_ENDED"


async def test_a_mesh_that_starts_no_pods_takes_no_work(open_mesh: Any, spec: Any) -> None:
    async with open_mesh(start_pods=False) as mesh:
        with pytest.raises(FailedPrecondition, match="starts no pods"):
            await mesh.create(spec())
        with pytest.raises(FailedPrecondition, match="starts no pods"):
            await mesh.evaluate("race-aaaaaa")


# --- ends --------------------------------------------------------------------------------------------------------


async def test_a_met_target_ends_the_tournament_and_names_the_champion(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=ObjectiveSpec(target_return=475.0), maximum_pods=1))
    await mesh.look()
    work = await mesh.assigned(f"{name}-p0")
    mesh.leaderboard.score(name, 480.0)
    await mesh.look()
    ending = await mesh.get(name)
    assert ending.state == ENDING
    assert ending.reason == "target return: the best candidate scores 480, the target is 475"
    assert (await mesh.renew(work)).directive == pb.DIRECTIVE_DRAIN
    mesh.leaderboard.score(name, 490.0)
    await mesh.complete(work, pb.OUTCOME_DRAINED)
    await mesh.look()
    completed = await mesh.get(name)
    assert completed.state == COMPLETED
    assert (completed.best_score, completed.best_score_standard_error) == (490.0, 0.5)
    assert (completed.best_agent_id, completed.champion_manifest_digest) == (f"{name}-a0", "digest-of-490")
    assert completed.end_time.seconds > 0
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "drain"


async def test_an_ending_tournament_waits_for_its_pods_but_not_for_dead_ones(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=seconds(5), maximum_pods=2))
    await mesh.look()
    await mesh.assigned(f"{name}-p0")
    second = await mesh.assigned(f"{name}-p1")
    await mesh.look(6.0)
    assert (await mesh.get(name)).state == ENDING
    mesh.launcher.pods.pop(f"{name}-p0")
    await mesh.look()
    assert (await mesh.get(name)).state == ENDING
    await mesh.complete(second, pb.OUTCOME_DRAINED)
    await mesh.look()
    assert (await mesh.get(name)).state == COMPLETED


async def test_the_wall_clock_leaves_pauses_out(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=seconds(60)))
    await mesh.look()
    await mesh.look(40.0)
    await mesh.cancel(name)
    await mesh.look()
    await mesh.look(1000.0)
    await mesh.resume(name)
    await mesh.look()
    await mesh.look(19.0)
    assert (await mesh.get(name)).state == RUNNING
    assert (await mesh.get(name)).running_duration.seconds == 59
    await mesh.look(1.0)
    assert (await mesh.get(name)).state == COMPLETED


async def test_enough_steps_end_the_tournament(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=ObjectiveSpec(environment_steps=100)))
    await mesh.look()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.renew(works[0], environment_steps=60)
    await mesh.look()
    assert (await mesh.get(name)).state == RUNNING
    await mesh.renew(works[1], environment_steps=40)
    await mesh.look()
    assert (await mesh.get(name)).state == ENDING
    assert (await mesh.get(name)).environment_steps == 100


async def test_a_cancelled_tournament_keeps_everything_and_goes_on_when_resumed(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.look()
    work = await mesh.assigned(f"{name}-p0")
    await mesh.cancel(name, "lunch")
    assert (await mesh.renew(work, environment_steps=70)).directive == pb.DIRECTIVE_DRAIN
    await mesh.complete(work, pb.OUTCOME_DRAINED, progress=pb.Progress(environment_steps=80))
    mesh.launcher.pods.clear()
    await mesh.look()
    cancelled = await mesh.get(name)
    assert (cancelled.state, cancelled.reason, cancelled.environment_steps) == (CANCELLED, "lunch", 80)
    await mesh.resume(name)
    await mesh.look()
    again = await mesh.assigned(f"{name}-p1")
    assert (again.train.agent_id, again.lease_epoch) == (f"{name}-a0", 2)
    assert not (await mesh.get(name)).HasField("end_time")


async def test_a_tournament_that_reached_its_objective_cannot_be_resumed(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=seconds(1)))
    await mesh.look()
    await mesh.look(2.0)
    with pytest.raises(FailedPrecondition, match="create another"):
        await mesh.resume(name)


async def test_cancelling_twice_changes_nothing(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cancel(name, "first")
    await mesh.cancel(name, "second")
    assert (await mesh.get(name)).reason == "first"


async def test_a_leaderboard_that_is_away_only_delays_the_end(mesh: Any, spec: Any) -> None:
    async def silence(*_: Any) -> None:
        raise Unavailable("away")

    name = await mesh.create(spec(objective=seconds(5)))
    mesh.leaderboard.score(name, 3.0)
    await mesh.look()
    mesh.leaderboard.ListCandidates = silence
    await mesh.look(6.0)
    assert (await mesh.get(name)).best_score == 3.0, "what was known stays known"
    assert (await mesh.get(name)).state == ENDING
    await mesh.look(11.0)
    assert (await mesh.get(name)).state == COMPLETED


# --- rounds ------------------------------------------------------------------------------------------------------


async def test_a_round_is_generated_as_a_whole_and_in_order(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True))
    await mesh.look()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    assert [work.train.number for work in works] == [0, 1]
    told = [(asked.number, list(asked.unfinished_agent_ids)) for asked in mesh.leaderboard.asked]
    assert told == [(0, []), (1, [f"{name}-a0"])]


async def test_the_next_round_begins_when_the_last_agent_of_the_earlier_one_is_done_and_judged(
    mesh: Any, spec: Any
) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True, objective=ObjectiveSpec(target_return=1.0)))
    await mesh.look()
    first, second = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(first)
    await mesh.look()
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "retry_after"
    await mesh.complete(second, pb.OUTCOME_AGENT_FAILED, message="NaN")
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "retry_after", "not judged yet"
    await mesh.look()
    assert (await mesh.assigned(f"{name}-p0")).train.number == 2


async def test_a_synchronous_tournament_ends_between_rounds_only(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True, objective=ObjectiveSpec(target_return=1.0)))
    await mesh.look()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    mesh.leaderboard.score(name, 2.0)
    await mesh.complete(works[0])
    await mesh.look()
    assert (await mesh.get(name)).state == RUNNING
    await mesh.complete(works[1])
    await mesh.look()
    assert (await mesh.get(name)).state == COMPLETED
    assert [asked.number for asked in mesh.leaderboard.asked] == [0, 1], "no agent of a round that is never run"


# --- watching ----------------------------------------------------------------------------------------------------


async def test_a_watcher_sees_what_is_then_what_changes_then_the_end(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    seen: list[pb.WatchTournamentResponse] = []
    request = pb.WatchTournamentRequest(tournament_id=name)
    async for message in rpc.stream(mesh.stub.WatchTournament, request, deadline_seconds=20):
        seen.append(message)
        if len(seen) == 1:
            await mesh.look()
        elif message.pods and message.tournament.state == RUNNING:
            await mesh.cancel(name)
    assert [event.kind for event in seen[0].events] == ["tournament_created"]
    assert seen[-1].tournament.state == CANCELLED
    sequences = [event.sequence for message in seen for event in message.events]
    assert sequences == sorted(set(sequences)), "each event once, in order"
    assert "tournament_cancelled" in [event.kind for event in seen[-1].events]


async def test_a_watcher_that_comes_back_gets_only_later_events(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cancel(name)
    first = await anext(
        rpc.stream(mesh.stub.WatchTournament, pb.WatchTournamentRequest(tournament_id=name), deadline_seconds=10)
    )
    request = pb.WatchTournamentRequest(tournament_id=name, resume_token=first.resume_token)
    again = [message async for message in rpc.stream(mesh.stub.WatchTournament, request, deadline_seconds=10)]
    assert [list(message.events) for message in again] == [[]]
    assert again[0].tournament.state == CANCELLED


async def test_a_watcher_of_nothing_is_refused(mesh: Any) -> None:
    request = pb.WatchTournamentRequest(tournament_id="nobody")
    with pytest.raises(NotFound, match="unknown tournament 'nobody'"):
        await anext(rpc.stream(mesh.stub.WatchTournament, request, deadline_seconds=10))


async def test_a_watcher_is_sent_away_when_the_server_stops(mesh: Any, spec: Any) -> None:
    request = pb.WatchTournamentRequest(tournament_id=await mesh.create(spec()))
    messages = rpc.stream(mesh.stub.WatchTournament, request, deadline_seconds=10)
    await anext(messages)
    mesh.servicer.close()
    with pytest.raises(Unavailable, match="watch again with the last resume_token"):
        await anext(messages)


# --- pods of tournaments -----------------------------------------------------------------------------------------


async def test_the_pool_fills_the_machine_and_every_decision_has_a_reason(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.look()
    assert [pod.pod_id for pod in await mesh.pods(name)] == [f"{name}-p0", f"{name}-p1"]
    reasons = [event.message for event in await mesh.events(name) if event.kind == "pod_started"]
    assert reasons == [
        f"{name}-p0: pod 1 of the 1 it always has",
        f"{name}-p1: 1 cores are free, a pod needs 1",
    ]


async def test_looking_again_and_again_records_nothing(mesh: Any, spec: Any) -> None:
    big = spec()
    big.pod.memory_bytes = 100 << 30
    await mesh.create(spec(maximum_pods=1))
    short = await mesh.create(big)
    await mesh.look()
    before = await mesh.events()
    for _ in range(20):
        await mesh.look(0.5)
    assert await mesh.events() == before
    assert (await mesh.kinds(short)).count("pool_short") == 1


async def test_two_tournaments_share_the_machine(mesh: Any, spec: Any) -> None:
    first = await mesh.create(spec())
    await mesh.look()
    second = await mesh.create(spec(minimum_pods=0))
    await mesh.look()
    draining = [pod.pod_id for pod in await mesh.pods(first) if pod.activity == pb.POD_ACTIVITY_DRAINING]
    assert draining == [f"{first}-p1"]
    answer = await mesh.acquire(f"{first}-p1")
    assert answer.drain == f"{first} is entitled to 1 pods now"
    mesh.launcher.pods.pop(f"{first}-p1")
    await mesh.look()
    assert [pod.pod_id for pod in await mesh.pods(second)] == [f"{second}-p0"]


async def test_a_machine_that_shrinks_shrinks_the_pool(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.look()
    mesh.capacity.append(dataclasses.replace(mesh.capacity[-1], total=Resources(1.0, 64 << 30, 0)))
    await mesh.look()
    activities = [pod.activity for pod in await mesh.pods(name)]
    assert activities.count(pb.POD_ACTIVITY_DRAINING) == 1


async def test_pods_of_a_cancelled_tournament_go_sooner_or_later(mesh: Any, spec: Any) -> None:
    mesh.launcher.stubborn = True
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.look()
    await mesh.cancel(name)
    await mesh.look()
    await mesh.look(19.0)
    assert mesh.launcher.stopped == []
    await mesh.look(1.0)
    await mesh.look(1.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", False)]
    await mesh.look(40.0)
    assert mesh.launcher.stopped[1:] == [(f"{name}-p0", True)]
    await mesh.look()
    assert await mesh.pods() == []
    assert (await mesh.kinds(name))[-3:] == ["pod_terminated", "pod_killed", "pod_gone"]


async def test_dead_pods_are_replaced_later_and_later_and_finally_the_tournament_fails(mesh: Any, spec: Any) -> None:
    mesh.launcher.words = "error: no such environment"
    name = await mesh.create(spec(maximum_pods=1))
    waits = []
    for _ in range(5):
        await mesh.look()
        waited = 0.0
        while not mesh.launcher.pods and waited < 60:
            waited += 0.25
            await mesh.look(0.25)
        waits.append(waited)
        mesh.launcher.pods.clear()
    await mesh.look()
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0]
    failed = await mesh.get(name)
    assert failed.state == FAILED
    assert failed.reason.endswith("the last one said: error: no such environment")
    await mesh.resume(name)
    await mesh.look(60.0)
    assert (await mesh.get(name)).state == RUNNING
    assert len(await mesh.pods(name)) == 1


async def test_a_pod_that_can_never_be_started_fails_its_tournament_at_once(mesh: Any, spec: Any) -> None:
    mesh.launcher.refusal = InvalidArgument("name: 7 characters too long")
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.look()
    await mesh.look()
    assert ((await mesh.get(name)).state, (await mesh.get(name)).reason) == (FAILED, "name: 7 characters too long")


async def test_a_launcher_that_is_away_is_asked_again(mesh: Any, spec: Any) -> None:
    mesh.launcher.refusal = Unavailable("the nursery does not answer")
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.look()
    await mesh.look()
    assert "pod_died" in await mesh.kinds(name)
    mesh.launcher.refusal = None
    await mesh.look(5.0)
    assert len(mesh.launcher.pods) == 1


async def test_unknown_pods_are_told_to_go(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.look()
    stranger = dataclasses.replace(mesh.launcher.pods[f"{name}-p0"], pod_id="other-bbbbbb-p7", tournament_id="other")
    mesh.launcher.pods[stranger.pod_id] = stranger
    await mesh.look()
    assert (await mesh.acquire("other-bbbbbb-p7")).drain == "this orchestrator does not know it"
    await mesh.look(20.0)
    assert mesh.launcher.stopped == [("other-bbbbbb-p7", False)]


# --- the end of a mesh -------------------------------------------------------------------------------------------


async def test_a_mesh_that_stops_cancels_drains_waits_and_kills(open_mesh: Any, spec: Any) -> None:
    async with open_mesh(mesh_id="m") as mesh:
        mesh.launcher.stubborn = True
        name = await mesh.create(spec(maximum_pods=1))
        await mesh.look()
        work = await mesh.assigned(f"{name}-p0")
        dismissing = asyncio.create_task(mesh.reconciler.dismiss(grace_seconds=20.0))
        while not mesh.launcher.stopped:
            assert not dismissing.done()
            await asyncio.sleep(0)
        assert (await mesh.renew(work)).directive == pb.DIRECTIVE_DRAIN
        assert mesh.launcher.stopped == [(f"{name}-p0", False)], "nothing is killed within the grace"
        mesh.clock.now += 20.0
        await dismissing
        assert mesh.launcher.stopped[1] == (f"{name}-p0", True)
        assert ((await mesh.get(name)).state, (await mesh.get(name)).reason) == (CANCELLED, "the mesh was stopped")
        assert await mesh.pods() == []

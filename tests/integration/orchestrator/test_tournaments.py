import asyncio
from typing import Any

import pytest

from orchestrator import service
from orchestrator.decisions.resources import Capacity, Resources
from podrace import rpc
from podrace.access.principal import Principal, set_current_principal
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import AssignmentSpec, ObjectiveSpec, TournamentSpec

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
    assert created.spec.evaluation.episodes == 64
    assert created.leaderboard_address


async def test_callers_with_tokens_and_no_certificates_get_the_address_of_the_leaderboard_that_is_for_them(
    mesh: Any, spec: Any
) -> None:
    mesh.servicer._token_leaderboard_address = "leaderboard:50062"
    request = pb.GetTournamentRequest(tournament_id=await mesh.create(spec()))
    seen = {}
    for via in ("oidc", "kubernetes", "certificate", "token", "unix"):
        set_current_principal(Principal("alice", frozenset(), via=via))
        seen[via] = (await mesh.servicer.GetTournament(request, None)).tournament.leaderboard_address
    assert seen["oidc"] == seen["kubernetes"] == "leaderboard:50062"
    assert {seen["certificate"], seen["token"], seen["unix"]} == {mesh.servicer._leaderboard_address}


async def test_a_repeated_create_request_creates_one_tournament(mesh: Any, spec: Any) -> None:
    request = pb.CreateTournamentRequest(request_id="r", spec=spec())
    names = {(await mesh.call("CreateTournament", request)).tournament.tournament_id for _ in range(3)}
    assert len(names) == 1
    assert await mesh.create(spec()) not in names


async def test_an_invalid_specification_is_rejected_and_nothing_is_stored(mesh: Any) -> None:
    request = pb.CreateTournamentRequest(request_id="r", spec=TournamentSpec(name="race"))
    with pytest.raises(InvalidArgument, match=r"environment\.id: missing") as raised:
        await mesh.call("CreateTournament", request)
    assert raised.value.reason == "ERROR_REASON_BAD_SPEC"
    assert not (await mesh.call("ListTournaments", pb.ListTournamentsRequest())).tournaments


async def test_the_error_for_an_unknown_tournament_suggests_the_closest_id(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    with pytest.raises(NotFound, match=f"did you mean '{name}'"):
        await mesh.get(f"{name[:-1]}x")


async def test_tournaments_are_listed_in_pages_newest_first(mesh: Any, spec: Any) -> None:
    names = [await mesh.create(spec()) for _ in range(3)]
    first = await mesh.call("ListTournaments", pb.ListTournamentsRequest(page_size=2))
    second = await mesh.call(
        "ListTournaments", pb.ListTournamentsRequest(page_size=2, page_token=first.next_page_token)
    )
    assert [found.tournament_id for found in (*first.tournaments, *second.tournaments)] == names[::-1]
    assert second.next_page_token == ""
    with pytest.raises(InvalidArgument, match="page_token 'x' does not belong to this list"):
        await mesh.call("ListTournaments", pb.ListTournamentsRequest(page_token="x"))


async def test_a_page_token_is_refused_by_every_other_list(mesh: Any, spec: Any) -> None:
    name, other = await mesh.create(spec()), await mesh.create(spec())
    for _ in range(2):
        await mesh.evaluate(name)
    first = await mesh.call("ListEvaluations", pb.ListEvaluationsRequest(tournament_id=name, page_size=1))
    token = first.next_page_token
    assert token
    for method, request in (
        ("ListEvaluations", pb.ListEvaluationsRequest(tournament_id=other, page_token=token)),
        ("ListEvents", pb.ListEventsRequest(tournament_id=name, page_token=token)),
        ("ListEvents", pb.ListEventsRequest(page_token=token)),
        ("ListPods", pb.ListPodsRequest(tournament_id=name, page_token=token)),
        ("ListTournaments", pb.ListTournamentsRequest(page_token=token)),
    ):
        with pytest.raises(InvalidArgument, match="does not belong to this list"):
            await mesh.call(method, request)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("ListEvaluations", pb.ListEvaluationsRequest),
        ("ListEvents", pb.ListEventsRequest),
        ("ListPods", pb.ListPodsRequest),
    ],
)
async def test_a_list_about_an_unknown_tournament_is_not_found(mesh: Any, spec: Any, method: str, kind: Any) -> None:
    name = await mesh.create(spec())
    with pytest.raises(NotFound, match=f"did you mean '{name}'"):
        await mesh.call(method, kind(tournament_id=f"{name[:-1]}x"))


async def test_an_update_changes_only_the_fields_that_are_set(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(minimum_pods=1, maximum_pods=1))
    await mesh.cycle()
    request = pb.UpdateTournamentRequest(request_id="u", tournament_id=name)
    request.pool.maximum_pods = 2
    changed = (await mesh.call("UpdateTournament", request)).tournament.spec
    assert (changed.pool.minimum_pods, changed.pool.maximum_pods) == (1, 2)
    assert changed.objective.environment_steps == 1_000_000_000
    (message,) = [event.message for event in await mesh.events(name) if event.kind == "tournament_updated"]
    assert message == "pool.maximum_pods 1 -> 2"
    await mesh.cycle()
    assert len(await mesh.pods()) == 2


async def test_an_update_is_validated_like_a_new_specification(mesh: Any, spec: Any) -> None:
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


async def test_an_ended_tournament_cannot_be_changed(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cancel(name)
    with pytest.raises(FailedPrecondition) as raised:
        await mesh.call("UpdateTournament", pb.UpdateTournamentRequest(request_id="u", tournament_id=name))
    assert raised.value.reason == "ERROR_REASON_TOURNAMENT_ENDED"


async def test_a_mesh_that_starts_no_pods_accepts_no_work(open_mesh: Any, spec: Any) -> None:
    async with open_mesh(start_pods=False) as mesh:
        with pytest.raises(FailedPrecondition, match="starts no pods"):
            await mesh.create(spec())
        with pytest.raises(FailedPrecondition, match="starts no pods"):
            await mesh.evaluate("race-aaaaaa")


# --- ends --------------------------------------------------------------------------------------------------------


async def test_a_met_objective_ends_the_tournament_and_its_best_candidate_is_champion(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=ObjectiveSpec(environment_steps=100), maximum_pods=1))
    await mesh.cycle()
    work = await mesh.assigned(f"{name}-p0")
    mesh.leaderboard.score(name, 480.0)
    await mesh.renew(work, environment_steps=100)
    await mesh.cycle()
    ending = await mesh.get(name)
    assert (ending.state, ending.reason) == (ENDING, "environment steps: 100 of 100")
    assert (await mesh.renew(work)).directive == pb.DIRECTIVE_YIELD
    mesh.leaderboard.score(name, 490.0)
    await mesh.complete(work, pb.OUTCOME_DRAINED)
    await mesh.cycle()
    completed = await mesh.get(name)
    assert completed.state == COMPLETED
    assert (completed.best_score, completed.best_score_standard_error) == (490.0, 0.5)
    assert (completed.best_agent_id, completed.champion_manifest_digest) == (f"{name}-a0", "digest-of-490")
    assert completed.end_time.seconds > 0
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "drain"


async def test_an_ending_tournament_waits_only_for_living_pods(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=seconds(5), maximum_pods=2))
    await mesh.cycle()
    await mesh.assigned(f"{name}-p0")
    second = await mesh.assigned(f"{name}-p1")
    await mesh.cycle(6.0)
    assert (await mesh.get(name)).state == ENDING
    mesh.launcher.pods.pop(f"{name}-p0")
    await mesh.cycle()
    assert (await mesh.get(name)).state == ENDING
    await mesh.complete(second, pb.OUTCOME_DRAINED)
    await mesh.cycle()
    assert (await mesh.get(name)).state == COMPLETED


async def test_the_wall_clock_objective_excludes_pauses(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=seconds(60)))
    await mesh.cycle()
    await mesh.cycle(40.0)
    await mesh.cancel(name)
    await mesh.cycle()
    await mesh.cycle(1000.0)
    await mesh.resume(name)
    await mesh.cycle()
    await mesh.cycle(19.0)
    assert (await mesh.get(name)).state == RUNNING
    assert (await mesh.get(name)).running_duration.seconds == 59
    await mesh.cycle(1.0)
    assert (await mesh.get(name)).state == COMPLETED


async def test_the_steps_of_all_agents_count_for_the_objective(mesh: Any, spec: Any) -> None:
    limits = {"objective": ObjectiveSpec(environment_steps=100), "assignment": AssignmentSpec(environment_steps=60)}
    name = await mesh.create(spec(**limits))
    await mesh.cycle()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    assert [work.maximum_environment_steps for work in works] == [50, 50], "each pod has an equal part"
    await mesh.renew(works[0], environment_steps=50)
    await mesh.cycle()
    assert (await mesh.get(name)).state == RUNNING
    await mesh.renew(works[1], environment_steps=50)
    await mesh.cycle()
    assert (await mesh.get(name)).state == ENDING
    assert (await mesh.get(name)).environment_steps == 100


async def test_pods_that_ask_together_get_equal_parts_of_a_step_budget(mesh: Any, spec: Any) -> None:
    limits = {"objective": ObjectiveSpec(environment_steps=900), "assignment": AssignmentSpec(environment_steps=600)}
    mesh.capacity.append(Capacity(Resources(3.0, 64 << 30, 0), 64 << 30))
    name = await mesh.create(spec(maximum_pods=3, **limits))
    await mesh.cycle()
    works = await asyncio.gather(*(mesh.assigned(f"{name}-p{number}") for number in range(len(mesh.launcher.pods))))
    assert [work.maximum_environment_steps for work in works] == [900 // len(works)] * len(works)
    assert len(works) == 3


async def test_a_pod_without_work_gets_its_part_of_what_is_left_when_there_is_work_again(mesh: Any, spec: Any) -> None:
    limits = {"objective": ObjectiveSpec(environment_steps=1000), "assignment": AssignmentSpec(environment_steps=1000)}
    name = await mesh.create(spec(**limits))
    await mesh.cycle()
    mesh.leaderboard.no_work_reason = "wait"
    request = pb.AcquireAssignmentRequest(pod_id=f"{name}-p1", incarnation="run")
    assert (await mesh.call("AcquireAssignment", request)).WhichOneof("answer") == "retry_after"
    mesh.leaderboard.no_work_reason = ""
    first = await mesh.assigned(f"{name}-p0")
    await mesh.renew(first, environment_steps=400)
    await mesh.cycle()
    second = await mesh.assigned(f"{name}-p1")
    assert (first.maximum_environment_steps, second.maximum_environment_steps) == (500, 300)


async def test_a_resumed_tournament_continues_where_it_was_cancelled(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    work = await mesh.assigned(f"{name}-p0")
    await mesh.cancel(name, "lunch")
    assert (await mesh.renew(work, environment_steps=70)).directive == pb.DIRECTIVE_DRAIN
    await mesh.complete(work, pb.OUTCOME_DRAINED, progress=pb.Progress(environment_steps=80))
    mesh.launcher.pods.clear()
    await mesh.cycle()
    cancelled = await mesh.get(name)
    assert (cancelled.state, cancelled.reason, cancelled.environment_steps) == (CANCELLED, "lunch", 80)
    await mesh.resume(name)
    await mesh.cycle()
    again = await mesh.assigned(f"{name}-p1")
    assert (again.train.agent_id, again.lease_epoch) == (f"{name}-a0", 2)
    assert not (await mesh.get(name)).HasField("end_time")


async def test_a_completed_tournament_cannot_be_resumed(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=seconds(1)))
    await mesh.cycle()
    await mesh.cycle(2.0)
    with pytest.raises(FailedPrecondition, match="create a new one"):
        await mesh.resume(name)


async def test_cancelling_twice_keeps_the_first_reason(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cancel(name, "first")
    await mesh.cancel(name, "second")
    assert (await mesh.get(name)).reason == "first"


async def test_an_unavailable_leaderboard_only_delays_the_end(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=seconds(5)))
    mesh.leaderboard.score(name, 3.0)
    await mesh.cycle()
    mesh.leaderboard.unreachable = True
    await mesh.cycle(6.0)
    assert (await mesh.get(name)).best_score == 3.0, "the last known score is kept"
    assert (await mesh.get(name)).state == ENDING
    await mesh.cycle(11.0)
    assert (await mesh.get(name)).state == ENDING, "its champion is not selected"
    await mesh.cycle(120.0)
    assert (await mesh.get(name)).state == COMPLETED


# --- rounds ------------------------------------------------------------------------------------------------------


async def test_a_round_is_generated_as_a_whole_and_in_order(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True))
    await mesh.cycle()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    assert [work.train.number for work in works] == [0, 1]
    requests = [(request.number, list(request.unfinished_agent_ids)) for request in mesh.leaderboard.generate_requests]
    assert requests == [(0, []), (1, [f"{name}-a0"])]


async def test_the_next_round_starts_after_the_previous_one_is_done_and_checked(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True, objective=ObjectiveSpec(target_return=1.0)))
    await mesh.cycle()
    first, second = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(first)
    await mesh.cycle()
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "retry_after"
    await mesh.complete(second, pb.OUTCOME_AGENT_FAILED, message="NaN")
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "retry_after", "not checked yet"
    await mesh.cycle()
    assert (await mesh.assigned(f"{name}-p0")).train.number == 2


async def test_a_synchronous_tournament_ends_between_rounds_only(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True, objective=ObjectiveSpec(environment_steps=10)))
    await mesh.cycle()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(works[0], progress=pb.Progress(environment_steps=10))
    await mesh.cycle()
    assert (await mesh.get(name)).state == RUNNING
    await mesh.complete(works[1])
    await mesh.cycle()
    assert (await mesh.get(name)).state == COMPLETED
    numbers = [request.number for request in mesh.leaderboard.generate_requests]
    assert numbers == [0, 1], "no agent of the next round is generated"


# --- watching ----------------------------------------------------------------------------------------------------


async def test_a_watcher_gets_the_current_state_then_changes_then_the_end(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    seen: list[pb.WatchTournamentResponse] = []
    request = pb.WatchTournamentRequest(tournament_id=name)
    async for message in rpc.stream(mesh.stub.WatchTournament, request, deadline_seconds=20):
        seen.append(message)
        if len(seen) == 1:
            await mesh.cycle()
        elif message.pods and message.tournament.state == RUNNING:
            await mesh.cancel(name)
    assert [event.kind for event in seen[0].events] == ["tournament_created"]
    assert seen[-1].tournament.state == CANCELLED
    sequences = [event.sequence for message in seen for event in message.events]
    assert sequences == sorted(set(sequences)), "each event once, in order"
    assert "tournament_cancelled" in [event.kind for event in seen[-1].events]


async def test_watchers_rest_longer_the_more_there_are(mesh: Any, spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def rest(spent_seconds: float, built_seconds: float, watchers: int) -> float:
        counts.append(watchers)
        return 0.0

    monkeypatch.setattr(service, "watch_rest", rest)
    request = pb.WatchTournamentRequest(tournament_id=await mesh.create(spec()))
    watches = [rpc.stream(mesh.stub.WatchTournament, request, deadline_seconds=20) for _ in range(3)]
    for number, watch in enumerate(watches, start=1):
        await anext(watch)
        async with asyncio.timeout(20):
            while max(counts, default=0) < number:
                await asyncio.sleep(0)
    assert max(counts) == len(watches)
    await mesh.cancel(request.tournament_id)
    for watch in watches:
        assert [message async for message in watch][-1].tournament.state == CANCELLED
    assert mesh.servicer._watchers == 0


async def test_a_resumed_watch_returns_only_later_events(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cancel(name)
    first = await anext(
        rpc.stream(mesh.stub.WatchTournament, pb.WatchTournamentRequest(tournament_id=name), deadline_seconds=10)
    )
    request = pb.WatchTournamentRequest(tournament_id=name, resume_token=first.resume_token)
    again = [message async for message in rpc.stream(mesh.stub.WatchTournament, request, deadline_seconds=10)]
    assert [list(message.events) for message in again] == [[]]
    assert again[0].tournament.state == CANCELLED


async def test_watching_an_unknown_tournament_is_rejected(mesh: Any) -> None:
    request = pb.WatchTournamentRequest(tournament_id="unknown")
    with pytest.raises(NotFound, match="unknown tournament 'unknown'"):
        await anext(rpc.stream(mesh.stub.WatchTournament, request, deadline_seconds=10))


async def test_a_watch_ends_with_an_error_when_the_server_stops(mesh: Any, spec: Any) -> None:
    request = pb.WatchTournamentRequest(tournament_id=await mesh.create(spec()))
    messages = rpc.stream(mesh.stub.WatchTournament, request, deadline_seconds=10)
    await anext(messages)
    mesh.servicer.close()
    with pytest.raises(Unavailable, match="watch again with the last resume_token"):
        await anext(messages)


async def test_large_specifications_are_listed_in_pages_that_fit_into_messages(mesh: Any, spec: Any) -> None:
    created = []
    for _ in range(20):
        large = spec()
        for section in (large.environment, large.evaluation, large.reports["a"], large.reports["b"]):
            section.options["text"] = "x" * 60_000
        created.append(await mesh.create(large))
    request, listed, pages = pb.ListTournamentsRequest(page_size=1000), [], 0
    while True:
        page = await mesh.call("ListTournaments", request)
        listed += [tournament.tournament_id for tournament in page.tournaments]
        pages, request.page_token = pages + 1, page.next_page_token
        if not request.page_token:
            break
    assert listed == created[::-1]
    assert pages > 1

import dataclasses
from collections.abc import Sequence

import pytest

from orchestrator.decisions.pod_sizes.changes import Resize
from orchestrator.decisions.pool_size import MAXIMUM_DEATHS, KillPod
from orchestrator.decisions.resources import Resources
from orchestrator.launchers.base import ListedPod
from orchestrator.pool import pod_lifecycle, resizes
from orchestrator.pool.pod_lifecycle import START_GRACE_SECONDS, compare
from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import FAILED, RUNNING, EventRecord, PodPhase, PodRecord, TournamentRecord
from orchestrator.tournaments import lifecycle
from podrace.access.ownership import Ownership
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.resolve import resolve
from podrace.tournament.v1.tournament_pb2 import LAYOUT_SEPARATE, ObjectiveSpec, TournamentSpec


def recorded(pod_id: str = "p0", phase: PodPhase = PodPhase.SEEN) -> PodRecord:
    return PodRecord(pod_id, "t", 0, phase, 0.0, 2, 1.0, 1, 0, useful=False, drain_reason="")


def listed(pod_id: str = "p0") -> ListedPod:
    return ListedPod(pod_id, "t", 0.0, 2, Resources(1.0, 1, 0))


def test_a_seen_pod_that_is_no_longer_listed_is_gone_at_once() -> None:
    assert compare([recorded()], [], [], {"p0": 0.0}).gone == [recorded()]


@pytest.mark.parametrize(("absent", "gone"), [(START_GRACE_SECONDS - 0.1, 0), (START_GRACE_SECONDS, 1)])
def test_an_intended_pod_gets_time_to_appear(absent: float, gone: int) -> None:
    assert len(compare([recorded(phase=PodPhase.INTENDED)], [], [], {"p0": absent}).gone) == gone


def test_a_pod_that_is_being_started_is_never_gone() -> None:
    assert compare([recorded(phase=PodPhase.INTENDED)], [], ["p0"], {"p0": 1000.0}).gone == []


def test_a_pod_without_a_record_is_unknown() -> None:
    found = compare([], [listed()], [], {})
    assert (found.unknown, found.gone, found.appeared) == ([listed()], [], [])


def test_a_pod_that_its_platform_removes_is_reported_until_that_is_recorded() -> None:
    removed = dataclasses.replace(listed(), removed=True)
    assert compare([recorded()], [removed], [], {}).removed == [recorded()]
    assert compare([dataclasses.replace(recorded(), useful=True)], [removed], [], {}).removed == []
    assert compare([recorded()], [listed()], [], {}).removed == []


def test_a_pod_is_reported_as_appeared_only_once() -> None:
    intended = recorded(phase=PodPhase.INTENDED)
    assert compare([intended], [listed()], ["p0"], {}).appeared == [intended]
    assert compare([recorded()], [listed()], [], {}).appeared == []


def new_tournament(transaction: Transaction) -> TournamentRecord:
    spec = TournamentSpec(name="race", objective=ObjectiveSpec(environment_steps=10))
    spec.environment.id = "CartPole-v1"
    spec.algorithms["ppo"].SetInParent()
    request = pb.CreateTournamentRequest(request_id="r", spec=spec)
    return lifecycle.create(
        transaction, request, resolve(spec), "", lambda count: b"\x00" * count, Ownership("alice"), "key"
    )


@pytest.mark.parametrize(("id", "expected"), [("CartPole-v1", False), ("python:robots:make", True)])
async def test_a_launcher_learns_whether_the_specification_names_user_code(
    state: StateDatabase, id: str, expected: bool
) -> None:
    def create(transaction: Transaction) -> bool:
        tournament = new_tournament(transaction)
        tournament.spec.environment.id = id
        records.save(transaction, tournament)
        return pod_lifecycle.record_intent(transaction, tournament.tournament_id, "needed").user_code

    assert await state.transact(create) is expected


async def die(state: StateDatabase, tournament_id: str, last_log_line: str = "boom") -> int:
    pod = await state.transact(pod_lifecycle.record_intent, tournament_id, "a test")
    return (await state.transact(pod_lifecycle.mark_gone, pod.pod_id, last_log_line)).in_row


async def kinds(state: StateDatabase) -> Sequence[str]:
    return [event.kind for event in await state.transact(records.select, EventRecord, "true ORDER BY sequence")]


async def test_pods_are_numbered_and_recorded_before_they_run(state: StateDatabase) -> None:
    tournament = await state.transact(new_tournament)
    names = [
        (await state.transact(pod_lifecycle.record_intent, tournament.tournament_id, "a test")).pod_id for _ in range(2)
    ]
    assert names == ["race-aaaaaa-p0", "race-aaaaaa-p1"]
    assert [pod.phase for pod in await state.transact(records.live_pods)] == [PodPhase.INTENDED] * 2


async def test_useless_deaths_in_a_row_fail_the_tournament_with_the_last_log_line(state: StateDatabase) -> None:
    tournament = await state.transact(new_tournament)
    name = tournament.tournament_id
    assert [await die(state, name) for _ in range(MAXIMUM_DEATHS)] == list(range(1, MAXIMUM_DEATHS + 1))
    failed = await state.transact(records.find_tournament, name)
    assert failed.state == FAILED
    assert failed.reason == f"boom ({MAXIMUM_DEATHS} pods in a row died before they trained or scored anything)"


async def test_the_death_of_a_useful_pod_is_not_counted(state: StateDatabase) -> None:
    tournament = await state.transact(new_tournament)
    pod = await state.transact(pod_lifecycle.record_intent, tournament.tournament_id, "a test")
    record = await state.transact(records.find, PodRecord, pod.pod_id)
    assert record is not None
    await state.transact(records.save, dataclasses.replace(record, useful=True))
    assert (await state.transact(pod_lifecycle.mark_gone, pod.pod_id, "boom")).in_row == 0


async def test_pods_that_their_platform_removes_before_they_have_trained_do_not_end_a_tournament(
    state: StateDatabase,
) -> None:
    name = (await state.transact(new_tournament)).tournament_id
    for _ in range(MAXIMUM_DEATHS + 1):
        pod = await state.transact(pod_lifecycle.record_intent, name, "a test")
        lost = dataclasses.replace(listed(pod.pod_id), removed=True)
        found = compare(await state.transact(records.live_pods), [lost], [], {})
        await state.transact(pod_lifecycle.record_appearance, found)
        assert (await state.transact(pod_lifecycle.mark_gone, pod.pod_id, "")).in_row == 0
    assert (await state.transact(records.find_tournament, name)).state == RUNNING


@pytest.mark.parametrize(("never_called", "deaths"), [(False, 0), (True, 1)])
async def test_the_death_of_a_silent_pod_counts_if_it_has_never_called(
    state: StateDatabase, never_called: bool, deaths: int
) -> None:
    name = (await state.transact(new_tournament)).tournament_id
    pod = await state.transact(pod_lifecycle.record_intent, name, "a test")
    await state.transact(pod_lifecycle.record_stop, KillPod(pod.pod_id, "it does not call", never_called))
    assert (await state.transact(pod_lifecycle.mark_gone, pod.pod_id, "")).in_row == deaths


async def test_a_pod_that_stops_as_requested_is_not_counted_as_a_death(state: StateDatabase) -> None:
    tournament = await state.transact(new_tournament)
    pod = await state.transact(pod_lifecycle.record_intent, tournament.tournament_id, "a test")
    await state.transact(pod_lifecycle.retire, pod.pod_id, "the pool shrinks")
    await state.transact(pod_lifecycle.retire, pod.pod_id, "the pool shrinks")
    assert (await state.transact(pod_lifecycle.mark_gone, pod.pod_id, "")).in_row == 0
    assert await kinds(state) == ["tournament_created", "pod_started", "pod_draining", "pod_gone"]


async def test_a_pod_is_marked_gone_once(state: StateDatabase) -> None:
    tournament = await state.transact(new_tournament)
    pod = await state.transact(pod_lifecycle.record_intent, tournament.tournament_id, "a test")
    assert (await state.transact(pod_lifecycle.mark_gone, pod.pod_id, "")).in_row == 1
    assert (await state.transact(pod_lifecycle.mark_gone, pod.pod_id, "")).in_row == 0


async def test_an_adopted_pod_has_the_size_that_its_launcher_lists(state: StateDatabase) -> None:
    tournament = await state.transact(new_tournament)
    name = f"{tournament.tournament_id}-p3"
    grown = ListedPod(name, tournament.tournament_id, 0.0, LAYOUT_SEPARATE, Resources(6.0, 6 << 30, 0))
    await state.transact(pod_lifecycle.record_appearance, compare([], [grown], [], {}))
    (adopted,) = await state.transact(records.live_pods)
    assert (adopted.pod_id, adopted.number, adopted.phase) == (name, 3, PodPhase.SEEN)
    assert (adopted.layout, adopted.reserved) == (LAYOUT_SEPARATE, Resources(6.0, 6 << 30, 0))


async def test_a_pod_that_only_a_lease_proves_is_adopted_with_the_size_of_the_specification(
    state: StateDatabase,
) -> None:
    tournament = await state.transact(new_tournament)
    await state.transact(pod_lifecycle.adopt_pod, f"{tournament.tournament_id}-p3", tournament)
    (adopted,) = await state.transact(records.live_pods)
    assert adopted.cores == tournament.spec.pod.cores


async def test_a_launcher_learns_which_pods_make_room_for_a_grown_one(state: StateDatabase) -> None:
    name = (await state.transact(new_tournament)).tournament_id
    pods = [(await state.transact(pod_lifecycle.record_intent, name, "a test")).pod_id for _ in range(3)]
    change = Resize(pods[0], 2.0, (pods[2],), "it improves")
    new = await state.transact(resizes.begin, name, change, 4)
    assert new is not None
    assert (new.replaces, new.retired) == (pods[0], (pods[2],))

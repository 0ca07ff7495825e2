import dataclasses

import pytest

from orchestrator.state.database import StateDatabase
from orchestrator.state.leases import MOST_RENEWALS_PER_SECOND
from orchestrator.state.records import COMPLETED, RUNNING, AgentRecord, EvaluationRecord, TournamentRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState, save_changes
from orchestrator.state.saved_state import SavedState
from podrace.errors import ResourceExhausted
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import ChampionSpec, TournamentSpec

LEASE = 10.0


def agent(epoch: int = 1, pod_id: str = "p0", steps: int = 0, agent_id: str = "t-a0") -> AgentRecord:
    return AgentRecord(agent_id, "t", 0, WorkPhase.UNFINISHED, epoch, pod_id, "run", steps, None)


def evaluation() -> EvaluationRecord:
    request = pb.CreateEvaluationRequest()
    return EvaluationRecord("t-e0", "t", 0, WorkPhase.UNFINISHED, 1, "p0", "run", request, None, "")


@pytest.fixture
async def runtime() -> RuntimeState:
    return RuntimeState(LEASE)


def steps(count: int) -> pb.Progress:
    return pb.Progress(environment_steps=count)


async def test_a_lease_expires_when_it_is_not_renewed_in_time(runtime: RuntimeState) -> None:
    runtime.grant_lease(agent(), 0.0)
    assert runtime.leases.expired(9.9) == frozenset()
    assert runtime.leases.expired(10.0) == {("t-a0", 1)}


async def test_an_expired_lease_that_was_not_assigned_again_can_be_renewed(runtime: RuntimeState) -> None:
    runtime.grant_lease(agent(), 0.0)
    runtime.renew_lease("t-a0", 1, steps(0), 25.0)
    assert runtime.leases.expired(34.9) == frozenset()


async def test_an_earlier_epoch_neither_renews_nor_releases_nor_replaces_a_later_one(runtime: RuntimeState) -> None:
    runtime.grant_lease(agent(epoch=2, pod_id="p1"), 0.0)
    runtime.renew_lease("t-a0", 1, steps(50), 5.0)
    runtime.leases.release("t-a0", 1)
    runtime.grant_lease(agent(epoch=1), 5.0)
    assert [(lease.pod_id, lease.expires) for lease in runtime.leases.held.values()] == [("p1", 10.0)]
    assert runtime.counters.environment_steps("t") == 0


async def test_repeated_steps_after_a_loss_are_not_counted_twice(runtime: RuntimeState) -> None:
    runtime.grant_lease(agent(), 0.0)
    runtime.renew_lease("t-a0", 1, steps(100), 1.0)
    runtime.grant_lease(agent(epoch=2, pod_id="p1"), 2.0)
    runtime.renew_lease("t-a0", 2, steps(60), 3.0)
    runtime.renew_lease("t-a0", 2, steps(130), 4.0)
    assert runtime.counters.environment_steps("t") == 130


async def test_steps_of_all_agents_are_counted_and_those_of_evaluations_are_not(runtime: RuntimeState) -> None:
    runtime.grant_lease(agent(), 0.0)
    runtime.grant_lease(agent(agent_id="t-a1"), 0.0)
    runtime.grant_lease(evaluation(), 0.0)
    for name in ("t-a0", "t-a1", "t-e0"):
        runtime.renew_lease(name, 1, steps(10), 1.0)
    assert runtime.counters.environment_steps("t") == 20


async def test_only_pods_with_a_valid_lease_have_a_speed(runtime: RuntimeState) -> None:
    runtime.grant_lease(agent(), 0.0)
    runtime.renew_lease("t-a0", 1, pb.Progress(steps_per_second=500.0), 1.0)
    assert runtime.leases.steps_per_second("t", 10.9) == 500.0
    assert runtime.leases.steps_per_second("t", 11.0) == 0.0


async def test_a_pod_keeps_the_speed_of_its_previous_agent_until_it_reports(runtime: RuntimeState) -> None:
    runtime.grant_lease(agent(), 0.0)
    runtime.renew_lease("t-a0", 1, pb.Progress(steps_per_second=500.0), 1.0)
    runtime.leases.release("t-a0", 1)
    assert runtime.leases.steps_per_second("t", 1.0) == 0.0
    runtime.grant_lease(agent(agent_id="t-a1"), 1.0)
    assert runtime.leases.steps_per_second("t", 1.0) == 500.0
    runtime.renew_lease("t-a1", 1, pb.Progress(steps_per_second=300.0), 2.0)
    assert runtime.leases.steps_per_second("t", 2.0) == 300.0


async def test_a_restart_keeps_the_counts_and_grants_every_lease_one_full_duration() -> None:
    runtime = RuntimeState(LEASE)
    held, given_back = agent(steps=70), dataclasses.replace(agent(agent_id="t-a1", steps=30), pod_id="")
    runtime.restore(SavedState([], [held, given_back], {"t": 500}, failed_agents={"t": 2}), 1000.0)
    assert runtime.leases.expired(1009.9) == frozenset()
    assert runtime.leases.expired(1010.0) == {("t-a0", 1)}
    runtime.renew_lease("t-a0", 1, steps(75), 1001.0)
    assert runtime.counters.environment_steps("t") == 505
    runtime.counters.count_failure("t")
    assert runtime.counters.failed_agents("t") == 3


async def test_a_dead_pod_holds_no_lease(runtime: RuntimeState) -> None:
    runtime.grant_lease(agent(), 0.0)
    runtime.grant_lease(agent(agent_id="t-a1", pod_id="p1"), 0.0)
    runtime.release_pod("p0")
    assert list(runtime.leases.held) == ["t-a1"]


async def test_unsaved_changes_are_those_since_the_last_save(runtime: RuntimeState) -> None:
    runtime.grant_lease(agent(), 0.0)
    runtime.renew_lease("t-a0", 1, steps(5), 1.0)
    runtime.running_time.add(["t"], 0.5)
    runtime.best.update("t", Candidate(score=1.0))
    changes = runtime.take_unsaved_changes()
    assert (changes.agent_steps, changes.running_seconds, changes.best["t"].score) == ({"t-a0": 5}, {"t": 0.5}, 1.0)
    assert runtime.take_unsaved_changes().agent_steps == {}


async def test_changes_that_could_not_be_saved_are_in_the_next_ones(
    runtime: RuntimeState, state: StateDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise ResourceExhausted("the disk is full")

    runtime.grant_lease(agent(), 0.0)
    runtime.renew_lease("t-a0", 1, steps(5), 1.0)
    runtime.running_time.add(["t"], 0.5)
    runtime.best.update("t", Candidate(score=1.0))
    with monkeypatch.context() as patched:
        patched.setattr(state, "transact", full)
        with pytest.raises(ResourceExhausted):
            await save_changes(state, runtime)
    runtime.renew_lease("t-a0", 1, steps(7), 1.0)
    changes = runtime.take_unsaved_changes()
    assert (changes.agent_steps, changes.running_seconds, changes.best["t"].score) == ({"t-a0": 7}, {"t": 0.5}, 1.0)


@pytest.mark.parametrize(
    ("ended", "reevaluate_top", "best"), [(COMPLETED, 2, "named"), (COMPLETED, 0, "first"), (RUNNING, 2, "first")]
)
async def test_a_selected_champion_is_kept_after_a_restart(
    runtime: RuntimeState, ended: int, reevaluate_top: int, best: str
) -> None:
    spec = TournamentSpec(champion=ChampionSpec(reevaluate_top=reevaluate_top))
    named = Candidate(agent_id="named")
    record = TournamentRecord("t", 1, spec, ended, "", 0.0, None, 0.0, 0, 0, 0, "", 0, 0, named)
    runtime.restore(SavedState([record], [], {}, {}), 0.0)
    runtime.best.update("t", Candidate(agent_id="first"))
    assert runtime.best.by_tournament["t"].agent_id == best


async def test_a_notification_wakes_only_tasks_that_waited_before(runtime: RuntimeState) -> None:
    before = runtime.changes.next_change()
    runtime.changes.notify_all()
    assert before.is_set()
    assert not runtime.changes.next_change().is_set()


async def test_leases_of_a_large_pool_last_longer_to_limit_the_rate_of_renewals() -> None:
    runtime = RuntimeState(LEASE)
    for number in range(int(MOST_RENEWALS_PER_SECOND * LEASE / 3)):
        runtime.grant_lease(agent(agent_id=f"t-a{number}", pod_id=f"p{number}"), 0.0)
    assert runtime.leases.duration_seconds == LEASE
    for number in range(10_000):
        runtime.grant_lease(agent(agent_id=f"t-a{number}", pod_id=f"p{number}"), 0.0)
    assert 10_000 / (runtime.leases.duration_seconds / 3) == MOST_RENEWALS_PER_SECOND
    runtime.renew_lease("t-a0", 1, steps(0), 0.0)
    assert ("t-a0", 1) not in runtime.leases.expired(runtime.leases.duration_seconds - 0.1)


async def test_a_lease_that_is_renewed_or_granted_again_expires_once_after_one_duration(
    runtime: RuntimeState,
) -> None:
    runtime.grant_lease(agent(), 0.0)
    runtime.renew_lease("t-a0", 1, steps(0), 6.0)
    runtime.grant_lease(agent(), 9.0)
    assert runtime.leases.expired(18.9) == frozenset()
    assert runtime.leases.expired(19.0) == {("t-a0", 1)}
    runtime.grant_lease(agent(epoch=2, pod_id="p1"), 20.0)
    assert runtime.leases.expired(29.9) == frozenset()
    assert runtime.leases.expired(30.0) == {("t-a0", 2)}
    runtime.leases.release("t-a0", 2)
    assert runtime.leases.expired(99.0) == frozenset()


async def test_a_pod_is_busy_while_it_holds_leases_and_the_newest_comes_last(runtime: RuntimeState) -> None:
    runtime.grant_lease(agent(), 0.0)
    runtime.grant_lease(evaluation(), 0.0)
    runtime.grant_lease(agent(), 1.0)
    assert [lease.work_id for lease in runtime.leases.of_pod("p0")] == ["t-e0", "t-a0"]
    runtime.grant_lease(agent(epoch=2, pod_id="p1"), 2.0)
    assert [lease.work_id for lease in runtime.leases.of_pod("p0")] == ["t-e0"]
    runtime.leases.release("t-e0", 1)
    assert [bool(runtime.leases.of_pod(pod_id)) for pod_id in ("p0", "p1")] == [False, True]


async def test_nothing_of_a_deleted_tournament_is_kept(runtime: RuntimeState) -> None:
    for name in ("t", "u"):
        runtime.grant_lease(dataclasses.replace(agent(agent_id=f"{name}-a0"), tournament_id=name), 0.0)
        runtime.renew_lease(f"{name}-a0", 1, steps(100), 1.0)
        runtime.step_limits[f"{name}-a0", 1] = 500
        runtime.paused[name] = runtime.without_space[name] = "full"
        runtime.counters.count_failure(name)
        runtime.counters.count_stop(name)
        runtime.running_time.add([name], 5.0)
        runtime.best.select_champion(name, Candidate(score=1.0))
    unsaved = runtime.take_unsaved_changes()
    runtime.forget("t")
    # Those that could not be saved meanwhile.
    runtime.mark_unsaved(unsaved)
    kept = runtime.take_unsaved_changes()
    assert (kept.agent_steps, kept.running_seconds, set(kept.best)) == ({"u-a0": 100}, {"u": 5.0}, {"u"})
    counters, best = runtime.counters, runtime.best
    assert counters.environment_steps("t") == counters.failed_agents("t") == counters.stopped_agents("t") == 0
    maps = [runtime.paused, runtime.without_space, best.by_tournament, best._champion_selected]
    maps += [runtime.running_time._seconds, counters._tournament_steps, counters._failed_agents]
    assert all(set(names) == {"u"} for names in [*maps, counters._stopped_agents])
    assert (set(counters._agent_steps), set(runtime.step_limits)) == ({"u-a0"}, {("u-a0", 1)})

import dataclasses

import pytest

from orchestrator.state.database import State
from orchestrator.state.records import COMPLETED, RUNNING, AgentRecord, EvaluationRecord, TournamentRecord, WorkPhase
from orchestrator.state.runtime import MOST_RENEWALS_PER_SECOND, Live, Remembered, write_down
from podrace.errors import ResourceExhausted
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import ChampionSpec, TournamentSpec

LEASE = 10.0


def agent(epoch: int = 1, pod_id: str = "p0", steps: int = 0, agent_id: str = "t-a0") -> AgentRecord:
    return AgentRecord(agent_id, "t", 0, WorkPhase.UNFINISHED, epoch, pod_id, "life", steps, None)


def evaluation() -> EvaluationRecord:
    request = pb.CreateEvaluationRequest()
    return EvaluationRecord("t-e0", "t", 0, WorkPhase.UNFINISHED, 1, "p0", "life", request, None, "")


@pytest.fixture
async def live() -> Live:
    return Live(LEASE)


def steps(count: int) -> pb.Progress:
    return pb.Progress(environment_steps=count)


async def test_a_lease_expires_when_it_is_not_renewed_in_time(live: Live) -> None:
    live.hold(agent(), 0.0)
    assert live.expired(9.9) == frozenset()
    assert live.expired(10.0) == {("t-a0", 1)}


async def test_an_expired_lease_that_nobody_took_can_be_renewed(live: Live) -> None:
    live.hold(agent(), 0.0)
    live.renew("t-a0", 1, steps(0), 25.0)
    assert live.expired(34.9) == frozenset()


async def test_an_earlier_epoch_neither_renews_nor_releases_nor_replaces_a_later_one(live: Live) -> None:
    live.hold(agent(epoch=2, pod_id="p1"), 0.0)
    live.renew("t-a0", 1, steps(50), 5.0)
    live.release("t-a0", 1)
    live.hold(agent(epoch=1), 5.0)
    assert [(lease.pod_id, lease.expires) for lease in live.leases.values()] == [("p1", 10.0)]
    assert live.environment_steps("t") == 0


async def test_steps_that_are_taken_again_after_a_loss_are_not_counted_twice(live: Live) -> None:
    live.hold(agent(), 0.0)
    live.renew("t-a0", 1, steps(100), 1.0)
    live.hold(agent(epoch=2, pod_id="p1"), 2.0)
    live.renew("t-a0", 2, steps(60), 3.0)
    live.renew("t-a0", 2, steps(130), 4.0)
    assert live.environment_steps("t") == 130


async def test_steps_of_all_agents_are_counted_and_those_of_evaluations_are_not(live: Live) -> None:
    live.hold(agent(), 0.0)
    live.hold(agent(agent_id="t-a1"), 0.0)
    live.hold(evaluation(), 0.0)
    for name in ("t-a0", "t-a1", "t-e0"):
        live.renew(name, 1, steps(10), 1.0)
    assert live.environment_steps("t") == 20


async def test_only_pods_heard_of_lately_have_a_speed(live: Live) -> None:
    live.hold(agent(), 0.0)
    live.renew("t-a0", 1, pb.Progress(steps_per_second=500.0), 1.0)
    assert live.steps_per_second("t", 10.9) == 500.0
    assert live.steps_per_second("t", 11.0) == 0.0


async def test_a_pod_has_the_speed_of_its_last_agent_until_it_tells_that_of_the_next(live: Live) -> None:
    live.hold(agent(), 0.0)
    live.renew("t-a0", 1, pb.Progress(steps_per_second=500.0), 1.0)
    live.release("t-a0", 1)
    assert live.steps_per_second("t", 1.0) == 0.0
    live.hold(agent(agent_id="t-a1"), 1.0)
    assert live.steps_per_second("t", 1.0) == 500.0
    live.renew("t-a1", 1, pb.Progress(steps_per_second=300.0), 2.0)
    assert live.steps_per_second("t", 2.0) == 300.0


async def test_a_new_life_goes_on_counting_and_grants_every_lease_one_full_duration() -> None:
    live = Live(LEASE)
    held, given_back = agent(steps=70), dataclasses.replace(agent(agent_id="t-a1", steps=30), pod_id="")
    live.restore(Remembered([], [held, given_back], {"t": 500}, failed_agents={"t": 2}), 1000.0)
    assert live.expired(1009.9) == frozenset()
    assert live.expired(1010.0) == {("t-a0", 1)}
    live.renew("t-a0", 1, steps(75), 1001.0)
    assert live.environment_steps("t") == 505
    live.count_failure("t")
    assert live.failed_agents("t") == 3


async def test_a_dead_pod_holds_nothing(live: Live) -> None:
    live.hold(agent(), 0.0)
    live.hold(agent(agent_id="t-a1", pod_id="p1"), 0.0)
    live.release_pod("p0")
    assert list(live.leases) == ["t-a1"]


async def test_notes_hold_what_changed_since_the_last_ones(live: Live) -> None:
    live.hold(agent(), 0.0)
    live.renew("t-a0", 1, steps(5), 1.0)
    live.run(["t"], 0.5)
    live.learn_best("t", Candidate(score=1.0))
    notes = live.take_notes()
    assert (notes.agent_steps, notes.running_seconds, notes.best["t"].score) == ({"t-a0": 5}, {"t": 0.5}, 1.0)
    assert live.take_notes().agent_steps == {}


async def test_notes_that_could_not_be_written_are_in_the_next_ones(
    live: Live, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise ResourceExhausted("the disk is full")

    live.hold(agent(), 0.0)
    live.renew("t-a0", 1, steps(5), 1.0)
    live.run(["t"], 0.5)
    live.learn_best("t", Candidate(score=1.0))
    with monkeypatch.context() as patched:
        patched.setattr(state, "transact", full)
        with pytest.raises(ResourceExhausted):
            await write_down(state, live)
    live.renew("t-a0", 1, steps(7), 1.0)
    notes = live.take_notes()
    assert (notes.agent_steps, notes.running_seconds, notes.best["t"].score) == ({"t-a0": 7}, {"t": 0.5}, 1.0)


@pytest.mark.parametrize(
    ("ended", "reevaluate_top", "best"), [(COMPLETED, 2, "named"), (COMPLETED, 0, "first"), (RUNNING, 2, "first")]
)
async def test_a_champion_that_was_named_stays_so_after_a_restart(
    live: Live, ended: int, reevaluate_top: int, best: str
) -> None:
    spec = TournamentSpec(champion=ChampionSpec(reevaluate_top=reevaluate_top))
    named = Candidate(agent_id="named")
    record = TournamentRecord("t", 1, spec, ended, "", 0.0, None, 0.0, 0, 0, 0, "", 0, 0, named)
    live.restore(Remembered([record], [], {}, {}), 0.0)
    live.learn_best("t", Candidate(agent_id="first"))
    assert live.best["t"].agent_id == best


async def test_the_bell_wakes_those_who_listened_before_it_rang(live: Live) -> None:
    before = live.bell.next()
    live.bell.ring()
    assert before.is_set()
    assert not live.bell.next().is_set()


async def test_leases_of_a_large_pool_last_longer_so_that_renewals_are_no_more_than_a_server_bears() -> None:
    live = Live(LEASE)
    for number in range(int(MOST_RENEWALS_PER_SECOND * LEASE / 3)):
        live.hold(agent(agent_id=f"t-a{number}", pod_id=f"p{number}"), 0.0)
    assert live.lease_seconds == LEASE
    for number in range(10_000):
        live.hold(agent(agent_id=f"t-a{number}", pod_id=f"p{number}"), 0.0)
    assert 10_000 / (live.lease_seconds / 3) == MOST_RENEWALS_PER_SECOND
    live.renew("t-a0", 1, steps(0), 0.0)
    assert ("t-a0", 1) not in live.expired(live.lease_seconds - 0.1)


async def test_a_lease_that_is_renewed_or_given_again_expires_one_duration_later_and_once(live: Live) -> None:
    live.hold(agent(), 0.0)
    live.renew("t-a0", 1, steps(0), 6.0)
    live.hold(agent(), 9.0)
    assert live.expired(18.9) == frozenset()
    assert live.expired(19.0) == {("t-a0", 1)}
    live.hold(agent(epoch=2, pod_id="p1"), 20.0)
    assert live.expired(29.9) == frozenset()
    assert live.expired(30.0) == {("t-a0", 2)}
    live.release("t-a0", 2)
    assert live.expired(99.0) == frozenset()


async def test_a_pod_is_busy_while_it_holds_something_the_newest_last(live: Live) -> None:
    live.hold(agent(), 0.0)
    live.hold(evaluation(), 0.0)
    live.hold(agent(), 1.0)
    assert [lease.work_id for lease in live.leases_of("p0")] == ["t-e0", "t-a0"]
    live.hold(agent(epoch=2, pod_id="p1"), 2.0)
    assert [lease.work_id for lease in live.leases_of("p0")] == ["t-e0"]
    live.release("t-e0", 1)
    assert (live.is_busy("p0"), live.is_busy("p1")) == (False, True)

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.state import records
from orchestrator.state.cache import StateCache
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import AgentRecord, EvaluationRecord, PodPhase, PodRecord, TournamentRecord, WorkPhase
from orchestrator.state.saved_state import load_saved_state
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def tournament(name: str = "t", state: int = records.RUNNING) -> TournamentRecord:
    return TournamentRecord(name, 1, TournamentSpec(), state, "", 0.0, None, 0.0, 0, 0, 0, "", 0, 0, None)


def pod(name: str = "p0", tournament_id: str = "t") -> PodRecord:
    return PodRecord(name, tournament_id, 0, PodPhase.SEEN, 0.0, 1, 1.0, 1, 0, False, "")


def agent(number: int, pod_id: str = "p0", tournament_id: str = "t") -> AgentRecord:
    name = f"{tournament_id}-a{number}"
    return AgentRecord(name, tournament_id, number, WorkPhase.UNFINISHED, 1, pod_id, "life", 0, None)


def evaluation(number: int, pod_id: str = "") -> EvaluationRecord:
    request = pb.CreateEvaluationRequest()
    return EvaluationRecord(f"t-e{number}", "t", number, WorkPhase.UNFINISHED, 1, pod_id, "life", request, None, "")


@pytest.fixture
def cache() -> StateCache:
    made = StateCache()
    made.apply_saved([tournament(), pod("p0"), pod("p1")])
    return made


def asked(cache: StateCache, pod_id: str, *expired: str) -> list[str]:
    return [work.work_id for work in cache.assignable_work(pod_id, expired)]


def test_what_a_living_pod_holds_is_in_question_for_that_pod_alone(cache: StateCache) -> None:
    cache.apply_saved([agent(0, "p0"), agent(1, "p1")])
    assert (asked(cache, "p0"), asked(cache, "p1")) == (["t-a0"], ["t-a1"])


def test_what_expired_or_was_given_back_is_in_question_for_every_pod_of_its_tournament(cache: StateCache) -> None:
    cache.apply_saved([tournament("u"), pod("q0", "u"), agent(0, "p0"), agent(1, "p0"), agent(2, "p0")])
    cache.apply_saved([replace(agent(1), pod_id="", incarnation="")])
    assert asked(cache, "p1", "t-a2") == ["t-a1", "t-a2"]
    assert asked(cache, "q0", "t-a2") == []
    cache.apply_saved([agent(1, "p1")])
    assert asked(cache, "p0") == ["t-a0", "t-a2"]


def test_what_a_pod_held_is_free_when_it_is_gone(cache: StateCache) -> None:
    cache.apply_saved([agent(0, "p0"), replace(pod("p0"), phase=PodPhase.GONE)])
    assert asked(cache, "p1") == ["t-a0"]
    assert list(cache.pods) == ["p1"]
    assert asked(cache, "p0") == [], "nobody asks any more"


def test_finished_work_is_in_question_for_nobody(cache: StateCache) -> None:
    cache.apply_saved([agent(0, "p0"), agent(1, "p1"), evaluation(0)])
    for phase, done in [(WorkPhase.FINISHED, agent(0, "")), (WorkPhase.FAILED, agent(1, ""))]:
        cache.apply_saved([replace(done, phase=phase)])
    cache.apply_saved([replace(evaluation(0), phase=WorkPhase.FINISHED)])
    assert (asked(cache, "p0"), asked(cache, "p1"), cache.works) == ([], [], {})
    assert (cache.agents("t"), cache.evaluations("t")) == ({}, {})


def test_evaluations_come_before_agents_and_the_oldest_first(cache: StateCache) -> None:
    cache.apply_saved([agent(10, ""), agent(9, ""), evaluation(1), evaluation(0), agent(11, "p0")])
    assert asked(cache, "p0") == ["t-e0", "t-e1", "t-a9", "t-a10", "t-a11"]


def test_a_tournament_that_has_ended_is_active_while_it_has_evaluations(cache: StateCache) -> None:
    cache.apply_saved([tournament("t", records.CANCELLED), evaluation(0), tournament("u")])
    assert [found.tournament_id for found in cache.active()] == ["t", "u"]
    cache.apply_saved([replace(evaluation(0), phase=WorkPhase.FAILED)])
    assert [found.tournament_id for found in cache.active()] == ["u"]


async def test_who_follows_knows_what_who_reads_the_database_knows(state: StateDatabase) -> None:
    followed, read = StateCache(), StateCache()
    state.on_saved(followed.apply_saved)

    def change(transaction: Transaction, *changed: Any) -> None:
        for record in changed:
            records.save(transaction, record)

    await state.transact(change, tournament(), pod("p0"), pod("p1"), pod("p2"), agent(0), agent(1, "p1"), evaluation(0))
    await state.transact(change, replace(pod("p1"), phase=PodPhase.GONE), replace(agent(0), phase=WorkPhase.FINISHED))
    await state.transact(change, agent(2, "p2"), replace(pod("p2"), drain_reason="enough"), evaluation(1, "p2"))
    remembered = await state.transact(load_saved_state)
    read.apply_saved([*remembered.tournaments, *remembered.pods, *remembered.works])
    assert (followed.tournaments, followed.pods, followed.works) == (read.tournaments, read.pods, read.works)
    for pod_id in ("p0", "p1", "p2"):
        assert asked(followed, pod_id) == asked(read, pod_id)
    assert asked(followed, "p0") == ["t-e0", "t-a1"]


def test_the_latest_failures_are_known_once_each_and_no_other_end(cache: StateCache) -> None:
    cache.apply_saved([replace(agent(number), phase=WorkPhase.FAILED, pod_id="") for number in (*range(300), 299)])
    cache.apply_saved([replace(agent(300), phase=WorkPhase.FINISHED, pod_id="")])
    failed = cache.failed("t")
    assert (len(failed), failed[0], failed[-1]) == (200, "t-a100", "t-a299")
    assert cache.failed("u") == ()

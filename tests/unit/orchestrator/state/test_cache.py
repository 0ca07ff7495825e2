from dataclasses import replace
from typing import Any

import pytest

from orchestrator.messages import tournament_message
from orchestrator.state import records
from orchestrator.state.cache import StateCache
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import AgentRecord, EvaluationRecord, PodPhase, PodRecord, TournamentRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.saved_state import load_saved_state
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def tournament(name: str = "t", state: int = records.RUNNING) -> TournamentRecord:
    return TournamentRecord(name, 1, TournamentSpec(), state, "", 0.0, None, 0.0, 0, 0, 0, "", 0, 0, None)


def pod(name: str = "p0", tournament_id: str = "t") -> PodRecord:
    return PodRecord(name, tournament_id, 0, PodPhase.SEEN, 0.0, 1, 1.0, 1, 0, False, "")


def agent(number: int, pod_id: str = "p0", tournament_id: str = "t") -> AgentRecord:
    name = f"{tournament_id}-a{number}"
    return AgentRecord(name, tournament_id, number, WorkPhase.UNFINISHED, 1, pod_id, "run", 0, None)


def evaluation(number: int, pod_id: str = "") -> EvaluationRecord:
    request = pb.CreateEvaluationRequest()
    return EvaluationRecord(f"t-e{number}", "t", number, WorkPhase.UNFINISHED, 1, pod_id, "run", request, None, "")


@pytest.fixture
def cache() -> StateCache:
    made = StateCache()
    made.apply_saved([tournament(), pod("p0"), pod("p1")])
    return made


def assignable(cache: StateCache, pod_id: str, *expired: str) -> list[str]:
    return [work.work_id for work in cache.assignable_work(pod_id, expired)]


def test_work_of_a_living_pod_is_assignable_only_to_that_pod(cache: StateCache) -> None:
    cache.apply_saved([agent(0, "p0"), agent(1, "p1")])
    assert (assignable(cache, "p0"), assignable(cache, "p1")) == (["t-a0"], ["t-a1"])


def test_expired_and_returned_work_is_assignable_to_every_pod_of_its_tournament(cache: StateCache) -> None:
    cache.apply_saved([tournament("u"), pod("q0", "u"), agent(0, "p0"), agent(1, "p0"), agent(2, "p0")])
    cache.apply_saved([replace(agent(1), pod_id="", incarnation="")])
    assert assignable(cache, "p1", "t-a2") == ["t-a1", "t-a2"]
    assert assignable(cache, "q0", "t-a2") == []
    cache.apply_saved([agent(1, "p1")])
    assert assignable(cache, "p0") == ["t-a0", "t-a2"]


def test_work_of_a_gone_pod_is_assignable(cache: StateCache) -> None:
    cache.apply_saved([agent(0, "p0"), replace(pod("p0"), phase=PodPhase.GONE)])
    assert assignable(cache, "p1") == ["t-a0"]
    assert list(cache.pods) == ["p1"]
    assert assignable(cache, "p0") == [], "a gone pod gets no work"


def test_finished_work_is_not_assignable(cache: StateCache) -> None:
    cache.apply_saved([agent(0, "p0"), agent(1, "p1"), evaluation(0)])
    for phase, done in [(WorkPhase.FINISHED, agent(0, "")), (WorkPhase.FAILED, agent(1, ""))]:
        cache.apply_saved([replace(done, phase=phase)])
    cache.apply_saved([replace(evaluation(0), phase=WorkPhase.FINISHED)])
    assert (assignable(cache, "p0"), assignable(cache, "p1"), cache.works) == ([], [], {})
    assert (cache.unfinished_agents("t"), cache.unfinished_evaluations("t")) == ({}, {})


def test_evaluations_come_before_agents_and_older_work_first(cache: StateCache) -> None:
    cache.apply_saved([agent(10, ""), agent(9, ""), evaluation(1), evaluation(0), agent(11, "p0")])
    assert assignable(cache, "p0") == ["t-e0", "t-e1", "t-a9", "t-a10", "t-a11"]


def test_a_tournament_that_has_ended_is_active_while_it_has_evaluations(cache: StateCache) -> None:
    cache.apply_saved([tournament("t", records.CANCELLED), evaluation(0), tournament("u")])
    assert [found.tournament_id for found in cache.active_tournaments()] == ["t", "u"]
    cache.apply_saved([replace(evaluation(0), phase=WorkPhase.FAILED)])
    assert [found.tournament_id for found in cache.active_tournaments()] == ["u"]


async def test_a_cache_that_follows_commits_equals_one_read_from_the_database(state: StateDatabase) -> None:
    followed, loaded = StateCache(), StateCache()
    state.on_saved(followed.apply_saved)

    def change(transaction: Transaction, *changed: Any) -> None:
        for record in changed:
            records.save(transaction, record)

    await state.transact(change, tournament(), pod("p0"), pod("p1"), pod("p2"), agent(0), agent(1, "p1"), evaluation(0))
    await state.transact(change, replace(pod("p1"), phase=PodPhase.GONE), replace(agent(0), phase=WorkPhase.FINISHED))
    await state.transact(change, agent(2, "p2"), replace(pod("p2"), drain_reason="enough"), evaluation(1, "p2"))
    saved = await state.transact(load_saved_state)
    loaded.apply_saved([*saved.tournaments, *saved.pods, *saved.works])
    assert (followed.tournaments, followed.pods, followed.works) == (loaded.tournaments, loaded.pods, loaded.works)
    for pod_id in ("p0", "p1", "p2"):
        assert assignable(followed, pod_id) == assignable(loaded, pod_id)
    assert assignable(followed, "p0") == ["t-e0", "t-a1"]


def test_the_latest_failed_agents_are_kept_once_each(cache: StateCache) -> None:
    cache.apply_saved([replace(agent(number), phase=WorkPhase.FAILED, pod_id="") for number in (*range(300), 299)])
    cache.apply_saved([replace(agent(300), phase=WorkPhase.FINISHED, pod_id="")])
    failed = cache.failed_agent_ids("t")
    assert (len(failed), failed[0], failed[-1]) == (200, "t-a100", "t-a299")
    assert cache.failed_agent_ids("u") == ()


def test_an_agent_is_counted_once_the_generator_has_made_it(cache: StateCache) -> None:
    assert cache.generated_agents("t") == 0
    cache.apply_saved([replace(tournament(), next_agent=2), agent(0), agent(1)])
    assert cache.generated_agents("t") == 0
    cache.apply_saved([replace(agent(0), agent=Agent(agent_id="t-a0"))])
    assert cache.generated_agents("t") == 1


def test_a_record_that_was_read_before_an_agent_was_numbered_is_still_reported() -> None:
    runtime = RuntimeState(30.0)
    outdated = tournament()
    runtime.cache.apply_saved([replace(outdated, next_agent=1), agent(0)])
    assert tournament_message(outdated, runtime, 10.0, "").agents == 0

"""Agents of a round are scored in one epoch, which the steps of the earlier rounds decide."""

import itertools
from types import SimpleNamespace
from typing import Any

from google.protobuf.duration_pb2 import Duration

from orchestrator.assignments.evaluation_epochs import EvaluationEpochs
from orchestrator.state.counters import Counters
from orchestrator.state.records import AgentRecord, TournamentRecord, WorkPhase
from podrace.tournament.v1.tournament_pb2 import AssignmentSpec, ObjectiveSpec, PoolSpec, TournamentSpec

LENGTHS = [2, 2, 2, 2, 2, 2, 3, 9, 12, 12]
"""Thousands of steps that the agents of a race have trained: those that continue trials train longer."""


def tournament(**given: Any) -> Any:
    spec = TournamentSpec(
        objective=ObjectiveSpec(wall_clock_duration=Duration(seconds=800), environment_steps=48_000),
        assignment=AssignmentSpec(environment_steps=8000),
        **given,
    )
    record = SimpleNamespace(tournament_id="t", spec=spec)
    record.round_size = TournamentRecord.round_size.fget(record)  # type: ignore[attr-defined]
    return record


def epochs_of(one: Any, *, seconds: float = 0.0, steps: int = 0) -> tuple[EvaluationEpochs, list[int]]:
    """Returns the epochs of a tournament, and how many transactions there were."""
    transactions: list[int] = []

    async def transact(query: Any, name: str, number: int) -> int:
        assert name == "t"
        transactions.append(number)
        return 1000 * sum(LENGTHS[:number])

    works = {
        f"a{number}": AgentRecord(f"a{number}", "t", number, WorkPhase.UNFINISHED, 1, "p", "i", 0, None)
        for number in range(len(LENGTHS))
    }
    runtime: Any = SimpleNamespace(
        cache=SimpleNamespace(tournaments={"t": one}, works=works),
        running_time=SimpleNamespace(seconds=lambda name, now: seconds),
        counters=Counters(),
    )
    runtime.counters.count_steps("t", "a0", steps)
    state: Any = SimpleNamespace(transact=transact)
    clock: Any = SimpleNamespace(monotonic=lambda: 0.0)
    return EvaluationEpochs(state, runtime, clock), transactions


async def test_a_round_of_a_synchronous_tournament_has_one_epoch_whatever_the_progress() -> None:
    spec = {"synchronous": True, "pool": PoolSpec(maximum_pods=2)}
    for seconds, steps in ((0.0, 0), (799.0, 47_999)):
        epochs, _ = epochs_of(tournament(**spec), seconds=seconds, steps=steps)
        found = [await epochs.of("t", f"a{number}") for number in range(len(LENGTHS))]
        trained = [sum(LENGTHS[: number - number % 2]) for number in range(len(LENGTHS))]
        assert found == [8 * steps // 48 for steps in trained]
        assert found == [0, 0, 0, 0, 1, 1, 2, 2, 4, 4]


async def test_the_steps_of_earlier_rounds_are_read_once_for_each_round() -> None:
    epochs, transactions = epochs_of(tournament(synchronous=True, pool=PoolSpec(maximum_pods=2)))
    for number, _ in itertools.product(range(4), range(3)):
        await epochs.of("t", f"a{number}")
    assert transactions == [0, 2]


async def test_otherwise_all_agents_have_the_epoch_of_the_progress() -> None:
    epochs, transactions = epochs_of(tournament(), steps=18_000)
    assert {await epochs.of("t", f"a{number}") for number in range(len(LENGTHS))} == {3}
    assert transactions == []


async def test_work_that_trains_no_agent_has_the_epoch_0() -> None:
    epochs, _ = epochs_of(tournament(), steps=18_000)
    assert (await epochs.of("t", "e0"), await epochs.of("other", "a0")) == (0, 0)


async def test_the_epoch_stays_when_the_objective_is_extended_until_the_progress_leads_to_the_next_one() -> None:
    for synchronous in (False, True):
        one = tournament(synchronous=synchronous, pool=PoolSpec(maximum_pods=2))
        epochs, _ = epochs_of(one, steps=18_000)
        before = await epochs.of("t", "a6")
        one.spec.objective.environment_steps *= 10
        one.spec.objective.wall_clock_duration.seconds *= 10
        assert await epochs.of("t", "a6") == before == (2 if synchronous else 3)
        assert await epochs.of("t", "a8") == before
        one.spec.objective.environment_steps //= 20
        assert await epochs.of("t", "a8") > before

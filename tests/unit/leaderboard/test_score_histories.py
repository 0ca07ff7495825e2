"""The kept history of scores equals one that is built from the recorded candidates, whatever was rolled back."""

from collections.abc import Callable
from typing import Any

import pytest

from leaderboard.score_histories import ScoreHistories
from leaderboard.updater import record
from podrace.database import Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, SubmitCandidateRequest
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


class Undone(Exception):
    """The change is undone."""


@pytest.fixture
async def agents(mesh: Any, make_spec: Callable[..., TournamentSpec]) -> list[Agent]:
    spec = make_spec(evolution={"initial_agents": 2})
    return [await mesh.generate(spec, number) for number in range(2)]


def judge_and_undo(transaction: Transaction, candidate: Candidate, histories: ScoreHistories) -> None:
    """Judges a candidate, and reads the history for the next change of a batch that the full disk rolls back."""
    record(transaction, candidate, SubmitCandidateRequest(), histories)
    histories.of(transaction, candidate.tournament_id)
    raise Undone


async def undo(mesh: Any, agent: Agent, score: float) -> None:
    candidate = Candidate(
        candidate_id=f"{agent.agent_id} {score}",
        tournament_id=agent.tournament_id,
        agent_id=agent.agent_id,
        agent_number=agent.number,
        score=score,
    )
    with pytest.raises(Undone):
        await mesh.state.transact(judge_and_undo, candidate, mesh.updater._histories)


async def test_a_candidate_that_was_rolled_back_is_not_judged_by_itself(mesh: Any, agents: list[Agent]) -> None:
    await undo(mesh, agents[0], 5.0)
    answer = await mesh.judge(agents[0], 5.0, standard_error=2.0)
    assert answer.candidate.estimate == 4.0, "the first score of a trial, minus half its error"


async def test_a_candidate_with_the_number_of_one_that_was_rolled_back_is_in_the_history(
    mesh: Any, agents: list[Agent]
) -> None:
    await mesh.judge(agents[0], 1.0, standard_error=0.0)
    await undo(mesh, agents[0], 5.0)
    await mesh.judge(agents[1], 6.0, standard_error=0.0)
    assert (await mesh.judge(agents[1], 8.0, standard_error=0.0)).candidate.estimate == 7.0
    assert (await mesh.judge(agents[0], 3.0, standard_error=0.0)).candidate.estimate == 2.0

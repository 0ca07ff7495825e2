"""Submissions of rated tournaments are ranked by rating, and plans name opponents; earlier leaders keep their files."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from leaderboard.garbage import tournament_record
from leaderboard.ranking.retention import Retention, retained
from leaderboard.score_histories import ScoreHistories
from podrace.checkpoint.v1.checkpoint_pb2 import MatchResult
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, PlanEvaluationRequest
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@pytest.fixture
async def agents(mesh: Any, make_spec: Callable[..., TournamentSpec]) -> list[Agent]:
    spec = make_spec(
        environment={"id": "game:connect-four"},
        opponents={"rated": True, "training": "board", "matches": 2},
        evolution={"initial_agents": 4, "board_capacity": 2},
    )
    return [await mesh.generate(spec, number) for number in range(4)]


async def submit(mesh: Any, agent: Agent, built_in: int, against: Mapping[str, int] | None = None) -> Candidate:
    """Submits a candidate that wins so many of 20 games against the built-in opponent, and against others by id."""
    matches = [
        MatchResult(opponent_candidate_id=name, wins=wins, losses=20 - wins)
        for name, wins in {"": built_in, **(against or {})}.items()
    ]
    answer = await mesh.submit(agent, built_in / 10 - 1, evaluation={"matches": matches})
    candidate: Candidate = answer.candidate
    return candidate


async def plan(mesh: Any, agent: Agent) -> tuple[list[str], list[str]]:
    answer = await mesh.updater.plan_evaluation(PlanEvaluationRequest(agent_id=agent.agent_id))
    return (
        [one.manifest_digest for one in answer.opponents],
        [one.manifest_digest for one in answer.training_opponents],
    )


async def test_the_score_is_the_rating_and_the_board_ranks_by_it(mesh: Any, agents: list[Agent]) -> None:
    first = await submit(mesh, agents[0], 10)
    assert first.score == pytest.approx(0.0, abs=1e-6)
    assert first.episode_metrics["return"] == 0.0
    # As many points against the built-in opponent, but better than the first.
    second = await submit(mesh, agents[1], 10, {first.candidate_id: 15})
    assert second.score > 50
    assert [one.candidate_id for one in await mesh.board()] == [second.candidate_id, first.candidate_id]
    # A restart, or a second replica, rates as before.
    mesh.updater._histories = ScoreHistories()
    third = await submit(mesh, agents[2], 10, {second.candidate_id: 10})
    assert first.score < third.score < second.score


async def test_plans_name_opponents_for_the_rating_and_for_training(mesh: Any, agents: list[Agent]) -> None:
    assert await plan(mesh, agents[0]) == ([], [])
    names = [
        (await submit(mesh, agent, built_in)).candidate_id for agent, built_in in zip(agents, (2, 9, 18), strict=False)
    ]
    # The board has two places; the first one led when it arrived.
    rated, training = await plan(mesh, agents[3])
    assert rated[0] == names[1]
    assert len(rated) == 2
    assert set(training) == set(names)


async def test_earlier_leaders_keep_their_files(mesh: Any, agents: list[Agent]) -> None:
    first = await submit(mesh, agents[0], 2)
    for built_in in (10, 15):
        await submit(mesh, agents[0], built_in)
    record = await mesh.state.transact(tournament_record, agents[0].tournament_id)
    assert retained(record, Retention())[first.candidate_id] == "led the board, and stays an opponent"


@pytest.mark.parametrize(
    ("matches", "message"),
    [
        ([MatchResult(wins=1), MatchResult(losses=1)], "has 2 opponents: expected 32 different ones"),
        ([MatchResult(wins=1_000_001)], "has more than 1000000 games with one result"),
    ],
)
async def test_impossible_results_are_refused(
    mesh: Any, agents: list[Agent], matches: list[MatchResult], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        await mesh.submit(agents[0], 0.0, evaluation={"matches": matches})

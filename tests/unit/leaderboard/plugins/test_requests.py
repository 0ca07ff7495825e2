from collections.abc import Callable
from typing import Any

from leaderboard.cached_statistics import CachedStatistics
from leaderboard.evolution.strategy import Situation
from leaderboard.plugins.requests import LARGEST_RANKED_BOARD, MOST_UNFINISHED, proposal_request, shown_board
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.seeding import purpose_seed
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
MakeCandidate = Callable[..., Candidate]
TOURNAMENT = "cartpole-abc123"


def test_a_generator_receives_the_best_each_with_its_agent_rank_and_children(
    make_spec: MakeSpec, make_candidate: MakeCandidate
) -> None:
    board = tuple(make_candidate(number, 1000.0 - number, rank=9) for number in range(600))
    agents = {one.agent_id: Agent(agent_id=one.agent_id, number=one.agent_number) for one in board}
    situation = Situation(make_spec(seed=5), 700, board, agents, {board[1].agent_id: 2})
    request = proposal_request(TOURNAMENT, situation, [], [])
    assert len(request.candidates) == LARGEST_RANKED_BOARD
    assert [one.candidate.rank for one in request.candidates] == list(range(1, LARGEST_RANKED_BOARD + 1))
    assert all(one.agent.agent_id == one.candidate.agent_id for one in request.candidates)
    assert [one.unfinished_children for one in request.candidates[:3]] == [0, 2, 0]
    assert (request.number, request.seed) == (700, purpose_seed(5, "proposal", 700))
    assert board[0].rank == 9  # what is remembered is not changed
    assert request.ByteSize() < 1 << 20


def test_of_many_unfinished_agents_the_latest_are_shown_by_number(make_spec: MakeSpec) -> None:
    situation = Situation(make_spec(), 0, (), {}, {})
    unfinished = [f"t-a{number}" for number in (*range(1200), 9, 10)]
    shown = proposal_request(TOURNAMENT, situation, set(unfinished), []).unfinished_agent_ids
    assert list(shown) == [f"t-a{number}" for number in range(200, 200 + MOST_UNFINISHED)]


def test_in_a_synchronous_tournament_an_updater_sees_earlier_rounds_and_the_agents_own(
    make_spec: MakeSpec, make_candidate: MakeCandidate
) -> None:
    seen = [make_candidate(number, float(number), sequence=number + 1) for number in range(6)]
    mine = make_candidate(4, 9.0, sequence=7)
    spec = make_spec(synchronous=True, pool={"maximum_pods": 3})
    assert [one.agent_number for one in shown_board(spec, mine, reversed(seen))] == [4, 2, 1, 0]
    assert shown_board(make_spec(), mine, seen) == tuple(seen)


async def test_statistics_are_computed_again_when_they_expire(mesh: Any, make_spec: MakeSpec) -> None:
    spec, now = make_spec(), 100.0
    recent = CachedStatistics(mesh.state, lambda: now)
    agent = await mesh.generate(spec, 0)
    assert [entry.submissions for entry in await recent.of(TOURNAMENT, spec, 1)] == [0]
    await mesh.submit(agent, 5.0)
    assert [entry.submissions for entry in await recent.of(TOURNAMENT, spec, 1)] == [0]
    now += 1.0
    assert [entry.submissions for entry in await recent.of(TOURNAMENT, spec, 1)] == [1]


async def test_in_a_synchronous_tournament_statistics_are_those_of_the_earlier_rounds(
    mesh: Any, make_spec: MakeSpec
) -> None:
    spec = make_spec(synchronous=True, pool={"maximum_pods": 2}, evolution={"initial_agents": 2})
    recent = CachedStatistics(mesh.state, lambda: 100.0)
    agents = [await mesh.generate(spec, number) for number in range(2)]
    await mesh.submit(agents[0], 5.0)
    assert [entry.submissions for entry in await recent.of(TOURNAMENT, spec, 1)] == [0]
    await mesh.submit(agents[1], 5.0)
    assert [entry.submissions for entry in await recent.of(TOURNAMENT, spec, 2)] == [2]
    await mesh.submit(await mesh.generate(spec, 2), 6.0)
    assert [entry.submissions for entry in await recent.of(TOURNAMENT, spec, 3)] == [2]

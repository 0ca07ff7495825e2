"""Makes the requests to generator and updater plugins from the records of a tournament."""

from collections.abc import Iterable, Sequence

from leaderboard.evolution.agents import round_begin
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.board import Board, canonical, fold
from leaderboard.score_statistics import ScoreStatistics
from leaderboard.store import records
from podrace.database import Transaction
from podrace.evolution.v1.evolution_pb2 import JudgeCandidateRequest, ProposeAgentRequest, RankedCandidate
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, AlgorithmStatistics, Candidate
from podrace.seeding import purpose_seed
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

LARGEST_BOARD = 1000
"""Most candidates in a request, so that it stays below the message limit of 4 MiB."""
LARGEST_RANKED_BOARD = 500
"""Most candidates in a request that has the agent of each."""
MOST_UNFINISHED = 1000
"""Most ids of unfinished agents in a request."""


def proposal_request(
    tournament_id: str, situation: Situation, unfinished: Iterable[str], statistics: Sequence[AlgorithmStatistics]
) -> ProposeAgentRequest:
    """Makes the request to a generator plugin.

    Args:
        tournament_id: The tournament.
        situation: What a built-in strategy would receive.
        unfinished: Ids of agents that were handed out and have not finished.
        statistics: Statistics of the algorithms.
    """
    # Ids of one tournament differ only in the number at their end, so a longer id has a larger number.
    by_number = sorted(unfinished, key=lambda agent_id: (len(agent_id), agent_id))
    return ProposeAgentRequest(
        tournament_id=tournament_id,
        spec=situation.spec,
        number=situation.number,
        seed=purpose_seed(situation.spec.seed, "proposal", situation.number),
        candidates=[
            RankedCandidate(
                candidate=candidate,
                agent=situation.agents[candidate.agent_id],
                unfinished_children=situation.unfinished_children.get(candidate.agent_id, 0),
            )
            for candidate in _ranked(situation.board[:LARGEST_RANKED_BOARD])
        ],
        statistics=statistics,
        unfinished_agent_ids=by_number[-MOST_UNFINISHED:],
    )


def judgement_request(spec: TournamentSpec, candidate: Candidate, agent: Agent, board: Board) -> JudgeCandidateRequest:
    """Makes the request to an updater plugin.

    Args:
        spec: Resolved specification.
        candidate: Not yet judged.
        agent: Agent of the candidate.
        board: Board that the candidate is submitted to.
    """
    return JudgeCandidateRequest(
        tournament_id=candidate.tournament_id,
        spec=spec,
        candidate=candidate,
        agent=agent,
        board=_ranked(board[:LARGEST_BOARD]),
    )


def shown_board(spec: TournamentSpec, candidate: Candidate, seen: Iterable[Candidate]) -> Board:
    """Returns the board that an updater plugin receives.

    In a synchronous tournament it must not depend on which pod was faster. Candidates of the current round are
    therefore left out, except those of the same agent, whose order is fixed.

    Args:
        spec: Resolved specification.
        candidate: Not yet judged.
        seen: The board; in a synchronous tournament every earlier submission.
    """
    if not spec.synchronous:
        return tuple(seen)
    begin = round_begin(spec, candidate.agent_number)
    settled = (one for one in seen if one.agent_number < begin or one.agent_id == candidate.agent_id)
    return fold(canonical(settled), spec.evolution.board_capacity).board


def _ranked(board: Board) -> list[Candidate]:
    """Returns copies with their current rank; the recorded ones have the rank at which they entered."""
    copies = []
    for rank, candidate in enumerate(board, start=1):
        copy = Candidate()
        copy.CopyFrom(candidate)
        copy.rank = rank
        copies.append(copy)
    return copies


# --- reads -------------------------------------------------------------------------------------------------------


def read_judgement_request(transaction: Transaction, candidate: Candidate) -> JudgeCandidateRequest | None:
    """Reads the request to an updater plugin; None if the candidate has been judged."""
    if records.find_submission(transaction, candidate.candidate_id):
        return None
    spec = records.get_spec(transaction, candidate.tournament_id)
    agent = records.get_generation(transaction, candidate.agent_id).agent
    read = records.list_candidates if spec.synchronous else records.read_board
    board = shown_board(spec, candidate, read(transaction, candidate.tournament_id))
    return judgement_request(spec, candidate, agent, board)


def read_statistics(
    transaction: Transaction, tournament_id: str, spec: TournamentSpec, below: int | None
) -> ScoreStatistics:
    """Reads what statistics are computed from; with `below`, agents and submissions of lower numbers only."""
    agents = [generation.agent for generation in records.list_generations(transaction, tournament_id)]
    found = ScoreStatistics(spec, [one for one in agents if below is None or one.number < below])
    for candidate in records.each_candidate(transaction, tournament_id):
        if below is None or candidate.agent_number < below:
            found.add(candidate)
    return found

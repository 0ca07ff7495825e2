"""Owns what custom parts are shown. Pure but for the two reads at its end; decides nothing about the answers."""

from collections.abc import Iterable, Sequence

from leaderboard.evolution.agents import round_begin
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.board import Board, canonical, fold
from leaderboard.seeding import purpose_seed
from leaderboard.store import records
from podrace.database import Transaction
from podrace.evolution.v1.evolution_pb2 import JudgeCandidateRequest, ProposeAgentRequest, RankedCandidate
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, AlgorithmStatistics, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

LARGEST_BOARD = 1000
"""Candidates that are shown at most; a message has 4 MiB."""
LARGEST_RANKED_BOARD = 500
"""The same, where each comes with its agent."""
MOST_UNFINISHED = 1000


def proposal_request(
    tournament_id: str, situation: Situation, unfinished: Iterable[str], statistics: Sequence[AlgorithmStatistics]
) -> ProposeAgentRequest:
    """What a custom generator is shown.

    Args:
        tournament_id: The tournament.
        situation: What a strategy would be shown.
        unfinished: Ids of agents that are handed out and not finished.
        statistics: What scores say of algorithms and hyperparameters.
    """
    # Ids of one tournament differ in their numbers alone: a longer one has a larger number.
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
    """What a custom updater is shown.

    Args:
        spec: Resolved.
        candidate: Not yet judged.
        agent: Its own.
        board: The board it comes to.
    """
    return JudgeCandidateRequest(
        tournament_id=candidate.tournament_id,
        spec=spec,
        candidate=candidate,
        agent=agent,
        board=_ranked(board[:LARGEST_BOARD]),
    )


def shown_board(spec: TournamentSpec, candidate: Candidate, seen: Iterable[Candidate]) -> Board:
    """The board that a custom updater is shown.

    In a synchronous tournament it must not depend on which pod was faster: candidates of the running round are left
    out, but for those of the same agent, which come one after the other.

    Args:
        spec: Resolved.
        candidate: Not yet judged.
        seen: The board; in a synchronous tournament every earlier submission.
    """
    if not spec.synchronous:
        return tuple(seen)
    begin = round_begin(spec, candidate.agent_number)
    settled = (one for one in seen if one.agent_number < begin or one.agent_id == candidate.agent_id)
    return fold(canonical(settled), spec.evolution.board_capacity).board


def _ranked(board: Board) -> list[Candidate]:
    """Copies with the rank of now: those that were recorded have the rank they came to."""
    copies = []
    for rank, candidate in enumerate(board, start=1):
        copy = Candidate()
        copy.CopyFrom(candidate)
        copy.rank = rank
        copies.append(copy)
    return copies


# --- reads -------------------------------------------------------------------------------------------------------


def read_judgement_request(transaction: Transaction, candidate: Candidate) -> JudgeCandidateRequest | None:
    """What a custom updater is shown now; None if the candidate has been judged."""
    if records.find_submission(transaction, candidate.candidate_id):
        return None
    spec = records.get_spec(transaction, candidate.tournament_id)
    agent = records.get_generation(transaction, candidate.agent_id).agent
    read = records.list_candidates if spec.synchronous else records.read_board
    board = shown_board(spec, candidate, read(transaction, candidate.tournament_id))
    return judgement_request(spec, candidate, agent, board)


def read_statistics(
    transaction: Transaction, tournament_id: str, below: int | None
) -> tuple[list[Agent], list[Candidate]]:
    """What statistics are made of: agents and their submissions; with `below`, of those with a lower number."""
    agents = [generation.agent for generation in records.list_generations(transaction, tournament_id)]
    candidates = records.list_candidates(transaction, tournament_id)
    if below is None:
        return agents, candidates
    return [one for one in agents if one.number < below], [one for one in candidates if one.agent_number < below]

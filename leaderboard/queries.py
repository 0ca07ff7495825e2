"""Owns the questions asked of the records: pages, families, champion, statistics, log. Each is one transaction."""

from collections import deque
from collections.abc import Sequence

from leaderboard.decision_replay import DecisionLog
from leaderboard.ranking.champion_selection import name_champion
from leaderboard.ranking.lineage_summary import summaries_of
from leaderboard.score_statistics import statistics_of
from leaderboard.store import ancestor_queries, pagination, records
from leaderboard.store.records import Generation, Submission
from podrace.database import Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import (
    AlgorithmStatistics,
    Candidate,
    GetLineageRequest,
    GetLineageResponse,
    ListCandidatesRequest,
    ListCandidatesResponse,
    NameChampionRequest,
    NameChampionResponse,
)
from podrace.specification import ancestor

LARGEST_FAMILY = 1000
"""Agents that a lineage lists at most, so that the answer stays within the size of a message."""


def page_of_candidates(transaction: Transaction, request: ListCandidatesRequest) -> ListCandidatesResponse:
    """A page of a board by rank, or of all submissions by arrival; a tournament without agents has none.

    Raises:
        InvalidArgument: The page token is not one of this list.
    """
    page = pagination.asked_for(request)
    if request.all_submissions:
        found = submissions_after(transaction, request.tournament_id, page.after, page.size + 1)
        positions = [candidate.sequence for candidate in found]
    else:
        submissions = records.board_submissions(transaction, request.tournament_id)
        ranked = list(enumerate(submissions, start=1))[page.after : page.after + page.size + 1]
        found = [as_of_now(submission, rank) for rank, submission in ranked]
        positions = [candidate.rank for candidate in found]
    token = pagination.token_after(request, positions[page.size - 1]) if len(found) > page.size else ""
    return ListCandidatesResponse(candidates=found[: page.size], next_page_token=token)


def submissions_after(transaction: Transaction, tournament_id: str, sequence: int, limit: int) -> list[Candidate]:
    """Submissions of a tournament that came after a sequence number, by arrival, as they stand now."""
    found = records.list_submissions(transaction, tournament_id, after_sequence=sequence, limit=limit)
    if not found:
        return []
    board = records.read_board(transaction, tournament_id)
    ranks = {candidate.candidate_id: rank for rank, candidate in enumerate(board, start=1)}
    return [as_of_now(submission, ranks.get(submission.answer.candidate.candidate_id, 0)) for submission in found]


def as_of_now(submission: Submission, rank: int) -> Candidate:
    """The candidate of a submission with the rank, verdict and reason of now."""
    candidate = Candidate()
    candidate.CopyFrom(submission.answer.candidate)
    candidate.rank = rank
    candidate.verdict = submission.standing.verdict
    candidate.reason = submission.standing.reason
    return candidate


def lineage(transaction: Transaction, request: GetLineageRequest) -> GetLineageResponse:
    """An agent, then its ancestors, or a page of all agents of a tournament by number; and what each did.

    Raises:
        NotFound: The agent was never generated here.
        InvalidArgument: The page token is not one of this list.
    """
    if request.agent_id:
        return _told(transaction, family_of(transaction, request.agent_id))
    page = pagination.asked_for(request)
    found = records.page_of_generations(transaction, request.tournament_id, page.after, page.size + 1)
    response = _told(transaction, found[: page.size])
    if len(found) > page.size:
        response.next_page_token = pagination.token_after(request, found[page.size].agent.number)
    return response


def family_of(transaction: Transaction, agent_id: str) -> list[Generation]:
    """An agent, then its ancestors, nearest first, each once; the most distant are left out beyond LARGEST_FAMILY.

    Raises:
        NotFound: The agent was never generated here.
    """
    family = [records.get_generation(transaction, agent_id)]
    known = {agent_id}
    waiting = deque(family[0].agent.parent_agent_ids)
    while waiting and len(family) < LARGEST_FAMILY:
        parent_id = waiting.popleft()
        if parent_id not in known:
            known.add(parent_id)
            family.append(records.get_generation(transaction, parent_id))
            waiting.extend(family[-1].agent.parent_agent_ids)
    return family


def _told(transaction: Transaction, generations: Sequence[Generation]) -> GetLineageResponse:
    if not generations:
        return GetLineageResponse()
    agents = [generation.agent for generation in generations]
    depths = {generation.agent.agent_id: generation.depth for generation in generations}
    # An agent may have started from one of another tournament.
    starts = (ancestor.tournament_of(agent.starting_checkpoint.agent_id) for agent in agents)
    involved = dict.fromkeys((*(agent.tournament_id for agent in agents), *filter(None, starts)))
    submissions = [one for name in involved for one in records.list_candidates(transaction, name)]
    return GetLineageResponse(agents=agents, summaries=summaries_of(agents, depths, submissions))


def champion(transaction: Transaction, request: NameChampionRequest) -> NameChampionResponse:
    """The champion by what is known, and who is to be evaluated again.

    Raises:
        NotFound: No agent of the tournament was ever generated here.
    """
    spec = records.get_spec(transaction, request.tournament_id)
    submissions = records.board_submissions(transaction, request.tournament_id)
    board = tuple(as_of_now(submission, rank) for rank, submission in enumerate(submissions, start=1))
    return name_champion(spec, board, request.evaluations)


def statistics(transaction: Transaction, tournament_id: str) -> list[AlgorithmStatistics]:
    """Statistics per algorithm; a tournament without agents has none."""
    spec = records.find_spec(transaction, tournament_id)
    if spec is None:
        return []
    agents = [generation.agent for generation in records.list_generations(transaction, tournament_id)]
    return statistics_of(spec, agents, records.list_candidates(transaction, tournament_id))


def log(transaction: Transaction, tournament_id: str) -> DecisionLog:
    """All that was recorded of a tournament.

    Raises:
        NotFound: No agent of it was ever generated here.
    """
    return DecisionLog(
        tournament_id,
        records.get_spec(transaction, tournament_id),
        records.list_generations(transaction, tournament_id),
        records.list_submissions(transaction, tournament_id),
        records.proposals_of(transaction, tournament_id),
        ancestor_queries.find(transaction, tournament_id, records.get_spec(transaction, tournament_id)),
    )

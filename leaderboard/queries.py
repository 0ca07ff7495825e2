"""Answers queries on the records: pages, lineages, champion, statistics, the decision log."""

import asyncio
import itertools
import operator
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from leaderboard.decision_replay import DecisionLog
from leaderboard.ranking.board import Board
from leaderboard.ranking.champion_selection import name_champion
from leaderboard.ranking.compute import ComputeUse
from leaderboard.ranking.contenders import newest_by_trial
from leaderboard.ranking.lineage_summary import Summaries
from leaderboard.ranking.score_history import ScoreHistory
from leaderboard.score_statistics import ScoreStatistics
from leaderboard.store import ancestor_queries, pagination, proposal_records, records
from leaderboard.store.experience_records import OLDEST_SECONDS, newest_with_memory
from leaderboard.store.records import Generation, Submission
from podrace.database import LARGEST_NUMBER, Database, Transaction
from podrace.errors import FieldViolation, InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import (
    Agent,
    Candidate,
    EpisodeCorrelation,
    ExperienceSource,
    GetLineageRequest,
    GetLineageResponse,
    GetStatisticsRequest,
    GetStatisticsResponse,
    ListCandidatesRequest,
    ListCandidatesResponse,
    ListExperienceRequest,
    ListExperienceResponse,
    NameChampionRequest,
    NameChampionResponse,
)
from podrace.page_bytes import fitting
from podrace.specification import ancestor
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

LARGEST_LINEAGE = 1000
"""Most agents in the lineage of an agent."""
MOST_MEMORIES = 64
"""Most memories in an answer."""
MEMORY_SUBMISSIONS = 512
"""Largest number of submissions that one request reads, the newest ones."""


def page_of_candidates(transaction: Transaction, request: ListCandidatesRequest) -> ListCandidatesResponse:
    """Returns a page of a board by rank, or of all submissions by arrival.

    Raises:
        InvalidArgument: The page token does not belong to this list, or the filter or the order cannot be used.
    """
    page = pagination.page_of(request)
    position = operator.attrgetter("sequence" if request.all_submissions else "rank")
    if request.all_submissions:
        begin, limit = (0, LARGEST_NUMBER) if page.selects else (page.after, page.size + 1)
        found = submissions_after(transaction, request.tournament_id, begin, limit)
    else:
        ranked = enumerate(records.board_submissions(transaction, request.tournament_id), start=1)
        begin, end = (0, None) if page.selects else (page.after, page.after + page.size + 1)
        found = [with_current_standing(submission, rank) for rank, submission in itertools.islice(ranked, begin, end)]
    if page.selects:
        found = page.cut(found, lambda candidate: candidate, position)
    kept = fitting(found[: page.size])
    return ListCandidatesResponse(candidates=kept, next_page_token=page.token(found, len(kept), position))


def submissions_after(transaction: Transaction, tournament_id: str, sequence: int, limit: int) -> list[Candidate]:
    """Returns submissions after a sequence number, by arrival, with their current rank and verdict."""
    found = records.list_submissions(transaction, tournament_id, after_sequence=sequence, limit=limit)
    if not found:
        return []
    board = records.read_board(transaction, tournament_id)
    ranks = {candidate.candidate_id: rank for rank, candidate in enumerate(board, start=1)}
    return [
        with_current_standing(submission, ranks.get(submission.answer.candidate.candidate_id, 0))
        for submission in found
    ]


def with_current_standing(submission: Submission, rank: int) -> Candidate:
    """Returns the candidate of a submission with its current rank, verdict and reason."""
    candidate = Candidate()
    candidate.CopyFrom(submission.answer.candidate)
    candidate.rank = rank
    candidate.verdict = submission.standing.verdict
    candidate.reason = submission.standing.reason
    return candidate


async def lineage(
    state: Database, request: GetLineageRequest, sees: Callable[[str], bool] = lambda tournament_id: True
) -> GetLineageResponse:
    """Returns an agent and its ancestors, or a page of the agents of a tournament by number, with their summaries.

    Args:
        state: The database.
        request: The request.
        sees: Whether the caller may see a tournament; ancestors of other tournaments are left out.

    Raises:
        NotFound: The agent was never generated here.
        InvalidArgument: The page token does not belong to this list, the filter or the order cannot be used, or they
            are set although an agent is named.
    """
    if request.agent_id:
        _check_unselected(request)
        return await _with_summaries(state, await state.transact(ancestry_of, request.agent_id, sees))
    page = pagination.page_of(request)
    found = await state.transact(_agents_of_page, request.tournament_id, page)
    response = await _with_summaries(state, found[: page.size])
    response.next_page_token = page.token(found, len(response.agents), _next_number)
    return response


def _agents_of_page(transaction: Transaction, tournament_id: str, page: pagination.Page) -> Sequence[Generation]:
    if page.selects:
        every = records.list_generations(transaction, tournament_id)
        return page.cut(sorted(every, key=_next_number), lambda one: one.agent, _next_number)
    return records.page_of_generations(transaction, tournament_id, page.after, page.size + 1)


def _next_number(generation: Generation) -> int:
    """Returns the position of an agent in a list: the number after its own, because numbers begin at 0."""
    return generation.agent.number + 1


def _check_unselected(request: GetLineageRequest) -> None:
    given = {"filter": request.filter, "order_by": request.order_by}
    problem = "selects among the agents of a tournament; leave it out, or name no agent"
    if found := [FieldViolation(name, problem) for name, text in given.items() if text]:
        raise InvalidArgument("; ".join(f"{one.field}: {one.problem}" for one in found), violations=found)


def ancestry_of(transaction: Transaction, agent_id: str, sees: Callable[[str], bool]) -> list[Generation]:
    """Returns an agent, then its ancestors that the caller sees, nearest first, each once; at most LARGEST_LINEAGE.

    Raises:
        NotFound: The agent was never generated here.
    """
    family = [records.get_generation(transaction, agent_id)]
    known = {agent_id}
    waiting = deque(family[0].agent.parent_agent_ids)
    while waiting and len(family) < LARGEST_LINEAGE:
        parent_id = waiting.popleft()
        if parent_id not in known and sees(ancestor.tournament_of(parent_id)):
            known.add(parent_id)
            family.append(records.get_generation(transaction, parent_id))
            waiting.extend(family[-1].agent.parent_agent_ids)
    return family


async def _with_summaries(state: Database, generations: Sequence[Generation]) -> GetLineageResponse:
    agents = [generation.agent for generation in generations]
    summaries = Summaries(agents, {generation.agent.agent_id: generation.depth for generation in generations})
    # An agent may have started from one of another tournament.
    starts = (ancestor.tournament_of(agent.starting_checkpoint.agent_id) for agent in agents)
    for name in dict.fromkeys((*(agent.tournament_id for agent in agents), *filter(None, starts))):
        async for submissions in candidate_pages(state, name):
            for candidate in submissions:
                summaries.add(candidate)
    response = GetLineageResponse()
    for one in fitting(
        GetLineageResponse(agents=[agent], summaries=[summary])
        for agent, summary in zip(agents, summaries.found(), strict=True)
    ):
        response.MergeFrom(one)
    return response


async def candidate_pages(state: Database, tournament_id: str) -> AsyncIterator[list[Candidate]]:
    """Yields all submissions of a tournament by arrival, in pages.

    Each page is read in its own transaction, so no change waits until all are read. What arrives meanwhile is included.
    """
    read, after = partial(records.list_submissions, limit=records.PAGE_SIZE), 0
    while page := await state.transact(read, tournament_id, after_sequence=after):
        yield [submission.answer.candidate for submission in page]
        after = page[-1].answer.candidate.sequence


async def champion(state: Database, request: NameChampionRequest) -> NameChampionResponse:
    """Returns the champion by the evaluations so far, and which candidates are to be evaluated again.

    Raises:
        NotFound: No agent of the tournament was ever generated here.
    """
    spec = await state.transact(records.get_spec, request.tournament_id)
    newest: dict[int, Candidate] = {}
    async for submissions in candidate_pages(state, request.tournament_id):
        newest |= newest_by_trial(submissions)
    board = await state.transact(_board, request.tournament_id)
    return name_champion(spec, board, newest, request.evaluations)


def _board(transaction: Transaction, tournament_id: str) -> Board:
    submissions = records.board_submissions(transaction, tournament_id)
    return tuple(with_current_standing(submission, rank) for rank, submission in enumerate(submissions, start=1))


class _Statistics:
    """Collects the statistics of a tournament, one page of submissions after another."""

    def __init__(self, spec: TournamentSpec, agents: Sequence[Agent], champion_ids: Sequence[str]) -> None:
        self._history, self._scores = ScoreHistory(), ScoreStatistics(spec, agents)
        self._compute = ComputeUse(agents, champion_ids, spec.pod)

    def add(self, submissions: Sequence[Candidate]) -> None:
        """Adds the next submissions, by arrival."""
        for candidate in submissions:
            self._history.add(candidate)
            self._scores.add(candidate)
            self._compute.add(candidate)

    def response(self) -> GetStatisticsResponse:
        """Returns the statistics."""
        episodes = self._history.episodes
        found = EpisodeCorrelation(correlation=episodes.value, pairs=episodes.pairs) if episodes.pairs else None
        return GetStatisticsResponse(
            algorithms=self._scores.statistics(),
            episode_correlation=found,
            compute=self._compute.statistics(),
        )


def _begin_statistics(transaction: Transaction, request: GetStatisticsRequest) -> _Statistics | None:
    spec = records.find_spec(transaction, request.tournament_id)
    if spec is None:
        return None
    agents = [generation.agent for generation in records.list_generations(transaction, request.tournament_id)]
    return _Statistics(spec, agents, request.champion_candidate_ids)


async def statistics(state: Database, request: GetStatisticsRequest) -> GetStatisticsResponse:
    """Returns statistics of a tournament; none if it has no agents."""
    collected = await state.transact(_begin_statistics, request)
    if collected is None:
        return GetStatisticsResponse()
    async for submissions in candidate_pages(state, request.tournament_id):
        # In a thread, because to add a page takes longer than to read it.
        await asyncio.to_thread(collected.add, submissions)
    return await asyncio.to_thread(collected.response)


def decision_log(transaction: Transaction, tournament_id: str) -> DecisionLog:
    """Returns the records of a tournament that a replay needs.

    Raises:
        NotFound: No agent of the tournament was ever generated here.
    """
    spec = records.get_spec(transaction, tournament_id)
    return DecisionLog(
        tournament_id,
        spec,
        records.list_generations(transaction, tournament_id),
        records.list_submissions(transaction, tournament_id),
        proposal_records.proposals_of(transaction, tournament_id),
        ancestor_queries.find(transaction, tournament_id, spec),
    )


def list_experience(transaction: Transaction, request: ListExperienceRequest) -> ListExperienceResponse:
    """Returns the newest memory of each other agent, without the ancestors of the agent; see the contract.

    Memories that were submitted more than OLDEST_SECONDS before the transaction are left out.

    Raises:
        NotFound: The agent was never generated here.
    """
    agent = records.get_generation(transaction, request.agent_id).agent
    candidates = newest_with_memory(transaction, agent.tournament_id, request.after_sequence, MEMORY_SUBMISSIONS)
    answer = ListExperienceResponse(sequence=max(request.after_sequence, *(one.sequence for one in candidates), 0))
    oldest = (transaction.now - OLDEST_SECONDS) * 1e9
    recent = [one for one in candidates if one.submit_time.ToNanoseconds() >= oldest]
    if not recent:
        return answer
    left_out = {one.agent.agent_id for one in ancestry_of(transaction, request.agent_id, lambda tournament_id: True)}
    newest = {one.agent_id: one for one in reversed(recent) if one.agent_id not in left_out}
    for one in sorted(newest.values(), key=lambda one: one.sequence, reverse=True)[:MOST_MEMORIES]:
        answer.sources.append(ExperienceSource(agent_id=one.agent_id, manifest_digest=one.candidate_id))
    return answer

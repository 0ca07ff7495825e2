"""Reads what an agent is generated from, and records the agent: the transactions of leaderboard.generator."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from leaderboard.evolution.agents import (
    agent_id_of,
    make,
    needs_history,
    round_begin,
    visible_board,
    visible_trials,
)
from leaderboard.evolution.allocation import eliminated, failing
from leaderboard.evolution.history import NOTHING, History, history_of, visible_end, window_begin
from leaderboard.evolution.incumbent.improvement import Improvement, improvement_of
from leaderboard.evolution.proposals import Proposal
from leaderboard.evolution.strategy import NoWork, Situation
from leaderboard.evolution.trials import ClockReading, Trials, no_time_is_left
from leaderboard.ranking.board import Board
from leaderboard.store import ancestor_queries, owners, proposal_records, records, request_records
from leaderboard.store.records import Generation, timestamp
from leaderboard.store.running_agents import RunningAgents
from leaderboard.trial_cache import Ends, TrialCache
from podrace.database import Transaction
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_CONTINUATION, ORIGIN_FRESH, Agent, GenerateAgentRequest
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, TournamentSpec


@dataclass(frozen=True)
class GeneratorView:
    """What a generator plugin receives about a tournament."""

    situation: Situation
    """What a built-in strategy would receive."""
    running: Sequence[str]
    """Ids of agents that were handed out and have not finished."""


class NoWorkError(Exception):
    """Rolls the transaction back: what it has recorded belongs to an agent that is not generated."""

    def __init__(self, answer: NoWork) -> None:
        super().__init__(answer.reason)
        self.answer = answer


@dataclass(frozen=True)
class Caches:
    """What the database thread keeps between two agents."""

    running: RunningAgents
    """Agents that had not finished when the last agent was generated."""
    trials: TrialCache
    """The folded logs."""


@dataclass(frozen=True)
class Review:
    """A strategy's decisions about the agents in training."""

    stops: Mapping[str, str]
    """Agents that it stops early, by id, with the reason in one line."""
    improvement: Improvement | None
    """Whether the incumbent improves; None if there is none, or it was not scored."""


NOTHING_TO_REVIEW = Review({}, None)


def review(transaction: Transaction, tournament_id: str, cache: TrialCache) -> Review:
    """Reviews the agents in training; see Generator.review."""
    spec = records.find_spec(transaction, tournament_id)
    if spec is None or spec.synchronous:
        # A decision in the middle of a round would depend on which pod was faster.
        return NOTHING_TO_REVIEW
    trials = cache.read(transaction, tournament_id, spec)
    return NOTHING_TO_REVIEW if trials is None else Review(trials.stops, improvement_of(trials))


def is_first(transaction: Transaction, request: GenerateAgentRequest) -> bool:
    """Whether the tournament has no agent yet."""
    return records.find_spec(transaction, request.tournament_id) is None


def requests_due(transaction: Transaction, request: GenerateAgentRequest) -> list[GenerateAgentRequest]:
    """Returns one request for each agent that the generator plugin is called for before this one can be generated.

    They are in the order of the agents' numbers, and the id of each request is the id of its agent. The list is empty
    if the agent was generated before. Agents that start from an agent of another tournament are left out, because the
    specification determines them. Raises as Generator.generate.
    """
    spec, tournament_id = _first_spec(transaction, request), request.tournament_id
    begin = round_begin(spec, request.number) if spec.synchronous else request.number
    there = records.numbers_of_agents(transaction, tournament_id, begin, request.number + 1)
    due = []
    for number in range(begin, request.number + 1):
        if not there & {number, request.number} and not ancestor_queries.find(transaction, tournament_id, spec, number):
            due.append(GenerateAgentRequest())
            due[-1].CopyFrom(request)
            due[-1].number, due[-1].request_id = number, agent_id_of(tournament_id, number)
    return due


def read_situation(transaction: Transaction, request: GenerateAgentRequest) -> GeneratorView | None:
    """Reads what the generator of an agent receives; None if it was generated before. Raises as Generator.generate."""
    tournament_id, number = request.tournament_id, request.number
    if records.find_generation(transaction, agent_id_of(tournament_id, number)):
        return None
    spec = _first_spec(transaction, request)
    begin = round_begin(spec, number) if spec.synchronous else number
    if spec.synchronous:
        _check_earlier_rounds(transaction, request, begin)
    board = _read_visible(transaction, tournament_id, spec, number)
    ranked = {candidate.agent_id for candidate in board}
    history = _read_history(transaction, tournament_id, spec, number)
    running = {*request.unfinished_agent_ids, *(agent_id_of(tournament_id, other) for other in range(begin, number))}
    # The request is newer than the records: which agents ended is recorded when the next agent is generated.
    rows = records.unfinished_children(transaction, tournament_id, ranked)
    children = Counter(parent for parent, child, other in rows if other >= begin or child in running)
    agents = {**history.by_id, **records.find_agents(transaction, ranked)}
    situation = Situation(spec, number, board, agents, children, history, eliminated(spec, history))
    return GeneratorView(situation, sorted(running))


def generate(
    transaction: Transaction, request: GenerateAgentRequest, caches: Caches, proposal: Proposal | None = None
) -> tuple[Agent, list[Agent]]:
    """Returns the requested agent and all agents that were generated in this call; raises as Generator.generate.

    Args:
        transaction: Transaction that records them.
        request: The request.
        caches: State between two agents.
        proposal: Result of calling a generator plugin for the requested agent; None if it was not called.
    """
    agent_id = agent_id_of(request.tournament_id, request.number)
    request_records.hold_request(transaction, "GenerateAgent", request.request_id, agent_id)
    stored = records.find_generation(transaction, agent_id)
    if stored:
        return stored.agent, []
    spec = _first_spec(transaction, request)
    if spec.synchronous:
        made = _make_round(transaction, request, spec, caches, proposal)
    elif request.number and no_time_is_left(request.spec.objective, request.running_duration.ToNanoseconds() / 1e9):
        raise NoWorkError(NoWork("the tournament ends before another agent could be scored"))
    else:
        made = [_make(transaction, request, spec, request.number, caches, begin=request.number, proposal=proposal)]
    return made[-1], made


def record_again(transaction: Transaction, request: GenerateAgentRequest, caches: Caches) -> tuple[Agent, bool]:
    """Records an agent that was generated before, if the database has lost it.

    It counts as generated now: after all submissions that the database has, and not ended.

    Returns:
        The agent as it is recorded, and whether this call has recorded it.
    """
    agent, agent_id = request.agent, agent_id_of(request.tournament_id, request.number)
    stated = (agent.agent_id, agent.tournament_id, agent.number)
    if stated != (agent_id, request.tournament_id, request.number):
        raise InvalidArgument(
            f"GenerateAgent: agent.agent_id = {agent.agent_id!r}: expected agent {agent_id!r}, with its tournament and"
            " number"
        )
    request_records.hold_request(transaction, "GenerateAgent", request.request_id, agent_id)
    if stored := records.find_generation(transaction, agent_id):
        return stored.agent, False
    _first_spec(transaction, request)
    parents = (records.find_generation(transaction, parent_id) for parent_id in agent.parent_agent_ids[:1])
    behind = max((parent.depth for parent in parents if parent), default=0)
    depth = behind if agent.origin in (ORIGIN_FRESH, ORIGIN_CONTINUATION) else behind + 1
    position, after = records.next_position(transaction), records.last_sequence(transaction)
    records.add_generation(transaction, Generation(agent, depth, after, position))
    # A transaction that was rolled back may have recorded ends at this position.
    caches.running.forget()
    caches.trials.forget(request.tournament_id)
    return agent, True


def _first_spec(transaction: Transaction, request: GenerateAgentRequest) -> TournamentSpec:
    """Returns the specification that the tournament began with.

    The request's one may differ in the limits of the pool and in the objective only.
    """
    spec = records.find_spec(transaction, request.tournament_id)
    if spec is None:
        ancestor_queries.check(transaction, request.tournament_id, request.spec)
        records.add_spec(transaction, request.tournament_id, request.spec)
        owners.add_owner(transaction, request.tournament_id, owners.ownership_in(request))
        return request.spec
    for name in ("seed", "synchronous", "algorithms", "evolution"):
        if _comparable(spec, name) != _comparable(request.spec, name):
            raise InvalidArgument(
                f"tournament {request.tournament_id}: {name} differs from what its first agent was generated with;"
                " create another tournament"
            )
    return spec


def _comparable(spec: TournamentSpec, name: str) -> object:
    """Returns a field for comparison; specifications of versions without `allocation` count as allocation = "ratio"."""
    if name != "evolution":
        return getattr(spec, name)
    evolution = EvolutionSpec(allocation="ratio")
    evolution.MergeFrom(spec.evolution)
    return evolution


def _make_round(
    transaction: Transaction,
    request: GenerateAgentRequest,
    spec: TournamentSpec,
    caches: Caches,
    proposal: Proposal | None,
) -> list[Agent]:
    tournament_id, begin = request.tournament_id, round_begin(spec, request.number)
    _check_earlier_rounds(transaction, request, begin)
    there = records.numbers_of_agents(transaction, tournament_id, begin, request.number)
    missing = [number for number in range(begin, request.number + 1) if number not in there]
    proposals = {request.number: proposal}
    return [
        _make(transaction, request, spec, number, caches, begin=begin, proposal=proposals.get(number))
        for number in missing
    ]


def _check_earlier_rounds(transaction: Transaction, request: GenerateAgentRequest, begin: int) -> None:
    unfinished = records.find_agents(transaction, request.unfinished_agent_ids).values()
    late = [agent.agent_id for agent in unfinished if agent.number < begin]
    if late:
        raise FailedPrecondition(
            f"agent {request.number} of {request.tournament_id} waits: {late[0]} of an earlier round is unfinished"
        )
    generated = records.count_agents_below(transaction, request.tournament_id, begin)
    if generated < begin:
        raise FailedPrecondition(
            f"agent {request.number} of {request.tournament_id} waits: of the {begin} agents of the earlier rounds only"
            f" {generated} were generated"
        )


def _make(
    transaction: Transaction,
    request: GenerateAgentRequest,
    spec: TournamentSpec,
    number: int,
    caches: Caches,
    *,
    begin: int,
    proposal: Proposal | None,
) -> Agent:
    """Makes one agent; agents below `begin` that the request does not list as unfinished have ended."""
    tournament_id, position = request.tournament_id, records.next_position(transaction)
    ends = _record_ends(transaction, request, caches, begin=begin, position=position)
    board = _read_visible(transaction, tournament_id, spec, number)
    ranked = {candidate.agent_id for candidate in board}
    answer = make(
        tournament_id,
        spec,
        number,
        board,
        records.find_agents(transaction, ranked),
        records.count_unfinished_children(transaction, tournament_id, ranked),
        _read_history(transaction, tournament_id, spec, number),
        proposal,
        ancestor=ancestor_queries.find(transaction, tournament_id, spec, number),
        trials=_read_trials(transaction, tournament_id, spec, number, caches.trials, ends),
        clock=_clock(request, spec),
    )
    if isinstance(answer, NoWork):
        raise NoWorkError(answer)
    agent, depth = answer
    agent.pod_id = "" if spec.synchronous else request.pod_id
    agent.create_time.CopyFrom(timestamp(transaction.now))
    after = records.last_sequence(transaction)
    records.add_generation(transaction, Generation(agent, depth, after, position))
    caches.running.add(agent)
    if proposal is not None:
        proposal_records.add_proposal(transaction, agent.agent_id, proposal)
    return agent


def _record_ends(
    transaction: Transaction, request: GenerateAgentRequest, caches: Caches, *, begin: int, position: int
) -> Ends:
    tournament_id, unfinished = request.tournament_id, request.unfinished_agent_ids
    ended = caches.running.record_ended(transaction, tournament_id, unfinished, below=begin, position=position)
    failed = records.note_failed(transaction, tournament_id, request.failed_agent_ids, position=position)
    return Ends(position, ended, failed)


def _clock(request: GenerateAgentRequest, spec: TournamentSpec) -> ClockReading:
    """Returns how far the tournament is; in a synchronous one by steps alone, which do not depend on the machine."""
    seconds = 0.0 if spec.synchronous else request.running_duration.ToNanoseconds() / 1e9
    return ClockReading.at(request.spec.objective, seconds, request.tournament_environment_steps)


def _read_trials(
    transaction: Transaction, tournament_id: str, spec: TournamentSpec, number: int, cache: TrialCache, ends: Ends
) -> Trials | None:
    if not spec.synchronous:
        return cache.read(transaction, tournament_id, spec, ends)
    generations = records.list_generations(transaction, tournament_id)
    return visible_trials(
        spec,
        number,
        [generation.agent for generation in generations],
        records.list_candidates(transaction, tournament_id),
        {generation.agent.agent_id for generation in generations if generation.failed is not None},
    )


def _read_visible(transaction: Transaction, tournament_id: str, spec: TournamentSpec, number: int) -> Board:
    read = records.list_candidates if spec.synchronous else records.read_board
    return visible_board(spec, number, read(transaction, tournament_id))


def _read_history(transaction: Transaction, tournament_id: str, spec: TournamentSpec, number: int) -> History:
    if not needs_history(spec):
        return NOTHING
    unfinished = records.numbers_of_unfinished(transaction, tournament_id)
    begin = window_begin(spec, number, len(unfinished))
    generations = records.list_generations(transaction, tournament_id, from_number=begin)
    # An agent submits only after it was generated.
    after = min((generation.after_sequence for generation in generations), default=0)
    known = history_of(
        spec,
        number,
        [generation.agent for generation in generations],
        records.list_candidates(transaction, tournament_id, after_sequence=after),
        unfinished,
        {generation.agent.agent_id for generation in generations if generation.failed is not None},
    )
    # Looked up only for an algorithm that would be eliminated: it is, or one of its early scores is found.
    earlier = _scored_algorithms(transaction, tournament_id, failing(spec, known), visible_end(spec, number))
    return replace(known, scored_algorithms=known.scored_algorithms | earlier) if earlier else known


def _scored_algorithms(
    transaction: Transaction, tournament_id: str, names: Collection[str], end: float
) -> frozenset[str]:
    """Returns those of the algorithms of which an agent with a number below `end` was ever scored."""
    missing, after = set(names), 0
    while missing and (page := records.list_submissions(transaction, tournament_id, after_sequence=after, limit=100)):
        candidates = [submission.answer.candidate for submission in page]
        missing -= {one.algorithm for one in candidates if one.agent_number < end}
        after = candidates[-1].sequence
    return frozenset(set(names) - missing)

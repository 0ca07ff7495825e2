"""Owns who comes next: every agent is made once, in one transaction, with a note of what its generator saw.

How one is made is decided in leaderboard.evolution.agents. In a synchronous tournament the agents of a round are made
in the order of their numbers, those left out first, and none before every agent of the earlier rounds is finished.
"""

import asyncio
import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import prometheus_client
import structlog

from leaderboard.cached_statistics import RecentStatistics
from leaderboard.evolution import NEEDED, STRATEGIES
from leaderboard.evolution.agents import agent_id_of, make, round_begin, visible_board
from leaderboard.evolution.allocation import left_draw
from leaderboard.evolution.history import NOTHING, History, history_of, is_needed, window_begin
from leaderboard.evolution.proposals import Proposal, adopted
from leaderboard.evolution.strategy import Situation
from leaderboard.plugins import requests
from leaderboard.plugins.plugin_pool import PROPOSAL, Parts, Prepared
from leaderboard.ranking.board import Board
from leaderboard.single_flight import Shared
from leaderboard.store import ancestor_queries, records
from leaderboard.store.records import Generation, timestamp
from leaderboard.store.running_agents import Unfinished
from podrace.config import unknown
from podrace.database import Database, Transaction
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.evolution.v1.evolution_pb2 import ProposeAgentResponse
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, GenerateAgentRequest, Origin
from podrace.specification import evolution_settings
from podrace.specification.messages import bad_spec
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, TournamentSpec

GENERATED = prometheus_client.Counter("podrace_leaderboard_agents_generated", "Agents generated", ["origin"])
_log = structlog.get_logger(__name__)


class Generator:
    """Decides who comes next."""

    def __init__(self, state: Database, parts: Parts | None = None) -> None:
        """Makes nothing yet.

        Args:
            state: Where everything is remembered.
            parts: Asks custom generators; None: nobody is asked, and the strategies of the house decide.
        """
        self._state, self._parts = state, parts
        self._statistics = RecentStatistics(state)
        self._making: Shared[Agent] = Shared()
        self._unfinished = Unfinished()

    async def generate(self, request: GenerateAgentRequest) -> Agent:
        """Makes an agent, or returns the one that was made for this number.

        Raises:
            InvalidArgument: The specification cannot work (BAD_SPEC; with the first agent, if it names a function that
                does not exist), or is not the one the tournament began with.
            FailedPrecondition: The tournament is synchronous and the earlier rounds are not finished.
            AlreadyExists: The request's id was used for another agent.
        """
        check(request)
        # Beside the event loop and before the transaction, because it may take seconds the first time.
        await asyncio.to_thread(load_needed, request.spec.evolution.strategy)
        if self._parts is not None and await self._state.transact(is_first, request):
            await check_parts(request.spec.evolution, self._parts)
        if self._parts is not None and request.spec.evolution.generator:
            for due in await self._state.transact(requests_due, request):
                # Finished even if the caller gives up meanwhile: it asks again, and nobody should have to think twice.
                await self._making.once(due.request_id, partial(self._ask_and_make, due, self._parts))
        return await self._make(request)

    async def close(self) -> None:
        """Ends what is being made; it will be made when it is asked for again."""
        await self._making.close()

    async def _make(self, request: GenerateAgentRequest, proposal: Proposal | None = None) -> Agent:
        agent, made = await self._state.transact(generate, request, self._unfinished, proposal)
        for new in made:
            GENERATED.labels(Origin.Name(new.origin).removeprefix("ORIGIN_").lower()).inc()
            _log.info("agent generated", tournament_id=new.tournament_id, agent_id=new.agent_id, reason=new.reason)
        return agent

    async def _ask_and_make(self, request: GenerateAgentRequest, parts: Parts) -> Agent:
        async def prepare() -> Prepared[ProposeAgentResponse] | None:
            shown = await self._state.transact(look, request)
            if shown is None:
                return None
            tournament_id, situation = request.tournament_id, shown.situation
            statistics = await self._statistics.of(tournament_id, situation.spec, request.number)
            message = requests.proposal_request(tournament_id, situation, shown.unfinished, statistics)
            return Prepared(message, lambda answer: adopted(answer, situation))

        reply = await parts.ask(PROPOSAL, request.spec.evolution, prepare)
        asked = reply.answer is not None or reply.problem
        return await self._make(request, Proposal(reply.answer, reply.problem) if asked else None)


def check(request: GenerateAgentRequest) -> None:
    """Refuses what no agent can be generated from.

    Raises:
        InvalidArgument: The request names no tournament, or its specification is not resolved or names an unknown
            strategy (BAD_SPEC).
    """
    if not request.tournament_id:
        raise InvalidArgument("GenerateAgent: tournament_id is empty")
    spec, evolution = request.spec, request.spec.evolution
    if evolution.strategy not in STRATEGIES:
        raise bad_spec(unknown("evolution.strategy", "strategy", evolution.strategy, STRATEGIES))
    missing = evolution_settings.missing(evolution)
    if spec.synchronous and not spec.pool.maximum_pods:
        missing.append("pool.maximum_pods")
    if not any(algorithm.ratio > 0 for algorithm in spec.algorithms.values()):
        missing.append("algorithms.<name>.ratio")
    missing += [
        f"algorithms.{name}.hyperparameters.{key}.value"
        for name, algorithm in sorted(spec.algorithms.items())
        for key, hyperparameter in sorted(algorithm.hyperparameters.items())
        if not hyperparameter.HasField("value")
    ]
    if missing:
        raise bad_spec(f"{missing[0]}: missing; send the specification resolved, every default filled in")


async def check_parts(evolution: EvolutionSpec, parts: Parts) -> None:
    """Refuses functions that do not exist, while nothing has been trained yet; later, the house would stand in.

    Raises:
        InvalidArgument: There is none of the name (BAD_SPEC).
    """
    if problem := await parts.misspelt(evolution):
        raise bad_spec(problem)


def load_needed(strategy: str) -> None:
    """Imports what a strategy needs beyond what every leaderboard has; blocks.

    Raises:
        InvalidArgument: It is not installed (BAD_SPEC).
    """
    if strategy in NEEDED:
        try:
            importlib.import_module(NEEDED[strategy])
        except ImportError:
            raise bad_spec(
                f"evolution.strategy = {strategy!r}: needs {NEEDED[strategy]}, which is not installed where the"
                f" leaderboard runs; pip install 'podrace[{strategy}]' there, or choose another strategy"
            ) from None


# --- what is remembered, in one transaction ----------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """What there is to be seen when an agent is due."""

    situation: Situation
    """What a strategy would be shown."""
    unfinished: Sequence[str]
    """Ids of agents that are handed out and not finished."""


def is_first(transaction: Transaction, request: GenerateAgentRequest) -> bool:
    """Whether the tournament has no agent yet."""
    return records.find_spec(transaction, request.tournament_id) is None


def requests_due(transaction: Transaction, request: GenerateAgentRequest) -> list[GenerateAgentRequest]:
    """The requests for the agents about which a generator is asked for this one, in order; none if it was made before.

    Each has its agent's name for its id. Those that start from an agent of another tournament are no question, because
    the specification says what they are. Raises as Generator.generate.
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


def look(transaction: Transaction, request: GenerateAgentRequest) -> Shown | None:
    """What there is to be seen for an agent; None if it was made before. Raises as Generator.generate."""
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
    unfinished = {*request.unfinished_agent_ids, *(agent_id_of(tournament_id, other) for other in range(begin, number))}
    # Who has ended is noted when the agent is made: until then the request knows better than the records.
    rows = records.unfinished_children(transaction, tournament_id, ranked)
    children = Counter(parent for parent, child, other in rows if other >= begin or child in unfinished)
    agents = {**history.by_id, **records.find_agents(transaction, ranked)}
    situation = Situation(spec, number, board, agents, children, history, left_draw(spec, history))
    return Shown(situation, sorted(unfinished))


def generate(
    transaction: Transaction, request: GenerateAgentRequest, unfinished: Unfinished, proposal: Proposal | None = None
) -> tuple[Agent, list[Agent]]:
    """Returns the agent asked for, and those that were made now; raises as Generator.generate.

    Args:
        transaction: Where they are remembered.
        request: Asks for it.
        unfinished: Who had not ended when the last one was made.
        proposal: What a custom generator said of it.
    """
    agent_id = agent_id_of(request.tournament_id, request.number)
    records.hold_request(transaction, "GenerateAgent", request.request_id, agent_id)
    stored = records.find_generation(transaction, agent_id)
    if stored:
        return stored.agent, []
    spec = _first_spec(transaction, request)
    if spec.synchronous:
        made = _make_round(transaction, request, spec, unfinished, proposal)
    else:
        made = [_make(transaction, request, spec, request.number, unfinished, begin=request.number, proposal=proposal)]
    return made[-1], made


def _first_spec(transaction: Transaction, request: GenerateAgentRequest) -> TournamentSpec:
    """The specification the tournament began with; limits of the pool and the objective may have changed since."""
    spec = records.find_spec(transaction, request.tournament_id)
    if spec is None:
        ancestor_queries.check(transaction, request.tournament_id, request.spec)
        records.add_spec(transaction, request.tournament_id, request.spec)
        return request.spec
    for name in ("seed", "synchronous", "algorithms", "evolution"):
        if _comparable(spec, name) != _comparable(request.spec, name):
            raise InvalidArgument(
                f"tournament {request.tournament_id}: {name} differs from what its first agent was generated with;"
                " create another tournament"
            )
    return spec


def _comparable(spec: TournamentSpec, name: str) -> object:
    """A field of a specification; who was resolved before there was an allocation means the one of always."""
    if name != "evolution":
        return getattr(spec, name)
    evolution = EvolutionSpec(allocation="ratio")
    evolution.MergeFrom(spec.evolution)
    return evolution


def _make_round(
    transaction: Transaction,
    request: GenerateAgentRequest,
    spec: TournamentSpec,
    unfinished: Unfinished,
    proposal: Proposal | None,
) -> list[Agent]:
    tournament_id, begin = request.tournament_id, round_begin(spec, request.number)
    _check_earlier_rounds(transaction, request, begin)
    there = records.numbers_of_agents(transaction, tournament_id, begin, request.number)
    missing = [number for number in range(begin, request.number + 1) if number not in there]
    proposals = {request.number: proposal}
    return [
        _make(transaction, request, spec, number, unfinished, begin=begin, proposal=proposals.get(number))
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
    unfinished: Unfinished,
    *,
    begin: int,
    proposal: Proposal | None,
) -> Agent:
    """Makes one agent; of those with a number below `begin`, all have ended that the request does not list."""
    tournament_id, position = request.tournament_id, records.next_position(transaction)
    unfinished.note_ended(transaction, tournament_id, request.unfinished_agent_ids, below=begin, position=position)
    records.note_failed(transaction, tournament_id, request.failed_agent_ids, position=position)
    board = _read_visible(transaction, tournament_id, spec, number)
    ranked = {candidate.agent_id for candidate in board}
    agent, depth = make(
        tournament_id,
        spec,
        number,
        board,
        records.find_agents(transaction, ranked),
        records.count_unfinished_children(transaction, tournament_id, ranked),
        _read_history(transaction, tournament_id, spec, number),
        proposal,
        ancestor=ancestor_queries.find(transaction, tournament_id, spec, number),
    )
    agent.create_time.CopyFrom(timestamp(transaction.now))
    after = records.last_sequence(transaction)
    records.add_generation(transaction, Generation(agent, depth, after, position))
    unfinished.add(agent)
    if proposal is not None:
        records.add_proposal(transaction, agent.agent_id, proposal)
    return agent


def _read_visible(transaction: Transaction, tournament_id: str, spec: TournamentSpec, number: int) -> Board:
    read = records.list_candidates if spec.synchronous else records.read_board
    return visible_board(spec, number, read(transaction, tournament_id))


def _read_history(transaction: Transaction, tournament_id: str, spec: TournamentSpec, number: int) -> History:
    if not is_needed(spec):
        return NOTHING
    generations = records.list_generations(transaction, tournament_id, from_number=window_begin(spec, number))
    # Nobody submits before it was generated.
    after = min((generation.after_sequence for generation in generations), default=0)
    return history_of(
        spec,
        number,
        [generation.agent for generation in generations],
        records.list_candidates(transaction, tournament_id, after_sequence=after),
        {generation.agent.agent_id for generation in generations if generation.ended is None},
        {generation.agent.agent_id for generation in generations if generation.failed is not None},
    )

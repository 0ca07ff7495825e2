"""Generates agents: each once, in one transaction that also records what the decision was based on.

leaderboard.evolution.agents decides what an agent is. In a synchronous tournament the agents of a round are generated
in the order of their numbers, missing ones first, and none before every agent of the earlier rounds has finished.
"""

import asyncio
import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import prometheus_client
import structlog

from leaderboard.cached_statistics import CachedStatistics
from leaderboard.evolution import STRATEGIES
from leaderboard.evolution.agents import agent_id_of, make, needs_history, round_begin, visible_board
from leaderboard.evolution.allocation import left_draw
from leaderboard.evolution.history import NOTHING, History, history_of, window_begin
from leaderboard.evolution.proposals import Proposal, adopted
from leaderboard.evolution.strategy import Situation
from leaderboard.plugins import requests
from leaderboard.plugins.plugin_pool import PROPOSAL, PluginPool, PreparedRequest
from leaderboard.ranking.board import Board
from leaderboard.single_flight import SingleFlight
from leaderboard.store import ancestor_queries, records
from leaderboard.store.records import Generation, timestamp
from leaderboard.store.running_agents import RunningAgents
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
    """Generates the agents of all tournaments."""

    def __init__(self, state: Database, plugins: PluginPool | None = None) -> None:
        """Prepares to generate.

        Args:
            state: Database of the leaderboard.
            plugins: Calls generator plugins; None: the built-in strategies decide.
        """
        self._state, self._plugins = state, plugins
        self._statistics = CachedStatistics(state)
        self._making: SingleFlight[Agent] = SingleFlight()
        self._running = RunningAgents()

    async def generate(self, request: GenerateAgentRequest) -> Agent:
        """Generates an agent, or returns the one that was generated for this number.

        Raises:
            InvalidArgument: The specification cannot be used (BAD_SPEC; for the first agent also if it names a function
                that does not exist), or it differs from the one that the tournament began with.
            FailedPrecondition: The tournament is synchronous and the earlier rounds have not finished.
            AlreadyExists: The request id was used for another agent.
        """
        check(request)
        # In a thread and before the transaction, because the first import may take seconds.
        await asyncio.to_thread(load_needed, request.spec.evolution.strategy)
        if self._plugins is not None and await self._state.transact(is_first, request):
            await check_plugins(request.spec.evolution, self._plugins)
        if self._plugins is not None and request.spec.evolution.generator:
            for due in await self._state.transact(requests_due, request):
                # Continues if the caller gives up meanwhile, so that the plugin is not called again when it retries.
                await self._making.run(due.request_id, partial(self._call_plugin_and_make, due, self._plugins))
        return await self._make(request)

    async def close(self) -> None:
        """Cancels what is being generated; it is generated at the next request."""
        await self._making.close()

    async def _make(self, request: GenerateAgentRequest, proposal: Proposal | None = None) -> Agent:
        agent, made = await self._state.transact(generate, request, self._running, proposal)
        for new in made:
            GENERATED.labels(Origin.Name(new.origin).removeprefix("ORIGIN_").lower()).inc()
            _log.info("agent generated", tournament_id=new.tournament_id, agent_id=new.agent_id, reason=new.reason)
        return agent

    async def _call_plugin_and_make(self, request: GenerateAgentRequest, plugins: PluginPool) -> Agent:
        async def prepare() -> PreparedRequest[ProposeAgentResponse] | None:
            shown = await self._state.transact(read_situation, request)
            if shown is None:
                return None
            tournament_id, situation = request.tournament_id, shown.situation
            statistics = await self._statistics.of(tournament_id, situation.spec, request.number)
            message = requests.proposal_request(tournament_id, situation, shown.running, statistics)
            return PreparedRequest(message, lambda answer: adopted(answer, situation))

        reply = await plugins.call(PROPOSAL, request.spec.evolution, prepare)
        called = reply.answer is not None or reply.problem
        return await self._make(request, Proposal(reply.answer, reply.problem) if called else None)


def check(request: GenerateAgentRequest) -> None:
    """Checks that an agent can be generated from a request.

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


async def check_plugins(evolution: EvolutionSpec, plugins: PluginPool) -> None:
    """Checks that the functions a specification names exist.

    This is done before the first agent only. A function that disappears later is replaced by the built-in component.

    Raises:
        InvalidArgument: A function does not exist (BAD_SPEC).
    """
    if problem := await plugins.find_missing_function(evolution):
        raise bad_spec(problem)


def load_needed(strategy: str) -> None:
    """Imports the optional package that a strategy needs. Blocks.

    Raises:
        InvalidArgument: The package is not installed (BAD_SPEC).
    """
    if module := STRATEGIES[strategy].requires:
        try:
            importlib.import_module(module)
        except ImportError:
            raise bad_spec(
                f"evolution.strategy = {strategy!r}: needs {module}, which is not installed where the"
                f" leaderboard runs; pip install 'podrace[{strategy}]' there, or choose another strategy"
            ) from None


# --- transactions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GeneratorView:
    """What a generator plugin receives about a tournament."""

    situation: Situation
    """What a built-in strategy would be shown."""
    running: Sequence[str]
    """Ids of agents that were handed out and have not finished."""


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
    situation = Situation(spec, number, board, agents, children, history, left_draw(spec, history))
    return GeneratorView(situation, sorted(running))


def generate(
    transaction: Transaction, request: GenerateAgentRequest, running: RunningAgents, proposal: Proposal | None = None
) -> tuple[Agent, list[Agent]]:
    """Returns the requested agent and all agents that were generated in this call; raises as Generator.generate.

    Args:
        transaction: Transaction that records them.
        request: The request.
        running: Agents that had not finished when the last agent was generated.
        proposal: Result of calling a generator plugin for the requested agent; None if it was not called.
    """
    agent_id = agent_id_of(request.tournament_id, request.number)
    records.hold_request(transaction, "GenerateAgent", request.request_id, agent_id)
    stored = records.find_generation(transaction, agent_id)
    if stored:
        return stored.agent, []
    spec = _first_spec(transaction, request)
    if spec.synchronous:
        made = _make_round(transaction, request, spec, running, proposal)
    else:
        made = [_make(transaction, request, spec, request.number, running, begin=request.number, proposal=proposal)]
    return made[-1], made


def _first_spec(transaction: Transaction, request: GenerateAgentRequest) -> TournamentSpec:
    """Returns the specification that the tournament began with.

    The request's one may differ in the limits of the pool and in the objective only.
    """
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
    running: RunningAgents,
    proposal: Proposal | None,
) -> list[Agent]:
    tournament_id, begin = request.tournament_id, round_begin(spec, request.number)
    _check_earlier_rounds(transaction, request, begin)
    there = records.numbers_of_agents(transaction, tournament_id, begin, request.number)
    missing = [number for number in range(begin, request.number + 1) if number not in there]
    proposals = {request.number: proposal}
    return [
        _make(transaction, request, spec, number, running, begin=begin, proposal=proposals.get(number))
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
    running: RunningAgents,
    *,
    begin: int,
    proposal: Proposal | None,
) -> Agent:
    """Makes one agent; agents below `begin` that the request does not list as unfinished have ended."""
    tournament_id, position = request.tournament_id, records.next_position(transaction)
    running.record_ended(transaction, tournament_id, request.unfinished_agent_ids, below=begin, position=position)
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
    running.add(agent)
    if proposal is not None:
        records.add_proposal(transaction, agent.agent_id, proposal)
    return agent


def _read_visible(transaction: Transaction, tournament_id: str, spec: TournamentSpec, number: int) -> Board:
    read = records.list_candidates if spec.synchronous else records.read_board
    return visible_board(spec, number, read(transaction, tournament_id))


def _read_history(transaction: Transaction, tournament_id: str, spec: TournamentSpec, number: int) -> History:
    if not needs_history(spec):
        return NOTHING
    generations = records.list_generations(transaction, tournament_id, from_number=window_begin(spec, number))
    # An agent submits only after it was generated.
    after = min((generation.after_sequence for generation in generations), default=0)
    return history_of(
        spec,
        number,
        [generation.agent for generation in generations],
        records.list_candidates(transaction, tournament_id, after_sequence=after),
        {generation.agent.agent_id for generation in generations if generation.ended is None},
        {generation.agent.agent_id for generation in generations if generation.failed is not None},
    )

"""Generates agents: each once, in one transaction that also records what the decision was based on.

leaderboard.evolution.agents decides what an agent is. In a synchronous tournament the agents of a round are generated
in the order of their numbers, missing ones first, and none before every agent of the earlier rounds has finished.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from functools import partial

import prometheus_client
import structlog

from leaderboard import generation
from leaderboard.cached_statistics import CachedStatistics
from leaderboard.checkpoints.checkpoint_quotas import CheckpointQuotas
from leaderboard.evolution import STRATEGIES
from leaderboard.evolution.proposals import Proposal, adopted
from leaderboard.evolution.strategy import NoWork
from leaderboard.plugins import requests
from leaderboard.plugins.plugin_pool import PROPOSAL, PluginPool, PreparedRequest
from leaderboard.single_flight import SingleFlight
from leaderboard.store.owners import TournamentOwners, ownership_in
from leaderboard.store.running_agents import RunningAgents
from leaderboard.trial_cache import TrialCache
from podrace.config import unknown
from podrace.database import Database
from podrace.errors import InvalidArgument, ResourceExhausted
from podrace.evolution.v1.evolution_pb2 import ProposeAgentResponse
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, GenerateAgentRequest, Origin
from podrace.specification import evolution_settings
from podrace.specification.messages import bad_spec
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

GENERATED = prometheus_client.Counter("podrace_leaderboard_agents_generated", "Agents generated", ["origin"])
FindShortage = Callable[[], Awaitable[str]]
"""Returns why there is no space for the checkpoints of further agents; empty: there is."""
_log = structlog.get_logger(__name__)


async def enough_space() -> str:
    """Finds no shortage."""
    return ""


class Generator:
    """Generates the agents of all tournaments."""

    def __init__(
        self,
        state: Database,
        plugins: PluginPool | None = None,
        find_shortage: FindShortage = enough_space,
        owners: TournamentOwners | None = None,
        quotas: CheckpointQuotas | None = None,
    ) -> None:
        """Prepares to generate.

        Args:
            state: Database of the leaderboard.
            plugins: Calls generator plugins; None: the built-in strategies decide.
            find_shortage: Returns why there is no space for the checkpoints of further agents; empty: there is.
            owners: Learns the owner of each tournament from the requests.
            quotas: Refuses agents of tournaments whose checkpoints exceed their quota; None: none is refused.
        """
        self._state, self._plugins, self._find_shortage = state, plugins, find_shortage
        self._owners, self._quotas = owners or TournamentOwners(), quotas or CheckpointQuotas()
        self._statistics = CachedStatistics(state)
        self._making: SingleFlight[Agent | NoWork] = SingleFlight()
        self._trials = TrialCache()
        self._caches = generation.Caches(RunningAgents(), self._trials)

    @property
    def owners(self) -> TournamentOwners:
        """The owners of the tournaments."""
        return self._owners

    async def generate(self, request: GenerateAgentRequest) -> Agent | NoWork:
        """Generates an agent, or returns the one that was generated for this number, or why there is no work now.

        An agent in the request was generated before, and is recorded as it is if the database has lost it.

        Raises:
            InvalidArgument: The specification cannot be used (BAD_SPEC; for the first agent also if it names a function
                that does not exist), or it differs from the one that the tournament began with, or the agent in the
                request is not the one that it names.
            FailedPrecondition: The tournament is synchronous and the earlier rounds have not finished.
            AlreadyExists: The request id was used for another agent.
            ResourceExhausted: A disk or the store has too little space, or the owner or the tournament has stored too
                much.
        """
        check(request)
        if request.HasField("agent"):
            return await self._record_again(request)
        if shortage := await self._find_shortage():
            raise ResourceExhausted(shortage)
        self._owners.check_stored_bytes(ownership_in(request), request.maximum_stored_bytes)
        self._quotas.check(request.tournament_id, ownership_in(request).display_name)
        # In a thread and before the transaction, because the first import may take seconds.
        await asyncio.to_thread(load_needed, request.spec.evolution.strategy)
        if self._plugins is not None and await self._state.transact(generation.is_first, request):
            await check_plugins(request.spec.evolution, self._plugins)
        if self._plugins is not None and request.spec.evolution.generator:
            for due in await self._state.transact(generation.requests_due, request):
                # Continues if the caller gives up meanwhile, so that the plugin is not called again when it retries.
                await self._making.run(due.request_id, partial(self._call_plugin_and_make, due, self._plugins))
        made = await self._make(request)
        self._owners.learn(request.tournament_id, ownership_in(request))
        return made

    async def _record_again(self, request: GenerateAgentRequest) -> Agent:
        agent, recorded = await self._state.transact(generation.record_again, request, self._caches)
        self._owners.learn(request.tournament_id, ownership_in(request))
        if recorded:
            _log.warning(
                "agent recorded again: the database was restored or rebuilt without it",
                tournament_id=agent.tournament_id,
                agent_id=agent.agent_id,
            )
        return agent

    def quota_report(self, tournament_id: str) -> str:
        """Returns what was deleted because of the quota of a tournament; empty: nothing."""
        return self._quotas.report(tournament_id)

    async def close(self) -> None:
        """Cancels what is being generated; it is generated at the next request."""
        await self._making.close()

    async def review(self, tournament_id: str) -> generation.Review:
        """Returns which agents in training the strategy stops early, and whether the incumbent improves."""
        return await self._state.transact(generation.review, tournament_id, self._trials)

    async def _make(self, request: GenerateAgentRequest, proposal: Proposal | None = None) -> Agent | NoWork:
        try:
            agent, made = await self._state.transact(generation.generate, request, self._caches, proposal)
        except generation.NoWorkError as error:
            return error.answer
        for new in made:
            GENERATED.labels(Origin.Name(new.origin).removeprefix("ORIGIN_").lower()).inc()
            _log.info("agent generated", tournament_id=new.tournament_id, agent_id=new.agent_id, reason=new.reason)
        return agent

    async def _call_plugin_and_make(self, request: GenerateAgentRequest, plugins: PluginPool) -> Agent | NoWork:
        async def prepare() -> PreparedRequest[ProposeAgentResponse] | None:
            shown = await self._state.transact(generation.read_situation, request)
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

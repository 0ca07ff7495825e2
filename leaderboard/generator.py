"""Owns who comes next: every agent is made once, in one transaction, with a note of what its generator saw.

How one is made is decided in leaderboard.evolution.agents. In a synchronous tournament the agents of a round are made
in the order of their numbers, those left out first, and none before every agent of the earlier rounds is finished.
"""

from collections.abc import Iterable

import prometheus_client
import structlog

from leaderboard import records
from leaderboard.evolution import STRATEGIES
from leaderboard.evolution.agents import agent_id_of, make, round_begin, visible_board
from leaderboard.records import Generation, timestamp
from podrace.config import unknown
from podrace.database import Database, Transaction
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, GenerateAgentRequest, Origin
from podrace.spec import bad
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

GENERATED = prometheus_client.Counter("podrace_leaderboard_agents_generated", "Agents generated", ["origin"])
_log = structlog.get_logger(__name__)


class Generator:
    """Decides who comes next."""

    def __init__(self, state: Database) -> None:
        self._state = state

    async def generate(self, request: GenerateAgentRequest) -> Agent:
        """Makes an agent, or returns the one that was made for this number.

        Raises:
            InvalidArgument: The specification cannot work (BAD_SPEC), or is not the one the tournament began with.
            FailedPrecondition: The tournament is synchronous and the earlier rounds are not finished.
        """
        check(request)
        agent, made = await self._state.transact(generate, request)
        for new in made:
            GENERATED.labels(Origin.Name(new.origin).removeprefix("ORIGIN_").lower()).inc()
            _log.info("agent generated", tournament_id=new.tournament_id, agent_id=new.agent_id, reason=new.reason)
        return agent


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
        raise bad(unknown("evolution.strategy", "strategy", evolution.strategy, STRATEGIES))
    present = {field.name for field, _ in evolution.ListFields()}
    missing = [f"evolution.{field.name}" for field in evolution.DESCRIPTOR.fields if field.name not in present]
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
        raise bad(f"{missing[0]}: missing; send the specification resolved, every default filled in")


# --- what is remembered, in one transaction ----------------------------------------------------------------------


def generate(transaction: Transaction, request: GenerateAgentRequest) -> tuple[Agent, list[Agent]]:
    """Returns the agent asked for, and those that were made now; raises as Generator.generate."""
    stored = records.find_generation(transaction, agent_id_of(request.tournament_id, request.number))
    if stored:
        return stored.agent, []
    spec = _first_spec(transaction, request)
    if spec.synchronous:
        made = _make_round(transaction, request, spec)
    else:
        made = [_make(transaction, request.tournament_id, spec, request.number, request.unfinished_agent_ids)]
    return made[-1], made


def _first_spec(transaction: Transaction, request: GenerateAgentRequest) -> TournamentSpec:
    """The specification the tournament began with; limits of the pool and the objective may have changed since."""
    spec = records.find_spec(transaction, request.tournament_id)
    if spec is None:
        records.add_spec(transaction, request.tournament_id, request.spec)
        return request.spec
    for name in ("seed", "synchronous", "algorithms", "evolution"):
        if getattr(spec, name) != getattr(request.spec, name):
            raise InvalidArgument(
                f"tournament {request.tournament_id}: {name} differs from what its first agent was generated with;"
                " create another tournament"
            )
    return spec


def _make_round(transaction: Transaction, request: GenerateAgentRequest, spec: TournamentSpec) -> list[Agent]:
    tournament_id, begin = request.tournament_id, round_begin(spec, request.number)
    _check_earlier_rounds(transaction, request, begin)
    made = []
    for number in range(begin, request.number + 1):
        if records.find_generation(transaction, agent_id_of(tournament_id, number)) is None:
            before = [agent_id_of(tournament_id, other) for other in range(begin, number)]
            made.append(_make(transaction, tournament_id, spec, number, before))
    return made


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
    transaction: Transaction, tournament_id: str, spec: TournamentSpec, number: int, unfinished: Iterable[str]
) -> Agent:
    read = records.list_candidates if spec.synchronous else records.read_board
    board = visible_board(spec, number, read(transaction, tournament_id))
    agents = records.find_agents(transaction, {*unfinished, *(candidate.agent_id for candidate in board)})
    known = tuple(sorted({agent_id for agent_id in unfinished if agent_id in agents}))
    agent, depth = make(tournament_id, spec, number, board, agents, known)
    agent.create_time.CopyFrom(timestamp(transaction.now))
    records.add_generation(transaction, Generation(agent, depth, records.last_sequence(transaction), known))
    return agent

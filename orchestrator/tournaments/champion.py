"""Owns the naming of a champion where a tournament asks for fresh evaluations: they are work like any other.

Level-triggered: every look asks the leaderboard who is to be evaluated, queues what is not queued yet, and takes what
there is. The leaderboard decides; see its NameChampion.
"""

from orchestrator.leaderboard_client import Board
from orchestrator.state import records
from orchestrator.state.database import State, Transaction
from orchestrator.state.records import EvaluationRecord, TournamentRecord, WorkPhase
from orchestrator.state.runtime import Live
from orchestrator.tournaments import lifecycle
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.errors import DeadlineExceeded, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

PATIENCE_SECONDS = 900.0
"""After this long the evaluations that there are decide."""


class Crowning:
    """Names champions.

    while not await crowning.settled(now, tournament): ...
    """

    def __init__(self, state: State, live: Live, board: Board) -> None:
        self._state, self._live, self._board = state, live, board
        self._begun: dict[str, float] = {}

    async def settled(self, now: float, tournament: TournamentRecord) -> bool:
        """Whether there is nothing to wait for before the tournament is complete; names the champion then.

        Args:
            now: Monotonic time.
            tournament: Ending; nobody trains for it any more.
        """
        name = tournament.tournament_id
        if not tournament.spec.champion.reevaluate_top:
            return True
        begins = name not in self._begun
        waited = now - self._begun.setdefault(name, now)
        try:
            contenders = (await self._board.name_champion(name, [])).contenders
            results = [await self._state.transact(fresh_evaluation, tournament, one) for one in contenders]
            done = [result for result in results if result is not None]
            if begins:
                self._live.bell.ring()
                self._live.wake.set()
            if len(done) < len(results) and waited < PATIENCE_SECONDS:
                return False
            await self._name(tournament, done)
        except (DeadlineExceeded, Unavailable):
            # Without an answer the first of the board stays champion.
            return waited >= PATIENCE_SECONDS
        return True

    async def _name(self, tournament: TournamentRecord, results: list[leaderboard_pb2.FreshEvaluation]) -> None:
        name = tournament.tournament_id
        answer = await self._board.name_champion(name, results)
        if not answer.HasField("champion"):
            return
        champion = answer.champion
        champion.score, champion.standard_error = answer.score, answer.standard_error
        self._live.crown(name, champion)
        await self._state.transact(_tell, name, answer.reason)


def fresh_evaluation(
    transaction: Transaction, tournament: TournamentRecord, contender: leaderboard_pb2.Contender
) -> leaderboard_pb2.FreshEvaluation | None:
    """Queues the evaluation of a contender, once; returns what came of it, or None while that is awaited."""
    candidate = contender.candidate
    request = pb.CreateEvaluationRequest(
        request_id=f"{tournament.tournament_id}-champion-{candidate.candidate_id}",
        tournament_id=tournament.tournament_id,
        checkpoint=Checkpoint(agent_id=candidate.agent_id, manifest_digest=candidate.candidate_id),
        episodes=contender.episodes,
        options=tournament.spec.evaluation.options,
        seed=contender.seed,
        stochastic=not tournament.spec.evaluation.greedy,
    )
    evaluation_id = lifecycle.create_evaluation(transaction, request)
    found = records.find(transaction, EvaluationRecord, evaluation_id)
    if found is None or found.phase == WorkPhase.UNFINISHED:
        return None
    return leaderboard_pb2.FreshEvaluation(candidate_id=candidate.candidate_id, evaluation=found.result)


def _tell(transaction: Transaction, tournament_id: str, reason: str) -> None:
    transaction.record("champion_named", reason, tournament_id=tournament_id)

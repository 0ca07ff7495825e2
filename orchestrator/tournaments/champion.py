"""Selects the champion of a tournament that asks for fresh evaluations; these are queued like any other evaluation.

Every reconcile cycle asks the leaderboard which candidates to evaluate, queues missing evaluations, and collects the
results that exist. The leaderboard decides (see its method NameChampion).
"""

from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import EvaluationRecord, TournamentRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState
from orchestrator.tournaments import lifecycle
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.errors import DeadlineExceeded, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

EVALUATION_TIMEOUT_SECONDS = 900.0
"""After this time the champion is selected from the evaluations that are done."""


class ChampionSelection:
    """Selects champions.

    while not await champion_selection.select_when_ready(now, tournament): ...
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState, leaderboard: LeaderboardClient) -> None:
        self._state, self._runtime, self._leaderboard = state, runtime, leaderboard
        self._started: dict[str, float] = {}

    async def select_when_ready(self, now: float, tournament: TournamentRecord) -> bool:
        """Selects the champion once its fresh evaluations are done.

        Args:
            now: Monotonic time.
            tournament: An ending tournament whose agents are no longer trained.

        Returns:
            Whether the tournament can be completed: the champion is selected, or no selection is needed.
        """
        name = tournament.tournament_id
        if not tournament.spec.champion.reevaluate_top:
            return True
        first_call = name not in self._started
        waited = now - self._started.setdefault(name, now)
        try:
            contenders = (await self._leaderboard.name_champion(name, [])).contenders
            results = [await self._state.transact(fresh_evaluation, tournament, one) for one in contenders]
            done = [result for result in results if result is not None]
            if first_call:
                self._runtime.changes.notify_all()
                self._runtime.reconcile_requested.set()
            if len(done) < len(results) and waited < EVALUATION_TIMEOUT_SECONDS:
                return False
            await self._select(tournament, done)
        except (DeadlineExceeded, Unavailable):
            # Without a response, the first candidate of the board stays champion.
            return waited >= EVALUATION_TIMEOUT_SECONDS
        return True

    async def _select(self, tournament: TournamentRecord, results: list[leaderboard_pb2.FreshEvaluation]) -> None:
        name = tournament.tournament_id
        answer = await self._leaderboard.name_champion(name, results)
        if not answer.HasField("champion"):
            return
        champion = answer.champion
        champion.score, champion.standard_error = answer.score, answer.standard_error
        self._runtime.best.select_champion(name, champion)
        await self._state.transact(_record_champion, name, answer.reason)


def fresh_evaluation(
    transaction: Transaction, tournament: TournamentRecord, contender: leaderboard_pb2.Contender
) -> leaderboard_pb2.FreshEvaluation | None:
    """Queues the evaluation of a contender once; returns its result, or None while it is not done."""
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


def _record_champion(transaction: Transaction, tournament_id: str, reason: str) -> None:
    transaction.record_event("champion_named", reason, tournament_id=tournament_id)

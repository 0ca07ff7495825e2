"""Selects the champion of an ending tournament with fresh evaluations; these are queued like any other evaluation.

The leaderboard decides (see its method NameChampion): first it lists the contenders, and once they are evaluated it
asks for the champion on other episodes, whose mean return is the reported score. Every reconcile cycle queues what is
missing and collects the results that exist. Evaluations that take too long count as failed, so they delay the end of a
tournament by at most SELECTION_SECONDS, and the leaderboard selects from those that are done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import EvaluationRecord, TournamentRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.transitions import end_evaluation
from orchestrator.tournaments import evaluations
from orchestrator.tournaments.verifications import owners_of
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.errors import NotFound, PodraceError, ResourceExhausted
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, Contender, FreshEvaluation, NameChampionResponse
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

CHOICE_SECONDS = 600.0
"""After this time the champion is chosen from the evaluations that are done."""
SELECTION_SECONDS = 900.0
"""After this time the tournament completes, with the reported score or without."""
LEADERBOARD_SECONDS = 120.0
"""After this time without an answer of the leaderboard, or with errors only, the first candidate of the board stays
champion."""
MOST_STAGES = 8
"""A leaderboard that asks for more evaluations in a row than this has a defect; they are then ignored."""


@dataclass
class Progress:
    """Progress of the selection of one champion."""

    begin: float
    """Monotonic time."""
    wanted: list[Contender] = field(default_factory=list)
    """What the leaderboard asked for last, in its order."""
    done: list[FreshEvaluation] = field(default_factory=list)
    """Evaluations that are done or failed, of all earlier stages."""
    stage: int = 0
    """Number of times that the leaderboard has asked for evaluations."""
    announced: bool = False
    """Whether pods were notified of the evaluations that are wanted."""
    silent_since: float | None = None
    """Monotonic time of the first call that the leaderboard did not answer, after the last one that it answered."""

    def late(self, now: float) -> bool:
        """Whether the evaluations that are under way must no longer be waited for."""
        return now - self.begin >= (CHOICE_SECONDS if self.stage <= 1 else SELECTION_SECONDS)


class ChampionSelection:
    """Selects champions.

    while not await champion_selection.select_when_ready(now, tournament): ...
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState, leaderboard: LeaderboardClient) -> None:
        self._state, self._runtime, self._leaderboard = state, runtime, leaderboard
        self._progress: dict[str, Progress] = {}

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
        progress = self._progress.setdefault(name, Progress(now))
        try:
            answer = await self._advance(now, tournament, progress)
        except NotFound:
            # No agent was generated before the end, so there is nothing to select from.
            answer = NameChampionResponse()
        except ResourceExhausted:
            return False  # repeated in the next reconcile cycle, when there is space again
        except PodraceError as error:
            if progress.silent_since is None:
                progress.silent_since = now
            if now - progress.silent_since < LEADERBOARD_SECONDS:
                return False
            answer = self._first_of_board(name, error.message)
        if answer is None:
            return False
        if answer.HasField("champion"):
            self._runtime.best.select_champion(name, _champion(answer))
            await self._state.transact(_record_champion, name, answer.reason)
        del self._progress[name]
        return True

    async def _advance(
        self, now: float, tournament: TournamentRecord, progress: Progress
    ) -> NameChampionResponse | None:
        """Returns the final answer of the leaderboard; None while evaluations are missing."""
        while True:
            results = [await self._state.transact(fresh_evaluation, tournament, one) for one in progress.wanted]
            missing = [one for one, result in zip(progress.wanted, results, strict=True) if result is None]
            if missing and not progress.announced:
                # A pod may be waiting for them.
                progress.announced = True
                self._runtime.changes.notify_all()
                self._runtime.reconcile_requested.set()
            if missing and not progress.late(now):
                return None
            if missing:
                await self._state.transact(_withdraw, tournament, missing)
                continue
            progress.done += [result for result in results if result is not None]
            progress.wanted = []
            answer = await self._leaderboard.name_champion(tournament.tournament_id, progress.done)
            progress.silent_since = None
            if not answer.contenders or progress.stage >= MOST_STAGES:
                return answer
            progress.stage += 1
            progress.wanted, progress.announced = list(answer.contenders), False

    def _first_of_board(self, name: str, problem: str) -> NameChampionResponse:
        """Makes the first candidate of the board champion, because none could be selected."""
        first = self._runtime.best.by_tournament.get(name)
        if first is None:
            return NameChampionResponse()
        answer = NameChampionResponse(champion=first, score=first.score, standard_error=first.standard_error)
        answer.reason = (
            f"{first.agent_id} is first on the board, and its score there is reported: no champion could be selected"
            f" for {LEADERBOARD_SECONDS:.0f} s ({problem})"
        )
        answer.selection.selection_score = first.score
        answer.selection.selection_standard_error = first.standard_error
        answer.selection.selection_episodes = first.episodes
        answer.selection.reason = answer.reason
        return answer


def fresh_evaluation(
    transaction: Transaction, tournament: TournamentRecord, contender: Contender
) -> FreshEvaluation | None:
    """Queues the evaluation of a contender once; returns its result, or None while it is not done."""
    found = _queued(transaction, tournament, contender)
    if found is None or found.phase == WorkPhase.UNFINISHED:
        return None
    return FreshEvaluation(
        candidate_id=contender.candidate.candidate_id,
        member_candidate_ids=[member.candidate_id for member in contender.members],
        evaluation=found.result,
        seed=contender.seed,
    )


def _queued(transaction: Transaction, tournament: TournamentRecord, contender: Contender) -> EvaluationRecord | None:
    # An ensemble and its first member play the same episodes.
    together = "".join(f"-{member.candidate_id[:12]}" for member in contender.members)
    request_id = f"{tournament.tournament_id}-champion-{contender.seed}-{contender.candidate.candidate_id}{together}"
    if tournament.spec.evaluation.verify:
        # The pods that have trained an agent may have changed since it was queued.
        known = records.evaluation_of_request(transaction, tournament.tournament_id, request_id)
        if known:
            return known
    agent_ids = [candidate.agent_id for candidate in (contender.candidate, *contender.members)]
    request = pb.CreateEvaluationRequest(
        request_id=request_id,
        tournament_id=tournament.tournament_id,
        checkpoint=checkpoint_of(contender.candidate),
        members=map(checkpoint_of, contender.members),
        opponents=contender.opponents,
        episodes=contender.episodes,
        options=tournament.spec.evaluation.options,
        seed=contender.seed,
        stochastic=not tournament.spec.evaluation.greedy,
        excluded_pod_ids=owners_of(transaction, tournament, agent_ids),
    )
    evaluation_id = evaluations.create_evaluation(transaction, request, allowed=None)
    return records.find(transaction, EvaluationRecord, evaluation_id)


def checkpoint_of(candidate: Candidate) -> Checkpoint:
    """Returns the checkpoint of a candidate."""
    return Checkpoint(agent_id=candidate.agent_id, manifest_digest=candidate.candidate_id)


def _withdraw(transaction: Transaction, tournament: TournamentRecord, contenders: Sequence[Contender]) -> None:
    """Ends evaluations that took too long; a pod that is playing one stops when it next renews its lease."""
    for contender in contenders:
        found = _queued(transaction, tournament, contender)
        if found and found.phase == WorkPhase.UNFINISHED:
            error = "it was not done in time for the selection of the champion"
            end_evaluation(transaction, replace(found, phase=WorkPhase.FAILED, error=error))


def _champion(answer: NameChampionResponse) -> Candidate:
    """Returns the champion with its reported score and how it was selected."""
    champion = Candidate()
    champion.CopyFrom(answer.champion)
    champion.score, champion.standard_error = answer.score, answer.standard_error
    if answer.HasField("selection"):
        champion.selection.CopyFrom(answer.selection)
        champion.episodes = answer.selection.reported_episodes or champion.episodes
    return champion


def _record_champion(transaction: Transaction, tournament_id: str, reason: str) -> None:
    transaction.record_event("champion_named", reason, tournament_id=tournament_id)

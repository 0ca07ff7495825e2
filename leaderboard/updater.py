"""Judges submitted checkpoints: reads and checks the manifest, decides whether it enters the board, and records that in
one transaction before answering.

The idempotency key is the id of the candidate, which is the digest of its manifest. A candidate that was judged once
always gets the same answer, whatever the request id and whatever its rank is now. A request id cannot be used for two
candidates.
"""

import math
import time
from collections.abc import Callable
from functools import partial

import prometheus_client
import structlog

from leaderboard.checkpoints.held_candidates import answer_to_held, as_submitted, decide, hold, refuse
from leaderboard.checkpoints.submission_check import SubmissionCheck
from leaderboard.evolution.agents import trial_of
from leaderboard.plugins import judgement, requests
from leaderboard.plugins.plugin_pool import JUDGEMENT, PluginPool, PreparedRequest
from leaderboard.queries import list_experience
from leaderboard.ranking.board import answer_of, judge_arrival
from leaderboard.ranking.evaluation_plan import plan
from leaderboard.ranking.game_history import add_opponents, rate
from leaderboard.ranking.score_history import add_estimate
from leaderboard.ranking.verification import Finding, would_lead
from leaderboard.score_histories import ScoreHistories
from leaderboard.single_flight import SingleFlight
from leaderboard.store import records, request_records
from leaderboard.store.held_records import Held, find_held, list_held, remove_held
from leaderboard.store.records import Generation, Submission, timestamp
from leaderboard.submission_watch import SubmissionWatch
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.store import CheckpointStore, check_digest
from podrace.database import Database, Transaction
from podrace.errors import BAD_CHECKPOINT, InvalidArgument
from podrace.evolution.v1.evolution_pb2 import JudgeCandidateResponse
from podrace.leaderboard.v1.leaderboard_pb2 import (
    Candidate,
    ListExperienceRequest,
    ListExperienceResponse,
    PlanEvaluationRequest,
    PlanEvaluationResponse,
    RecordVerificationRequest,
    RecordVerificationResponse,
    SubmitCandidateRequest,
    SubmitCandidateResponse,
    Verdict,
)
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

SUBMIT = "SubmitCandidate"
MOST_RETURNS = 256
"""Returns of single episodes that a candidate keeps: a page of 1,000 candidates must fit in a message."""
MOST_MEASURES, LONGEST_MEASURE = 16, 64
"""Largest number of measures of single episodes whose means a candidate keeps, the first by name, and the longest name,
for the same reason."""
MOST_OTHER_EPOCHS = 8
"""Scores in other evaluation epochs that a candidate keeps."""
SUBMISSIONS = prometheus_client.Counter("podrace_leaderboard_submissions", "Submissions judged", ["verdict"])
SUBMIT_SECONDS = prometheus_client.Histogram(
    "podrace_leaderboard_submit_seconds", "Time from a submission to its durable answer"
)
_log = structlog.get_logger(__name__)


class Updater:
    """Decides which checkpoints enter the board."""

    def __init__(
        self,
        state: Database,
        store: CheckpointStore,
        watch: SubmissionWatch,
        monotonic: Callable[[], float] = time.monotonic,
        plugins: PluginPool | None = None,
    ) -> None:
        """Prepares to judge.

        Args:
            state: Database of the leaderboard.
            store: Checkpoint store with the manifests.
            watch: Notified of every judged submission.
            monotonic: Clock in seconds, for metrics.
            plugins: Calls updater plugins; None: the built-in rules decide.
        """
        self._state, self._watch, self._monotonic = state, watch, monotonic
        self._checkpoints = SubmissionCheck(state, store)
        self._plugins = plugins
        self._histories = ScoreHistories()
        self._judging: SingleFlight[SubmitCandidateResponse] = SingleFlight()
        self._evolutions: dict[str, EvolutionSpec] = {}

    async def submit(self, request: SubmitCandidateRequest) -> SubmitCandidateResponse:
        """Judges a published checkpoint.

        Raises:
            InvalidArgument: The request names no manifest, or the manifest has no score, or cannot be one of the agent
                (BAD_CHECKPOINT).
            NotFound: The agent was never generated here, or the manifest is not in the store.
            DataLoss: The manifest is damaged or its score belongs to another policy (BAD_DIGEST), or the score is not
                finite (NON_FINITE).
            FailedPrecondition: The agent has been assigned to another pod since (STALE_EPOCH).
            AlreadyExists: The request id was used for another checkpoint.
            Unavailable: The store does not answer in time.
        """
        begin = self._monotonic()
        check_digest(request.checkpoint.manifest_digest)
        known = await self._state.transact(answer_or_agent, request)
        if isinstance(known, SubmitCandidateResponse):
            return known
        manifest = await self._checkpoints.checked(request)
        if manifest.snapshot:
            raise InvalidArgument(
                f"manifest {request.checkpoint.manifest_digest}: is a snapshot; call SubmitSnapshot",
                reason=BAD_CHECKPOINT,
            )
        candidate = candidate_of(manifest, request.checkpoint.manifest_digest, known)
        # Continues if the caller gives up meanwhile: the plugin is not called again when it retries, and watchers are
        # notified of everything that was recorded.
        answer = await self._judging.run(candidate.candidate_id, partial(self._judge, candidate, request))
        SUBMIT_SECONDS.observe(self._monotonic() - begin)
        return answer

    async def plan_evaluation(self, request: PlanEvaluationRequest) -> PlanEvaluationResponse:
        """Returns how an agent should be evaluated next.

        Raises:
            NotFound: The agent was never generated here.
        """
        return await self._state.transact(read_plan, request, self._histories)

    async def list_experience(self, request: ListExperienceRequest) -> ListExperienceResponse:
        """Returns the replay memories of other agents that an agent may learn from.

        Raises:
            NotFound: The agent was never generated here.
        """
        return await self._state.transact(list_experience, request)

    async def record_verification(self, request: RecordVerificationRequest) -> RecordVerificationResponse:
        """Decides whether a held candidate may lead, given what another pod measured.

        Raises:
            NotFound: The tournament has no agents.
        """
        response, answers = await self._state.transact(record_verification, request, self._histories)
        for answer in answers:
            await self._notify(answer)
        return response

    async def close(self) -> None:
        """Cancels what is being judged; it is judged when it is submitted again."""
        self._checkpoints.close()
        await self._judging.close()

    async def _evolution_of(self, tournament_id: str) -> EvolutionSpec:
        """Returns `[evolution]` of a tournament that has agents; it never changes."""
        if tournament_id not in self._evolutions:
            self._evolutions[tournament_id] = (await self._state.transact(records.get_spec, tournament_id)).evolution
        return self._evolutions[tournament_id]

    async def _judge(self, candidate: Candidate, request: SubmitCandidateRequest) -> SubmitCandidateResponse:
        if self._plugins is not None and (evolution := await self._evolution_of(candidate.tournament_id)).updater:
            candidate = await self._with_opinion(candidate, evolution, self._plugins)
        return await self._record(candidate, request)

    async def _with_opinion(self, candidate: Candidate, evolution: EvolutionSpec, plugins: PluginPool) -> Candidate:
        """Returns the candidate with the opinion of the updater plugin, or with the reason why there is none."""

        async def prepare() -> PreparedRequest[JudgeCandidateResponse] | None:
            message = await self._state.transact(requests.read_judgement_request, candidate)
            return message and PreparedRequest(message, judgement.check)

        reply = await plugins.call(JUDGEMENT, evolution, prepare)
        if reply.answer is not None:
            return judgement.with_opinion(candidate, evolution.updater, reply.answer)
        return judgement.without_opinion(candidate, reply.problem) if reply.problem else candidate

    async def _record(self, candidate: Candidate, request: SubmitCandidateRequest) -> SubmitCandidateResponse:
        answer = await self._state.transact(record, candidate, request, self._histories)
        await self._notify(answer)
        return answer

    async def _notify(self, answer: SubmitCandidateResponse) -> None:
        if answer.candidate.sequence:
            await self._watch.notify(answer.candidate.tournament_id, answer.candidate.sequence)
        SUBMISSIONS.labels(Verdict.Name(answer.candidate.verdict).removeprefix("VERDICT_").lower()).inc()
        _log.info(
            "submission judged",
            tournament_id=answer.candidate.tournament_id,
            agent_id=answer.candidate.agent_id,
            score=answer.candidate.score,
            rank=answer.candidate.rank,
            reason=answer.candidate.reason,
        )


def answer_or_agent(transaction: Transaction, request: SubmitCandidateRequest) -> SubmitCandidateResponse | Generation:
    """Returns the answer to a checkpoint that was judged before, else the agent that it belongs to.

    Raises:
        NotFound: The agent was never generated here.
        AlreadyExists: The request id was used for another checkpoint.
        InvalidArgument: Another pod measured a lower score (NOT_VERIFIED).
    """
    candidate_id = request.checkpoint.manifest_digest
    judged = records.find_submission(transaction, candidate_id)
    if not judged:
        generation = records.get_generation(transaction, request.checkpoint.agent_id)
        return answer_to_held(transaction, generation.agent.tournament_id, candidate_id) or generation
    request_records.hold_request(transaction, SUBMIT, request.request_id, judged.answer.candidate.candidate_id)
    return judged.answer


def candidate_of(manifest: Manifest, manifest_digest: str, generation: Generation) -> Candidate:
    """Makes the candidate of a manifest that was checked, not yet judged. Pure.

    The score is the mean return of the n evaluation episodes. The standard error is sqrt(v / n), with v the unbiased
    variance of their returns; for a single episode v is unknown and counts as 0.
    """
    agent = generation.agent
    evaluation = manifest.evaluation
    measures = sorted(name for name in evaluation.episode_metrics if len(name) <= LONGEST_MEASURE)[:MOST_MEASURES]
    return Candidate(
        candidate_id=manifest_digest,
        tournament_id=agent.tournament_id,
        agent_id=agent.agent_id,
        algorithm=agent.algorithm,
        score=evaluation.mean_return,
        standard_error=math.sqrt(evaluation.variance / evaluation.episodes),
        episodes=evaluation.episodes,
        environment_steps=manifest.lineage_environment_steps,
        agent_environment_steps=manifest.environment_steps,
        parent_agent_ids=agent.parent_agent_ids,
        core_seconds=manifest.core_seconds,
        agent_number=agent.number,
        depth=generation.depth,
        trial=trial_of(agent),
        evaluator_fault=evaluation.evaluator_fault,
        episode_returns=evaluation.episode_returns[:MOST_RETURNS],
        evaluation_epoch=evaluation.epoch if evaluation.HasField("epoch") else None,
        other_epochs=evaluation.other_epochs[:MOST_OTHER_EPOCHS],
        replay_steps=manifest.replay_steps,
        replay_memory_steps=manifest.replay_memory_steps,
        episode_metrics={name: evaluation.episode_metrics[name] for name in measures},
        evaluation_seconds=evaluation.wall_seconds if evaluation.wall_seconds > 0 else None,
        matches=evaluation.matches,
    )


def read_plan(
    transaction: Transaction, request: PlanEvaluationRequest, histories: ScoreHistories
) -> PlanEvaluationResponse:
    """Returns how an agent should be evaluated next; raises as Updater.plan_evaluation."""
    agent = records.get_generation(transaction, request.agent_id).agent
    tournament_id = agent.tournament_id
    spec = records.get_spec(transaction, tournament_id)
    board = records.read_board(transaction, tournament_id)
    history = histories.of(transaction, tournament_id)
    answer = plan(board, spec.evolution.board_capacity, history, agent, request.evaluation_epoch)
    add_opponents(answer, spec.opponents, board, history.games, agent)
    return answer


def record(
    transaction: Transaction,
    draft: Candidate,
    request: SubmitCandidateRequest,
    histories: ScoreHistories,
    *,
    verified: bool = False,
) -> SubmitCandidateResponse:
    """Judges a candidate against the current board and records everything that changes, in one transaction.

    Unless it is `verified`, a candidate that would lead is held if `evaluation.verify` is above 0.

    Raises:
        InvalidArgument: Too many candidates of its agent failed a verification (NOT_VERIFIED).
    """
    request_records.hold_request(transaction, SUBMIT, request.request_id, draft.candidate_id)
    judged = records.find_submission(transaction, draft.candidate_id)
    if judged:
        return judged.answer
    spec = records.get_spec(transaction, draft.tournament_id)
    candidate = Candidate(sequence=records.last_sequence(transaction) + 1, submit_time=timestamp(transaction.now))
    candidate.MergeFrom(draft)
    if spec.synchronous:
        seen = records.list_candidates(transaction, draft.tournament_id)
        add_estimate(candidate, histories.of_round(spec, seen, candidate))
    else:
        seen = [*records.read_board(transaction, draft.tournament_id)]
        history = histories.of(transaction, draft.tournament_id)
        if spec.opponents.rated and candidate.matches:
            rate(candidate, history.games)
        add_estimate(candidate, history)
    capacity = spec.evolution.board_capacity
    judged_board = judge_arrival(seen, candidate, capacity, synchronous=spec.synchronous)
    if spec.evaluation.verify and not verified and judged_board.board[:1] == (candidate,):
        return hold(transaction, candidate, request, spec)
    answer = answer_of(judged_board, candidate)
    standing = judged_board.standings[candidate.candidate_id]
    records.add_submission(
        transaction, Submission(answer, standing, lease_epoch=request.lease_epoch, request_id=request.request_id)
    )
    for candidate_id, changed in judged_board.standings.items():
        records.set_standing(transaction, candidate_id, changed)
    return answer


def record_verification(
    transaction: Transaction, request: RecordVerificationRequest, histories: ScoreHistories
) -> tuple[RecordVerificationResponse, list[SubmitCandidateResponse]]:
    """Decides about a held candidate; returns the decision, and the answers to candidates that arrived at the board."""
    spec = records.get_spec(transaction, request.tournament_id)
    found = find_held(transaction, request.candidate_id)
    if found is None or found[0].tournament_id != request.tournament_id:
        return RecordVerificationResponse(reason="it is not held"), []
    evaluation = request.evaluation if request.HasField("evaluation") else None
    finding = decide(found[0], evaluation, request.error, spec)
    if not finding.agrees:
        refuse(transaction, found, finding)
        return RecordVerificationResponse(refused=True, reason=finding.reason), []
    answers = [_arrive(transaction, found, histories, verified=True)]
    board = records.read_board(transaction, request.tournament_id)
    for held in list_held(transaction, request.tournament_id):
        if not would_lead(board, held[0]):
            # Its estimate may have risen since: if it would lead after all, it is held again, or refused.
            try:
                answers.append(_arrive(transaction, held, histories, verified=False))
            except InvalidArgument as error:
                refuse(transaction, held, Finding(False, error.message))
            board = records.read_board(transaction, request.tournament_id)
    return RecordVerificationResponse(reason=finding.reason), answers


def _arrive(
    transaction: Transaction, held: Held, histories: ScoreHistories, *, verified: bool
) -> SubmitCandidateResponse:
    """Lets a held candidate arrive at the board, as if it had been submitted now; raises as `record`."""
    remove_held(transaction, held[0].candidate_id)
    return record(transaction, as_submitted(held[0]), held[1], histories, verified=verified)

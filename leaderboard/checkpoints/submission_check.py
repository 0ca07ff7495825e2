"""Reads a submitted checkpoint, compares it with what the leaderboard knows about its agent, and records a refusal."""

import time
from collections.abc import Callable

import prometheus_client
import structlog

from leaderboard.checkpoints.manifest_check import Expected, first_problem, shape_problem
from leaderboard.checkpoints.reader import CheckpointReader, SubmitRequest
from leaderboard.store import records
from leaderboard.store.refusal_records import LONGEST_MESSAGE, add_refusal
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.store import CheckpointStore
from podrace.database import Database, Transaction
from podrace.errors import BAD_CHECKPOINT, BAD_DIGEST, NON_FINITE, DataLoss, InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import Refusal

CHECK_SECONDS = prometheus_client.Histogram(
    "podrace_leaderboard_check_seconds", "Time to read a submitted checkpoint from the store and to check it"
)
REFUSED = prometheus_client.Counter(
    "podrace_leaderboard_submissions_refused", "Submissions refused because of what they contain", ["reason"]
)
_log = structlog.get_logger(__name__)


def _label(reason: str) -> str:
    return reason.removeprefix("ERROR_REASON_").lower()


# From the start: Prometheus sees no increase in a counter whose first sample is 1.
for _reason in (BAD_CHECKPOINT, BAD_DIGEST, NON_FINITE):
    REFUSED.labels(_label(_reason))


class SubmissionCheck:
    """Checks submissions.

    manifest = await check.checked(request)  # raises if the submission must be refused
    check.close()
    """

    def __init__(
        self, state: Database, store: CheckpointStore, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts no thread yet.

        Args:
            state: Database of the leaderboard.
            store: Checkpoint store with the manifests.
            monotonic: Clock in seconds, for metrics.
        """
        self._state, self._monotonic = state, monotonic
        self._reader = CheckpointReader(store)

    async def checked(self, request: SubmitRequest) -> Manifest:
        """Returns the manifest of a submitted checkpoint after all checks.

        Raises:
            NotFound: The agent was never generated here, or the manifest is not in the store.
            InvalidArgument: The checkpoint cannot be one of the agent (BAD_CHECKPOINT).
            DataLoss: A digest is wrong (BAD_DIGEST), or a number is not finite (NON_FINITE).
            FailedPrecondition: The agent has been assigned to another pod since (STALE_EPOCH).
            Unavailable, ResourceExhausted: The store does not answer in time.
        """
        begin = self._monotonic()
        expected = await self._state.transact(read_expected, request)
        try:
            return await self._check(request, expected)
        except (InvalidArgument, DataLoss) as error:
            await self._record(request, expected, error)
            raise
        finally:
            CHECK_SECONDS.observe(self._monotonic() - begin)

    async def _check(self, request: SubmitRequest, expected: Expected) -> Manifest:
        read = await self._reader.read(request)
        problem = first_problem(read.manifest, expected)
        if problem is None and read.shape is not None:
            problem = shape_problem(read.shape, expected.agent)
        if problem:
            raise problem.raised(request.checkpoint.manifest_digest)
        return read.manifest

    async def _record(self, request: SubmitRequest, expected: Expected, error: InvalidArgument | DataLoss) -> None:
        agent = expected.agent
        REFUSED.labels(_label(error.reason)).inc()
        message = error.message[:LONGEST_MESSAGE]
        refusal = Refusal(
            agent_id=agent.agent_id,
            manifest_digest=request.checkpoint.manifest_digest,
            lease_epoch=request.lease_epoch,
            error_reason=error.reason,
            message=message,
        )
        if await self._state.transact(add_refusal, agent.tournament_id, refusal):
            _log.warning(
                "submission refused",
                tournament_id=agent.tournament_id,
                agent_id=agent.agent_id,
                error_reason=error.reason,
                error=message,
            )

    def close(self) -> None:
        """Drops what waits for the store."""
        self._reader.close()


def read_expected(transaction: Transaction, request: SubmitRequest) -> Expected:
    """Returns what the leaderboard knows about the agent of a submission; raises NotFound for an unknown agent."""
    agent = records.get_generation(transaction, request.checkpoint.agent_id).agent
    inherited: int | None = 0
    if agent.HasField("starting_checkpoint"):
        start = records.find_submission(transaction, agent.starting_checkpoint.manifest_digest)
        inherited = start.answer.candidate.environment_steps if start else None
    return Expected(agent, records.get_spec(transaction, agent.tournament_id), inherited, request.lease_epoch)

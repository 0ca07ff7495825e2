"""Has the pods of a tournament evaluate an offered policy and the one that serves, on the same fresh episodes."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import structlog

from podrace.backoff import exponential
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.client import Client
from podrace.client.evaluating import evaluated, evaluation_options
from podrace.errors import DeadlineExceeded, FailedPrecondition
from podrace.serving.config import GateConfig
from podrace.serving.decisions.gate import EvaluatedPolicy, GateVerdict, decide_gate
from podrace.serving.policy_version import PolicyVersion
from podrace.tasks import cancel_all
from podrace.tournament.v1.tournament_pb2 import Tournament

LARGEST_SEED = 2**31
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60.0, 1800.0
"""Pause after an examination without a result: pods play evaluations before they train. Doubled after each in a row."""

_log = structlog.get_logger(__name__)


class FreshEpisodesGate:
    """Judges policies by evaluations of the mesh; see PolicyGate."""

    def __init__(
        self,
        client: Client,
        tournament_id: str,
        config: GateConfig,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Creates the gate.

        Args:
            client: Client of the mesh.
            tournament_id: The tournament whose candidates are examined.
            config: Episodes and limits.
            sleep: Waits for some seconds.
        """
        self._client, self._tournament_id, self._config, self._sleep = client, tournament_id, config, sleep
        self._failures = 0

    async def judge(self, offered: PolicyVersion, serving: PolicyVersion) -> GateVerdict:
        """Returns whether `offered` may serve; raises as `evaluated`, after a pause if there was no result."""
        try:
            score, score_to_beat = await self._scores(offered, serving)
        except (DeadlineExceeded, FailedPrecondition) as error:
            self._failures += 1
            pause = exponential(self._failures, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            _log.warning(
                "the gate has no result, and pauses", version=offered.version, seconds=pause, error=error.message
            )
            await self._sleep(pause)
            raise
        self._failures = 0
        return decide_gate(score, score_to_beat, self._config.maximum_errors)

    async def _scores(self, offered: PolicyVersion, serving: PolicyVersion) -> tuple[EvaluatedPolicy, EvaluatedPolicy]:
        # Drawn for each pair, so that no policy was trained or selected on these episodes.
        seed = secrets.randbelow(LARGEST_SEED)
        tournament = await self._client.get_tournament(self._tournament_id)
        asked = [asyncio.ensure_future(self._evaluated(tournament, one, seed)) for one in (offered, serving)]
        try:
            score, score_to_beat = await asyncio.gather(*asked)
            return score, score_to_beat
        finally:
            # If one has failed, the other one is no longer needed.
            await cancel_all(*asked)

    async def _evaluated(self, tournament: Tournament, policy: PolicyVersion, seed: int) -> EvaluatedPolicy:
        first, *others = [
            Checkpoint(agent_id=member.agent_id, manifest_digest=member.manifest_digest) for member in policy.members
        ]
        found = await evaluated(
            self._client,
            tournament,
            first,
            episodes=self._config.episodes,
            options=evaluation_options(tournament),
            seed=seed,
            members=others,
            deadline_seconds=self._config.deadline_seconds,
        )
        return EvaluatedPolicy(found.mean_return, found.variance, found.episodes, list(found.episode_returns))

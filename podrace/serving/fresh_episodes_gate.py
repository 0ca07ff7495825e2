"""Has the pods of a tournament evaluate an offered policy and the one that serves, on the same fresh episodes."""

import asyncio
import secrets

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.client import Client
from podrace.client.evaluating import evaluated, evaluation_options
from podrace.serving.config import GateConfig
from podrace.serving.decisions.gate import EvaluatedPolicy, GateVerdict, decide_gate
from podrace.serving.policy_version import PolicyVersion
from podrace.tasks import cancel_all
from podrace.tournament.v1.tournament_pb2 import Tournament

LARGEST_SEED = 2**31


class FreshEpisodesGate:
    """Judges policies by evaluations of the mesh; see PolicyGate."""

    def __init__(self, client: Client, tournament_id: str, config: GateConfig) -> None:
        """Creates the gate.

        Args:
            client: Client of the mesh.
            tournament_id: The tournament whose candidates are examined.
            config: Episodes and limits.
        """
        self._client, self._tournament_id, self._config = client, tournament_id, config

    async def judge(self, offered: PolicyVersion, serving: PolicyVersion) -> GateVerdict:
        """Returns whether `offered` may serve; raises as `evaluated`."""
        # Drawn for each pair, so that no policy was trained or selected on these episodes.
        seed = secrets.randbelow(LARGEST_SEED)
        tournament = await self._client.get_tournament(self._tournament_id)
        asked = [asyncio.ensure_future(self._evaluated(tournament, one, seed)) for one in (offered, serving)]
        try:
            score, score_to_beat = await asyncio.gather(*asked)
        finally:
            # If one has failed, the other one is no longer needed.
            await cancel_all(*asked)
        return decide_gate(score, score_to_beat, self._config.maximum_errors)

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

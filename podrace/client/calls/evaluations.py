"""Queues evaluations of checkpoints and reads their results."""

from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.client.calls.channels import DURABLE_SECONDS, PAGE_SIZE, QUICK_SECONDS, MeshChannels, new_request_id, pages
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


class EvaluationCalls(MeshChannels):
    """Calls the methods of the orchestrator that are about evaluations."""

    async def create_evaluation(
        self,
        checkpoint: Checkpoint,
        *,
        tournament_id: str,
        episodes: int,
        options: Struct,
        seed: int = 0,
        stochastic: bool = False,
        members: Sequence[Checkpoint] = (),
        request_id: str = "",
    ) -> str:
        """Queues an evaluation of a checkpoint and returns the id of the evaluation.

        Args:
            checkpoint: The checkpoint to evaluate.
            tournament_id: Tournament of the checkpoint.
            episodes: Number of episodes to finish.
            options: Environment options, merged over those of the tournament.
            seed: Seed of the environments.
            stochastic: Samples actions instead of taking the most likely one.
            members: Other members of an ensemble; empty evaluates the checkpoint alone.
            request_id: A unique text that makes the call idempotent. Default: a new one.
        """
        request = pb.CreateEvaluationRequest(
            request_id=request_id or new_request_id(),
            tournament_id=tournament_id,
            checkpoint=checkpoint,
            episodes=episodes,
            options=options,
            seed=seed,
            stochastic=stochastic,
            members=members,
        )
        return (await self._ask(self._orchestrator.CreateEvaluation, request, QUICK_SECONDS)).evaluation_id

    async def get_evaluation(self, evaluation_id: str) -> pb.GetEvaluationResponse:
        """Returns the state of an evaluation and its result if it is done."""
        request = pb.GetEvaluationRequest(evaluation_id=evaluation_id)
        return await self._ask(self._orchestrator.GetEvaluation, request, QUICK_SECONDS)

    async def wait_evaluation(self, evaluation_id: str, *, wait_seconds: float) -> pb.WaitEvaluationResponse:
        """Returns the state of an evaluation once it has finished, or after `wait_seconds`, of which 30 count."""
        wait = Duration()
        wait.FromNanoseconds(int(wait_seconds * 1e9))
        request = pb.WaitEvaluationRequest(evaluation_id=evaluation_id, wait_duration=wait)
        return await self._ask(self._orchestrator.WaitEvaluation, request, wait_seconds + DURABLE_SECONDS)

    async def cancel_evaluation(self, evaluation_id: str, reason: str) -> pb.CancelEvaluationResponse:
        """Ends an evaluation without a result, with a reason for its record; has no effect on one that has finished."""
        request = pb.CancelEvaluationRequest(request_id=new_request_id(), evaluation_id=evaluation_id, reason=reason)
        return await self._ask(self._orchestrator.CancelEvaluation, request, QUICK_SECONDS)

    async def list_evaluations(self, tournament_id: str) -> list[pb.EvaluationEntry]:
        """Returns all evaluations of a tournament, oldest first, without traces."""
        request = pb.ListEvaluationsRequest(tournament_id=tournament_id, page_size=PAGE_SIZE)
        found = pages(self._address, self._orchestrator.ListEvaluations, request, QUICK_SECONDS)
        return [entry async for page in found for entry in page.evaluations]

"""Requests evaluations of checkpoints from the pods of a mesh and waits for their results."""

import asyncio
import contextlib
from collections.abc import Sequence

from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.cli.terminal import formats
from podrace.cli.terminal.output import notify
from podrace.client import Client
from podrace.client.scores import standard_error
from podrace.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from podrace.tournament.v1.tournament_pb2 import Tournament

POLL_SECONDS = 0.3
DEADLINE_SECONDS = 3600.0


async def evaluated(
    client: Client,
    tournament: Tournament,
    checkpoint: Checkpoint,
    *,
    episodes: int,
    options: Struct,
    seed: int = 0,
    stochastic: bool = False,
    members: Sequence[Checkpoint] = (),
    request_id: str = "",
    deadline_seconds: float = DEADLINE_SECONDS,
) -> Evaluation:
    """Has a pod evaluate a checkpoint, or an ensemble, and returns the result.

    The arguments are those of `Client.create_evaluation`, with a time limit for the result. With a request id, a second
    call within a day waits for the same evaluation.

    Raises:
        FailedPrecondition: The evaluation failed; the message contains the error of the pod.
        DeadlineExceeded: There was no result within the deadline.
    """
    evaluation_id = await client.create_evaluation(
        checkpoint,
        tournament_id=tournament.tournament_id,
        episodes=episodes,
        options=options,
        seed=seed,
        stochastic=stochastic,
        members=members,
        request_id=request_id,
    )
    return await awaited(client, tournament, evaluation_id, deadline_seconds=deadline_seconds)


async def awaited(
    client: Client, tournament: Tournament, evaluation_id: str, *, deadline_seconds: float = DEADLINE_SECONDS
) -> Evaluation:
    """Waits for the result of a queued evaluation; raises the errors of `evaluated`."""
    try:
        async with asyncio.timeout(deadline_seconds):
            return await _result(client, evaluation_id)
    except TimeoutError:
        raise DeadlineExceeded(
            f"evaluation {evaluation_id} is not done (waited {deadline_seconds:g} s);"
            f" `podrace show {tournament.tournament_id}` shows the activity of its pods"
        ) from None


async def _result(client: Client, evaluation_id: str) -> Evaluation:
    while True:
        # The orchestrator may be restarting; it keeps the evaluation in its database.
        with contextlib.suppress(Unavailable, DeadlineExceeded):
            answer = await client.get_evaluation(evaluation_id)
            if answer.done and answer.error:
                raise FailedPrecondition(f"evaluation {evaluation_id} failed: {answer.error}")
            if answer.done:
                if fault := answer.evaluation.evaluator_fault:
                    notify(f"{evaluation_id} was scored by the built-in evaluator instead of the plugin: {fault}")
                return answer.evaluation
        await asyncio.sleep(POLL_SECONDS)


def headline(evaluation: Evaluation) -> str:
    """Returns the result in one line. The result of a single episode has no standard error."""
    mean = formats.score(evaluation.mean_return, standard_error(evaluation))
    episodes = formats.things(evaluation.episodes, "episode")
    measure, steps = formats.measure(evaluation.objective), evaluation.mean_length_steps
    return f"mean {measure} {mean} over {episodes} of {steps:.0f} steps"

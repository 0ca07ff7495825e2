"""Requests evaluations of checkpoints from the pods of a mesh and waits for their results."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.client.client import Client
from podrace.client.reconnect import RETRY_SECONDS, RETRYABLE
from podrace.errors import DeadlineExceeded, FailedPrecondition, PodraceError
from podrace.tournament.v1.tournament_pb2 import Tournament

DEADLINE_SECONDS = 3600.0
WAIT_SECONDS = 20.0
"""Time that one call waits for the end of an evaluation."""
ABANDONED = "the client that asked for it stopped waiting"


def _ignore(line: str) -> None:
    pass


def evaluation_options(tournament: Tournament, changes: Struct | None = None) -> Struct:
    """Returns the options of the environment in evaluations of a tournament, with changes.

    Without them an evaluation would run in the environment of the training, for instance on the training data.
    """
    options = Struct()
    options.CopyFrom(tournament.spec.evaluation.options)
    if changes is not None:
        options.update(json_format.MessageToDict(changes))
    return options


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
    keep: bool = False,
    deadline_seconds: float = DEADLINE_SECONDS,
    notify: Callable[[str], None] = _ignore,
) -> Evaluation:
    """Has a pod evaluate a checkpoint, or an ensemble, and returns the result.

    The arguments are those of `Client.create_evaluation`, with a time limit for the result. `notify` receives a line if
    the built-in evaluator replaced a failing plugin. With a request id, a second call within a day waits for the same
    evaluation. Without one, and unless `keep` is set, it is cancelled at the deadline and when this call is cancelled.

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
    try:
        return await awaited(client, tournament, evaluation_id, deadline_seconds=deadline_seconds, notify=notify)
    except (asyncio.CancelledError, DeadlineExceeded):
        if not keep and not request_id:
            await _abandon(client, evaluation_id)
        raise


async def _abandon(client: Client, evaluation_id: str) -> None:
    """Cancels an evaluation, and completes the call for it even if the caller is cancelled meanwhile."""
    call = asyncio.ensure_future(client.cancel_evaluation(evaluation_id, ABANDONED))
    try:
        await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.gather(call, return_exceptions=True)
        raise
    except PodraceError:
        pass  # It is played to its end, and its result is not read.


async def awaited(
    client: Client,
    tournament: Tournament,
    evaluation_id: str,
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
    notify: Callable[[str], None] = _ignore,
) -> Evaluation:
    """Waits for the result of a queued evaluation; raises the errors of `evaluated`."""
    try:
        async with asyncio.timeout(deadline_seconds):
            evaluation = await _result(client, evaluation_id)
    except TimeoutError:
        raise DeadlineExceeded(
            f"evaluation {evaluation_id} is not done (waited {deadline_seconds:g} s);"
            f" `podrace show {tournament.tournament_id}` shows the activity of its pods"
        ) from None
    if evaluation.evaluator_fault:
        notify(
            f"{evaluation_id} was scored by the built-in evaluator instead of the plugin: {evaluation.evaluator_fault}"
        )
    return evaluation


async def _result(client: Client, evaluation_id: str) -> Evaluation:
    while True:
        # The orchestrator may be restarting; it keeps the evaluation in its database.
        with contextlib.suppress(*RETRYABLE):
            answer = await client.wait_evaluation(evaluation_id, wait_seconds=WAIT_SECONDS)
            if answer.done and answer.error:
                raise FailedPrecondition(f"evaluation {evaluation_id} failed: {answer.error}")
            if answer.done:
                return answer.evaluation
            continue
        await asyncio.sleep(RETRY_SECONDS)

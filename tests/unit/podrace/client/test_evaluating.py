import asyncio
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.client import evaluating
from podrace.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import Tournament


class ScriptedClient:
    """Answers each wait with the next entry of a script; waits without end after the last."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.waiting = asyncio.Event()
        self.cancelled: list[tuple[str, str]] = []

    async def create_evaluation(self, checkpoint: Checkpoint, **arguments: Any) -> str:
        return "e1"

    async def wait_evaluation(self, evaluation_id: str, *, wait_seconds: float) -> pb.WaitEvaluationResponse:
        if not self.script:
            self.waiting.set()
            await asyncio.Event().wait()
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def cancel_evaluation(self, evaluation_id: str, reason: str) -> pb.CancelEvaluationResponse:
        self.cancelled.append((evaluation_id, reason))
        return pb.CancelEvaluationResponse()


def evaluated(client: Any, **more: Any) -> Any:
    return evaluating.evaluated(
        client, Tournament(tournament_id="t"), Checkpoint(), episodes=1, options=Struct(), **more
    )


async def test_a_result_is_waited_for_over_several_calls_and_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluating, "RETRY_SECONDS", 0.0)
    done = pb.WaitEvaluationResponse(done=True, evaluation=Evaluation(mean_return=3.0))
    client = ScriptedClient(pb.WaitEvaluationResponse(), Unavailable("restarting"), done)
    assert (await evaluated(client)).mean_return == 3.0
    assert not client.cancelled


async def test_the_error_of_the_pod_is_raised() -> None:
    client = ScriptedClient(pb.WaitEvaluationResponse(done=True, error="no such file"))
    with pytest.raises(FailedPrecondition, match="evaluation e1 failed: no such file"):
        await evaluated(client)


async def test_the_replacement_of_a_plugin_is_reported() -> None:
    lines: list[str] = []
    found = pb.WaitEvaluationResponse(done=True, evaluation=Evaluation(evaluator_fault="it crashed"))
    await evaluated(ScriptedClient(found), notify=lines.append)
    assert lines == ["e1 was scored by the built-in evaluator instead of the plugin: it crashed"]


@pytest.mark.parametrize(
    ("more", "cancelled"),
    [
        ({}, [("e1", evaluating.ABANDONED)]),
        # A later call finds these again.
        ({"keep": True}, []),
        ({"request_id": "mine"}, []),
    ],
)
async def test_an_evaluation_that_nothing_waits_for_is_cancelled(more: Any, cancelled: Any) -> None:
    client = ScriptedClient()
    waiting = asyncio.create_task(evaluated(client, **more))
    await client.waiting.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert client.cancelled == cancelled
    late = ScriptedClient()
    with pytest.raises(DeadlineExceeded, match="e1 is not done"):
        await evaluated(late, deadline_seconds=0.0, **more)
    assert late.cancelled == cancelled


async def test_the_call_that_cancels_an_evaluation_is_not_interrupted() -> None:
    client, called, may_answer = ScriptedClient(), asyncio.Event(), asyncio.Event()
    cancel = client.cancel_evaluation

    async def slow(evaluation_id: str, reason: str) -> pb.CancelEvaluationResponse:
        called.set()
        await may_answer.wait()
        return await cancel(evaluation_id, reason)

    client.cancel_evaluation = slow  # type: ignore[method-assign]
    waiting = asyncio.create_task(evaluated(client, deadline_seconds=0.0))
    await called.wait()
    waiting.cancel()
    await asyncio.sleep(0)
    may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert client.cancelled == [("e1", evaluating.ABANDONED)]

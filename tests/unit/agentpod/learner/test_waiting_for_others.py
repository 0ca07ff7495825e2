"""A leader is not idle while it waits for followers or an evaluator of the user, which have deadlines of their own."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentpod.compute_thread import ComputeThread
from agentpod.config import PodConfig
from agentpod.learner import fusion_session
from agentpod.learner.checkpoint_files import Counters
from agentpod.learner.fusion_session import FusionSession
from agentpod.liveness.activity import Activity
from agentpod.roles.user_evaluator import UserEvaluator, UserEvaluatorSettings
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.limits.config import EVERYTHING
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


class Others:
    """What is waited for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def fuse(self) -> None:
        self.asked.set()
        await self.answered.wait()

    async def score(self, *_: Any) -> Evaluation:
        await self.fuse()
        return Evaluation(mean_return=1.0)


def config(tmp_path: Path) -> PodConfig:
    return PodConfig("p", "unix:o", "unix:l", "folder:///s", tmp_path, allow=EVERYTHING)


async def test_a_leader_waits_during_a_fusion_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    followers, compute = Others(), ComputeThread()
    monkeypatch.setattr(fusion_session, "FusionMember", lambda *_, **__: followers)
    monkeypatch.setattr(fusion_session, "LeaderRendezvous", Others)
    stop = asyncio.get_running_loop().create_future()
    shared = cast(Any, SimpleNamespace(training=SimpleNamespace(rollouts=0)))
    assignment = pb.Assignment()
    assignment.spec.fusion.mode, assignment.spec.fusion.outer_learning_rate = "average", 0.7
    session = FusionSession(config(tmp_path), assignment, cast(Any, None), compute, shared, Counters(), {}, stop)
    fusing = asyncio.create_task(session.fuse())
    await asyncio.wait_for(followers.asked.wait(), 30)
    assert compute.activity.phase == pb.ROLE_PHASE_WAITING
    followers.answered.set()
    await fusing
    assert compute.activity.phase == pb.ROLE_PHASE_IDLE


async def test_a_leader_waits_while_an_evaluator_of_the_user_scores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service, activity = Others(), Activity()
    evaluator = UserEvaluator(config(tmp_path), UserEvaluatorSettings("grpc://127.0.0.1:1", 5.0), activity)
    monkeypatch.setattr(evaluator, "_ask", service.score)
    scoring = asyncio.create_task(evaluator.score([], episodes=1, seed=1, greedy=True))
    await asyncio.wait_for(service.asked.wait(), 30)
    assert activity.phase == pb.ROLE_PHASE_WAITING
    service.answered.set()
    assert (await scoring) is not None
    assert activity.phase == pb.ROLE_PHASE_IDLE
    await evaluator.close()

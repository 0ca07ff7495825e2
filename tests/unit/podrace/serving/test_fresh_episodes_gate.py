"""The gate evaluates both policies on the same fresh episodes and compares them."""

import asyncio
from typing import Any

import pytest
from policies import published

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.errors import DeadlineExceeded, FailedPrecondition
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.policy.loading import onnx_file
from podrace.serving.config import GateConfig
from podrace.serving.fresh_episodes_gate import FreshEpisodesGate
from podrace.serving.policy_version import PolicyVersion
from podrace.tournament.v1.tournament_pb2 import Tournament


class ScriptedMesh:
    """Scores policies by their manifests; one without a score fails, and one whose score is None is never done."""

    def __init__(self, **returns: list[float] | None) -> None:
        self.returns, self.asked, self.cancelled = returns, [], []

    async def get_tournament(self, tournament_id: str) -> Tournament:
        tournament = Tournament(tournament_id=tournament_id)
        tournament.spec.evaluation.options.update({"split": "validation"})
        return tournament

    async def create_evaluation(self, checkpoint: Checkpoint, **asked: Any) -> str:
        self.asked.append(asked | {"agent_id": checkpoint.agent_id})
        return checkpoint.agent_id.rpartition("-")[2]

    async def wait_evaluation(self, evaluation_id: str, *, wait_seconds: float) -> pb.WaitEvaluationResponse:
        if evaluation_id not in self.returns:
            return pb.WaitEvaluationResponse(done=True, error="no such environment")
        if (found := self.returns[evaluation_id]) is None:
            await asyncio.Event().wait()
        mean = sum(found) / len(found)
        evaluation = Evaluation(mean_return=mean, episodes=len(found), episode_returns=found)
        return pb.WaitEvaluationResponse(done=True, evaluation=evaluation)

    async def cancel_evaluation(self, evaluation_id: str, reason: str) -> None:
        self.cancelled.append(evaluation_id)


def version(*seeds: int) -> PolicyVersion:
    return PolicyVersion(onnx_file([published("logits", seed).checkpoint for seed in seeds]))


def gate(mesh: ScriptedMesh, *pauses: list[float], **config: float) -> FreshEpisodesGate:
    """Returns a gate that adds its pauses to a list instead of waiting."""

    async def sleep(seconds: float) -> None:
        for each in pauses:
            each.append(seconds)

    return FreshEpisodesGate(mesh, "race-1", GateConfig(episodes=4, **config), sleep=sleep)


async def test_both_policies_play_the_same_episodes_and_a_worse_one_is_refused():
    mesh = ScriptedMesh(a1=[10.0, 20.0, 30.0, 40.0], a2=[9.0, 18.0, 29.0, 38.0])
    verdict = await gate(mesh).judge(version(2), version(1))
    assert not verdict.accepted
    assert {asked["agent_id"] for asked in mesh.asked} == {"race-1-a1", "race-1-a2"}
    assert len({asked["seed"] for asked in mesh.asked}) == 1
    assert {asked["episodes"] for asked in mesh.asked} == {4}
    assert [dict(asked["options"]) for asked in mesh.asked] == [{"split": "validation"}] * 2
    assert (await gate(mesh).judge(version(1), version(2))).accepted


async def test_each_judgement_has_episodes_of_its_own():
    mesh = ScriptedMesh(a1=[1.0] * 4, a2=[1.0] * 4)
    for _ in range(3):
        await gate(mesh).judge(version(2), version(1))
    assert len({asked["seed"] for asked in mesh.asked}) == 3


async def test_an_ensemble_is_evaluated_as_one_policy():
    mesh = ScriptedMesh(a1=[1.0] * 4, a2=[2.0] * 4)
    await gate(mesh).judge(version(2, 3), version(1))
    members = {asked["agent_id"]: [one.agent_id for one in asked["members"]] for asked in mesh.asked}
    assert members == {"race-1-a1": [], "race-1-a2": ["race-1-a3"]}


async def test_an_evaluation_that_fails_is_no_verdict():
    with pytest.raises(FailedPrecondition, match="no such environment"):
        await gate(ScriptedMesh(a1=[1.0] * 4)).judge(version(2), version(1))


async def test_evaluations_without_a_result_are_cancelled_and_repeated_after_longer_and_longer_pauses():
    pauses: list[float] = []
    mesh = ScriptedMesh(a1=None, a2=None)
    judge = gate(mesh, pauses, deadline_seconds=0.0).judge
    for _ in range(7):
        with pytest.raises(DeadlineExceeded, match="is not done"):
            await judge(version(2), version(1))
    assert sorted(mesh.cancelled) == ["a1"] * 7 + ["a2"] * 7
    assert pauses == [60.0, 120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0]


async def test_a_result_ends_the_pauses():
    pauses: list[float] = []
    mesh = ScriptedMesh(a1=[1.0] * 4)
    judge = gate(mesh, pauses).judge
    for returns in ({}, {}, {"a2": [1.0] * 4}, {}):
        mesh.returns = {"a1": [1.0] * 4, **returns}
        if returns:
            assert (await judge(version(2), version(1))).accepted
        else:
            with pytest.raises(FailedPrecondition, match="no such environment"):
                await judge(version(2), version(1))
    assert pauses == [60.0, 120.0, 60.0]

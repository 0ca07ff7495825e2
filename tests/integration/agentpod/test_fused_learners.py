"""Learners of a fused pod, each with its worker in its own process: what they have in common after every round."""

import asyncio
import hashlib
import os
import signal
import sys

import pytest
from fork_servers import REPOSITORY, pids
from scripted import run, until
from test_processes import lives

from agentpod.fusion.averaging import PendingAverage, StateAverager
from agentpod.process.retraining import settings_of
from agentpod.process.wiring import run_follower
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


@pytest.fixture
def applied(monkeypatch) -> dict[int, list[str]]:
    """Digests of the parameters of each learner after each round that it has applied."""
    digests: dict[int, list[str]] = {}
    apply = StateAverager.apply

    def record(averager: StateAverager, pending: PendingAverage) -> None:
        apply(averager, pending)
        digest = hashlib.sha256()
        for name, tensor in sorted(averager._fusible.parameters.items()):
            digest.update(name.encode() + tensor.detach().numpy().tobytes())
        digests.setdefault(id(averager), []).append(digest.hexdigest())

    monkeypatch.setattr(StateAverager, "apply", record)
    return digests


@pytest.mark.parametrize("mode", ["average", "allreduce"])
async def test_learners_have_equal_parameters_after_every_round(mesh, make_spec, make_assignment, applied, mode):
    spec = make_spec(steps=8192, fusion={"mode": mode, "every_updates": 2})
    follower = asyncio.create_task(run_follower(mesh.pod_config("fused", learners=2), "learner-1"))
    assert await run(mesh, make_assignment(spec), learners=2) == 0
    assert await asyncio.wait_for(follower, 30) == 0
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    leader, other = applied.values()
    # The leader's last round may end before the follower has applied it.
    assert 0 <= len(leader) - len(other) <= 1
    assert leader[: len(other)] == other
    assert len(set(other)) == len(other) >= 3
    # A round has two updates of both learners; an update takes 8 environments x 64 steps, each counted once.
    assert mesh.leaderboard.manifests[-1].environment_steps == 2 * 2 * 512 * (len(leader) - 1)


async def test_the_learners_are_processes_of_one_container_and_a_killed_one_is_replaced(
    mesh, make_spec, make_assignment
):
    spec = make_spec(
        steps=10**9,
        fusion={"mode": "average", "every_updates": 2},
        evaluation={"episodes": 4, "every_environment_steps": 4096, "share": 1.0},
    )
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config("fused", learners=2)
    settings = [text for key, value in settings_of(pod).items() for text in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "agentpod", "pod", *settings, cwd=REPOSITORY)
    try:
        await until(lambda: len(mesh.leaderboard.manifests) >= 2, 120)
        roles = pids(pod)
        assert set(roles) == {"learner", "learner-1"}
        os.kill(roles["learner-1"], signal.SIGKILL)
        scored = len(mesh.leaderboard.manifests)
        await until(lambda: len(mesh.leaderboard.manifests) >= scored + 2, 120)
        await until(lambda: pids(pod)["learner-1"] != roles["learner-1"])
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
        assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_DRAINED
        assert not any(map(lives, roles.values()))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

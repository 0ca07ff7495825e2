"""Several learners of one agent, as real processes: they agree, share the budget and survive the loss of a follower."""

import os
import signal

import pytest
from fork_servers import pids
from scripted import until
from test_processes import digest_of, left_in_shared_memory, lives

from podrace.checkpoint_store import open_store
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tensor_transport.codec import decode

OFF_POLICY = {
    "dqn": {
        "hyperparameters": {
            "horizon": 16,
            "batch_size": 32,
            "hidden_sizes": [16],
            "warmup_steps": 256,
            "updates_per_step": 0.125,
            "replay_capacity": 8192,
        }
    }
}


def learner_state(mesh):
    last = mesh.leaderboard.manifests[-1]
    return last, decode(open_store(mesh.leaderboard.store_uri).get_object(digest_of(last, "learner")))[0]


@pytest.mark.parametrize(
    ("layout", "mode"),
    [
        ("separate", "average"),
        ("separate", "allreduce"),
        ("separate", "diloco"),
        ("fused", "average"),
        ("fused", "allreduce"),
    ],
)
async def test_two_learners_share_the_budget_of_one_agent(mesh, make_spec, make_assignment, fork_server, layout, mode):
    # No multiple of what a round brings.
    spec = make_spec(steps=10_000, fusion={"mode": mode, "every_updates": 4})
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config(layout, learners=2)
    roles = await fork_server.start(pod)
    own = () if layout == "fused" else ("worker-0", "worker-1", "evaluator")
    assert set(roles) == {"learner", "learner-1", *own}
    await until(lambda: bool(mesh.orchestrator.completed), 60)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    last, state = learner_state(mesh)
    # Each update takes 8 environments x 64 steps; the budget counts the steps of both learners.
    assert 10_000 <= last.environment_steps < 10_000 + 2 * 4 * 512
    assert last.environment_steps % 512 == 0
    assert mesh.orchestrator.completed[0].progress.environment_steps == last.environment_steps
    assert last.policy_version * 512 < last.environment_steps
    # The normalizer has seen the samples of both.
    assert int(state["observations.common.count"]) == last.environment_steps
    await until(lambda: not any(map(lives, pids(pod).values())))
    assert not left_in_shared_memory(pod)


@pytest.mark.parametrize(("layout", "mode"), [("separate", "average"), ("separate", "allreduce"), ("fused", "average")])
async def test_replay_memories_of_two_learners_are_fused_into_one_agent(
    mesh, make_spec, make_assignment, fork_server, layout, mode
):
    spec = make_spec(steps=8192, algorithms=OFF_POLICY, fusion={"mode": mode, "every_updates": 8})
    mesh.orchestrator.assignments.append(make_assignment(spec))
    await fork_server.start(mesh.pod_config(layout, learners=2))
    await until(lambda: bool(mesh.orchestrator.completed), 60)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    last, state = learner_state(mesh)
    assert last.environment_steps >= 8192
    assert 0 < int(state["gradient_steps"]) <= last.environment_steps // 8


@pytest.mark.parametrize("layout", ["separate", "fused"])
@pytest.mark.parametrize("mode", ["average", "allreduce"])
async def test_a_killed_follower_is_dropped_and_rejoins(mesh, make_spec, make_assignment, fork_server, layout, mode):
    spec = make_spec(
        steps=10**9,
        fusion={"mode": mode, "every_updates": 2},
        evaluation={"episodes": 4, "every_environment_steps": 4096, "share": 1.0},
    )
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config(layout, learners=2)
    roles = await fork_server.start(pod)
    await until(lambda: len(mesh.leaderboard.manifests) >= 2, 60)
    os.kill(roles["learner-1"], signal.SIGKILL)
    scored = len(mesh.leaderboard.manifests)
    # The leader continues alone, and later with the follower that the fork server has started instead.
    await until(lambda: len(mesh.leaderboard.manifests) >= scored + 3, 60)
    assert pids(pod)["learner-1"] != roles["learner-1"]
    assert pids(pod)["learner"] == roles["learner"]
    mesh.orchestrator.directive = pb.DIRECTIVE_DRAIN
    await until(lambda: bool(mesh.orchestrator.completed), 60)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_DRAINED
    await until(lambda: not any(map(lives, pids(pod).values())))
    assert not left_in_shared_memory(pod)


@pytest.mark.parametrize("mode", ["allreduce"])
async def test_a_restarted_follower_delays_updates_until_its_replay_memory_is_warm(
    mesh, make_spec, make_assignment, fork_server, mode
):
    spec = make_spec(
        steps=10**9,
        algorithms=OFF_POLICY,
        fusion={"mode": mode, "every_updates": 4},
        evaluation={"episodes": 4, "every_environment_steps": 4096, "share": 1.0},
    )
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config("separate", learners=2)
    roles = await fork_server.start(pod)
    await until(lambda: len(mesh.leaderboard.manifests) >= 2, 60)
    os.kill(roles["learner-1"], signal.SIGKILL)
    scored = len(mesh.leaderboard.manifests)
    await until(lambda: len(mesh.leaderboard.manifests) >= scored + 4, 60)
    mesh.orchestrator.directive = pb.DIRECTIVE_DRAIN
    await until(lambda: bool(mesh.orchestrator.completed), 60)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_DRAINED


@pytest.mark.parametrize("layout", ["separate", "fused"])
async def test_when_the_leader_is_killed_all_learners_exit(mesh, make_spec, make_assignment, fork_server, layout):
    mesh.orchestrator.assignments.append(make_assignment(make_spec(steps=10**9)))
    pod = mesh.pod_config(layout, learners=3)
    roles = await fork_server.start(pod)
    await until(lambda: bool(mesh.orchestrator.renewals))
    os.kill(roles["learner"], signal.SIGKILL)
    await until(lambda: not any(map(lives, roles.values())), 30)

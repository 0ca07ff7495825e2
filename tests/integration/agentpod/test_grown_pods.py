"""What an update depends on is the same in a pod that has grown and got further workers."""

import asyncio

import pytest
from scripted import run, store_of, until

from agentpod.process.wiring import run_follower
from agentpod.roles import worker
from podrace.checkpoint_store.publish import fetch_latest
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tensor_transport.codec import decode

GROWS = {"cores": 1.0, "maximum_cores": 4.0}
HORIZON, ENVIRONMENTS, UPDATES_PER_STEP = 16, 8, 0.125
SETTINGS = {
    "ppo": {"horizon": HORIZON, "minibatch_size": 64, "hidden_sizes": [16]},
    "dqn": {
        "horizon": HORIZON,
        "batch_size": 32,
        "hidden_sizes": [16],
        "warmup_steps": 256,
        "updates_per_step": UPDATES_PER_STEP,
        "replay_capacity": 8192,
    },
}


def latest_of(mesh):
    """The newest manifest of the agent, and what its learner state counts."""
    latest = fetch_latest(store_of(mesh), "t-a0")
    return latest.manifest, decode(latest.parts["learner"])[0]


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
async def test_batch_learning_rate_and_ratio_are_the_same_before_and_after_growing(
    mesh, make_spec, make_assignment, fork_server, algorithm
):
    spec = make_spec(steps=8192, algorithms={algorithm: {"hyperparameters": SETTINGS[algorithm]}}, pod=GROWS)
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 2048
    assert await run(mesh, make_assignment(spec)) == 0
    (drained,) = mesh.orchestrator.completed
    assert drained.outcome == pb.OUTCOME_DRAINED
    small, before = latest_of(mesh)

    mesh.orchestrator.directive = pb.DIRECTIVE_CONTINUE
    mesh.orchestrator.completed.clear()
    mesh.orchestrator.assignments.append(make_assignment(spec, epoch=2))
    roles = await fork_server.start(mesh.pod_config("separate", workers=2, cores=3.0, folder=mesh.folder / "grown"))
    assert set(roles) == {"learner", "worker-0", "worker-1", "evaluator"}
    await until(lambda: bool(mesh.orchestrator.completed), 60)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    grown, after = latest_of(mesh)

    assert 0 < small.environment_steps < grown.environment_steps
    # One update follows from each rollout of all environments, in one worker and divided among two.
    for manifest in (small, grown):
        assert manifest.environment_steps == manifest.rollouts * HORIZON * ENVIRONMENTS
        assert manifest.policy_version == manifest.rollouts
    assert grown.hyperparameters == small.hyperparameters
    if algorithm == "dqn":
        trained = [int(state["gradient_steps"]) for state in (before, after)]
        steps = grown.environment_steps - small.environment_steps
        # The updates of the newest two rollouts may be owed.
        owed = UPDATES_PER_STEP * 2 * HORIZON * ENVIRONMENTS
        assert trained[1] - trained[0] == pytest.approx(UPDATES_PER_STEP * steps, abs=owed)
        assert grown.replay_steps == grown.environment_steps, "it continues with the memory that it had"


async def test_further_learners_divide_the_environments_and_the_minibatches(
    mesh, make_spec, make_assignment, monkeypatch
):
    algorithms = {"ppo": {"hyperparameters": SETTINGS["ppo"] | {"epochs": 3}}}
    pod = {"cores": 1.0, "maximum_cores": 2.0, "gpus": 1}
    spec = make_spec(steps=8192, algorithms=algorithms, pod=pod, fusion={"mode": "allreduce", "every_updates": 2})
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 2048
    assert await run(mesh, make_assignment(spec)) == 0
    small, before = latest_of(mesh)
    mesh.orchestrator.directive, made, make = pb.DIRECTIVE_CONTINUE, [], worker.make_simulator
    mesh.orchestrator.completed.clear()

    def record(environment, *rest):
        made.append(environment.count)
        return make(environment, *rest)

    monkeypatch.setattr(worker, "make_simulator", record)
    prepare = make_assignment(spec)
    prepare.assignment_id, prepare.lease_epoch = "", 0
    mesh.orchestrator.preparation = prepare
    folder = mesh.folder / "grown"
    follower = asyncio.create_task(run_follower(mesh.pod_config("fused", learners=2, folder=folder), "learner-1"))
    assert await run(mesh, make_assignment(spec, epoch=2), learners=2, folder=folder) == 0
    assert await asyncio.wait_for(follower, 30) == 0
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    grown, after = latest_of(mesh)

    assert made == [ENVIRONMENTS // 2] * 2, "both learners made their environments once, before they took over"
    assert 0 < small.environment_steps < grown.environment_steps
    for manifest in (small, grown):
        assert manifest.environment_steps == manifest.rollouts * HORIZON * ENVIRONMENTS
        assert manifest.policy_version == manifest.rollouts
    # Two minibatches in each of three epochs, in one learner and divided among two.
    for manifest, state in ((small, before), (grown, after)):
        assert int(state["optimizer.step"]) == 2 * 3 * manifest.policy_version
    assert grown.hyperparameters == small.hyperparameters

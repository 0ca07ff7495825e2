"""A worker class of a user collects the rollouts of a pod; its faults are one line."""

import own_workers
import pytest
from scripted import only_completion, run

from podrace.limits.config import Allowed
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


async def test_a_pod_trains_with_the_worker_class_of_a_user(mesh, make_spec, make_assignment):
    own_workers.Counting.collected = 0
    worker = "python:own_workers:Counting"
    await run(mesh, make_assignment(make_spec(pod={"worker": worker})), worker_class=worker)
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED, only_completion(mesh).message
    assert own_workers.Counting.collected >= 8


@pytest.mark.parametrize(
    ("name", "outcome", "said"),
    [
        (
            "own_workers:Raising",
            pb.OUTCOME_AGENT_FAILED,
            "CollectRollout raised ZeroDivisionError: steps / 0 (own",
        ),
        ("own_workers:Exaggerating", pb.OUTCOME_AGENT_FAILED, "CollectRollout answered with environment_steps = 513"),
        ("own_workers:Plain", pb.OUTCOME_SPEC_FAILED, "expected the name of a class that derives from agentpod.roles"),
        ("own_workers:Absent", pb.OUTCOME_SPEC_FAILED, "expected the name of a class that derives from agentpod.roles"),
        ("absent_module:Worker", pb.OUTCOME_SPEC_FAILED, "module 'absent_module' cannot be imported"),
    ],
)
async def test_its_faults_are_reported_in_one_line(mesh, make_spec, make_assignment, name, outcome, said):
    worker = f"python:{name}"
    await run(mesh, make_assignment(make_spec(pod={"worker": worker})), worker_class=worker)
    completed = only_completion(mesh)
    assert (completed.outcome, completed.message.startswith(f"pod.worker = '{worker}': {said}")) == (outcome, True), (
        completed
    )
    assert "\n" not in completed.message


async def test_a_module_that_is_not_allowed_is_refused(mesh, make_spec, make_assignment):
    worker = "python:own_workers:Counting"
    spec = make_spec(pod={"worker": worker})
    await run(mesh, make_assignment(spec), worker_class=worker, allow=Allowed(modules=("others",)))
    assert only_completion(mesh).outcome == pb.OUTCOME_SPEC_FAILED
    assert "module 'own_workers' is not allowed here" in only_completion(mesh).message

"""Real pods whose tournament has an evaluator plugin: its score is published, or the reason why there is none."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fork_servers import RunningForkServer, connected, running_fork_server
from scripted import until
from test_processes import left_in_shared_memory, lives

from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import fetch_latest
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

REPOSITORY = Path(__file__).parents[3]
EXAMPLE = "python:examples.custom.evaluator:evaluate"
SCORERS = "python:tests.integration.agentpod.scorers"


@pytest.fixture
def clumsy() -> Iterator[str]:
    """The example of a service, at a free port."""
    command = [sys.executable, "examples/custom/evaluator_service.py", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"grpc://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def evaluation(evaluator: str, **changes) -> dict:
    return {"episodes": 8, "every_environment_steps": 10**8, "evaluator": evaluator, **changes}


def function_processes() -> list[str]:
    """Processes of evaluation functions of scorers and the example, wherever they hang."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode().replace("\0", " ")
        except OSError:
            continue
        if "evaluation-function" in line and ("scorers" in line or "examples.custom" in line):
            found.append(line)
    return found


async def finished(mesh, fork_server, assignment, layout: str, name: str = "") -> None:
    mesh.orchestrator.assignments.append(assignment)
    pod = mesh.pod_config(layout)
    # The fork server may not have reaped an earlier pod of the same name yet, and would not start another.
    pod = replace(pod, pod_id=pod.pod_id + name)
    roles = await fork_server.start(pod)
    await until(lambda: bool(mesh.orchestrator.completed), 90)
    (completed,) = mesh.orchestrator.completed
    assert completed.outcome == pb.OUTCOME_FINISHED, completed.message
    await until(lambda: not any(map(lives, roles.values())))
    await until(lambda: not [line for line in function_processes() if str(pod.folder) in line])
    assert not left_in_shared_memory(pod)


@pytest.mark.parametrize("layout", ["separate", "fused"])
async def test_the_score_of_a_function_is_published(mesh, make_spec, make_assignment, fork_server, layout):
    spec = make_spec(steps=1024, evaluation=evaluation(EXAMPLE))
    await finished(mesh, fork_server, make_assignment(spec), layout)
    last = mesh.leaderboard.manifests[-1]
    assert (last.evaluation.evaluator, last.evaluation.evaluator_fault) == (EXAMPLE, "")
    # The worst quarter, below the mean of the lengths: each step of CartPole is worth 1.
    assert 0 < last.evaluation.mean_return < last.evaluation.mean_length_steps
    assert last.evaluation.episodes == 8
    assert last.evaluation.policy_digest in {part.digest for part in last.parts if part.name == "policy"}


@pytest.mark.parametrize("layout", ["separate", "fused"])
async def test_the_score_of_a_service_is_published(mesh, make_spec, make_assignment, fork_server, clumsy, layout):
    spec = make_spec(steps=1024, evaluation=evaluation(clumsy))
    await finished(mesh, fork_server, make_assignment(spec), layout)
    last = mesh.leaderboard.manifests[-1]
    assert (last.evaluation.evaluator, last.evaluation.evaluator_fault) == (clumsy, "")
    assert last.evaluation.mean_return > 0
    assert last.evaluation.policy_digest in {part.digest for part in last.parts if part.name == "policy"}


@pytest.mark.parametrize("layout", ["separate", "fused"])
@pytest.mark.parametrize("function", ["crashing", "hanging"])
async def test_a_failing_function_is_replaced_by_the_built_in_evaluator(
    mesh, make_spec, make_assignment, fork_server, layout, function
):
    name = f"{SCORERS}:{function}"
    steps = 8192
    spec = make_spec(
        steps=steps, evaluation=evaluation(name, answer_duration="1s", every_environment_steps=2048, share=1.0)
    )
    await finished(mesh, fork_server, make_assignment(spec), layout)
    assert mesh.leaderboard.manifests[-1].environment_steps == steps
    for manifest in mesh.leaderboard.manifests:
        assert manifest.evaluation.evaluator == ""
        assert manifest.evaluation.evaluator_fault.startswith(f"evaluator {name}: ")
        # By the built-in evaluator: each step of CartPole is worth 1.
        assert manifest.evaluation.mean_return == pytest.approx(manifest.evaluation.mean_length_steps)
    faults = {request.progress.evaluator_fault for request in mesh.orchestrator.completed}
    assert faults == {mesh.leaderboard.manifests[-1].evaluation.evaluator_fault}


async def test_a_checkpoint_is_scored_by_the_tournaments_evaluator(mesh, make_spec, make_assignment, fork_server):
    name = f"{SCORERS}:tenfold"
    await finished(mesh, fork_server, make_assignment(make_spec(steps=1024)), "fused")
    latest = fetch_latest(open_store(mesh.leaderboard.store_uri), "t-a0")
    assert latest is not None
    work = make_assignment(make_spec(evaluation=evaluation(name)))
    work.assignment_id = "t-e0.1"
    work.evaluate.checkpoint.agent_id = "t-a0"
    work.evaluate.checkpoint.manifest_digest = latest.manifest_digest
    work.evaluate.episodes = 6
    mesh.orchestrator.completed.clear()
    await finished(mesh, fork_server, work, "fused", "-evaluating")
    scored = mesh.orchestrator.completed[-1].evaluation
    assert (scored.evaluator, scored.episodes) == (name, 6)
    assert scored.mean_return == pytest.approx(10 * scored.mean_length_steps)


@pytest.fixture
def cold_functions(warm_python: str, short_folder: Path) -> Iterator[RunningForkServer]:
    """A fork server whose pods start functions with a new interpreter, which the kernel kills with its parent."""
    folder = short_folder / "cold"
    folder.mkdir(mode=0o700)
    with running_fork_server(folder, warm_python, TESTS_COLD_ROLES="evaluation-function") as server:
        yield server


@pytest.mark.parametrize("function", ["hanging", "starting"])
async def test_a_function_and_its_processes_are_killed_with_the_leader(
    mesh, make_spec, make_assignment, cold_functions, short_folder, function
):
    spec = make_spec(steps=1024, evaluation=evaluation(f"{SCORERS}:{function}"))
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config("fused")
    mine, started = str(pod.folder), cold_functions.scorers_child
    async with connected(cold_functions, short_folder) as fork_server:
        roles = await fork_server.start(pod)
        await until(lambda: any(mine in line for line in function_processes()), 90)
        if function == "starting":
            await until(started.exists, 90)
        os.kill(roles["learner"], 9)
        await until(lambda: not any(mine in line for line in function_processes()))
    if function == "starting":
        child = int(started.read_text())
        try:
            await until(lambda: not lives(child))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, 9)

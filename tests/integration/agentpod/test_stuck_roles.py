"""Roles that make no progress are replaced: a stopped worker alone, a hanging fused pod as a whole.

A simulator that compiles gets the longest deadline.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from fork_servers import REPOSITORY, pids
from scripted import until
from test_processes import lives

from agentpod.config import PodConfig
from agentpod.process.retraining import settings_of
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.progress_deadlines import ProgressDeadlines

SLEEPING = "python:tests.chaos.sleepy_environment:Drowsy"
"""Trains until the test has seen enough, and leaves the processors to other tests."""

FAST = ProgressDeadlines(floor_seconds=2.0)


def reports(mesh) -> list[pb.StuckRole]:
    """Reports of stuck roles. One that was not acknowledged yet is repeated with its number."""
    found = {stuck.number: stuck for renewal in mesh.orchestrator.renewals for stuck in renewal.stuck_roles}
    return list(found.values())


def collecting(mesh) -> bool:
    """Whether the pod has been observed long enough, so that deadlines are learned."""
    if not mesh.orchestrator.renewals:
        return False
    roles = {role.role: role for role in mesh.orchestrator.renewals[-1].progress.roles}
    return "worker-0" in roles and 0 < roles["worker-0"].deadline_duration.seconds < 60


def trained(mesh) -> int:
    return mesh.orchestrator.renewals[-1].progress.policy_version


@pytest.mark.long
async def test_a_stopped_worker_is_reported_and_replaced_and_the_training_continues(
    mesh, make_spec, make_assignment, fork_server
):
    mesh.orchestrator.assignments.append(make_assignment(make_spec(SLEEPING, steps=10**8)))
    pod = mesh.pod_config("separate", progress=FAST)
    roles = await fork_server.start(pod)
    await until(lambda: collecting(mesh), 60)
    os.kill(roles["worker-0"], signal.SIGSTOP)
    await until(lambda: bool(reports(mesh)), 60)
    (stuck,) = reports(mesh)
    assert (stuck.number, stuck.progress.role, stuck.restarted) == (1, "worker-0", True)
    assert "its process is stopped" in stuck.reason
    assert " < " in stuck.stacks, "it continued for the moment of the dump"
    await until(lambda: pids(pod)["worker-0"] != roles["worker-0"], 60)
    before = trained(mesh)
    await until(lambda: trained(mesh) > before + 3, 60)
    assert lives(roles["learner"])


@pytest.mark.long
async def test_a_fused_pod_whose_simulator_hangs_reports_its_stacks_and_exits(
    mesh, make_spec, make_assignment, fork_server
):
    spec = make_spec("python:tests.integration.agentpod.environments:hanging", steps=10**8)
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config("fused", progress=FAST)
    roles = await fork_server.start(pod)
    await until(lambda: bool(reports(mesh)), 90)
    (stuck,) = reports(mesh)
    assert not stuck.restarted
    assert "hang_forever" in stuck.stacks
    await until(lambda: not lives(roles["learner"]), 60)


@contextlib.contextmanager
def in_containers(pod: PodConfig) -> Iterator[None]:
    """Starts the roles of a pod as containers do: without a fork server, and without a file that lists processes."""
    progress = {"progress.multiple": pod.progress.multiple, "progress.floor_seconds": pod.progress.floor_seconds}
    settings = [f"--set={key}={value}" for key, value in {**settings_of(pod), **progress}.items()]
    roles = [
        subprocess.Popen([sys.executable, "-m", "agentpod", role, *settings], cwd=REPOSITORY, start_new_session=True)
        for role in pod.roles
    ]
    try:
        yield
    finally:
        for role in roles:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(role.pid, signal.SIGKILL)
            role.wait()


@pytest.mark.long
@pytest.mark.parametrize("environment", ["hanging", "holding"])
async def test_the_report_about_a_role_in_another_container_has_its_stacks(
    mesh, make_spec, make_assignment, environment
):
    spec = make_spec(f"python:tests.integration.agentpod.environments:{environment}", steps=10**8)
    mesh.orchestrator.assignments.append(make_assignment(spec))
    progress = ProgressDeadlines(multiple=2.0, floor_seconds=4.0)
    with in_containers(mesh.pod_config("separate", progress=progress)):
        await until(lambda: bool(reports(mesh)), 120)
    (stuck,) = reports(mesh)
    assert (stuck.progress.role, stuck.restarted) == ("worker-0", False)
    assert "hang_forever (agentpod/environments.py:" in stuck.stacks


@pytest.mark.long
async def test_a_worker_that_compiles_between_two_steps_is_not_replaced_until_the_longest_deadline(
    mesh, make_spec, make_assignment, fork_server
):
    spec = make_spec("python:tests.integration.agentpod.environments:recompiling", steps=10**8)
    mesh.orchestrator.assignments.append(make_assignment(spec))
    longest = ProgressDeadlines(multiple=2.0, floor_seconds=2.0, ceiling_seconds=15.0)
    await fork_server.start(mesh.pod_config("separate", progress=longest))
    await until(lambda: bool(reports(mesh)), 120)
    (stuck,) = reports(mesh)
    assert (stuck.progress.role, stuck.restarted) == ("worker-0", True)
    assert "in phase compiling; the deadline is 15.0 s" in stuck.reason
    compiled = [
        role.counter
        for renewal in mesh.orchestrator.renewals
        for role in renewal.progress.roles
        if role.role == "worker-0" and role.phase == pb.ROLE_PHASE_COMPILING
    ]
    assert len(set(compiled)) == 2, "it compiled twice, and was replaced the second time"

"""What a pod logs: each assignment with its begin and its end, and why it was drained."""

from collections.abc import MutableMapping
from typing import Any

from agentpod.process.wiring import run_leader
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

LogLines = list[MutableMapping[str, Any]]


async def run(mesh, *assignments: pb.Assignment) -> None:
    """Runs a pod until it has worked on these assignments."""
    mesh.orchestrator.assignments.extend(assignments)
    config = mesh.pod_config("fused")
    config.folder.mkdir(mode=0o700)
    assert await run_leader(config) == 0


def lines_of(log_lines: LogLines, event: str) -> LogLines:
    return [line for line in log_lines if line["event"] == event]


async def test_an_assignment_is_logged_when_it_begins_and_when_it_ends(
    mesh, make_spec, make_assignment, log_lines: LogLines
):
    await run(mesh, make_assignment(make_spec(steps=512), epoch=3))
    (begin,) = lines_of(log_lines, "assignment begins")
    assert begin == {
        "event": "assignment begins",
        "log_level": "info",
        "work": "train",
        "lease_epoch": 3,
        "agent_id": "t-a0",
        "tournament_id": "t",
    }
    (end,) = lines_of(log_lines, "assignment ends")
    assert (end["outcome"], end["agent_id"]) == ("OUTCOME_FINISHED", "t-a0")
    assert log_lines.index(begin) < log_lines.index(end)


async def test_a_pod_logs_each_candidate_that_the_leaderboard_has_accepted(
    mesh, make_spec, make_assignment, log_lines: LogLines
):
    await run(mesh, make_assignment(make_spec(steps=512)))
    submitted = lines_of(log_lines, "submitted")
    assert len(submitted) == len(mesh.leaderboard.manifests)
    assert submitted[-1]["candidate_id"] == mesh.leaderboard.newest["t-a0"]


async def test_an_idle_pod_logs_a_drain_like_a_busy_one(mesh, log_lines: LogLines):
    await run(mesh)
    (received,) = lines_of(log_lines, "directive received")
    assert (received["directive"], received["reason"]) == ("DIRECTIVE_DRAIN", "nothing left")


async def test_a_drained_pod_logs_the_reason_of_the_orchestrator(mesh, make_spec, make_assignment, log_lines: LogLines):
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 1
    await run(mesh, make_assignment(make_spec(steps=10**7)))
    (received,) = lines_of(log_lines, "directive received")
    assert (received["directive"], received["reason"]) == ("DIRECTIVE_DRAIN", "by the script")
    (end,) = lines_of(log_lines, "assignment ends")
    assert (end["outcome"], end["reason"]) == ("OUTCOME_DRAINED", "by the script")

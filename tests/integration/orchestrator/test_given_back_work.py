"""Work that pods give back again and again, because of an error that may come from the work itself, fails."""

from typing import Any

from orchestrator.state.transitions import find_give_backs
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2

FAILED = tournament_pb2.TOURNAMENT_STATE_FAILED
RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING
REASON = "pod.worker = 'grpc://w:1': the disk is full"


async def give_back(mesh: Any, name: str, steps: int = 0, *, gave_up: bool = True) -> str:
    """Assigns an agent to the first pod, which gives it back; returns the id of the agent."""
    work = await mesh.assigned(f"{name}-p0")
    progress = pb.Progress(environment_steps=steps)
    await mesh.complete(work, pb.OUTCOME_DRAINED, message=REASON, gave_up=gave_up, progress=progress)
    return str(work.train.agent_id)


async def test_an_agent_that_is_given_back_three_times_without_progress_fails_with_the_reason(
    mesh: Any, name: str
) -> None:
    assert [await give_back(mesh, name) for _ in range(4)] == [f"{name}-a{number}" for number in (0, 0, 0, 1)]
    events = [one for one in await mesh.events(name) if one.kind in ("agent_drained", "agent_failed")]
    assert [(one.kind, one.agent_id) for one in events] == [
        ("agent_drained", f"{name}-a0"),
        ("agent_drained", f"{name}-a0"),
        ("agent_failed", f"{name}-a0"),
        ("agent_drained", f"{name}-a1"),
    ]
    assert events[0].message == f"{name}-a0 drained after 0 steps: {REASON} (time 1 of 3 without a new step)"
    assert events[2].message == f"{name}-a0 failed after 0 steps: {REASON} (given back 3 times without a new step)"
    tournament = await mesh.get(name)
    assert (tournament.state, tournament.failed_agents) == (RUNNING, 1)


async def test_a_tournament_whose_agents_all_fail_so_ends_with_one_reason(mesh: Any, name: str) -> None:
    for _ in range(9):
        await give_back(mesh, name)
    tournament = await mesh.get(name)
    assert (tournament.state, tournament.failed_agents) == (FAILED, 3)
    said = f"3 agents failed in a row, the last one with: {REASON} (given back 3 times without a new step)"
    assert tournament.reason == said


async def test_an_agent_that_makes_progress_or_that_a_pod_was_asked_for_does_not_fail(mesh: Any, name: str) -> None:
    for steps in (1000, 1000, 2000, 1500, 3000, 3000):
        await give_back(mesh, name, steps)
    for _ in range(5):
        await give_back(mesh, name, gave_up=False)
    assert (await mesh.get(name)).failed_agents == 0
    assert await give_back(mesh, name) == f"{name}-a0"
    assert (await mesh.get(name)).failed_agents == 1


async def test_the_count_survives_a_restart_and_goes_with_the_agent(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        await mesh.cycle()
        for _ in range(2):
            await give_back(mesh, name)
    async with open_mesh() as mesh:
        assert (await mesh.state.transact(find_give_backs, f"{name}-a0")) == (0, 2)
        await give_back(mesh, name)
        assert (await mesh.get(name)).failed_agents == 1
        assert await mesh.state.transact(find_give_backs, f"{name}-a0") is None


async def test_an_evaluation_that_is_given_back_for_the_third_time_fails_with_the_reason(mesh: Any, name: str) -> None:
    evaluation = await mesh.evaluate(name)
    for _ in range(3):
        assert not (await mesh.evaluation(evaluation)).done
        work = await mesh.assigned(f"{name}-p0")
        assert work.WhichOneof("work") == "evaluate"
        await mesh.complete(work, pb.OUTCOME_DRAINED, message=REASON, gave_up=True)
    failed = await mesh.evaluation(evaluation)
    assert failed.done
    assert failed.error == f"{REASON} (assigned 3 times)"

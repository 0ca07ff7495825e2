"""Tests what survives a restart of the orchestrator."""

from typing import Any

from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import ChampionSpec, ObjectiveSpec

RUNNING, ENDING = tournament_pb2.TOURNAMENT_STATE_RUNNING, tournament_pb2.TOURNAMENT_STATE_ENDING


async def test_after_a_restart_pods_are_adopted_and_every_lease_lasts_one_full_duration(
    open_mesh: Any, spec: Any, clock: Any
) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        await mesh.cycle()
        work = await mesh.assigned(f"{name}-p0")
        await mesh.renew(work, environment_steps=300)
        await mesh.cycle(5.0)
        launcher = mesh.launcher
    clock.now += 1000.0
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.cycle()
        assert [pod.pod_id for pod in await mesh.pods(name)] == [f"{name}-p0", f"{name}-p1"]
        await mesh.cycle(9.0)
        assert (await mesh.assigned(f"{name}-p1")).train.number == 1, "the lease of agent 0 is still valid"
        assert (await mesh.renew(work, environment_steps=310)).directive == pb.DIRECTIVE_CONTINUE
        seen = await mesh.get(name)
        assert (seen.state, seen.environment_steps) == (RUNNING, 310)
        assert seen.running_duration.seconds == 14, "the time between the two runs does not count"


async def test_evaluation_epochs_never_fall_although_the_objective_is_extended_and_the_orchestrator_restarted(
    open_mesh: Any, spec: Any
) -> None:
    objective = ObjectiveSpec(environment_steps=8000)
    assignment = tournament_pb2.AssignmentSpec(environment_steps=100_000)
    epochs = []
    async with open_mesh() as mesh:
        name = await mesh.create(spec(maximum_pods=1, objective=objective, assignment=assignment))
        await mesh.cycle()
        work = await mesh.assigned(f"{name}-p0")

        async def trained(steps: int) -> None:
            epochs.append((await mesh.renew(work, environment_steps=steps)).evaluation_epoch)

        for steps in (500, 1500, 5500):
            await trained(steps)
        extended = pb.UpdateTournamentRequest(request_id="extend", tournament_id=name)
        extended.objective.environment_steps = 80_000
        await mesh.call("UpdateTournament", extended)
        await trained(6000)
        await mesh.cycle(5.0)
    async with open_mesh(launcher=mesh.launcher) as mesh:
        await mesh.cycle()
        for steps in (7000, 59_999, 60_000):
            await trained(steps)
    assert epochs == [0, 1, 5, 5, 5, 5, 6]


async def test_after_a_restart_a_pod_that_died_in_between_is_replaced(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec(maximum_pods=1))
        await mesh.cycle()
        await mesh.assigned(f"{name}-p0")
        launcher = mesh.launcher
    launcher.pods.clear()
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.cycle()
        await mesh.cycle(1.0)
        assert (await mesh.assigned(f"{name}-p1")).assignment_id == f"{name}-a0.2"


async def test_the_number_of_failed_agents_survives_a_restart(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        await mesh.cycle()
        await mesh.fail(name)
    async with open_mesh(launcher=mesh.launcher) as mesh:
        assert (await mesh.get(name)).failed_agents == 1


async def test_a_request_repeated_after_a_restart_is_recognized(open_mesh: Any, spec: Any) -> None:
    request = pb.CreateTournamentRequest(request_id="r", spec=spec())
    async with open_mesh() as mesh:
        first = (await mesh.call("CreateTournament", request)).tournament.tournament_id
    async with open_mesh() as mesh:
        assert (await mesh.call("CreateTournament", request)).tournament.tournament_id == first


async def test_a_tournament_of_another_mesh_is_cancelled_and_can_be_resumed(open_mesh: Any, spec: Any) -> None:
    async with open_mesh(mesh_id="first") as mesh:
        name = await mesh.create(spec(maximum_pods=1))
    async with open_mesh(mesh_id="first") as mesh:
        assert (await mesh.get(name)).state == RUNNING
    async with open_mesh(mesh_id="second") as mesh:
        assert (await mesh.get(name)).reason == "its mesh stopped"
        await mesh.resume(name)
    async with open_mesh(mesh_id="second") as mesh:
        assert (await mesh.get(name)).state == RUNNING


async def test_a_pool_that_grows_in_steps_keeps_its_pods_after_a_restart(open_mesh: Any, spec: Any) -> None:
    stepwise = spec()
    stepwise.pool.step_pods = 1
    async with open_mesh(cores=4.0) as mesh:
        name = await mesh.create(stepwise)
        for _ in range(4):
            await mesh.cycle(1.0)
        before = {pod.pod_id for pod in await mesh.pods(name)}
        launcher = mesh.launcher
    assert len(before) == 4
    async with open_mesh(launcher=launcher, cores=4.0) as mesh:
        await mesh.cycle()
        assert {pod.pod_id for pod in mesh.runtime.cache.pods.values() if not pod.drain_reason} == before


async def test_a_restart_while_a_champion_is_selected_keeps_pods_for_its_evaluations(open_mesh: Any, spec: Any) -> None:
    champion = ChampionSpec(reevaluate_top=4)
    async with open_mesh(cores=3.0) as mesh:
        name = await mesh.create(spec(champion=champion, objective=ObjectiveSpec(environment_steps=100)))
        await mesh.cycle()
        await mesh.renew(await mesh.assigned(f"{name}-p0"), environment_steps=100)
        await mesh.cycle(1.0)
        launcher = mesh.launcher
    async with open_mesh(launcher=launcher, cores=3.0) as mesh:
        assert (await mesh.get(name)).state == ENDING
        await mesh.cycle()
        assert [pod.drain_reason for pod in mesh.runtime.cache.pods.values()] == [""] * 3

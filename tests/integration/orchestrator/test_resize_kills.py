"""Kills each party at each step of a change of a pod's size, in both directions, on every launcher.

Whatever is lost, one pod continues the agent, from its last checkpoint, and no two pods ever train it.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from resize_platforms import platform_of
from resize_world import STEPS, World

from orchestrator.state.resize_records import ResizePhase
from podrace.errors import FailedPrecondition

DIRECTIONS = ("grow", "shrink")
MEANINGFUL = {"old": STEPS[: STEPS.index("exited")], "new": STEPS, "both": STEPS[: STEPS.index("exited")]}
"""The old pod cannot be killed after it has exited."""
BOUNDARY_STEPS = ("listed", "ready", "given_back", "trained")
"""Where the Docker Engine and the API server notice a difference: what runs next to what."""


@pytest.fixture
async def world_on(
    open_mesh: Callable[..., Any],
    spec: Callable[..., Any],
    clock: Any,
    short_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Callable[[str], World]]:
    def make(name: str) -> World:
        return World(platform_of(name, short_folder, clock, monkeypatch), open_mesh, spec, short_folder)

    return make


async def survives(world: World, direction: str, step: str, lost: tuple[str, ...]) -> None:
    """Ends parties at a step, and checks that the agent continues in one pod from its last checkpoint."""
    await world.begin(direction)
    await world.reach(step)
    before = [one for one in world.publications if one.agent_id == world.agent_id]
    for party in lost:
        await world.end(getattr(world, party))
    holder = await world.settle()
    after = [one for one in world.publications if one.agent_id == world.agent_id]
    assert after[: len(before)] == before
    assert holder.pod_id not in [getattr(world, party) for party in lost]
    world.check_publications()
    if step in ("listed", "preparing") and lost == ("new",):
        assert holder.pod_id == world.old, "the old pod continues if the new one fails before it is ready"
        assert {one.lease_epoch for one in after[len(before) :]} == {before[-1].lease_epoch}
        assert ResizePhase.ABANDONED in await world.phases()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("lost", "step"), [(lost, step) for lost in ("old", "new") for step in MEANINGFUL[lost]])
async def test_a_killed_process_loses_no_agent(
    world_on: Callable[[str], World], direction: str, step: str, lost: str
) -> None:
    async with world_on("process") as world:
        await survives(world, direction, step, (lost,))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("step", MEANINGFUL["both"])
async def test_if_both_pods_are_lost_another_one_continues(
    world_on: Callable[[str], World], direction: str, step: str
) -> None:
    async with world_on("memory") as world:
        await survives(world, direction, step, ("old", "new"))


@pytest.mark.parametrize("launcher", ["docker", "kubernetes"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("lost", "step"), [("old", "listed"), *(("new", step) for step in BOUNDARY_STEPS)])
async def test_a_killed_container_or_job_loses_no_agent(
    world_on: Callable[[str], World], launcher: str, direction: str, step: str, lost: str
) -> None:
    async with world_on(launcher) as world:
        await survives(world, direction, step, (lost,))


@pytest.mark.parametrize("launcher", ["memory", "process", "docker", "kubernetes"])
@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_a_change_moves_the_agent_once_and_from_its_last_checkpoint(
    world_on: Callable[[str], World], launcher: str, direction: str
) -> None:
    async with world_on(launcher) as world:
        await world.begin(direction)
        await world.reach("ready")
        trained = [one for one in world.publications if one.pod_id == world.old]
        await world.reach("trained")
        last = [one for one in world.publications if one.pod_id == world.old]
        assert len(last) > len(trained), "it trains until the new pod is ready, and publishes once more"
        holder = await world.settle()
        assert holder.pod_id == world.new
        first = next(one for one in world.publications if one.pod_id == world.new and one.agent_id == world.agent_id)
        assert (first.lease_epoch, first.environment_steps) == (
            last[-1].lease_epoch + 1,
            last[-1].environment_steps + 1,
        )
        world.check_publications()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("step", STEPS)
async def test_a_restart_of_the_orchestrator_at_any_step_ends_in_one_pod(
    world_on: Callable[[str], World], direction: str, step: str
) -> None:
    async with world_on("memory") as world:
        await world.begin(direction)
        await world.reach(step)
        await world.restart()
        assert (await world.settle()).pod_id == world.new
        world.check_publications()
        phases = await world.phases()
        assert set(phases) == {ResizePhase.DONE}
        assert (await world.mesh.kinds(world.name)).count("pod_resized") == len(phases)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("party", ["old", "new"])
@pytest.mark.parametrize("step", ["preparing", "ready", "claimed"])
async def test_a_pod_that_hangs_and_wakes_up_later_cannot_publish(
    world_on: Callable[[str], World], direction: str, party: str, step: str
) -> None:
    async with world_on("memory") as world:
        # Its process is still there, whatever the orchestrator does.
        world.platform.launcher.stubborn = True
        await world.begin(direction)
        await world.reach(step)
        hung = world.all_pods[getattr(world, party)]
        hung.acts = False
        holder = await world.settle()
        held = hung.assignment is not None
        if held:
            with pytest.raises(FailedPrecondition):
                hung.publish()
        assert holder is not hung
        assert held == ((party == "new" and step == "claimed") or (party == "old" and step != "claimed"))
        world.check_publications()

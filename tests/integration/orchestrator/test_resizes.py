"""An agent changes to a pod of another size: every step, and a loss of each party at every step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from orchestrator.decisions import pool_size
from orchestrator.decisions.pool_size import Action, PoolShort
from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.pool.pool_rules import PoolRules
from orchestrator.state import records
from orchestrator.state.records import PodPhase
from podrace.errors import FailedPrecondition, Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import Incumbent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, ObjectiveSpec, PodSpec

RUN_SECONDS = 100.0
ENDLESS = ObjectiveSpec(environment_steps=1_000_000_000)
GROWING = PodSpec(cores=1.0, maximum_cores=2.0, improving_share=1.0)
WITHOUT_FOUNDER = EvolutionSpec(founder_share=0.0)
"""With a share for the founder, its pod begins with the cores of an incumbent that improves."""
FUSED, SEPARATE = tournament_pb2.LAYOUT_FUSED, tournament_pb2.LAYOUT_SEPARATE


class Race:
    """A tournament on two cores whose incumbent is agent 0, in pod 0; agent 1 is in pod 1."""

    def __init__(self, mesh: Any, name: str) -> None:
        self.mesh, self.name, self.scores = mesh, name, 6

    def pod(self, number: int) -> str:
        return f"{self.name}-p{number}"

    async def promise(self, *, improving: bool, agent: int = 0) -> None:
        """Lets the leaderboard report the incumbent after four more scores, and runs cycles."""
        self.scores += 4
        self.mesh.leaderboard.incumbent = Incumbent(
            agent_id=f"{self.name}-a{agent}", improving=improving, scores=self.scores, reason="set by the test"
        )
        for _ in range(2):
            await self.mesh.cycle(1.0)

    def layouts(self) -> dict[str, tuple[float, int]]:
        return {pod.pod_id: (pod.cores, pod.layout) for pod in self.mesh.runtime.cache.pods.values()}

    async def acquire(self, number: int, prepared: str = "") -> pb.AcquireAssignmentResponse:
        request = pb.AcquireAssignmentRequest(pod_id=self.pod(number), incarnation="run", prepared_agent_id=prepared)
        answer: pb.AcquireAssignmentResponse = await self.mesh.call("AcquireAssignment", request)
        return answer

    async def prepared(self, number: int) -> pb.Assignment:
        """A new pod asks for work, and reports that it is ready for the agent in the answer."""
        answer = await self.acquire(number)
        assert answer.WhichOneof("answer") == "prepare", answer
        ready = await self.acquire(number, answer.prepare.train.agent_id)
        assert ready.WhichOneof("answer") == "retry_after", "the old pod still trains"
        return answer.prepare

    async def leave(self, number: int, assignment: pb.Assignment | None = None, **progress: Any) -> None:
        """A pod gives its agent back, if it has one, and exits."""
        if assignment:
            await self.mesh.complete(assignment, pb.OUTCOME_DRAINED, progress=pb.Progress(**progress))
        self.kill(number)
        await self.mesh.cycle()

    def kill(self, number: int) -> None:
        self.mesh.launcher.pods.pop(self.pod(number))


@pytest.fixture
async def race(mesh: Any, spec: Callable[..., Any]) -> Race:
    name = await mesh.create(spec(pod=GROWING, objective=ENDLESS, evolution=WITHOUT_FOUNDER))
    await mesh.cycle()
    mesh.runtime.running_time.add([name], RUN_SECONDS)
    return Race(mesh, name)


async def grow(race: Race) -> tuple[pb.Assignment, pb.Assignment]:
    """Begins to replace pod 0 by pod 2, which has both cores; returns the assignments of pods 0 and 1."""
    works = await race.mesh.assigned(race.pod(0)), await race.mesh.assigned(race.pod(1))
    await race.promise(improving=True)
    assert race.layouts()[race.pod(2)] == (2.0, SEPARATE)
    return works


async def grown(race: Race) -> pb.Assignment:
    """Completes such a change; returns the assignment of the new pod."""
    first, second = await grow(race)
    await race.leave(1, second)
    await race.prepared(2)
    await race.leave(0, first, environment_steps=700, update_age_seconds=0.2)
    return (await race.acquire(2, first.train.agent_id)).assignment


async def test_two_fused_pods_become_one_separate_pod_of_two_cores_and_two_again(race: Race) -> None:
    mesh = race.mesh
    first, second = await grow(race)
    assert (await mesh.renew(second)).directive == pb.DIRECTIVE_DRAIN, "its core goes to the new pod"
    assert (await mesh.renew(first)).directive == pb.DIRECTIVE_CONTINUE, "it trains until the new pod is ready"
    await race.leave(1, second)
    prepare = await race.prepared(2)
    assert prepare.train.agent_id == first.train.agent_id
    assert (prepare.assignment_id, prepare.lease_epoch, prepare.lease_token) == ("", 0, "")
    assert (await mesh.renew(first)).directive == pb.DIRECTIVE_DRAIN
    await race.leave(0, first, environment_steps=700, update_age_seconds=0.2)
    third = (await race.acquire(2, first.train.agent_id)).assignment
    assert (third.train.agent_id, third.lease_epoch) == (first.train.agent_id, 2)
    assert race.layouts() == {race.pod(2): (2.0, SEPARATE)}

    await race.promise(improving=False)
    assert race.layouts() == {race.pod(2): (2.0, SEPARATE), race.pod(3): (1.0, FUSED)}
    await race.prepared(3)
    await mesh.cycle(1.0)
    assert len(race.layouts()) == 2, "a further pod starts when the cores are free"
    await race.leave(2, third)
    fourth = (await race.acquire(3)).assignment
    assert (fourth.train.agent_id, fourth.lease_epoch) == (first.train.agent_id, 3)
    assert race.layouts() == {race.pod(3): (1.0, FUSED), race.pod(4): (1.0, FUSED)}
    assert (await mesh.kinds(race.name)).count("pod_resize_begun") == 2


async def test_the_gap_is_measured_by_ages_and_reported(race: Race) -> None:
    third = await grown(race)
    race.mesh.clock.now += 1.5
    await race.mesh.renew(third, environment_steps=700)
    await race.mesh.renew(third, environment_steps=900, training_age_seconds=0.9)
    await race.mesh.renew(third, environment_steps=900, training_age_seconds=0.9)
    (event,) = [event for event in await race.mesh.events(race.name) if event.kind == "pod_resized"]
    # The last update was 0.2 s before the pod before gave the agent back, the first rollout began 0.6 s after that.
    assert event.message.endswith("nothing was trained for 0.80 s")
    assert (event.pod_id, event.agent_id) == (race.pod(2), third.train.agent_id)


async def test_a_resize_is_also_reported_if_the_gap_is_not_known(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    await race.prepared(2)
    # It had not updated the agent yet, so there is no age of the last update.
    await race.leave(0, first)
    third = (await race.acquire(2, first.train.agent_id)).assignment
    for _ in range(2):
        await race.mesh.renew(third, environment_steps=900, training_age_seconds=0.9)
    (event,) = [event for event in await race.mesh.events(race.name) if event.kind == "pod_resized"]
    assert event.message.endswith("nothing was trained for an unknown time")


async def test_a_resize_is_reported_with_the_next_agent_if_the_new_pod_never_trains_the_first(race: Race) -> None:
    third = await grown(race)
    await race.mesh.complete(third, pb.OUTCOME_AGENT_FAILED)
    following = (await race.acquire(2)).assignment
    assert following.train.agent_id != third.train.agent_id
    await race.mesh.renew(following, environment_steps=100, training_age_seconds=0.9)
    (event,) = [event for event in await race.mesh.events(race.name) if event.kind == "pod_resized"]
    assert event.message.endswith(f"{third.train.agent_id} ended before, or another pod has it")


async def test_no_other_pod_gets_the_agent_while_it_changes_pods(race: Race) -> None:
    first, second = await grow(race)
    await race.prepared(2)
    await race.mesh.complete(first, pb.OUTCOME_DRAINED)
    for number in (0, 1):
        answer = await race.acquire(number)
        assert answer.assignment.train.agent_id != first.train.agent_id
    assert (await race.acquire(2)).assignment.train.agent_id == first.train.agent_id
    with pytest.raises(FailedPrecondition):
        await race.mesh.renew(first)
    assert second.lease_epoch == 1


async def test_if_the_new_pod_dies_before_it_is_ready_the_old_one_continues(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    await race.leave(2)
    await race.mesh.cycle(1.0)
    assert (await race.mesh.renew(first)).directive == pb.DIRECTIVE_CONTINUE
    assert "pod_resize_abandoned" in await race.mesh.kinds(race.name)
    await race.mesh.cycle(2.0)
    assert race.layouts() == {race.pod(0): (1.0, FUSED), race.pod(3): (1.0, FUSED)}


async def test_if_the_new_pod_dies_when_it_is_ready_another_one_gets_the_agent(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    await race.prepared(2)
    race.kill(2)
    await race.leave(0, first)
    await race.mesh.cycle(2.0)
    assert race.layouts() == {race.pod(3): (1.0, FUSED), race.pod(4): (1.0, FUSED)}
    taken = await race.mesh.assigned(race.pod(3))
    assert (taken.train.agent_id, taken.lease_epoch) == (first.train.agent_id, 2)


async def test_a_new_pod_that_dies_between_two_lists_does_not_keep_the_agent(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    new = replace(race.mesh.runtime.cache.pods[race.pod(2)], phase=PodPhase.INTENDED)
    await race.mesh.state.transact(records.save, new)
    await race.prepared(2)
    race.kill(2)
    await race.leave(0, first)
    assert race.pod(2) not in race.layouts()


async def test_if_the_old_pod_dies_before_the_new_one_is_ready_the_agent_is_not_lost(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    await race.leave(0)
    # Its last checkpoint counts, and the new pod is the only one.
    await race.acquire(2, first.train.agent_id)
    taken = (await race.acquire(2, first.train.agent_id)).assignment
    assert (taken.train.agent_id, taken.lease_epoch) == (first.train.agent_id, 2)


async def test_if_the_old_pod_dies_while_it_publishes_the_new_one_gets_the_agent(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    await race.prepared(2)
    await race.leave(0)
    taken = (await race.acquire(2)).assignment
    assert (taken.train.agent_id, taken.lease_epoch) == (first.train.agent_id, 2)


async def test_an_old_pod_that_is_only_silent_loses_the_agent_to_the_new_one_by_the_epoch(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    await race.prepared(2)
    race.mesh.clock.now += 11.0
    await race.mesh.cycle()
    taken = (await race.acquire(2)).assignment
    assert (taken.train.agent_id, taken.lease_epoch) == (first.train.agent_id, 2)
    with pytest.raises(FailedPrecondition):
        await race.mesh.complete(first, pb.OUTCOME_DRAINED)


async def test_if_the_new_pod_dies_after_it_took_over_the_agent_goes_to_the_next(race: Race) -> None:
    third = await grown(race)
    await race.leave(2)
    await race.mesh.cycle(2.0)
    assert race.layouts() == {race.pod(3): (1.0, FUSED), race.pod(4): (1.0, FUSED)}
    taken = await race.mesh.assigned(race.pod(3))
    assert (taken.train.agent_id, taken.lease_epoch) == (third.train.agent_id, 3)


@pytest.mark.parametrize("lost", ["new", "old"])
@pytest.mark.parametrize("step", ["warming", "ready", "taken"])
async def test_a_loss_while_a_pod_shrinks_loses_no_agent(race: Race, step: str, lost: str) -> None:
    third, mesh = await grown(race), race.mesh
    await race.promise(improving=False)
    assert race.layouts()[race.pod(3)] == (1.0, FUSED)
    if step != "warming":
        await race.prepared(3)
    if step == "taken":
        await race.mesh.complete(third, pb.OUTCOME_DRAINED)
        assert (await race.acquire(3)).assignment.lease_epoch == 3
    await race.leave(3 if lost == "new" else 2)
    if lost == "new" and step != "taken":
        directive = (await mesh.renew(third)).directive
        assert directive == (pb.DIRECTIVE_CONTINUE if step == "warming" else pb.DIRECTIVE_DRAIN)
        if step == "warming":
            return
    if lost == "new":
        race.kill(2)
        await mesh.cycle(2.0)
        await mesh.cycle(2.0)
        taken = await mesh.assigned(race.pod(4))
    elif step == "taken":
        # It had given the agent back.
        return
    else:
        await race.acquire(3, third.train.agent_id)
        taken = (await race.acquire(3, third.train.agent_id)).assignment
    assert (taken.train.agent_id, taken.lease_epoch) == (third.train.agent_id, 4 if step == "taken" else 3)


async def test_the_new_pod_continues_an_incumbent_that_ends_during_the_change(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    await race.prepared(2)
    race.mesh.leaderboard.continued_trial = 0
    await race.mesh.complete(first, pb.OUTCOME_FINISHED)
    race.kill(0)
    await race.mesh.cycle()
    assert (await race.acquire(2)).assignment.train.agent_id == f"{race.name}-a2"
    assert race.mesh.runtime.cache.works[f"{race.name}-a2"].trial == 0
    events = [event.message for event in await race.mesh.events(race.name) if event.kind == "pod_resized"]
    assert events == [
        f"{race.pod(2)} with 2 cores replaces {race.pod(0)}; {race.name}-a0 ended before, or another pod has it"
    ]


async def test_a_new_pod_that_is_not_ready_in_time_stops_and_the_old_one_continues(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    for _ in range(125):
        await race.mesh.renew(first)
        assert (await race.acquire(2)).WhichOneof("answer") in ("prepare", "drain")
        await race.mesh.cycle(1.0)
    assert (await race.acquire(2)).WhichOneof("answer") == "drain"
    assert (await race.mesh.renew(first)).directive == pb.DIRECTIVE_CONTINUE


async def test_a_new_pod_that_cannot_be_started_changes_nothing(race: Race) -> None:
    first, second = await race.mesh.assigned(race.pod(0)), await race.mesh.assigned(race.pod(1))
    race.mesh.launcher.refusal = Unavailable("no process could be forked")
    await race.promise(improving=True)
    race.mesh.launcher.refusal = None
    assert "pod_resize_abandoned" in await race.mesh.kinds(race.name)
    assert (await race.mesh.renew(first)).directive == pb.DIRECTIVE_CONTINUE
    await race.leave(1, second)
    await race.mesh.cycle(2.0)
    assert len(race.layouts()) == 2


@pytest.mark.parametrize("ready", [False, True])
async def test_a_restarted_orchestrator_continues_the_change(
    open_mesh: Callable[..., Any], spec: Callable[..., Any], *, ready: bool
) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec(pod=GROWING, evolution=WITHOUT_FOUNDER))
        await mesh.cycle()
        mesh.runtime.running_time.add([name], RUN_SECONDS)
        race = Race(mesh, name)
        first, second = await grow(race)
        await race.leave(1, second)
        if ready:
            await race.prepared(2)
        launcher = mesh.launcher
    async with open_mesh(launcher=launcher) as mesh:
        race.mesh = mesh
        await mesh.cycle()
        if not ready:
            await race.prepared(2)
        assert (await mesh.renew(first)).directive == pb.DIRECTIVE_DRAIN
        await race.leave(0, first)
        taken = (await race.acquire(2)).assignment
        assert (taken.train.agent_id, taken.lease_epoch) == (first.train.agent_id, 2)


async def test_a_pod_that_does_not_know_the_answer_leaves_everything_as_it_is(race: Race) -> None:
    first, _ = await grow(race)
    for _ in range(5):
        assert (await race.mesh.acquire(race.pod(2))).WhichOneof("answer") == "prepare"
        await race.mesh.cycle(1.0)
    assert (await race.mesh.renew(first)).directive == pb.DIRECTIVE_CONTINUE


async def test_a_tournament_that_ends_during_the_change_drains_both_pods(race: Race) -> None:
    first, _ = await grow(race)
    await race.mesh.cancel(race.name)
    assert (await race.mesh.renew(first)).directive == pb.DIRECTIVE_DRAIN
    assert (await race.acquire(2)).WhichOneof("answer") == "drain"


async def test_without_the_setting_the_promise_changes_nothing(mesh: Any, spec: Callable[..., Any]) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    mesh.runtime.running_time.add([name], RUN_SECONDS)
    race = Race(mesh, name)
    await mesh.assigned(race.pod(0))
    await race.promise(improving=True)
    assert race.layouts() == {race.pod(0): (1.0, FUSED), race.pod(1): (1.0, FUSED)}


# --- the incumbent stays in the grown pod -----------------------------------------------------------------------


@dataclass
class Field:
    """A tournament on eight cores; agent 0 leads, and its pod 8 has the cores of pods that stopped for it."""

    race: Race
    grown: pb.Assignment
    """The incumbent, in pod 8."""

    async def finish(self) -> None:
        """The incumbent's assignment ends, so the next new agent continues it."""
        self.race.mesh.leaderboard.continued_trial = 0
        await self.race.mesh.complete(self.grown, pb.OUTCOME_FINISHED)
        await self.race.mesh.cycle()


@pytest.fixture
async def field(mesh: Any, spec: Callable[..., Any]) -> Field:
    mesh.capacity.append(Capacity(Resources(8.0, 64 << 30, 0), 64 << 30))
    pod = PodSpec(cores=1.0, maximum_cores=6.0, improving_share=0.75)
    name = await mesh.create(spec(pod=pod, objective=ENDLESS, evolution=WITHOUT_FOUNDER))
    await mesh.cycle()
    mesh.runtime.running_time.add([name], RUN_SECONDS)
    race = Race(mesh, name)
    works = {race.pod(number): await mesh.assigned(race.pod(number)) for number in range(8)}
    await race.promise(improving=True)
    assert race.layouts()[race.pod(8)] == (6.0, SEPARATE)
    for number in range(1, 8):
        if (await mesh.renew(works[race.pod(number)])).directive == pb.DIRECTIVE_DRAIN:
            await race.leave(number, works[race.pod(number)])
    await race.prepared(8)
    await race.leave(0, works[race.pod(0)])
    return Field(race, (await race.acquire(8)).assignment)


async def test_the_grown_pod_continues_the_incumbent_before_the_challengers_that_stopped_for_it(field: Field) -> None:
    race = field.race
    assert field.grown.train.agent_id == f"{race.name}-a0"
    await field.finish()
    assert (await race.mesh.assigned(race.pod(8))).train.agent_id == f"{race.name}-a8"
    record = race.mesh.runtime.cache.works[f"{race.name}-a8"]
    assert record.trial == 0


async def test_small_pods_leave_the_incumbent_to_the_grown_pod(field: Field) -> None:
    race = field.race
    await field.finish()
    small = [race.pod(number) for number in (6, 7)]
    for pod in small:
        held = await race.mesh.assigned(pod)
        await race.mesh.complete(held, pb.OUTCOME_FINISHED)
        taken = (await race.mesh.assigned(pod)).train.agent_id
        assert taken in {f"{race.name}-a{number}" for number in range(1, 6)}, "a challenger that waited"
    assert (await race.mesh.assigned(race.pod(8))).train.agent_id == f"{race.name}-a8"


async def test_without_a_waiting_challenger_a_small_pod_waits_until_the_grown_one_has_the_incumbent(
    field: Field,
) -> None:
    race, mesh = field.race, field.race.mesh
    for _ in range(5):
        await mesh.complete(await mesh.assigned(race.pod(6)), pb.OUTCOME_FINISHED)
    last = await mesh.assigned(race.pod(6))
    await field.finish()
    await mesh.complete(last, pb.OUTCOME_FINISHED)
    assert (await mesh.acquire(race.pod(6))).WhichOneof("answer") == "retry_after"
    assert (await mesh.assigned(race.pod(8))).train.agent_id == f"{race.name}-a8"
    mesh.leaderboard.continued_trial = None
    assert (await mesh.assigned(race.pod(6))).train.agent_id == f"{race.name}-a9"


async def test_an_agent_of_the_incumbent_that_was_given_back_comes_before_other_free_agents(field: Field) -> None:
    race = field.race
    race.kill(8)
    for _ in range(2):
        await race.mesh.cycle(2.0)
    started = [pod for pod in race.layouts() if pod not in (race.pod(6), race.pod(7))]
    assert (await race.mesh.assigned(started[0])).train.agent_id == f"{race.name}-a0"
    assert (await race.mesh.assigned(started[1])).train.agent_id == f"{race.name}-a1"


async def test_agents_that_wait_come_first_if_the_incumbent_cannot_continue(field: Field) -> None:
    race = field.race
    await race.mesh.complete(field.grown, pb.OUTCOME_AGENT_FAILED, message="loss is NaN")
    assert (await race.mesh.assigned(race.pod(8))).train.agent_id == f"{race.name}-a1"


async def test_the_new_pod_prepares_again_if_the_incumbent_has_the_next_agent_by_now(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    assert (await race.acquire(2)).prepare.train.agent_id == first.train.agent_id
    race.mesh.leaderboard.continued_trial = 0
    await race.mesh.complete(first, pb.OUTCOME_FINISHED)
    following = await race.mesh.assigned(race.pod(0))
    again = await race.acquire(2, first.train.agent_id)
    assert again.prepare.train.agent_id == following.train.agent_id == f"{race.name}-a2"
    assert (await race.acquire(2, following.train.agent_id)).WhichOneof("answer") == "retry_after"
    assert (await race.mesh.renew(following)).directive == pb.DIRECTIVE_DRAIN


async def test_a_growth_is_abandoned_if_the_old_pod_trains_another_trial_by_now(race: Race) -> None:
    first, second = await grow(race)
    await race.leave(1, second)
    await race.acquire(2)
    await race.mesh.complete(first, pb.OUTCOME_FINISHED)
    other = await race.mesh.assigned(race.pod(0))
    assert race.mesh.runtime.cache.works[other.train.agent_id].trial == 2
    assert (await race.acquire(2, first.train.agent_id)).WhichOneof("answer") == "drain"
    assert (await race.mesh.renew(other)).directive == pb.DIRECTIVE_CONTINUE
    (event,) = [event for event in await race.mesh.events(race.name) if event.kind == "pod_resize_abandoned"]
    assert f"trains {race.name}-a2 by now" in event.message


async def test_a_tournament_that_lacks_pods_does_not_keep_others_from_growing(race: Race) -> None:
    def decide(*observed: Any) -> tuple[list[pool_size.Action], str]:
        actions, line = pool_size.decide(*observed)
        return [*actions, PoolShort("race-other", "a pod needs 1 GPUs, 0 are free")], line

    race.mesh.reconciler._rules = PoolRules(decide=decide)
    await grow(race)


async def test_a_grown_pod_is_replaced_by_a_smaller_one_if_the_share_of_its_tournament_falls(
    field: Field, spec: Callable[..., Any]
) -> None:
    race, mesh = field.race, field.race.mesh
    other = await mesh.create(spec(pod=PodSpec(cores=1.0), objective=ENDLESS))
    await mesh.cycle()
    assert race.layouts()[race.pod(9)] == (3.0, SEPARATE), "0.75 of four cores"
    assert (await mesh.renew(field.grown)).directive == pb.DIRECTIVE_CONTINUE
    await race.leave(7)
    await race.prepared(9)
    await race.leave(8, field.grown)
    taken = (await race.acquire(9)).assignment
    assert (taken.train.agent_id, taken.lease_epoch) == (field.grown.train.agent_id, 3)
    await mesh.cycle(1.0)
    own = {pod: cores for pod, (cores, _) in race.layouts().items() if pod.startswith(race.name)}
    assert own == {race.pod(6): 1.0, race.pod(9): 3.0}
    assert len(await mesh.pods(other)) == 4


async def test_a_smaller_pod_that_is_recorded_starts_even_if_another_action_fails(
    field: Field, spec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    race, mesh = field.race, field.race.mesh
    await mesh.create(spec(pod=PodSpec(cores=1.0), objective=ENDLESS))

    async def fail(action: Action) -> None:
        raise Unavailable(f"{action} failed")

    with monkeypatch.context() as patch:
        patch.setattr(mesh.reconciler, "_act", fail)
        with pytest.raises(Unavailable, match="failed"):
            await mesh.cycle()
    await mesh.cycle()
    assert race.pod(9) in mesh.launcher.pods

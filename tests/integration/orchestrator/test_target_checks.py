"""Tests that `target_return` is met only by a score on new episodes."""

from typing import Any

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.seeding import purpose_seed
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec, ObjectiveSpec

RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING
COMPLETED = tournament_pb2.TOURNAMENT_STATE_COMPLETED


@pytest.fixture
def target_spec(spec: Any) -> Any:
    """A tournament of one pod that ends when its target of 475 is reached."""

    def make(**fields: Any) -> Any:
        values = {"objective": ObjectiveSpec(target_return=475.0), "maximum_pods": 1, "seed": 5} | fields
        made = spec(**values)
        made.evaluation.episodes = 32
        return made

    return make


async def started(mesh: Any, spec: Any) -> tuple[str, pb.Assignment]:
    """Creates a tournament whose pod trains an agent."""
    name = await mesh.create(spec)
    await mesh.cycle()
    return name, await mesh.assigned(f"{name}-p0")


async def checked(mesh: Any, pod_id: str, score: float, seconds: float = 1.0, fault: str = "") -> pb.EvaluationWork:
    """Lets a pod play the check that is queued, with this score; returns what it had to evaluate."""
    work = await mesh.assigned(pod_id)
    assert work.WhichOneof("work") == "evaluate"
    result = Evaluation(mean_return=score, variance=128.0, episodes=work.evaluate.episodes, wall_seconds=seconds)
    result.evaluator_fault = fault
    await mesh.complete(work, evaluation=result)
    await mesh.cycle()
    return work.evaluate


async def reasons(mesh: Any, name: str) -> list[str]:
    return [event.message for event in await mesh.events(name) if event.kind == "target_not_confirmed"]


async def test_a_tournament_ends_when_its_leader_reaches_the_target_on_new_episodes(
    mesh: Any, target_spec: Any
) -> None:
    name, work = await started(mesh, target_spec(evaluation=EvaluationSpec(greedy=False)))
    mesh.leaderboard.score(name, 480.0)
    await mesh.cycle()
    assert (await mesh.get(name)).state == RUNNING, "the score on the board is not enough"
    await mesh.complete(work)
    check = await checked(mesh, f"{name}-p0", 478.0)
    assert (check.checkpoint.manifest_digest, check.episodes) == ("digest-of-480", 32)
    assert (check.seed, check.stochastic) == (purpose_seed(5, "target", 0), True)
    ended = await mesh.get(name)
    assert ended.state == COMPLETED
    assert ended.reason == "target return: a0 scores 478 ± 2 on 32 new episodes, the target is 475"
    assert await reasons(mesh, name) == []


async def test_a_leader_that_was_lucky_does_not_end_the_tournament_and_an_event_says_why(
    mesh: Any, target_spec: Any
) -> None:
    name, work = await started(mesh, target_spec())
    mesh.leaderboard.score(name, 480.0)
    await mesh.cycle()
    await mesh.complete(work)
    await checked(mesh, f"{name}-p0", 470.0)
    assert (await mesh.get(name)).state == RUNNING
    assert await reasons(mesh, name) == [
        "a0 scores 470 ± 2 on 32 new episodes, the target is 475; the tournament continues"
    ]
    await mesh.cycle(1000.0)
    assert (await mesh.kinds(name)).count("evaluation_created") == 1, "one check for each candidate"
    assert (await mesh.assigned(f"{name}-p0")).train.number == 1


async def test_the_next_candidate_that_reaches_the_target_is_checked_on_other_episodes(
    mesh: Any, target_spec: Any
) -> None:
    name, work = await started(mesh, target_spec())
    mesh.leaderboard.score(name, 480.0)
    mesh.leaderboard.others = [Candidate(candidate_id="second", agent_id=f"{name}-a1", score=476.0)]
    await mesh.cycle()
    await mesh.complete(work)
    await checked(mesh, f"{name}-p0", 470.0)
    await mesh.cycle(1000.0)
    check = await checked(mesh, f"{name}-p0", 477.0)
    assert (check.checkpoint.manifest_digest, check.seed) == ("second", purpose_seed(5, "target", 1))
    assert (await mesh.get(name)).reason.startswith("target return: a1 scores 477")


async def test_checks_keep_to_the_share_of_evaluations(mesh: Any, target_spec: Any) -> None:
    name, work = await started(mesh, target_spec(evaluation=EvaluationSpec(share=0.1)))
    mesh.leaderboard.score(name, 480.0)
    await mesh.cycle()
    await mesh.complete(work)
    await checked(mesh, f"{name}-p0", 470.0, seconds=5.0)
    mesh.leaderboard.score(name, 481.0)
    await mesh.cycle(99.0)
    assert (await mesh.kinds(name)).count("evaluation_created") == 1
    await mesh.cycle(1.0)
    assert (await mesh.kinds(name)).count("evaluation_created") == 2, "10 s of 100 s"


async def test_a_pod_gives_its_agent_back_if_all_have_been_busy_for_a_while(mesh: Any, target_spec: Any) -> None:
    name, work = await started(mesh, target_spec())
    mesh.leaderboard.score(name, 480.0)
    await mesh.cycle()
    await mesh.cycle(2.9)
    assert (await mesh.renew(work)).directive == pb.DIRECTIVE_CONTINUE
    await mesh.cycle(0.1)
    renewed = await mesh.renew(work)
    assert renewed.directive == pb.DIRECTIVE_YIELD
    assert renewed.reason == f"{name}-e0, which checks the target return, is more urgent"
    await mesh.complete(work, pb.OUTCOME_DRAINED, message=renewed.reason)
    await checked(mesh, f"{name}-p0", 470.0)
    resumed = await mesh.assigned(f"{name}-p0")
    assert (resumed.train.number, resumed.lease_epoch) == (0, 2)
    await mesh.cycle(60.0)
    assert (await mesh.renew(resumed)).directive == pb.DIRECTIVE_CONTINUE
    assert "pod_draining" not in await mesh.kinds(name)


async def test_only_the_agent_with_the_lowest_score_is_interrupted(mesh: Any, target_spec: Any) -> None:
    name = await mesh.create(target_spec(maximum_pods=2))
    await mesh.cycle()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    for work, score in zip(works, (480.0, 300.0), strict=True):
        await mesh.renew(work, score=score)
    mesh.leaderboard.score(name, 480.0)
    await mesh.cycle()
    await mesh.cycle(3.0)
    directives = [(await mesh.renew(work, score=1.0)).directive for work in works]
    assert directives == [pb.DIRECTIVE_CONTINUE, pb.DIRECTIVE_YIELD]


async def test_a_pod_that_becomes_free_in_time_takes_the_check(mesh: Any, target_spec: Any) -> None:
    name = await mesh.create(target_spec(maximum_pods=2))
    await mesh.cycle()
    first, second = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    mesh.leaderboard.score(name, 480.0)
    await mesh.cycle()
    await mesh.complete(first)
    evaluating = await mesh.assigned(f"{name}-p0")
    await mesh.cycle(5.0)
    assert (await mesh.renew(evaluating)).directive == pb.DIRECTIVE_CONTINUE
    assert (await mesh.renew(second)).directive == pb.DIRECTIVE_CONTINUE


async def test_a_check_that_failed_says_why_and_is_not_repeated(mesh: Any, target_spec: Any) -> None:
    name, work = await started(mesh, target_spec())
    mesh.leaderboard.score(name, 480.0)
    await mesh.cycle()
    await mesh.complete(work)
    await mesh.complete(await mesh.assigned(f"{name}-p0"), pb.OUTCOME_AGENT_FAILED, message="the files are gone")
    await mesh.cycle(1000.0)
    assert await reasons(mesh, name) == [
        "a0 could not be evaluated on new episodes, the target is 475 (the files are gone); the tournament continues"
    ]
    assert (await mesh.kinds(name)).count("evaluation_created") == 1


async def test_a_check_by_the_built_in_evaluator_in_place_of_a_plugin_does_not_count(
    mesh: Any, target_spec: Any
) -> None:
    name, work = await started(mesh, target_spec())
    mesh.leaderboard.score(name, 480.0)
    await mesh.cycle()
    await mesh.complete(work)
    await checked(mesh, f"{name}-p0", 500.0, fault="it hung")
    assert (await mesh.get(name)).state == RUNNING
    assert "(the evaluator plugin failed: it hung)" in (await reasons(mesh, name))[0]
    await mesh.cycle(1000.0)
    await checked(mesh, f"{name}-p0", 500.0)
    assert (await mesh.get(name)).state == COMPLETED


async def test_a_lower_target_is_met_by_an_earlier_check(mesh: Any, target_spec: Any) -> None:
    name, work = await started(mesh, target_spec())
    mesh.leaderboard.score(name, 480.0)
    await mesh.cycle()
    await mesh.complete(work)
    await checked(mesh, f"{name}-p0", 470.0)
    request = pb.UpdateTournamentRequest(
        request_id="lower", tournament_id=name, objective=ObjectiveSpec(target_return=465.0)
    )
    await mesh.call("UpdateTournament", request)
    await mesh.cycle()
    assert (await mesh.get(name)).reason == "target return: a0 scores 470 ± 2 on 32 new episodes, the target is 465"


async def test_a_check_is_withdrawn_when_its_tournament_ends_and_made_again_after_a_resumption(
    mesh: Any, target_spec: Any
) -> None:
    name, work = await started(mesh, target_spec())
    mesh.leaderboard.score(name, 480.0)
    await mesh.cycle()
    await mesh.cancel(name)
    assert (await mesh.evaluation(f"{name}-e0")).error == "withdrawn, because the tournament no longer needs it"
    assert await reasons(mesh, name) == []
    await mesh.complete(work, pb.OUTCOME_DRAINED)
    mesh.launcher.pods.clear()
    await mesh.cycle()
    await mesh.resume(name)
    await mesh.cycle()
    await mesh.cycle()
    check = await checked(mesh, f"{name}-p1", 480.0)
    assert check.seed == purpose_seed(5, "target", 1)
    assert (await mesh.get(name)).state == COMPLETED


async def test_a_withdrawn_check_of_a_synchronous_tournament_is_made_before_the_next_round(
    mesh: Any, target_spec: Any
) -> None:
    name, work = await started(mesh, target_spec(synchronous=True))
    mesh.leaderboard.score(name, 480.0)
    await mesh.complete(work)
    await mesh.cycle()
    await mesh.cancel(name)
    mesh.launcher.pods.clear()
    await mesh.cycle()
    await mesh.resume(name)
    await mesh.cycle()
    await mesh.cycle()
    await checked(mesh, f"{name}-p1", 480.0)
    assert (await mesh.get(name)).state == COMPLETED


async def test_checks_survive_a_restart(open_mesh: Any, target_spec: Any) -> None:
    async with open_mesh() as mesh:
        name, work = await started(mesh, target_spec())
        mesh.leaderboard.score(name, 480.0)
        await mesh.cycle()
        await mesh.complete(work)
        await checked(mesh, f"{name}-p0", 470.0)
    async with open_mesh() as mesh:
        mesh.leaderboard.score(name, 480.0)
        await mesh.cycle()
        await mesh.cycle(1000.0)
        assert (await mesh.kinds(name)).count("evaluation_created") == 1
        mesh.leaderboard.score(name, 482.0)
        await mesh.cycle()
        (pod,) = await mesh.pods(name)
        assert (await checked(mesh, pod.pod_id, 480.0)).seed == purpose_seed(5, "target", 1)
        assert (await mesh.get(name)).state == COMPLETED


async def test_a_synchronous_round_waits_for_the_check_whatever_its_time(mesh: Any, target_spec: Any) -> None:
    name = await mesh.create(target_spec(synchronous=True, maximum_pods=2, evaluation=EvaluationSpec(share=0.0)))
    await mesh.cycle()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    mesh.leaderboard.score(name, 480.0)
    mesh.leaderboard.others = [Candidate(candidate_id="second", agent_id=f"{name}-a1", score=476.0)]
    await mesh.complete(works[0])
    await mesh.cycle()
    assert (await mesh.kinds(name)).count("evaluation_created") == 0, "nothing is checked during a round"
    await mesh.complete(works[1])
    await mesh.cycle()
    assert (await mesh.acquire(f"{name}-p1", "other")).WhichOneof("answer") == "assignment"
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "retry_after", "the round waits"
    evaluating = await mesh.assigned(f"{name}-p1", "other")
    result = Evaluation(mean_return=470.0, episodes=32, wall_seconds=1000.0)
    await mesh.complete(evaluating, evaluation=result)
    await mesh.cycle()
    again = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    assert [work.train.number for work in again] == [2, 3], "one check for each round"
    for work in again:
        await mesh.complete(work)
    await mesh.cycle()
    assert (await checked(mesh, f"{name}-p0", 475.0)).checkpoint.manifest_digest == "second"
    assert (await mesh.get(name)).state == COMPLETED

"""Tests that a candidate that would lead is played by a pod that did not train it (`evaluation.verify`)."""

from typing import Any

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, Verification
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_COMPLETED, ChampionSpec, EvaluationSpec, ObjectiveSpec

DIGEST = "ab" * 32
VERIFY = EvaluationSpec(verify=8, episodes=16)


def want(mesh: Any, agent_id: str) -> None:
    candidate = Candidate(candidate_id=DIGEST, agent_id=agent_id, score=200.0)
    mesh.leaderboard.verification = Verification(candidate=candidate, episodes=8, seed=5, lanes=8)


async def two_pods(mesh: Any, spec: Any, **fields: Any) -> tuple[str, pb.Assignment, pb.Assignment]:
    """A tournament with two pods, each of which trains an agent."""
    name = await mesh.create(spec(minimum_pods=2, maximum_pods=2, evaluation=VERIFY, **fields))
    await mesh.cycle()
    return name, await mesh.assigned(f"{name}-p0"), await mesh.assigned(f"{name}-p1")


async def test_another_pod_than_the_one_that_trained_the_agent_plays_its_episodes(mesh: Any, spec: Any) -> None:
    name, own, other = await two_pods(mesh, spec)
    want(mesh, own.train.agent_id)
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    await mesh.complete(own, pb.OUTCOME_DRAINED)
    assert (await mesh.assigned(f"{name}-p0")).HasField("train"), "its own pod must not play"
    await mesh.complete(other, pb.OUTCOME_DRAINED)
    work = (await mesh.assigned(f"{name}-p1")).evaluate
    assert work.checkpoint.manifest_digest == DIGEST
    assert (work.episodes, work.seed, work.lanes, work.stochastic) == (8, 5, 8, False)


async def test_the_result_goes_to_the_leaderboard_and_is_an_event(mesh: Any, spec: Any) -> None:
    name, own, other = await two_pods(mesh, spec)
    want(mesh, own.train.agent_id)
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    await mesh.complete(other)
    evaluation = await mesh.assigned(f"{name}-p1")
    await mesh.complete(evaluation, evaluation=Evaluation(mean_return=200.0, episodes=8))
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    (request,) = mesh.leaderboard.verified
    assert (request.tournament_id, request.candidate_id, request.evaluation.episodes) == (name, DIGEST, 8)
    (event,) = [event for event in await mesh.events(name) if event.kind == "candidate_verified"]
    assert (event.agent_id, event.message) == (own.train.agent_id, f"{own.train.agent_id} may lead: as measured")


async def test_an_evaluation_that_fails_is_reported_with_its_error(mesh: Any, spec: Any) -> None:
    name, own, other = await two_pods(mesh, spec)
    want(mesh, own.train.agent_id)
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    await mesh.complete(other)
    evaluation = await mesh.assigned(f"{name}-p1")
    await mesh.complete(evaluation, pb.OUTCOME_AGENT_FAILED, message="the simulator crashed")
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    (request,) = mesh.leaderboard.verified
    assert (request.HasField("evaluation"), request.error) == (False, "the simulator crashed")
    assert "candidate_verified" not in await mesh.kinds(name)


async def test_a_busy_pod_gives_its_agent_back_and_the_one_of_the_candidate_does_not(mesh: Any, spec: Any) -> None:
    _, own, other = await two_pods(mesh, spec)
    want(mesh, own.train.agent_id)
    for _ in range(3):
        await mesh.cycle(2.0)
    assert (await mesh.renew(own)).directive == pb.DIRECTIVE_CONTINUE
    answer = await mesh.renew(other)
    assert answer.directive == pb.DIRECTIVE_YIELD
    assert "verifies a candidate" in answer.reason


async def test_with_one_pod_an_event_says_what_is_missing_once(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(minimum_pods=1, evaluation=VERIFY))
    mesh.capacity[:] = [mesh.capacity[0]]
    await mesh.cycle()
    own = await mesh.assigned(f"{name}-p0")
    for pod in await mesh.pods(name):
        if pod.pod_id != f"{name}-p0":
            mesh.launcher.pods.pop(pod.pod_id, None)
    want(mesh, own.train.agent_id)
    waits: list[str] = []
    for _ in range(8):
        mesh.runtime.cache.pods = {
            pod_id: pod for pod_id, pod in mesh.runtime.cache.pods.items() if pod_id == f"{name}-p0"
        }
        await mesh.reconciler._completion_check.check_all(mesh.clock.monotonic())
        mesh.clock.now += 3.0
        waits = [event.message for event in await mesh.events(name) if event.kind == "verification_waits"]
    assert len(waits) == 1
    assert f"no other pod than {name}-p0 is running" in waits[0]


async def test_a_restarted_orchestrator_continues_with_the_same_evaluation(mesh: Any, spec: Any) -> None:
    name, own, _ = await two_pods(mesh, spec)
    want(mesh, own.train.agent_id)
    await mesh.cycle(1.0)
    mesh.reconciler._completion_check._verifications._waiting.clear()
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    kinds = await mesh.kinds(name)
    assert (kinds.count("evaluation_created"), kinds.count("candidate_held")) == (1, 1)


async def test_the_end_of_a_tournament_waits_for_the_verification_but_not_forever(mesh: Any, spec: Any) -> None:
    objective = ObjectiveSpec(environment_steps=10**7)
    name, own, other = await two_pods(mesh, spec, objective=objective)
    want(mesh, own.train.agent_id)
    await mesh.cycle(1.0)
    for work in (own, other):
        await mesh.complete(work, progress=pb.Progress(environment_steps=6 * 10**6))
    for _ in range(5):
        await mesh.cycle(1.0)
    assert (await mesh.get(name)).state != TOURNAMENT_STATE_COMPLETED
    await mesh.cycle(400.0)
    for _ in range(3):
        await mesh.cycle(1.0)
    assert (await mesh.get(name)).state == TOURNAMENT_STATE_COMPLETED


async def test_the_pod_that_trained_a_contender_does_not_select_it_as_champion(mesh: Any, spec: Any) -> None:
    name, own, other = await two_pods(
        mesh, spec, objective=ObjectiveSpec(environment_steps=10**7), champion=ChampionSpec(reevaluate_top=1)
    )
    agent_id = own.train.agent_id
    mesh.leaderboard.contenders = [Candidate(candidate_id=DIGEST, tournament_id=name, agent_id=agent_id, score=9.0)]
    mesh.leaderboard.score(name, 9.0)
    for work in (own, other):
        await mesh.complete(work, progress=pb.Progress(environment_steps=6 * 10**6))
    for _ in range(3):
        await mesh.cycle(1.0)
    assert {pod.pod_id for pod in await mesh.pods(name)} == {f"{name}-p0", f"{name}-p1"}
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "retry_after", "it trained the contender"
    work = await mesh.assigned(f"{name}-p1")
    assert work.evaluate.checkpoint.agent_id == agent_id


async def test_the_pod_that_reached_the_target_does_not_confirm_it(mesh: Any, spec: Any) -> None:
    name, own, other = await two_pods(mesh, spec, objective=ObjectiveSpec(target_return=100.0))
    mesh.leaderboard.score(name, 200.0, own.train.agent_id.rpartition("a")[2])
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    await mesh.complete(own, pb.OUTCOME_DRAINED)
    assert (await mesh.assigned(f"{name}-p0")).HasField("train")
    await mesh.complete(other, pb.OUTCOME_DRAINED)
    assert (await mesh.assigned(f"{name}-p1")).HasField("evaluate")

"""Tests the selection of the champion when a tournament ends."""

import asyncio
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import Internal, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.limits.config import EVERYTHING
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import ChampionSpec, EvaluationSpec, ObjectiveSpec

ENDING = tournament_pb2.TOURNAMENT_STATE_ENDING
COMPLETED = tournament_pb2.TOURNAMENT_STATE_COMPLETED


async def ended_with_contenders(mesh: Any, spec: Any, **fields: Any) -> str:
    """Creates a tournament with one agent that has ended, and whose two best candidates are evaluated again."""
    champion, objective = ChampionSpec(reevaluate_top=2), ObjectiveSpec(environment_steps=100)
    name = await mesh.create(spec(objective=objective, champion=champion, maximum_pods=1, **fields))
    await mesh.cycle()
    work = await mesh.assigned(f"{name}-p0")
    mesh.leaderboard.score(name, 490.0)
    await mesh.renew(work, environment_steps=100)
    mesh.leaderboard.contenders = [
        Candidate(candidate_id=f"digest-{agent}", agent_id=f"{name}-a{agent}", score=490.0 - agent)
        for agent in range(2)
    ]
    await mesh.cycle()
    await mesh.complete(work, pb.OUTCOME_DRAINED)
    mesh.launcher.pods.clear()
    await mesh.cycle()
    return name


async def evaluated(mesh: Any, name: str, score: float) -> Any:
    """Lets a pod finish the next evaluation with this score; returns what it had to evaluate."""
    (pod,) = await mesh.pods(name)
    work = await mesh.assigned(pod.pod_id)
    await mesh.complete(work, evaluation=Evaluation(mean_return=score, episodes=work.evaluate.episodes))
    await mesh.cycle()
    return work.evaluate


async def test_one_set_of_episodes_chooses_the_champion_and_another_gives_its_reported_score(
    mesh: Any, spec: Any
) -> None:
    name = await ended_with_contenders(mesh, spec)
    assert (await mesh.get(name)).state == ENDING
    works = [await evaluated(mesh, name, score) for score in (300.0, 480.0, 470.0)]
    assert [(work.checkpoint.manifest_digest, work.episodes, work.seed) for work in works] == [
        ("digest-0", 50, 7),
        ("digest-1", 50, 7),
        ("digest-1", 60, 8),
    ]
    completed = await mesh.get(name)
    assert completed.state == COMPLETED
    assert (completed.best_agent_id, completed.champion_manifest_digest) == (f"{name}-a1", "digest-1")
    assert (completed.best_score, completed.best_score_standard_error) == (470.0, 0.25)
    selection = completed.champion_selection
    assert (selection.selection_score, selection.reported_episodes, selection.reason) == (480.0, 60, "the best score")
    assert (await mesh.kinds(name)).count("champion_named") == 1
    mesh.leaderboard.score(name, 499.0)
    await mesh.cycle()
    assert (await mesh.get(name)).best_agent_id == f"{name}-a1", "a later score does not replace the champion"


async def test_one_pod_plays_all_evaluations_and_is_drained_afterwards(mesh: Any, spec: Any) -> None:
    name = await ended_with_contenders(mesh, spec)
    (pod,) = await mesh.pods(name)
    for score in (300.0, 480.0):
        work = await mesh.assigned(pod.pod_id)
        await mesh.complete(work, evaluation=Evaluation(mean_return=score, episodes=50))
    # It asks again before the reconcile cycle that queues the next evaluation.
    assert (await mesh.acquire(pod.pod_id)).WhichOneof("answer") == "retry_after"
    waiting = asyncio.create_task(mesh.acquire(pod.pod_id, wait=30.0))
    async with asyncio.timeout(10.0):
        await mesh.cycle()
        work = (await waiting).assignment
    assert work.evaluate.seed == 8
    await mesh.complete(work, evaluation=Evaluation(mean_return=470.0, episodes=60))
    await mesh.cycle()
    assert (await mesh.get(name)).state == COMPLETED
    assert (await mesh.acquire(pod.pod_id)).WhichOneof("answer") == "drain"


async def test_pods_stay_for_the_evaluations_of_the_champion(mesh: Any, spec: Any) -> None:
    objective, champion = ObjectiveSpec(wall_clock_duration=Duration(seconds=60)), ChampionSpec(reevaluate_top=2)
    name = await mesh.create(spec(objective=objective, champion=champion, minimum_pods=3, maximum_pods=3))
    await mesh.cycle()
    names = [f"{name}-p{number}" for number in range(3)]
    works = [await mesh.assigned(pod) for pod in names]
    mesh.leaderboard.score(name, 490.0)
    mesh.leaderboard.contenders = [
        Candidate(candidate_id=f"digest-{agent}", agent_id=f"{name}-a{agent}", score=490.0 - agent)
        for agent in range(2)
    ]
    await mesh.cycle(60.0)
    directives = [(await mesh.renew(work)).directive for work in works]
    assert sorted(directives) == [pb.DIRECTIVE_DRAIN, pb.DIRECTIVE_YIELD, pb.DIRECTIVE_YIELD]
    for work in works:
        await mesh.complete(work, pb.OUTCOME_DRAINED)
    await mesh.cycle()
    staying = [pod.pod_id for pod in await mesh.pods(name) if pod.activity != pb.POD_ACTIVITY_DRAINING]
    assert len(staying) == 2, "as many as there are candidates to evaluate"
    assert set(staying) < set(names)
    evaluations = [await mesh.assigned(pod) for pod in staying]
    assert {work.evaluate.checkpoint.manifest_digest for work in evaluations} == {"digest-0", "digest-1"}
    for work, score in zip(evaluations, (300.0, 480.0), strict=True):
        await mesh.complete(work, evaluation=Evaluation(mean_return=score, episodes=50))
    await mesh.cycle()
    report = await mesh.assigned(staying[0])
    await mesh.complete(report, evaluation=Evaluation(mean_return=470.0, episodes=60))
    await mesh.cycle()
    assert (await mesh.get(name)).state == COMPLETED
    assert {(await mesh.acquire(pod)).WhichOneof("answer") for pod in staying} == {"drain"}
    assert (await mesh.kinds(name)).count("pod_started") == 3


async def test_how_the_champion_was_selected_is_known_after_a_restart(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await ended_with_contenders(mesh, spec)
        for score in (300.0, 480.0, 470.0):
            await evaluated(mesh, name, score)
        before = await mesh.get(name)
    async with open_mesh() as mesh:
        after = await mesh.get(name)
    assert (after.best_score, after.champion_selection) == (470.0, before.champion_selection)


async def test_a_restart_between_the_choice_and_the_report_repeats_no_evaluation(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await ended_with_contenders(mesh, spec)
        for score in (300.0, 480.0):
            await evaluated(mesh, name, score)
        contenders = mesh.leaderboard.contenders
    async with open_mesh() as mesh:
        mesh.leaderboard.contenders = contenders
        await mesh.cycle()
        assert (await evaluated(mesh, name, 470.0)).seed == 8
        assert (await mesh.get(name)).state == COMPLETED
        assert (await mesh.kinds(name)).count("evaluation_created") == 3


@pytest.mark.parametrize("greedy", [True, False])
async def test_contenders_are_evaluated_with_the_mode_of_the_tournament(mesh: Any, spec: Any, greedy: bool) -> None:
    name = await ended_with_contenders(mesh, spec, evaluation=EvaluationSpec(greedy=greedy))
    (pod,) = await mesh.pods(name)
    assert (await mesh.assigned(pod.pod_id)).evaluate.stochastic != greedy


async def test_missing_fresh_evaluations_do_not_delay_the_end_forever(mesh: Any, spec: Any) -> None:
    name = await ended_with_contenders(mesh, spec)
    assert (await evaluated(mesh, name, 300.0)).seed == 7
    (pod,) = await mesh.pods(name)
    late = await mesh.assigned(pod.pod_id)
    await mesh.cycle(599.0)
    assert (await mesh.get(name)).state == ENDING
    await mesh.cycle(1.0)
    assert (await mesh.get(name)).state == ENDING, "the champion is chosen and is evaluated once more"
    assert (await mesh.renew(late)).directive == pb.DIRECTIVE_CANCEL
    await mesh.cycle(300.0)
    completed = await mesh.get(name)
    assert (completed.state, completed.best_agent_id, completed.best_score) == (COMPLETED, f"{name}-a0", 300.0)
    assert completed.champion_selection.reported_episodes == 0
    assert (await mesh.kinds(name)).count("evaluation_failed") == 2


async def test_without_a_leaderboard_the_first_of_the_board_stays_champion_and_the_result_states_that(
    mesh: Any, spec: Any
) -> None:
    name = await ended_with_contenders(mesh, spec)
    mesh.leaderboard.unreachable = True
    for score in (300.0, 480.0):
        await evaluated(mesh, name, score)
    await mesh.cycle(10.0)
    await mesh.cycle(119.0)
    assert (await mesh.get(name)).state == ENDING
    await mesh.cycle(1.0)
    completed = await mesh.get(name)
    assert (completed.state, completed.champion_manifest_digest) == (COMPLETED, "digest-of-490")
    selection = completed.champion_selection
    assert (completed.best_score, selection.selection_score, selection.reported_episodes) == (490.0, 490.0, 0)
    assert "no champion could be selected for 120 s" in selection.reason
    assert selection.reason in [event.message for event in await mesh.events(name)]


async def test_a_tournament_that_ends_before_its_first_agent_has_no_champion(mesh: Any, spec: Any) -> None:
    mesh.leaderboard.name_champion_refusal = NotFound("no agent of it was ever generated here")
    name = await mesh.create(spec(objective=ObjectiveSpec(environment_steps=1), maximum_pods=1))
    await mesh.cycle()
    await mesh.complete(await mesh.assigned(f"{name}-p0"), progress=pb.Progress(environment_steps=1))
    await mesh.cycle()
    completed = await mesh.get(name)
    assert (completed.state, completed.champion_manifest_digest) == (COMPLETED, "")


async def ended_with_an_ensemble(mesh: Any, spec: Any) -> str:
    """As `ended_with_contenders`; the leaderboard wants the ensemble of both on seed 8."""
    name = await ended_with_contenders(mesh, spec)
    mesh.leaderboard.ensemble = True
    for score in (300.0, 480.0):
        await evaluated(mesh, name, score)
    return name


async def test_an_ensemble_is_evaluated_together_and_may_be_champion(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await ended_with_an_ensemble(mesh, spec)
        work = await evaluated(mesh, name, 485.0)
        assert (work.checkpoint.manifest_digest, work.seed) == ("digest-1", 8)
        assert [member.manifest_digest for member in work.members] == ["digest-0"]
        completed = await mesh.get(name)
        assert (completed.state, completed.best_score) == (COMPLETED, 485.0)
        (member,) = completed.champion_selection.members
        assert (member.agent_id, member.manifest_digest) == (f"{name}-a0", "digest-0")
    async with open_mesh() as mesh:
        assert list((await mesh.get(name)).champion_selection.members) == [member], "also after a restart"


async def test_an_ensemble_whose_files_are_missing_is_reported_as_failed(mesh: Any, spec: Any) -> None:
    name = await ended_with_an_ensemble(mesh, spec)
    (pod,) = await mesh.pods(name)
    work = await mesh.assigned(pod.pod_id)
    await mesh.complete(work, pb.OUTCOME_AGENT_FAILED, message="checkpoint digest-0 is not in the store")
    await mesh.cycle()
    completed = await mesh.get(name)
    assert (completed.state, completed.best_score) == (COMPLETED, 480.0)
    assert completed.champion_selection.reported_episodes == 0


async def test_options_that_the_operator_allows_are_those_of_the_fresh_episodes(mesh: Any, spec: Any) -> None:
    mesh.servicer._tournaments._allowed = EVERYTHING
    evaluation = EvaluationSpec()
    evaluation.options.update({"maps": "mazes/easy"})
    name = await ended_with_contenders(mesh, spec, evaluation=evaluation)
    played = [await evaluated(mesh, name, score) for score in (300.0, 480.0, 470.0)]
    assert {one.options["maps"] for one in played} == {"mazes/easy"}
    assert (await mesh.get(name)).state == COMPLETED


async def test_a_tournament_whose_champion_cannot_be_selected_ends_with_the_first_of_the_board(
    mesh: Any, spec: Any
) -> None:
    mesh.leaderboard.name_champion_refusal = Internal("a defect")
    name = await ended_with_contenders(mesh, spec)
    await mesh.cycle(119.0)
    assert (await mesh.get(name)).state == ENDING
    await mesh.cycle(1.0)
    completed = await mesh.get(name)
    assert (completed.state, completed.champion_manifest_digest) == (COMPLETED, "digest-of-490")
    assert "a defect" in completed.champion_selection.reason


async def test_an_error_of_one_tournament_does_not_keep_others_from_pods(
    mesh: Any, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await ended_with_contenders(mesh, spec)

    async def fail(*_: object) -> bool:
        raise ValueError("a defect")

    monkeypatch.setattr(mesh.reconciler._completion_check._champion_selection, "select_when_ready", fail)
    second = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle(1.0)
    assert (await mesh.get(first)).state == ENDING
    assert [pod.pod_id for pod in await mesh.pods(second)] == [f"{second}-p0"]

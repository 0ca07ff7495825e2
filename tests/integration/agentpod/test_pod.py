"""A pod in one process (fused) trains, resumes and evaluates agents as assigned."""

import asyncio
import itertools

import pytest
from scripted import only_completion, run, store_of, until

from agentpod.roles import worker
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint_store.publish import fetch, fetch_latest
from podrace.checkpoint_store.replay_parts import is_replay
from podrace.errors import ResourceExhausted
from podrace.leaderboard.v1.leaderboard_pb2 import Bar, PlanEvaluationResponse
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.evaluation_episodes import evaluation_seed
from podrace.specification.resolve import parse, resolve
from podrace.tensor_transport.codec import decode, digest


async def test_an_agent_uses_up_its_budget_and_its_last_policy_is_scored(mesh, make_spec, make_assignment):
    assert await run(mesh, make_assignment(make_spec())) == 0
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    assert only_completion(mesh).progress.environment_steps == 4096
    last = mesh.leaderboard.manifests[-1]
    assert last.environment_steps == 4096
    assert last.evaluation.episodes == 4
    latest = fetch_latest(store_of(mesh), "t-a0")
    assert latest is not None
    assert latest.manifest == last


FAR_ABOVE = PlanEvaluationResponse(bar=Bar(score=10_000.0, standard_error=1.0))
TWO_SCORES = {"episodes": 32, "every_environment_steps": 2048, "share": 1.0}


async def test_scores_are_of_the_episodes_of_the_evaluation_epoch_and_list_their_returns(
    mesh, make_spec, make_assignment
):
    spec = make_spec(evaluation=TWO_SCORES)
    assignment = make_assignment(spec)
    assignment.evaluation_epoch = mesh.orchestrator.evaluation_epoch = 5
    await run(mesh, assignment)
    assert {plan.evaluation_epoch for plan in mesh.leaderboard.plans} == {5}
    for manifest in mesh.leaderboard.manifests:
        evaluation = manifest.evaluation
        assert (evaluation.epoch, evaluation.seed) == (5, evaluation_seed(spec, 5))
        assert len(evaluation.episode_returns) == evaluation.episodes == 32
        assert sum(evaluation.episode_returns) / 32 == pytest.approx(evaluation.mean_return)


async def test_an_evaluation_far_behind_the_bar_stops_early_and_its_episodes_are_the_first(
    mesh, make_spec, make_assignment
):
    async def returns(number: int) -> list[float]:
        mesh.leaderboard.manifests.clear()
        assignment = make_assignment(make_spec(evaluation=TWO_SCORES), number=number)
        assignment.train.seed = 7
        await run(mesh, assignment)
        return list(mesh.leaderboard.manifests[0].evaluation.episode_returns)

    mesh.leaderboard.no_plans = True
    whole = await returns(0)
    mesh.leaderboard.no_plans, mesh.leaderboard.plan = False, FAR_ABOVE
    assert await returns(1) == whole[:8]
    assert len(whole) == 32


async def test_a_pod_that_prepared_for_an_agent_continues_it_with_the_same_environments(
    mesh, make_spec, make_assignment, monkeypatch
):
    spec = make_spec(steps=8192)
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 1024
    await run(mesh, make_assignment(spec))
    before = mesh.orchestrator.completed.pop()
    assert before.outcome == pb.OUTCOME_DRAINED
    assert before.progress.update_age_seconds >= 0
    mesh.orchestrator.directive, made, make = pb.DIRECTIVE_CONTINUE, [], worker.make_simulator
    monkeypatch.setattr(worker, "make_simulator", lambda *given: made.append(given) or make(*given))
    prepare = make_assignment(spec)
    prepare.assignment_id, prepare.lease_epoch = "", 0
    mesh.orchestrator.preparation = prepare
    assert await run(mesh, make_assignment(spec, epoch=2)) == 0
    after = only_completion(mesh)
    assert after.outcome == pb.OUTCOME_FINISHED
    assert after.progress.environment_steps == 8192
    assert after.progress.training_age_seconds > 0
    assert len(made) == 1, "the environments were made once, for the preparation"


async def test_a_pod_that_cannot_prepare_asks_again_and_publishes_nothing(mesh, make_spec, make_assignment):
    prepare = make_assignment(make_spec())
    prepare.train.algorithm = "unknown"
    mesh.orchestrator.preparation = prepare
    running = asyncio.create_task(run(mesh))
    await until(lambda: mesh.orchestrator.acquired >= 3)
    mesh.orchestrator.preparation = None
    assert await running == 0
    assert not mesh.leaderboard.manifests


async def test_the_published_policy_is_the_one_that_was_scored(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec()))
    assert mesh.leaderboard.manifests
    for manifest in mesh.leaderboard.manifests:
        parts = {part.name: part.digest for part in manifest.parts}
        assert manifest.evaluation.policy_digest == parts["policy"]
        assert digest(store_of(mesh).get_object(parts["policy"])) == parts["policy"]


async def test_the_same_assignment_gives_bitwise_equal_checkpoints(mesh, make_spec, make_assignment):
    spec = make_spec(synchronous=True, pool={"maximum_pods": 1})
    await run(mesh, make_assignment(spec, number=0))
    first = [(part.name, part.digest) for manifest in mesh.leaderboard.manifests for part in manifest.parts]
    mesh.leaderboard.manifests.clear()
    again = make_assignment(spec, number=0)
    again.assignment_id, again.train.agent_id = "u-a0.1", "u-a0"
    await run(mesh, again)
    second = [(part.name, part.digest) for manifest in mesh.leaderboard.manifests for part in manifest.parts]
    assert len(first) == 12
    assert first == second


async def test_the_same_assignment_stores_the_same_replay_memory_if_synchronous(mesh, make_spec, make_assignment):
    # A small memory: some steps would be overwritten before they are stored if the training did not wait.
    hyperparameters = OFF_POLICY["algorithms"]["sac-discrete"]["hyperparameters"] | {"replay_capacity": 600}
    spec = make_spec(
        steps=2048,
        synchronous=True,
        pool={"maximum_pods": 1},
        evaluation={"episodes": 2, "every_environment_steps": 600},
        algorithms={"sac-discrete": {"hyperparameters": hyperparameters}},
    )
    stored = []
    for agent_id in ("t-a0", "u-a0"):
        assignment = make_assignment(spec, number=0)
        assignment.assignment_id, assignment.train.agent_id = f"{agent_id}.1", agent_id
        await run(mesh, assignment)
        stored.append([(part.name, part.digest) for manifest in mesh.leaderboard.manifests for part in manifest.parts])
        assert all(manifest.replay_steps == manifest.replay_memory_steps for manifest in mesh.leaderboard.manifests)
        mesh.leaderboard.manifests.clear()
    assert stored[0] == stored[1]
    assert len({digest for name, digest in stored[0] if name.startswith("replay.")}) > 8


async def test_a_drained_agent_resumes_from_its_last_state(mesh, make_spec, make_assignment):
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 1
    spec = make_spec(steps=10**7, evaluation={"episodes": 4, "every_environment_steps": 10**7})
    assert await run(mesh, make_assignment(spec)) == 0
    assert only_completion(mesh).outcome == pb.OUTCOME_DRAINED
    drained = fetch_latest(store_of(mesh), "t-a0")
    assert drained is not None
    assert not drained.manifest.HasField("evaluation")
    assert not mesh.leaderboard.manifests
    steps = drained.manifest.environment_steps
    mesh.orchestrator.completed.clear()
    mesh.orchestrator.directive = pb.DIRECTIVE_CONTINUE
    more = make_assignment(make_spec(steps=steps + 2048), epoch=2)
    await run(mesh, more)
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    last = mesh.leaderboard.manifests[-1]
    assert last.environment_steps == steps + 2048
    assert last.policy_version == drained.manifest.policy_version + 4
    assert last.rollouts == drained.manifest.rollouts + 4


async def test_a_pod_that_yields_its_agent_publishes_it_and_asks_for_other_work(mesh, make_spec, make_assignment):
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_YIELD, 1
    spec = make_spec(steps=10**7, evaluation={"episodes": 4, "every_environment_steps": 10**7})
    assert await run(mesh, make_assignment(spec)) == 0
    assert only_completion(mesh).outcome == pb.OUTCOME_DRAINED
    yielded = fetch_latest(store_of(mesh), "t-a0")
    assert yielded is not None
    assert yielded.manifest.environment_steps == only_completion(mesh).progress.environment_steps > 0
    assert mesh.orchestrator.refused == 1, "a pod that drains exits without asking"


OFF_POLICY = {
    "algorithms": {
        "sac-discrete": {
            "hyperparameters": {
                "horizon": 8,
                "batch_size": 16,
                "hidden_sizes": [8],
                "warmup_steps": 512,
                "updates_per_step": 0.0625,
                "replay_capacity": 4096,
            }
        }
    }
}


def gradient_steps(parts) -> int:
    return int(decode(parts["learner"])[0]["gradient_steps"])


async def test_the_replay_memory_is_restored(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec(steps=2048, **OFF_POLICY)))
    finished = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert finished is not None
    assert "replay.state" in {part.name for part in finished.manifest.parts}
    done = gradient_steps(finished.parts)
    # The first 448 steps are warm-up and lead to no gradient steps; after that there is one for every 16 steps.
    assert done == (2048 - 448) // 16
    await run(mesh, make_assignment(make_spec(steps=2048 + 512, **OFF_POLICY), epoch=2))
    more = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert more is not None
    assert gradient_steps(more.parts) == done + 512 // 16


async def test_the_networks_of_a_drained_agent_are_stored_before_its_replay_memory(
    mesh, make_spec, make_assignment, monkeypatch
):
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 1
    stored_before = []

    def killed(files, view):
        stored_before.append(fetch_latest(store_of(mesh), "t-a0"))
        raise ResourceExhausted("killed while the replay memory was being stored")

    monkeypatch.setattr("agentpod.learner.replay_files.ReplayFiles.store", killed)
    evaluation = {"episodes": 4, "every_environment_steps": 10**7}
    await run(mesh, make_assignment(make_spec(steps=10**7, evaluation=evaluation, **OFF_POLICY)))
    (latest,) = stored_before
    assert latest is not None
    assert latest.manifest.environment_steps > 0


async def test_every_scored_checkpoint_has_its_replay_memory_in_shared_pieces(
    mesh, make_spec, make_assignment, monkeypatch
):
    monkeypatch.setattr("agentpod.experience.replay_view.PIECE_BYTES", 10_000)
    evaluation = {"episodes": 2, "every_environment_steps": 512, "share": 1.0}
    await run(mesh, make_assignment(make_spec(steps=2048, evaluation=evaluation, **OFF_POLICY)))
    scored = [manifest for manifest in mesh.leaderboard.manifests if manifest.HasField("evaluation")]
    assert len(scored) > 1
    stored = [{part.digest for part in manifest.parts if is_replay(part)} for manifest in scored]
    for manifest in scored:
        assert manifest.replay_steps == manifest.replay_memory_steps == manifest.environment_steps
    for before, after in itertools.pairwise(stored):
        # The piece with the newest steps, and the state.
        assert len(before - after) <= 2


async def test_a_child_starts_with_the_replay_memory_of_its_parent(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec(steps=2048, **OFF_POLICY)))
    parent = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert parent is not None
    start = Checkpoint(agent_id="t-a0", manifest_digest=parent.manifest_digest)
    done = gradient_steps(parent.parts)
    for number, horizon, paid_steps in ((1, 8, 256), (2, 4, 256)):
        child = make_assignment(make_spec(steps=256, **OFF_POLICY), number=number, starting_checkpoint=start)
        child.train.hyperparameters["horizon"] = horizon
        await run(mesh, child)
        trained = fetch_latest(store_of(mesh), f"t-a{number}", without="replay.")
        assert trained is not None
        assert gradient_steps(trained.parts) == done + paid_steps // 16


async def test_an_agent_learns_from_the_steps_of_others(mesh, make_spec, make_assignment):
    settings = OFF_POLICY["algorithms"]["sac-discrete"]["hyperparameters"]
    for number, algorithm in enumerate(("sac-discrete", "dqn")):
        spec = make_spec(steps=2048, algorithms={algorithm: {"hyperparameters": settings}}, experience={"shared": True})
        await run(mesh, make_assignment(spec, number=number))
    first, second = mesh.orchestrator.completed
    assert first.outcome == second.outcome == pb.OUTCOME_FINISHED
    assert first.progress.shared_experience == pb.SharedExperience()
    received = second.progress.shared_experience
    assert (received.agents, received.environment_steps, received.left_out) == (1, 2048, "")
    trained = fetch_latest(store_of(mesh), "t-a1", without="replay.")
    assert trained is not None
    # Only its own steps allow gradient steps, and only they are its replay memory.
    assert gradient_steps(trained.parts) == (2048 - 448) // 16
    assert trained.manifest.replay_steps == 2048


async def test_agents_without_a_replay_memory_read_no_steps_of_others(mesh, make_spec, make_assignment):
    assignment = make_assignment(make_spec())
    assignment.spec.experience.shared = True
    await run(mesh, assignment)
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    assert not only_completion(mesh).progress.HasField("shared_experience")


async def test_an_agent_of_another_algorithm_starts_with_new_networks_and_the_replay_memory_of_its_parent(
    mesh, make_spec, make_assignment
):
    await run(mesh, make_assignment(make_spec(steps=2048, **OFF_POLICY)))
    parent = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert parent is not None
    start = Checkpoint(agent_id="t-a0", manifest_digest=parent.manifest_digest)
    settings = OFF_POLICY["algorithms"]["sac-discrete"]["hyperparameters"]
    spec = make_spec(steps=256, algorithms={"dqn": {"hyperparameters": settings}})
    await run(mesh, make_assignment(spec, number=1, starting_checkpoint=start))
    assert mesh.orchestrator.completed[-1].outcome == pb.OUTCOME_FINISHED
    trained = fetch_latest(store_of(mesh), "t-a1", without="replay.")
    assert trained is not None
    assert trained.manifest.replay_steps == 2048 + 256
    # There is no warm-up, and the schedules of new networks begin at their beginning.
    assert gradient_steps(trained.parts) == 256 // 16
    assert int(decode(trained.parts["learner"])[0]["environment_steps"]) == 256


@pytest.mark.parametrize(("damaged", "paid_steps"), [("replay.state", 0), ("replay.segments.", 256)])
async def test_a_damaged_replay_memory_costs_a_warm_up_and_a_damaged_piece_only_its_steps(
    mesh, make_spec, make_assignment, damaged, paid_steps
):
    await run(mesh, make_assignment(make_spec(steps=2048, **OFF_POLICY)))
    first = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert first is not None
    part = next(part for part in first.manifest.parts if part.name.startswith(damaged))
    path = next(mesh.folder.rglob(part.digest))
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    await run(mesh, make_assignment(make_spec(steps=2048 + 256, **OFF_POLICY), epoch=2))
    assert mesh.orchestrator.completed[-1].outcome == pb.OUTCOME_FINISHED
    again = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert again is not None
    assert gradient_steps(again.parts) == gradient_steps(first.parts) + paid_steps // 16


async def test_a_child_starts_with_the_networks_of_its_parent_and_its_own_hyperparameters(
    mesh, make_spec, make_assignment
):
    spec = make_spec()
    await run(mesh, make_assignment(spec))
    parent = fetch_latest(store_of(mesh), "t-a0")
    assert parent is not None
    start = Checkpoint(agent_id="t-a0", manifest_digest=parent.manifest_digest)
    child = make_assignment(make_spec(steps=512), number=1, starting_checkpoint=start)
    child.train.hyperparameters["learning_rate"] = 1e-7
    await run(mesh, child)
    manifest, parts = fetch(store_of(mesh), fetch_latest(store_of(mesh), "t-a1").manifest_digest)
    assert manifest.lineage_environment_steps == 4096 + 512
    assert manifest.environment_steps == 512
    assert manifest.hyperparameters["learning_rate"] == 1e-7
    assert manifest.previous_manifest_digest == parent.manifest_digest
    # At this learning rate one update changes almost nothing, so the networks are those of the parent.
    before, after = decode(parent.parts["policy"])[0], decode(parts["policy"])[0]
    weights = [name for name in before if name.startswith("actor")]
    assert weights
    for name in weights:
        assert (before[name] - after[name]).abs().max() < 1e-5


async def test_a_pod_evaluates_a_published_checkpoint(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec()))
    latest = fetch_latest(store_of(mesh), "t-a0")
    evaluation = make_assignment(make_spec())
    evaluation.ClearField("work")
    evaluation.assignment_id = "t-e0.1"
    evaluation.evaluate.checkpoint.manifest_digest = latest.manifest_digest
    evaluation.evaluate.episodes = 6
    evaluation.evaluate.seed = 3
    mesh.orchestrator.completed.clear()
    await run(mesh, evaluation)
    completed = only_completion(mesh)
    assert completed.outcome == pb.OUTCOME_FINISHED
    assert completed.evaluation.episodes == 6
    assert completed.evaluation.mean_return > 0


async def test_an_ensemble_of_different_networks_and_algorithms_is_scored_together(mesh, make_spec, make_assignment):
    specs = [
        make_spec(),
        make_spec(algorithms={"a2c": {"hyperparameters": {"horizon": 64, "hidden_sizes": [8, 8]}}}),
    ]
    await run(mesh, *(make_assignment(spec, number=number) for number, spec in enumerate(specs)))
    first, other = (fetch_latest(store_of(mesh), f"t-a{number}") for number in range(2))
    evaluation = make_assignment(specs[0])
    evaluation.ClearField("work")
    evaluation.assignment_id = "t-e0.1"
    evaluation.evaluate.checkpoint.manifest_digest = first.manifest_digest
    evaluation.evaluate.members.add().manifest_digest = other.manifest_digest
    evaluation.evaluate.episodes = 6
    mesh.orchestrator.completed.clear()
    await run(mesh, evaluation)
    completed = only_completion(mesh)
    assert completed.outcome == pb.OUTCOME_FINISHED, completed.message
    policies = [
        next(part.digest for part in latest.manifest.parts if part.name == "policy") for latest in (first, other)
    ]
    scored = completed.evaluation
    assert [scored.policy_digest, *scored.member_policy_digests] == policies
    assert scored.episodes == 6


async def test_an_agent_trains_in_its_own_environment_and_is_scored_in_that_of_the_specification(
    mesh, make_spec, make_assignment
):
    frames = {"options": {"wrappers": [{"name": "frame_stack", "count": 2}, {"name": "time_limit", "steps": 7}]}}
    search = {
        "count": {"choices": [8, 16]},
        "options": {
            "wrappers": {"frame_stack": {"count": {"choices": [2, 3]}}, "time_limit": {"steps": {"choices": [7, 3]}}}
        },
    }
    spec = make_spec()
    spec.MergeFrom(parse({"environment": {"search": search} | frames}, source="test"))
    spec = resolve(spec)
    assignment = make_assignment(spec)
    for key, value in (
        ("count", 16),
        ("options.wrappers.frame_stack.count", 3),
        ("options.wrappers.time_limit.steps", 3),
    ):
        assignment.train.hyperparameters[f"environment.{key}"] = value
    await run(mesh, assignment)
    last = mesh.leaderboard.manifests[-1]
    assert last.rollouts == 4096 // (16 * 64)
    assert last.evaluation.mean_length_steps == 7
    latest = fetch_latest(store_of(mesh), "t-a0")
    assert latest is not None
    assert decode(latest.parts["policy"])[0]["observation_mean"].shape == (3 * 4,)
    evaluation = pb.Assignment(assignment_id="e-1", spec=spec, lease_epoch=1, lease_duration=assignment.lease_duration)
    evaluation.evaluate.checkpoint.manifest_digest = latest.manifest_digest
    evaluation.evaluate.episodes = 4
    mesh.orchestrator.completed.clear()
    await run(mesh, evaluation)
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED

"""A whole pod in one process (fused): assignments in, checkpoints and submissions out."""

import asyncio
from pathlib import Path

import pytest
from scripted import until

from agentpod.process.wiring import run_leader
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import claim, fetch, fetch_latest
from podrace.errors import ResourceExhausted
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tensor_transport.codec import decode, digest


async def run(mesh, *assignments: pb.Assignment, **changes) -> int:
    mesh.orchestrator.assignments.extend(assignments)
    config = mesh.pod_config("fused", **changes)
    config.folder.mkdir(exist_ok=True)
    return await run_leader(config)


def only_completion(mesh) -> pb.CompleteAssignmentRequest:
    (completed,) = mesh.orchestrator.completed
    return completed


def store_of(mesh):
    return open_store(mesh.leaderboard.store_uri)


async def test_an_agent_trains_its_budget_and_its_last_policy_is_scored(mesh, make_spec, make_assignment):
    assert await run(mesh, make_assignment(make_spec())) == 0
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    assert only_completion(mesh).progress.environment_steps == 4096
    last = mesh.leaderboard.manifests[-1]
    assert last.environment_steps == 4096
    assert last.evaluation.episodes == 4
    latest = fetch_latest(store_of(mesh), "t-a0")
    assert latest is not None
    assert latest.manifest == last


async def test_the_published_policy_is_the_one_that_earned_the_score(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec()))
    assert mesh.leaderboard.manifests
    for manifest in mesh.leaderboard.manifests:
        parts = {part.name: part.digest for part in manifest.parts}
        assert manifest.evaluation.policy_digest == parts["policy"]
        assert digest(store_of(mesh).get_object(parts["policy"])) == parts["policy"]


async def test_the_same_assignment_gives_the_same_checkpoints_bit_for_bit(mesh, make_spec, make_assignment):
    spec = make_spec(synchronous=True, pool={"maximum_pods": 1})
    await run(mesh, make_assignment(spec, number=0))
    first = [(part.name, part.digest) for manifest in mesh.leaderboard.manifests for part in manifest.parts]
    mesh.leaderboard.manifests.clear()
    again = make_assignment(spec, number=0)
    again.assignment_id, again.train.agent_id = "u-a0.1", "u-a0"
    await run(mesh, again)
    second = [(part.name, part.digest) for manifest in mesh.leaderboard.manifests for part in manifest.parts]
    assert len(first) == 8
    assert first == second


async def test_a_drained_agent_goes_on_where_it_was(mesh, make_spec, make_assignment):
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


async def test_the_replay_memory_goes_on_where_it_was(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec(steps=2048, **OFF_POLICY)))
    finished = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert finished is not None
    assert "replay.state" in {part.name for part in finished.manifest.parts}
    done = gradient_steps(finished.parts)
    # Two segments of 64 steps are sampled from before the third: the first 448 steps pay for nothing.
    assert done == (2048 - 448) // 16
    await run(mesh, make_assignment(make_spec(steps=2048 + 512, **OFF_POLICY), epoch=2))
    more = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert more is not None
    assert gradient_steps(more.parts) == done + 512 // 16


async def test_a_drained_agents_networks_are_safe_before_its_memory_is_stored(
    mesh, make_spec, make_assignment, monkeypatch
):
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 1
    stored_before = []

    def killed(store, replay):
        stored_before.append(fetch_latest(store, "t-a0"))
        raise ResourceExhausted("killed while the memory was being stored")

    monkeypatch.setattr("agentpod.learner.replay_files.store_replay", killed)
    evaluation = {"episodes": 4, "every_environment_steps": 10**7}
    await run(mesh, make_assignment(make_spec(steps=10**7, evaluation=evaluation, **OFF_POLICY)))
    (latest,) = stored_before
    assert latest is not None
    assert latest.manifest.environment_steps > 0


async def test_a_child_begins_with_its_parents_replay_memory_if_it_fits(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec(steps=2048, **OFF_POLICY)))
    parent = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert parent is not None
    start = Checkpoint(agent_id="t-a0", manifest_digest=parent.manifest_digest)
    done = gradient_steps(parent.parts)
    for number, horizon, paid_steps in ((1, 8, 256), (2, 4, 0)):
        child = make_assignment(make_spec(steps=256, **OFF_POLICY), number=number, starting_checkpoint=start)
        child.train.hyperparameters["horizon"] = horizon
        await run(mesh, child)
        trained = fetch_latest(store_of(mesh), f"t-a{number}", without="replay.")
        assert trained is not None
        assert gradient_steps(trained.parts) == done + paid_steps // 16


async def test_a_damaged_replay_memory_costs_no_more_than_a_warm_up(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec(steps=2048, **OFF_POLICY)))
    first = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert first is not None
    piece = next(part for part in first.manifest.parts if part.name.startswith("replay.0"))
    path = next(mesh.folder.rglob(piece.digest))
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    await run(mesh, make_assignment(make_spec(steps=2048 + 256, **OFF_POLICY), epoch=2))
    assert mesh.orchestrator.completed[-1].outcome == pb.OUTCOME_FINISHED
    again = fetch_latest(store_of(mesh), "t-a0", without="replay.")
    assert again is not None
    assert gradient_steps(again.parts) == gradient_steps(first.parts)


@pytest.mark.parametrize(
    ("algorithm", "hyperparameters", "environment", "said"),
    [
        ("dqn", {}, "Pendulum-v1", "algorithm 'dqn': head 'values' needs discrete actions"),
        ("sac", {}, "CartPole-v1", "needs continuous actions"),
        ("dqn", {"replay_capacity": 10**9}, "CartPole-v1", "hyperparameter replay_capacity: "),
    ],
)
async def test_an_algorithm_that_cannot_work_here_fails_its_agent_by_name(
    mesh, make_spec, make_assignment, algorithm, hyperparameters, environment, said
):
    spec = make_spec(environment, algorithms={algorithm: {"hyperparameters": hyperparameters}})
    await run(mesh, make_assignment(spec), memory_bytes=1 << 30)
    assert only_completion(mesh).outcome == pb.OUTCOME_AGENT_FAILED
    assert said in only_completion(mesh).message


async def test_a_child_begins_with_its_parents_files_and_its_own_hyperparameters(mesh, make_spec, make_assignment):
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
    # At that rate one update changes next to nothing: what the parent had learned is there.
    from podrace.tensor_transport.codec import decode

    before, after = decode(parent.parts["policy"])[0], decode(parts["policy"])[0]
    weights = [name for name in before if name.startswith("actor")]
    assert weights
    for name in weights:
        assert (before[name] - after[name]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("parent_id", "outcome"),
    [("t-a0", pb.OUTCOME_AGENT_FAILED), ("older-abc123-a0", pb.OUTCOME_SPEC_FAILED)],
)
async def test_files_of_another_shape_fail_the_agent_and_of_another_tournament_the_specification(
    mesh, make_spec, make_assignment, parent_id, outcome
):
    await run(mesh, make_assignment(make_spec(steps=256)))
    parent = fetch_latest(store_of(mesh), "t-a0")
    assert parent is not None
    start = Checkpoint(agent_id=parent_id, manifest_digest=parent.manifest_digest)
    await run(mesh, make_assignment(make_spec("Acrobot-v1"), number=1, starting_checkpoint=start))
    assert mesh.orchestrator.completed[-1].outcome == outcome
    assert "spaces or layers differ" in mesh.orchestrator.completed[-1].message


async def test_a_higher_lease_epoch_ends_the_work_without_publishing(mesh, make_spec, make_assignment):
    claim(store_of(mesh), "t-a0", 5)
    await run(mesh, make_assignment(make_spec(), epoch=4))
    assert not mesh.leaderboard.manifests
    pointer, _ = store_of(mesh).read_pointer("t-a0")
    assert pointer.lease_epoch == 5
    assert not pointer.manifest_digest


async def test_a_stale_renewal_stops_without_completing(mesh, make_spec, make_assignment):
    mesh.orchestrator.stale = True
    spec = make_spec(steps=10**7, evaluation={"episodes": 4, "every_environment_steps": 10**7})
    await run(mesh, make_assignment(spec))
    assert not mesh.orchestrator.completed
    assert fetch_latest(store_of(mesh), "t-a0") is None


async def test_a_score_that_was_published_but_not_submitted_is_submitted_by_the_next_holder(
    mesh, make_spec, make_assignment
):
    await run(mesh, make_assignment(make_spec()))
    lost = mesh.leaderboard.manifests[-1]
    mesh.leaderboard.manifests.clear()
    await run(mesh, make_assignment(make_spec(), epoch=2))
    assert lost in mesh.leaderboard.manifests[:2]


@pytest.mark.parametrize(
    ("environment", "outcome", "words"),
    [
        ("NoSuchEnvironment-v7", pb.OUTCOME_SPEC_FAILED, "NoSuchEnvironment-v7"),
        ("python:environments:not_finite", pb.OUTCOME_AGENT_FAILED, "not finite"),
    ],
)
async def test_what_cannot_work_is_told_in_one_line(
    mesh, make_spec, make_assignment, monkeypatch, environment, outcome, words
):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    await run(mesh, make_assignment(make_spec(environment)))
    completed = only_completion(mesh)
    assert completed.outcome == outcome
    assert words in completed.message
    assert "\n" not in completed.message


async def test_a_minibatch_larger_than_the_batch_fails_the_agent_by_name(mesh, make_spec, make_assignment):
    algorithms = {"ppo": {"hyperparameters": {"horizon": 8, "minibatch_size": 4096}}}
    await run(mesh, make_assignment(make_spec(algorithms=algorithms)))
    assert only_completion(mesh).outcome == pb.OUTCOME_AGENT_FAILED
    assert "minibatch_size" in only_completion(mesh).message


async def test_a_damaged_checkpoint_falls_back_to_the_one_before(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec()))
    newest = fetch_latest(store_of(mesh), "t-a0")
    before = newest.manifest.previous_manifest_digest
    newest_but_one = fetch(store_of(mesh), before)[0]
    learner = next(part for part in newest.manifest.parts if part.name == "learner")
    path = next(mesh.folder.glob(f"store/**/{learner.digest}*"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    mesh.leaderboard.manifests.clear()
    await run(mesh, make_assignment(make_spec(), epoch=2))
    assert only_completion_of_last(mesh).outcome == pb.OUTCOME_FINISHED
    resubmitted, first_new = mesh.leaderboard.manifests[:2]
    assert resubmitted == newest_but_one
    assert first_new.previous_manifest_digest == before


def only_completion_of_last(mesh) -> pb.CompleteAssignmentRequest:
    return mesh.orchestrator.completed[-1]


async def test_heartbeats_go_on_during_a_long_update(mesh, make_spec, make_assignment, monkeypatch):
    import time

    from agentpod.algorithms.ppo import PPO

    update = PPO.update

    def long_update(self, rollout):
        # Holds the compute thread as a big network would: several leases long.
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            sum(range(1000))
        return update(self, rollout)

    monkeypatch.setattr(PPO, "update", long_update)
    await run(mesh, make_assignment(make_spec(steps=512)))
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    # The lease is 0.3 s, renewed every 0.1 s.
    assert len(mesh.orchestrator.renewals) >= 8


async def test_any_checkpoint_can_be_evaluated_by_a_pod(mesh, make_spec, make_assignment):
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


async def test_an_ensemble_of_other_layers_and_algorithms_is_scored_together(mesh, make_spec, make_assignment):
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


async def test_a_pod_that_hears_no_orchestrator_goes(mesh, short_folder):
    config = mesh.pod_config("fused", orchestrator=f"unix:{short_folder}/nobody.sock", orphan_seconds=0.2)
    config.folder.mkdir()
    async with asyncio.timeout(60):
        assert await run_leader(config) == 0


async def test_an_environment_that_raises_fails_the_agents_and_never_in_a_hurry(
    mesh, make_spec, make_assignment, monkeypatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    await run(mesh, make_assignment(make_spec("python:environments:raising")))
    assert only_completion(mesh).outcome == pb.OUTCOME_AGENT_FAILED
    assert "fell off the line" in only_completion(mesh).message


async def test_a_parents_checkpoint_that_is_gone_fails_the_agent(mesh, make_spec, make_assignment):
    gone = Checkpoint(agent_id="t-a9", manifest_digest="0" * 64)
    await run(mesh, make_assignment(make_spec(), starting_checkpoint=gone))
    assert only_completion(mesh).outcome == pb.OUTCOME_AGENT_FAILED
    assert "0000" in only_completion(mesh).message


async def test_an_evaluation_without_an_end_is_told_and_does_not_hold_the_pod(
    mesh, make_spec, make_assignment, monkeypatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr("agentpod.roles.evaluator.MAXIMUM_EPISODE_STEPS", 200)
    await run(mesh, make_assignment(make_spec("python:environments:endless")))
    assert only_completion(mesh).outcome == pb.OUTCOME_AGENT_FAILED
    assert "time limit" in only_completion(mesh).message


async def test_a_drain_reaches_a_long_evaluation_that_holds_the_compute_thread(
    mesh, make_spec, make_assignment, monkeypatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr("agentpod.roles.evaluator.MAXIMUM_EPISODE_STEPS", 10**9)
    spec = make_spec("python:environments:endless", evaluation={"episodes": 4, "every_environment_steps": 512})

    async def drain_while_evaluating() -> None:
        await until(lambda: any(renewal.progress.policy_version for renewal in mesh.orchestrator.renewals))
        mesh.orchestrator.directive = pb.DIRECTIVE_DRAIN

    draining = asyncio.create_task(drain_while_evaluating())
    async with asyncio.timeout(20):
        assert await run(mesh, make_assignment(spec)) == 0
    await draining
    assert only_completion(mesh).outcome == pb.OUTCOME_DRAINED
    assert fetch_latest(store_of(mesh), "t-a0") is not None


async def test_scores_wait_while_the_leaderboard_is_away(mesh, make_spec, make_assignment):
    mesh.leaderboard.refuse = 2
    await run(mesh, make_assignment(make_spec(synchronous=True, pool={"maximum_pods": 1})))
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    # Every score arrives, in order, although the first submissions found nobody.
    assert [manifest.environment_steps for manifest in mesh.leaderboard.manifests] == [1024, 2048, 3072, 4096]


async def test_a_leaderboard_that_knows_nothing_does_not_cost_the_training(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec()))
    trained = fetch_latest(store_of(mesh), "t-a0")
    mesh.leaderboard.missing = True
    await run(mesh, make_assignment(make_spec(), epoch=2))
    kept = fetch_latest(store_of(mesh), "t-a0")
    assert kept.manifest_digest == trained.manifest_digest


async def test_an_evaluation_assignment_ends_with_the_pod(mesh, make_spec, make_assignment, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr("agentpod.roles.evaluator.MAXIMUM_EPISODE_STEPS", 10**9)
    await run(mesh, make_assignment(make_spec("python:environments:line", steps=512)))
    trained = fetch_latest(store_of(mesh), "t-a0")
    mesh.orchestrator.completed.clear()
    mesh.orchestrator.directive = pb.DIRECTIVE_DRAIN
    evaluation = make_assignment(make_spec("python:environments:endless"))
    evaluation.ClearField("work")
    evaluation.assignment_id = "t-e0.1"
    evaluation.evaluate.checkpoint.manifest_digest = trained.manifest_digest
    evaluation.evaluate.episodes = 1
    async with asyncio.timeout(20):
        assert await run(mesh, evaluation) == 0
    assert only_completion(mesh).outcome == pb.OUTCOME_DRAINED

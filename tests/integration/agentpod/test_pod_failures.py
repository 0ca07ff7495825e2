"""A pod in one process (fused) reports failures, and loses neither the agent nor a score to them."""

import asyncio
from errno import EROFS
from pathlib import Path

import pytest
from scripted import only_completion, run, store_of, until

from agentpod.process.wiring import run_leader
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, fetch, fetch_latest
from podrace.checkpoint_store.store import PROBE_AGENT_ID
from podrace.errors import FailedPrecondition, PermissionDenied, ResourceExhausted, Unavailable
from podrace.limits.config import Allowed
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


@pytest.mark.parametrize(
    ("algorithm", "hyperparameters", "environment", "said"),
    [
        ("dqn", {}, "Pendulum-v1", "algorithm 'dqn': head 'values' needs discrete actions"),
        ("sac", {}, "CartPole-v1", "needs continuous actions"),
        ("dqn", {"replay_capacity": 10**9}, "CartPole-v1", "hyperparameter replay_capacity: "),
    ],
)
async def test_an_algorithm_that_does_not_fit_the_environment_fails_its_agent(
    mesh, make_spec, make_assignment, algorithm, hyperparameters, environment, said
):
    spec = make_spec(environment, algorithms={algorithm: {"hyperparameters": hyperparameters}})
    await run(mesh, make_assignment(spec), memory_bytes=1 << 30)
    assert only_completion(mesh).outcome == pb.OUTCOME_AGENT_FAILED
    assert said in only_completion(mesh).message


@pytest.mark.parametrize(
    ("parent_id", "outcome"),
    [("t-a0", pb.OUTCOME_AGENT_FAILED), ("older-abc123-a0", pb.OUTCOME_SPEC_FAILED)],
)
async def test_a_checkpoint_of_another_shape_fails_the_agent_or_the_specification_that_names_it(
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


async def test_a_stale_lease_ends_the_work_without_completing(mesh, make_spec, make_assignment):
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
async def test_an_error_is_reported_in_one_line(
    mesh, make_spec, make_assignment, monkeypatch, environment, outcome, words
):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    await run(mesh, make_assignment(make_spec(environment)))
    completed = only_completion(mesh)
    assert completed.outcome == outcome
    assert words in completed.message
    assert "\n" not in completed.message


async def test_a_pod_of_one_process_refuses_user_code(mesh, make_spec, make_assignment, monkeypatch):
    """The leader imported it, next to its token; one user may run code of their own there."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    spec = make_spec("python:environments:line", steps=512)
    await run(mesh, make_assignment(spec), allow=Allowed(modules=("environments",)))
    completed = only_completion(mesh)
    assert completed.outcome == pb.OUTCOME_SPEC_FAILED
    assert "start this pod with isolated = true" in completed.message


async def test_a_damaged_checkpoint_falls_back_to_the_previous_one(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec()))
    newest = fetch_latest(store_of(mesh), "t-a0")
    before = newest.manifest.previous_manifest_digest
    newest_but_one = fetch(store_of(mesh), before)[0]
    learner = next(part for part in newest.manifest.parts if part.name == "learner")
    path = next(mesh.folder.glob(f"store/**/{learner.digest}*"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    mesh.leaderboard.manifests.clear()
    await run(mesh, make_assignment(make_spec(), epoch=2))
    assert mesh.orchestrator.completed[-1].outcome == pb.OUTCOME_FINISHED
    resubmitted, first_new = mesh.leaderboard.manifests[:2]
    assert resubmitted == newest_but_one
    assert first_new.previous_manifest_digest == before


async def test_the_lease_is_renewed_during_a_long_update(mesh, make_spec, make_assignment, monkeypatch):
    import time

    from agentpod.algorithms.ppo import PPO

    update = PPO.update

    def long_update(self, rollout):
        # Occupies the compute thread, like a large network, for several lease durations.
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            sum(range(1000))
        return update(self, rollout)

    monkeypatch.setattr(PPO, "update", long_update)
    await run(mesh, make_assignment(make_spec(steps=512)))
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    # The lease is 0.3 s, renewed every 0.1 s.
    assert len(mesh.orchestrator.renewals) >= 8


async def test_a_pod_without_an_orchestrator_exits(mesh, short_folder):
    config = mesh.pod_config("fused", orchestrator=f"unix:{short_folder}/missing.sock", orphan_seconds=0.2)
    config.folder.mkdir(mode=0o700)
    async with asyncio.timeout(60):
        assert await run_leader(config) == 0


async def test_an_environment_that_raises_fails_the_agent(mesh, make_spec, make_assignment, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    await run(mesh, make_assignment(make_spec("python:environments:raising")))
    assert only_completion(mesh).outcome == pb.OUTCOME_AGENT_FAILED
    assert "fell off the line" in only_completion(mesh).message


async def test_a_missing_checkpoint_of_the_parent_fails_the_agent(mesh, make_spec, make_assignment):
    gone = Checkpoint(agent_id="t-a9", manifest_digest="0" * 64)
    await run(mesh, make_assignment(make_spec(), starting_checkpoint=gone))
    assert only_completion(mesh).outcome == pb.OUTCOME_AGENT_FAILED
    assert "0000" in only_completion(mesh).message


async def test_an_endless_evaluation_fails_the_agent_and_does_not_block_the_pod(
    mesh, make_spec, make_assignment, monkeypatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr("agentpod.roles.episodes.MAXIMUM_EPISODE_STEPS", 200)
    await run(mesh, make_assignment(make_spec("python:environments:endless")))
    assert only_completion(mesh).outcome == pb.OUTCOME_AGENT_FAILED
    assert "time limit" in only_completion(mesh).message


@pytest.mark.parametrize(
    ("steps", "activity"),
    [(4096, pb.POD_ACTIVITY_TRAINING), (512, pb.POD_ACTIVITY_EVALUATING)],
    ids=["between two updates", "of the last policy"],
)
async def test_a_drain_cancels_an_evaluation_that_occupies_the_compute_thread(
    mesh, make_spec, make_assignment, monkeypatch, steps, activity
):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr("agentpod.roles.episodes.MAXIMUM_EPISODE_STEPS", 10**9)
    monkeypatch.setattr("agentpod.learner.evaluation_schedule.SCORE_AFTER_STOP_SECONDS", 0.1)
    evaluation = {"episodes": 4, "every_environment_steps": 512}
    spec = make_spec("python:environments:endless", steps=steps, evaluation=evaluation)

    def is_evaluating() -> bool:
        reported = [renewal.progress for renewal in mesh.orchestrator.renewals]
        return any(progress.policy_version and progress.activity == activity for progress in reported)

    async def drain_while_evaluating() -> None:
        await until(is_evaluating)
        mesh.orchestrator.directive = pb.DIRECTIVE_DRAIN

    draining = asyncio.create_task(drain_while_evaluating())
    async with asyncio.timeout(20):
        assert await run(mesh, make_assignment(spec)) == 0
    await draining
    assert only_completion(mesh).outcome == pb.OUTCOME_DRAINED
    drained = fetch_latest(store_of(mesh), "t-a0")
    assert drained is not None
    assert drained.manifest.environment_steps == only_completion(mesh).progress.environment_steps > 0
    assert not drained.manifest.HasField("evaluation")


async def test_scores_are_submitted_later_if_the_leaderboard_does_not_answer(mesh, make_spec, make_assignment):
    mesh.leaderboard.refuse = 2
    await run(mesh, make_assignment(make_spec(synchronous=True, pool={"maximum_pods": 1})))
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    # Every score arrives, in order, although the first submissions failed.
    assert [manifest.environment_steps for manifest in mesh.leaderboard.manifests] == [1024, 2048, 3072, 4096]


async def test_a_leaderboard_that_does_not_know_the_agent_does_not_cost_the_checkpoint(
    mesh, make_spec, make_assignment
):
    await run(mesh, make_assignment(make_spec()))
    trained = fetch_latest(store_of(mesh), "t-a0")
    mesh.leaderboard.missing = True
    await run(mesh, make_assignment(make_spec(), epoch=2))
    kept = fetch_latest(store_of(mesh), "t-a0")
    assert kept.manifest_digest == trained.manifest_digest


@pytest.mark.parametrize(("directive", "requests"), [(pb.DIRECTIVE_DRAIN, 1), (pb.DIRECTIVE_CANCEL, 2)])
async def test_a_drain_ends_an_evaluation_and_the_pod_and_a_cancellation_only_the_evaluation(
    mesh, make_spec, make_assignment, monkeypatch, directive, requests
):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr("agentpod.roles.episodes.MAXIMUM_EPISODE_STEPS", 10**9)
    await run(mesh, make_assignment(make_spec("python:environments:line", steps=512)))
    trained = fetch_latest(store_of(mesh), "t-a0")
    mesh.orchestrator.completed.clear()
    mesh.orchestrator.directive, mesh.orchestrator.acquired = directive, 0
    evaluation = make_assignment(make_spec("python:environments:endless"))
    evaluation.ClearField("work")
    evaluation.assignment_id = "t-e0.1"
    evaluation.evaluate.checkpoint.manifest_digest = trained.manifest_digest
    evaluation.evaluate.episodes = 1
    async with asyncio.timeout(20):
        assert await run(mesh, evaluation) == 0
    assert mesh.orchestrator.acquired == requests
    # Another pod may hold a cancelled evaluation.
    drained = [pb.OUTCOME_DRAINED] if directive == pb.DIRECTIVE_DRAIN else []
    assert [completed.outcome for completed in mesh.orchestrator.completed] == drained


async def test_a_full_store_delays_an_agent_and_does_not_fail_it(mesh, make_spec, make_assignment, monkeypatch):
    # The first refusal meets the claim of the agent, the others its checkpoints.
    refusals, store = iter([True, False, True, True]), FolderStore.swap_pointer

    def refuse(*arguments, **named):
        if next(refusals, False):
            raise ResourceExhausted("the disk of the store is full")
        return store(*arguments, **named)

    monkeypatch.setattr(FolderStore, "swap_pointer", refuse)
    monkeypatch.setattr("agentpod.storage_waits.FIRST_WAIT_SECONDS", 0.4)
    await run(mesh, make_assignment(make_spec()))
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    assert next(refusals, None) is None
    faults = {renewal.progress.storage_fault for renewal in mesh.orchestrator.renewals}
    assert "the disk of the store is full" in faults
    assert only_completion(mesh).progress.storage_fault == ""
    assert mesh.leaderboard.manifests[-1].environment_steps == 4096


async def test_a_store_that_becomes_read_only_delays_an_agent_and_loses_no_step(
    mesh, make_spec, make_assignment, monkeypatch
):
    # The first fault meets the claim of the agent, the others its checkpoints.
    faults, swap = iter([True, False, True, True]), FolderStore.swap_pointer

    def fail(store, agent_id, *arguments):
        if agent_id != PROBE_AGENT_ID and next(faults, False):
            with store._translated_errors():
                raise OSError(EROFS, "Read-only file system", "/store")
        return swap(store, agent_id, *arguments)

    monkeypatch.setattr(FolderStore, "swap_pointer", fail)
    monkeypatch.setattr("agentpod.storage_waits.FIRST_WAIT_SECONDS", 0.4)
    await run(mesh, make_assignment(make_spec()))
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    reported = {renewal.progress.storage_fault for renewal in mesh.orchestrator.renewals}
    assert any("Read-only file system" in fault for fault in reported)
    assert mesh.leaderboard.manifests[-1].environment_steps == 4096


@pytest.mark.parametrize("error", [FailedPrecondition, PermissionDenied, ResourceExhausted, Unavailable])
async def test_a_pod_starts_while_the_store_has_a_fault_and_publishes_after_it(
    mesh, make_spec, make_assignment, monkeypatch, error
):
    checks = iter([error("the store has a fault")])

    def refuse_once(store):
        if fault := next(checks, None):
            raise fault

    monkeypatch.setattr("podrace.checkpoint_store.check_store", refuse_once)
    await run(mesh, make_assignment(make_spec()))
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    assert mesh.leaderboard.manifests[-1].environment_steps == 4096


async def test_an_agent_that_cannot_be_stored_is_given_back_at_a_drain(mesh, make_spec, make_assignment, monkeypatch):
    def refuse(*arguments, **named):
        raise ResourceExhausted("the disk of the store is full")

    monkeypatch.setattr(FolderStore, "swap_pointer", refuse)

    async def drain_while_waiting() -> None:
        await until(lambda: any(renewal.progress.storage_fault for renewal in mesh.orchestrator.renewals))
        mesh.orchestrator.directive = pb.DIRECTIVE_DRAIN

    draining = asyncio.create_task(drain_while_waiting())
    await run(mesh, make_assignment(make_spec()))
    await draining
    assert only_completion(mesh).outcome == pb.OUTCOME_DRAINED
    assert "the disk of the store is full" in only_completion(mesh).message

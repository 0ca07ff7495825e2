"""A child that is offered the average of its parent and a sibling, in a real pod with a real store."""

import pytest
from scripted import run, store_of

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint_store.publish import fetch_latest
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


def digest_of(mesh, agent_id: str) -> Checkpoint:
    latest = fetch_latest(store_of(mesh), agent_id)
    return Checkpoint(agent_id=agent_id, manifest_digest=latest.manifest_digest)


async def family(mesh, make_assignment, spec) -> tuple[Checkpoint, Checkpoint]:
    """Trains an agent and two agents that start from it; returns the checkpoints of the two."""
    assert await run(mesh, make_assignment(spec)) == 0
    start = digest_of(mesh, "t-a0")
    siblings = [make_assignment(spec, number=number, starting_checkpoint=start) for number in (1, 2)]
    assert await run(mesh, *siblings) == 0
    return digest_of(mesh, "t-a1"), digest_of(mesh, "t-a2")


def lines_of(log_lines, event: str):
    return [line for line in log_lines if line["event"] == event]


@pytest.mark.parametrize("continues", [False, True])
async def test_a_child_starts_from_the_better_of_average_and_parent_and_its_manifests_say_which(
    mesh, make_spec, make_assignment, log_lines, continues
):
    spec = make_spec(steps=1024)
    parent, mate = await family(mesh, make_assignment, spec)
    child = make_assignment(spec, number=3, starting_checkpoint=parent, mates=[mate])
    if continues:
        mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 512
    assert await run(mesh, child) == 0
    if continues:
        mesh.orchestrator.directive = pb.DIRECTIVE_CONTINUE
        again = make_assignment(spec, number=3, epoch=2, starting_checkpoint=parent, mates=[mate])
        assert await run(mesh, again) == 0
    averaged = lines_of(log_lines, "starts from the average")
    kept = lines_of(log_lines, "starts from its parent and not from the average")
    assert len(averaged) + len(kept) == 1, "scored once, before anything is trained"
    assert "on 4 episodes" in (averaged or kept)[0]["reason"]
    manifest = fetch_latest(store_of(mesh), "t-a3").manifest
    assert list(manifest.mate_manifest_digests) == ([mate.manifest_digest] if averaged else [])
    assert manifest.starting_manifest_digest == parent.manifest_digest
    assert manifest.environment_steps == 1024


async def test_a_mate_that_is_gone_leaves_the_child_at_its_parent(mesh, make_spec, make_assignment, log_lines):
    spec = make_spec(steps=512)
    parent, _ = await family(mesh, make_assignment, spec)
    gone = Checkpoint(agent_id="t-a2", manifest_digest="ab" * 32)
    assert await run(mesh, make_assignment(spec, number=3, starting_checkpoint=parent, mates=[gone])) == 0
    (line,) = lines_of(log_lines, "the agent starts from its parent alone")
    assert line["mate"] == f"checkpoint {'ab' * 6} of t-a2"
    assert not fetch_latest(store_of(mesh), "t-a3").manifest.mate_manifest_digests


async def test_a_mate_with_other_networks_leaves_the_child_at_its_parent(mesh, make_spec, make_assignment, log_lines):
    spec = make_spec(steps=512)
    parent, _ = await family(mesh, make_assignment, spec)
    wide = make_spec(steps=512, algorithms={"ppo": {"hyperparameters": {"horizon": 64, "hidden_sizes": [32]}}})
    assert await run(mesh, make_assignment(wide, number=4)) == 0
    mate = digest_of(mesh, "t-a4")
    assert await run(mesh, make_assignment(spec, number=5, starting_checkpoint=parent, mates=[mate])) == 0
    (line,) = lines_of(log_lines, "starts from its parent and not from the average")
    assert "other" in line["reason"]
    assert fetch_latest(store_of(mesh), "t-a5").manifest.environment_steps == 512

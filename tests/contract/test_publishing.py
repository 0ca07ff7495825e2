"""Tests claiming, publishing and reading checkpoints on each store."""

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from store_harness import AGENT, BAD_DIGEST, STALE_EPOCH, Harness, manifest, parts, pointer_of, publish_versions

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store import publish as publish_module
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.manifest import manifest_bytes
from podrace.checkpoint_store.publish import claim, fetch, fetch_latest, publish, read_manifest
from podrace.checkpoint_store.store import CheckpointStore
from podrace.digests import digest
from podrace.errors import DataLoss, FailedPrecondition, NotFound
from podrace.tensor_transport.codec import decode, encode

# Claiming and publishing.


def test_the_first_claim_creates_an_empty_pointer(store: CheckpointStore) -> None:
    assert claim(store, AGENT, 3) == Pointer(agent_id=AGENT, lease_epoch=3)
    assert pointer_of(store) == Pointer(agent_id=AGENT, lease_epoch=3)


def test_a_later_claim_keeps_the_manifest(store: CheckpointStore) -> None:
    (published,) = publish_versions(store, AGENT, 1)
    assert claim(store, AGENT, 2) == Pointer(agent_id=AGENT, lease_epoch=2, manifest_digest=published)


def test_a_repeated_claim_succeeds(store: CheckpointStore) -> None:
    assert claim(store, AGENT, 2) == claim(store, AGENT, 2)


def test_a_claim_below_the_pointers_epoch_is_stale(store: CheckpointStore) -> None:
    claim(store, AGENT, 5)
    with pytest.raises(FailedPrecondition, match="epoch 4 is stale") as refusal:
        claim(store, AGENT, 4)
    assert refusal.value.reason == STALE_EPOCH
    assert pointer_of(store) == Pointer(agent_id=AGENT, lease_epoch=5)


def test_a_published_checkpoint_is_returned_whole(store: CheckpointStore) -> None:
    claim(store, AGENT, 4)
    published = publish(store, AGENT, 4, parts(1), manifest(1, previous=digest(b"parent")))
    read, files = fetch(store, published)
    assert files == parts(1)
    assert (read.format_version, read.agent_id, read.lease_epoch, read.policy_version) == (1, AGENT, 4, 1)
    assert read.previous_manifest_digest == digest(b"parent")
    assert [(part.name, part.digest, part.size_bytes) for part in read.parts] == [
        ("learner", digest(b"learner 1"), 9),
        ("policy", digest(b"policy 1"), 8),
    ]
    assert published == digest(manifest_bytes(read))
    assert pointer_of(store) == Pointer(agent_id=AGENT, lease_epoch=4, manifest_digest=published)


def test_publishing_does_not_change_the_callers_manifest(store: CheckpointStore) -> None:
    mine = manifest(1)
    claim(store, AGENT, 4)
    publish(store, AGENT, 4, parts(1), mine)
    assert mine == manifest(1)


def test_a_repeated_publication_succeeds_and_changes_nothing(store: CheckpointStore) -> None:
    (published,) = publish_versions(store, AGENT, 1)
    before = store.read_pointer(AGENT)
    assert publish(store, AGENT, 1, parts(1), manifest(1)) == published
    assert store.read_pointer(AGENT) == before


def test_a_stale_epoch_cannot_publish_and_stores_nothing(store: CheckpointStore) -> None:
    (published,) = publish_versions(store, AGENT, 1)
    claim(store, AGENT, 2)
    before = sorted(stored.digest for stored in store.list_objects())
    with pytest.raises(FailedPrecondition, match="epoch 1 is stale, epoch 2 holds") as refusal:
        publish(store, AGENT, 1, parts(2), manifest(2, published))
    assert refusal.value.reason == STALE_EPOCH
    assert pointer_of(store) == Pointer(agent_id=AGENT, lease_epoch=2, manifest_digest=published)
    assert sorted(stored.digest for stored in store.list_objects()) == before


def test_publishing_without_a_claim_fails(store: CheckpointStore) -> None:
    with pytest.raises(FailedPrecondition, match="claim the agent first"):
        publish(store, AGENT, 1, parts(1), manifest(1))
    claim(store, AGENT, 1)
    with pytest.raises(FailedPrecondition, match="claim the agent first"):
        publish(store, AGENT, 2, parts(1), manifest(1))


class Overtaken(FolderStore):
    """A store where other processes swap the pointer first, once for each rival."""

    rivals: list[Pointer]

    def swap_pointer(self, agent_id: str, pointer: Pointer, etag: str | None) -> None:
        if self.rivals:
            super().swap_pointer(agent_id, self.rivals.pop(), etag)
        super().swap_pointer(agent_id, pointer, etag)


def overtaken(folder: Path, *rivals: Pointer) -> Overtaken:
    store = Overtaken(folder)
    store.rivals = list(rivals)
    return store


def test_a_claim_overtaken_by_a_lower_epoch_swaps_again(tmp_path: Path) -> None:
    theirs = digest(b"published at the last moment")
    store = overtaken(tmp_path, Pointer(agent_id=AGENT, lease_epoch=1, manifest_digest=theirs))
    assert claim(store, AGENT, 2) == Pointer(agent_id=AGENT, lease_epoch=2, manifest_digest=theirs)


def test_a_claim_whose_reply_was_lost_succeeds(tmp_path: Path) -> None:
    store = overtaken(tmp_path, Pointer(agent_id=AGENT, lease_epoch=2))
    assert claim(store, AGENT, 2) == Pointer(agent_id=AGENT, lease_epoch=2)


def test_a_claim_overtaken_by_a_higher_epoch_stops(tmp_path: Path) -> None:
    store = overtaken(tmp_path, Pointer(agent_id=AGENT, lease_epoch=3))
    with pytest.raises(FailedPrecondition) as refusal:
        claim(store, AGENT, 2)
    assert refusal.value.reason == STALE_EPOCH


def test_a_publication_overtaken_by_a_claim_is_stale(tmp_path: Path) -> None:
    store = overtaken(tmp_path)
    (published,) = publish_versions(store, AGENT, 1)
    store.rivals = [Pointer(agent_id=AGENT, lease_epoch=2, manifest_digest=published)]
    with pytest.raises(FailedPrecondition) as refusal:
        publish(store, AGENT, 1, parts(2), manifest(2, published))
    assert refusal.value.reason == STALE_EPOCH
    assert pointer_of(store) == Pointer(agent_id=AGENT, lease_epoch=2, manifest_digest=published)


# Reading.


def test_a_damaged_part_is_never_returned(harness: Harness) -> None:
    (published,) = publish_versions(harness.store, AGENT, 1)
    harness.damage(digest(b"policy 1"))
    with pytest.raises(DataLoss, match=f"{digest(b'policy 1')} in {re.escape(harness.store.uri)}") as refusal:
        fetch(harness.store, published)
    assert refusal.value.reason == BAD_DIGEST


def test_a_damaged_manifest_is_never_returned(harness: Harness) -> None:
    (published,) = publish_versions(harness.store, AGENT, 1)
    harness.damage(published)
    for read in (lambda: fetch(harness.store, published), lambda: fetch_latest(harness.store, AGENT)):
        with pytest.raises(DataLoss, match=published) as refusal:
            read()
        assert refusal.value.reason == BAD_DIGEST


@pytest.mark.parametrize(
    ("stated", "problem"), [(10, "has 9 bytes, its manifest states 10"), (8, "has 9 bytes; at most 8 are read")]
)
def test_a_part_of_another_size_than_stated_is_refused(store: CheckpointStore, stated: int, problem: str) -> None:
    (published,) = publish_versions(store, AGENT, 1)
    lying, _ = fetch(store, published)
    lying.parts[0].size_bytes = stated
    with pytest.raises(DataLoss, match=rf"'learner'.*{problem}") as refusal:
        fetch(store, store.put_object(manifest_bytes(lying)))
    assert refusal.value.reason == BAD_DIGEST


def test_an_object_that_is_larger_than_any_manifest_is_not_read_as_one(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_module, "LARGEST_MANIFEST_BYTES", 1000)
    (published,) = publish_versions(store, AGENT, 1)
    large = store.put_object(b"{" + b" " * 1000 + b"}")
    with pytest.raises(DataLoss, match="has 1002 bytes; at most 1000 are read") as refusal:
        read_manifest(store, large)
    assert refusal.value.reason == BAD_DIGEST
    assert read_manifest(store, published).agent_id == AGENT


def test_a_missing_part_is_named(harness: Harness) -> None:
    (published,) = publish_versions(harness.store, AGENT, 1)
    harness.store.delete_object(digest(b"policy 1"), 0.0)
    with pytest.raises(NotFound, match=digest(b"policy 1")):
        fetch(harness.store, published)


def test_the_latest_checkpoint_is_the_one_in_the_pointer(store: CheckpointStore) -> None:
    assert fetch_latest(store, AGENT) is None
    claim(store, AGENT, 1)
    assert fetch_latest(store, AGENT) is None
    _, second = publish_versions(store, AGENT, 1, 2)
    latest = fetch_latest(store, AGENT)
    assert latest is not None
    assert (latest.manifest_digest, latest.manifest.policy_version, latest.parts, latest.damage) == (
        second,
        2,
        parts(2),
        "",
    )


def test_a_reader_falls_back_to_the_previous_checkpoint_and_reports_why(harness: Harness) -> None:
    first, _ = publish_versions(harness.store, AGENT, 1, 2)
    harness.damage(digest(b"learner 2"))
    latest = fetch_latest(harness.store, AGENT)
    assert latest is not None
    assert (latest.manifest_digest, latest.manifest.policy_version, latest.parts) == (first, 1, parts(1))
    assert digest(b"learner 2") in latest.damage


def test_a_reader_that_finds_no_sound_checkpoint_reports_the_damage(harness: Harness) -> None:
    publish_versions(harness.store, AGENT, 1, 2)
    harness.damage(digest(b"learner 2"))
    harness.damage(digest(b"policy 1"))
    with pytest.raises(DataLoss, match=digest(b"policy 1")):
        fetch_latest(harness.store, AGENT)


def test_a_damaged_first_checkpoint_is_an_error(harness: Harness) -> None:
    publish_versions(harness.store, AGENT, 1)
    harness.damage(digest(b"learner 1"))
    with pytest.raises(DataLoss, match=f"no previous checkpoint.*{digest(b'learner 1')}"):
        fetch_latest(harness.store, AGENT)


class Trap:
    """Creates a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (os.mkdir, ("sprung",))


@pytest.mark.parametrize("damage", ["pickle", "header", "cut"])
def test_parts_that_are_not_safetensors_are_refused_on_one_line(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = encode({"weight": torch.zeros(3, 5)}, {})
    harmful = {
        "pickle": pickle.dumps({"weight": Trap()}),
        "header": (2**63).to_bytes(8, "little") + whole[8:],
        "cut": whole[:-1],
    }[damage]
    claim(store, AGENT, 1)
    first = publish(store, AGENT, 1, {"policy": whole}, manifest(1))
    second = publish(store, AGENT, 1, {"policy": harmful}, manifest(2, first))
    _, files = fetch(store, second)  # the digest is right: these bytes were published
    with pytest.raises(DataLoss, match=f"{len(harmful)} bytes are not a complete safetensors file") as refusal:
        decode(files["policy"])
    assert "\n" not in refusal.value.message
    assert not (tmp_path / "sprung").exists()
    assert decode(fetch(store, first)[1]["policy"])[0]["weight"].shape == (3, 5)

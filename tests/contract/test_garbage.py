"""Tests garbage collection and snapshots on each store."""

import pytest
from store_harness import AGENT, HOUR, Harness, manifest, parts, pointer_of, publish_versions

from podrace.checkpoint_store.collect import collect
from podrace.checkpoint_store.contents import find_garbage
from podrace.checkpoint_store.publish import claim, fetch, publish, store_part
from podrace.checkpoint_store.snapshots import is_snapshot, store_snapshot, store_snapshot_of
from podrace.checkpoint_store.store import SHARED, CheckpointStore, Place
from podrace.digests import digest
from podrace.errors import DataLoss, InvalidArgument, NotFound

# Collecting garbage.


def test_a_pointer_keeps_its_manifest_and_the_previous_one(harness: Harness) -> None:
    first, second, third = publish_versions(harness.store, AGENT, 1, 2, 3)
    harness.clock.now += HOUR
    deleted = collect(harness.store, [], HOUR)
    assert sorted(deleted) == sorted([first, digest(b"policy 1"), digest(b"learner 1")])
    assert fetch(harness.store, second)[1] == parts(2)
    assert fetch(harness.store, third)[1] == parts(3)
    assert collect(harness.store, [], HOUR) == []


def test_a_root_keeps_its_parts_but_not_the_previous_manifest(harness: Harness) -> None:
    first, second, _, _ = publish_versions(harness.store, AGENT, 1, 2, 3, 4)
    harness.clock.now += HOUR
    assert first in collect(harness.store, [Place(SHARED, second)], HOUR)
    assert fetch(harness.store, second)[1] == parts(2)


def test_a_shared_part_is_kept_while_one_checkpoint_is(harness: Harness) -> None:
    claim(harness.store, AGENT, 1)
    previous = ""
    for version in range(4):
        files = {"segment": b"never changes", "policy": b"policy %d" % version}
        previous = publish(harness.store, AGENT, 1, files, manifest(version, previous))
    harness.clock.now += HOUR
    assert len(collect(harness.store, [], HOUR)) == 4
    assert fetch(harness.store, previous)[1]["segment"] == b"never changes"


def test_a_young_object_is_never_collected(harness: Harness) -> None:
    orphan = harness.store.put_object(b"a part whose manifest is not written yet")
    harness.clock.now += HOUR - 1
    assert collect(harness.store, [], HOUR) == []
    harness.clock.now += 1
    assert collect(harness.store, [], HOUR) == [orphan]


def test_an_old_object_put_again_while_it_is_collected_survives(harness: Harness) -> None:
    name = harness.store.put_object(b"old garbage, then a part again")
    harness.clock.now += HOUR
    listed = list(harness.store.list_objects())
    assert [stored.digest for stored in listed if stored.age_seconds >= HOUR] == [name]
    harness.store.put_object(b"old garbage, then a part again")
    assert harness.store.delete_object(name, HOUR) is False


def test_nothing_is_deleted_while_a_root_or_a_pointer_cannot_be_read(harness: Harness) -> None:
    (published,) = publish_versions(harness.store, AGENT, 1)
    harness.store.put_object(b"garbage")
    harness.clock.now += HOUR
    before = sorted(stored.digest for stored in harness.store.list_objects())
    with pytest.raises(NotFound):
        collect(harness.store, [Place(SHARED, digest(b"a manifest that is gone"))], HOUR)
    harness.damage(published)
    with pytest.raises(DataLoss, match=published):
        collect(harness.store, [], HOUR)
    assert sorted(stored.digest for stored in harness.store.list_objects()) == before


def test_a_missing_previous_manifest_does_not_stop_the_collection(harness: Harness) -> None:
    claim(harness.store, AGENT, 1)
    publish(harness.store, AGENT, 1, parts(1), manifest(1, previous=digest(b"collected long ago")))
    garbage = harness.store.put_object(b"garbage")
    harness.clock.now += HOUR
    assert collect(harness.store, [], HOUR) == [garbage]


def test_a_pointer_to_a_lost_manifest_does_not_stop_the_collection(harness: Harness) -> None:
    first, second = publish_versions(harness.store, AGENT, 1, 2)
    garbage = harness.store.put_object(b"garbage")
    harness.clock.now += HOUR
    assert harness.store.delete_object(second, 0.0)
    deleted = collect(harness.store, [], HOUR)
    assert sorted(deleted) == sorted([garbage, digest(b"policy 2"), digest(b"learner 2")])
    assert fetch(harness.store, first)[1] == parts(1), "the agent continues from its previous checkpoint"


# Snapshots.


def test_a_snapshot_is_only_a_policy_without_a_pointer(store: CheckpointStore) -> None:
    stored = store_snapshot(store, b"policy 1", manifest(1))
    found, files = fetch(store, stored)
    assert files == {"policy": b"policy 1"}
    assert is_snapshot(found)
    assert found.policy_version == 1
    assert pointer_of(store) is None
    assert store_snapshot(store, b"policy 1", manifest(1)) == stored


def test_a_snapshot_of_a_checkpoint_copies_nothing_and_is_the_same_each_time(store: CheckpointStore) -> None:
    (published,) = publish_versions(store, AGENT, 1)
    before = {stored.digest for stored in store.list_objects()}
    checkpoint = fetch(store, published)[0]
    kept = store_snapshot_of(store, published, checkpoint)
    assert store_snapshot_of(store, published, checkpoint) == kept
    assert {stored.digest for stored in store.list_objects()} - before == {kept}
    found, files = fetch(store, kept)
    assert files == {"policy": b"policy 1"}
    assert is_snapshot(found)
    assert not is_snapshot(checkpoint)
    assert found.previous_manifest_digest == published


def test_a_checkpoint_without_a_policy_has_no_snapshot(store: CheckpointStore) -> None:
    with pytest.raises(InvalidArgument, match="has no part 'policy'"):
        store_snapshot_of(store, digest(b"x"), manifest(1))


def test_a_snapshot_outlives_the_other_parts_of_its_checkpoint(harness: Harness) -> None:
    first, _, _ = publish_versions(harness.store, AGENT, 1, 2, 3)
    kept = store_snapshot_of(harness.store, first, fetch(harness.store, first)[0])
    lost = store_snapshot(harness.store, b"not a root", manifest(9))
    harness.clock.now += HOUR
    gone = collect(harness.store, [Place(SHARED, kept)], HOUR)
    assert set(gone) == {first, digest(b"learner 1"), lost, digest(b"not a root")}
    assert fetch(harness.store, kept)[1] == {"policy": b"policy 1"}


def test_old_parts_of_a_young_scored_checkpoint_are_kept(harness: Harness) -> None:
    piece = store_part(harness.store, "replay", b"an old piece")
    harness.clock.now += 2 * HOUR
    claim(harness.store, AGENT, 1)
    scored = manifest(1)
    scored.evaluation.episodes = 3
    publish(harness.store, AGENT, 1, parts(1), scored, stored=[piece])
    publish_versions(harness.store, AGENT, 2, 3)
    garbage = find_garbage(harness.store, [], HOUR, boards_are_gone=False)
    assert (garbage.objects, garbage.scored) == ([], 1)

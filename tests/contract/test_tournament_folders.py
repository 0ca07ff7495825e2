"""Tests that each tournament has its own folder of objects, on each store."""

import pytest
from store_harness import HOUR, Harness, manifest, parts, publish_versions

from podrace.checkpoint_store.collect import collect
from podrace.checkpoint_store.contents import find_garbage, list_agents, verify
from podrace.checkpoint_store.publish import claim, fetch, fetch_latest, publish
from podrace.checkpoint_store.snapshots import store_snapshot_of
from podrace.checkpoint_store.store import SHARED, CheckpointStore, Place
from podrace.digests import digest
from podrace.errors import InvalidArgument, NotFound

OWN, OTHER = "ant-x1", "ant-y2"
AGENT = f"{OWN}-a7"


def places(store: CheckpointStore) -> set[Place]:
    return {Place(stored.tournament_id, stored.digest) for stored in store.list_objects()}


def test_an_object_is_put_into_the_folder_of_its_tournament(store: CheckpointStore) -> None:
    names = {tournament_id: store.within(tournament_id).put_object(b"x") for tournament_id in (OWN, OTHER, SHARED)}
    assert set(names.values()) == {digest(b"x")}
    assert places(store) == {Place(tournament_id, digest(b"x")) for tournament_id in (OWN, OTHER, SHARED)}
    assert places(store.within(OWN)) == {Place(OWN, digest(b"x"))}


def test_a_tournament_reads_no_folder_of_another_one_that_it_does_not_name(store: CheckpointStore) -> None:
    name = store.within(OTHER).put_object(b"theirs")
    with pytest.raises(NotFound, match=name):
        store.within(OWN).get_object(name)
    assert store.within(OWN, OTHER).get_object(name) == b"theirs"
    assert store.get_object(name) == b"theirs"
    assert [view.has_object(name) for view in (store.within(OWN, OTHER), store.within(OTHER), store)] == [
        False, True, False,
    ]  # fmt: skip


def test_objects_of_a_released_version_are_read_and_not_written_by_tournaments(store: CheckpointStore) -> None:
    (released,) = publish_versions(store, AGENT, 1)
    own = store.within(OWN)
    assert fetch(own, released)[1] == parts(1)
    claim(own, AGENT, 2)
    newest = publish(own, AGENT, 2, parts(2), manifest(2, released))
    latest = fetch_latest(own, AGENT)
    assert latest is not None
    assert latest.manifest_digest == newest
    assert {place for place in places(store) if place.tournament_id == OWN} == places(own)
    assert {place.digest for place in places(own)} == {newest, digest(b"policy 2"), digest(b"learner 2")}


def test_an_object_is_deleted_from_one_folder_only(harness: Harness) -> None:
    store = harness.store
    name = store.within(OWN).put_object(b"x")
    store.within(OTHER).put_object(b"x")
    harness.clock.now += HOUR
    assert store.within(OWN).delete_object(name, HOUR) is True
    assert places(store) == {Place(OTHER, name)}


def test_a_checkpoint_keeps_the_objects_of_its_own_folder_only(harness: Harness) -> None:
    store = harness.store
    shared = {store.put_object(data) for data in parts(1).values()}
    (kept,) = publish_versions(store.within(OWN), AGENT, 1)
    for data in parts(1).values():
        store.within(OTHER).put_object(data)
    harness.clock.now += HOUR
    assert len(collect(store, [], HOUR)) == len(shared) + 2
    assert fetch(store.within(OWN), kept)[1] == parts(1)
    assert {place.tournament_id for place in places(store)} == {OWN}


def test_a_checkpoint_keeps_parts_that_a_released_version_stored(harness: Harness) -> None:
    store = harness.store
    for data in parts(1).values():
        store.put_object(data)
    own = store.within(OWN)
    claim(own, AGENT, 1)
    kept = publish(own, AGENT, 1, parts(1), manifest(1))
    harness.clock.now += HOUR
    for data in parts(1).values():
        own.delete_object(digest(data), HOUR)
    assert collect(store, [], HOUR) == []
    assert fetch(own, kept)[1] == parts(1)


def test_a_root_is_kept_in_the_folder_of_its_tournament(harness: Harness) -> None:
    store = harness.store
    first, _, _ = publish_versions(store.within(OWN), AGENT, 1, 2, 3)
    harness.clock.now += HOUR
    assert collect(store, [Place(OWN, first)], HOUR) == []
    with pytest.raises(NotFound, match=first):
        collect(store, [Place(OTHER, first)], HOUR)


def test_a_snapshot_of_a_released_checkpoint_can_be_read(store: CheckpointStore) -> None:
    (released,) = publish_versions(store, AGENT, 1)
    own = store.within(OWN)
    kept = store_snapshot_of(own, released, fetch(own, released)[0])
    assert fetch(own, kept)[1] == {"policy": b"policy 1"}
    assert places(own) == {Place(OWN, kept)}


def test_maintenance_sees_the_folders_of_all_tournaments(harness: Harness) -> None:
    store = harness.store
    publish_versions(store.within(OWN), AGENT, 1)
    publish_versions(store.within(OTHER), f"{OTHER}-a0", 1)
    (released,) = publish_versions(store, "old-a0", 1)
    store.within(OTHER).put_object(b"garbage")
    found = verify(store)
    assert (found.agents, found.manifests, found.objects, found.damage) == (3, 3, 10, [])
    assert {agent.pointer.agent_id: agent.damage for agent in list_agents(store, 0.0)} == {
        AGENT: "", f"{OTHER}-a0": "", "old-a0": "",
    }  # fmt: skip
    harness.clock.now += HOUR
    garbage = find_garbage(store, [released], HOUR, boards_are_gone=True)
    assert [Place(stored.tournament_id, stored.digest) for stored in garbage.objects] == [
        Place(OTHER, digest(b"garbage"))
    ]


@pytest.mark.parametrize("tournament_id", ["../x", "a/b", ".", "..", "-a", "a b", "ä", "a" * 201, "a\n"])
def test_a_tournament_id_that_could_escape_its_folder_is_refused(store: CheckpointStore, tournament_id: str) -> None:
    with pytest.raises(InvalidArgument, match="tournament id"):
        store.within(tournament_id)
    with pytest.raises(InvalidArgument, match="tournament id"):
        store.within(OWN, tournament_id)


def test_a_tournament_is_deleted_with_all_its_objects_and_no_other_one_is(store: CheckpointStore) -> None:
    publish_versions(store.within(OWN), AGENT, 1, 2)
    publish_versions(store.within(OTHER), f"{OTHER}-a0", 1)
    (released,) = publish_versions(store, "old-a0", 1)
    longer = store.within(f"{OWN}2")
    longer.put_object(b"of a tournament whose id begins with the same characters")
    count = len(places(store.within(OWN)))
    assert store.delete_tournament(OWN) == count > 0
    assert {place.tournament_id for place in places(store)} == {OTHER, f"{OWN}2", SHARED}
    assert fetch(store, released)[1] == parts(1)
    assert fetch_latest(store.within(OTHER), f"{OTHER}-a0") is not None
    assert store.delete_tournament(OWN) == 0, "deleting it again changes nothing"
    store.within(OWN).put_object(b"it may be used again")


def test_a_pointer_that_was_deleted_is_unknown_and_can_be_claimed_again(store: CheckpointStore) -> None:
    publish_versions(store.within(OWN), AGENT, 1)
    publish_versions(store.within(OWN), f"{AGENT}1", 1)
    store.delete_pointer(AGENT)
    assert store.read_pointer(AGENT) is None
    assert [pointer.agent_id for pointer in store.list_pointers()] == [f"{AGENT}1"]
    store.delete_pointer(AGENT)
    claim(store.within(OWN), AGENT, 1)
    found = store.read_pointer(AGENT)
    assert found is not None
    assert (found[0].lease_epoch, found[0].manifest_digest) == (1, "")


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "", "a\n"])
def test_only_what_is_named_by_a_valid_id_is_deleted(store: CheckpointStore, name: str) -> None:
    with pytest.raises(InvalidArgument):
        store.delete_tournament(name)
    with pytest.raises(InvalidArgument):
        store.delete_pointer(name)

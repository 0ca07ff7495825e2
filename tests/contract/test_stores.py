"""Tests the interface of a checkpoint store against each store."""

import re
import subprocess
import sys

import pytest
from store_harness import AGENT, BAD_DIGEST, HOUR, Harness, pointer_of, publish_versions

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.store import CheckpointStore, check_store
from podrace.digests import digest
from podrace.errors import Aborted, DataLoss, InvalidArgument, NamedResource, NotFound

# Objects.


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000])
def test_an_object_is_returned_under_its_digest(store: CheckpointStore, data: bytes) -> None:
    name = store.put_object(data)
    assert name == digest(data)
    assert store.get_object(name) == data


def test_putting_an_object_again_only_resets_its_age(harness: Harness) -> None:
    name = harness.store.put_object(b"same")
    harness.clock.now += HOUR
    assert [stored.age_seconds for stored in harness.store.list_objects()] == [pytest.approx(HOUR)]
    assert harness.store.put_object(b"same") == name
    assert [stored.age_seconds for stored in harness.store.list_objects()] == [pytest.approx(0.0)]


def test_putting_a_damaged_object_again_repairs_it(harness: Harness) -> None:
    name = harness.store.put_object(b"content")
    harness.damage(name)
    with pytest.raises(DataLoss, match=f"{name} in {re.escape(harness.store.uri)} is damaged: its 7 bytes") as refusal:
        harness.store.get_object(name)
    assert refusal.value.reason == BAD_DIGEST
    harness.store.put_object(b"content")
    assert harness.store.get_object(name) == b"content"


def test_objects_are_listed_with_digest_and_size(store: CheckpointStore) -> None:
    names = {store.put_object(b"x" * size): size for size in (0, 1, 1000)}
    assert {stored.digest: stored.size_bytes for stored in store.list_objects()} == names


def test_a_missing_object_is_not_found_and_named(store: CheckpointStore) -> None:
    name = digest(b"never put")
    with pytest.raises(NotFound, match=name) as raised:
        store.get_object(name)
    assert raised.value.resource == NamedResource("object", name)
    assert store.delete_object(name, 0.0) is False


def test_an_object_is_deleted_only_at_the_stated_age(harness: Harness) -> None:
    name = harness.store.put_object(b"x")
    harness.clock.now += 59
    assert harness.store.delete_object(name, 60.0) is False
    harness.clock.now += 1
    assert harness.store.delete_object(name, 60.0) is True
    with pytest.raises(NotFound):
        harness.store.get_object(name)


@pytest.mark.parametrize("name", ["", "abc", "../../etc/passwd", "A" * 64, "0" * 63 + "/", "0" * 64 + "\n"])
def test_an_object_name_that_is_not_a_digest_is_refused(store: CheckpointStore, name: str) -> None:
    with pytest.raises(InvalidArgument, match="SHA-256"):
        store.get_object(name)
    with pytest.raises(InvalidArgument, match="SHA-256"):
        store.delete_object(name, 0.0)


# Pointers.


def test_there_is_no_pointer_before_the_first_swap(store: CheckpointStore) -> None:
    assert store.read_pointer(AGENT) is None
    assert list(store.list_pointers()) == []


def test_a_swap_with_the_present_tag_succeeds(store: CheckpointStore) -> None:
    first = Pointer(agent_id=AGENT, lease_epoch=1)
    store.swap_pointer(AGENT, first, None)
    pointer, etag = store.read_pointer(AGENT) or pytest.fail("no pointer")
    assert pointer == first
    second = Pointer(agent_id=AGENT, lease_epoch=2, manifest_digest=digest(b"m"))
    store.swap_pointer(AGENT, second, etag)
    assert pointer_of(store) == second


def test_a_swap_with_any_other_tag_is_aborted_and_changes_nothing(store: CheckpointStore) -> None:
    first = Pointer(agent_id=AGENT, lease_epoch=1)
    with pytest.raises(Aborted, match=AGENT):
        store.swap_pointer(AGENT, first, digest(b"no pointer yet"))
    store.swap_pointer(AGENT, first, None)
    _, etag = store.read_pointer(AGENT) or pytest.fail("no pointer")
    store.swap_pointer(AGENT, Pointer(agent_id=AGENT, lease_epoch=2), etag)
    for stale in (None, etag):
        with pytest.raises(Aborted, match=AGENT):
            store.swap_pointer(AGENT, Pointer(agent_id=AGENT, lease_epoch=9), stale)
    assert pointer_of(store) == Pointer(agent_id=AGENT, lease_epoch=2)


def test_pointers_of_different_agents_are_independent(store: CheckpointStore) -> None:
    pointers = [Pointer(agent_id=agent_id, lease_epoch=1) for agent_id in ("a", "a.b", "a.json", "z_9")]
    for pointer in pointers:
        store.swap_pointer(pointer.agent_id, pointer, None)
    assert sorted(store.list_pointers(), key=lambda pointer: pointer.agent_id) == pointers


@pytest.mark.parametrize("agent_id", ["", "../x", "a/b", ".", "..", "-a", "a b", "ä", "a" * 201, "a\n"])
def test_an_agent_id_that_could_escape_the_folder_is_refused(store: CheckpointStore, agent_id: str) -> None:
    with pytest.raises(InvalidArgument, match="agent id"):
        store.read_pointer(agent_id)
    with pytest.raises(InvalidArgument, match="agent id"):
        store.swap_pointer(agent_id, Pointer(), None)


RACING_PROGRAM = """
import os, sys
from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store import STORES, open_store
from podrace.errors import Aborted

uri, writers, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for round in range(rounds):
    found = open_store(uri).read_pointer("raced")
    gate_end, gate = os.pipe()
    children = []
    for writer in range(writers):
        pid = os.fork()
        if pid == 0:
            os.close(gate)
            store = STORES[uri.partition("://")[0]](uri, 60.0)  # open_store would check, and the checks race too
            os.read(gate_end, 1)  # returns when the parent closes the gate: all start at once
            pointer = Pointer(agent_id="raced", lease_epoch=round * writers + writer + 1)
            try:
                store.swap_pointer("raced", pointer, found[1] if found else None)
            except Aborted:
                os._exit(3)
            os._exit(0)
        children.append(pid)
    os.close(gate_end)
    os.close(gate)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    winner = codes.index(0)
    assert sorted(codes) == [0] + [3] * (writers - 1), codes
    assert open_store(uri).read_pointer("raced")[0].lease_epoch == round * writers + winner + 1
print("one winner per round")
"""


def test_exactly_one_of_sixteen_racing_processes_wins(store: CheckpointStore) -> None:
    # The S3 server of the tests delays each writer of the same key by a second.
    rounds = "2" if store.uri.startswith("minio") else "10"
    answer = subprocess.run(
        [sys.executable, "-c", RACING_PROGRAM, store.uri, "16", rounds], capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.strip() == "one winner per round", answer.stderr


def test_a_sound_store_passes_its_check_repeatedly(store: CheckpointStore) -> None:
    check_store(store)
    check_store(store)


def test_foreign_files_among_the_pointers_are_not_listed(store: CheckpointStore) -> None:
    publish_versions(store, AGENT, 1)
    if isinstance(store, FolderStore):
        (store._pointers / "._agent-7.json").write_bytes(b"of another program")
    elif isinstance(store, MinioStore):
        store._bucket.put(
            f"{store._pointers}._agent-7.json", b"of another program", digest(b"of another program"), "another object"
        )
    assert [pointer.agent_id for pointer in store.list_pointers()] == [AGENT]

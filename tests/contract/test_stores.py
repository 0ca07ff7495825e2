"""What every checkpoint store promises, and what publishing and collecting on top of it do; run against each store."""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store.collect import collect
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.manifest import manifest_bytes
from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.minio_address import parse_address, read_access
from podrace.checkpoint_store.minio_client import Bucket, Entry, Patience
from podrace.checkpoint_store.publish import claim, fetch, fetch_latest, publish
from podrace.checkpoint_store.snapshots import is_snapshot, store_snapshot, store_snapshot_of
from podrace.checkpoint_store.store import CheckpointStore, check_store
from podrace.digests import digest
from podrace.errors import Aborted, DataLoss, FailedPrecondition, InvalidArgument, NotFound
from podrace.tensor_transport.codec import decode, encode

STALE_EPOCH = "ERROR_REASON_STALE_EPOCH"
BAD_DIGEST = "ERROR_REASON_BAD_DIGEST"
HOUR = 3600.0
AGENT = "agent-7"


@dataclass
class Clock:
    """A clock that goes when told."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Harness:
    """A store with what a test needs to harm it."""

    store: CheckpointStore
    clock: Clock
    damage: Callable[[str], None]
    """Changes one byte of an object behind the store's back."""


def folder_harness(folder: Path) -> Harness:
    clock = Clock()

    def damage(name: str) -> None:
        path = folder / "objects" / name[:2] / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return Harness(FolderStore(folder, clock), clock, damage)


@dataclass
class ClockedBucket(Bucket):
    """A bucket of a real server, whose objects grow old by the clock of the test."""

    clock: Clock = field(default_factory=Clock)
    put_times: dict[str, float] = field(default_factory=dict)

    def now_seconds(self) -> float:
        return self.clock.now

    def put(self, key: str, data: bytes, sha256: str, what: str) -> None:
        self.put_times[key] = self.clock.now
        super().put(key, data, sha256, what)

    def find(self, key: str, what: str) -> Entry | None:
        entry = super().find(key, what)
        return entry and replace(entry, modified_seconds=self.put_times[key])

    def entries(self, prefix: str, what: str) -> Iterator[Entry]:
        for entry in super().entries(prefix, what):
            yield replace(entry, modified_seconds=self.put_times.get(entry.key, self.clock.now))


def minio_harness(uri: str) -> Harness:
    address = parse_address(uri)
    bucket = ClockedBucket(address, read_access(address, os.environ), Patience(60.0))

    def damage(name: str) -> None:
        key = f"{address.prefix}objects/{name[:2]}/{name}"
        data = bytearray(bucket.get(key, "object")[0].data)
        data[len(data) // 2] ^= 1
        Bucket.put(bucket, key, bytes(data), digest(data), "object")

    return Harness(MinioStore(bucket), bucket.clock, damage)


@pytest.fixture(params=["folder", "minio"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    if request.param == "folder":
        return folder_harness(tmp_path / "store")
    return minio_harness(request.getfixturevalue("new_uri")())


@pytest.fixture
def store(harness: Harness) -> CheckpointStore:
    return harness.store


def parts(version: int) -> dict[str, bytes]:
    return {"policy": b"policy %d" % version, "learner": b"learner %d" % version}


def manifest(version: int, previous: str = "") -> Manifest:
    return Manifest(tournament_id="t", algorithm="ppo", policy_version=version, previous_manifest_digest=previous)


def publish_versions(store: CheckpointStore, agent_id: str, *versions: int) -> list[str]:
    """Publishes versions one after the other and returns the digests of their manifests."""
    claim(store, agent_id, 1)
    digests = [""]
    for version in versions:
        digests.append(publish(store, agent_id, 1, parts(version), manifest(version, digests[-1])))
    return digests[1:]


def pointer_of(store: CheckpointStore, agent_id: str = AGENT) -> Pointer | None:
    found = store.read_pointer(agent_id)
    return found[0] if found else None


# Objects.


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000])
def test_an_object_comes_back_under_its_digest(store: CheckpointStore, data: bytes) -> None:
    name = store.put_object(data)
    assert name == digest(data)
    assert store.get_object(name) == data


def test_putting_an_object_again_changes_nothing_but_its_age(harness: Harness) -> None:
    name = harness.store.put_object(b"same")
    harness.clock.now += HOUR
    assert [stored.age_seconds for stored in harness.store.list_objects()] == [pytest.approx(HOUR)]
    assert harness.store.put_object(b"same") == name
    assert [stored.age_seconds for stored in harness.store.list_objects()] == [pytest.approx(0.0)]


def test_putting_a_damaged_object_again_heals_it(harness: Harness) -> None:
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


def test_a_missing_object_is_not_found_by_name(store: CheckpointStore) -> None:
    name = digest(b"never put")
    with pytest.raises(NotFound, match=name):
        store.get_object(name)
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
def test_what_is_no_digest_names_no_object(store: CheckpointStore, name: str) -> None:
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


def test_pointers_of_different_agents_are_apart(store: CheckpointStore) -> None:
    pointers = [Pointer(agent_id=agent_id, lease_epoch=1) for agent_id in ("a", "a.b", "a.json", "z_9")]
    for pointer in pointers:
        store.swap_pointer(pointer.agent_id, pointer, None)
    assert sorted(store.list_pointers(), key=lambda pointer: pointer.agent_id) == pointers


@pytest.mark.parametrize("agent_id", ["", "../x", "a/b", ".", "..", "-a", "a b", "ä", "a" * 201, "a\n"])
def test_an_agent_id_that_could_leave_its_place_is_refused(store: CheckpointStore, agent_id: str) -> None:
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
            store = STORES[uri.partition("://")[0]](uri, 60.0)  # checked above; sixteen checks are a race as well
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
print("one winner a round")
"""


def test_of_sixteen_racing_processes_exactly_one_wins(store: CheckpointStore) -> None:
    # The S3 server of the tests lets each writer of one key wait for a second.
    rounds = "2" if store.uri.startswith("minio") else "10"
    answer = subprocess.run(
        [sys.executable, "-c", RACING_PROGRAM, store.uri, "16", rounds], capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.strip() == "one winner a round", answer.stderr


def test_a_sound_store_passes_its_check_again_and_again(store: CheckpointStore) -> None:
    check_store(store)
    check_store(store)


# Claiming and publishing.


def test_the_first_claim_makes_an_empty_pointer(store: CheckpointStore) -> None:
    assert claim(store, AGENT, 3) == Pointer(agent_id=AGENT, lease_epoch=3)
    assert pointer_of(store) == Pointer(agent_id=AGENT, lease_epoch=3)


def test_a_later_claim_keeps_the_manifest(store: CheckpointStore) -> None:
    (published,) = publish_versions(store, AGENT, 1)
    assert claim(store, AGENT, 2) == Pointer(agent_id=AGENT, lease_epoch=2, manifest_digest=published)


def test_a_repeated_claim_is_success(store: CheckpointStore) -> None:
    assert claim(store, AGENT, 2) == claim(store, AGENT, 2)


def test_a_claim_below_the_pointers_epoch_is_stale(store: CheckpointStore) -> None:
    claim(store, AGENT, 5)
    with pytest.raises(FailedPrecondition, match="epoch 4 is stale") as refusal:
        claim(store, AGENT, 4)
    assert refusal.value.reason == STALE_EPOCH
    assert pointer_of(store) == Pointer(agent_id=AGENT, lease_epoch=5)


def test_a_published_checkpoint_comes_back_whole(store: CheckpointStore) -> None:
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


def test_a_repeated_publication_is_success_and_changes_nothing(store: CheckpointStore) -> None:
    (published,) = publish_versions(store, AGENT, 1)
    before = store.read_pointer(AGENT)
    assert publish(store, AGENT, 1, parts(1), manifest(1)) == published
    assert store.read_pointer(AGENT) == before


def test_a_stale_epoch_cannot_publish_and_stores_nothing(store: CheckpointStore) -> None:
    (published,) = publish_versions(store, AGENT, 1)
    claim(store, AGENT, 2)
    before = sorted(stored.digest for stored in store.list_objects())
    with pytest.raises(FailedPrecondition, match="epoch 1 is stale, 2 holds") as refusal:
        publish(store, AGENT, 1, parts(2), manifest(2, published))
    assert refusal.value.reason == STALE_EPOCH
    assert pointer_of(store) == Pointer(agent_id=AGENT, lease_epoch=2, manifest_digest=published)
    assert sorted(stored.digest for stored in store.list_objects()) == before


def test_an_agent_that_was_not_claimed_cannot_be_published(store: CheckpointStore) -> None:
    with pytest.raises(FailedPrecondition, match="claim the agent first"):
        publish(store, AGENT, 1, parts(1), manifest(1))
    claim(store, AGENT, 1)
    with pytest.raises(FailedPrecondition, match="claim the agent first"):
        publish(store, AGENT, 2, parts(1), manifest(1))


class Overtaken(FolderStore):
    """A store where somebody else swaps the pointer just before us, as often as told."""

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


def test_a_claim_whose_reply_was_lost_is_success(tmp_path: Path) -> None:
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


def test_a_part_of_another_size_than_stated_is_refused(store: CheckpointStore) -> None:
    (published,) = publish_versions(store, AGENT, 1)
    lying, _ = fetch(store, published)
    lying.parts[0].size_bytes += 1
    with pytest.raises(DataLoss, match=r"'learner'.*has 9 bytes, its manifest states 10") as refusal:
        fetch(store, store.put_object(manifest_bytes(lying)))
    assert refusal.value.reason == BAD_DIGEST


def test_a_missing_part_is_named(harness: Harness) -> None:
    (published,) = publish_versions(harness.store, AGENT, 1)
    harness.store.delete_object(digest(b"policy 1"), 0.0)
    with pytest.raises(NotFound, match=digest(b"policy 1")):
        fetch(harness.store, published)


def test_the_latest_checkpoint_is_the_pointers(store: CheckpointStore) -> None:
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


def test_a_reader_falls_back_to_the_predecessor_and_says_why(harness: Harness) -> None:
    first, _ = publish_versions(harness.store, AGENT, 1, 2)
    harness.damage(digest(b"learner 2"))
    latest = fetch_latest(harness.store, AGENT)
    assert latest is not None
    assert (latest.manifest_digest, latest.manifest.policy_version, latest.parts) == (first, 1, parts(1))
    assert digest(b"learner 2") in latest.damage


def test_a_reader_that_finds_no_sound_checkpoint_names_the_damage(harness: Harness) -> None:
    publish_versions(harness.store, AGENT, 1, 2)
    harness.damage(digest(b"learner 2"))
    harness.damage(digest(b"policy 1"))
    with pytest.raises(DataLoss, match=digest(b"policy 1")):
        fetch_latest(harness.store, AGENT)


def test_the_first_checkpoint_has_nothing_to_fall_back_to(harness: Harness) -> None:
    publish_versions(harness.store, AGENT, 1)
    harness.damage(digest(b"learner 1"))
    with pytest.raises(DataLoss, match=f"no earlier checkpoint.*{digest(b'learner 1')}"):
        fetch_latest(harness.store, AGENT)


class Trap:
    """What a pickle could do to its reader."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (os.mkdir, ("sprung",))


@pytest.mark.parametrize("damage", ["pickle", "header", "cut"])
def test_training_files_that_are_no_safetensors_are_one_line_and_lose_nothing(
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
    _, files = fetch(store, second)  # they are what was published, so that their digest is right
    with pytest.raises(DataLoss, match=f"{len(harmful)} bytes are no whole safetensors file") as refusal:
        decode(files["policy"])
    assert "\n" not in refusal.value.message
    assert not (tmp_path / "sprung").exists()
    assert decode(fetch(store, first)[1]["policy"])[0]["weight"].shape == (3, 5)


# Collecting garbage.


def test_a_pointer_keeps_its_manifest_and_its_predecessor(harness: Harness) -> None:
    first, second, third = publish_versions(harness.store, AGENT, 1, 2, 3)
    harness.clock.now += HOUR
    deleted = collect(harness.store, [], HOUR)
    assert sorted(deleted) == sorted([first, digest(b"policy 1"), digest(b"learner 1")])
    assert fetch(harness.store, second)[1] == parts(2)
    assert fetch(harness.store, third)[1] == parts(3)
    assert collect(harness.store, [], HOUR) == []


def test_a_root_keeps_its_parts_but_not_its_predecessor(harness: Harness) -> None:
    first, second, _, _ = publish_versions(harness.store, AGENT, 1, 2, 3, 4)
    harness.clock.now += HOUR
    assert first in collect(harness.store, [second], HOUR)
    assert fetch(harness.store, second)[1] == parts(2)


def test_a_part_of_several_checkpoints_lives_while_one_does(harness: Harness) -> None:
    claim(harness.store, AGENT, 1)
    previous = ""
    for version in range(4):
        files = {"segment": b"never changes", "policy": b"policy %d" % version}
        previous = publish(harness.store, AGENT, 1, files, manifest(version, previous))
    harness.clock.now += HOUR
    assert len(collect(harness.store, [], HOUR)) == 4
    assert fetch(harness.store, previous)[1]["segment"] == b"never changes"


def test_a_fresh_object_is_never_collected(harness: Harness) -> None:
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
        collect(harness.store, [digest(b"a manifest that is gone")], HOUR)
    harness.damage(published)
    with pytest.raises(DataLoss, match=published):
        collect(harness.store, [], HOUR)
    assert sorted(stored.digest for stored in harness.store.list_objects()) == before


def test_a_predecessor_that_is_gone_does_not_stop_the_collection(harness: Harness) -> None:
    claim(harness.store, AGENT, 1)
    publish(harness.store, AGENT, 1, parts(1), manifest(1, previous=digest(b"collected long ago")))
    garbage = harness.store.put_object(b"garbage")
    harness.clock.now += HOUR
    assert collect(harness.store, [], HOUR) == [garbage]


# Snapshots.


def test_a_snapshot_is_a_policy_alone_that_no_pointer_leads_to(store: CheckpointStore) -> None:
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


def test_nothing_can_be_kept_of_a_checkpoint_without_a_policy(store: CheckpointStore) -> None:
    with pytest.raises(InvalidArgument, match="has no part 'policy'"):
        store_snapshot_of(store, digest(b"x"), manifest(1))


def test_a_snapshot_outlives_the_training_files_of_its_checkpoint(harness: Harness) -> None:
    first, _, _ = publish_versions(harness.store, AGENT, 1, 2, 3)
    kept = store_snapshot_of(harness.store, first, fetch(harness.store, first)[0])
    lost = store_snapshot(harness.store, b"nobody remembers it", manifest(9))
    harness.clock.now += HOUR
    gone = collect(harness.store, [kept], HOUR)
    assert set(gone) == {first, digest(b"learner 1"), lost, digest(b"nobody remembers it")}
    assert fetch(harness.store, kept)[1] == {"policy": b"policy 1"}

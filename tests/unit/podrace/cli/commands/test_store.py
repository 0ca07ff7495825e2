from pathlib import Path
from typing import Any

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest, Pointer
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.manifest import manifest_bytes
from podrace.checkpoint_store.publish import claim, fetch, publish
from podrace.checkpoint_store.snapshots import store_snapshot
from podrace.checkpoint_store.store import check_store
from podrace.digests import digest

AGENT = "t-a0"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path / "store")
    check_store(store)
    return store


def published(store: FolderStore, version: int, *, agent: str = AGENT, scored: bool = False, previous: str = "") -> str:
    claim(store, agent, 1)
    evaluation = Evaluation(mean_return=float(version)) if scored else None
    manifest = Manifest(
        tournament_id="t",
        algorithm="ppo",
        environment_steps=1000 * version,
        evaluation=evaluation,
        previous_manifest_digest=previous,
    )
    manifest.publish_time.FromSeconds(1_000_000 + version)
    parts = {"policy": b"policy %d of %s" % (version, agent.encode()), "learner": bytes(1000 * version)}
    return publish(store, agent, 1, parts, manifest)


def damage(store: FolderStore, name: str) -> None:
    path = store._object_path("", name)
    path.write_bytes(path.read_bytes()[:-1] + b"~")


def names(store: FolderStore) -> set[str]:
    return {stored.digest for stored in store.list_objects()}


def test_a_valid_store_passes_its_check_which_leaves_no_objects(type_: Any, store: FolderStore) -> None:
    before = names(store)
    answer = type_("store", "check", store.uri, "--json")
    assert answer.code == 0
    assert (answer.json["uri"], answer.json["honours_conditions"]) == (store.uri, True)
    assert answer.json["write_megabytes_per_second"] > 0
    assert names(store) == before
    assert "honours conditions" in type_("store", "check", store.uri).out


def test_a_failed_check_is_reported_in_one_line(type_: Any, store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = type_("store", "check", str(tmp_path / "file"))
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.startswith("error: checkpoint store ")
    assert answer.err.count("\n") == 1
    assert type_("store", "check", "ftp://x").code == 2


def test_agents_are_listed_with_their_newest_checkpoint(type_: Any, store: FolderStore) -> None:
    first = published(store, 1)
    second = published(store, 2)
    claim(store, "t-a1", 7)
    listed = {entry["agent_id"]: entry for entry in type_("store", "ls", store.uri, "--json").json}
    assert list(listed) == [AGENT, "t-a1"]  # without that of the check
    newest = listed[AGENT]
    assert (newest["manifest_digest"], newest["previous_manifest_digest"]) == (second, first)
    assert (newest["environment_steps"], newest["size_bytes"], newest["lease_epoch"]) == (2000, 2000 + 16, 1)
    assert newest["age_seconds"] > 0
    assert (listed["t-a1"]["lease_epoch"], listed["t-a1"]["age_seconds"]) == (7, None)
    shown = type_("store", "ls", store.uri).out
    assert second[:12] in shown
    assert "2.0k" in shown


def test_a_damaged_manifest_is_listed_as_damaged(type_: Any, store: FolderStore) -> None:
    manifest_digest = published(store, 1)
    damage(store, manifest_digest)
    (entry,) = type_("store", "ls", store.uri, "--json").json
    assert "damaged" in entry["damage"]


def test_an_intact_store_verifies(type_: Any, store: FolderStore) -> None:
    published(store, 1)
    published(store, 2)
    answer = type_("store", "verify", store.uri, "--json")
    assert answer.code == 0
    # Two manifests, four parts, and the object of the check.
    assert (answer.json["agents"], answer.json["manifests"], answer.json["objects"]) == (1, 2, 7)
    assert answer.json["damage"] == []


def test_unfinished_writes_are_counted(type_: Any, store: FolderStore) -> None:
    assert type_("store", "verify", store.uri, "--json").json["unfinished_writes"] == 0
    assert "unfinished writes" not in type_("store", "verify", store.uri).out
    (Path(store.uri.removeprefix("folder://")) / "incoming" / "torn").touch()
    assert type_("store", "verify", store.uri, "--json").json["unfinished_writes"] == 1
    assert "unfinished writes: 1" in type_("store", "verify", store.uri).out


def test_a_missing_piece_of_a_replay_memory_is_no_damage_but_a_changed_one_is(type_: Any, store: FolderStore) -> None:
    claim(store, AGENT, 1)
    publish(store, AGENT, 1, {"policy": b"policy", "replay.segments.000": b"old", "replay.state": b"state"}, Manifest())
    store.delete_object(digest(b"old"), 0.0)
    assert type_("store", "verify", store.uri, "--json").json["damage"] == []
    damage(store, digest(b"state"))
    assert len(type_("store", "verify", store.uri, "--json").json["damage"]) > 0


@pytest.mark.parametrize("harm", ["damaged part", "missing part", "damaged manifest", "missing manifest", "size"])
def test_every_damage_is_reported_and_the_exit_code_is_1(type_: Any, store: FolderStore, harm: str) -> None:
    newest = published(store, 1)
    named = digest(b"policy 1 of t-a0") if "part" in harm else newest
    if harm.startswith("damaged"):
        damage(store, named)
    elif harm.startswith("missing"):
        store.delete_object(named, 0.0)
    else:
        lying, _ = fetch(store, newest)
        lying.parts[0].size_bytes += 1
        claim(store, "t-a1", 1)
        found = store.read_pointer("t-a1")
        assert found is not None
        named = lying.parts[0].digest
        lying_digest = store.put_object(manifest_bytes(lying))
        store.swap_pointer("t-a1", Pointer(agent_id="t-a1", lease_epoch=1, manifest_digest=lying_digest), found[1])
    answer = type_("store", "verify", store.uri, "--json")
    assert answer.code == 1
    assert any(named in line for line in answer.json["damage"])
    shown = type_("store", "verify", store.uri)
    assert shown.code == 1
    assert named in shown.out


def test_garbage_is_deleted_only_with_delete(type_: Any, store: FolderStore) -> None:
    first = published(store, 1)
    second, third = published(store, 2), published(store, 3)
    gone = {first, digest(b"policy 1 of t-a0"), digest(bytes(1000))}
    before = names(store)
    shown = type_("store", "gc", store.uri, "--grace", "0", "--json")
    assert set(shown.json["objects"]) == gone
    assert shown.json["deleted"] is False
    assert names(store) == before
    assert "can be deleted with --delete" in type_("store", "gc", store.uri, "--grace", "0").out
    assert set(type_("store", "gc", store.uri, "--grace", "0", "--delete", "--json").json["objects"]) == gone
    assert names(store) == before - gone
    assert {fetch(store, name)[0].environment_steps for name in (second, third)} == {2000, 3000}


def test_recent_objects_are_kept(type_: Any, store: FolderStore) -> None:
    store.put_object(b"a part whose manifest is not written yet")
    assert type_("store", "gc", store.uri, "--json").json["objects"] == []


def test_a_scored_checkpoint_is_kept_unless_boards_gone_is_given(type_: Any, store: FolderStore) -> None:
    champion = published(store, 1, scored=True)
    published(store, 2)
    published(store, 3)
    kept = type_("store", "gc", store.uri, "--grace", "0", "--delete", "--json").json
    assert (kept["objects"], kept["scored"]) == ([], 1)
    assert fetch(store, champion)[0].environment_steps == 1000
    assert "a board may need them" in type_("store", "gc", store.uri, "--grace", "0").err
    pinned = type_("store", "gc", store.uri, "--grace", "0", "--boards-gone", "--keep", champion, "--json").json
    assert pinned["objects"] == []
    gone = type_("store", "gc", store.uri, "--grace", "0", "--boards-gone", "--delete", "--json").json
    assert champion in gone["objects"]
    assert champion not in names(store)


def test_a_snapshot_is_kept_unless_boards_gone_is_given(type_: Any, store: FolderStore) -> None:
    snapshot = store_snapshot(store, b"policy", Manifest(tournament_id="t", agent_id=AGENT, algorithm="ppo"))
    kept = type_("store", "gc", store.uri, "--grace", "0", "--delete", "--json").json
    assert kept["objects"] == []
    assert fetch(store, snapshot)[1] == {"policy": b"policy"}
    gone = type_("store", "gc", store.uri, "--grace", "0", "--boards-gone", "--delete", "--json").json
    assert set(gone["objects"]) == {snapshot, digest(b"policy")}


def test_nothing_is_deleted_if_a_manifest_to_keep_cannot_be_read(type_: Any, store: FolderStore) -> None:
    newest = published(store, 1)
    orphan = store.put_object(b"garbage")
    answer = type_("store", "gc", store.uri, "--grace", "0", "--delete", "--keep", digest(b"no such manifest"))
    assert answer.code == 2
    assert type_("store", "gc", store.uri, "--delete", "--keep", "abc").code == 2
    damage(store, newest)
    assert type_("store", "gc", store.uri, "--grace", "0", "--delete").code == 1
    assert orphan in names(store)


@pytest.mark.parametrize("command", ["ls", "verify", "gc"])
def test_read_only_commands_write_nothing(type_: Any, tmp_path: Path, command: str) -> None:
    store = FolderStore(tmp_path / "unchecked")
    assert type_("store", command, store.uri).code == 0
    assert list(store.list_objects()) == list(store.list_pointers()) == []


@pytest.mark.parametrize("command", ["ls", "verify", "gc"])
def test_read_only_commands_do_not_create_a_missing_folder(type_: Any, tmp_path: Path, command: str) -> None:
    for uri in (str(tmp_path / "typo"), f"folder://{tmp_path}/typo"):
        answer = type_("store", command, uri)
        assert (answer.code, answer.err) == (
            2,
            f"error: checkpoint store {uri!r}: this folder does not exist or has no store\n",
        )
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("command", ["ls", "verify", "gc"])
def test_a_folder_that_has_no_store_is_not_reported_intact(type_: Any, tmp_path: Path, command: str) -> None:
    assert type_("store", command, str(tmp_path)).code == 2
    assert not list(tmp_path.iterdir())

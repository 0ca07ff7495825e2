"""Tests the store `folder`, and the checks that open_store makes on every store."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from errno import EACCES, EIO, ENOTCONN, EROFS, ESTALE, ETIMEDOUT
from pathlib import Path

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.collect import collect
from podrace.checkpoint_store.folder import INCOMING_LIFE_SECONDS, FolderStore, _written
from podrace.checkpoint_store.store import check_store
from podrace.digests import digest
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable


def test_a_path_and_a_uri_open_the_same_folder(tmp_path: Path) -> None:
    by_path = open_store(str(tmp_path / "store"))
    by_uri = open_store(f"folder://{tmp_path}/store")
    assert by_path.uri == by_uri.uri == f"folder://{tmp_path}/store"
    assert by_uri.get_object(by_path.put_object(b"x")) == b"x"


@pytest.mark.parametrize("uri", ["s3://bucket", "minio+ftp://host/bucket", "://x"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(uri: str) -> None:
    with pytest.raises(InvalidArgument, match=r"unknown scheme .*known are: folder"):
        open_store(uri)


@pytest.mark.parametrize("uri", ["", "folder://", "folder://relative/path"])
def test_a_uri_without_an_absolute_path_is_refused(uri: str) -> None:
    with pytest.raises(InvalidArgument, match="folder:///absolute/path"):
        open_store(uri)


def test_a_file_at_the_path_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(FailedPrecondition, match=r"checkpoint store .*file.*must be a folder"):
            open_store(str(path))


def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(FailedPrecondition, match=r"checkpoint store /proc/podrace"):
        open_store("/proc/podrace")


FULL_DISK_PROGRAM = """
import resource, sys
from podrace.checkpoint_store import open_store
from podrace.errors import ResourceExhausted

store = open_store(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    store.put_object(bytes(1_000_000))
except ResourceExhausted as error:
    print(error.message)
"""


def test_a_full_disk_is_reported_on_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", FULL_DISK_PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert str(tmp_path) in answer.stdout, answer.stderr
    assert "make room" in answer.stdout
    store = FolderStore(tmp_path)
    assert digest(bytes(1_000_000)) not in {stored.digest for stored in store.list_objects()}
    assert list((tmp_path / "incoming").iterdir()) == []


class Careless(FolderStore):
    """A store that ignores a condition."""

    ignored = "If-Match"

    def swap_pointer(self, agent_id: str, pointer: Pointer, etag: str | None) -> None:
        condition = "If-None-Match" if etag is None else "If-Match"
        found = self.read_pointer(agent_id)
        super().swap_pointer(agent_id, pointer, found[1] if found and condition == self.ignored else etag)


class Forgetful(FolderStore):
    """A store that returns other bytes than were put."""

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        return super().get_object(name, largest_bytes)[:-1]


class Torn(FolderStore):
    """A store that truncates what is put."""

    def put_object(self, data: bytes) -> str:
        name = super().put_object(data)
        os.truncate(self._object_path("", name), len(data) - 1)
        return name


class Leaking(FolderStore):
    """A store that stores nothing."""

    def put_object(self, data: bytes) -> str:
        return digest(data)


@pytest.mark.parametrize("ignored", ["If-Match", "If-None-Match"])
def test_a_store_that_ignores_a_condition_is_refused(tmp_path: Path, ignored: str) -> None:
    store = Careless(tmp_path)
    store.ignored = ignored
    with pytest.raises(FailedPrecondition, match=f"folder://{tmp_path} ignores conditions on writes"):
        check_store(store)


def test_a_store_that_loses_objects_is_refused(tmp_path: Path) -> None:
    for careless in (Forgetful, Torn, Leaking):
        with pytest.raises(FailedPrecondition, match="does not return what was put"):
            check_store(careless(tmp_path / careless.__name__))


def test_a_damaged_pointer_is_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    (tmp_path / "pointers" / "a.json").write_bytes(b'{"agent_id":')
    with pytest.raises(DataLoss, match=f"pointer of agent a in folder://{tmp_path}"):
        store.read_pointer("a")


def test_other_files_among_the_objects_are_not_listed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    name = store.put_object(b"x")
    (tmp_path / "objects" / name[:2] / "note.txt").touch()
    (tmp_path / "objects" / "note.txt").touch()
    assert [stored.digest for stored in store.list_objects()] == [name]


def test_a_file_of_a_killed_writer_is_removed_when_the_store_is_opened_a_minute_later(tmp_path: Path) -> None:
    FolderStore(tmp_path)
    left = tmp_path / "incoming" / "torn"
    left.touch()
    written = left.stat().st_mtime
    assert FolderStore(tmp_path, lambda: written + INCOMING_LIFE_SECONDS).remove_abandoned() == 1
    assert left.exists()
    assert FolderStore(tmp_path, lambda: written + INCOMING_LIFE_SECONDS + 1).remove_abandoned() == 0
    assert not left.exists()


def test_a_file_whose_writer_lives_is_kept_however_old_it_is(tmp_path: Path) -> None:
    FolderStore(tmp_path)
    with _written(tmp_path / "incoming", b"slow") as incoming:
        later = FolderStore(tmp_path, lambda: incoming.stat().st_mtime + 24 * 3600.0)
        assert later.remove_abandoned() == 1
        assert incoming.read_bytes() == b"slow"
    assert later.remove_abandoned() == 0


def test_a_collection_removes_what_killed_writers_have_left(tmp_path: Path) -> None:
    left = tmp_path / "incoming" / "torn"
    now = [left.parent.parent.stat().st_mtime]
    store = FolderStore(tmp_path, lambda: now[0])
    left.touch()
    now[0] = left.stat().st_mtime + INCOMING_LIFE_SECONDS + 1
    assert collect(store, [], 3600.0) == []
    assert not left.exists()


KILLED_PROGRAM = """
import itertools, os, signal, sys
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import claim, fetch, publish
from podrace.digests import digest

def die_before(call):
    calls = itertools.count()
    def hook(frame, event, function):
        if event == "c_call":
            module = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
            if module in ("posix", "io", "_io", "fcntl") and next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(hook)

def publish_version(version):
    parts = {"policy": b"policy %d" % version, "learner": os.urandom(100_000)}
    return publish(store, "agent", 1, parts, Manifest(policy_version=version))

store = open_store(sys.argv[1])
claim(store, "agent", 1)
publish_version(0)
old = 0
for call in itertools.count():
    child = os.fork()
    if child == 0:
        die_before(call)
        publish_version(call + 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for stored in store.list_objects():
        assert digest(store.get_object(stored.digest)) == stored.digest, f"half-written at call {call}"
    version = fetch(store, store.read_pointer("agent")[0].manifest_digest)[0].policy_version
    assert version in (old, call + 1), version
    old = version
    if code == 0:
        assert version == call + 1
        print("killed before each of", call, "calls")
        break
    assert code == -signal.SIGKILL, code
"""


@pytest.mark.long
def test_a_writer_killed_before_any_system_call_leaves_the_old_or_the_new_checkpoint_whole(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", KILLED_PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.startswith("killed before each of "), answer.stderr
    assert int(answer.stdout.split()[4]) > 50


def test_a_tolerated_error_of_the_check_does_not_keep_a_store_from_opening(tmp_path, monkeypatch):
    def full(*_: object) -> str:
        raise ResourceExhausted("the disk is full")

    monkeypatch.setattr(FolderStore, "put_object", full)
    with pytest.raises(ResourceExhausted):
        open_store(str(tmp_path))
    with pytest.raises(ResourceExhausted):
        open_store(str(tmp_path), tolerated=(Unavailable,))
    assert open_store(str(tmp_path), tolerated=(ResourceExhausted,)).uri == f"folder://{tmp_path}"


def test_the_age_of_an_object_does_not_depend_on_the_clock_of_this_machine(tmp_path, monkeypatch):
    store = FolderStore(tmp_path)
    name = store.put_object(b"x")
    monkeypatch.setattr("time.time", lambda: 4e9)
    (found,) = store.list_objects()
    assert found.age_seconds < 60.0
    assert not store.delete_object(name, minimum_age_seconds=60.0)
    os.utime(store._object_path("", name), (0, 0))
    assert store.delete_object(name, minimum_age_seconds=60.0)


FAULTS = (EACCES, EIO, ENOTCONN, EROFS, ESTALE, ETIMEDOUT)


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), "/store")

    return fail


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_of_the_file_system_of_an_open_store_may_pass(tmp_path, monkeypatch, code: int):
    store = open_store(str(tmp_path)).within("race-aaaaaa")
    monkeypatch.setattr(tempfile, "mkstemp", failing(code))
    monkeypatch.setattr(Path, "is_file", failing(code))
    for call in (
        lambda: store.put_object(b"x"),
        lambda: store.swap_pointer("race-aaaaaa-a0", Pointer(agent_id="race-aaaaaa-a0"), None),
        lambda: store.has_object(digest(b"x")),
    ):
        with pytest.raises(Unavailable, match=rf"{os.strerror(code)} \(/store\); repair"):
            call()
    monkeypatch.undo()
    assert store.get_object(store.put_object(b"x")) == b"x"


@pytest.mark.parametrize("code", FAULTS)
def test_a_folder_that_was_never_usable_is_an_error_at_once(tmp_path, monkeypatch, code: int):
    monkeypatch.setattr(tempfile, "mkstemp", failing(code))
    with pytest.raises(FailedPrecondition, match=r"must be a folder that this process can write"):
        open_store(str(tmp_path), tolerated=(ResourceExhausted, Unavailable))


@pytest.mark.parametrize("code", FAULTS)
def test_a_folder_that_an_earlier_process_has_used_is_opened_during_a_fault(tmp_path, monkeypatch, code: int):
    name = open_store(str(tmp_path)).put_object(b"x")
    (tmp_path / "incoming" / "abandoned").touch()
    os.utime(tmp_path / "incoming" / "abandoned", (0, 0))
    for place, call in ((tempfile, "mkstemp"), (os, "utime"), (Path, "mkdir"), (Path, "touch"), (Path, "unlink")):
        monkeypatch.setattr(place, call, failing(code))
    with pytest.raises(FailedPrecondition, match=r"must be a folder that this process can write"):
        open_store(str(tmp_path), tolerated=(Unavailable,))
    store = open_store(str(tmp_path), tolerated=(FailedPrecondition,))
    assert store.get_object(name) == b"x"
    with pytest.raises(Unavailable, match="repair"):
        store.put_object(b"y")
    monkeypatch.undo()
    assert store.get_object(store.put_object(b"y")) == b"y"
    open_store(str(tmp_path))
    assert not list((tmp_path / "incoming").iterdir())


def test_a_folder_that_was_unmounted_may_return(tmp_path):
    store = open_store(str(tmp_path / "store"))
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(Unavailable, match="No such file or directory"):
        store.swap_pointer("race-aaaaaa-a0", Pointer(agent_id="race-aaaaaa-a0"), None)
    with pytest.raises(Unavailable, match="No such file or directory"):
        store.put_object(b"x")

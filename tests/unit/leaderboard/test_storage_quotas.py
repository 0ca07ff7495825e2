"""Of the manifests that the quotas are applied to, only the lists of their parts stay in memory."""

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from allocations import allocated_bytes

from leaderboard import storage_quotas
from leaderboard.storage_quotas import _Reader
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.manifest import manifest_bytes, manifest_from_bytes
from podrace.digests import digest

TOURNAMENT = "cartpole-abc123"
MANIFESTS, PARTS, LEAST_BYTES = 48, 12, 29_000


def stored(store: FolderStore, number: int) -> str:
    """Stores a manifest whose specification takes most of it; returns its digest."""
    manifest = Manifest(format_version=1, tournament_id=TOURNAMENT)
    manifest.spec.update({f"key {key}": f"{number} {key}".ljust(100) for key in range(250)})
    for part in range(PARTS):
        manifest.parts.add(name=f"replay-{part:04}", digest=digest(f"{number} {part}".encode()), size_bytes=1000)
    return store.within(TOURNAMENT).put_object(manifest_bytes(manifest))


def in_c(read: Callable[[str], object], names: list[str]) -> int:
    """Returns the bytes that C code has allocated for what is kept, which includes protobuf messages."""
    gc.collect()
    before = allocated_bytes()
    kept = [read(name) for name in names]
    gc.collect()
    found = allocated_bytes() - before
    del kept
    return found


def in_python(read: Callable[[str], object], names: list[str]) -> int:
    """Returns the bytes of the Python objects that are kept."""
    tracemalloc.start()
    try:
        kept = [read(name) for name in names]
        gc.collect()
        found, _ = tracemalloc.get_traced_memory()
        del kept
        return found
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count_bytes", [in_c, in_python])
def test_the_reader_keeps_lists_of_parts_and_no_manifests(
    tmp_path: Path, count_bytes: Callable[[Callable[[str], object], list[str]], int]
) -> None:
    store = FolderStore(tmp_path / "store")
    first, *names = [stored(store, number) for number in range(1 + MANIFESTS)]
    contents = {name: store.get_object(name) for name in (first, *names)}
    assert min(map(len, contents.values())) > LEAST_BYTES
    bound = MANIFESTS * LEAST_BYTES // 4
    reader = _Reader(store)
    # What is loaded once does not count.
    reader.read(TOURNAMENT, first)
    assert count_bytes(lambda name: reader.read(TOURNAMENT, name), names) < bound
    found = [reader.read(TOURNAMENT, name) for name in names]
    assert [(one.size_bytes, len(one.parts)) for one in found if one] == [
        (len(contents[name]), PARTS) for name in names
    ]


@pytest.mark.parametrize(
    ("count_bytes", "read"),
    [
        (in_c, manifest_from_bytes),
        (in_c, lambda content: manifest_from_bytes(content).parts),
        (in_python, lambda content: content[:-1]),
    ],
    ids=["messages", "parts of messages", "bytes"],
)
def test_whole_manifests_would_exceed_the_bound(
    tmp_path: Path,
    count_bytes: Callable[[Callable[[str], object], list[str]], int],
    read: Callable[[bytes], object],
) -> None:
    store = FolderStore(tmp_path / "store")
    names = [stored(store, number) for number in range(MANIFESTS)]
    assert count_bytes(lambda name: read(store.get_object(name)), names) > MANIFESTS * LEAST_BYTES // 4


def test_an_object_that_is_larger_than_any_manifest_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_quotas, "LARGEST_MANIFEST_BYTES", LEAST_BYTES)
    store = FolderStore(tmp_path / "store")
    large, reader = stored(store, 0), _Reader(store)
    assert not reader.is_readable(TOURNAMENT, large)
    assert not reader.is_missing(TOURNAMENT, large)

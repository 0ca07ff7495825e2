"""What is deleted from a bucket that keeps versions is deleted with all of them."""

import io
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from minio.error import S3Error

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.minio_address import Access, parse_address
from podrace.checkpoint_store.minio_client import Bucket
from podrace.checkpoint_store.minio_retries import RetryPolicy
from podrace.checkpoint_store.publish import claim, publish
from podrace.errors import PodraceError

AGENT = "race-a0"


class Versions:
    """A client of a bucket that keeps versions: the identity and content of each by key; a marker has no content."""

    def __init__(self) -> None:
        self.kept: dict[str, list[tuple[str, bytes | None]]] = {}
        self.locked: set[str] = set()
        self.after_deletion = lambda: None
        self._ids = itertools.count(1)

    def _present(self, key: str) -> tuple[str, bytes]:
        version, content = (self.kept.get(key) or [("", None)])[-1]
        if content is None:
            raise _error(404, "NoSuchKey")
        return version, content

    def put(self, bucket: str, key: str, data: bytes, headers: Any) -> None:
        self.kept.setdefault(key, []).append((str(next(self._ids)), bytes(data)))

    def stat_object(self, bucket: str, key: str) -> Any:
        version, content = self._present(key)
        return _found(key, version, content, version_id=version)

    def get_object(self, bucket: str, key: str) -> Any:
        version, content = self._present(key)
        headers = {"Content-Length": str(len(content)), "ETag": version}
        return SimpleNamespace(
            headers=headers, read=io.BytesIO(content).read, close=lambda: None, release_conn=lambda: None
        )

    def list_objects(
        self, bucket: str, prefix: str, recursive: bool, start_after: str | None = None, include_version: bool = False
    ) -> Iterator[Any]:
        for key in sorted(self.kept):
            if not key.startswith(prefix) or (start_after and key <= start_after):
                continue
            newest_first = self.kept[key][::-1]
            for version, content in newest_first if include_version else newest_first[:1]:
                latest = "true" if version == newest_first[0][0] else "false"
                if include_version or content is not None:
                    yield _found(key, version, content or b"", version_id=version, is_latest=latest)

    def remove_object(self, bucket: str, key: str, version: str | None) -> None:
        if key in self.locked:
            raise _error(403, "AccessDenied")
        if version:
            self.kept[key] = [one for one in self.kept[key] if one[0] != version]
        else:
            self.kept[key].append((str(next(self._ids)), None))
        self.after_deletion()


def _error(status: int, code: str) -> S3Error:
    response: Any = SimpleNamespace(status=status, headers={})
    return S3Error(response, code, "", "", "", "")


def _found(key: str, version: str, content: bytes, **more: str) -> Any:
    moment = datetime.now(UTC)
    return SimpleNamespace(object_name=key, etag=version, size=len(content), last_modified=moment, is_dir=False, **more)


@pytest.fixture
def versions() -> Versions:
    return Versions()


@pytest.fixture
def store(versions: Versions) -> MinioStore:
    bucket = Bucket(parse_address("minio+http://h/bucket/p"), Access("key", "secret", region="r"), RetryPolicy(1.0))
    bucket._client = versions  # type: ignore[assignment]
    return MinioStore(bucket)


def publish_three(store: MinioStore) -> None:
    own = store.within("race")
    claim(own, AGENT, 1)
    for number in range(3):
        publish(own, AGENT, 1, {"policy": b"%d" % number}, Manifest(tournament_id="race"))
    for _ in range(3):
        own.put_object(b"stored again")


def test_a_deleted_pointer_does_not_come_back_as_an_earlier_version(store: MinioStore, versions: Versions) -> None:
    publish_three(store)
    newest, seen = store.read_pointer(AGENT), []
    versions.after_deletion = lambda: seen.append(store.read_pointer(AGENT))
    store.delete_pointer(AGENT)
    assert set(map(str, seen)) == {str(newest), "None"}, "an earlier one was never the present one"
    assert not list(store.list_pointers())


def test_a_deleted_tournament_leaves_no_versions(store: MinioStore, versions: Versions) -> None:
    publish_three(store)
    objects = len(list(store.within("race").list_objects()))
    assert store.delete_tournament("race") == objects
    assert not any(kept for key, kept in versions.kept.items() if "/tournaments/" in key)


def test_a_locked_object_does_not_keep_the_others_of_its_tournament(store: MinioStore, versions: Versions) -> None:
    publish_three(store)
    versions.locked = {next(key for key in sorted(versions.kept) if "/tournaments/" in key)}
    with pytest.raises(PodraceError):
        store.delete_tournament("race")
    assert {key for key, kept in versions.kept.items() if kept and "/tournaments/" in key} == versions.locked

"""Tests transfers to and from the store `minio`: digests, parts, connections, number of requests."""

import base64
import threading
from collections.abc import MutableMapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NamedTuple
from xml.etree import ElementTree

import minio
import pytest
from scripted_s3 import AGENT, BUCKET, POINTER_PATH, Fault, ScriptedS3, etag_of, path_of
from structlog.testing import CapturingLogger

import podrace.checkpoint_store.publish
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store import minio_client
from podrace.checkpoint_store.manifest import canonical_json
from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.publish import claim, fetch, fetch_latest, publish
from podrace.digests import digest
from podrace.errors import DataLoss, PermissionDenied, PodraceError, ResourceExhausted, Unavailable

# Digests.


def test_every_write_sends_its_digest(script: ScriptedS3, store: MinioStore) -> None:
    first, second = (Pointer(agent_id=AGENT, lease_epoch=epoch) for epoch in (1, 2))
    store.put_object(b"x")
    store.swap_pointer(AGENT, first, None)
    of_pointer = digest(canonical_json(first))
    assert script.checksums == {path_of(b"x"): (digest(b"x"),) * 2, POINTER_PATH: (of_pointer,) * 2}
    store.swap_pointer(AGENT, second, etag_of(canonical_json(first)).strip('"'))
    assert script.checksums[POINTER_PATH] == (digest(canonical_json(second)),) * 2


def test_a_body_with_a_known_digest_is_not_hashed_again(
    script: ScriptedS3, store: MinioStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []
    plain = minio.api.sha256_hash
    monkeypatch.setattr(minio.api, "sha256_hash", lambda data: hashed.append(len(data or b"")) or plain(data))
    store.put_object(bytes(1000))
    assert set(hashed) == {0}
    assert script.checksums[path_of(bytes(1000))][0] == digest(bytes(1000))


# Round trips.


def test_sequential_requests_share_a_connection(script: ScriptedS3, store: MinioStore) -> None:
    for index in range(5):
        name = store.put_object(b"%d" % index)
        store.get_object(name)
        assert store.read_pointer(AGENT) is None
    assert script.connections == 1


def test_a_publication_reads_the_pointer_writes_its_objects_and_swaps_the_pointer(
    script: ScriptedS3, store: MinioStore
) -> None:
    claim(store, AGENT, 1)
    for version in range(2):
        script.requests.clear()
        published = publish(store, AGENT, 1, {"policy": b"p%d" % version, "learner": b"l"}, Manifest())
        assert script.methods() == "GET PUT PUT PUT PUT"
        manifest_path = f"/{BUCKET}/p/objects/{published[:2]}/{published}"
        assert [path for _, path in script.requests[3:]] == [manifest_path, POINTER_PATH]
    script.requests.clear()
    fetch(store, published)
    assert script.methods() == "GET GET GET"


def test_the_parts_of_a_large_checkpoint_are_stored_in_parallel(
    script: ScriptedS3, store: MinioStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podrace.checkpoint_store.publish, "AT_ONCE_BYTES", 1)
    claim(store, AGENT, 1)
    files = {name: name.encode() for name in ("policy", "learner", "more")}
    writing = threading.Barrier(3)
    script.faults = [Fault("PUT", marker="objects", meets=writing)] * 3
    published = publish(store, AGENT, 1, files, Manifest())
    assert not writing.broken
    assert fetch(store, published)[1] == files
    # The connections are kept for the next publication.
    made = script.connections
    assert made <= 3
    publish(store, AGENT, 1, files, Manifest())
    assert script.connections == made


@pytest.mark.long
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_publication_into_a_full_store_loses_nothing(script: ScriptedS3, store: MinioStore, failing: int) -> None:
    claim(store, AGENT, 1)
    first = publish(store, AGENT, 1, {"policy": b"policy 1", "learner": b"learner 1"}, Manifest(policy_version=1))
    sound = [Fault("PUT", meets=threading.Barrier(1)) for _ in range(failing - 1)]
    script.faults = [*sound, Fault("PUT", 507, "XMinioStorageFull")]
    with pytest.raises(ResourceExhausted, match="make room"):
        publish(store, AGENT, 1, {"policy": b"policy 2", "learner": b"learner 2"}, Manifest(policy_version=2))
    latest = fetch_latest(store, AGENT)
    assert latest is not None
    assert (latest.manifest_digest, latest.parts["policy"], latest.damage) == (first, b"policy 1", "")


# Large objects.


class Upload(NamedTuple):
    """An unfinished upload as the server lists it."""

    object_name: str
    upload_id: str
    initiated_time: datetime


@pytest.fixture
def parted(store: MinioStore) -> MinioStore:
    """A store that uploads in parts of 10 bytes."""
    store._bucket.part_bytes = 10
    return store


@pytest.mark.parametrize("size", [10, 11, 20, 25])
def test_a_large_object_is_uploaded_in_parts(script: ScriptedS3, parted: MinioStore, size: int) -> None:
    data = bytes(range(size))
    name = parted.put_object(data)
    assert script.objects == {path_of(data): data}
    assert parted.get_object(name) == data
    parts = -(-size // 10)
    assert script.methods() == ("PUT GET" if size == 10 else " ".join(["POST", *["PUT"] * parts, "POST HEAD GET"]))


def test_a_failed_part_is_retried_alone(script: ScriptedS3, parted: MinioStore) -> None:
    data = bytes(range(25))
    script.faults = [Fault("PUT", 503, "SlowDown", marker="partNumber=2")]
    parted.put_object(data)
    assert script.objects == {path_of(data): data}
    assert script.methods() == "POST PUT PUT PUT PUT POST HEAD"


def test_a_large_object_that_arrives_truncated_is_read_again(script: ScriptedS3, parted: MinioStore) -> None:
    parted._bucket.part_bytes = 40_000
    name = parted.put_object(bytes(100_000))
    script.faults = [Fault("GET", sent_bytes=70_000)]
    assert parted.get_object(name) == bytes(100_000)


@pytest.mark.parametrize("marker", ["partNumber=1", "partNumber=3", ""])
def test_a_failed_upload_leaves_no_parts(script: ScriptedS3, parted: MinioStore, marker: str) -> None:
    method = "PUT" if marker else "POST"
    script.faults = [Fault(method, 403, "AccessDenied", marker=marker or "uploadId")]
    with pytest.raises(PermissionDenied):
        parted.put_object(bytes(25))
    assert script.uploads == script.objects == {}


def test_an_upload_that_cannot_be_aborted_counts_as_unfinished(
    script: ScriptedS3, store: MinioStore, monkeypatch: pytest.MonkeyPatch, log_lines: list[MutableMapping[str, Any]]
) -> None:
    begun = datetime(2026, 1, 2, tzinfo=UTC)
    script.uploads = {f"/{BUCKET}/p/objects/{name}": {} for name in ("first", "second")}

    def list_uploads(bucket: str, prefix: str) -> Any:
        keys = [path.removeprefix(f"/{BUCKET}/") for path in script.uploads]
        listed = [Upload(key, "upload", begun) for key in keys if key.startswith(prefix)]
        return SimpleNamespace(uploads=listed)

    monkeypatch.setattr(store._bucket._client, "list_uploads", list_uploads)
    script.faults = [Fault("DELETE", 403, "AccessDenied", marker="first")]
    assert store.remove_abandoned() == 1
    assert [line["count"] for line in log_lines if line["event"] == "unfinished uploads aborted"] == [1]
    assert list(script.uploads) == [f"/{BUCKET}/p/objects/first"]
    assert store.remove_abandoned() == 0
    assert not script.uploads


def test_a_completion_whose_reply_was_lost_is_success(script: ScriptedS3, parted: MinioStore) -> None:
    data = bytes(range(25))
    script.faults = [Fault("POST", marker="uploadId", carried_out=True)]
    parted.put_object(data)
    assert script.objects == {path_of(data): data}


def test_a_completion_that_the_server_did_not_carry_out_fails(script: ScriptedS3, parted: MinioStore) -> None:
    lost = [Fault("POST", marker="uploadId"), Fault("POST", 404, "NoSuchUpload", marker="uploadId")]
    script.faults = list(lost)
    with pytest.raises(PodraceError, match="NoSuchUpload"):
        parted.put_object(bytes(25))
    assert script.objects == {}
    # The same if an equal older object exists, whose age the upload did not reset.
    path = path_of(bytes(25))
    script.objects[path], script.modified[path] = bytes(25), "Fri, 02 Jan 2026 04:04:05 GMT"
    script.faults = list(lost)
    with pytest.raises(PodraceError, match="NoSuchUpload"):
        parted.put_object(bytes(25))


def test_a_completion_that_was_acknowledged_but_not_carried_out_fails(script: ScriptedS3, parted: MinioStore) -> None:
    script.faults = [Fault("POST", 200, marker="uploadId")]
    with pytest.raises(Unavailable, match="did not join the uploaded parts"):
        parted.put_object(bytes(25))
    assert script.uploads == script.objects == {}


@pytest.mark.long
def test_an_error_in_a_response_with_status_200_is_found(script: ScriptedS3, parted: MinioStore) -> None:
    data = bytes(range(25))
    # An old copy must not count as the object of this upload.
    script.objects[path_of(data)], script.modified[path_of(data)] = data, "Fri, 02 Jan 2026 04:04:05 GMT"
    script.faults = [Fault("POST", 200, "InternalError", marker="uploadId")] * 100
    with pytest.raises(Unavailable, match="HTTP 200 InternalError"):
        parted.put_object(data)
    script.modified.clear()
    script.faults = [Fault("POST", 200, "InternalError", marker="uploadId")]
    parted.put_object(data)
    assert len(script.completions) == 1


def test_every_part_sends_its_digest_and_the_completion_lists_all(script: ScriptedS3, parted: MinioStore) -> None:
    data = bytes(range(25))
    parted.put_object(data)
    digests = [digest(data[begin : begin + 10]) for begin in (0, 10, 20)]
    assert script.checksums == {f"{path_of(data)}#{number}": (sha256,) * 2 for number, sha256 in enumerate(digests, 1)}
    (completion,) = script.completions
    entries = ElementTree.fromstring(completion)
    listed = [[field.text for field in entry] for entry in entries]
    etags = [etag_of(data[begin : begin + 10]) for begin in (0, 10, 20)]
    stated = [base64.b64encode(bytes.fromhex(sha256)).decode() for sha256 in digests]
    assert listed == [[str(number), *pair] for number, pair in enumerate(zip(etags, stated, strict=True), 1)]
    assert [field.tag.rpartition("}")[2] for field in entries[0]] == ["PartNumber", "ETag", "ChecksumSHA256"]


@pytest.mark.long
@pytest.mark.parametrize("marker", ["partNumber=2", "objects"])
def test_data_damaged_in_transfer_is_sent_again(script: ScriptedS3, parted: MinioStore, marker: str) -> None:
    data = bytes(range(25)) if "part" in marker else b"x"
    script.faults = [Fault("PUT", 400, "BadDigest", marker=marker)]
    parted.put_object(data)
    assert script.objects == {path_of(data): data}
    script.faults = [Fault("PUT", 400, "BadDigest", marker=marker)] * 100
    with pytest.raises(DataLoss, match=r"was damaged in transfer \(BadDigest"):
        parted.put_object(data)


def test_an_object_has_at_most_as_many_parts_as_s3_accepts(
    script: ScriptedS3, parted: MinioStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minio_client, "PARTS", 3)
    data = bytes(range(100))
    name = parted.put_object(data)
    assert script.methods() == "POST PUT PUT PUT POST HEAD"
    assert parted.get_object(name) == data


def test_parts_of_an_object_are_uploaded_in_parallel(script: ScriptedS3, parted: MinioStore) -> None:
    meeting = threading.Barrier(3)
    script.faults = [Fault("PUT", marker="partNumber", meets=meeting)] * 3
    parted.put_object(bytes(25))
    assert not meeting.broken


def test_a_long_transfer_logs_its_progress(parted: MinioStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(minio_client, "_log", log)
    parted.put_object(bytes(25))
    assert log.calls == []
    monkeypatch.setattr(minio_client, "PROGRESS_SECONDS", 0.0)
    name = parted.put_object(bytes(25))
    logged = [
        (call.method_name, *call.args, call.kwargs["done_bytes"], call.kwargs["total_bytes"]) for call in log.calls
    ]
    assert logged == [("info", f"storing object {name}", done, 25) for done in (10, 20, 25)]
    log.calls.clear()
    monkeypatch.setattr(minio_client, "OVERLAPPED_BYTES", 25)
    parted.get_object(name)
    assert [(*call.args, call.kwargs["done_bytes"]) for call in log.calls] == [(f"reading object {name}", 25)]


# Renewals.

OLD = "Sun, 04 Jan 2026 00:00:00 GMT"
REFUSED = Fault("PUT", status=400, code="InvalidRequest", marker="objects")


def renewed(script: ScriptedS3, store: MinioStore, data: bytes) -> str:
    """Renews an old object and returns the methods of the requests."""
    script.objects[path_of(data)], script.modified[path_of(data)] = data, OLD
    assert store.renew_object(digest(data), 60.0)
    assert script.objects[path_of(data)] == data
    return script.methods()


def test_an_object_is_renewed_without_transferring_its_bytes(script: ScriptedS3, store: MinioStore) -> None:
    assert renewed(script, store, b"large") == "HEAD HEAD PUT HEAD"
    assert path_of(b"large") not in script.checksums


def test_an_object_that_is_not_old_is_not_renewed(script: ScriptedS3, store: MinioStore) -> None:
    name = store.put_object(b"x")
    assert store.renew_object(name, 60.0)
    assert script.methods() == "PUT HEAD"
    assert not store.renew_object(digest(b"missing"), 60.0)


def test_a_server_that_refuses_copies_is_sent_the_object_again(script: ScriptedS3, store: MinioStore) -> None:
    script.faults.append(REFUSED)
    assert renewed(script, store, b"large").endswith("HEAD GET PUT")


def test_a_copy_that_leaves_the_age_is_followed_by_the_object(script: ScriptedS3, store: MinioStore) -> None:
    script.copies = False
    assert renewed(script, store, b"large").endswith("HEAD GET PUT")


def test_a_large_object_is_rewritten_in_pieces(
    script: ScriptedS3, store: MinioStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._bucket, "part_bytes", 10)
    script.faults.append(REFUSED)
    data = bytes(range(25))
    assert renewed(script, store, data).endswith("HEAD POST GET PUT GET PUT GET PUT POST HEAD")
    pieces = [script.checksums[f"{path_of(data)}#{number}"][1] for number in (1, 2, 3)]
    assert pieces == [digest(data[:10]), digest(data[10:20]), digest(data[20:])]


@pytest.mark.parametrize("part_bytes", [10, 1000])
def test_a_damaged_object_is_not_rewritten(
    script: ScriptedS3, store: MinioStore, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(store._bucket, "part_bytes", part_bytes)
    path = path_of(bytes(25))
    script.objects[path], script.modified[path], script.copies = b"damaged" * 4, OLD, False
    with pytest.raises(DataLoss, match="is damaged: its 28 bytes"):
        store.renew_object(digest(bytes(25)), 60.0)
    assert script.modified[path] == OLD
    assert not script.uploads


def test_no_view_of_a_store_rewrites_an_object_while_another_one_does(
    script: ScriptedS3, store: MinioStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.copies = False
    free: list[bool] = []
    other = store.within("another")
    monkeypatch.setattr(store._bucket, "rewrite", lambda *_: free.append(other._rewriting.acquire(blocking=False)))
    renewed(script, store, b"large")
    assert free == [False]

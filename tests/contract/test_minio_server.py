"""Tests the store `minio` on a real S3 server. Tests of all stores are in test_stores.py."""

import hashlib
import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import weed
from minio.versioningconfig import VersioningConfig
from store_harness import publish_versions

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.minio import MinioStore, create_bucket
from podrace.checkpoint_store.minio_address import parse_address, read_access
from podrace.checkpoint_store.minio_client import Bucket
from podrace.checkpoint_store.minio_private import S3Client
from podrace.checkpoint_store.minio_retries import RetryPolicy
from podrace.digests import digest
from podrace.errors import Aborted, FailedPrecondition, NotFound, PermissionDenied

HOUR = 3600.0
PART_BYTES = 5 * 2**20
"""Smallest part that S3 allows."""


def bucket_of(server: weed.S3Server, uri: str) -> Bucket:
    address = parse_address(uri)
    return Bucket(address, read_access(address, server.environ), RetryPolicy(10.0), part_bytes=PART_BYTES)


def unfinished(server: weed.S3Server, prefix: str) -> list[str]:
    client = S3Client(server.endpoint, weed.ACCESS_KEY, weed.SECRET_KEY, secure=False, region="us-east-1")
    uploads = client.list_uploads(weed.BUCKET, prefix).uploads
    return [str(upload.object_name) for upload in uploads]


def test_the_packages_public_method_ignores_conditions_and_put_if_does_not(
    s3_server: weed.S3Server, new_uri: Callable
) -> None:
    client, bucket = s3_server.client(), bucket_of(s3_server, new_uri())
    key = f"{bucket.address.prefix}k"
    for content in (b"first", b"second"):
        client.put_object(weed.BUCKET, key, io.BytesIO(content), len(content), metadata={"If-None-Match": "*"})
    # The condition was stored as metadata of the object.
    assert client.stat_object(weed.BUCKET, key).metadata["X-Amz-Meta-If-None-Match"] == "*"
    assert bucket.get(key, "object")[0].data == b"second"
    with pytest.raises(Aborted):
        bucket.put_if(key, b"third", None, "object")
    assert bucket.get(key, "object")[0].data == b"second"


CUT_PROGRAM = """
import http.client, os, sys
from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store import open_store

store = open_store(sys.argv[1])
_, etag = store.read_pointer("a")
send = http.client.HTTPConnection.send
def die_before_the_body(self, data):
    if not data.startswith(b"PUT"):
        os._exit(0)
    send(self, data)
http.client.HTTPConnection.send = die_before_the_body
if sys.argv[2] == "pointer":
    store.swap_pointer("a", Pointer(agent_id="a", lease_epoch=2), etag)
else:
    store.put_object(b"content")
os._exit(1)
"""


@pytest.mark.parametrize("what", ["pointer", "object"])
def test_a_writer_killed_between_headers_and_body_changes_nothing(new_uri: Callable, what: str) -> None:
    store = open_store(new_uri())
    store.swap_pointer("a", Pointer(agent_id="a", lease_epoch=1), None)
    name = store.put_object(b"content")
    subprocess.run([sys.executable, "-c", CUT_PROGRAM, store.uri, what], check=True, timeout=60)
    for _ in range(50):  # the server may notice with a delay
        assert store.get_object(name) == b"content"
        found = store.read_pointer("a")
        assert found is not None
        assert found[0].lease_epoch == 1


def test_a_store_opens_again_by_its_uri(new_uri: Callable) -> None:
    store = open_store(new_uri())
    name = store.put_object(b"x")
    assert open_store(store.uri).get_object(name) == b"x"


def test_a_missing_bucket_is_reported_with_the_command_that_creates_it(s3_server: weed.S3Server) -> None:
    with pytest.raises(
        FailedPrecondition, match=r"no bucket 'missing'; create it, for instance: aws s3 mb s3://missing"
    ):
        open_store(f"minio+http://{s3_server.endpoint}/missing")


@pytest.mark.parametrize("variable", ["PODRACE_STORE_ACCESS_KEY", "PODRACE_STORE_SECRET_KEY"])
def test_wrong_credentials_are_reported_with_their_variable(
    new_uri: Callable, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    uri = new_uri()
    monkeypatch.setenv(variable, "wrong")
    with pytest.raises(PermissionDenied, match="check the credentials in PODRACE_STORE_ACCESS_KEY"):
        open_store(uri)


def test_the_age_of_an_object_is_measured_by_the_servers_clock(new_uri: Callable) -> None:
    store = open_store(new_uri())
    name = store.put_object(b"x")
    assert store.delete_object(name, HOUR) is False
    (age,) = [stored.age_seconds for stored in store.list_objects() if stored.digest == name]
    assert -2.0 < age < 60.0
    assert store.delete_object(name, -2.0) is True


@pytest.mark.parametrize("size", [5, 2 * PART_BYTES])
def test_the_server_copies_an_object_onto_itself_and_counts_it_as_put_now(
    s3_server: weed.S3Server, new_uri: Callable, size: int
) -> None:
    bucket = bucket_of(s3_server, new_uri())
    store = MinioStore(bucket)
    data = b"\1" * size
    name = store.put_object(data)
    (entry,) = bucket.entries(bucket.address.prefix, "objects")
    # As if it were older: the times of servers are whole seconds.
    assert bucket.copy_onto_itself(replace(entry, modified_seconds=entry.modified_seconds - HOUR), "object")
    assert store.get_object(name) == data


def test_a_large_object_is_rewritten_in_pieces(s3_server: weed.S3Server, new_uri: Callable) -> None:
    bucket = bucket_of(s3_server, new_uri())
    store = MinioStore(bucket)
    name = store.put_object(data := b"\1" * (2 * PART_BYTES + 1))
    (entry,) = bucket.entries(bucket.address.prefix, "objects")
    bucket.rewrite(entry, name, "object")
    assert store.get_object(name) == data


@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_a_large_object_is_uploaded_in_parts_and_returned_whole(
    s3_server: weed.S3Server, new_uri: Callable, size: int
) -> None:
    store = MinioStore(bucket_of(s3_server, new_uri()))
    data = hashlib.shake_256(b"%d" % size).digest(size)
    name = store.put_object(data)
    assert store.get_object(name) == data
    assert [(stored.digest, stored.size_bytes) for stored in store.list_objects()] == [(name, size)]
    assert unfinished(s3_server, store._bucket.address.prefix) == []


def test_an_upload_of_a_killed_writer_is_aborted_when_the_store_is_opened_an_hour_later(
    s3_server: weed.S3Server, new_uri: Callable
) -> None:
    bucket = bucket_of(s3_server, new_uri())
    key = f"{bucket.address.prefix}objects/aa/{'a' * 64}"
    bucket._client.create_upload(weed.BUCKET, key, {})
    store = MinioStore(bucket)
    store.remove_abandoned()
    assert unfinished(s3_server, bucket.address.prefix) == [key]
    bucket.now_seconds = lambda: Bucket.now_seconds(bucket) + HOUR + 2  # type: ignore[method-assign]
    store.remove_abandoned()
    assert unfinished(s3_server, bucket.address.prefix) == []


def test_a_bucket_is_created_once(s3_server: weed.S3Server) -> None:
    uri = s3_server.uri("").replace(weed.BUCKET, "fresh")
    created = [create_bucket(uri, deadline_seconds=10.0, environ=s3_server.environ) for _ in range(2)]
    assert created == [True, False]
    assert s3_server.client().bucket_exists("fresh")


def test_only_the_old_version_is_deleted_in_a_bucket_that_keeps_versions(s3_server: weed.S3Server) -> None:
    client = s3_server.client()
    if not client.bucket_exists("versions"):
        client.make_bucket("versions")
        client.set_bucket_versioning("versions", VersioningConfig("Enabled"))
    bucket = bucket_of(s3_server, f"minio+http://{s3_server.endpoint}/versions/{s3_server.pid}")
    store = MinioStore(bucket)
    name = store.put_object(b"old garbage, then a part again")
    entry = bucket.find(store._object_key("", name), "object")
    assert entry is not None
    store.put_object(b"old garbage, then a part again")  # between reading its age and deleting it
    bucket.delete(entry, "object")
    assert store.get_object(name) == b"old garbage, then a part again"
    assert store.delete_object(name, -2.0) is True
    with pytest.raises(NotFound):
        store.get_object(name)


def test_two_stores_in_one_bucket_are_independent(s3_server: weed.S3Server, new_uri: Callable) -> None:
    first, second = (MinioStore(bucket_of(s3_server, new_uri())) for _ in range(2))
    name = first.put_object(b"x")
    assert list(second.list_objects()) == []
    with pytest.raises(NotFound, match=f"object {digest(b'x')} is not in"):
        second.get_object(name)
    nested = replace(first._bucket.address, prefix=f"{first._bucket.address.prefix}objects/")
    assert list(MinioStore(bucket_of(s3_server, nested.uri)).list_objects()) == []


def test_a_deleted_tournament_leaves_no_versions(s3_server: weed.S3Server) -> None:
    client = s3_server.client()
    if not client.bucket_exists("deletions"):
        client.make_bucket("deletions")
        client.set_bucket_versioning("deletions", VersioningConfig("Enabled"))
    store = MinioStore(bucket_of(s3_server, f"minio+http://{s3_server.endpoint}/deletions/{s3_server.pid}"))
    agent_id, own = "race-a0", store.within("race")
    publish_versions(own, agent_id, 1, 2, 3)
    own.put_object(b"policy 1")
    store.delete_pointer(agent_id)
    assert store.read_pointer(agent_id) is None
    assert store.delete_tournament("race") == 9
    prefix = f"{s3_server.pid}/"
    assert not list(client.list_objects("deletions", prefix, recursive=True, include_version=True))

"""Tests that the holder of a signed URL can send the granted request and no other, to a real S3 server.

The suite runs against a server that knows keys only, and against one with an identity service (`-s3.iam.config`), where
URLs are signed with the keys of the operator or with temporary credentials.
"""

import base64
import hashlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest
import urllib3
import weed

from podrace.checkpoint_store.minio_address import parse_address, read_access
from podrace.checkpoint_store.minio_client import Bucket
from podrace.checkpoint_store.minio_retries import RetryPolicy
from podrace.checkpoint_store.store import UrlGrant
from podrace.digests import digest
from podrace.errors import NotFound

DATA = b"the bytes that were announced"
OTHER = b"other bytes of the same size."
KEY = "tournaments/ant-x1/objects/aa/object"
LIFETIME_SECONDS = 60.0


@pytest.fixture(scope="module", params=[False, True], ids=["keys", "sts"])
def server(request: pytest.FixtureRequest) -> Iterator[weed.S3Server]:
    if weed.binary() is None:
        pytest.skip(weed.MISSING)
    with weed.running_server(sts=request.param) as running:
        yield running


@pytest.fixture
def bucket(server: weed.S3Server) -> Bucket:
    """The bucket with the keys of the operator."""
    address = parse_address(server.uri(f"test/{uuid.uuid4().hex[:12]}"))
    return Bucket(address, read_access(address, server.environ), RetryPolicy(10.0))


@pytest.fixture(params=["keys", "session"])
def signer(request: pytest.FixtureRequest, bucket: Bucket, server: weed.S3Server) -> Bucket:
    """The same bucket with the credentials that sign: those of the operator, or temporary ones."""
    if request.param == "keys":
        return bucket
    if not server.sts:
        pytest.skip("a server without an identity service has no temporary credentials")
    own = f"arn:aws:s3:::{weed.BUCKET}/{bucket.address.prefix}tournaments/*"
    given = server.session(
        [{"Effect": "Allow", "Action": ["s3:PutObject", "s3:GetObject"], "Resource": [own]}]
    ).retrieve()
    temporary = replace(
        bucket.access,
        access_key=given.access_key,
        secret_key=given.secret_key,
        session_token=given.session_token or "",
    )
    return Bucket(bucket.address, temporary, RetryPolicy(10.0))


@pytest.fixture
def key(bucket: Bucket) -> str:
    return f"{bucket.address.prefix}{KEY}"


@pytest.fixture
def grant(signer: Bucket, key: str) -> UrlGrant:
    return signer.grant_put(key, digest(DATA), len(DATA), LIFETIME_SECONDS)


def send(grant: UrlGrant, body: bytes, *, method: str = "PUT", url: str = "", **changed: str | None) -> int:
    """Sends a request of the grant, with changed headers (None: left out); returns the status."""
    headers = dict(grant.headers) | {name.replace("_", "-"): value for name, value in changed.items()}
    sent = {name: value for name, value in headers.items() if value is not None}
    with urllib3.PoolManager(retries=False) as client:
        return client.request(method, url or grant.url, body=body, headers=sent).status


def test_the_granted_bytes_can_be_stored_once(bucket: Bucket, key: str, grant: UrlGrant) -> None:
    assert send(grant, DATA) == 200
    assert bucket.get(key, "object")[0].data == DATA
    assert send(grant, DATA) == 412


@pytest.mark.parametrize("changed", [None, '"0123456789abcdef"'])
def test_the_condition_that_the_object_does_not_exist_cannot_be_left_out(
    bucket: Bucket, key: str, grant: UrlGrant, changed: str | None
) -> None:
    bucket.put(key, OTHER, digest(OTHER), "object")
    assert send(grant, DATA, if_none_match=changed) == 403
    assert bucket.get(key, "object")[0].data == OTHER


def test_other_bytes_are_refused(bucket: Bucket, key: str, grant: UrlGrant) -> None:
    stated = base64.b64encode(hashlib.sha256(OTHER).digest()).decode()
    assert send(grant, OTHER) == 400
    assert send(grant, OTHER, x_amz_checksum_sha256=stated) == 403
    assert send(grant, OTHER, x_amz_checksum_sha256=None) == 403
    with pytest.raises(NotFound):
        bucket.get(key, "object")


def test_another_size_is_refused(bucket: Bucket, key: str, grant: UrlGrant) -> None:
    assert send(grant, DATA + b"more", content_length=str(len(DATA) + 4)) == 403
    assert send(grant, DATA[:-1], content_length=str(len(DATA) - 1)) == 403
    with pytest.raises(NotFound):
        bucket.get(key, "object")


@pytest.mark.parametrize("method", ["DELETE", "GET", "HEAD", "POST"])
def test_a_grant_to_write_allows_no_other_method(bucket: Bucket, key: str, grant: UrlGrant, method: str) -> None:
    bucket.put(key, DATA, digest(DATA), "object")
    assert send(grant, b"", method=method, content_length=None) in (403, 405)
    assert bucket.get(key, "object")[0].data == DATA


@pytest.mark.parametrize("method", ["DELETE", "PUT"])
def test_a_grant_to_read_allows_no_other_method(bucket: Bucket, signer: Bucket, key: str, method: str) -> None:
    bucket.put(key, DATA, digest(DATA), "object")
    assert send(signer.grant_get(key, LIFETIME_SECONDS), b"", method="GET") == 200
    assert send(signer.grant_get(key, LIFETIME_SECONDS), OTHER, method=method) == 403
    assert bucket.get(key, "object")[0].data == DATA


def test_a_grant_names_one_object(bucket: Bucket, signer: Bucket, key: str, grant: UrlGrant) -> None:
    theirs = key.replace("ant-x1", "ant-y2")
    bucket.put(theirs, OTHER, digest(OTHER), "object")
    reading = signer.grant_get(key, LIFETIME_SECONDS)
    for granted, method in ((grant, "PUT"), (reading, "GET")):
        parts = urlsplit(granted.url)
        moved = urlunsplit(parts._replace(path=parts.path.replace("ant-x1", "ant-y2")))
        assert send(granted, DATA if method == "PUT" else b"", method=method, url=moved) == 403
    listing = urlunsplit(urlsplit(reading.url)._replace(path=f"/{bucket.address.bucket}"))
    assert send(reading, b"", method="GET", url=listing) == 403
    assert bucket.get(theirs, "object")[0].data == OTHER


def test_the_lifetime_of_a_grant_cannot_be_extended(grant: UrlGrant) -> None:
    parts = urlsplit(grant.url)
    query = dict(parse_qsl(parts.query)) | {"X-Amz-Expires": "604800"}
    assert send(grant, DATA, url=urlunsplit(parts._replace(query=urlencode(query)))) == 403


def test_a_url_shows_no_secret(signer: Bucket, grant: UrlGrant) -> None:
    assert weed.SECRET_KEY not in grant.url
    assert signer.access.secret_key not in grant.url
    assert os.environ.get("PODRACE_STORE_SECRET_KEY", weed.SECRET_KEY) not in str(grant.headers)

"""Connects to an S3 server with the `minio` package: timeouts, certificates, checksum headers, the server's clock."""

import base64
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

import certifi
import urllib3
from minio.datatypes import Object
from minio.helpers import DictType
from urllib3.util import Timeout

from podrace.checkpoint_store.minio_address import Access, Address
from podrace.checkpoint_store.minio_endpoints import Endpoints, pools
from podrace.checkpoint_store.minio_errors import server_seconds
from podrace.checkpoint_store.minio_private import SIGNED_DIGEST, S3Client, check_private_methods
from podrace.errors import InvalidArgument

TRANSFERS = 4
"""Number of objects, or of parts of one object, that are transferred at the same time."""
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
STATED_DIGEST = "x-amz-checksum-sha256"
UPLOAD_HEADERS = {"x-amz-checksum-algorithm": "SHA256"}
"""Headers that start an upload in parts, each of which states its digest."""


@dataclass(frozen=True)
class BucketEntry:
    """An object as the server lists it."""

    key: str
    size_bytes: int
    modified_seconds: float
    """When it was last put, by the server's clock, in seconds since the epoch."""
    version_id: str = ""
    """Version of the object, if the bucket keeps several."""
    etag: str = ""
    """Changes with the content."""


class Connections(urllib3.PoolManager):
    """A connection pool that compares the server's clock with this machine's."""

    skew_seconds = 0.0
    """Server's clock minus this machine's clock."""

    def __init__(self, **settings: Any) -> None:
        """As PoolManager; avoids addresses of a server that do not answer."""
        super().__init__(**settings)
        self.endpoints = Endpoints()
        self.pool_classes_by_scheme = pools(self.endpoints)

    def urlopen(  # type: ignore[override]  # as in PoolManager, which differs from its own base
        self, method: str, url: str, redirect: bool = True, **arguments: Any
    ) -> urllib3.BaseHTTPResponse:
        """Makes a request."""
        # Without decoding, because a response that is read in pieces would be copied once more.
        response = super().urlopen(method, url, redirect, decode_content=False, **arguments)
        seconds = server_seconds(response.headers)
        if seconds is not None:
            self.skew_seconds = seconds - time.time()
        return response


def connect(address: Address, access: Access) -> tuple[S3Client, Connections]:
    """Creates a client; no request is sent yet.

    Raises:
        InvalidArgument: The name of the region is malformed.
        Unimplemented: The installed package lacks a private method or has changed one.
    """
    check_private_methods()
    connections = open_connections(address, access.ca_file)
    try:
        client = S3Client(
            address.endpoint,
            access.access_key,
            access.secret_key,
            access.session_token or None,
            secure=address.secure,
            region=access.region or None,
            http_client=connections,
        )
    except ValueError as error:  # for example a region with invalid characters
        raise InvalidArgument(f"checkpoint store {address.uri}: {error}") from None
    return client, connections


def open_connections(address: Address, ca_file: str) -> Connections:
    """Returns a pool of connections to a server; no request is sent yet.

    Args:
        address: Location of the store.
        ca_file: File of the certificate authorities to trust; empty: the default ones.
    """
    # Only over TLS: loading the certificates takes as long as storing a checkpoint.
    verified: dict[str, Any] = {"ca_certs": ca_file or certifi.where()} if address.secure else {}
    # The caller retries. A retry here would repeat a conditional write without the caller's knowledge.
    timeout = Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
    # Several objects at once, each in several parts.
    return Connections(retries=False, timeout=timeout, maxsize=TRANSFERS**2, **verified)


def checksum_headers(sha256: str) -> DictType:
    """Returns the headers of a body with this digest: the signed one, and the one that the server verifies.

    Some servers do not compare the signed digest with the body. One of them replaced a pointer by an empty object when
    the writer was killed between headers and body. Returns a new dictionary each time: the client modifies it.
    """
    return {SIGNED_DIGEST: sha256, STATED_DIGEST: base64_digest(sha256)}


@dataclass(frozen=True)
class SentPart:
    """A part of an object that the server has received."""

    number: int
    """From 1."""
    etag: str
    """ETag that the server returned."""
    sha256: str
    """SHA-256 of its bytes, hexadecimal."""


def parts_list(parts: Iterable[SentPart]) -> bytes:
    """Returns the body of the request that joins the parts (CompleteMultipartUpload), with their checksums."""
    root = ElementTree.Element("CompleteMultipartUpload", xmlns="http://s3.amazonaws.com/doc/2006-03-01/")
    for part in parts:
        entry = ElementTree.SubElement(root, "Part")
        for name, text in (
            ("PartNumber", str(part.number)),
            ("ETag", f'"{part.etag}"'),
            ("ChecksumSHA256", base64_digest(part.sha256)),
        ):
            ElementTree.SubElement(entry, name).text = text
    return ElementTree.tostring(root)


def base64_digest(sha256: str) -> str:
    """Returns a hexadecimal digest as headers state it."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def entry_of(key: str, found: Object) -> BucketEntry:
    """Returns the entry of an object that the server has listed."""
    etag = (found.etag or "").strip('"')
    return BucketEntry(key, found.size or 0, seconds_of(found.last_modified), etag=etag)


def seconds_of(moment: datetime | None) -> float:
    """Returns seconds since the epoch."""
    # An object without a time counts as new, so that it is not deleted as very old.
    return moment.timestamp() if moment else time.time()

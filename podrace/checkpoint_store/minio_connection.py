"""Owns how the `minio` package is made to speak: its private verbs, its headers, its connections, its certificates.

The package is asked for requests by its private verbs. Its public `put_object` takes a condition given as metadata for
a note of the user's, stores it beside the object and overwrites; from `_put_object` the header reaches the server. Nor
does it know checksums of its own: it hashes what it sends once more, and completes an upload in parts without them.
"""

import base64
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

import certifi
import urllib3
from minio import Minio, __version__
from minio.credentials.credentials import Credentials
from minio.helpers import DictType
from urllib3.util import Timeout

from podrace.checkpoint_store.minio_address import Access, Address
from podrace.checkpoint_store.minio_errors import server_seconds
from podrace.errors import InvalidArgument, Unimplemented

PRIVATE_VERBS = (
    "_build_headers",
    "_execute",
    "_put_object",
    "_create_multipart_upload",
    "_upload_part",
    "_abort_multipart_upload",
    "_list_multipart_uploads",
)
VERSIONS = "minio>=7.2.20,<8"
"""The releases that have them."""
TRANSFERS = 4
"""Objects, or parts of one, that travel at once; connections are made as they are needed and kept for the next."""
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
SIGNED_DIGEST = "x-amz-content-sha256"
STATED_DIGEST = "x-amz-checksum-sha256"
PARTED = {"x-amz-checksum-algorithm": "SHA256"}
"""Headers of an upload in parts, each of which will state its digest."""


class Connections(urllib3.PoolManager):
    """Connections that notice what the server's clock shows."""

    skew_seconds = 0.0
    """The server's clock less ours."""

    def urlopen(  # type: ignore[override]  # as in PoolManager, which differs from its own base
        self, method: str, url: str, redirect: bool = True, **arguments: Any
    ) -> urllib3.BaseHTTPResponse:
        """Makes a request."""
        # Undecoded, for what is read piece by piece would be copied once more otherwise.
        response = super().urlopen(method, url, redirect, decode_content=False, **arguments)
        seconds = server_seconds(response.headers)
        if seconds is not None:
            self.skew_seconds = seconds - time.time()
        return response


class Client(Minio):
    """The client, except that it signs the digest of a body that is known already instead of hashing it again.

    Over TLS it signs no digest of its own and states an MD5, the slowest of all; with a known one it does neither.
    """

    def _build_headers(
        self,
        host: str,
        headers: DictType | None = None,
        body: bytes | None = None,
        creds: Credentials | None = None,
    ) -> tuple[DictType, datetime]:
        known = (headers or {}).get(SIGNED_DIGEST)
        if body is None or known is None:
            return super()._build_headers(host, headers, body, creds)
        built, date = super()._build_headers(host, headers, None, creds)
        return built | {SIGNED_DIGEST: known, "Content-Length": str(len(body))}, date


def connect(address: Address, access: Access) -> tuple[Client, Connections]:
    """Makes a client; nothing is sent yet.

    Raises:
        InvalidArgument: The region cannot be one.
        Unimplemented: The installed package lacks what this needs.
    """
    missing = [verb for verb in PRIVATE_VERBS if not hasattr(Minio, verb)]
    if missing:
        raise Unimplemented(
            f"minio {__version__} has no {missing[0]}, without which a pointer cannot be written on a condition;"
            f" install '{VERSIONS}'"
        )
    # Not without need: certificates take as long to load as a checkpoint to be stored.
    verified: dict[str, Any] = {"ca_certs": access.ca_file or certifi.where()} if address.secure else {}
    # Tries are counted by the caller, not here, where a conditional write would be repeated and nobody told.
    timeout = Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
    # Several objects at once, each in several parts.
    connections = Connections(retries=False, timeout=timeout, maxsize=TRANSFERS**2, **verified)
    try:
        client = Client(
            address.endpoint,
            access.access_key,
            access.secret_key,
            access.session_token or None,
            secure=address.secure,
            region=access.region or None,
            http_client=connections,
        )
    except ValueError as error:  # a region of odd characters, say
        raise InvalidArgument(f"checkpoint store {address.uri}: {error}") from None
    return client, connections


def checked(sha256: str) -> DictType:
    """Headers of a body with this digest: signed, and stated as well.

    Not every server compares the signed one. One stored an empty object for a writer that was killed between headers
    and body, over the pointer that was there. A fresh dictionary each time: the client adds to the one it is given.
    """
    return {SIGNED_DIGEST: sha256, STATED_DIGEST: _base64(sha256)}


@dataclass(frozen=True)
class SentPart:
    """A part of an object that the server has."""

    number: int
    """From 1."""
    etag: str
    """What the server named it."""
    sha256: str
    """Digest of its bytes, hexadecimal."""


def parts_list(parts: Iterable[SentPart]) -> bytes:
    """The body of the request that puts parts together (CompleteMultipartUpload), with their checksums."""
    root = ElementTree.Element("CompleteMultipartUpload", xmlns="http://s3.amazonaws.com/doc/2006-03-01/")
    for part in parts:
        entry = ElementTree.SubElement(root, "Part")
        for name, text in (
            ("PartNumber", str(part.number)),
            ("ETag", f'"{part.etag}"'),
            ("ChecksumSHA256", _base64(part.sha256)),
        ):
            ElementTree.SubElement(entry, name).text = text
    return ElementTree.tostring(root)


def _base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()

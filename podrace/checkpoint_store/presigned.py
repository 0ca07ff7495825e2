"""Signs URLs of an S3 server for requests that must have certain headers, and sends such requests.

A URL that is signed for the host alone leaves the holder free to send any body, and to leave out a condition. If the
signature covers the headers too, the server refuses a request without them or with other values.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from minio.error import InvalidResponseError, S3Error
from urllib3 import BaseHTTPResponse

from podrace.checkpoint_store.arrival import OVERLAPPED_BYTES, Arrival, receive
from podrace.checkpoint_store.minio_address import Address
from podrace.checkpoint_store.minio_connection import Connections
from podrace.checkpoint_store.minio_errors import Failure, failure_of
from podrace.checkpoint_store.minio_retries import RetryPolicy, retried
from podrace.checkpoint_store.store import UrlGrant, check_size
from podrace.digests import digest

SOURCE = "the URL that the leaderboard signed"
"""What the credentials of a request are in, for messages."""
Result = TypeVar("Result")


def with_signed_headers(url: str, method: str, headers: Mapping[str, str], secret_key: str) -> str:
    """Signs a URL again so that the signature covers headers. Pure.

    The signature is that of the AWS Signature Version 4 in query parameters.

    Args:
        url: A URL that is signed for the host.
        method: Method of the request.
        headers: The headers, with names in lower case.
        secret_key: Secret key of the credentials that the URL names.
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    query.pop("X-Amz-Signature", None)
    signed = {"host": parts.netloc, **headers}
    query["X-Amz-SignedHeaders"] = ";".join(sorted(signed))
    canonical_query = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
    canonical = "\n".join(
        (
            *(method, parts.path, canonical_query),
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            *("", query["X-Amz-SignedHeaders"], "UNSIGNED-PAYLOAD"),
        )
    )
    scope = query["X-Amz-Credential"].partition("/")[2]
    text = "\n".join(("AWS4-HMAC-SHA256", query["X-Amz-Date"], scope, digest(canonical.encode())))
    key = f"AWS4{secret_key}".encode()
    for word in (*scope.split("/"), text):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    return urlunsplit(parts._replace(query=f"{canonical_query}&X-Amz-Signature={key.hex()}"))


class Requests:
    """Sends granted requests, and retries those whose failure may pass."""

    def __init__(self, address: Address, connections: Connections, retries: RetryPolicy) -> None:
        """Sends no request yet."""
        self._address, self._connections, self._retries = address, connections, retries

    def put(self, grant: UrlGrant, data: bytes, what: str) -> None:
        """Writes an object.

        Raises:
            Aborted: It exists, perhaps because the reply to an earlier attempt was lost.
            Unavailable: The URL was refused: it has expired, or its credentials or clock are no longer accepted.
            PodraceError: As the store `minio`.
        """
        self._try(what, lambda: _refused(self._send("PUT", grant, body=data)))

    def get(self, grant: UrlGrant, what: str, largest_bytes: int | None = None) -> Arrival:
        """Reads an object, which is not verified.

        Raises:
            ObjectTooLarge: It is larger than `largest_bytes`.
            NotFound: There is no such object.
            Unavailable: As for `put`.
            PodraceError: As the store `minio`.
        """
        return self._try(what, lambda: _received(self._send("GET", grant, preload_content=False), what, largest_bytes))

    def _send(self, method: str, grant: UrlGrant, **arguments: object) -> BaseHTTPResponse:
        return self._connections.urlopen(method, grant.url, redirect=False, headers=dict(grant.headers), **arguments)

    def _try(self, what: str, call: Callable[[], Result]) -> Result:
        def failure(error: Exception) -> Failure:
            # The leaderboard, which signed the URL, has opened the store.
            return failure_of(error, self._address, what, SOURCE).of_usable_store()

        return retried(self._retries, call, failure)


def _refused(response: BaseHTTPResponse) -> BaseHTTPResponse:
    """Returns a response that reports success; raises the error in any other one."""
    if response.status == 200:
        return response
    if "xml" in response.headers.get("Content-Type", "") and response.data:
        raise S3Error.fromxml(response)
    raise InvalidResponseError(response.status, response.headers.get("Content-Type", ""), None)


def _received(response: BaseHTTPResponse, what: str, largest_bytes: int | None) -> Arrival:
    try:
        _refused(response)
        size_bytes = int(response.headers.get("Content-Length", ""))
        check_size(what, size_bytes, largest_bytes)
        if size_bytes < OVERLAPPED_BYTES:
            data = response.read()
            return Arrival(data, digest(data))
        return receive(size_bytes, response.readinto)
    finally:
        response.close()
        response.release_conn()

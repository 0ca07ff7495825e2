"""Translates errors of the S3 client into one-line errors and decides which requests to retry.

A request is retried if the failure may pass: the server answered 408, 429 or 5xx, or the connection was lost. Other
failures would repeat.
"""

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import IncompleteRead
from xml.etree import ElementTree

from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3 import exceptions as http

from podrace.checkpoint_store.minio_address import Address
from podrace.errors import (
    Aborted,
    DataLoss,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    PodraceError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)

CLIENT_ERRORS = (MinioException, http.HTTPError, OSError, ElementTree.ParseError, ValueError)
"""Errors that the client raises; ParseError and ValueError for responses that are not S3."""
TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}
TRANSIENT_CODES = {
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "TooManyRequests",
}
"""Some servers send these codes with the status 400, or with 200 after they started the response."""
DAMAGED_CODES = {"BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}
"""The server received other bytes than were sent."""
FULL_CODES = {"XMinioStorageFull", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded"}
FULL_STATUS = 507
REFUSED_CODES = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"}
OVERTAKEN_CODES = {"PreconditionFailed", "ConditionalRequestConflict", "OperationAborted"}
ELSEWHERE_CODES = {
    "AuthorizationHeaderMalformed",
    "PermanentRedirect",
    "Redirect",
    "IllegalLocationConstraintException",
}
NO_S3 = "does not answer like an S3 server"


@dataclass(frozen=True)
class Failure:
    """The failure of one request."""

    error: PodraceError
    """Raised if the request is not retried, or the retries fail."""
    transient: bool = False
    """Whether the failure may pass."""
    repairable: bool = False
    """Whether it passes if the store was usable once: an operator repairs its credentials, its clock or its bucket, or
    what answers in its place ends: a proxy whose server restarts, or a server that is starting."""

    def of_usable_store(self) -> "Failure":
        """Returns the failure of a store that was usable once; it is not retried at once."""
        return Failure(Unavailable(self.error.message)) if self.repairable else self


def failure_of(error: Exception, address: Address, what: str, credentials: str) -> Failure:
    """Classifies an error of the client.

    Args:
        error: One of CLIENT_ERRORS.
        address: Location of the store.
        what: Object of the request, for the message: "pointer of agent a", for example.
        credentials: Name of the variable that held the credentials, for the message.
    """
    where = f"{what} in {address.uri}"
    if isinstance(error, S3Error):
        return _of_answer(error, address, where, credentials)
    if isinstance(error, InvalidResponseError | ServerError):
        return _of_status(error, where)
    if isinstance(error, http.HTTPError | OSError):
        return _of_connection(error, address, where)
    line = f"{where}: {address.endpoint} {NO_S3}: {_short(error)}; check host and port"
    return Failure(FailedPrecondition(line), repairable=True)


def _of_answer(error: S3Error, address: Address, where: str, credentials: str) -> Failure:
    code, status = error.code or "", error.response.status
    said = f"{code}: {error.message}" if error.message else code
    if code == "NoSuchKey":
        return Failure(NotFound(f"{where} does not exist"))
    if code in OVERTAKEN_CODES or status == 412:
        return Failure(Aborted(f"{where} was changed by another process; read it again"))
    if code == "NoSuchBucket":
        return Failure(
            FailedPrecondition(
                f"{address.uri}: there is no bucket {address.bucket!r}; create it, for instance: aws s3 mb s3://"
                f"{address.bucket} --endpoint-url {'https' if address.secure else 'http'}://{address.endpoint}"
            ),
            repairable=True,
        )
    if code == "RequestTimeTooSkewed":
        line = f"{where}: {_skew(error.response.headers)}; set the clock of this machine"
        return Failure(FailedPrecondition(line), repairable=True)
    if code in REFUSED_CODES:
        line = f"{where} was refused ({said}); check the credentials in {credentials}"
        return Failure(PermissionDenied(line), repairable=True)
    if code in FULL_CODES or status == FULL_STATUS:
        return Failure(
            ResourceExhausted(f"{where}: the store is full ({said}); make room; no incomplete checkpoint was published")
        )
    if code in ELSEWHERE_CODES:
        return Failure(FailedPrecondition(f"{where}: {said}; set PODRACE_STORE_REGION, or name the bucket's own host"))
    if code == "NotImplemented" or status == 501:
        line = f"{where}: the server does not implement the request ({said}); use a store that honors conditions"
        return Failure(Unimplemented(line))
    if code in DAMAGED_CODES:
        line = f"{where} was damaged in transfer ({said}); check the network and the memory of this machine"
        return Failure(DataLoss(line), transient=True)
    if status in TRANSIENT_STATUS or code in TRANSIENT_CODES:
        return Failure(Unavailable(f"{where}: HTTP {status} {said}"), transient=True)
    return Failure(FailedPrecondition(f"{where}: HTTP {status} {said}"))


def _of_status(error: InvalidResponseError | ServerError, where: str) -> Failure:
    # The response has no S3 error: it comes from a proxy, or from a server that is not S3.
    status = error.status_code if isinstance(error, ServerError) else getattr(error, "_code", 0)
    if status in TRANSIENT_STATUS:
        return Failure(Unavailable(f"{where}: HTTP {status} without a reason"), transient=True)
    if status == 412:
        return Failure(Aborted(f"{where} was changed by another process; read it again"))
    if status == FULL_STATUS:
        return Failure(ResourceExhausted(f"{where}: the store is full (HTTP {status}); make room"))
    line = f"{where}: the server {NO_S3} (HTTP {status}); check host and port"
    return Failure(FailedPrecondition(line), repairable=True)


def _of_connection(error: http.HTTPError | OSError, address: Address, where: str) -> Failure:
    cause = error.args[0] if isinstance(error, http.SSLError) and error.args else error
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        hint = (
            "use minio+http:// for a server without TLS"
            if "WRONG_VERSION" in str(cause)
            else "set PODRACE_STORE_CA_FILE to its certificate authority"
        )
        reason = getattr(cause, "verify_message", "") or cause.reason or str(cause)
        return Failure(FailedPrecondition(f"{where}: TLS with {address.endpoint} failed: {reason}; {hint}"))
    # The name may resolve soon: names of containers appear when the containers start.
    if isinstance(error, http.NameResolutionError):
        return Failure(Unavailable(f"{where}: no such host {address.endpoint!r}; check the URI"), transient=True)
    if isinstance(error, http.NewConnectionError):
        reason = getattr(error.__cause__, "strerror", None) or _short(error)
        line = f"{where}: {address.endpoint} cannot be reached: {reason}; check host and port"
        return Failure(Unavailable(line), transient=True)
    partial = _incomplete(error)
    if partial:
        received, missing = partial
        line = f"{where} is truncated: its connection ended after {received} of {received + missing} bytes"
        return Failure(DataLoss(line), transient=True)
    return Failure(Unavailable(f"{where}: {address.endpoint}: {_short(error)}"), transient=True)


def _incomplete(error: BaseException | None) -> tuple[int, int] | None:
    """Returns the bytes received and the bytes missing of a truncated response; None for other errors."""
    while error is not None:
        if isinstance(error, IncompleteRead) and error.expected:
            # `partial` is a count in urllib3 and the bytes themselves in the standard library.
            received = error.partial if isinstance(error.partial, int) else len(error.partial)
            return received, error.expected
        error = error.__cause__ or error.__context__
    return None


def _skew(headers: Mapping[str, str]) -> str:
    server = server_seconds(headers)
    if server is None:
        return "this machine's clock differs too much from the server's"
    ahead = time.time() - server
    return f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"


def server_seconds(headers: Mapping[str, str]) -> float | None:
    """Returns the server's clock from the headers of a response, in seconds since the epoch (whole seconds)."""
    try:
        return parsedate_to_datetime(headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return None


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"

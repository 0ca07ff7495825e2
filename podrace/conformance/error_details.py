"""Checks the details of an error, `google.rpc.Status` in its trailing metadata. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from podrace.error.v1.error_reason_pb2 import ErrorReason
from podrace.rpc.status import DETAILS_KEY, DOMAIN, GENERIC_REASON, GENERIC_REASONS

Metadata = Iterable[tuple[str, Any]]
REASONS = frozenset(ErrorReason.keys())
KINDS = {
    f"google.rpc.{kind.DESCRIPTOR.name}": kind
    for kind in (
        error_details_pb2.ErrorInfo,
        error_details_pb2.BadRequest,
        error_details_pb2.ResourceInfo,
        error_details_pb2.RetryInfo,
    )
}
"""Details that the contract describes; others are left alone."""


def reason(metadata: Metadata) -> str:
    """Returns the reason in the details of an error; empty if they are missing or cannot be read."""
    try:
        details = _details(metadata)
    except DecodeError:
        return ""
    found = [one for one in details if isinstance(one, error_details_pb2.ErrorInfo) and one.domain == DOMAIN]
    return found[0].reason if found else ""


def problem(code: grpc.StatusCode, message: str, metadata: Metadata) -> str:
    """Returns what is wrong with the details of an error; empty if nothing is, or if there are none.

    Args:
        code: Status code of the call.
        message: Message of the call.
        metadata: Trailing metadata of the call.
    """
    pairs = [pair for pair in metadata if pair[0] == DETAILS_KEY]
    if not pairs:
        return ""
    try:
        status, details = status_pb2.Status.FromString(pairs[0][1]), _details(pairs)
    except DecodeError:
        return "they are not a google.rpc.Status"
    return next(_problems(code, message, status, details), "")


def _problems(code: grpc.StatusCode, message: str, status: Any, details: list[Any]) -> Iterator[str]:
    number: int = code.value[0]
    if status.code != number:
        yield f"their status code is {status.code}, that of the call is {number}"
    if status.message and status.message != message:
        yield f"their message {status.message[:80]!r} is not that of the call, {message[:80]!r}"
    for detail in details:
        yield from _problems_of_detail(code, detail)


def _problems_of_detail(code: grpc.StatusCode, detail: Any) -> Iterator[str]:
    if isinstance(detail, error_details_pb2.ErrorInfo) and detail.domain == DOMAIN:
        generic = detail.reason in GENERIC_REASONS and detail.reason != GENERIC_REASON + code.name
        if detail.reason not in REASONS or detail.reason == "ERROR_REASON_UNSPECIFIED":
            yield f"the reason {detail.reason[:80]!r} is not in the contract"
        elif generic:
            yield f"the reason {detail.reason} does not belong to the status code {code.name}"
    if isinstance(detail, error_details_pb2.BadRequest) and not detail.field_violations:
        yield "BadRequest lists no violation"
    if isinstance(detail, error_details_pb2.ResourceInfo) and not detail.resource_type:
        yield "ResourceInfo has no resource_type"
    if isinstance(detail, error_details_pb2.RetryInfo) and detail.retry_delay.ToNanoseconds() < 0:
        yield "the pause of RetryInfo is negative"


def _details(metadata: Metadata) -> list[Any]:
    """Returns the details of the kinds of the contract; raises DecodeError."""
    data = next((value for key, value in metadata if key == DETAILS_KEY), b"")
    packed = status_pb2.Status.FromString(data).details
    return [KINDS[one.TypeName()].FromString(one.value) for one in packed if one.TypeName() in KINDS]

"""Converts between PodraceError and gRPC statuses with google.rpc details."""

import errno
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import grpc
import structlog
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from podrace import errors

DOMAIN = "podrace"
"""Domain of every google.rpc.ErrorInfo that is sent."""
GENERIC_REASON = "ERROR_REASON_"
"""Beginning of the reason of an error that has no more specific one; the name of its status code follows."""
GENERIC_REASONS = frozenset(GENERIC_REASON + code for code in errors.BY_CODE)
DESCRIPTORS_RETRY_SECONDS = 1.0
DETAILS_KEY = "grpc-status-details-bin"
CONNECTION_CLOSED = "Stream removed"
"""What gRPC says, with the code UNKNOWN and without the status of the server, if the server closed the connection
before the client had read that status."""
LONGEST_MESSAGE_BYTES = 1000
"""Longer messages are cut: gRPC refuses metadata above 8 KiB and escapes each non-ASCII byte with three bytes."""
MOST_VIOLATION_BYTES = 2000
"""Most bytes of the listed violations of fields. They are sent in the same metadata, in base 64."""

Detail = TypeVar("Detail", bound=Message)

_log = structlog.get_logger(__name__)


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    error: Exception,
    method: str = "",
    resource: errors.NamedResource | None = None,
) -> None:
    """Ends a call with the status of an error.

    An exception that is not a PodraceError is a defect: it is logged with its traceback and sent as INTERNAL. Running
    out of file descriptors is not a defect: it is logged on one line and sent as RESOURCE_EXHAUSTED.

    Args:
        context: Of the call.
        error: What the servicer raised.
        method: The called method, `/package.Service/Method`.
        resource: What the call concerns; None if that is not known.
    """
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        _log.warning("out of file descriptors", error=str(error))
        text = "the service has no free file descriptors; repeat the call later"
        error = errors.ResourceExhausted(text, retry_seconds=DESCRIPTORS_RETRY_SECONDS)
    if not isinstance(error, errors.PodraceError):
        _log.exception("call failed", error=repr(error))
        error = errors.Internal(f"{type(error).__name__}: {error}; the service's log has the traceback")
    code = grpc.StatusCode[error.code]
    message = _cut(error.message)
    data = _status_bytes(error, message, method, resource)
    await context.abort(code, message, ((DETAILS_KEY, data),))


def _cut(message: str) -> str:
    data = message.encode(errors="replace")
    if len(data) <= LONGEST_MESSAGE_BYTES:
        return message
    return data[:LONGEST_MESSAGE_BYTES].decode(errors="ignore") + "..."


def _status_bytes(
    error: errors.PodraceError, message: str, method: str, resource: errors.NamedResource | None
) -> bytes:
    """Encodes an error as google.rpc.Status. Clients of the richer error model compare its message with the call's."""
    status = status_pb2.Status(code=grpc.StatusCode[error.code].value[0], message=message)
    status.details.add().Pack(_error_info(error, method))
    if isinstance(error, errors.InvalidArgument):
        status.details.add().Pack(_bad_request(error.violations or [errors.FieldViolation("", message)]))
    if isinstance(error, errors.NotFound) and (named := error.resource or resource):
        info = error_details_pb2.ResourceInfo(resource_type=named.kind, resource_name=_cut(named.name))
        status.details.add().Pack(info)
    if error.retry_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.retry_seconds * 1000))
        status.details.add().Pack(retry)
    data: bytes = status.SerializeToString()
    return data


def _error_info(error: errors.PodraceError, method: str) -> error_details_pb2.ErrorInfo:
    service, _, name = method.removeprefix("/").rpartition("/")
    called = {"service": service, "method": name} if method else {}
    reason = error.reason or GENERIC_REASON + error.code
    return error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata={**called, **error.metadata})


def _bad_request(violations: Sequence[errors.FieldViolation]) -> error_details_pb2.BadRequest:
    """Lists violations up to MOST_VIOLATION_BYTES."""
    message = error_details_pb2.BadRequest()
    for violation in violations:
        message.field_violations.add(field=_cut(violation.field), description=_cut(violation.problem))
        if message.ByteSize() > MOST_VIOLATION_BYTES:
            del message.field_violations[-1]
            break
    return message


def from_rpc_error(error: grpc.aio.AioRpcError) -> errors.PodraceError:
    """Returns the PodraceError that corresponds to a failed call."""
    data = next((cast(bytes, value) for key, value in error.trailing_metadata() or () if key == DETAILS_KEY), b"")
    kind, message = errors.BY_CODE.get(error.code().name, errors.Internal), error.details() or error.code().name
    if error.code() == grpc.StatusCode.UNKNOWN and message.startswith(CONNECTION_CLOSED):
        return errors.Unavailable(f"the server closed the connection before the call ended ({message}); try again")
    details = _described(data)
    if kind is errors.InvalidArgument:
        found = [one for bad in _unpacked(data, error_details_pb2.BadRequest) for one in bad.field_violations]
        # A violation without a field repeats the message.
        details["violations"] = [errors.FieldViolation(one.field, one.description) for one in found if one.field]
    if kind is errors.NotFound:
        resources = _unpacked(data, error_details_pb2.ResourceInfo)
        named = [errors.NamedResource(one.resource_type, one.resource_name) for one in resources]
        details["resource"] = next(iter(named), None)
    return kind(message, **details)


def _described(status: bytes) -> dict[str, Any]:
    """Returns what a google.rpc.Status says about any error, as arguments of PodraceError."""
    details: dict[str, Any] = {}
    infos = [info for info in _unpacked(status, error_details_pb2.ErrorInfo) if info.domain == DOMAIN]
    for info in infos[:1]:
        details["reason"] = "" if info.reason in GENERIC_REASONS else info.reason
        details["metadata"] = dict(info.metadata)
    for retry in _unpacked(status, error_details_pb2.RetryInfo)[:1]:
        details["retry_seconds"] = retry.retry_delay.ToMilliseconds() / 1000
    return details


def _unpacked(status: bytes, kind: type[Detail]) -> list[Detail]:
    """Returns the details of one type in a google.rpc.Status; none if another program wrote something else there."""
    try:
        details = status_pb2.Status.FromString(status).details
        messages = [(kind(), detail) for detail in details]
        return [message for message, detail in messages if detail.Unpack(message)]
    except DecodeError:
        return []

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
DETAILS_KEY = "grpc-status-details-bin"
LONGEST_MESSAGE_BYTES = 1000
"""Longer messages are cut: gRPC refuses metadata above 8 KiB and escapes each non-ASCII byte with three bytes."""
MOST_VIOLATION_BYTES = 2000
"""Most bytes of the listed violations of fields. They are sent in the same metadata, in base 64."""

Detail = TypeVar("Detail", bound=Message)

_log = structlog.get_logger(__name__)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    """Ends a call with the status of an error.

    An exception that is not a PodraceError is a defect: it is logged with its traceback and sent as INTERNAL. Running
    out of file descriptors is not a defect: it is logged on one line and sent as RESOURCE_EXHAUSTED.
    """
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        _log.warning("out of file descriptors", error=str(error))
        error = errors.ResourceExhausted("the service has no free file descriptors; repeat the call later")
    if not isinstance(error, errors.PodraceError):
        _log.exception("call failed", error=repr(error))
        error = errors.Internal(f"{type(error).__name__}: {error}; the service's log has the traceback")
    code = grpc.StatusCode[error.code]
    message = _cut(error.message)
    await context.abort(code, message, ((DETAILS_KEY, _status_bytes(error, message)),))


def _cut(message: str) -> str:
    data = message.encode(errors="replace")
    if len(data) <= LONGEST_MESSAGE_BYTES:
        return message
    return data[:LONGEST_MESSAGE_BYTES].decode(errors="ignore") + "..."


def _status_bytes(error: errors.PodraceError, message: str) -> bytes:
    """Encodes an error as google.rpc.Status. Clients of the richer error model compare its message with the call's."""
    status = status_pb2.Status(code=grpc.StatusCode[error.code].value[0], message=message)
    if error.reason:
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))
    if isinstance(error, errors.InvalidArgument) and error.violations:
        status.details.add().Pack(_bad_request(error.violations))
    data: bytes = status.SerializeToString()
    return data


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
    details = [value for key, value in error.trailing_metadata() or () if key == DETAILS_KEY]
    infos = [info for data in details for info in _unpacked(cast(bytes, data), error_details_pb2.ErrorInfo)]
    reason = next((info.reason for info in infos if info.domain == DOMAIN), "")
    kind, message = errors.BY_CODE.get(error.code().name, errors.Internal), error.details() or error.code().name
    if kind is not errors.InvalidArgument:
        return kind(message, reason=reason)
    requests = [one for data in details for one in _unpacked(cast(bytes, data), error_details_pb2.BadRequest)]
    found = [errors.FieldViolation(one.field, one.description) for bad in requests for one in bad.field_violations]
    return errors.InvalidArgument(message, reason=reason, violations=found)


def _unpacked(status: bytes, kind: type[Detail]) -> list[Detail]:
    """Returns the details of one type in a google.rpc.Status; none if another program wrote something else there."""
    try:
        details = status_pb2.Status.FromString(status).details
        messages = [(kind(), detail) for detail in details]
        return [message for message, detail in messages if detail.Unpack(message)]
    except DecodeError:
        return []

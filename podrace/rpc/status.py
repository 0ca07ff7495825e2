"""Converts between PodraceError and gRPC statuses with google.rpc details."""

from typing import Any, cast

import grpc
import structlog
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from podrace import errors

DOMAIN = "podrace"
"""Domain of every google.rpc.ErrorInfo that is sent."""
DETAILS_KEY = "grpc-status-details-bin"
LONGEST_MESSAGE_BYTES = 1000
"""Longer messages are cut: gRPC refuses metadata above 8 KiB and escapes each non-ASCII byte with three bytes."""

_log = structlog.get_logger(__name__)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    """Ends a call with the status of an error.

    An exception that is not a PodraceError is a defect: it is logged with its traceback and sent as INTERNAL.
    """
    if isinstance(error, grpc.aio.AbortError):
        raise error
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
    data: bytes = status.SerializeToString()
    return data


def from_rpc_error(error: grpc.aio.AioRpcError) -> errors.PodraceError:
    """Returns the PodraceError that corresponds to a failed call."""
    reason = ""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            reason = _reason(cast(bytes, value)) or reason
    kind = errors.BY_CODE.get(error.code().name, errors.Internal)
    return kind(error.details() or error.code().name, reason=reason)


def _reason(status: bytes) -> str:
    """Returns the reason in a google.rpc.Status; empty if it has none or another program wrote something else there."""
    try:
        details = status_pb2.Status.FromString(status).details
        infos = [error_details_pb2.ErrorInfo() for _ in details]
        found = [info for info, detail in zip(infos, details, strict=True) if detail.Unpack(info)]
    except DecodeError:
        return ""
    return next((info.reason for info in found if info.domain == DOMAIN), "")

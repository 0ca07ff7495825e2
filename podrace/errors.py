"""The errors a caller can act on: one class for each gRPC status code, translated once at the edge (podrace.rpc).

Anything that is not a PodraceError is a bug and is logged with its traceback.
"""

from typing import ClassVar


class PodraceError(Exception):
    """One line for a person: what went wrong, where, and what to do.

    Attributes:
        code: Name of the canonical gRPC status code this class stands for.
        message: The line itself.
        reason: Name of a value of podrace.error.v1.ErrorReason, empty if the code says enough.
    """

    code: ClassVar[str] = "UNKNOWN"

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason


class InvalidArgument(PodraceError):
    """The request can never succeed as it is; the message names the key and the value."""

    code = "INVALID_ARGUMENT"


class NotFound(PodraceError):
    """The named thing does not exist."""

    code = "NOT_FOUND"


class AlreadyExists(PodraceError):
    """The thing to be created exists with different content."""

    code = "ALREADY_EXISTS"


class FailedPrecondition(PodraceError):
    """The system is not in the state the request needs; retrying alone does not help."""

    code = "FAILED_PRECONDITION"


NOT_OPEN = "ERROR_REASON_NOT_OPEN"
"""Reason of FailedPrecondition where whoever is called knows nothing of the session, or the group: open it anew."""


class ResourceExhausted(PodraceError):
    """A limit was reached: memory, disk, a quota, or a reader that is too slow."""

    code = "RESOURCE_EXHAUSTED"


class Unavailable(PodraceError):
    """The service cannot be reached now; the call may be repeated."""

    code = "UNAVAILABLE"


class DeadlineExceeded(PodraceError):
    """The deadline passed; the effect of the call is unknown."""

    code = "DEADLINE_EXCEEDED"


class Aborted(PodraceError):
    """Somebody else was first (a lost compare-and-swap); read again and decide."""

    code = "ABORTED"


class DataLoss(PodraceError):
    """Stored or computed data is damaged: a digest that does not match, a non-finite number."""

    code = "DATA_LOSS"


class PermissionDenied(PodraceError):
    """The caller may not do this."""

    code = "PERMISSION_DENIED"


class Unimplemented(PodraceError):
    """This build, or this machine, does not offer what was asked for."""

    code = "UNIMPLEMENTED"


class Cancelled(PodraceError):
    """The caller withdrew the request."""

    code = "CANCELLED"


class Internal(PodraceError):
    """A defect of the service; its log has the traceback."""

    code = "INTERNAL"


BY_CODE: dict[str, type[PodraceError]] = {cls.code: cls for cls in PodraceError.__subclasses__()}


UNSUITABLE_SPACE = "ERROR_REASON_UNSUITABLE_SPACE"


BAD_SPEC = "ERROR_REASON_BAD_SPEC"

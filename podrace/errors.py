"""Defines the errors that a caller can handle: one class per gRPC status code. podrace.rpc translates them.

Any other exception is a defect and is logged with its traceback.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class NamedResource:
    """What an error is about."""

    kind: str
    """For instance `tournament`, `agent` or `evaluation`."""
    name: str
    """Its id."""


@dataclass(frozen=True)
class FieldViolation:
    """A field of a message that is out of bounds."""

    field: str
    """Path from the message, such as `progress.environment_steps` or `members[2].agent_id`."""
    problem: str
    """What is wrong, to be read after the path, such as `= -1: expected 0 or more`."""

    def __str__(self) -> str:
        return f"{self.field}{' ' if self.problem.startswith('=') else ': '}{self.problem}"


class PodraceError(Exception):
    """An error with a one-line message: what went wrong, where, and what to do.

    Attributes:
        code: Name of the gRPC status code of this class.
        retry_seconds: Suggested pause before the unchanged call is repeated; None: repeating it cannot succeed. A
            server sends the value of the class unless the error has its own.
        message: The message.
        reason: Name of a value of podrace.error.v1.ErrorReason; empty if the code is specific enough.
        metadata: Values of the message by name, for programs.
    """

    code: ClassVar[str] = "UNKNOWN"
    retry_seconds: float | None = None

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        if retry_seconds is not None:
            self.retry_seconds = retry_seconds


class InvalidArgument(PodraceError):
    """The request can never succeed as it is. The message names the key and the value.

    Attributes:
        violations: All fields of the request that are wrong, if the fields were checked one by one.
    """

    code = "INVALID_ARGUMENT"

    def __init__(self, message: str, *, violations: Sequence[FieldViolation] = (), **details: Any) -> None:
        super().__init__(message, **details)
        self.violations = tuple(violations)


class NotFound(PodraceError):
    """The named thing does not exist.

    Attributes:
        resource: What does not exist; None: what the rule of the called method names.
    """

    code = "NOT_FOUND"

    def __init__(self, message: str, *, resource: NamedResource | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.resource = resource


def missing_object(name: str, uri: str) -> NotFound:
    """Returns the error about an object that a checkpoint store does not have."""
    return NotFound(f"object {name} is not in {uri}", resource=NamedResource("object", name))


class AlreadyExists(PodraceError):
    """The thing to create exists already, with different content."""

    code = "ALREADY_EXISTS"


class FailedPrecondition(PodraceError):
    """The system is not in the state that the request requires. Retrying does not help until the state changes."""

    code = "FAILED_PRECONDITION"


NOT_OPEN = "ERROR_REASON_NOT_OPEN"
"""Reason of FailedPrecondition if the called process does not have the session or the group: open a new one."""


class ResourceExhausted(PodraceError):
    """A limit was reached: memory, disk or a quota, or a reader was too slow."""

    code = "RESOURCE_EXHAUSTED"


class Unavailable(PodraceError):
    """The service cannot be reached now. The call may be repeated."""

    code = "UNAVAILABLE"
    retry_seconds = 1.0


class DeadlineExceeded(PodraceError):
    """The deadline passed. The effect of the call is unknown."""

    code = "DEADLINE_EXCEEDED"


class Aborted(PodraceError):
    """Another caller was first (a lost compare-and-swap). Read again and decide."""

    code = "ABORTED"


class DataLoss(PodraceError):
    """Stored or computed data is damaged: a digest that does not match, a non-finite number."""

    code = "DATA_LOSS"


class PermissionDenied(PodraceError):
    """The caller may not do this."""

    code = "PERMISSION_DENIED"


class Unauthenticated(PodraceError):
    """The caller presented no credentials, or invalid ones."""

    code = "UNAUTHENTICATED"


class Unimplemented(PodraceError):
    """This build, or this machine, does not support the request."""

    code = "UNIMPLEMENTED"


class Cancelled(PodraceError):
    """The caller cancelled the request."""

    code = "CANCELLED"


class Internal(PodraceError):
    """A defect of the service. Its log has the traceback."""

    code = "INTERNAL"


BY_CODE: dict[str, type[PodraceError]] = {cls.code: cls for cls in PodraceError.__subclasses__()}
"""Classes by the names of their status codes."""

UNSUITABLE_SPACE = "ERROR_REASON_UNSUITABLE_SPACE"
"""Reason if an algorithm cannot use the observation or action space of the environment."""

BAD_DIGEST = "ERROR_REASON_BAD_DIGEST"
"""Reason if bytes do not have the digest that was stated for them."""

NON_FINITE = "ERROR_REASON_NON_FINITE"
"""Reason if a number that must be finite is not."""

BAD_CHECKPOINT = "ERROR_REASON_BAD_CHECKPOINT"
"""Reason if a submitted checkpoint contradicts its agent, the specification, or itself."""

NOT_VERIFIED = "ERROR_REASON_NOT_VERIFIED"
"""Reason if another pod measured a lower score than a candidate states."""

UNUSABLE_ALGORITHM = "ERROR_REASON_UNUSABLE_ALGORITHM"
"""Reason if the class of a user-defined algorithm cannot be imported, lacks something, or raised."""

AGENT_UNKNOWN = "ERROR_REASON_AGENT_UNKNOWN"
"""Reason of NotFound if the leaderboard does not know an agent."""

QUOTA_EXCEEDED = "ERROR_REASON_QUOTA_EXCEEDED"
"""Reason if an owner has as much as the operator allows one owner."""

BAD_SPEC = "ERROR_REASON_BAD_SPEC"
"""Reason if a tournament specification is invalid."""

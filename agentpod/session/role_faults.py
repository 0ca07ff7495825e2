"""Decides what the error of a role means: the role was lost, the error is about the work, or the role refuses. Pure."""

import copy

from podrace.errors import (
    NOT_OPEN,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PodraceError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from podrace.printable import one_line
from podrace.tensor_transport.probe import PLANE_UNUSABLE

ABOUT_THE_WORK = (DataLoss, Internal, InvalidArgument, NotFound, ResourceExhausted, Unimplemented)
"""Errors by which a role says that this agent, or this specification, cannot be trained."""
LATE = (DeadlineExceeded,)
"""Errors that mean different things for different methods; their callers decide."""


class RoleLost(Unavailable):
    """A role does not answer, or was restarted and does not have the session. It is opened again."""


class RoleRefused(FailedPrecondition):
    """A role answers, but with an error that its contract does not have, or always as if it had been restarted.

    The agent, the role or the pod may be the cause, so the agent is given back and may get another pod. An agent that
    is given back again and again fails.
    """


def role_error(error: PodraceError, setting: str = "") -> PodraceError:
    """Returns what the error of a call to a role means.

    Args:
        error: The error.
        setting: Key and value that name the role, if it belongs to a third party; empty: it is one of the pod's own.
    """
    message = _named(error.message, setting)
    if isinstance(error, Unavailable) or error.reason == NOT_OPEN:
        return RoleLost(message)
    if isinstance(error, ABOUT_THE_WORK + LATE) or error.reason == PLANE_UNUSABLE:
        named = copy.copy(error)
        named.message, named.args = message, (message,)
        return named
    return RoleRefused(f"{message} ({error.code})")


def _named(message: str, setting: str) -> str:
    if not setting:
        return message
    return f"{setting}: {one_line(message.removeprefix(f'{setting}: '))}"

"""Describes the child process of a generator or updater function (leaderboard.plugins.function_server)."""

import sys
from pathlib import Path

from podrace.limits.config import Allowed
from podrace.plugins.child import ChildConnection

START_SECONDS = 30.0
"""A child process that does not serve after this time is killed."""


def function_connection(
    address: str,
    kind: str,
    *,
    memory_bytes: int,
    lifeline: Path,
    socket_prefix: Path,
    allowed: Allowed,
    user_id: int = 0,
) -> ChildConnection:
    """Returns the connection to the process of a function, which is not started yet.

    Args:
        address: `python:module:function`.
        kind: `generator` or `updater`.
        memory_bytes: Data memory that the process may allocate; 0: no limit.
        lifeline: The process exits when the holder of this lifeline is gone.
        socket_prefix: Path that the names of its sockets begin with.
        allowed: Which environment variables it gets.
        user_id: User that it becomes; 0: it stays the user of this process.
    """
    return ChildConnection(
        [sys.executable, "-m", "leaderboard.plugins.function_server"],
        {"address": address, "kind": kind, "memory_bytes": memory_bytes},
        lifeline=lifeline,
        socket_prefix=socket_prefix,
        start_seconds=START_SECONDS,
        allowed=allowed,
        user_id=user_id,
    )

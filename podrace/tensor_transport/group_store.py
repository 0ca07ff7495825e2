"""Serves, and connects to, the store through which members of groups find each other."""

import socket
import time
from contextlib import suppress
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore

from podrace.errors import InvalidArgument

ATTEMPT = timedelta(seconds=2)
"""Limit of one attempt to connect to a store, which may be closed meanwhile."""
RETRY_SECONDS = 0.2


class GroupStore:
    """The store through which members of groups find each other. Its process must outlive the groups.

    Attributes:
        address: `host:port`, for Group.join.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listens on a port.

        Args:
            host: Address of this machine that members can reach; no other address is bound.
            port: Its port; 0: any free one.

        Raises:
            InvalidArgument: It is not an address of this machine.
        """
        try:
            listener = socket.create_server((host, port))
        except OSError as error:
            raise InvalidArgument(f"cannot listen on {host!r} for the members of groups: {error.strerror}") from None
        port = listener.getsockname()[1]
        self.address = f"{host}:{port}"
        # By itself the store would bind to all addresses of the machine, so it is given a bound socket.
        self._store: TCPStore | None = TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def close(self) -> None:
        """Stops listening. Idempotent."""
        self._store = None


def wait_for_store(address: str, seconds: float) -> bool:
    """Waits until a store listens, which another machine may be about to start; returns whether it does."""
    host, port = address.rpartition(":")[::2]
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError):
            socket.create_connection((host, int(port)), ATTEMPT.total_seconds()).close()
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(RETRY_SECONDS)


def open_store(address: str, prefix: str, timeout: timedelta) -> PrefixStore:
    """Connects to the store of a group.

    Args:
        address: `host:port` of a GroupStore.
        prefix: Name of the group.
        timeout: Limit for connecting, and for each operation.

    Raises:
        RuntimeError: The store was not reached in time, or is closed. torch alone would repeat a refused connection.
    """
    host, port = address.rpartition(":")[::2]
    attempt, deadline = min(timeout, ATTEMPT), time.monotonic() + timeout.total_seconds()
    while True:
        try:
            socket.create_connection((host, int(port)), timeout.total_seconds()).close()
            store = TCPStore(host, int(port), wait_for_workers=False, timeout=attempt)
        except OSError as error:
            raise RuntimeError(str(error)) from None
        except RuntimeError:
            if time.monotonic() >= deadline:
                raise
            continue
        store.set_timeout(timeout)
        return PrefixStore(prefix, store)

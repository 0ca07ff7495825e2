"""Shares one client of a Docker Engine among threads, and closes it when no call uses it any more."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass
class _Connected:
    """A client, and how many calls use it."""

    client: Any
    calls: int = 0


class SharedClient:
    """One client for the calls of all threads.

    shared = SharedClient(connect)
    shared.call(lambda: shared.client.info())          # in a thread
    shared.close()
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        """Creates it without a client.

        Args:
            connect: Returns a new client; called by the first call, and by the first one after a lost connection.
        """
        self._connect = connect
        self._lock, self._in_call = threading.Lock(), threading.local()
        self._current: _Connected | None = None

    @property
    def client(self) -> Any:
        """The client of the call that this thread makes; the same until the call returns."""
        return self._in_call.used.client

    def call(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Runs a function that uses `client`. If the engine cannot be reached, the next call gets another client.

        Raises:
            DockerException: No client could be created; besides what the function raises.
        """
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        used = self._in_call.used = self._begin()
        try:
            return function(*args, **kwargs)
        except RequestException as error:
            # An answer of the engine is both, and says nothing about the connection.
            if not isinstance(error, DockerException):
                self._drop(used)
            raise
        finally:
            del self._in_call.used
            self._end(used)

    def close(self) -> None:
        """Closes the client, or lets the last call that uses it do so."""
        with self._lock:
            current, self._current = self._current, None
            idle = current is not None and not current.calls
        if current and idle:
            current.client.close()

    def _begin(self) -> _Connected:
        with self._lock:
            if self._current:
                self._current.calls += 1
                return self._current
        # Without the lock: an engine that does not answer must not delay the calls one after another.
        connected = _Connected(self._connect(), calls=1)
        with self._lock:
            earlier = self._current
            if earlier is None:
                self._current = connected
                return connected
            earlier.calls += 1
        connected.client.close()
        return earlier

    def _drop(self, used: _Connected) -> None:
        with self._lock:
            if self._current is used:
                self._current = None

    def _end(self, used: _Connected) -> None:
        with self._lock:
            used.calls -= 1
            unused = not used.calls and self._current is not used
        if unused:
            used.client.close()

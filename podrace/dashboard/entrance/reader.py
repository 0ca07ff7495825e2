"""Defines whose rights the calls for a request have, and who may use a dashboard."""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from aiohttp import web

from podrace.access.credentials import TokenSource
from podrace.client import Client
from podrace.client.reconnect import RETRYABLE
from podrace.errors import PodraceError

Person = tuple[str, str]
"""Namespace and name."""
CHECKED_SECONDS = 5.0
"""Time for which an answer of the mesh about the access to a tournament is used again."""
MOST_CHECKED = 1000
"""Tournaments whose access is remembered, at most."""


class Reader:
    """A person, or everyone who has the same token, with a client that has their rights.

    await reader.may_read("cartpole-2xxpit")      # raises NotFound as the mesh does
    await reader.client.cancel_tournament(...)
    """

    def __init__(
        self,
        address: str,
        change: str,
        *,
        token: TokenSource | None = None,
        end: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens a client, which connects with the first call.

        Args:
            address: Address of the orchestrator.
            change: The value that changes need.
            token: Returns the token of the person; None: the calls have the rights of this process, which everyone
                who uses the dashboard has.
            end: Monotonic time after which nothing is answered any more.
            clock: Monotonic time in seconds.

        Raises:
            FailedPrecondition: The token would be sent unencrypted to another machine.
        """
        self.client = Client(address, token)
        self.change, self.end, self.used = change, end, clock()
        self.caller: dict[str, Any] = {}
        """Who the reader is, as pages show it; empty: not known."""
        self._address, self._token, self._clock = address, token, clock
        self._closed = False
        self._checked: dict[str, float] = {}

    @property
    def ended(self) -> bool:
        """Whether nothing may be answered any more."""
        return self._closed or self._clock() >= self.end

    def use(self) -> None:
        """Counts the reader as used now."""
        self.used = self._clock()

    @property
    def is_person(self) -> bool:
        """Whether other persons, with other rights, use the same gateway."""
        return self._token is not None

    @property
    def person(self) -> Person | None:
        """Whose session it is; None: of everyone who uses the dashboard."""
        return (self.caller["namespace"], self.caller["name"]) if self.is_person and self.caller else None

    def open_client(self) -> Client:
        """Returns a further client with the same rights, for work that outlives the session; the caller closes it."""
        return Client(self._address, self._token)

    async def close(self) -> None:
        """Closes the client."""
        self._closed = True
        await self.client.__aexit__(None, None, None)

    async def may_read(self, tournament_id: str) -> None:
        """Asks the mesh whether the reader may read a tournament. While it does not answer, its last answer counts.

        Raises:
            NotFound: There is no such tournament for this reader.
            PodraceError: The mesh refuses, or has not answered yet.
        """
        now, last = self._clock(), self._checked.get(tournament_id)
        if last is not None and now - last < CHECKED_SECONDS:
            return
        known = contextlib.suppress(*RETRYABLE) if last is not None else contextlib.nullcontext()
        try:
            with known:
                await self.client.get_tournament(tournament_id)
        except PodraceError:
            self._checked.pop(tournament_id, None)
            raise
        if len(self._checked) >= MOST_CHECKED:
            del self._checked[next(iter(self._checked))]
        self._checked[tournament_id] = now


READER = web.RequestKey("reader", Reader)
"""Key of a request, under which the middleware puts its reader. Requests that everyone may make have none."""


class Entrance(Protocol):
    """Decides who may use a dashboard.

    reader, refusal = entrance.admit(request)
    if refusal is None:
        ...         # answer the request with the rights of the reader; None: what everyone may read
    """

    def admit(self, request: web.Request) -> tuple[Reader | None, web.Response | None]:
        """Returns whose rights the answer to a request has, and the answer itself if it is complete already."""
        ...

    async def unauthenticated(self, reader: Reader) -> web.Response | None:
        """Called when the mesh did not accept the credentials of a reader; returns the answer to its request.

        Returns None if the error of the mesh is the answer.
        """
        ...

    def routes(self) -> Sequence[web.RouteDef]:
        """Returns further routes; the middleware admits their requests as well."""
        ...


def reader_of(request: web.Request) -> Reader:
    """Returns the reader that the middleware has admitted."""
    return request[READER]

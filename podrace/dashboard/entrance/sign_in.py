"""Lets persons sign in with a token of the mesh; all calls for them have the rights of that token.

The token is sent once, in the body of a request, and is kept in memory only. The browser gets the id of a session in a
cookie that scripts cannot read.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog
from aiohttp import web

from podrace.client.calls.channels import token_of_person
from podrace.client.discovery import get_caller
from podrace.dashboard import parameters
from podrace.dashboard.access import session_cookie_name
from podrace.dashboard.answers import READING, answer, port_of, problem
from podrace.dashboard.entrance.attempts import SignInAttempts
from podrace.dashboard.entrance.callers import caller
from podrace.dashboard.entrance.reader import Reader, reader_of
from podrace.dashboard.entrance.sessions import Session, Sessions, SignInLimits
from podrace.discovery.v1.discovery_pb2 import GetCallerResponse
from podrace.errors import InvalidArgument, PodraceError, Unauthenticated, Unimplemented
from podrace.tasks import cancel_all

PATH = "/api/sign-in"
SESSION_PATH = "/api/session"
SIGN_IN = "SIGN_IN"
"""Code of the error that asks for a sign-in."""
LONGEST_TOKEN = 8192
CLEANING_SECONDS = 5.0
"""Time between two searches for sessions that have ended by themselves."""
NOT_SIGNED_IN = "Sign in with a token of the mesh."
log = structlog.get_logger()


class SignInEntrance:
    """The entrance of a dashboard for multiple users; see Entrance.

    async with SignInEntrance.open("mesh.example.org:50051", left=feeds.leave) as entrance:
        reader, refusal = entrance.admit(request)
    """

    def __init__(
        self,
        address: str,
        left: Callable[[Reader], Awaitable[None]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        limits: SignInLimits | None = None,
    ) -> None:
        """Has no session.

        Args:
            address: Address of the orchestrator.
            left: Called when the session of a reader has ended.
            clock: Monotonic time in seconds.
            wall_clock: Seconds since 1970, in which the mesh states when a token expires.
            limits: Limits of the sessions; None: the defaults.
        """
        self._address, self._left, self._clock, self._wall_clock = address, left, clock, wall_clock
        self._sessions, self._attempts = Sessions(clock, limits), SignInAttempts(clock)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, address: str, left: Callable[[Reader], Awaitable[None]]) -> AsyncIterator["SignInEntrance"]:
        """Provides an entrance during the block, and ends all its sessions then; arguments as of the class.

        Raises:
            FailedPrecondition: Tokens would be sent unencrypted to another machine.
        """
        token_of_person(address, str)
        entrance = cls(address, left)
        cleaning = asyncio.create_task(entrance._clean())
        try:
            yield entrance
        finally:
            await cancel_all(cleaning)
            await entrance._close(entrance._sessions.take_all(), "the dashboard stops")

    def routes(self) -> Sequence[web.RouteDef]:
        """Returns the routes by which persons sign in and out."""
        return [web.post(PATH, self.sign_in), web.post("/api/sign-out", self.sign_out)]

    def admit(self, request: web.Request) -> tuple[Reader | None, web.Response | None]:
        """Admits requests of sessions, and for everyone the pages themselves, which have no data, and the sign-in."""
        reading = request.method in READING
        if not reading and request.path == PATH:
            return None, None
        if session := self._sessions.find(self._cookie(request)):
            return session.reader, None
        if reading and (request.path == SESSION_PATH or not request.path.startswith("/api/")):
            return None, None
        return None, problem(401, NOT_SIGNED_IN, SIGN_IN)

    async def unauthenticated(self, reader: Reader) -> web.Response | None:
        """Ends the session of a token that the mesh no longer accepts."""
        try:
            await reader.client.get_caller()
        except Unauthenticated as error:
            await self._close(self._sessions.take(reader), "the mesh does not accept the token any longer")
            return problem(401, error.message, SIGN_IN)
        except PodraceError:
            pass
        return None

    async def sign_in(self, request: web.Request) -> web.Response:
        """Begins a session for the holder of a token, and ends the one that the browser had."""
        peer = request.remote or ""
        self._attempts.begin(peer)
        token = token_in(await request.read())
        try:
            found = await self._caller_of(token)
        except Unauthenticated as error:
            log.warning("sign-in refused", peer=peer, reason=error.message)
            raise
        self._attempts.succeeded(peer)
        previous = self._sessions.find(self._cookie(request))
        reader = Reader(
            self._address,
            secrets.token_urlsafe(32),
            token=lambda: token,
            end=self._clock() + self._lifetime_seconds(found),
            clock=self._clock,
        )
        reader.caller = caller(found)
        id, ended = self._sessions.begin(Session((found.namespace, found.name), reader))
        await self._close(ended, "too many sessions")
        if previous:
            await self._close(self._sessions.take(previous.reader), "signed in again")
        log.info("signed in", name=found.name, namespace=found.namespace, peer=peer, sessions=len(self._sessions))
        return self._with_cookie(request, answer({"caller": reader.caller}), id)

    async def _caller_of(self, token: str) -> GetCallerResponse:
        try:
            return await get_caller(self._address, token_of_person(self._address, lambda: token))
        except Unimplemented:
            raise Unimplemented("the orchestrator is of an earlier version, which does not say who signs in") from None

    def _lifetime_seconds(self, found: GetCallerResponse) -> float:
        """Returns how long a session lasts: not longer than its token."""
        longest = self._sessions.limits.longest_seconds
        if not found.HasField("expire_time"):
            return longest
        return max(0.0, min(longest, found.expire_time.ToNanoseconds() * 1e-9 - self._wall_clock()))

    async def sign_out(self, request: web.Request) -> web.Response:
        """Ends the session."""
        await self._close(self._sessions.take(reader_of(request)), "signed out")
        return self._with_cookie(request, answer({}), "")

    def _cookie(self, request: web.Request) -> str:
        # One that was set over TLS has the other name if a proxy provides it.
        names = (session_cookie_name(port_of(request), secure=secure) for secure in (True, False))
        return next((found for name in names if (found := request.cookies.get(name, ""))), "")

    def _with_cookie(self, request: web.Request, response: web.Response, id: str) -> web.Response:
        # The origin was checked; its scheme is that of the browser, also behind a proxy.
        secure = request.headers.get("Origin", "").lower().startswith("https://")
        name = session_cookie_name(port_of(request), secure=secure)
        if id:
            response.set_cookie(name, id, httponly=True, samesite="Strict", secure=secure, path="/")
        else:
            response.del_cookie(name, httponly=True, samesite="Strict", secure=secure, path="/")
        return response

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(CLEANING_SECONDS)
            await self._close(self._sessions.take_ended(), "expired")

    async def _close(self, ended: Sequence[Session], why: str) -> None:
        """Closes what belongs to sessions that have ended."""
        for session in ended:
            namespace, name = session.person
            log.info("session ended", name=name, namespace=namespace, reason=why)
            await session.reader.close()
            await self._left(session.reader)


def token_in(body: bytes) -> str:
    """Reads the token of a request to sign in.

    Raises:
        InvalidArgument: It has none, or what it has is no token.
    """
    found = parameters.text_in(parameters.body_of(body), "token", longest=LONGEST_TOKEN).strip()
    if not found or not found.isascii() or not found.isprintable() or " " in found:
        raise InvalidArgument("token: expected a token of the mesh, as `podrace token NAME` prints it")
    return found

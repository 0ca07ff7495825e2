"""Admits the holder of the token in the URL that the command prints; its requests have the rights of the command."""

from collections.abc import Sequence

from aiohttp import web

from podrace.dashboard.access import Keys, cookie_name
from podrace.dashboard.answers import READING, port_of, problem
from podrace.dashboard.entrance.reader import Reader

NO_TOKEN = (
    "This page needs the token of the dashboard. Open the address that `podrace dashboard` printed: it ends with"
    " ?token="
)


class UrlTokenEntrance:
    """The entrance of a dashboard for one person; see Entrance."""

    def __init__(self, keys: Keys, reader: Reader) -> None:
        """Creates the entrance.

        Args:
            keys: The token, and what is derived from it.
            reader: Whose rights all answers have.
        """
        self._keys, self._reader = keys, reader

    def admit(self, request: web.Request) -> tuple[Reader | None, web.Response | None]:
        """Exchanges a token in the URL for the cookie, and admits requests with the cookie."""
        if request.method in READING and "token" in request.query and request.path == "/":
            return None, self._enter(request)
        if not self._keys.is_cookie(request.cookies.get(cookie_name(port_of(request)), "")):
            return None, _without_token(request)
        return self._reader, None

    def _enter(self, request: web.Request) -> web.Response:
        """Exchanges the token in the URL for a cookie, and removes it from the URL."""
        if not self._keys.is_token(request.query["token"]):
            return _without_token(request)
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(
            cookie_name(port_of(request)),
            self._keys.cookie,
            httponly=True,
            samesite="Strict",
            secure=request.scheme == "https",
            path="/",
        )
        return response

    async def unauthenticated(self, reader: Reader) -> web.Response | None:
        """The error of the mesh is the answer: it says what is wrong with the credentials of the command."""
        return None

    def routes(self) -> Sequence[web.RouteDef]:
        """There are none."""
        return []


def _without_token(request: web.Request) -> web.Response:
    if request.path.startswith("/api/"):
        return problem(401, NO_TOKEN, "")
    return web.Response(status=401, text=f"{NO_TOKEN}\n")

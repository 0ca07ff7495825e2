"""Decides whether a request to the dashboard may be answered: its host, its token, its origin. Pure.

A browser gets a cookie that scripts cannot read: for the token in the URL that the command prints, or when a person
signs in. Changes need a second value as well, which only a page of the dashboard can read, and a matching origin; a
page of another site has neither.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

COOKIE = "podrace_dashboard"
SESSION_COOKIE = "podrace_session"
HOST_PREFIX = "__Host-"
"""Browsers take a cookie of such a name over TLS only, and not from another host of the same domain."""
CHANGE_HEADER = "X-Podrace-Change"
"""Header with the value that changes need."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
LONGEST_TOKEN = 512


@dataclass(frozen=True)
class Keys:
    """The token of a dashboard and the values derived from it."""

    token: str

    @property
    def cookie(self) -> str:
        """Value of the cookie."""
        return self._derived("cookie")

    @property
    def change(self) -> str:
        """Value of `CHANGE_HEADER`."""
        return self._derived("change")

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), f"podrace dashboard {purpose}".encode(), hashlib.sha256).hexdigest()

    def is_token(self, text: str) -> bool:
        """Whether a text is the token; takes the same time for every wrong one."""
        return len(text) <= LONGEST_TOKEN and _equal(text, self.token)

    def is_cookie(self, text: str) -> bool:
        """Whether a text is the value of the cookie."""
        return len(text) <= LONGEST_TOKEN and _equal(text, self.cookie)


def is_change(text: str, change: str) -> bool:
    """Whether a text is the value that changes need; takes the same time for every wrong one."""
    return len(text) <= LONGEST_TOKEN and _equal(text, change)


def _equal(text: str, secret: str) -> bool:
    # Bytes of a header that are not UTF-8 are surrogates here, which the default handler of errors cannot encode.
    return hmac.compare_digest(text.encode(errors="backslashreplace"), secret.encode())


def cookie_name(port: int) -> str:
    """Returns the name of the cookie; browsers share cookies between the ports of a host."""
    return f"{COOKIE}_{port}"


def session_cookie_name(port: int, *, secure: bool) -> str:
    """Returns the name of the cookie of a person who has signed in; `secure`: over TLS."""
    return f"{HOST_PREFIX if secure else ''}{SESSION_COOKIE}_{port}"


def accepts_host(host: str, names: Collection[str]) -> bool:
    """Whether the `Host` header names this dashboard.

    A page of another site that resolves its own name to this address sends that other name.

    Args:
        host: The header, with or without a port.
        names: Names to accept in lower case; empty: every name.
    """
    return not names or _without_port(host) in names


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


def names_of(listen_host: str, further: Collection[str]) -> frozenset[str]:
    """Returns the names under which a dashboard is reached; empty: unknown, because it listens on all addresses.

    Args:
        listen_host: Host that it listens on.
        further: Names that the user added.
    """
    added = {name.lower() for name in further}
    if listen_host in ("", "0.0.0.0", "::"):
        return frozenset({*LOCAL_NAMES, *added}) if added else frozenset()
    own = f"[{listen_host}]" if _is_ipv6(listen_host) else listen_host
    return frozenset({*LOCAL_NAMES, own.lower(), *added})


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def own_origins(scheme: str, host: str, *, behind_proxy: bool) -> tuple[str, ...]:
    """Returns the origins of the pages of a dashboard.

    Args:
        scheme: `http` or `https`, by which the request arrived.
        host: The header `Host`, which has been accepted.
        behind_proxy: Whether a proxy may provide TLS.
    """
    return (f"{scheme}://{host}", *([f"https://{host}"] if behind_proxy and scheme != "https" else []))


def refused_change(
    *, origin: str | None, own_origins: Collection[str], fetch_site: str | None, content_type: str
) -> str:
    """Returns why a request that changes something is refused because of where it comes from; empty if it is not.

    Args:
        origin: Header `Origin`; browsers send it with every such request.
        own_origins: Origins of the pages of this dashboard.
        fetch_site: Header `Sec-Fetch-Site`; None: not sent.
        content_type: Header `Content-Type`; forms of other sites cannot send JSON without being asked first.
    """
    if origin is None or origin.lower() not in {own.lower() for own in own_origins}:
        return f"the request comes from {origin or 'no page'} and not from {' or '.join(own_origins)}"
    if fetch_site not in (None, "same-origin"):
        return f"the request comes from another site (Sec-Fetch-Site: {fetch_site})"
    if content_type.partition(";")[0].strip().lower() != "application/json":
        return "the request has no JSON"
    return ""

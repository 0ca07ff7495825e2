"""Checks the URLs of a specification against the hosts that the operator allows. Pure."""

import re
from urllib.parse import SplitResult, urlsplit

from podrace.limits.addresses import is_local, is_metadata, parse_address
from podrace.limits.config import Allowed

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
PORTS = {"http": 80, "https": 443}


def is_url(text: str) -> bool:
    """Whether a text is a URL of any scheme."""
    return _SCHEME.match(text) is not None


def url_problem(url: str, allowed: Allowed) -> str:
    """Returns why a URL is not fetched; empty if it is. The addresses of its host are checked when it is fetched."""
    parts = split(url)
    if parts is None:
        return "expected http:// or https://, a host without user name or password, and a path"
    host = host_of(parts)
    if is_metadata(host):
        return "credentials of machines are at this address, which is never fetched"
    if allowed.everything or any(_is_listed(parts, entry) for entry in allowed.url_hosts):
        return ""
    return f"this host is not allowed here by {parts.scheme}; the setting of its operator is allow.url_hosts"


def split(url: str) -> SplitResult | None:
    """Returns the parts of a URL that can be fetched; None for any other."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    host = parts.hostname or ""
    fits = parts.scheme in PORTS and re.fullmatch(r"[\w.:-]+", host) and "@" not in parts.netloc and port != 0
    return parts if fits and not re.search(r"[\0-\x20\x7f]", url) else None


def host_of(parts: SplitResult) -> str:
    """Returns the host in lower case, without brackets and a final dot."""
    return (parts.hostname or "").rstrip(".")


def port_of(parts: SplitResult) -> int:
    """Returns the port, that of the scheme if none is named."""
    return parts.port or PORTS[parts.scheme]


def may_be_local(parts: SplitResult, allowed: Allowed) -> bool:
    """Whether the host may have an address of this machine: only one that is written as such."""
    address = parse_address(host_of(parts))
    return allowed.everything or host_of(parts) == "localhost" or (address is not None and is_local(address))


def _is_listed(parts: SplitResult, entry: str) -> bool:
    scheme, _, rest = entry.rpartition("://")
    listed = urlsplit(f"//{rest}".lower())
    host, listed_host = host_of(parts), (listed.hostname or "").rstrip(".")
    is_host = host.endswith(listed_host.removeprefix("*")) if listed_host.startswith("*.") else host == listed_host
    return is_host and parts.scheme == (scheme or "https") and port_of(parts) == (listed.port or PORTS[parts.scheme])

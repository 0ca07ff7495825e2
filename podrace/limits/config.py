"""Defines what the operator of a service allows specifications to name."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

from podrace.errors import InvalidArgument

MODULE = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?:(?P<inner>\.\*)|:(?P<function>[^\W\d]\w*))?")
"""`mine`, `mine.*` or `mine:make`."""
_SERVICE = re.compile(r"unix:/\S+|(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):(?:\d{1,5}|\*)")
_SERVICE_TOKEN = re.compile(r"(?:unix:/[^\s=]+|(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5})=/\S+")
_URL_HOST = re.compile(r"(?:https?://)?(?:(?:\*\.)?[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_ROOT = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_]\w*\*?")
RESERVED_ROOTS = ("file", "ftp", "http", "https", "s3", "synthetic")
"""Texts before a colon that mean something else than a data root."""
KERNEL_FOLDERS = ("/proc", "/sys", "/dev")


@dataclass(frozen=True)
class Allowed:
    """What the operator of a service allows specifications to name.

    Raises:
        InvalidArgument: A value is malformed; the message has the key.
    """

    everything: bool = False
    """Specifications may name whatever the user of this process could use: any module, file, URL or service. Set by the
    embedded mesh, which belongs to one user. Never set it for a service that others can call: anyone who
    creates a tournament then runs code as this user."""
    modules: tuple[str, ...] = ()
    """Python modules that `python:module:function` and `module:Name-v0` may name: `mine`; `mine.*` for a package with
    all its modules; `mine:make` for one function."""
    isaac: bool = False
    """Whether `isaacgym:` and `isaaclab:` may be used, with the interpreters that the operator names."""
    services: tuple[str, ...] = ()
    """Addresses that `grpc://` may name: `host:port`, `host:*` for all ports, `unix:/path`, `unix:/folder/*`."""
    services_need_tls: bool = False
    """Services at network addresses are called by TLS only; without a certificate of this process they are refused."""
    service_tokens: tuple[str, ...] = ()
    """Files with the token that a service at `grpc://ADDRESS` gets, as `ADDRESS=FILE`. Its audience is that service, so
    it is not a token of the mesh. A file is that of the machine or container where the caller runs, and only its user
    may read it."""
    data_roots: Mapping[str, str] = field(default_factory=dict)
    """Folders of data by name: with `allow.data_roots.prices=/srv/prices`, `prices:us/daily.csv` names a file below. A
    folder is that of the machine or container where the pods run."""
    url_hosts: tuple[str, ...] = ()
    """Hosts that data may be fetched from: `host`, `host:port`, `*.domain`, by HTTPS; `http://host` without TLS."""
    url_bytes: int = 1 << 30
    """Largest size of a file that is fetched."""
    url_seconds: float = 60.0
    """Time limit for fetching a file, redirects included."""
    variables: tuple[str, ...] = ()
    """Environment variables that user code gets in addition to a fixed list; a final `*` stands for every ending."""

    def __post_init__(self) -> None:
        _check("modules", self.modules, MODULE, "mine, mine.* or mine:function")
        _check("services", self.services, _SERVICE, "host:port, host:* or unix:/path")
        _check("service_tokens", self.service_tokens, _SERVICE_TOKEN, "host:port=/path or unix:/path=/path")
        _check("url_hosts", self.url_hosts, _URL_HOST, "host, host:port, *.domain or http://host")
        _check("data_roots", self.data_roots, _ROOT, "a name of lower-case letters and digits")
        _check("variables", self.variables, _VARIABLE, "the name of a variable")
        for name, folder in self.data_roots.items():
            _check_root(name, str(folder))
        for name in self.variables:
            if name.rstrip("*").startswith("PODRACE") or "PODRACE_".startswith(name.rstrip("*")):
                raise InvalidArgument(f"allow.variables = {name!r}: variables of podrace are not passed to user code")
        for key in ("url_bytes", "url_seconds"):
            if not getattr(self, key) > 0:
                raise InvalidArgument(f"allow.{key} = {getattr(self, key):g}: expected more than 0")

    def __hash__(self) -> int:
        """Makes the limits a key of caches, although a mapping has no hash."""
        return hash((*(getattr(self, key) for key in _HASHED), tuple(sorted(self.data_roots.items()))))


_HASHED = ("everything", "modules", "isaac", "services", "url_hosts")


def changed_settings(allowed: Allowed) -> dict[str, Any]:
    """Returns the settings that differ from their defaults, for the configuration of another process."""
    return {
        each.name: getattr(allowed, each.name)
        for each in fields(Allowed)
        if getattr(allowed, each.name) != getattr(NOTHING, each.name)
    }


def command_settings(allowed: Allowed) -> dict[str, object]:
    """Returns the settings that differ from their defaults, by dotted key, for a command line."""
    found: dict[str, object] = {}
    for name, value in changed_settings(allowed).items():
        if isinstance(value, Mapping):
            found |= {f"allow.{name}.{root}": folder for root, folder in value.items()}
        else:
            found[f"allow.{name}"] = ",".join(value) if isinstance(value, tuple) else value
    return found


def _check(key: str, values: Iterable[str], form: re.Pattern[str], expected: str) -> None:
    for value in values:
        if not form.fullmatch(value):
            raise InvalidArgument(f"allow.{key} = {value!r}: expected {expected}")


def _check_root(name: str, folder: str) -> None:
    if name in RESERVED_ROOTS:
        raise InvalidArgument(f"allow.data_roots.{name}: this name has another meaning; choose another one")
    path = PurePosixPath(folder)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise InvalidArgument(f"allow.data_roots.{name} = {folder!r}: expected an absolute path other than /")
    if any(path.is_relative_to(kernel) for kernel in KERNEL_FOLDERS):
        raise InvalidArgument(f"allow.data_roots.{name} = {folder!r}: is a folder of the kernel, not of data")


NOTHING = Allowed()
"""What a service allows by default."""
EVERYTHING = Allowed(everything=True)
"""What the user of an embedded mesh, or of a Python function, may do anyway."""

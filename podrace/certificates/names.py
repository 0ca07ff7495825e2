"""Names principals in certificates: `spiffe://TRUST_DOMAIN/[ns/NAMESPACE/]ROLE[/NAME]`, in the style of SPIFFE.

The role is the first part of the path, so a certificate says what its holder may do:

    spiffe://podrace/orchestrator
    spiffe://podrace/pod-role
    spiffe://podrace/ns/vision/user/alice
"""

import re
from dataclasses import dataclass
from typing import Self

from podrace.config import unknown
from podrace.errors import InvalidArgument

TRUST_DOMAIN = "podrace"
ROLES = {
    "orchestrator": "the orchestrator",
    "leaderboard": "the leaderboard",
    "pod-leader": "a pod that was started outside the mesh; it may take any assignment",
    "pod-role": "the processes of pods that the orchestrator starts; their leader adds its own token",
    "plugin": "a plugin or a SimulatorService",
    "policy-server": "a policy server, which reads tournaments and has champions evaluated",
    "viewer": "a person or program that reads",
    "user": "a person or program with its own tournaments",
    "operator": "a person or program that may do everything",
}
"""Roles that a certificate may carry, and what they are for."""
PEOPLE = ("viewer", "user", "operator")
"""Roles of callers. Those that listen as well, such as the dashboard, have hosts in their certificates."""
SCHEME = "spiffe://"
_PART = re.compile(r"[A-Za-z0-9._-]{1,63}")
_DOMAIN = re.compile(r"[a-z0-9._-]{1,255}")


@dataclass(frozen=True)
class SpiffeName:
    """Role and name of a principal, as a certificate has them."""

    role: str
    """A key of ROLES."""
    name: str = ""
    """Name of a person, a pod or a plugin; empty: the role has one holder."""
    namespace: str = ""
    trust_domain: str = TRUST_DOMAIN

    def __post_init__(self) -> None:
        """Checks the parts.

        Raises:
            InvalidArgument: The role is unknown, or a part has characters that are not allowed.
        """
        if self.role not in ROLES:
            raise InvalidArgument(unknown("certificate", "role", self.role, ROLES))
        for what, part in (("name", self.name), ("namespace", self.namespace)):
            if part and (not _PART.fullmatch(part) or part in (".", "..")):
                raise InvalidArgument(
                    f"{what} of a certificate {part!r}: expected up to 63 letters, digits, dots, underscores or hyphens"
                )
        if self.role in PEOPLE and not self.name:
            raise InvalidArgument(f"a certificate of the role {self.role} needs the name of its holder")
        if not _DOMAIN.fullmatch(self.trust_domain):
            raise InvalidArgument(f"trust domain {self.trust_domain!r}: expected lower-case letters, digits and dots")

    @classmethod
    def parse(cls, uri: str) -> Self:
        """Reads a name from the URI of a certificate.

        Raises:
            InvalidArgument: It is not such a name.
        """
        domain, slash, path = uri.removeprefix(SCHEME).partition("/")
        parts = path.split("/")
        complete = uri.startswith(SCHEME) and slash and all(parts)
        namespace = ""
        if parts[0] == "ns" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        if not complete or len(parts) > 2:
            raise InvalidArgument(
                f"name of a certificate {uri!r}: expected {SCHEME}{TRUST_DOMAIN}/ROLE/NAME or"
                f" {SCHEME}{TRUST_DOMAIN}/ns/NAMESPACE/ROLE/NAME"
            )
        return cls(parts[0], parts[1] if len(parts) == 2 else "", namespace, domain)

    @property
    def path(self) -> str:
        """The part after the trust domain, `ROLE/NAME` for instance."""
        namespace = f"ns/{self.namespace}/" if self.namespace else ""
        return f"{namespace}{self.role}" + (f"/{self.name}" if self.name else "")

    @property
    def uri(self) -> str:
        """The name as a URI."""
        return f"{SCHEME}{self.trust_domain}/{self.path}"

"""Identifies callers by the SPIFFE-style URI of their certificate, which carries the role.

TLS has verified that the authority signed the certificate, and that the caller has its key. A connection may outlive
its certificate, so expiry and revocation are checked with every call.
"""

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509

from podrace import tls
from podrace.access.credentials import Credentials
from podrace.access.principal import ROLES_BY_NAME, Principal, roles_with_included
from podrace.access.tokens import POD_PREFIX
from podrace.certificates.issuing import names_of
from podrace.certificates.names import PEOPLE, TRUST_DOMAIN, SpiffeName
from podrace.certificates.revocation import RevocationList
from podrace.errors import InvalidArgument, Unauthenticated

PEM = "x509_pem_cert"
"""Key of the caller's certificate in the authentication context of gRPC."""
REMEMBERED = 20_000
"""Number of certificates whose parsed form is cached."""


@dataclass(frozen=True)
class _Known:
    principal: Principal
    serial: int


class CertificateAuthenticator:
    """Gives a caller the role of its certificate; see Authenticator."""

    def __init__(
        self,
        trust_domain: str = TRUST_DOMAIN,
        revoked: Container[int] = frozenset(),
        now: Callable[[], float] = time.time,
    ) -> None:
        """Creates the authenticator.

        Args:
            trust_domain: First part of the names that are accepted.
            revoked: Serial numbers of revoked certificates.
            now: Returns the seconds since 1970.
        """
        self._trust_domain, self._revoked, self._now = trust_domain, revoked, now
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._serials: OrderedDict[bytes, int] = OrderedDict()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self | None:
        """Returns the authenticator that the variables of podrace.tls describe; None if they name no certificate.

        Raises:
            FailedPrecondition: The list of revoked certificates cannot be used.
        """
        authority = environ.get(tls.AUTHORITY)
        if not authority or not environ.get(tls.CERTIFICATE):
            return None
        path = environ.get(tls.REVOCATION)
        revoked = RevocationList(Path(path), Path(authority)) if path else frozenset[int]()
        return cls(environ.get(tls.TRUST_DOMAIN) or TRUST_DOMAIN, revoked)

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns the holder of the certificate; None if the connection has none, or the caller presents a token.

        Raises:
            Unauthenticated: The certificate was revoked, has expired, or does not name a role.
        """
        pem = next(iter(credentials.transport.get(PEM, ())), b"")
        if not pem or credentials.token:
            return None
        known = self._lookup(pem)
        name = known.principal.name
        if known.serial in self._revoked:
            raise Unauthenticated(f"the certificate of {name} was revoked; use another one")
        if self._now() >= known.principal.expire_time:
            raise Unauthenticated(f"the certificate of {name} has expired; renew it (podrace certs renew)")
        return known.principal

    def check_connection(self, credentials: Credentials) -> None:
        """Checks the certificate of a connection over which a call with a valid token arrives.

        Raises:
            Unauthenticated: The certificate was revoked.
        """
        pem = next(iter(credentials.transport.get(PEM, ())), b"") if credentials.token else b""
        if pem and self._serial(pem) in self._revoked:
            raise Unauthenticated("the certificate of this connection was revoked; use another one")

    def _serial(self, pem: bytes) -> int:
        """Returns the serial number of a certificate, whatever its names are."""
        digest = hashlib.sha256(pem).digest()
        known = self._serials.get(digest)
        if known is None:
            known = self._serials[digest] = x509.load_pem_x509_certificate(pem).serial_number
            if len(self._serials) > REMEMBERED:
                self._serials.popitem(last=False)
        return known

    def _lookup(self, pem: bytes) -> _Known:
        digest = hashlib.sha256(pem).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._known[digest] = self._parsed(pem)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return known

    def _parsed(self, pem: bytes) -> _Known:
        certificate = x509.load_pem_x509_certificate(pem)
        uris, _ = names_of(certificate)
        expected = f"spiffe://{self._trust_domain}/ROLE/NAME"
        if len(uris) != 1:
            raise Unauthenticated(
                f"the certificate has {len(uris)} URIs; it needs one, {expected}: podrace certs makes such certificates"
            )
        try:
            name = SpiffeName.parse(uris[0])
        except InvalidArgument as error:
            raise Unauthenticated(error.message) from None
        if name.trust_domain != self._trust_domain:
            raise Unauthenticated(f"the certificate names {name.uri!r}; expected {expected}")
        expire_time = certificate.not_valid_after_utc.timestamp()
        return _Known(principal_of(name, expire_time), certificate.serial_number)


def principal_of(name: SpiffeName, expire_time: float) -> Principal:
    """Returns the holder of a certificate with this name."""
    is_pod = name.role in ("pod-leader", "pod-role")
    if name.role in PEOPLE:
        shown = name.name
    elif is_pod and name.name:
        shown = f"{POD_PREFIX}{name.name}"
    else:
        shown = f"{name.role}/{name.name}" if name.name else name.role
    return Principal(
        shown,
        roles_with_included({ROLES_BY_NAME[name.role]}),
        namespace=name.namespace,
        pod_id=name.name if is_pod else "",
        via="certificate",
        expire_time=expire_time,
    )

"""Configures mutual TLS between services, with certificates of one authority.

    PODRACE_TLS_CERTIFICATE_FILE    certificate of this process, with its chain, PEM
    PODRACE_TLS_KEY_FILE            its private key, PEM
    PODRACE_TLS_AUTHORITY_FILE      certificates of the authority that has signed all certificates, PEM
    PODRACE_TLS_SERVER_NAME         name that the certificate of a server must have instead of the host name of its
                                    address; for connections through a forwarded port, for example
    PODRACE_TLS_REVOCATION_FILE     list of revoked certificates, PEM, signed by the authority
    PODRACE_TLS_TRUST_DOMAIN        first part of the names in certificates; `podrace` if it is not set

If the first three are set, servers and clients on network addresses present their certificates and verify those of the
other side. With the authority alone a client verifies servers and presents no certificate: it identifies itself by a
token. Without any of them connections are unencrypted. Connections over Unix sockets never use TLS: file permissions
control access to them. Servers and channels read the files again when they have changed, so that certificates can be
renewed.
"""

import contextlib
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from podrace.errors import FailedPrecondition, InvalidArgument

CERTIFICATE, KEY, AUTHORITY = (f"PODRACE_TLS_{name}_FILE" for name in ("CERTIFICATE", "KEY", "AUTHORITY"))
SERVER_NAME = "PODRACE_TLS_SERVER_NAME"
REVOCATION, TRUST_DOMAIN = "PODRACE_TLS_REVOCATION_FILE", "PODRACE_TLS_TRUST_DOMAIN"


@dataclass(frozen=True)
class TlsIdentity:
    """Certificate and key of this process, and the authority that it trusts."""

    certificate: Path | None
    """None: a client that identifies itself by a token."""
    key: Path | None
    authority: Path
    server_name: str = ""
    """Name that the certificates of servers must have; empty: the host name of the address."""

    def check(self) -> None:
        """Checks that the files can be used.

        Raises:
            FailedPrecondition: A file cannot be read or is not PEM, or the key belongs to another certificate.
        """
        try:
            for path in self._files:
                path.read_bytes()
            ssl.create_default_context(cafile=str(self.authority))
            if self.certificate:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except OSError as error:
            named = error.filename or ", ".join(map(str, self._files))
            raise FailedPrecondition(
                f"TLS: {named}: {error.strerror or error}; check {CERTIFICATE}, {KEY} and {AUTHORITY}"
            ) from None

    @property
    def _files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.certificate, self.key, self.authority) if path)

    def _pair(self) -> tuple[bytes, bytes] | None:
        return (self.key.read_bytes(), self.certificate.read_bytes()) if self.key and self.certificate else None

    def stamp(self) -> tuple[int, ...]:
        """Returns numbers that change when a file changes.

        Raises:
            OSError: A file is missing.
        """
        return tuple(number for path in self._files for number in (path.stat().st_mtime_ns, path.stat().st_ino))

    def of_server(self, *, client_certificates: bool = True) -> grpc.ServerCredentials:
        """Returns credentials of a server that reads changed files again at the next handshake.

        Args:
            client_certificates: Whether callers must present a certificate. If not, none is asked for.

        Raises:
            FailedPrecondition: A file cannot be used, or there is no certificate.
        """
        if not self.certificate:
            raise FailedPrecondition(
                f"a server needs a certificate: set {CERTIFICATE} and {KEY} together with {AUTHORITY}"
            )
        self.check()
        seen = [self.stamp()]

        def renewed() -> Any:
            """Returns a new configuration; None: keep the present one."""
            try:
                if self.stamp() == seen[0]:
                    return None
                self.check()
                seen[0] = self.stamp()
                return self._configuration()
            except (OSError, FailedPrecondition):
                # The files are being replaced: keep the present configuration.
                return None

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), renewed, require_client_authentication=client_certificates
        )

    def of_https_server(self) -> ssl.SSLContext:
        """Returns the context of a server that asks for no certificate, and reads changed files again like `of_server`.

        Raises:
            FailedPrecondition: A file cannot be used, or there is no certificate.
        """
        self.check()
        seen, current = [self.stamp()], [self._https_context()]

        def renew(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, listening: ssl.SSLContext) -> None:
            with contextlib.suppress(OSError, FailedPrecondition):
                # If the files are being replaced, the present context is kept.
                if (stamp := self.stamp()) != seen[0]:
                    self.check()
                    current[0], seen[0] = self._https_context(), stamp
            connection.context = current[0]

        # The listening context is used for each handshake until this chooses the newest one.
        listening = self._https_context()
        listening.sni_callback = renew
        return listening

    def _https_context(self) -> ssl.SSLContext:
        if not self.certificate:
            raise FailedPrecondition(
                f"a server needs a certificate: set {CERTIFICATE} and {KEY} together with {AUTHORITY}"
            )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = self._pair()
        assert pair, "a server has a certificate"
        return grpc.ssl_server_certificate_configuration([pair], self.authority.read_bytes())

    def of_channel(self) -> grpc.ChannelCredentials:
        """Returns credentials of a client."""
        self.check()
        key, certificate = self._pair() or (None, None)
        return grpc.ssl_channel_credentials(self.authority.read_bytes(), key, certificate)

    @property
    def options(self) -> list[tuple[str, str]]:
        """Channel arguments that are needed with these credentials."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def identity_for(address: str, environ: Mapping[str, str] = os.environ) -> TlsIdentity | None:
    """Returns the identity to use at an address; None: the connection does not use TLS.

    Raises:
        InvalidArgument: Some of the three files are set, but neither all nor the authority alone.
    """
    named = {name: environ[name] for name in (CERTIFICATE, KEY, AUTHORITY) if environ.get(name)}
    if not named or address.startswith("unix:"):
        return None
    if list(named) == [AUTHORITY]:
        return TlsIdentity(None, None, Path(named[AUTHORITY]), environ.get(SERVER_NAME, ""))
    if missing := [name for name in (CERTIFICATE, KEY, AUTHORITY) if name not in named]:
        raise InvalidArgument(
            f"{', '.join(missing)}: missing; set it together with {', '.join(named)}, or set none of them"
        )
    certificate, key, authority = (Path(named[name]) for name in (CERTIFICATE, KEY, AUTHORITY))
    return TlsIdentity(certificate, key, authority, environ.get(SERVER_NAME, ""))

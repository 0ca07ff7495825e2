"""Configures mutual TLS between services, with certificates of one authority.

    PODRACE_TLS_CERTIFICATE_FILE    certificate of this process, with its chain, PEM
    PODRACE_TLS_KEY_FILE            its private key, PEM
    PODRACE_TLS_AUTHORITY_FILE      certificates of the authority that has signed all certificates, PEM
    PODRACE_TLS_SERVER_NAME         name that the certificate of a server must have instead of the host name of its
                                    address; for connections through a forwarded port, for example

If the first three are set, servers and clients on network addresses present their certificates and verify those of the
other side. Otherwise connections are unencrypted. Connections over Unix sockets never use TLS: file permissions control
access to them. Channels read the files when they are opened, and servers read them again when they have changed, so
that certificates can be renewed.
"""

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


@dataclass(frozen=True)
class TlsIdentity:
    """Certificate and key of this process, and the authority that it trusts."""

    certificate: Path
    key: Path
    authority: Path
    server_name: str = ""
    """Name that the certificates of servers must have; empty: the host name of the address."""

    def check(self) -> None:
        """Checks that the files can be used.

        Raises:
            FailedPrecondition: A file cannot be read or is not PEM, or the key belongs to another certificate.
        """
        try:
            for path in (self.certificate, self.key, self.authority):
                path.read_bytes()
            ssl.create_default_context(cafile=str(self.authority))
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except OSError as error:
            named = error.filename or f"{self.certificate}, {self.key} or {self.authority}"
            raise FailedPrecondition(
                f"TLS: {named}: {error.strerror or error}; check {CERTIFICATE}, {KEY} and {AUTHORITY}"
            ) from None

    def _pair(self) -> tuple[bytes, bytes]:
        return self.key.read_bytes(), self.certificate.read_bytes()

    def _stamp(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in (self.certificate, self.key, self.authority))

    def of_server(self) -> grpc.ServerCredentials:
        """Returns credentials of a server that reads changed files again at the next handshake."""
        self.check()
        seen = [self._stamp()]

        def renewed() -> Any:
            """Returns a new configuration; None: keep the present one."""
            try:
                if self._stamp() == seen[0]:
                    return None
                self.check()
                seen[0] = self._stamp()
                return self._configuration()
            except (OSError, FailedPrecondition):
                # The files are being replaced: keep the present configuration.
                return None

        return grpc.dynamic_ssl_server_credentials(self._configuration(), renewed, require_client_authentication=True)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([self._pair()], self.authority.read_bytes())

    def of_channel(self) -> grpc.ChannelCredentials:
        """Returns credentials of a client."""
        self.check()
        key, certificate = self._pair()
        return grpc.ssl_channel_credentials(self.authority.read_bytes(), key, certificate)

    @property
    def options(self) -> list[tuple[str, str]]:
        """Channel arguments that are needed with these credentials."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def identity_for(address: str, environ: Mapping[str, str] = os.environ) -> TlsIdentity | None:
    """Returns the identity to use at an address; None: the connection does not use TLS.

    Raises:
        InvalidArgument: Some of the three files are set, but not all.
    """
    named = {name: environ[name] for name in (CERTIFICATE, KEY, AUTHORITY) if environ.get(name)}
    if not named or address.startswith("unix:"):
        return None
    if missing := [name for name in (CERTIFICATE, KEY, AUTHORITY) if name not in named]:
        raise InvalidArgument(
            f"{', '.join(missing)}: missing; set it together with {', '.join(named)}, or set none of them"
        )
    certificate, key, authority = (Path(named[name]) for name in (CERTIFICATE, KEY, AUTHORITY))
    return TlsIdentity(certificate, key, authority, environ.get(SERVER_NAME, ""))

"""Owns how members of the mesh prove over a network who they are: mutual TLS, certificates of one authority.

    PODRACE_TLS_CERTIFICATE_FILE    this process's certificate and what it is signed by, PEM
    PODRACE_TLS_KEY_FILE            its private key, PEM
    PODRACE_TLS_AUTHORITY_FILE      certificates of the authority that has signed everybody's, PEM
    PODRACE_TLS_SERVER_NAME         name that servers are to prove instead of the one that was dialled: behind a
                                    forwarded port, for instance

With the first three, whoever listens at a network address shows its certificate and wants to see one, and whoever dials
does the same. Without them everything is plain. Unix sockets always are: the kernel knows who may open them. The files
are read again for every channel, and by servers when they have changed, so that certificates can be renewed.
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
class Identity:
    """The files by which this process proves who it is, and others do to it."""

    certificate: Path
    key: Path
    authority: Path
    server_name: str = ""
    """What servers are to prove; empty: the name that was dialled."""

    def check(self) -> None:
        """Refuses files that no handshake would succeed with.

        Raises:
            FailedPrecondition: One cannot be read, is no PEM, or the key is another certificate's.
        """
        try:
            for path in (self.certificate, self.key, self.authority):
                path.read_bytes()
            ssl.create_default_context(cafile=str(self.authority))
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except OSError as error:
            named = error.filename or f"{self.certificate}, {self.key} or {self.authority}"
            raise FailedPrecondition(
                f"TLS: {named}: {error.strerror or error}; look at {CERTIFICATE}, {KEY} and {AUTHORITY}"
            ) from None

    def _pair(self) -> tuple[bytes, bytes]:
        return self.key.read_bytes(), self.certificate.read_bytes()

    def _stamp(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in (self.certificate, self.key, self.authority))

    def of_server(self) -> grpc.ServerCredentials:
        """What a server shows and wants to see, from the files as they are at each handshake."""
        self.check()
        seen = [self._stamp()]

        def renewed() -> Any:
            """A new configuration; None: the last one holds."""
            try:
                if self._stamp() == seen[0]:
                    return None
                self.check()
                seen[0] = self._stamp()
                return self._configuration()
            except (OSError, FailedPrecondition):
                # They are being replaced: what was read last still holds.
                return None

        return grpc.dynamic_ssl_server_credentials(self._configuration(), renewed, require_client_authentication=True)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([self._pair()], self.authority.read_bytes())

    def of_channel(self) -> grpc.ChannelCredentials:
        """What a channel shows and wants to see."""
        self.check()
        key, certificate = self._pair()
        return grpc.ssl_channel_credentials(self.authority.read_bytes(), key, certificate)

    @property
    def options(self) -> list[tuple[str, str]]:
        """Arguments of channels."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def identity_for(address: str, environ: Mapping[str, str] = os.environ) -> Identity | None:
    """Who this process is to the other end of an address; None: nobody asks there.

    Raises:
        InvalidArgument: Some of the files are named, and others are not.
    """
    named = {name: environ[name] for name in (CERTIFICATE, KEY, AUTHORITY) if environ.get(name)}
    if not named or address.startswith("unix:"):
        return None
    if missing := [name for name in (CERTIFICATE, KEY, AUTHORITY) if name not in named]:
        raise InvalidArgument(f"{', '.join(missing)}: missing; set it beside {', '.join(named)}, or none of them")
    certificate, key, authority = (Path(named[name]) for name in (CERTIFICATE, KEY, AUTHORITY))
    return Identity(certificate, key, authority, environ.get(SERVER_NAME, ""))

"""Holds the settings of a dashboard and checks them."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from podrace.access.token_file import load_or_make_token, token_path
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.rpc import is_local

TOKEN_NAME = "dashboard-token"
"""Name of the file with the token, next to the token file of the mesh."""
DEFAULT_LISTEN = "127.0.0.1:7780"


@dataclass(frozen=True)
class DashboardSettings:
    """Where a dashboard listens, and who may open it."""

    listen: str = DEFAULT_LISTEN
    """`host:port`; port 0: any free port."""
    token_file: Path | None = None
    """File with the token, made if it does not exist; None: `dashboard-token` next to the token file of the mesh."""
    certificate: Path | None = None
    """Certificate of the dashboard with its chain, PEM; None: no TLS."""
    key: Path | None = None
    """Private key of the certificate, PEM."""
    names: tuple[str, ...] = ()
    """Further host names under which browsers reach it, for instance that of a proxy."""
    insecure: bool = False
    """Whether it may listen without TLS where other machines reach it."""
    sign_in: bool = False
    """Whether each person signs in with a token of the mesh; there is no token of the dashboard then."""
    logs: Path | None = None
    """Folder with the logs of the embedded mesh; None: the mesh runs elsewhere."""

    @property
    def host(self) -> str:
        """Host to listen on."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Port to listen on."""
        return int(self.listen.rpartition(":")[2])

    def check(self) -> None:
        """Checks the settings.

        Raises:
            InvalidArgument: The address has another form, only one of certificate and key is set, or the token of a
                dashboard where persons sign in.
            FailedPrecondition: Other machines reach the address, and there is no TLS.
        """
        host, colon, port = self.listen.rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise InvalidArgument(f"--listen {self.listen}: expected HOST:PORT, for instance {DEFAULT_LISTEN}")
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgument("--tls-certificate and --tls-key: set both or none")
        if self.sign_in and self.token_file:
            raise InvalidArgument("--token-file: with --sign-in there is no token of the dashboard; leave it out")
        if self.certificate is None and not self.insecure and not is_local(self.listen):
            raise FailedPrecondition(
                f"--listen {self.listen}: other machines reach it, and they could read tokens; set --tls-certificate"
                " and --tls-key, listen on 127.0.0.1, or start with --insecure behind a proxy that has TLS"
            )

    def token(self) -> str:
        """Returns the token, which is made at first use.

        Raises:
            FailedPrecondition: Others can read the file, or it cannot be made or read.
        """
        return load_or_make_token(self.token_path)

    @property
    def token_path(self) -> Path:
        """File with the token."""
        return self.token_file or token_path().with_name(TOKEN_NAME)

    def tls(self) -> "RenewedTls | None":
        """Returns the TLS configuration; None: without TLS.

        Raises:
            FailedPrecondition: The certificate or the key cannot be used.
        """
        return RenewedTls(self.certificate, self.key) if self.certificate and self.key else None


class RenewedTls:
    """A TLS configuration that reads its files again when they have changed, so that certificates can be renewed."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Reads the files.

        Raises:
            FailedPrecondition: The certificate or the key cannot be used.
        """
        self._certificate, self._key = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._stamp: tuple[int, ...] = ()
        self.renew()

    def renew(self) -> bool:
        """Reads the files if they have changed; the next connections then get the new certificate.

        Returns:
            Whether they had changed.

        Raises:
            FailedPrecondition: The certificate or the key cannot be used; the present one is kept.
        """
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return False
            # A pair that does not fit together would leave the context with half of it.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
            self.context.load_cert_chain(self._certificate, self._key)
        except OSError as error:
            raise FailedPrecondition(
                f"--tls-certificate {self._certificate}, --tls-key {self._key}: {error.strerror or error}"
            ) from None
        self._stamp = stamp
        return True

    def _read_stamp(self) -> tuple[int, ...]:
        found = (path.stat() for path in (self._certificate, self._key))
        return tuple(number for each in found for number in (each.st_mtime_ns, each.st_ino))

"""Reports when the certificate of this process and that of the authority expire: a metric, and a warning at the start.

The files are read when Prometheus asks, if they have changed. Servers and channels also read changed files again.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import prometheus_client
import structlog
from cryptography import x509

from podrace.certificates.issuing import is_due
from podrace.tls import AUTHORITY, CERTIFICATE

EXPIRY = prometheus_client.Gauge(
    "podrace_tls_certificate_expiry_time_seconds",
    "When the certificate of this process (own), or that of the authority, expires, in seconds since the epoch",
    ["certificate"],
)
_log = structlog.get_logger(__name__)


class CertificateFile:
    """A file with certificates in PEM. A file that cannot be read, while it is replaced, is as it was before."""

    def __init__(self, path: Path, *, is_bundle: bool) -> None:
        """Reads the file.

        Args:
            path: The file.
            is_bundle: Whether one of its certificates suffices, so that the one that expires last counts. Otherwise it
                is a chain, of which the one that expires first counts.
        """
        self.path, self._is_bundle = path, is_bundle
        self._stamp: tuple[int, int] | None = None
        self._validity: tuple[datetime, datetime] | None = None
        self._read()

    def expiry_seconds(self) -> float:
        """Returns when it expires, in seconds since the epoch; NaN if the file was never readable."""
        self._read()
        return self._validity[1].timestamp() if self._validity else math.nan

    def due_before(self, now: datetime) -> datetime | None:
        """Returns when it expires, if it is due for renewal; None otherwise."""
        return self._validity[1] if self._validity and is_due(*self._validity, now) else None

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            found = self.path.stat()
            if (stamp := (found.st_mtime_ns, found.st_ino)) != self._stamp:
                loaded = x509.load_pem_x509_certificates(self.path.read_bytes())
                chosen = (max if self._is_bundle else min)(loaded, key=lambda each: each.not_valid_after_utc)
                self._validity = chosen.not_valid_before_utc, chosen.not_valid_after_utc
                self._stamp = stamp


def watch(environ: Mapping[str, str], now_seconds: float) -> None:
    """Exports when the certificates that the environment names expire, and warns of those that are due for renewal."""
    for name, variable in (("own", CERTIFICATE), ("authority", AUTHORITY)):
        if not environ.get(variable):
            continue
        file = CertificateFile(Path(environ[variable]), is_bundle=variable == AUTHORITY)
        EXPIRY.labels(name).set_function(file.expiry_seconds)
        if expires := file.due_before(datetime.fromtimestamp(now_seconds, UTC)):
            line = "a certificate expires soon, and calls fail from then on; renew it"
            _log.warning(line, file=str(file.path), expires=f"{expires:%Y-%m-%d %H:%M} UTC")

"""Reads the list of revoked certificates, and reads it again when it has changed."""

import time
from collections.abc import Callable
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from podrace.errors import FailedPrecondition

_log = structlog.get_logger(__name__)
_Stamp = tuple[tuple[int, ...], ...]
RETRY_SECONDS = 1.0
"""Time between two attempts to read files that cannot be used and that have not changed."""


class RevocationList:
    """A revocation list in a file (PEM, X.509 CRL), signed by the authority.

    revoked = RevocationList(Path("ca.crl"), Path("ca.crt"))
    if serial in revoked:
        ...
    """

    def __init__(self, path: Path, authority: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Reads the list.

        Args:
            path: The list.
            authority: Certificates of the authority, PEM. One of them must have signed the list.
            monotonic: Returns the seconds of a clock that is never set back.

        Raises:
            FailedPrecondition: The list cannot be read, or the authority has not signed it.
        """
        self._path, self._authority, self._monotonic = path, authority, monotonic
        self._stamp = self._current_stamp()
        """That of the files when the list was read."""
        self._failed: _Stamp | None = None
        """That of files that could not be used."""
        self._retry_at = 0.0
        self._serials = self._read()

    def __contains__(self, serial: object) -> bool:
        """Whether a certificate is revoked, by its serial number.

        While the file is missing or damaged the list that was read last stays in force.
        """
        stamp = self._current_stamp()
        if stamp != self._stamp and (stamp != self._failed or self._monotonic() >= self._retry_at):
            self._read_again(stamp)
        return serial in self._serials

    def _read_again(self, stamp: _Stamp) -> None:
        try:
            self._serials = self._read()
        except FailedPrecondition as error:
            if stamp != self._failed:
                _log.error("the previous list of revoked certificates stays in force", error=error.message)
            self._failed, self._retry_at = stamp, self._monotonic() + RETRY_SECONDS
            return
        self._stamp, self._failed = stamp, None
        _log.info("read the list of revoked certificates", path=str(self._path), revoked=len(self._serials))

    def _current_stamp(self) -> _Stamp:
        return _stamp_of(self._path), _stamp_of(self._authority)

    def _read(self) -> frozenset[int]:
        try:
            found = x509.load_pem_x509_crl(self._path.read_bytes())
            authorities = x509.load_pem_x509_certificates(self._authority.read_bytes())
        except OSError as error:
            raise FailedPrecondition(f"{error.filename}: cannot be read: {error.strerror}") from None
        except ValueError:
            raise FailedPrecondition(
                f"{self._path}: is not a revocation list in PEM; `podrace certs` writes one"
            ) from None
        if not any(_has_signed(authority, found) for authority in authorities):
            raise FailedPrecondition(
                f"{self._path}: none of the certificates in {self._authority} has signed this list"
            )
        return frozenset(each.serial_number for each in found)


def _stamp_of(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _has_signed(authority: x509.Certificate, found: x509.CertificateRevocationList) -> bool:
    try:
        return found.issuer == authority.subject and found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (InvalidSignature, TypeError, ValueError):
        return False

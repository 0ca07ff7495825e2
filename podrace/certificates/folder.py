"""Keeps a development authority and its certificates in a folder that only its owner can read.

    FOLDER/authority/ca.key, ca.crt, ca.crl    the authority, and its list of revoked certificates
                     replaced.crt              renewed certificates that are still valid, so that they can be revoked
    FOLDER/ROLE[/NAME]/tls.key, tls.crt        key and certificate of a holder,
                       ca.crt, ca.crl          with copies of what it needs to verify others
    FOLDER/orchestrator/mesh.key               signs the tokens of services, pods and people
    FOLDER/leaderboard/mesh.pub                verifies them; FOLDER/policy-server has it as well

A subfolder is complete: it can be mounted or copied to where its holder runs. The key of the authority is needed only
to issue certificates; keep it away from the machines that run the services.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from podrace.access.mesh_key import MeshKey, make_pem
from podrace.certificates.issuing import (
    CLOCK_DIFFERENCE,
    KeyPair,
    is_due,
    issue,
    issue_authority,
    load_pair,
    names_of,
    revocation_list,
)
from podrace.certificates.names import TRUST_DOMAIN, SpiffeName
from podrace.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound

AUTHORITY = "authority"
ORCHESTRATOR, LEADERBOARD, POLICY_SERVER = "orchestrator", "leaderboard", "policy-server"
MESH_KEY, MESH_PUBLIC_KEY = "mesh.key", "mesh.pub"
REPLACED = "replaced.crt"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
STANDARD: Mapping[SpiffeName, tuple[str, ...]] = {
    SpiffeName("orchestrator"): ("orchestrator", "podrace-orchestrator", *LOOPBACK),
    SpiffeName("leaderboard"): ("leaderboard", "podrace-leaderboard", *LOOPBACK),
    SpiffeName("pod-leader"): LOOPBACK,
    SpiffeName("pod-role"): ("*.podrace-agentpod", *LOOPBACK),
    SpiffeName("plugin", "plugin"): ("plugin", *LOOPBACK),
    SpiffeName("plugin", "simulators"): ("simulators", *LOOPBACK),
    SpiffeName("policy-server"): ("serving", "podrace-serving", *LOOPBACK),
    SpiffeName("operator", "operator"): (),
    SpiffeName("viewer", "dashboard"): ("dashboard", "podrace-dashboard", *LOOPBACK),
}
"""Certificates of a new authority, and the hosts where their holders listen: names of Compose services, of Kubernetes
services, and of this machine itself."""
AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365


@dataclass(frozen=True)
class ListedCertificate:
    """A certificate of the folder."""

    path: str
    """Its subfolder; `authority` for that of the authority."""
    uri: str
    hosts: tuple[str, ...]
    serial: int
    begins: datetime
    expires: datetime
    revoked: bool
    trusted: bool = True
    """Whether the authority of the folder has signed it."""

    def is_due(self, now: datetime) -> bool:
        """Whether it should be renewed."""
        if not self.trusted:
            return True
        return not self.revoked and is_due(self.begins, self.expires, now)


class CertificateFolder:
    """The folder of a development authority.

    folder = CertificateFolder.create(path, now, trust_domain="podrace")
    folder.add(SpiffeName("user", "alice"), [], now, lifetime)
    folder.renew("user/alice", now)
    folder.revoke("user/alice", now)
    """

    def __init__(self, path: Path, authority: KeyPair) -> None:
        self.path, self._authority = path, authority

    @classmethod
    def create(
        cls, path: Path, now: datetime, *, trust_domain: str = TRUST_DOMAIN, lifetime: timedelta | None = None
    ) -> Self:
        """Makes a new authority.

        Raises:
            AlreadyExists: The folder has an authority, which is never replaced.
            FailedPrecondition: The folder cannot be written.
        """
        if (path / AUTHORITY / "ca.key").exists() or (path / AUTHORITY / "ca.crt").exists():
            raise AlreadyExists(
                f"{path}: there is an authority already, which is not replaced; `podrace certs add` and `renew` use it"
            )
        pair = issue_authority(trust_domain, now, lifetime or timedelta(days=AUTHORITY_DAYS))
        folder = cls(path, pair)
        _make_private(path)
        _make_private(path / AUTHORITY)
        _write(path / AUTHORITY / "ca.key", pair.key_pem)
        _write(path / AUTHORITY / "ca.crt", pair.certificate_pem)
        folder._write_list({}, now)
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens the folder of an authority.

        Raises:
            NotFound: There is no authority.
            FailedPrecondition: Its files cannot be read or are damaged.
        """
        try:
            certificate, key = ((path / AUTHORITY / name).read_bytes() for name in ("ca.crt", "ca.key"))
        except FileNotFoundError:
            raise NotFound(f"{path}: there is no authority; `podrace certs make {path}` makes one") from None
        except OSError as error:
            raise FailedPrecondition(f"{error.filename}: cannot be read: {error.strerror}") from None
        return cls(path, load_pair(certificate, key))

    @property
    def trust_domain(self) -> str:
        """Trust domain of all names."""
        uris, _ = names_of(self._authority.certificate)
        return uris[0].rpartition("/")[2]

    def add(self, name: SpiffeName, hosts: Sequence[str], now: datetime, lifetime: timedelta) -> ListedCertificate:
        """Makes a certificate.

        Raises:
            AlreadyExists: There is a certificate of this name, which is not replaced.
            InvalidArgument: A host is neither a DNS name nor an IP address.
        """
        if (self.path / name.path / "tls.key").exists():
            raise AlreadyExists(
                f"{self.path / name.path}: there is a certificate already; `podrace certs renew` renews it"
            )
        return self._issue(name, hosts, now, lifetime)

    def make_mesh_key(self) -> None:
        """Makes the key that signs the tokens of services and pods, if there is none.

        The orchestrator gets the private key (mesh.key); the leaderboard and the policy server get the public one
        (mesh.pub).

        Raises:
            NotFound: The orchestrator has no certificate here.
            FailedPrecondition: A file cannot be read or written.
        """
        self._find(ORCHESTRATOR)
        private = self.path / ORCHESTRATOR / MESH_KEY
        if not private.exists():
            _write(private, make_pem())
        public = MeshKey.load_or_make(private).public.pems[0]
        for folder in (ORCHESTRATOR, LEADERBOARD, POLICY_SERVER):
            if (self.path / folder / "tls.crt").exists():
                _write(self.path / folder / MESH_PUBLIC_KEY, public)

    def renew(self, path: str, now: datetime) -> ListedCertificate:
        """Replaces key and certificate by new ones of the same names and the same lifetime.

        The old certificate remains valid until it expires or `revoke` with `keep_present` revokes it.

        Raises:
            NotFound: There is no such certificate.
        """
        old = self._find(path)
        lifetime = old.expires - old.begins - CLOCK_DIFFERENCE
        return self._issue(SpiffeName.parse(old.uri), old.hosts, now, lifetime)

    def revoke(self, path: str, now: datetime, *, keep_present: bool = False) -> ListedCertificate:
        """Adds all certificates of a holder to the list of revoked ones, and copies the list to all subfolders.

        Args:
            path: The subfolder of the holder.
            now: The time.
            keep_present: Revokes only those that the present certificate has replaced and that are still valid.

        Raises:
            NotFound: There is no such certificate, or with `keep_present` none that was replaced and is still valid.
        """
        found = self._find(path)
        serials = {each.serial_number for each in self._replaced(now) if _path_of(each) == found.path}
        if keep_present and not serials:
            raise NotFound(f"{self.path}: the certificate {found.path!r} has replaced none that is still valid")
        if not keep_present:
            serials.add(found.serial)
        revoked = self._revoked()
        if serials - revoked.keys():
            self._write_list(dict.fromkeys(serials, now) | revoked, now)
        return self._find(path)

    def listed(self) -> list[ListedCertificate]:
        """Returns all certificates, that of the authority first."""
        revoked = self._revoked()
        authority = self._authority.certificate
        others = (_listed(*each, revoked, authority) for each in self._certificates())
        return [_listed(AUTHORITY, authority, revoked, authority), *others]

    def key_of(self, path: str) -> bytes:
        """Returns the private key of a holder as PEM; raises NotFound."""
        self._find(path)
        return (self.path / path / "tls.key").read_bytes()

    def _find(self, path: str) -> ListedCertificate:
        for found in self.listed()[1:]:
            if found.path == path.strip("/"):
                return found
        raise NotFound(f"{self.path}: there is no certificate {path!r}; `podrace certs ls {self.path}` lists them")

    def _certificates(self) -> Iterable[tuple[str, x509.Certificate]]:
        for file in sorted(self.path.rglob("tls.crt")):
            try:
                certificate = x509.load_pem_x509_certificate(file.read_bytes())
            except (OSError, ValueError) as error:
                raise FailedPrecondition(f"{file}: cannot be read: {error}") from None
            yield str(file.parent.relative_to(self.path)), certificate

    def _issue(self, name: SpiffeName, hosts: Sequence[str], now: datetime, lifetime: timedelta) -> ListedCertificate:
        if name.trust_domain != self.trust_domain:
            raise InvalidArgument(f"{name.uri}: the trust domain of this authority is {self.trust_domain!r}")
        pair = issue(self._authority, name, hosts, now, lifetime)
        self._keep_replaced(name.path, now)
        folder = self.path
        for part in Path(name.path).parts:
            folder = folder / part
            _make_private(folder)
        # Readers use the new files once key and certificate belong together.
        _write(folder / "tls.key", pair.key_pem)
        _write(folder / "tls.crt", pair.certificate_pem)
        _write(folder / "ca.crt", self._authority.certificate_pem)
        _write(folder / "ca.crl", (self.path / AUTHORITY / "ca.crl").read_bytes())
        return _listed(name.path, pair.certificate, self._revoked(), self._authority.certificate)

    def _keep_replaced(self, path: str, now: datetime) -> None:
        """Records the present certificate of a holder, which is about to be replaced, so that it can be revoked."""
        present = [found for of, found in self._certificates() if of == path]
        if kept := [found for found in present if _has_issued(self._authority.certificate, found)]:
            text = (found.public_bytes(serialization.Encoding.PEM) for found in (*self._replaced(now), *kept))
            _write(self.path / AUTHORITY / REPLACED, b"".join(text))

    def _replaced(self, now: datetime) -> list[x509.Certificate]:
        """Returns the certificates that were replaced and have not expired."""
        file = self.path / AUTHORITY / REPLACED
        try:
            found = x509.load_pem_x509_certificates(file.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise FailedPrecondition(f"{file}: cannot be read: {error}") from None
        return [each for each in found if each.not_valid_after_utc > now]

    def _revoked(self) -> dict[int, datetime]:
        with suppress(FileNotFoundError):
            revoked = x509.load_pem_x509_crl((self.path / AUTHORITY / "ca.crl").read_bytes())
            return {each.serial_number: each.revocation_date_utc for each in revoked}
        return {}

    def _write_list(self, revoked: Mapping[int, datetime], now: datetime) -> None:
        text = revocation_list(self._authority, revoked.items(), now).public_bytes(serialization.Encoding.PEM)
        for folder in (AUTHORITY, *(path for path, _ in self._certificates())):
            _write(self.path / folder / "ca.crl", text)


def _listed(
    path: str, certificate: x509.Certificate, revoked: Mapping[int, datetime], authority: x509.Certificate
) -> ListedCertificate:
    uris, hosts = names_of(certificate)
    return ListedCertificate(
        path=path,
        uri=uris[0] if uris else "",
        hosts=hosts,
        serial=certificate.serial_number,
        begins=certificate.not_valid_before_utc,
        expires=certificate.not_valid_after_utc,
        revoked=certificate.serial_number in revoked,
        trusted=_has_issued(authority, certificate),
    )


def _path_of(certificate: x509.Certificate) -> str:
    uris, _ = names_of(certificate)
    return SpiffeName.parse(uris[0]).path


def _has_issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _make_private(folder: Path) -> None:
    """Creates a folder that only its owner can enter, or checks that no other user can write to an existing one.

    Raises:
        FailedPrecondition: It cannot be created, or another user owns it or may write to it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise FailedPrecondition(f"{folder}: cannot be created: {error.strerror}") from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise FailedPrecondition(f"{folder}: another user owns it or may write to it; choose another folder")


def _write(path: Path, content: bytes) -> None:
    """Replaces a file atomically by one that only its owner can read."""
    incoming = path.with_name(f".{path.name}.incoming")
    try:
        incoming.unlink(missing_ok=True)
        with os.fdopen(os.open(incoming, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        incoming.replace(path)
    except OSError as error:
        raise FailedPrecondition(f"{path}: cannot be written: {error.strerror}") from None

"""A folder of certificates keeps its authority, its files are private, and renewal and revocation change only one."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from podrace.certificates.folder import STANDARD, CertificateFolder
from podrace.certificates.issuing import names_of
from podrace.certificates.names import SpiffeName
from podrace.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound

NOW = datetime(2026, 6, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
ALICE = SpiffeName("user", "alice")


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    return CertificateFolder.create(tmp_path / "certs", NOW)


def certificate(folder: CertificateFolder, path: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder.path / path / "tls.crt").read_bytes())


def authority(folder: CertificateFolder) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder.path / "authority/ca.crt").read_bytes())


def revoked(folder: CertificateFolder, path: str) -> set[int]:
    found = x509.load_pem_x509_crl((folder.path / path / "ca.crl").read_bytes())
    assert found.is_signature_valid(authority(folder).public_key())  # type: ignore[arg-type]
    return {each.serial_number for each in found}


def test_only_the_owner_can_read_the_files(folder: CertificateFolder) -> None:
    for name, hosts in STANDARD.items():
        folder.add(name, hosts, NOW, YEAR)
    for found in folder.path.rglob("*"):
        assert stat.S_IMODE(found.stat().st_mode) == (0o700 if found.is_dir() else 0o600), found
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_certificate_carries_role_and_hosts_and_its_authority_signed_it(folder: CertificateFolder) -> None:
    folder.add(SpiffeName("orchestrator"), ["mesh.example.org", "10.0.0.1", "::1"], NOW, YEAR)
    issued = certificate(folder, "orchestrator")
    issued.verify_directly_issued_by(authority(folder))
    assert names_of(issued) == (("spiffe://podrace/orchestrator",), ("mesh.example.org", "10.0.0.1", "::1"))
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
        folder.path / "orchestrator/tls.crt", folder.path / "orchestrator/tls.key"
    )


def test_a_person_cannot_serve_with_a_certificate_unless_it_names_hosts(folder: CertificateFolder) -> None:
    folder.add(ALICE, [], NOW, YEAR)
    folder.add(SpiffeName("viewer", "dashboard"), ["dashboard"], NOW, YEAR)
    folder.add(SpiffeName("orchestrator"), [], NOW, YEAR)
    purposes = {
        path: {
            purpose._name
            for purpose in certificate(folder, path).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        }
        for path in ("user/alice", "viewer/dashboard", "orchestrator")
    }
    both = {"clientAuth", "serverAuth"}
    assert purposes == {"user/alice": {"clientAuth"}, "viewer/dashboard": both, "orchestrator": both}


def test_an_authority_is_never_replaced(folder: CertificateFolder) -> None:
    before = (folder.path / "authority/ca.key").read_bytes()
    with pytest.raises(AlreadyExists, match="there is an authority already"):
        CertificateFolder.create(folder.path, NOW)
    assert (folder.path / "authority/ca.key").read_bytes() == before


def test_a_certificate_is_not_replaced_by_adding_it_again(folder: CertificateFolder) -> None:
    folder.add(ALICE, [], NOW, YEAR)
    before = (folder.path / "user/alice/tls.key").read_bytes()
    with pytest.raises(AlreadyExists, match="podrace certs renew"):
        folder.add(ALICE, [], NOW, YEAR)
    assert (folder.path / "user/alice/tls.key").read_bytes() == before


def test_renewal_changes_key_and_certificate_and_neither_names_nor_authority(folder: CertificateFolder) -> None:
    first = folder.add(SpiffeName("orchestrator"), ["mesh.example.org"], NOW, YEAR)
    authority_before, key = authority(folder), folder.key_of("orchestrator")
    later = NOW + timedelta(days=300)
    assert first.is_due(later)
    renewed = CertificateFolder.open(folder.path).renew("orchestrator", later)
    assert (renewed.uri, renewed.hosts) == (first.uri, first.hosts)
    assert renewed.expires - later == YEAR
    assert not renewed.is_due(later)
    assert folder.key_of("orchestrator") != key
    assert authority(folder) == authority_before
    certificate(folder, "orchestrator").verify_directly_issued_by(authority_before)


def test_a_revoked_certificate_is_in_the_list_of_every_holder_and_no_other_is(folder: CertificateFolder) -> None:
    folder.add(SpiffeName("orchestrator"), [], NOW, YEAR)
    serial = folder.add(ALICE, [], NOW, YEAR).serial
    assert revoked(folder, "orchestrator") == set()
    assert folder.revoke("user/alice", NOW).revoked
    assert revoked(folder, "orchestrator") == revoked(folder, "user/alice") == revoked(folder, "authority") == {serial}
    assert [found.path for found in folder.listed() if found.revoked] == ["user/alice"]


def test_a_renewed_certificate_is_valid_after_the_old_one_was_revoked(folder: CertificateFolder) -> None:
    old = folder.add(ALICE, [], NOW, YEAR).serial
    folder.revoke("user/alice", NOW)
    assert not folder.renew("user/alice", NOW).revoked
    bob = folder.add(SpiffeName("user", "bob"), [], NOW, YEAR)
    assert revoked(folder, bob.path) == {old}


def test_certificates_that_were_renewed_are_revoked_with_the_present_one(folder: CertificateFolder) -> None:
    serials = {folder.add(ALICE, [], NOW, YEAR).serial, *(folder.renew("user/alice", NOW).serial for _ in range(2))}
    folder.add(SpiffeName("user", "bob"), [], NOW, YEAR)
    folder.renew("user/bob", NOW)
    CertificateFolder.open(folder.path).revoke("user/alice", NOW)
    assert revoked(folder, "user/bob") == serials
    assert len(serials) == 3


def test_the_present_certificate_can_stay_valid_when_renewed_ones_are_revoked(folder: CertificateFolder) -> None:
    old = folder.add(ALICE, [], NOW, YEAR).serial
    with pytest.raises(NotFound, match="has replaced none that is still valid"):
        folder.revoke("user/alice", NOW, keep_present=True)
    folder.renew("user/alice", NOW)
    assert not folder.revoke("user/alice", NOW, keep_present=True).revoked
    assert revoked(folder, "user/alice") == {old}


def test_an_expired_certificate_is_not_kept_after_its_renewal(folder: CertificateFolder) -> None:
    folder.add(ALICE, [], NOW, YEAR)
    present = folder.renew("user/alice", NOW + 2 * YEAR).serial
    folder.revoke("user/alice", NOW + 2 * YEAR)
    assert revoked(folder, "user/alice") == {present}


def test_no_certificate_outlives_the_authority(tmp_path: Path) -> None:
    folder = CertificateFolder.create(tmp_path / "c", NOW, lifetime=timedelta(days=10))
    assert folder.add(ALICE, [], NOW, YEAR).expires == NOW + timedelta(days=10)
    with pytest.raises(FailedPrecondition, match="the authority has expired"):
        folder.renew("user/alice", NOW + timedelta(days=11))


@pytest.mark.parametrize("host", ["a b", "mesh.example.org:50051", "", "300.1.1.1", "-a", "*", "é.example"])
def test_a_host_that_is_neither_name_nor_address_is_refused(folder: CertificateFolder, host: str) -> None:
    with pytest.raises(InvalidArgument, match="expected a DNS name or an IP address"):
        folder.add(SpiffeName("orchestrator"), [host], NOW, YEAR)
    assert not (folder.path / "orchestrator").exists()


def test_the_name_of_another_trust_domain_is_refused(folder: CertificateFolder) -> None:
    with pytest.raises(InvalidArgument, match="trust domain"):
        folder.add(SpiffeName("user", "alice", "", "elsewhere"), [], NOW, YEAR)


def test_what_is_missing_or_damaged_is_reported_in_one_line(folder: CertificateFolder, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="podrace certs make"):
        CertificateFolder.open(tmp_path / "nothing")
    with pytest.raises(NotFound, match="no certificate 'user/bob'"):
        folder.renew("user/bob", NOW)
    (folder.path / "authority/ca.key").write_text("no key")
    with pytest.raises(FailedPrecondition, match="is not PEM"):
        CertificateFolder.open(folder.path)


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(FailedPrecondition, match="another user owns it or may write to it"):
        CertificateFolder.create(tmp_path / "open", NOW)

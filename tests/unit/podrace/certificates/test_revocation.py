"""A list of revoked certificates counts as soon as it is written, and only with the authority's signature."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from podrace.certificates.folder import CertificateFolder
from podrace.certificates.names import SpiffeName
from podrace.certificates.revocation import RevocationList
from podrace.errors import FailedPrecondition

NOW = datetime.now(UTC)
YEAR = timedelta(days=365)


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    folder = CertificateFolder.create(tmp_path / "certs", NOW)
    folder.add(SpiffeName("orchestrator"), [], NOW, YEAR)
    folder.add(SpiffeName("user", "alice"), [], NOW, YEAR)
    return folder


@pytest.fixture
def revoked(folder: CertificateFolder) -> RevocationList:
    return RevocationList(folder.path / "orchestrator/ca.crl", folder.path / "orchestrator/ca.crt")


def test_a_revoked_certificate_is_in_the_list_without_a_restart(
    folder: CertificateFolder, revoked: RevocationList
) -> None:
    serials = {found.path: found.serial for found in folder.listed()}
    assert serials["user/alice"] not in revoked
    folder.revoke("user/alice", NOW)
    assert serials["user/alice"] in revoked
    assert serials["orchestrator"] not in revoked


def test_a_damaged_or_missing_list_leaves_the_previous_one_in_force(
    folder: CertificateFolder, revoked: RevocationList
) -> None:
    serial = folder.revoke("user/alice", NOW).serial
    assert serial in revoked
    for damage in (lambda path: path.write_text("nothing"), lambda path: path.unlink()):
        damage(folder.path / "orchestrator/ca.crl")
        assert serial in revoked


def test_the_list_of_another_authority_is_not_used(
    folder: CertificateFolder, revoked: RevocationList, tmp_path: Path
) -> None:
    serial = folder.revoke("user/alice", NOW).serial
    assert serial in revoked
    other = CertificateFolder.create(tmp_path / "other", NOW)
    (folder.path / "orchestrator/ca.crl").write_bytes((other.path / "authority/ca.crl").read_bytes())
    assert serial in revoked, "an empty list of another authority revokes nothing and restores nothing"
    with pytest.raises(FailedPrecondition, match="has signed this list"):
        RevocationList(other.path / "authority/ca.crl", folder.path / "orchestrator/ca.crt")


def test_a_list_that_cannot_be_read_at_start_is_an_error(tmp_path: Path, folder: CertificateFolder) -> None:
    with pytest.raises(FailedPrecondition, match="cannot be read"):
        RevocationList(tmp_path / "missing.crl", folder.path / "orchestrator/ca.crt")
    (tmp_path / "text.crl").write_text("text")
    with pytest.raises(FailedPrecondition, match="is not a revocation list in PEM"):
        RevocationList(tmp_path / "text.crl", folder.path / "orchestrator/ca.crt")

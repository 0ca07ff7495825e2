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


def test_a_list_counts_once_the_certificate_of_its_authority_is_there(
    folder: CertificateFolder, revoked: RevocationList, tmp_path: Path
) -> None:
    other = CertificateFolder.create(tmp_path / "other", NOW)
    serial = other.add(SpiffeName("user", "bob"), [], NOW, YEAR).serial
    other.revoke("user/bob", NOW)
    mounted = folder.path / "orchestrator"
    (mounted / "ca.crl").write_bytes((other.path / "authority/ca.crl").read_bytes())
    assert serial not in revoked
    with (mounted / "ca.crt").open("ab") as file:
        file.write((other.path / "authority/ca.crt").read_bytes())
    assert serial in revoked


def test_reading_is_repeated_every_second_until_it_succeeds(
    folder: CertificateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, attempts, read = [100.0], [], Path.read_bytes
    path = folder.path / "orchestrator/ca.crl"
    revoked = RevocationList(path, folder.path / "orchestrator/ca.crt", lambda: clock[0])
    serial = folder.revoke("user/alice", NOW).serial

    def refused(self: Path) -> bytes:
        attempts.append(self)
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refused)
    for seconds in (100.0, 100.5, 101.0, 101.5):
        clock[0] = seconds
        assert serial not in revoked
    assert attempts == [path, path]
    monkeypatch.setattr(Path, "read_bytes", read)
    clock[0] = 102.0
    assert serial in revoked, "the files have not changed, but can be read"


def test_a_list_that_cannot_be_read_at_start_is_an_error(tmp_path: Path, folder: CertificateFolder) -> None:
    with pytest.raises(FailedPrecondition, match="cannot be read"):
        RevocationList(tmp_path / "missing.crl", folder.path / "orchestrator/ca.crt")
    (tmp_path / "text.crl").write_text("text")
    with pytest.raises(FailedPrecondition, match="is not a revocation list in PEM"):
        RevocationList(tmp_path / "text.crl", folder.path / "orchestrator/ca.crt")

"""Signatures of releases, made and verified by `ssh-keygen` on this machine alone."""

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy/signatures.py"
_spec = importlib.util.spec_from_file_location("podrace_signatures", SCRIPT)
signatures = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = signatures
_spec.loader.exec_module(signatures)

WHEEL = "podrace-0.2.0-py3-none-any.whl"


def key(folder: Path, name: str) -> Path:
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)], check=True)
    return path


def permit(path: Path, options: str = 'namespaces="podrace-release"') -> str:
    return f"{path.name} {options} {path.with_suffix('.pub').read_text()}"


class Release:
    """A folder with a signed wheel, and the keys that may sign."""

    def __init__(self, folder: Path) -> None:
        self.key, self.other = key(folder, "maintainer"), key(folder, "another")
        self.signers, self.folder = folder / "signers", folder / "0.2.0"
        self.signers.write_text("# comment\n" + permit(self.key))
        self.folder.mkdir()
        (self.folder / WHEEL).write_bytes(b"content")
        self.sums = self.folder / "SHA256SUMS"
        self.sums.write_text(f"{hashlib.sha256(b'content').hexdigest()}  {WHEEL}\n")
        signatures.sign(self.sums, self.key)

    def verify(self) -> list[str]:
        return signatures.verify_folder(self.folder, self.signers)


@pytest.fixture
def release(tmp_path):
    return Release(tmp_path)


def test_a_signed_release_is_verified_and_names_its_signer(release):
    assert release.verify() == ["1 files signed by maintainer"]


def test_a_changed_artifact_is_named(release):
    (release.folder / WHEEL).write_bytes(b"other content")
    with pytest.raises(signatures.Refused, match=f"{WHEEL} was changed"):
        release.verify()


def test_missing_and_additional_files_are_named(release):
    (release.folder / WHEEL).rename(release.folder / "other.whl")
    with pytest.raises(signatures.Refused, match=rf"other.whl is not listed in SHA256SUMS; {WHEEL} is missing"):
        release.verify()


def test_changed_checksums_are_refused(release):
    (release.folder / WHEEL).write_bytes(b"other content")
    release.sums.write_text(f"{hashlib.sha256(b'other content').hexdigest()}  {WHEEL}\n")
    with pytest.raises(signatures.Refused, match="is not by a key of"):
        release.verify()


def test_the_signature_of_another_key_is_refused(release):
    signatures.sign(release.sums, release.other)
    with pytest.raises(signatures.Refused, match="is not by a key of"):
        release.verify()


def test_a_release_without_a_signature_is_refused(release):
    (release.folder / "SHA256SUMS.sig").unlink()
    with pytest.raises(signatures.Refused, match=r"SHA256SUMS\.sig does not exist"):
        release.verify()


def test_a_signature_for_another_purpose_is_refused(release):
    (release.folder / "SHA256SUMS.sig").unlink()
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(release.key), "-n", "git", str(release.sums)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(signatures.Refused, match="is not by a key of"):
        release.verify()


def test_a_signature_by_an_expired_key_is_refused(release):
    release.signers.write_text(permit(release.key, 'valid-before="20200101"'))
    with pytest.raises(signatures.Refused, match="is not by a key of"):
        release.verify()


def test_without_permitted_keys_nothing_is_verified(release):
    release.signers.write_text("# nothing\n")
    with pytest.raises(signatures.Refused, match="is not by a key of"):
        release.verify()


def test_images_are_verified_by_their_ids(release):
    images = release.folder / "IMAGES"
    images.write_text("sha256:aa  podrace/agentpod:0.2.0\n")
    with pytest.raises(signatures.Refused, match=r"IMAGES\.sig does not exist"):
        release.verify()
    signatures.sign(images, release.key)
    assert release.verify()[1] == "IMAGES signed by maintainer"
    listed = signatures.listed(images.read_text())
    assert signatures.verify_images(listed, {"podrace/agentpod:0.2.0": "sha256:aa"}.get)
    with pytest.raises(signatures.Refused, match=r"podrace/agentpod:0\.2\.0 is sha256:bb, not sha256:aa"):
        signatures.verify_images(listed, lambda _: "sha256:bb")
    with pytest.raises(signatures.Refused, match="is missing, not"):
        signatures.verify_images(listed, lambda _: "")


def test_the_command_says_in_one_line_what_is_wrong(release):
    command = [sys.executable, str(SCRIPT), "verify", str(release.folder), "--signers", str(release.signers)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "1 files signed by maintainer\n"
    release.signers.write_text("")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the signature of")
    assert done.stderr.count("\n") <= 2

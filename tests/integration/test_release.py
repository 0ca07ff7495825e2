"""Releases of a small project, each in its own repository, made by the script that `make release` runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = [Path(__file__).parents[2] / "deploy" / name for name in ("release.py", "signatures.py")]
COMPONENTS = ("dashboard", "gpu-dedicated", "gpu-dra", "gpu-fused", "gpu-mps", "gpu-node", "serving")
KUSTOMIZATIONS = tuple(
    f"deploy/k8s/{name}/kustomization.yaml" for name in ("base", *(f"components/{name}" for name in COMPONENTS))
)
MANIFESTS = (
    "deploy/k8s/components/plugins/leaderboard.yaml",
    "deploy/k8s/qualify.yaml",
    "deploy/k8s/restore.yaml",
)
IMAGE_TAGS = ("deploy/compose/.env", *KUSTOMIZATIONS, *MANIFESTS)
NOTES = "### Added\n\n- A thing."
CHANGES = f"# Changelog\n\nIntroduction.\n\n## Unreleased\n\n{NOTES}\n\n## 0.1.0 - 2026-11-22\n\nThe first version.\n"
CONTRACT_CHANGES = "# Contracts\n\n## Unreleased\n\nA field.\n"
PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "podrace"
dynamic = ["version"]
[tool.setuptools]
packages = ["podrace"]
[tool.setuptools.dynamic]
version = {attr = "podrace.__version__"}
"""
CLI = """
from podrace import __version__
def main(arguments):
    print(f"podrace {__version__}")
"""
MAKEFILE = """
check:
\ttest ! -e fails
sbom:
\tprintf %s '$(VERSION)' >$(FOLDER)/podrace-agentpod-$(VERSION).cdx.json
contracts:
	touch $(FOLDER)/podrace-contracts.tgz
contract-image:
\techo renewed > protos/contracts.binpb
"""


class Project:
    """A small project that has everything a release changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = {
            "pyproject.toml": PYPROJECT,
            "podrace/__init__.py": '__version__ = "0.1.0"\n',
            "podrace/cli.py": CLI,
            "CHANGELOG.md": CHANGES,
            "Makefile": MAKEFILE,
            "protos/contracts.binpb": "old\n",
            "protos/CHANGELOG.md": CONTRACT_CHANGES,
            "deploy/compose/.env": "PODRACE_VERSION=latest\n",
            **dict.fromkeys(KUSTOMIZATIONS, "images:\n  - {name: podrace/agentpod, newTag: latest}\n"),
            **dict.fromkeys(MANIFESTS, "      - image: podrace/agentpod-cuda:latest\n"),
            ".gitignore": "dist/\n",
        }
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        for script in SCRIPTS:
            shutil.copy(script, folder / "deploy")
        self.key = folder.parent / f"{folder.name}-key"
        make_key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tester", "-f", str(self.key)]
        subprocess.run(make_key, check=True)
        public = self.key.with_name(f"{self.key.name}.pub").read_text()
        (folder / "deploy/release-signers").write_text(f'tester namespaces="podrace-release,git" {public}')
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit()

    @property
    def environment(self) -> dict[str, str]:
        who = {f"GIT_{role}_{key}": "tester@localhost" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
        nothing = {"GIT_CONFIG_GLOBAL": os.devnull, "DOCKER_HOST": f"unix://{self.folder}/nothing.sock"}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTHONPATH"))}
        return inherited | who | nothing

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "A change")

    def release(self, *arguments: str, **environment: str) -> tuple[int, str]:
        signing = [] if "--unsigned" in arguments else ["--key", str(self.key)]
        command = [sys.executable, "deploy/release.py", "--gate", "check", *signing, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env={**self.environment, **environment}, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_release_is_a_commit_a_tag_and_artifacts_of_exactly_that_commit(project):
    code, output = project.release("0.2.0")
    assert code == 0, output
    names = {path.name for path in (project.folder / "dist/0.2.0").iterdir()}
    wheel, source, contracts = "podrace-0.2.0-py3-none-any.whl", "podrace-0.2.0.tar.gz", "podrace-contracts.tgz"
    bill = "podrace-agentpod-0.2.0.cdx.json"
    assert names == {wheel, source, contracts, bill, "SHA256SUMS", "SHA256SUMS.sig"}
    assert bill in (project.folder / "dist/0.2.0/SHA256SUMS").read_text()
    checked = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=project.folder / "dist/0.2.0")
    assert checked.returncode == 0
    assert project.git("show", "v0.2.0:podrace/__init__.py") == '__version__ = "0.2.0"'
    assert project.git("show", "v0.2.0:protos/contracts.binpb") == "renewed"
    assert "## Unreleased\n\n## 0.2.0 - " in project.git("show", "v0.2.0:protos/CHANGELOG.md")
    assert NOTES in project.git("tag", "--list", "--format=%(contents)", "v0.2.0")
    assert project.git("status", "--porcelain") == ""


def test_a_tag_names_its_own_images_and_main_the_latest(project):
    assert project.release("0.2.0")[0] == 0
    for name in IMAGE_TAGS:
        assert "0.2.0" in project.git("show", f"v0.2.0:{name}")
        assert "latest" in project.git("show", f"main:{name}")
    assert project.git("show", "main:podrace/__init__.py") == '__version__ = "0.2.0"'


def test_without_an_engine_the_release_says_that_it_has_no_images_and_how_to_build_them(project):
    code, output = project.release("0.2.0")
    assert code == 0
    assert "images were NOT built" in output
    assert "make release-images VERSION=0.2.0" in output


def test_images_that_cannot_be_built_do_not_undo_the_release(project, tmp_path_factory):
    programs = tmp_path_factory.mktemp("programs")
    (programs / "docker").write_text('#!/bin/sh\ntest "$1" = version\n')
    (programs / "docker").chmod(0o755)
    code, output = project.release("0.2.0", PATH=f"{programs}:{os.environ['PATH']}")
    assert code == 0, output
    assert "images were NOT built: building the image leaderboard failed" in output
    assert project.git("tag") == "v0.2.0"


def test_a_release_that_fails_its_gate_changes_nothing(project):
    (project.folder / "fails").touch()
    project.commit()
    before = project.git("rev-parse", "HEAD")
    code, output = project.release("0.2.0")
    assert code == 1
    assert "error: `make check` failed; nothing was released" in output
    assert project.git("rev-parse", "HEAD") == before
    assert project.git("status", "--porcelain") == ""
    assert project.git("tag") == ""


def test_a_dirty_tree_is_refused_in_one_line_before_anything_runs(project):
    (project.folder / "forgotten.txt").touch()
    assert project.release("0.2.0") == (
        1,
        "error: the working tree is not clean: ?? forgotten.txt; commit or remove it first\n",
    )


def test_images_alone_need_a_tag(project):
    assert project.release("--images-only", "0.2.0") == (1, "error: VERSION=0.2.0: there is no tag v0.2.0\n")


def test_artifacts_and_tag_are_signed_and_verified_without_a_network(project):
    assert project.release("0.2.0")[0] == 0
    command = [sys.executable, "deploy/signatures.py", "verify", "dist/0.2.0"]
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True)
    assert done.stdout == "4 files signed by tester\n"
    signers = f"gpg.ssh.allowedSignersFile={project.folder}/deploy/release-signers"
    project.git("-c", "gpg.format=ssh", "-c", signers, "verify-tag", "v0.2.0")


def test_a_release_without_signatures_must_be_asked_for(project):
    code, output = project.release("--key", "", "0.2.0")
    assert (code, project.git("tag")) == (1, "")
    assert "KEY= names no key that signs the release" in output
    assert project.release("--unsigned", "0.2.0")[0] == 0
    assert not (project.folder / "dist/0.2.0/SHA256SUMS.sig").exists()


def test_a_key_that_the_project_does_not_list_signs_no_release(project):
    (project.folder / "deploy/release-signers").write_text("# none\n")
    project.commit()
    code, output = project.release("0.2.0")
    assert (code, project.git("tag")) == (1, "")
    assert "deploy/release-signers does not list this key" in output


def test_images_are_listed_by_id_and_the_list_is_signed(project, tmp_path_factory):
    programs = tmp_path_factory.mktemp("programs")
    (programs / "docker").write_text('#!/bin/sh\ntest "$1" != image || echo sha256:aa\n')
    (programs / "docker").chmod(0o755)
    code, output = project.release("0.2.0", PATH=f"{programs}:{os.environ['PATH']}")
    assert code == 0, output
    listed = (project.folder / "dist/0.2.0/IMAGES").read_text().splitlines()
    assert listed[0] == "sha256:aa  podrace/leaderboard:0.2.0"
    command = [sys.executable, "deploy/signatures.py", "verify", "dist/0.2.0"]
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True)
    assert done.stdout.splitlines()[1] == "IMAGES signed by tester"

"""Makes a release: version, changelog, contract image, wheel, tag and container images.

    make release VERSION=0.2.0 KEY=~/.ssh/podrace-release          # everything
    make release-images VERSION=0.2.0 KEY=~/.ssh/podrace-release   # only the images of a tagged release

A release happens in this order:

1. Refuse what cannot be released (see `refusal`). Nothing has been changed at this point.
2. Set the version of the package and of the images that compose and Kubernetes use, move the section "Unreleased" of
   both changelogs under the version, and renew the contract image with `make contract-image`, which fails if the
   contracts break those of the previous release.
3. Run `make check` and `make test`, or the targets in GATE.
4. Build the wheel and the source distribution from exactly the files to be committed, and start the wheel once. Build
   the packages of the contracts. Write the bills of materials, and sign the checksums of all these files with KEY
   (UNSIGNED=yes: without signatures).
5. Commit, tag `vX.Y.Z` and write the artifacts to `dist/X.Y.Z/`. If any step up to this one fails, the files are
   restored and there is neither a commit nor a tag. A second commit returns the images to `latest`.
6. Build the images from the tag, if a Docker Engine answers, and sign the list of their ids.

Nothing is pushed: the last lines printed are the commands that do.
"""

import argparse
import datetime
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BRANCH = "main"
UNRELEASED = "Unreleased"
VERSION_FILE = "podrace/__init__.py"
CHANGELOG = "CHANGELOG.md"
CONTRACTS = "protos/contracts.binpb"
CONTRACTS_CHANGELOG = "protos/CHANGELOG.md"
IMAGE_TAGS = (
    "deploy/compose/.env",
    "deploy/k8s/base/kustomization.yaml",
    "deploy/k8s/components/dashboard/kustomization.yaml",
    "deploy/k8s/components/gpu-dedicated/kustomization.yaml",
    "deploy/k8s/components/gpu-dra/kustomization.yaml",
    "deploy/k8s/components/gpu-fused/kustomization.yaml",
    "deploy/k8s/components/gpu-mps/kustomization.yaml",
    "deploy/k8s/components/gpu-node/kustomization.yaml",
    "deploy/k8s/components/plugins/leaderboard.yaml",
    "deploy/k8s/components/serving/kustomization.yaml",
    "deploy/k8s/qualify.yaml",
    "deploy/k8s/restore.yaml",
)
"""Files that name the images' tag."""
CHANGED = (VERSION_FILE, CHANGELOG, CONTRACTS, CONTRACTS_CHANGELOG, *IMAGE_TAGS)
"""Files that a release changes."""
DEVELOPMENT = "latest"
"""Tag of images between two releases."""
COMPOSE = "deploy/compose/compose.yaml"
IMAGES = ("leaderboard", "orchestrator", "agentpod", "serving")
SIGNATURES = "deploy/signatures.py"
SIGNERS = "deploy/release-signers"
ENGINE_SECONDS = 10.0
GATE = "check test"
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
ASSIGNMENT = re.compile(r'^__version__ = "(?P<version>[^"]*)"$', re.MULTILINE)
IMAGE_TAG = re.compile(r"(?P<key>^PODRACE_VERSION=|\bnewTag: |\bimage: podrace/[\w-]+:)[\w.-]+", re.MULTILINE)
HEADING = re.compile(r"^## (?P<title>.*)$", re.MULTILINE)


# --- decisions: no input or output ------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Version:
    """A released version: three numbers."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> "Version | None":
        """Returns the version, or None if the text is not three numbers without leading zeros."""
        match = VERSION.fullmatch(text)
        return cls(*map(int, match.groups())) if match else None

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def tag(self) -> str:
        """The name of the tag of this version."""
        return f"v{self}"


@dataclass(frozen=True)
class Checkout:
    """The state of the checkout that a release starts from."""

    branch: str
    """Name of the current branch; empty for a detached head."""
    changes: Sequence[str]
    """Lines of `git status --porcelain`."""
    tags: Sequence[str]
    version: str
    """Version that the source states."""
    changelog: str


def refusal(version: str, checkout: Checkout) -> str:
    """Returns why this version cannot be released from this checkout; empty if it can."""
    wanted = Version.parse(version)
    if wanted is None:
        return f"VERSION={version}: expected three numbers, for instance make release VERSION=0.2.0"
    if checkout.branch != BRANCH:
        return f"releases are made on the branch {BRANCH}; this is {checkout.branch or 'a detached head'}"
    if checkout.changes:
        return f"the working tree is not clean: {checkout.changes[0].strip()}; commit or remove it first"
    if wanted.tag in checkout.tags:
        return f"the tag {wanted.tag} exists; choose a greater version"
    released = [Version.parse(text.removeprefix("v")) for text in (*checkout.tags, checkout.version)]
    newest = max((one for one in released if one), default=None)
    if newest and wanted <= newest:
        return f"VERSION={wanted} is not greater than {newest}"
    if not section(checkout.changelog, UNRELEASED):
        return f'{CHANGELOG} has nothing under "{UNRELEASED}": describe the changes first'
    return ""


def signing_refusal(key: str, public: str, signers: str, *, unsigned: bool) -> str:
    """Returns why the key cannot sign, by its public part and the content of SIGNERS; empty if it can or need not."""
    if unsigned:
        return ""
    if not key:
        return "KEY= names no key that signs the release; UNSIGNED=yes makes one without signatures"
    if not public:
        return f"KEY={key}: there is no {key}.pub"
    permitted = [line for line in signers.splitlines() if line and not line.startswith("#")]
    if not any(public.split()[1] in line.split() for line in permitted):
        return f"KEY={key}: {SIGNERS} does not list this key; add it and commit first"
    return ""


def section(changelog: str, title: str) -> str:
    """Returns the text of a section without its heading; `title` is the first word of the heading."""
    headings = list(HEADING.finditer(changelog))
    for number, heading in enumerate(headings):
        if heading["title"].split()[:1] == [title]:
            end = headings[number + 1].start() if number + 1 < len(headings) else len(changelog)
            return changelog[heading.end() : end].strip()
    return ""


def released_changelog(changelog: str, version: Version, day: datetime.date) -> str:
    """Moves everything under "Unreleased" to a section of the version; an empty "Unreleased" stays above it."""
    heading = f"## {UNRELEASED}\n"
    return changelog.replace(heading, f"{heading}\n## {version} - {day.isoformat()}\n", 1)


def current_version(source: str) -> str:
    """Returns the version that the package's source states."""
    match = ASSIGNMENT.search(source)
    return match["version"] if match else ""


def with_version(source: str, version: Version) -> str:
    """Returns the package's source with another version."""
    return ASSIGNMENT.sub(f'__version__ = "{version}"', source, count=1)


def with_image_tag(text: str, tag: str) -> str:
    """Returns a file of IMAGE_TAGS with another tag for all images."""
    return IMAGE_TAG.sub(rf"\g<key>{tag}", text)


def checksums(contents: Mapping[str, bytes]) -> str:
    """Returns one line per file, in the format of `sha256sum --check`."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(contents.items()))


# --- steps ------------------------------------------------------------------------------------------------------


def run(*command: str, cwd: Path, environment: Mapping[str, str] | None = None) -> None:
    """Runs a command in the foreground; raises CalledProcessError if it fails."""
    print("$", *(shlex.quote(part.partition("\n")[0]) for part in command), flush=True)
    subprocess.run(command, cwd=cwd, env={**os.environ, **(environment or {})}, check=True)


def ask(*command: str, cwd: Path) -> str:
    """Returns the standard output of a command; raises CalledProcessError if it fails."""
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout.rstrip("\n")


def look(repository: Path) -> Checkout:
    """Reads the state of a checkout."""
    return Checkout(
        branch=ask("git", "branch", "--show-current", cwd=repository),
        changes=ask("git", "status", "--porcelain", cwd=repository).splitlines(),
        tags=ask("git", "tag", "--list", "v*", cwd=repository).splitlines(),
        version=current_version((repository / VERSION_FILE).read_text()),
        changelog=(repository / CHANGELOG).read_text() if (repository / CHANGELOG).exists() else "",
    )


def signing_files(repository: Path, key: str) -> tuple[str, str]:
    """Returns the public part of a key and the permitted signers; empty where there is none."""
    public, signers = Path(f"{key}.pub"), repository / SIGNERS
    return public.read_text() if public.exists() else "", signers.read_text() if signers.exists() else ""


def release(repository: Path, version: Version, gate: Sequence[str], day: datetime.date, key: str) -> Path:
    """Commits and tags a release; without a key it has no signatures.

    Returns:
        The folder with its artifacts.
    """
    target = repository / "dist" / str(version)
    with restored_on_failure(repository, target):
        prepare(repository, version, day)
        for goal in gate:
            run("make", goal, cwd=repository)
        run("git", "add", "--", *CHANGED, cwd=repository)
        build(repository, ask("git", "write-tree", cwd=repository), version, target)
        sign(repository, target / "SHA256SUMS", key)
        run("git", "commit", "--quiet", "--message", f"Release {version}", cwd=repository)
    notes = section((repository / CHANGELOG).read_text(), str(version))
    message = f"podrace {version}\n\n{notes}\n"
    # Headings of the notes begin with "#", which git takes for comments otherwise.
    signed = ("-c", "gpg.format=ssh", "-c", f"user.signingKey={key}") if key else ()
    options = ("--sign" if key else "--annotate", "--cleanup=verbatim")
    run("git", *signed, "tag", *options, "--message", message, version.tag, cwd=repository)
    set_image_tag(repository, DEVELOPMENT)
    run("git", "commit", "--quiet", "--message", f"Images are `latest` after {version}", *IMAGE_TAGS, cwd=repository)
    return target


def prepare(repository: Path, version: Version, day: datetime.date) -> None:
    """Writes the version, the changelog, the images' tag and the contract image."""
    source = repository / VERSION_FILE
    source.write_text(with_version(source.read_text(), version))
    for changelog in (repository / CHANGELOG, repository / CONTRACTS_CHANGELOG):
        changelog.write_text(released_changelog(changelog.read_text(), version, day))
    set_image_tag(repository, str(version))
    run("make", "contract-image", cwd=repository)


def set_image_tag(repository: Path, tag: str) -> None:
    """Writes the tag into every file that names it."""
    for name in IMAGE_TAGS:
        path = repository / name
        path.write_text(with_image_tag(path.read_text(), tag))


@contextmanager
def restored_on_failure(repository: Path, target: Path) -> Iterator[None]:
    """Restores the files that a release changes, and removes its artifacts, if it fails or is interrupted."""
    try:
        yield
    except BaseException:
        run("git", "restore", "--staged", "--worktree", "--", *CHANGED, cwd=repository)
        shutil.rmtree(target, ignore_errors=True)
        raise


def build(repository: Path, tree: str, version: Version, target: Path) -> None:
    """Builds the artifacts from one git tree, so that they cannot contain other files."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with exported(repository, tree) as source:
        # Without build isolation, so that it works without a network.
        options = ("--quiet", "--no-isolation", "--sdist", "--wheel", "--outdir", str(target))
        run(sys.executable, "-m", "build", *options, ".", cwd=source)
    (wheel,) = target.glob("*.whl")
    try_wheel(wheel, version)
    run("make", "contracts", f"FOLDER={target}", cwd=repository)
    run("make", "sbom", f"FOLDER={target}", f"VERSION={version}", cwd=repository)
    contents = {path.name: path.read_bytes() for path in target.iterdir()}
    (target / "SHA256SUMS").write_text(checksums(contents))


def sign(repository: Path, path: Path, key: str) -> None:
    """Signs a file, if there is a key."""
    if key:
        run(sys.executable, SIGNATURES, "sign", str(path), "--key", key, cwd=repository)


def try_wheel(wheel: Path, version: Version) -> None:
    """Installs a wheel in an empty folder and runs `podrace version` from there.

    Raises:
        SystemExit: It prints another version.
    """
    with tempfile.TemporaryDirectory(prefix="podrace-wheel-") as folder:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder)
        run(*pip, str(wheel), cwd=Path(folder))
        program = f"import sys; sys.path.insert(0, {folder!r}); import podrace.cli; podrace.cli.main(['version'])"
        answer = ask(sys.executable, "-c", program, cwd=Path(folder))
    if answer.split()[:2] != ["podrace", str(version)]:
        raise SystemExit(f"error: the wheel {wheel.name} has another version: {answer}")


@contextmanager
def exported(repository: Path, tree: str) -> Iterator[Path]:
    """Yields a folder with the files of one git tree, and removes it afterwards."""
    with tempfile.TemporaryDirectory(prefix="podrace-release-") as folder:
        archive = Path(folder) / "source.tar"
        run("git", "archive", "--output", str(archive), tree, cwd=repository)
        source = Path(folder) / "source"
        source.mkdir()
        run("tar", "--extract", "--file", str(archive), cwd=source)
        yield source


def build_images(repository: Path, version: Version) -> str:
    """Builds the images of a tagged release.

    Returns:
        Why there are none; empty if they were built.
    """
    if shutil.which("docker") is None:
        return "there is no `docker` command on this machine"
    try:
        subprocess.run(["docker", "version"], check=True, capture_output=True, timeout=ENGINE_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return f"no Docker Engine answers at {os.environ.get('DOCKER_HOST') or 'the default address (DOCKER_HOST)'}"
    command = (
        "docker",
        "compose",
        "--file",
        COMPOSE,
        "--profile",
        "fixed",
        "--profile",
        "docker",
        "--profile",
        "serving",
        "build",
    )
    with exported(repository, version.tag) as source:
        for image in IMAGES:
            try:
                run(*command, image, cwd=source, environment={"PODRACE_VERSION": str(version)})
            except subprocess.CalledProcessError:
                return f"building the image {image} failed, see above"
    return ""


def list_images(repository: Path, version: Version, key: str) -> None:
    """Writes the ids of the images of a release to its folder, and signs the list."""
    target = repository / "dist" / str(version) / "IMAGES"
    target.parent.mkdir(parents=True, exist_ok=True)
    inspect = ("docker", "image", "inspect", "--format", "{{.Id}}")
    target.write_text("".join(f"{ask(*inspect, name, cwd=repository)}  {name}\n" for name in image_names(version)))
    sign(repository, target, key)


def image_names(version: Version) -> list[str]:
    """Returns the names of the images of a release."""
    return [f"{os.environ.get('PODRACE_REGISTRY') or 'podrace'}/{image}:{version}" for image in IMAGES]


# --- the command ------------------------------------------------------------------------------------------------


def conclude(version: Version, missing_images: str) -> None:
    """Prints what was built, what is missing, and how to publish the release."""
    names = image_names(version)
    if missing_images:
        print(f"\nThe images were NOT built: {missing_images}.")
        print(f"Build them where an engine answers: make release-images VERSION={version}")
    else:
        print(f"\nimages: {', '.join(names)}")
    print(f"Publish the release: git push origin {BRANCH} {version.tag}")
    for name in names if not missing_images else ():
        print(f"                     docker push {name}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the command line and makes the release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", nargs="?", default="", help="for instance 0.2.0")
    parser.add_argument("--gate", default=GATE, help="targets of make that must pass  [default: %(default)s]")
    parser.add_argument("--images-only", action="store_true", help="build only the images of a tagged release")
    parser.add_argument("--key", default="", help="key of OpenSSH that signs the release")
    parser.add_argument("--unsigned", action="store_true", help="make a release without signatures")
    options = parser.parse_args(arguments)
    repository = Path(__file__).resolve().parents[1]
    checkout = look(repository)
    version = Version.parse(options.version)
    key = "" if options.unsigned else options.key and str(Path(options.key).expanduser().resolve())
    unsigned = signing_refusal(key, *signing_files(repository, key), unsigned=options.unsigned)
    if options.images_only:
        if version is None or version.tag not in checkout.tags:
            raise SystemExit(f"error: VERSION={options.version}: there is no tag v{options.version}")
        missing = unsigned or build_images(repository, version)
        if missing:
            raise SystemExit(f"error: the images cannot be built: {missing}")
        list_images(repository, version, key)
        return
    # Files are restored when the release is terminated, as when it is interrupted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    reason = refusal(options.version, checkout) or unsigned
    if reason or version is None:
        raise SystemExit(f"error: {reason}")
    try:
        target = release(repository, version, options.gate.split(), datetime.datetime.now(datetime.UTC).date(), key)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"error: `{' '.join(error.cmd)}` failed; nothing was released") from None
    print(f"\npodrace {version} is committed and tagged {version.tag}; artifacts in {target}:")
    for path in sorted(target.iterdir()):
        print(f"  {path.name}  {path.stat().st_size:,} bytes")
    missing = build_images(repository, version)
    if not missing:
        list_images(repository, version, key)
    conclude(version, missing)


if __name__ == "__main__":
    main()

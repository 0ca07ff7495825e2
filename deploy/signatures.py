"""Signs the artifacts of a release and verifies them, with keys of OpenSSH and without a network.

    python deploy/signatures.py verify FOLDER          # the artifacts of a release, for instance dist/0.2.0
    python deploy/signatures.py verify FOLDER --images # also the images of this machine's engine
    python deploy/signatures.py sign FILE --key KEY    # writes FILE.sig, and verifies it

`SHA256SUMS` lists every file and `IMAGES` every image by its id; both are signed. Who may sign is in
deploy/release-signers (`ssh-keygen(1)`, "ALLOWED SIGNERS"). `ssh-keygen` makes and verifies the signatures, so a key
can be in an agent or on a hardware token, and a release can be verified without podrace.
"""

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

NAMESPACE = "podrace-release"
"""What a signature is for: one for another purpose is not accepted."""
SIGNERS = "deploy/release-signers"
SUMS = "SHA256SUMS"
IMAGES = "IMAGES"
SIGNATURE = ".sig"
UNLISTED = {name + suffix for name in (SUMS, IMAGES) for suffix in ("", SIGNATURE)}
"""Files that no checksum covers."""


class Refused(Exception):
    """A signature or an artifact is not what it should be."""


def listed(text: str) -> dict[str, str]:
    """Returns the digest of each name in lines of `sha256sum`."""
    return {name: digest for digest, name in (line.split("  ", 1) for line in text.splitlines())}


def problems(sums: Mapping[str, str], files: Mapping[str, bytes]) -> list[str]:
    """Returns which files are missing, changed, or not listed.

    Args:
        sums: Digest of each file.
        files: Content of each file.
    """
    missing = [f"{name} is missing" for name in sums if name not in files]
    more = [f"{name} is not listed in {SUMS}" for name in files if name not in sums]
    changed = [
        f"{name} was changed"
        for name, content in files.items()
        if name in sums and hashlib.sha256(content).hexdigest() != sums[name]
    ]
    return sorted(missing + more + changed)


def sign(path: Path, key: Path) -> None:
    """Writes the signature of a file next to it.

    Raises:
        Refused: The key cannot sign.
    """
    path.with_name(path.name + SIGNATURE).unlink(missing_ok=True)
    _ssh_keygen(["-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(path)], f"{key} cannot sign")


def verify(path: Path, signers: Path) -> str:
    """Verifies the signature of a file and returns the name of its signer.

    Raises:
        Refused: There is no signature, or no permitted signer made it for this file.
    """
    signature = path.with_name(path.name + SIGNATURE)
    for wanted in (path, signature):
        if not wanted.exists():
            raise Refused(f"{wanted} does not exist")
    permitted = ["-f", str(signers), "-n", NAMESPACE, "-s", str(signature)]
    why = f"the signature of {path} is not by a key of {signers}"
    name = _ssh_keygen(["-Y", "find-principals", *permitted], why).splitlines()[0]
    _ssh_keygen(["-Y", "verify", *permitted, "-I", name], why, path.read_bytes())
    return name


def _ssh_keygen(arguments: Sequence[str], failure: str, content: bytes = b"") -> str:
    """Runs `ssh-keygen`, which may ask for a passphrase on the terminal."""
    try:
        done = subprocess.run(["ssh-keygen", *arguments], input=content, capture_output=True)
    except FileNotFoundError:
        raise Refused("`ssh-keygen` is missing: install OpenSSH (Debian: openssh-client)") from None
    if done.returncode:
        raise Refused(f"{failure}: {done.stderr.decode(errors='replace').strip() or 'ssh-keygen failed'}")
    return done.stdout.decode()


def verify_folder(folder: Path, signers: Path) -> list[str]:
    """Verifies the artifacts of a release; returns one line for each part.

    Raises:
        Refused: A signature or a file is not what it should be.
    """
    name = verify(folder / SUMS, signers)
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in UNLISTED}
    wrong = problems(listed((folder / SUMS).read_text()), files)
    if wrong:
        raise Refused("; ".join(wrong))
    lines = [f"{len(files)} files signed by {name}"]
    if (folder / IMAGES).exists():
        lines.append(f"{IMAGES} signed by {verify(folder / IMAGES, signers)}")
    return lines


def verify_images(images: Mapping[str, str], image_id: Callable[[str], str]) -> list[str]:
    """Compares the images of an engine with a verified list.

    Args:
        images: Id of each image.
        image_id: Returns the id of an image of the engine; empty if it has none of that name.

    Raises:
        Refused: An image is missing or another.
    """
    found = {name: image_id(name) for name in images}
    wrong = [
        f"{name} is {found[name] or 'missing'}, not {image}" for name, image in images.items() if found[name] != image
    ]
    if wrong:
        raise Refused("; ".join(wrong))
    return [f"{name} {image}" for name, image in images.items()]


def image_id(name: str) -> str:
    """Returns the id of an image of this machine's engine, which is a digest of its configuration and its layers."""
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", name]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the command line and verifies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=["sign", "verify"])
    parser.add_argument("path", type=Path, help="a file to sign, or the folder of a release")
    parser.add_argument("--key", type=Path, help="private key of OpenSSH, or the public one of a key in an agent")
    parser.add_argument("--images", action="store_true", help="compare the images of this machine's engine")
    parser.add_argument("--signers", type=Path, default=Path(__file__).with_name("release-signers"))
    options = parser.parse_args(arguments)
    try:
        if options.command == "sign":
            if options.key is None:
                raise Refused("--key: name the key that signs")
            sign(options.path, options.key)
            print(f"{options.path} signed by {verify(options.path, options.signers)}")
            return
        print("\n".join(verify_folder(options.path, options.signers)))
        if options.images:
            verify(options.path / IMAGES, options.signers)
            print("\n".join(verify_images(listed((options.path / IMAGES).read_text()), image_id)))
    except Refused as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    sys.exit(main())

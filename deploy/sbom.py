"""Writes a bill of materials (CycloneDX, JSON) for each image: `python deploy/sbom.py FOLDER [VERSION]`.

It lists what the locks of deploy/locks install: names, versions and SHA-256 hashes. It does not list the packages of
the base image; its digest is in deploy/Dockerfile.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LOCKS = REPOSITORY / "deploy/locks"
IMAGES: Mapping[str, Sequence[str]] = {
    "leaderboard": ("leaderboard",),
    "orchestrator": ("orchestrator",),
    "serving": ("serving",),
    "agentpod": ("agentpod", "torch"),
    "agentpod-cuda13": ("cuda13", "torch", "torch-libraries"),
    "agentpod-cuda12": ("cuda12", "torch"),
}
"""The locks of each image. The CUDA libraries of agentpod-cuda12 are not locked."""


def joined(locks: Sequence[str]) -> str:
    """Joins locks to one; a package that several have is listed once."""
    blocks: dict[str, str] = {}
    for lock in locks:
        for block in re.split(r"^(?=\S)", lock, flags=re.MULTILINE):
            if block and not block.startswith("#"):
                blocks.setdefault(block.split("==")[0], block)
    return "".join(blocks.values())


def described(bill: str, image: str, version: str) -> str:
    """Returns a bill whose subject is an image of a version."""
    found = json.loads(bill)
    found["metadata"]["component"] |= {"name": f"podrace/{image}", "version": version, "type": "container"}
    return json.dumps(found, indent=2) + "\n"


def write(image: str, version: str, folder: Path) -> Path:
    """Writes the bill of an image and returns its path."""
    target = folder / f"podrace-{image}-{version}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="podrace-sbom-") as temporary:
        lock = Path(temporary) / "lock.txt"
        lock.write_text(joined([(LOCKS / f"{name}.txt").read_text() for name in IMAGES[image]]))
        program = Path(sys.executable).with_name("cyclonedx-py")
        options = (
            "--pyproject",
            str(REPOSITORY / "pyproject.toml"),
            "--output-reproducible",
            "--output-format",
            "JSON",
        )
        command = [str(program), "requirements", str(lock), *options, "--output-file", str(target)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    target.write_text(described(target.read_text(), image, version))
    return target


def main(arguments: Sequence[str]) -> None:
    """Writes the bills of all images."""
    folder, version = Path(arguments[0]), arguments[1] if len(arguments) > 1 else "latest"
    folder.mkdir(parents=True, exist_ok=True)
    for image in IMAGES:
        path = write(image, version, folder)
        print(f"{path}  {len(json.loads(path.read_text())['components'])} packages")


if __name__ == "__main__":
    main(sys.argv[1:])

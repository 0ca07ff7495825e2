"""Puts the chart library of the dashboard into the package: uPlot, as published on npm, with its licence.

    python deploy/vendor_assets.py            # fetches the pinned version with npm and replaces the files
    python deploy/vendor_assets.py --check    # compares the files with the recorded digests

`VERSION` and `INTEGRITY` pin the published archive; `vendor.json` in the same folder has the
digest of each of them.
"""

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

VERSION = "1.6.32"
INTEGRITY = "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw=="
"""As the registry states it (`npm view uplot@VERSION dist.integrity`)."""
FILES = {"LICENSE": "LICENSE", "dist/uPlot.esm.js": "uPlot.esm.js", "dist/uPlot.min.css": "uPlot.min.css"}
"""Files of the archive, and their names in the package."""
FOLDER = Path(__file__).parents[1] / "podrace/dashboard/assets/vendor/uplot"
FETCH_SECONDS = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Replaces or checks the files; returns 1 if a file differs."""
    parser = argparse.ArgumentParser(description="Puts the chart library of the dashboard into the package.")
    parser.add_argument("--check", action="store_true", help="only compare the files with the recorded digests")
    if parser.parse_args(arguments).check:
        found = differences(FOLDER)
        print("\n".join(found) or f"uPlot {VERSION}: all files as published")
        return 1 if found else 0
    with tempfile.TemporaryDirectory() as folder:
        place(_fetch(Path(folder)), FOLDER)
    return 0


def _fetch(folder: Path) -> Path:
    """Downloads the archive with npm and checks its digest."""
    command = ["npm", "pack", "--silent", f"uplot@{VERSION}"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=FETCH_SECONDS)
    archive = folder / f"uplot-{VERSION}.tgz"
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != INTEGRITY:
        sys.exit(f"uplot {VERSION}: the archive has the digest {found}, expected {INTEGRITY}")
    return archive


def place(archive: Path, folder: Path) -> None:
    """Writes the wanted files of an archive and their digests into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    with tarfile.open(archive) as content:
        for source, name in FILES.items():
            member = content.extractfile(f"package/{source}")
            assert member is not None, source
            data = member.read()
            (folder / name).write_bytes(data)
            digests[name] = hashlib.sha256(data).hexdigest()
    record = {"name": "uplot", "version": VERSION, "integrity": INTEGRITY, "sha256": digests}
    (folder / "vendor.json").write_text(json.dumps(record, indent=2) + "\n")


def differences(folder: Path) -> list[str]:
    """Returns one line for each file that is missing or differs from its recorded digest."""
    record = json.loads((folder / "vendor.json").read_text())
    found = [] if record["integrity"] == INTEGRITY else ["vendor.json: of another version than this program"]
    for name in FILES.values():
        path = folder / name
        if not path.exists():
            found.append(f"{name}: missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != record["sha256"].get(name):
            found.append(f"{name}: differs from the published file")
    return found


if __name__ == "__main__":
    sys.exit(main())

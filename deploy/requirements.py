"""Prints the dependencies of the project and of some extras: `python requirements.py PYPROJECT [EXTRA...]`.

The project itself is not included, so an image's layer of dependencies is reused when only the source changes.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Returns the dependencies of the project, then those of the extras, in order."""
    project = tomllib.loads(pyproject.read_text())["project"]
    optional = project["optional-dependencies"]
    unknown = [extra for extra in extras if extra not in optional]
    if unknown:
        raise SystemExit(f"error: unknown extra {unknown[0]!r} in {pyproject} (extras: {', '.join(sorted(optional))})")
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))

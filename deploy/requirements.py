"""Prints what pip has to install for some extras: `python requirements.py PYPROJECT [EXTRA...]`.

Without the project itself, so that an image's layer of dependencies outlives a change of the source.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """The project's own dependencies and those of the extras, in order."""
    project = tomllib.loads(pyproject.read_text())["project"]
    optional = project["optional-dependencies"]
    unknown = [extra for extra in extras if extra not in optional]
    if unknown:
        raise SystemExit(f"error: no extra {unknown[0]!r} in {pyproject} (there are: {', '.join(sorted(optional))})")
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))

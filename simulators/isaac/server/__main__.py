"""Starts the server; run by path with an interpreter that has no podrace, so it first makes its folder a package.

python .../server/__main__.py REQUESTS RESPONSES        (file descriptors of two pipes)
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = "isaac_server"


def load_package(folder: Path) -> None:
    """Makes the folder a package without adding its parent to the path, where `gym.py` would hide the package `gym`."""
    spec = importlib.util.spec_from_file_location(
        PACKAGE, str(folder / "__init__.py"), submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    load_package(here)
    importlib.import_module(PACKAGE + ".serving").main(sys.argv[1:])

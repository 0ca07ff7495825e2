"""Provides compiled kernels of an image to Warp, whose cache is a folder that every container begins empty.

`python -m simulators.warp.kernels` compiles them when an image is built. A kernel that is not among them, for instance
of another capacity for contacts, is compiled on first use as everywhere else.
"""

import contextlib
import shutil
import sys
from pathlib import Path

COMPILED = Path(sys.prefix) / "share" / "podrace" / "kernels"
"""Folder of the compiled kernels, one folder for each module; absent where none were compiled."""
BINARIES = (".cubin", ".ptx")


def provide_kernels(cache: Path, compiled: Path = COMPILED) -> int:
    """Makes compiled kernels available in a cache; returns how many were not there yet.

    Warp finds a module by a hash of its source and options, so kernels of another version are never used.

    Args:
        cache: Folder in which Warp looks for kernels, and writes those that it compiles.
        compiled: Folder of the compiled kernels, which may be read-only.
    """
    provided = 0
    for module in sorted(compiled.iterdir()) if compiled.is_dir() else ():
        target = cache / module.name
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted(module.iterdir()):
            # Another process may provide the same file.
            with contextlib.suppress(FileExistsError):
                if file.suffix in BINARIES:
                    (target / file.name).symlink_to(file)
                    provided += 1
                elif not (target / file.name).exists():
                    # Warp writes it again with a binary for another GPU, so it must not be a link.
                    _copy(file, target / file.name)
    return provided


def _copy(source: Path, target: Path) -> None:
    """Copies a file so that a reader never sees a part of it."""
    partial = target.with_name(f".{target.name}.{id(target)}")
    shutil.copyfile(source, partial)
    partial.replace(target)

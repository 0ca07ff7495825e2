"""Moves the files of a database aside before another one takes their place."""

from pathlib import Path

SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Of the files of one database of SQLite. The log has changes that the file lacks, and belongs to it by its name."""


def move_aside(path: Path) -> Path | None:
    """Renames a database with its logs to a new name, `FILE.replaced-1` or the next number that is free.

    Args:
        path: The file of the database, which may be absent: a log that was left behind would be applied to the database
            that takes its place.

    Returns:
        The new name of the file; None if there was neither a file nor a log.

    Raises:
        OSError: A file cannot be renamed.
    """
    present = [suffix for suffix in SUFFIXES if _file(path, suffix).exists()]
    if not present:
        return None
    number = 1
    while any(_file(_named(path, number), suffix).exists() for suffix in SUFFIXES):
        number += 1
    for suffix in present:
        _file(path, suffix).rename(_file(_named(path, number), suffix))
    return _named(path, number)


def _named(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.replaced-{number}")


def _file(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)

"""Finds the logs of an embedded mesh: one file for each service and each pod."""

from pathlib import Path

from podrace.client.resolve import resolve_name
from podrace.errors import NotFound
from podrace.processes.log_reading import SUFFIX


def find_log(folder: Path, text: str) -> Path:
    """Returns the log that a user named.

    Args:
        folder: Folder of the logs.
        text: Id of a pod, a prefix of exactly one, or the name of a service.

    Raises:
        NotFound: No log matches; the message suggests a similar one.
        InvalidArgument: Several logs match.
    """
    newest = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
    if not newest:
        raise NotFound(f"{folder}: there are no logs; start a tournament with `podrace train SPEC`")
    names = [path.name.removesuffix(SUFFIX) for path in newest]
    return folder / f"{resolve_name(text, names, 'log', where=str(folder))}{SUFFIX}"

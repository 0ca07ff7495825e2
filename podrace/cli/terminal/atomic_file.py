"""Writes output files atomically: a file is either complete or not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podrace.errors import FailedPrecondition, InvalidArgument


def check_file(path: Path, option: str) -> None:
    """Checks that a file can probably be written, before the command starts its work.

    Args:
        path: Path that the user named.
        option: Option that named it, for instance `--csv`.

    Raises:
        InvalidArgument: The folder of the file does not exist, or the path is `-`.
    """
    if path == Path("-"):
        raise InvalidArgument(f"{option} -: name a file, or /dev/stdout")
    if not path.absolute().parent.is_dir():
        raise InvalidArgument(f"{option} {path}: there is no folder {path.absolute().parent}; create it first")


@contextmanager
def whole_file(path: Path, option: str = "") -> Iterator[Path]:
    """Yields a temporary path to write to, and renames it to `path` at the end of the block.

    Devices, pipes and links are written directly, because a rename would replace them by a file.

    Args:
        path: Path that the user named.
        option: Option that named it or its folder, for instance `--csv`; empty if there is none.

    Raises:
        FailedPrecondition: The file cannot be written.
    """
    through = path.is_symlink() or (path.exists() and not path.is_file())
    # The suffix is kept, because matplotlib chooses the image format by it.
    incoming = path if through else path.with_name(f"{path.stem}.incoming{path.suffix}")
    try:
        yield incoming
        if not through:
            incoming.replace(path)
    except OSError as error:
        name = f"{option} {path}".lstrip()
        raise FailedPrecondition(f"{name}: cannot be written: {error.strerror}") from None
    finally:
        if not through and incoming.is_file():
            incoming.unlink()

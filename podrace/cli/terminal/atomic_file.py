"""Files that a person asked for: each stands there whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podrace.errors import FailedPrecondition, InvalidArgument


def check_file(path: Path, option: str) -> None:
    """Refuses what could not be written, before anything is done for it.

    Args:
        path: As it was named.
        option: That named it: `--csv`.

    Raises:
        InvalidArgument: Its folder is not there, or a dash stands for it.
    """
    if path == Path("-"):
        raise InvalidArgument(f"{option} -: name a file, or /dev/stdout")
    if not path.absolute().parent.is_dir():
        raise InvalidArgument(f"{option} {path}: there is no folder {path.absolute().parent}; make it first")


@contextmanager
def whole_file(path: Path, option: str = "") -> Iterator[Path]:
    """Yields where to write; whoever looks at `path` meanwhile sees what was there before.

    A device, a pipe and a link are written themselves: a rename would put a file in their place.

    Args:
        path: As it was named.
        option: That named it, or its folder: `--csv`; empty if none did.

    Raises:
        FailedPrecondition: It cannot be written.
    """
    through = path.is_symlink() or (path.exists() and not path.is_file())
    # The suffix stays, because it says how a picture is drawn.
    beside = path if through else path.with_name(f"{path.stem}.incoming{path.suffix}")
    try:
        yield beside
        if not through:
            beside.replace(path)
    except OSError as error:
        name = f"{option} {path}".lstrip()
        raise FailedPrecondition(f"{name}: cannot be written: {error.strerror}") from None
    finally:
        if not through and beside.is_file():
            beside.unlink()

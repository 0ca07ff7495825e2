"""Reads the credentials of the checkpoint store that containers of pods get, if pods open the store themselves."""

from collections.abc import Mapping
from pathlib import Path

from podrace.errors import FailedPrecondition

STORE_CREDENTIALS = ("PODRACE_STORE_ACCESS_KEY", "PODRACE_STORE_SECRET_KEY")
SECRET_SUFFIX = "_FILE"


def credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """Credentials of the store, from the environment or the files that it names; pods' containers lack these files.

    Raises:
        FailedPrecondition: A file cannot be read.
    """
    found = {}
    for name in STORE_CREDENTIALS:
        path = environ.get(f"{name}{SECRET_SUFFIX}")
        if name in environ:
            found[name] = environ[name]
        elif path:
            try:
                found[name] = Path(path).read_text().strip()
            except OSError as error:
                message = f"{name}{SECRET_SUFFIX} = {path!r}: cannot be read: {error.strerror}"
                raise FailedPrecondition(message) from None
    return found

"""Opens checkpoint stores by URI. A store holds immutable objects, manifests that list them, and a pointer per agent.

Works without torch.
"""

from collections.abc import Callable
from pathlib import Path

import structlog

from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.minio_address import parse_address
from podrace.checkpoint_store.store import CheckpointStore, UncheckedStore, check_store
from podrace.errors import InvalidArgument, PodraceError, Unimplemented

DEADLINE_SECONDS = 60.0
_log = structlog.get_logger(__name__)


def _open_folder(uri: str, deadline_seconds: float) -> UncheckedStore:
    return FolderStore(_folder_of(uri))


def _folder_of(uri: str) -> Path:
    scheme, _, path = uri.partition("://")
    if not path.startswith("/"):
        raise InvalidArgument(f"checkpoint store {uri!r}: write {scheme}:///absolute/path, or a plain path")
    return Path(path)


def _open_minio(uri: str, deadline_seconds: float) -> UncheckedStore:
    require_minio(uri)
    from podrace.checkpoint_store.minio import open_minio

    store = open_minio(uri, deadline_seconds=deadline_seconds)
    store.remove_abandoned()
    return store


def require_minio(uri: str) -> None:
    """Checks that the package of S3 stores is installed; raises Unimplemented."""
    try:
        import minio  # noqa: F401  # imported only for S3 stores: most meshes use a folder
    except ImportError:
        raise Unimplemented(
            f"checkpoint store {uri!r} needs the package minio: pip install 'minio>=7.2.20,<8' (podrace[minio])"
        ) from None


STORES: dict[str, Callable[[str, float], UncheckedStore]] = {
    "folder": _open_folder,
    "minio": _open_minio,
    "minio+http": _open_minio,
}
"""Opens the URIs of each scheme."""


def open_store(
    uri: str,
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
    only_reading: bool = False,
    tolerated: tuple[type[PodraceError], ...] = (),
) -> CheckpointStore:
    """Opens a store and checks that it returns what was put and honors conditions on writes.

    A store that was usable once has only faults that an operator repairs: calls on the returned store raise Unavailable
    where this function raises FailedPrecondition or PermissionDenied.

    Args:
        uri: `folder:///absolute/path`, a plain path, or `minio://host/bucket/prefix` (see minio_address.py).
        deadline_seconds: How long every call on the store retries failures that may pass, such as a server that is
            starting or a lost connection. The default is longer than a server takes to restart.
        only_reading: Skips the check, which writes, so that read permission is enough.
        tolerated: Errors of the check that are logged instead of raised, because they may pass while the caller runs.

    Raises:
        InvalidArgument: The scheme is unknown, or the rest of the URI is malformed.
        FailedPrecondition: The store cannot be written, ignores conditions on writes, or has no credentials set.
        PermissionDenied: The credentials are not accepted.
        ResourceExhausted: The store is full.
        Unavailable: The store cannot be reached.
        Unimplemented: A package is missing.
    """
    scheme, uri = _split(uri)
    store = STORES[scheme](uri, deadline_seconds)
    if not only_reading:
        try:
            check_store(store)
        except tolerated as error:
            _log.warning("the checkpoint store could not be checked", error=error.message)
        store.mark_usable()
    return store


def check_uri(uri: str) -> None:
    """Checks the form of a store's URI without opening the store.

    Args:
        uri: As for `open_store`.

    Raises:
        InvalidArgument: The scheme is unknown, or the rest of the URI is malformed.
    """
    scheme, uri = _split(uri)
    if scheme == "folder":
        _folder_of(uri)
    else:
        parse_address(uri)


def _split(uri: str) -> tuple[str, str]:
    """Returns the scheme of a URI and the URI itself, with the scheme `folder` for a plain path."""
    scheme, separator, _ = uri.partition("://")
    if not separator:
        if not uri:
            raise InvalidArgument("checkpoint store '': write folder:///absolute/path, or a plain path")
        scheme, uri = "folder", f"folder://{Path(uri).absolute()}"
    if scheme not in STORES:
        raise InvalidArgument(f"checkpoint store {uri!r}: unknown scheme {scheme!r}; known are: {', '.join(STORES)}")
    return scheme, uri


def create_store(uri: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> bool:
    """Creates the bucket of a store if it does not exist. A folder is created when its store is opened.

    Args:
        uri: As for `open_store`.
        deadline_seconds: As for `open_store`.

    Returns:
        Whether a bucket was created.

    Raises:
        PodraceError: As `open_store`.
    """
    if not uri.startswith("minio"):
        return False
    require_minio(uri)
    from podrace.checkpoint_store.minio import create_bucket

    return create_bucket(uri, deadline_seconds=deadline_seconds)

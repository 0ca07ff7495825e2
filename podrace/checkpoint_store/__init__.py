"""Training files of agents: immutable objects, manifests that list them, and one pointer an agent. Free of torch."""

from collections.abc import Callable
from pathlib import Path

from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.store import CheckpointStore, check_store
from podrace.errors import InvalidArgument, Unimplemented

DEADLINE_SECONDS = 60.0


def _open_folder(uri: str, deadline_seconds: float) -> CheckpointStore:
    scheme, _, path = uri.partition("://")
    if not path.startswith("/"):
        raise InvalidArgument(f"checkpoint store {uri!r}: write {scheme}:///absolute/path, or a plain path")
    return FolderStore(Path(path))


def _open_minio(uri: str, deadline_seconds: float) -> CheckpointStore:
    _require_minio(uri)
    from podrace.checkpoint_store.minio import open_minio

    store = open_minio(uri, deadline_seconds=deadline_seconds)
    store.remove_abandoned()
    return store


def _require_minio(uri: str) -> None:
    try:
        import minio  # noqa: F401  # only where it is asked for: most meshes live in a folder
    except ImportError:
        raise Unimplemented(
            f"checkpoint store {uri!r} needs the package minio: pip install 'minio>=7.2.20,<8' (podrace[minio])"
        ) from None


STORES: dict[str, Callable[[str, float], CheckpointStore]] = {
    "folder": _open_folder,
    "minio": _open_minio,
    "minio+http": _open_minio,
}
"""What opens the URIs of each scheme."""


def open_store(uri: str, *, deadline_seconds: float = DEADLINE_SECONDS, only_reading: bool = False) -> CheckpointStore:
    """Opens a store after checking that it keeps its promises.

    Args:
        uri: `folder:///absolute/path`, a plain path, or `minio://host/bucket/prefix` (see minio_address.py).
        deadline_seconds: How long the store, now and later, tries again what may pass by itself: a server that is
            starting, a lost connection. By default longer than a server takes to restart.
        only_reading: Skips the check, which writes: who only looks need not be allowed to.

    Raises:
        InvalidArgument: The scheme is unknown, or the rest of the URI is not what the scheme wants.
        FailedPrecondition: The store cannot be written, ignores conditions on writes, or wants credentials.
        PermissionDenied: The credentials are not accepted.
        ResourceExhausted: The store is full.
        Unavailable: The store cannot be reached.
        Unimplemented: A package is missing.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator:
        if not uri:
            raise InvalidArgument("checkpoint store '': write folder:///absolute/path, or a plain path")
        scheme, uri = "folder", f"folder://{Path(uri).absolute()}"
    if scheme not in STORES:
        raise InvalidArgument(f"checkpoint store {uri!r}: unknown scheme {scheme!r}; known are: {', '.join(STORES)}")
    store = STORES[scheme](uri, deadline_seconds)
    if not only_reading:
        check_store(store)
    return store


def create_store(uri: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> bool:
    """Makes what a store lies in, if it is not there: a bucket. A folder is made when it is opened.

    Args:
        uri: As for `open_store`.
        deadline_seconds: As for `open_store`.

    Returns:
        Whether a bucket was made.

    Raises:
        PodraceError: As `open_store`.
    """
    if not uri.startswith("minio"):
        return False
    _require_minio(uri)
    from podrace.checkpoint_store.minio import create_bucket

    return create_bucket(uri, deadline_seconds=deadline_seconds)

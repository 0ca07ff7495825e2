"""Training files of agents: immutable objects, manifests that list them, and one pointer an agent. Free of torch."""

from pathlib import Path

from podrace.checkpoints.folder import FolderStore
from podrace.checkpoints.store import CheckpointStore, check_store
from podrace.errors import InvalidArgument

STORES = {"folder": FolderStore}


def open_store(uri: str) -> CheckpointStore:
    """Opens a store after checking that it keeps its promises.

    Args:
        uri: `folder:///absolute/path`, or a plain path.

    Raises:
        InvalidArgument: The scheme is unknown or the path of a URI is not absolute.
        FailedPrecondition: The store cannot be written, or ignores conditions on writes.
        ResourceExhausted: The store is full.
    """
    scheme, separator, path = uri.partition("://")
    if not separator:
        scheme, path = "folder", uri
    if scheme not in STORES:
        raise InvalidArgument(f"checkpoint store {uri!r}: unknown scheme {scheme!r}; known are: {', '.join(STORES)}")
    if not path or (separator and not path.startswith("/")):
        raise InvalidArgument(f"checkpoint store {uri!r}: write {scheme}:///absolute/path, or a plain path")
    store = STORES[scheme](Path(path))
    check_store(store)
    return store

"""Reads data from an S3 server: one object, or all objects below a prefix."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from podrace.checkpoint_store.minio_address import BUCKET, FOLDER, parse_address, read_access
from podrace.checkpoint_store.minio_client import Bucket
from podrace.checkpoint_store.minio_retries import RetryPolicy
from podrace.cli.continuous.decisions import Signature
from podrace.cli.continuous.source import ENDPOINTS, S3, Write
from podrace.errors import Aborted, InvalidArgument, NotFound

DEFAULT_ENDPOINT = "https://s3.amazonaws.com"
DEADLINE_SECONDS = 30.0
"""How long a failing call is retried, before the next poll tries again."""
PIECE_BYTES = 32 * 2**20
"""Size of the pieces in which an object is read; one piece at a time is in memory."""


@dataclass(frozen=True)
class BucketSource:
    """An object of a bucket, or all objects below a prefix."""

    bucket: Bucket
    key: str
    """Key of the object, or the prefix of the objects without its last slash; empty for the whole bucket."""

    @classmethod
    def open(cls, reference: str, environ: Mapping[str, str], *, retry: bool = True) -> "BucketSource":
        """Finds the server and the credentials without connecting. Arguments and errors are those of `open_source`."""
        uri = _minio_uri(reference, environ) if reference.startswith(S3) else reference
        address = parse_address(uri.rstrip("/"), what="--watch")
        bucket = Bucket(address, read_access(address, environ), RetryPolicy(DEADLINE_SECONDS if retry else 0.0))
        return cls(bucket, address.prefix.rstrip("/"))

    @property
    def name(self) -> str:
        """Last part of the key or prefix; the name of the bucket if the key is empty."""
        return self.key.rpartition("/")[2] or self.bucket.address.bucket

    def signature(self) -> Signature:
        """Returns name, entity tag and size of the object with this key, or else of all objects below it."""
        rows = []
        for entry in self.bucket.entries(self.key, "the data"):
            row = entry.etag, entry.size_bytes
            if entry.key == self.key:
                return (("", *row),)
            below = entry.key.removeprefix(f"{self.key}/" if self.key else "")
            # Skips the empty placeholders that consoles create for folders. `prices-old/a` is not below `prices`.
            if (not self.key or below != entry.key) and below and not below.endswith("/"):
                rows.append((below, *row))
        return tuple(rows)

    def read(self, name: str, write: Write) -> None:
        """Reads an object in pieces, all from the same version of the object.

        Raises:
            NotFound: The object does not exist any more.
            Aborted: A piece is incomplete.
        """
        key = "/".join(part for part in (self.key, name) if part)
        entry = self.bucket.find(key, key)
        if entry is None:
            raise NotFound(f"{key} does not exist any more")
        for begin in range(0, entry.size_bytes, PIECE_BYTES):
            size = min(PIECE_BYTES, entry.size_bytes - begin)
            piece = self.bucket.get_piece(entry, begin, size, key)
            if len(piece) != size:
                raise Aborted(f"{key}: {len(piece)} of {size} bytes arrived")
            write(piece)


def _minio_uri(reference: str, environ: Mapping[str, str]) -> str:
    """Translates an `s3://` reference to the URI scheme of the checkpoint store."""
    rest = reference.removeprefix(S3)
    bucket, *folders = rest.rstrip("/").split("/")
    # Credentials that the user wrote into the reference are not repeated in error messages.
    shown = f"--watch {S3}{rest.rpartition('@')[2]}"
    if not BUCKET.fullmatch(bucket):
        raise InvalidArgument(f"{shown}: names no bucket; write {S3}BUCKET/KEY-OR-PREFIX")
    if not all(FOLDER.fullmatch(folder) for folder in folders):
        raise InvalidArgument(f"{shown}: a key consists of letters, digits, '.', '_' and '-' between single slashes")
    endpoint = next((environ[name] for name in ENDPOINTS if environ.get(name)), DEFAULT_ENDPOINT)
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidArgument(f"{ENDPOINTS[0]} or {ENDPOINTS[1]} = {endpoint!r}: expected https://HOST[:PORT]")
    scheme = "minio" if parts.scheme == "https" else "minio+http"
    return f"{scheme}://{parts.netloc}/{rest}"

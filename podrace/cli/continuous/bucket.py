"""Data on a server that speaks S3: an object or all below a prefix, through the client of the checkpoint store."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from podrace.checkpoint_store.minio_address import BUCKET, FOLDER, parse_address, read_access
from podrace.checkpoint_store.minio_client import Bucket, Patience
from podrace.cli.continuous.dataset import ENDPOINTS, S3, Write
from podrace.cli.continuous.decisions import Signature
from podrace.errors import Aborted, InvalidArgument, NotFound

USUAL_ENDPOINT = "https://s3.amazonaws.com"
DEADLINE_SECONDS = 30.0
"""How long a server that fails is asked again before the next look."""
PIECE_BYTES = 32 * 2**20
"""What is in memory of an object at a time."""


@dataclass(frozen=True)
class BucketSource:
    """Objects of a bucket."""

    bucket: Bucket
    key: str
    """Of the object, or what names of all begin with, without the slash after it; empty: the whole bucket."""

    @classmethod
    def open(cls, reference: str, environ: Mapping[str, str], *, patient: bool = True) -> "BucketSource":
        """Finds server and credentials; nothing is sent yet. Takes and raises what open_source does."""
        uri = _minio_uri(reference, environ) if reference.startswith(S3) else reference
        address = parse_address(uri.rstrip("/"), what="--watch")
        bucket = Bucket(address, read_access(address, environ), Patience(DEADLINE_SECONDS if patient else 0.0))
        return cls(bucket, address.prefix.rstrip("/"))

    @property
    def name(self) -> str:
        """Of the object or the last folder of the prefix; of a whole bucket its own."""
        return self.key.rpartition("/")[2] or self.bucket.address.bucket

    def look(self) -> Signature:
        """Tags and sizes as the server lists them: an object of this very name, or else all below it."""
        rows = []
        for entry in self.bucket.entries(self.key, "the data"):
            row = entry.etag, entry.size_bytes
            if entry.key == self.key:
                return (("", *row),)
            below = entry.key.removeprefix(f"{self.key}/" if self.key else "")
            # Placeholders that consoles make for folders hold nothing; `prices-old/a` does not lie below `prices`.
            if (not self.key or below != entry.key) and below and not below.endswith("/"):
                rows.append((below, *row))
        return tuple(rows)

    def read(self, name: str, write: Write) -> None:
        """Reads an object in pieces, all of the same state of it."""
        key = "/".join(part for part in (self.key, name) if part)
        entry = self.bucket.find(key, key)
        if entry is None:
            raise NotFound(f"{key} is gone")
        for begin in range(0, entry.size_bytes, PIECE_BYTES):
            size = min(PIECE_BYTES, entry.size_bytes - begin)
            piece = self.bucket.get_piece(entry, begin, size, key)
            if len(piece) != size:
                raise Aborted(f"{key}: {len(piece)} of {size} bytes arrived")
            write(piece)


def _minio_uri(reference: str, environ: Mapping[str, str]) -> str:
    """The same place as the store names it."""
    rest = reference.removeprefix(S3)
    bucket, *folders = rest.rstrip("/").split("/")
    # What somebody took for the place of credentials is not repeated.
    shown = f"--watch {S3}{rest.rpartition('@')[2]}"
    if not BUCKET.fullmatch(bucket):
        raise InvalidArgument(f"{shown}: names no bucket; write {S3}BUCKET/KEY-OR-PREFIX")
    if not all(FOLDER.fullmatch(folder) for folder in folders):
        raise InvalidArgument(f"{shown}: a key is of letters, digits, '.', '_' and '-' between single slashes")
    endpoint = next((environ[name] for name in ENDPOINTS if environ.get(name)), USUAL_ENDPOINT)
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidArgument(f"{ENDPOINTS[0]} or {ENDPOINTS[1]} = {endpoint!r}: expected https://HOST[:PORT]")
    scheme = "minio" if parts.scheme == "https" else "minio+http"
    return f"{scheme}://{parts.netloc}/{rest}"

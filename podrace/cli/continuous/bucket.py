"""Data on a server that speaks S3: an object or all below a prefix, through the client of the checkpoint store."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from podrace.checkpoints.minio_address import parse_address, read_access
from podrace.checkpoints.minio_client import Bucket, Patience
from podrace.cli.continuous_dataset import Write
from podrace.cli.continuous_decisions import Signature
from podrace.errors import Aborted, InvalidArgument, NotFound

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Variables that name the server of `s3://`, as those of Amazon's own tools."""
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
    def open(cls, reference: str, environ: Mapping[str, str]) -> "BucketSource":
        """Finds server and credentials; nothing is sent yet. Raises as open_source."""
        uri = _minio_uri(reference, environ) if reference.startswith("s3://") else reference
        address = parse_address(uri.rstrip("/"))
        bucket = Bucket(address, read_access(address, environ), Patience(DEADLINE_SECONDS))
        return cls(bucket, address.prefix.rstrip("/"))

    @property
    def name(self) -> str:
        """Of the object or the last folder of the prefix; of a whole bucket its own."""
        return self.key.rpartition("/")[2] or self.bucket.address.bucket

    def look(self) -> Signature:
        """Tags and sizes as the server lists them: an object of this very name, or else all below it."""
        what = f"{self.bucket.address.bucket}/{self.key}"
        rows = []
        for entry in self.bucket.entries(self.key, what):
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
    endpoint = next((environ[name] for name in ENDPOINTS if environ.get(name)), USUAL_ENDPOINT)
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidArgument(f"{ENDPOINTS[0]} or {ENDPOINTS[1]} = {endpoint!r}: expected https://HOST[:PORT]")
    scheme = "minio" if parts.scheme == "https" else "minio+http"
    return f"{scheme}://{parts.netloc}/{reference.removeprefix('s3://')}"

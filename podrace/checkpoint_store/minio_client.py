"""Reads and writes the objects of one S3 bucket by key, and retries requests whose failure may pass."""

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import NamedTuple, TypeVar, cast

import structlog
from minio.commonconfig import REPLACE, CopySource
from minio.helpers import DictType

from podrace.checkpoint_store.arrival import OVERLAPPED_BYTES, Arrival, receive
from podrace.checkpoint_store.minio_address import Access, Address
from podrace.checkpoint_store.minio_connection import (
    STATED_DIGEST,
    TRANSFERS,
    UPLOAD_HEADERS,
    BucketEntry,
    SentPart,
    base64_digest,
    checksum_headers,
    connect,
    entry_of,
    parts_list,
    seconds_of,
)
from podrace.checkpoint_store.minio_errors import CLIENT_ERRORS, Failure, failure_of
from podrace.checkpoint_store.minio_retries import Attempts, RetryPolicy, retried
from podrace.checkpoint_store.presigned import with_signed_headers
from podrace.checkpoint_store.store import UrlGrant, check_content, check_size, verified
from podrace.digests import digest
from podrace.errors import Aborted, FailedPrecondition, NotFound, PodraceError, Unavailable, Unimplemented

_log = structlog.get_logger(__name__)
Result = TypeVar("Result")

PART_BYTES = 16 * 2**20
"""Larger objects are uploaded in parts of this size, each of which is retried alone. S3 requires at least 5 MiB."""
PARTS = 10_000
"""Largest number of parts that S3 accepts; larger objects have larger parts."""
PAGE_ENTRIES = 1000
"""Number of objects that a server lists per request."""
CLOCK_SECONDS = 5.0
"""Tolerance for the server's clock: it is known to the second, and an upload may count from before its reply."""
PROGRESS_SECONDS = 5.0
"""Time between two log lines about a transfer in progress."""


class UnfinishedUploads(NamedTuple):
    """Counts of uploads in parts that were not completed."""

    found: int
    aborted: int
    """How many of them were aborted now."""


@dataclass(frozen=True)
class _Upload:
    """An upload in parts that is in progress."""

    key: str
    upload_id: str
    what: str
    size_bytes: int
    begun_seconds: float
    """By the server's clock."""

    def produced(self, entry: BucketEntry | None) -> bool:
        """Whether this upload produced the entry.

        An equal object that was there before does not count: it may be about to be collected.
        """
        old_seconds = self.begun_seconds - CLOCK_SECONDS
        return entry is not None and entry.size_bytes == self.size_bytes and entry.modified_seconds >= old_seconds


@dataclass
class Bucket:
    """The objects of one bucket. Errors of the client are translated to those of podrace.errors."""

    address: Address
    access: Access
    retries: RetryPolicy
    part_bytes: int = PART_BYTES
    usable: bool = False
    """Whether the store was usable once, so that its configuration is right."""

    def __post_init__(self) -> None:
        self._client, self._connections = connect(self.address, self.access)
        self._name = self.address.bucket

    @property
    def skew_seconds(self) -> float:
        """Server's clock minus this machine's clock, from the latest response."""
        return self._connections.skew_seconds

    def now_seconds(self) -> float:
        """Returns the time of the server's clock, by which the age of objects is measured."""
        return time.time() + self.skew_seconds

    def create(self) -> bool:
        """Creates the bucket if it does not exist; returns whether it was created."""
        what = f"bucket {self._name}"
        if self._try(what, lambda: self._client.bucket_exists(self._name)):
            return False
        self._try(what, lambda: self._client.make_bucket(self._name))
        return True

    def put(self, key: str, data: bytes, sha256: str, what: str) -> None:
        """Writes an object with a known digest; replaces an object of the same key.

        A large object is uploaded in parts. If that fails, its parts are deleted.
        """
        if len(data) > self.part_bytes:
            self._put_parts(key, data, what)
        else:
            progress = _Transfer(what, "storing", len(data))
            self._try(what, lambda: self._client.put(self._name, key, data, checksum_headers(sha256)))
            progress.report(len(data))

    def put_if(self, key: str, data: bytes, etag: str | None, what: str) -> None:
        """Writes an object if the present one has this ETag; None: if there is no object.

        Raises:
            Aborted: There is another object. If a reply was lost and the object has just the content that was to be
                written, the call succeeds instead.
        """
        condition = {"If-None-Match": "*"} if etag is None else {"If-Match": f'"{etag}"'}
        sha256, attempts = digest(data), Attempts()
        try:
            self._try(
                what, lambda: self._client.put(self._name, key, data, checksum_headers(sha256) | condition), attempts
            )
        except (Aborted, NotFound) as error:
            if attempts.uncertain and self._holds(key, data, what):
                return
            raise Aborted(f"{what} in {self.address.uri} was changed by another process; read it again") from error

    def get(self, key: str, what: str, largest_bytes: int | None = None) -> tuple[Arrival, str]:
        """Returns an object, not verified, and its ETag.

        Raises:
            NotFound: It does not exist.
            ObjectTooLarge: It is larger than `largest_bytes`.
        """
        return self._try(what, lambda: self._read(key, what, largest_bytes))

    def get_piece(self, entry: BucketEntry, begin: int, size_bytes: int, what: str) -> bytes:
        """Returns a range of bytes of an object.

        Raises:
            Aborted: The object was replaced since it was listed.
            NotFound: It does not exist any more.
        """

        def read() -> bytes:
            condition: DictType = {"If-Match": f'"{entry.etag}"'}
            response = self._client.get_object(self._name, entry.key, begin, size_bytes, request_headers=condition)
            try:
                return response.read()
            finally:
                response.close()
                response.release_conn()

        return self._try(what, read)

    def copy_onto_itself(self, entry: BucketEntry, what: str) -> bool:
        """Has the server copy an object onto itself, so that it counts as put now; returns whether it does.

        Raises:
            NotFound: It does not exist any more.
        """
        # Servers refuse such a copy if it changes nothing; REPLACE makes it a change of the metadata.
        copy = partial(self._client.copy_object, self._name, entry.key, metadata_directive=REPLACE)
        try:
            self._try(what, lambda: copy(CopySource(self._name, entry.key)))
        except (FailedPrecondition, Unimplemented) as error:
            _log.debug("the store cannot copy an object onto itself; it is rewritten", error=error.message)
            return False
        copied = self.find(entry.key, what)
        return copied is not None and copied.modified_seconds > entry.modified_seconds

    def rewrite(self, entry: BucketEntry, sha256: str, what: str) -> None:
        """Reads an object and writes it again, in pieces, so that only one piece is in memory.

        Raises:
            Aborted: It was replaced since it was listed.
            DataLoss: Its bytes have another digest (BAD_DIGEST); it stays as it is.
            NotFound: It does not exist any more.
        """
        if entry.size_bytes <= self.part_bytes:
            arrival, _ = self.get(entry.key, what, self.part_bytes)
            self.put(entry.key, verified(sha256, arrival, self.address.uri), sha256, what)
            return
        hasher, parts, part_bytes = hashlib.sha256(), list[SentPart](), self._part_bytes(entry.size_bytes)
        with self._uploading(entry.key, entry.size_bytes, what) as upload:
            for number, begin in enumerate(range(0, entry.size_bytes, part_bytes), 1):
                piece = self.get_piece(entry, begin, part_bytes, what)
                hasher.update(piece)
                parts.append(self._send_part(upload, number, memoryview(piece)))
            check_content(sha256, hasher.hexdigest(), entry.size_bytes, self.address.uri)
            self._complete(upload, parts)

    def find(self, key: str, what: str) -> BucketEntry | None:
        """Returns the entry of an object; None if it does not exist."""
        try:
            found = self._try(what, lambda: self._client.stat_object(self._name, key))
        except NotFound:
            return None
        return replace(entry_of(key, found), version_id=found.version_id or "")

    def entries(self, prefix: str, what: str) -> Iterator[BucketEntry]:
        """Lists the objects whose keys begin with a prefix, in the order of their keys."""
        listed: list[BucketEntry] = []

        def page(after: str | None) -> list[BucketEntry]:
            found = self._client.list_objects(self._name, prefix, recursive=True, start_after=after)
            # One page per attempt, so that a failure repeats only one request. `range` comes first in `zip`, because
            # otherwise `found` would request the next page.
            return [
                entry_of(cast(str, entry.object_name), entry)
                for _, entry in zip(range(PAGE_ENTRIES), found, strict=False)
            ]

        while listed := self._try(what, lambda: page(listed[-1].key if listed else None)):
            yield from listed

    def versions(self, prefix: str, what: str) -> list[BucketEntry]:
        """Returns all versions and deletion markers of the objects whose keys begin with a prefix, present ones last.

        Deleted in this order, an object exists until its last version is deleted, and no earlier version replaces it.
        """
        client = self._client
        listed = self._try(
            what, lambda: list(client.list_objects(self._name, prefix, recursive=True, include_version=True))
        )
        listed.sort(key=lambda found: found.is_latest == "true")
        return [
            replace(entry_of(cast(str, found.object_name), found), version_id=found.version_id or "")
            for found in listed
        ]

    def folders(self, prefix: str, what: str) -> list[str]:
        """Returns the names of the folders directly below a prefix, which ends with a slash."""
        listed = self._try(what, lambda: list(self._client.list_objects(self._name, prefix, recursive=False)))
        keys = (cast(str, entry.object_name) for entry in listed if entry.is_dir)
        return [key.removeprefix(prefix).rstrip("/") for key in keys]

    def grant_get(self, key: str, lifetime_seconds: float) -> UrlGrant:
        """Returns a URL that allows to read one object."""
        lifetime = timedelta(seconds=lifetime_seconds)
        return UrlGrant(self._client.get_presigned_url("GET", self._name, key, lifetime), {})

    def grant_put(self, key: str, sha256: str, size_bytes: int, lifetime_seconds: float) -> UrlGrant:
        """Returns a URL that allows to write one object if it does not exist, with this digest and size."""
        url = self._client.get_presigned_url("PUT", self._name, key, timedelta(seconds=lifetime_seconds))
        headers = {"content-length": str(size_bytes), "if-none-match": "*", STATED_DIGEST: base64_digest(sha256)}
        return UrlGrant(with_signed_headers(url, "PUT", headers, self.access.secret_key), headers)

    def delete(self, entry: BucketEntry, what: str) -> None:
        """Deletes an object, or its version in the entry.

        Never retried: a second attempt could delete an object that was put in between.
        """
        try:
            self._client.remove_object(self._name, entry.key, entry.version_id or None)
        except CLIENT_ERRORS as error:
            raise self._failure(error, what).error from error

    def abort_uploads(self, prefix: str, minimum_age_seconds: float) -> "UnfinishedUploads":
        """Aborts unfinished uploads that are at least this old; one that cannot be aborted is logged and stays."""
        what = "unfinished uploads"
        listed = self._try(what, lambda: self._client.list_uploads(self._name, prefix))
        oldest = self.now_seconds() - minimum_age_seconds
        old = [upload for upload in listed.uploads if seconds_of(upload.initiated_time) <= oldest]
        aborted = sum(self._abort(upload.object_name, upload.upload_id or "", what) for upload in old)
        return UnfinishedUploads(len(listed.uploads), aborted)

    def _put_parts(self, key: str, data: bytes, what: str) -> None:
        with self._uploading(key, len(data), what) as upload:
            self._complete(upload, self._send_parts(upload, data))

    @contextmanager
    def _uploading(self, key: str, size_bytes: int, what: str) -> Iterator[_Upload]:
        """Starts an upload in parts, which is aborted if the block fails."""
        upload_id = self._try(what, lambda: self._client.create_upload(self._name, key, dict(UPLOAD_HEADERS)))
        try:
            yield _Upload(key, upload_id, what, size_bytes, self.now_seconds())
        except BaseException:
            self._abort(key, upload_id, what)
            raise

    def _part_bytes(self, size_bytes: int) -> int:
        return max(self.part_bytes, -(-size_bytes // PARTS))

    def _send_parts(self, upload: _Upload, data: bytes) -> list[SentPart]:
        part_bytes = self._part_bytes(len(data))
        # Views, so that no part is copied.
        views = [memoryview(data)[begin : begin + part_bytes] for begin in range(0, len(data), part_bytes)]
        progress = _Transfer(upload.what, "storing", len(data))
        parts: list[SentPart] = []
        with ThreadPoolExecutor(TRANSFERS, thread_name_prefix="upload") as pool:
            # Results come in order; the first failure cancels the parts that have not started.
            for part in pool.map(partial(self._send_part, upload), range(1, len(views) + 1), views):
                parts.append(part)
                progress.report(min(len(parts) * part_bytes, len(data)))
        return parts

    def _send_part(self, upload: _Upload, number: int, view: memoryview) -> SentPart:
        body = cast(bytes, view)
        sha256 = digest(body)
        etag = self._try(
            upload.what,
            lambda: self._client.upload_part(
                self._name, upload.key, upload.upload_id, number, body, checksum_headers(sha256)
            ),
        )
        return SentPart(number, etag, sha256)

    def _complete(self, upload: _Upload, parts: list[SentPart]) -> None:
        attempts, failure = Attempts(), None
        try:
            self._try(
                upload.what,
                lambda: self._client.complete_upload(self._name, upload.key, upload.upload_id, parts_list(parts)),
                attempts,
            )
        except PodraceError as error:
            # If the reply of a successful attempt was lost, the server no longer knows the upload.
            if not attempts.uncertain:
                raise
            failure = error
        if not upload.produced(self.find(upload.key, upload.what)):
            line = f"{upload.what} in {self.address.uri}: the server did not join the uploaded parts"
            raise failure or Unavailable(line)

    def _abort(self, key: str, upload_id: str, what: str) -> bool:
        """Aborts an upload; returns whether it was aborted."""
        try:
            self._client.abort_upload(self._name, key, upload_id)
        except CLIENT_ERRORS as error:
            # It only takes space until `remove_abandoned` aborts it.
            _log.warning("an unfinished upload was left behind", error=self._failure(error, what).error.message)
            return False
        return True

    def _read(self, key: str, what: str, largest_bytes: int | None = None) -> tuple[Arrival, str]:
        response = self._client.get_object(self._name, key)
        try:
            size_bytes = int(response.headers.get("Content-Length", ""))
            check_size(what, size_bytes, largest_bytes)
            if size_bytes < OVERLAPPED_BYTES:
                data = response.read()  # saves a copy
                arrival = Arrival(data, digest(data))
            else:
                arrival = receive(size_bytes, response.readinto, _Transfer(what, "reading", size_bytes).report)
            return arrival, response.headers.get("ETag", "").strip('"')
        finally:
            response.close()
            response.release_conn()

    def _holds(self, key: str, data: bytes, what: str) -> bool:
        try:
            return self.get(key, what)[0].data == data
        except NotFound:
            return False

    def _try(self, what: str, call: Callable[[], Result], attempts: Attempts | None = None) -> Result:
        return retried(self.retries, call, lambda error: self._failure(error, what), attempts)

    def _failure(self, error: Exception, what: str) -> Failure:
        failure = failure_of(error, self.address, what, self.access.found_in)
        return failure.of_usable_store() if self.usable else failure


@dataclass
class _Transfer:
    """Logs the progress of a long transfer."""

    what: str
    verb: str
    total_bytes: int
    next_seconds: float = field(default_factory=lambda: time.monotonic() + PROGRESS_SECONDS)

    def report(self, done_bytes: int) -> None:
        if time.monotonic() >= self.next_seconds:
            self.next_seconds = time.monotonic() + PROGRESS_SECONDS
            _log.info(f"{self.verb} {self.what}", done_bytes=done_bytes, total_bytes=self.total_bytes)

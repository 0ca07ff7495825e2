"""Owns every request to the server: one bucket's objects by key, tried again where a failure may pass by itself."""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TypeVar, cast
from xml.etree import ElementTree

import structlog
from minio.datatypes import Object
from minio.error import S3Error
from minio.helpers import DictType

from podrace.checkpoint_store.arrival import OVERLAPPED_BYTES, Arrival, receive
from podrace.checkpoint_store.minio_address import Access, Address
from podrace.checkpoint_store.minio_connection import PARTED, TRANSFERS, SentPart, checked, connect, parts_list
from podrace.checkpoint_store.minio_errors import CLIENT_ERRORS, Failure, failure_of
from podrace.digests import digest
from podrace.errors import Aborted, NotFound, PodraceError, Unavailable

_log = structlog.get_logger(__name__)
Result = TypeVar("Result")

PART_BYTES = 16 * 2**20
"""Larger objects are sent in parts of this size, each tried again alone; S3 wants 5 MiB at least."""
PARTS = 10_000
"""What S3 takes of one object; of the largest, the parts are larger."""
PAGE_ENTRIES = 1000
"""What a server lists at once."""
CLOCK_SECONDS = 5.0
"""The server's clock is known to the second, and an upload may count as begun a moment before it was answered."""
PROGRESS_SECONDS = 5.0
"""What takes longer says so about this often."""


@dataclass(frozen=True)
class Patience:
    """How long a failure that may pass is met with another try, and how time is told."""

    deadline_seconds: float
    """No try begins after it."""
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 5.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = random.uniform
    """Draws each pause between half of it and all of it, so that many pods do not come back at once."""

    def pause_seconds(self, failures: int) -> float:
        """The pause after so many failures: doubled each time, up to the longest."""
        longest = min(self.first_pause_seconds * 2.0 ** min(failures - 1, 30), self.longest_pause_seconds)
        return self.uniform(longest / 2, longest)


@dataclass(frozen=True)
class Entry:
    """An object as the server knows it."""

    key: str
    size_bytes: int
    modified_seconds: float
    """When it was last put, by the server's clock, in seconds since the epoch."""
    version_id: str = ""
    """Which version of the object this is, where the bucket keeps several."""
    etag: str = ""
    """Changes with the content."""


@dataclass
class _Attempts:
    """What became of the tries of one call so far."""

    failures: int = 0
    uncertain: bool = False
    """Whether one of them may have been carried out although it failed."""


@dataclass(frozen=True)
class _Upload:
    """An object on its way in parts."""

    key: str
    upload_id: str
    what: str
    size_bytes: int
    begun_seconds: float
    """By the server's clock."""

    def made(self, entry: Entry | None) -> bool:
        """Whether that is what became of it, and not an equal object of earlier, which may be about to be collected."""
        old_seconds = self.begun_seconds - CLOCK_SECONDS
        return entry is not None and entry.size_bytes == self.size_bytes and entry.modified_seconds >= old_seconds


@dataclass
class Bucket:
    """The objects of one bucket. Errors are those of podrace.errors; whatever else the client raises is translated."""

    address: Address
    access: Access
    patience: Patience
    part_bytes: int = PART_BYTES

    def __post_init__(self) -> None:
        self._client, self._connections = connect(self.address, self.access)
        self._name = self.address.bucket

    @property
    def skew_seconds(self) -> float:
        """How far the server's clock is ahead of ours, as its latest answer told."""
        return self._connections.skew_seconds

    def now_seconds(self) -> float:
        """The server's clock, by which its objects grow old."""
        return time.time() + self.skew_seconds

    def create(self) -> bool:
        """Makes the bucket unless it is there; returns whether it was made."""
        what = f"bucket {self._name}"
        if self._try(what, lambda: self._client.bucket_exists(self._name)):
            return False
        self._try(what, lambda: self._client.make_bucket(self._name))
        return True

    def put(self, key: str, data: bytes, sha256: str, what: str) -> None:
        """Stores an object of a known digest, whatever was there.

        A large one goes in parts, of which none stay behind if it fails.
        """
        if len(data) > self.part_bytes:
            self._put_parts(key, data, what)
        else:
            progress = _Progress(what, "storing", len(data))
            self._try(what, lambda: self._client._put_object(self._name, key, data, checked(sha256)))
            progress.tell(len(data))

    def put_if(self, key: str, data: bytes, etag: str | None, what: str) -> None:
        """Stores an object if the present one has this tag; None: if there is none.

        Raises:
            Aborted: There is another one. If a reply was lost, and what is there now is just what was to be stored,
                that is success.
        """
        condition = {"If-None-Match": "*"} if etag is None else {"If-Match": f'"{etag}"'}
        sha256, attempts = digest(data), _Attempts()
        try:
            self._try(
                what, lambda: self._client._put_object(self._name, key, data, checked(sha256) | condition), attempts
            )
        except (Aborted, NotFound) as error:
            if attempts.uncertain and self._holds(key, data, what):
                return
            raise Aborted(f"{what} in {self.address.uri} was changed by somebody else; read it again") from error

    def get(self, key: str, what: str) -> tuple[Arrival, str]:
        """Returns an object and its tag, whatever its digest; raises NotFound."""
        return self._try(what, lambda: self._read(key, what))

    def get_piece(self, entry: Entry, begin: int, size_bytes: int, what: str) -> bytes:
        """Returns some bytes of an object that has not been put anew; raises Aborted if it has, NotFound."""

        def read() -> bytes:
            condition: DictType = {"If-Match": f'"{entry.etag}"'}
            response = self._client.get_object(self._name, entry.key, begin, size_bytes, request_headers=condition)
            try:
                return response.read()
            finally:
                response.close()
                response.release_conn()

        return self._try(what, read)

    def find(self, key: str, what: str) -> Entry | None:
        """Looks at an object; None if there is none."""
        try:
            found = self._try(what, lambda: self._client.stat_object(self._name, key))
        except NotFound:
            return None
        return replace(_entry(key, found), version_id=found.version_id or "")

    def entries(self, prefix: str, what: str) -> Iterator[Entry]:
        """Lists the objects whose keys begin with a prefix, in the order of their keys."""
        listed: list[Entry] = []

        def page(after: str | None) -> list[Entry]:
            found = self._client.list_objects(self._name, prefix, recursive=True, start_after=after)
            # A page a call, so that a failure costs no more; `range` comes first, or `found` would ask for the next.
            return [
                _entry(cast(str, entry.object_name), entry)
                for _, entry in zip(range(PAGE_ENTRIES), found, strict=False)
            ]

        while listed := self._try(what, lambda: page(listed[-1].key if listed else None)):
            yield from listed

    def delete(self, entry: Entry, what: str) -> None:
        """Deletes an object, or that version of it. Tried once: a second try could meet what was put in between."""
        try:
            self._client.remove_object(self._name, entry.key, entry.version_id or None)
        except CLIENT_ERRORS as error:
            raise self._failure(error, what).error from error

    def abort_uploads(self, prefix: str, minimum_age_seconds: float) -> int:
        """Gives up uploads in parts that were begun so long ago; returns how many there were."""
        what = "unfinished uploads"
        listed = self._try(what, lambda: self._client._list_multipart_uploads(self._name, prefix=prefix))
        oldest = self.now_seconds() - minimum_age_seconds
        old = [upload for upload in listed.uploads if _seconds(upload.initiated_time) <= oldest]
        for upload in old:
            self._abort(upload.object_name, upload.upload_id or "", what)
        return len(old)

    def _put_parts(self, key: str, data: bytes, what: str) -> None:
        upload_id = self._try(what, lambda: self._client._create_multipart_upload(self._name, key, dict(PARTED)))
        upload = _Upload(key, upload_id, what, len(data), self.now_seconds())
        try:
            self._complete(upload, self._send_parts(upload, data))
        except BaseException:
            self._abort(key, upload_id, what)
            raise

    def _send_parts(self, upload: "_Upload", data: bytes) -> list[SentPart]:
        part_bytes = max(self.part_bytes, -(-len(data) // PARTS))
        # Views: no part is copied.
        views = [memoryview(data)[begin : begin + part_bytes] for begin in range(0, len(data), part_bytes)]
        progress = _Progress(upload.what, "storing", len(data))
        parts: list[SentPart] = []
        with ThreadPoolExecutor(TRANSFERS, thread_name_prefix="upload") as pool:
            # In their order; the first that fails cancels those that have not begun.
            for part in pool.map(partial(self._send_part, upload), range(1, len(views) + 1), views):
                parts.append(part)
                progress.tell(min(len(parts) * part_bytes, len(data)))
        return parts

    def _send_part(self, upload: "_Upload", number: int, view: memoryview) -> SentPart:
        body = cast(bytes, view)
        where = self._name, upload.key
        sha256 = digest(body)
        etag = self._try(
            upload.what, lambda: self._client._upload_part(*where, body, checked(sha256), upload.upload_id, number)
        )
        return SentPart(number, etag, sha256)

    def _complete(self, upload: "_Upload", parts: list[SentPart]) -> None:
        attempts, failure = _Attempts(), None
        try:
            self._try(upload.what, lambda: self._put_together(upload, parts), attempts)
        except PodraceError as error:
            # After a reply that was lost, the server may know no such upload, for it is complete.
            if not attempts.uncertain:
                raise
            failure = error
        if not upload.made(self.find(upload.key, upload.what)):
            line = f"{upload.what} in {self.address.uri}: the server did not put its parts together"
            raise failure or Unavailable(line)

    def _put_together(self, upload: "_Upload", parts: list[SentPart]) -> None:
        headers: DictType = {"Content-Type": "application/xml"}
        query: DictType = {"uploadId": upload.upload_id}
        answer = self._client._execute("POST", self._name, upload.key, parts_list(parts), headers, query)
        # The answer begins before the work is done, with 200 whatever comes of it.
        if ElementTree.fromstring(answer.data).tag.rpartition("}")[2] == "Error":
            raise S3Error.fromxml(answer)

    def _abort(self, key: str, upload_id: str, what: str) -> None:
        try:
            self._client._abort_multipart_upload(self._name, key, upload_id)
        except CLIENT_ERRORS as error:
            # It costs room until the next start an hour later, no more.
            _log.warning("an unfinished upload was left behind", error=self._failure(error, what).error.message)

    def _read(self, key: str, what: str) -> tuple[Arrival, str]:
        response = self._client.get_object(self._name, key)
        try:
            size_bytes = int(response.headers.get("Content-Length", ""))
            if size_bytes < OVERLAPPED_BYTES:
                data = response.read()  # a copy less
                arrival = Arrival(data, digest(data))
            else:
                arrival = receive(size_bytes, response.readinto, _Progress(what, "reading", size_bytes).tell)
            return arrival, response.headers.get("ETag", "").strip('"')
        finally:
            response.close()
            response.release_conn()

    def _holds(self, key: str, data: bytes, what: str) -> bool:
        try:
            return self.get(key, what)[0].data == data
        except NotFound:
            return False

    def _try(self, what: str, call: Callable[[], Result], attempts: _Attempts | None = None) -> Result:
        attempts = attempts or _Attempts()
        give_up = self.patience.clock() + self.patience.deadline_seconds
        while True:
            try:
                return call()
            except CLIENT_ERRORS as error:
                failure = self._failure(error, what)
                attempts.failures += 1
                pause = self.patience.pause_seconds(attempts.failures)
                if not failure.transient:
                    raise failure.error from error
                attempts.uncertain = True
                if self.patience.clock() + pause > give_up:
                    raise self._given_up(failure, attempts.failures) from error
            if attempts.failures == 1:
                _log.warning("the checkpoint store fails; trying again", error=failure.error.message)
            self.patience.sleep(pause)

    def _given_up(self, failure: Failure, tries: int) -> PodraceError:
        if not isinstance(failure.error, Unavailable) or tries == 1:
            return failure.error
        return Unavailable(f"{failure.error.message} ({tries} tries in {self.patience.deadline_seconds:g} s)")

    def _failure(self, error: Exception, what: str) -> Failure:
        return failure_of(error, self.address, what, self.access.found_in)


@dataclass
class _Progress:
    """Tells about a transfer that takes its time."""

    what: str
    verb: str
    total_bytes: int
    next_seconds: float = field(default_factory=lambda: time.monotonic() + PROGRESS_SECONDS)

    def tell(self, done_bytes: int) -> None:
        if time.monotonic() >= self.next_seconds:
            self.next_seconds = time.monotonic() + PROGRESS_SECONDS
            _log.info(f"{self.verb} {self.what}", done_bytes=done_bytes, total_bytes=self.total_bytes)


def _entry(key: str, found: Object) -> Entry:
    etag = (found.etag or "").strip('"')
    return Entry(key, found.size or 0, _seconds(found.last_modified), etag=etag)


def _seconds(moment: datetime | None) -> float:
    # An object without a time would be taken for very old, so it is taken for new.
    return moment.timestamp() if moment else time.time()

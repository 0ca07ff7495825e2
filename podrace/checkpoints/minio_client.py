"""Owns every call to the `minio` package: one bucket's objects by key, tried again where a failure may pass by itself.

The package is asked for requests by its private verbs. Its public `put_object` takes a condition given as metadata for
a note of the user's, stores it beside the object and overwrites; from `_put_object` the header reaches the server.
"""

import base64
import io
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar, cast

import certifi
import structlog
import urllib3
from minio import Minio, __version__
from minio.datatypes import Part
from minio.helpers import DictType
from urllib3.util import Timeout

from podrace.checkpoints.minio_address import Access, Address
from podrace.checkpoints.minio_errors import CLIENT_ERRORS, Failure, failure_of, server_seconds
from podrace.checkpoints.store import digest
from podrace.errors import Aborted, InvalidArgument, NotFound, PodraceError, Unavailable, Unimplemented

_log = structlog.get_logger(__name__)
Result = TypeVar("Result")

PRIVATE_VERBS = (
    "_put_object",
    "_create_multipart_upload",
    "_upload_part",
    "_complete_multipart_upload",
    "_abort_multipart_upload",
    "_list_multipart_uploads",
)
VERSIONS = "minio>=7.2.20,<8"
"""The releases that have them."""
PART_BYTES = 64 * 2**20
"""Larger objects are sent in parts of this size, each tried again alone; S3 wants 5 MiB at least."""
READ_BYTES = 2**20
PAGE_ENTRIES = 1000
"""What a server lists at once."""
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
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


@dataclass
class _Attempts:
    """What became of the tries of one call so far."""

    failures: int = 0
    uncertain: bool = False
    """Whether one of them may have been carried out although it failed."""


class _Pool(urllib3.PoolManager):
    """Connections that notice what the server's clock shows."""

    skew_seconds = 0.0
    """The server's clock less ours."""

    def urlopen(  # type: ignore[override]  # as in PoolManager, which differs from its own base
        self, method: str, url: str, redirect: bool = True, **arguments: Any
    ) -> urllib3.BaseHTTPResponse:
        response = super().urlopen(method, url, redirect, **arguments)
        seconds = server_seconds(response.headers)
        if seconds is not None:
            self.skew_seconds = seconds - time.time()
        return response


@dataclass
class Bucket:
    """The objects of one bucket. Errors are those of podrace.errors; whatever else the client raises is translated."""

    address: Address
    access: Access
    patience: Patience
    part_bytes: int = PART_BYTES

    def __post_init__(self) -> None:
        missing = [verb for verb in PRIVATE_VERBS if not hasattr(Minio, verb)]
        if missing:
            raise Unimplemented(
                f"minio {__version__} has no {missing[0]}, without which a pointer cannot be written on a condition;"
                f" install '{VERSIONS}'"
            )
        secure = self.address.secure
        # Not without need: certificates take as long to load as a checkpoint to be stored.
        verified: dict[str, Any] = {"ca_certs": self.access.ca_file or certifi.where()} if secure else {}
        # Tries are counted in this class, not in the pool, which would repeat a conditional write and not tell.
        timeout = Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        self._pool = _Pool(retries=False, timeout=timeout, **verified)
        try:
            self._client = Minio(
                self.address.endpoint,
                self.access.access_key,
                self.access.secret_key,
                self.access.session_token or None,
                secure=secure,
                region=self.access.region or None,
                http_client=self._pool,
            )
        except ValueError as error:  # a region of odd characters, say
            raise InvalidArgument(f"checkpoint store {self.address.uri}: {error}") from None
        self._name = self.address.bucket

    @property
    def skew_seconds(self) -> float:
        """How far the server's clock is ahead of ours, as its latest answer told."""
        return self._pool.skew_seconds

    def now_seconds(self) -> float:
        """The server's clock, by which its objects grow old."""
        return time.time() + self.skew_seconds

    def put(self, key: str, data: bytes, sha256: str, what: str) -> None:
        """Stores an object of a known digest, whatever was there.

        A large one goes in parts, of which none stay behind if it fails.
        """
        if len(data) > self.part_bytes:
            self._put_parts(key, data, what)
        else:
            progress = _Progress(what, "storing", len(data))
            self._try(what, lambda: self._client._put_object(self._name, key, data, _checked(sha256)))
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
            # A fresh dictionary each time: the client adds its signature to the one it is given.
            self._try(
                what, lambda: self._client._put_object(self._name, key, data, _checked(sha256) | condition), attempts
            )
        except (Aborted, NotFound) as error:
            if attempts.uncertain and self._holds(key, data, what):
                return
            raise Aborted(f"{what} in {self.address.uri} was changed by somebody else; read it again") from error

    def get(self, key: str, what: str) -> tuple[bytes, str]:
        """Returns an object and its tag; raises NotFound."""
        return self._try(what, lambda: self._read(key, what))

    def find(self, key: str, what: str) -> Entry | None:
        """Looks at an object; None if there is none."""
        try:
            found = self._try(what, lambda: self._client.stat_object(self._name, key))
        except NotFound:
            return None
        return Entry(key, found.size or 0, _seconds(found.last_modified), found.version_id or "")

    def entries(self, prefix: str, what: str) -> Iterator[Entry]:
        """Lists the objects whose keys begin with a prefix, in the order of their keys."""
        listed: list[Entry] = []

        def page(after: str | None) -> list[Entry]:
            found = self._client.list_objects(self._name, prefix, recursive=True, start_after=after)
            # A page a call, so that a failure costs no more; `range` comes first, or `found` would ask for the next.
            return [
                Entry(cast(str, entry.object_name), entry.size or 0, _seconds(entry.last_modified))
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
        upload_id = self._try(what, lambda: self._client._create_multipart_upload(self._name, key, {}))
        progress = _Progress(what, "storing", len(data))
        try:
            parts = []
            for number, begin in enumerate(range(0, len(data), self.part_bytes), start=1):
                # A view: no part is copied.
                view = cast(bytes, memoryview(data)[begin : begin + self.part_bytes])
                etag = self._try(what, lambda: self._upload(key, view, upload_id, number))  # noqa: B023
                parts.append(Part(number, etag))
                progress.tell(begin + len(view))
            self._complete(key, data, upload_id, parts, what)
        except BaseException:
            self._abort(key, upload_id, what)
            raise

    def _upload(self, key: str, part: bytes, upload_id: str, number: int) -> str:
        return self._client._upload_part(self._name, key, part, None, upload_id, number)

    def _complete(self, key: str, data: bytes, upload_id: str, parts: "list[Part]", what: str) -> None:
        attempts, failure = _Attempts(), None
        try:
            self._try(
                what, lambda: self._client._complete_multipart_upload(self._name, key, upload_id, parts), attempts
            )
        except PodraceError as error:
            # After a reply that was lost, the server may know no such upload, for it is complete.
            if not attempts.uncertain:
                raise
            failure = error
        # It may also have answered 200 and an error, which the client does not see.
        entry = self.find(key, what)
        if entry is None or entry.size_bytes != len(data):
            raise failure or Unavailable(f"{what} in {self.address.uri}: the server did not put its parts together")

    def _abort(self, key: str, upload_id: str, what: str) -> None:
        try:
            self._client._abort_multipart_upload(self._name, key, upload_id)
        except CLIENT_ERRORS as error:
            # It costs room until the next start an hour later, no more.
            _log.warning("an unfinished upload was left behind", error=self._failure(error, what).error.message)

    def _read(self, key: str, what: str) -> tuple[bytes, str]:
        response = self._client.get_object(self._name, key)
        try:
            length = int(response.headers.get("Content-Length") or 0)
            progress = _Progress(what, "reading", length)
            content = self._stream(response, progress) if length > self.part_bytes else response.read()
            progress.tell(len(content))
            return content, response.headers.get("ETag", "").strip('"')
        finally:
            response.close()
            response.release_conn()

    def _stream(self, response: urllib3.BaseHTTPResponse, progress: "_Progress") -> bytes:
        # BytesIO hands its content over without a copy, so that the object is in memory once.
        content = io.BytesIO()
        for chunk in response.stream(READ_BYTES):
            content.write(chunk)
            progress.tell(content.tell())
        return content.getvalue()

    def _holds(self, key: str, data: bytes, what: str) -> bool:
        try:
            return self.get(key, what)[0] == data
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
        if not isinstance(failure.error, Unavailable):
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


def _checked(sha256: str) -> DictType:
    # The client's signature covers the same digest, but not every server compares it. One stored an empty object for a
    # writer that was killed between headers and body, over the pointer that was there.
    return {"x-amz-checksum-sha256": base64.b64encode(bytes.fromhex(sha256)).decode()}


def _seconds(moment: datetime | None) -> float:
    # An object without a time would be taken for very old, so it is taken for new.
    return moment.timestamp() if moment else time.time()

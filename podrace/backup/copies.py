"""Stores copies of a database as checkpoints of a store, and reads them back.

A backup is a manifest. Its parts are pieces of the file, compressed, and one part with facts about it. A piece that did
not change since the backup before is stored again only once per CHECK_SECONDS, which repairs it if it is damaged, or if
it is missing. The pointers of a service are:

    podrace-backup-NAME-SERVICE-a0          the newest backup and the one before; its epoch fences writers
    podrace-backup-NAME-SERVICE-a1 ...      one backup for each past hour
    podrace-backup-NAME-SERVICE-a1001 ...   backups that a person asked for, REQUESTED_DAYS long

A service claims the next epoch before its first backup. One that runs with an older epoch cannot replace the backups of
its successor. The garbage collector keeps what these pointers name, as it does for agents.
"""

import itertools
import json
import os
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from podrace.backup.config import MOST_HOURS
from podrace.backup.replaced_files import move_aside
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part, Pointer
from podrace.checkpoint_store.publish import STALE_EPOCH, claim, publish, read_manifest, read_part
from podrace.checkpoint_store.store import BACKUP_PREFIX, CheckpointStore
from podrace.database.identity import Identity, check_file, mark_restored
from podrace.digests import digest as sha256_of
from podrace.errors import Aborted, DataLoss, FailedPrecondition, NotFound, PermissionDenied
from podrace.leaderboard.v1.leaderboard_pb2 import DatabaseBackup
from podrace.specification.ancestor import tournament_of

FACTS = "facts"
PIECE_BYTES = 4 << 20
HOUR_SECONDS = 3600
FIRST_REQUESTED = MOST_HOURS + 1
CHECK_SECONDS = 3600
"""Each piece is stored again in each period of this length, even if it did not change."""
REQUESTED_DAYS = 30
"""Backups that a person asked for are kept for at least this long."""


@dataclass(frozen=True)
class Backup:
    """What is known about one backup."""

    manifest_digest: str
    service: str
    database_id: str
    """Which database it is a copy of."""
    time: float
    """When the copy began, seconds since 1970."""
    epoch: int
    """Epoch of the service that wrote it."""
    size_bytes: int
    """Size of the database file."""


def refuse_outdated(path: Path, own_epoch: int, claimed: int, *, exist: bool) -> None:
    """Raises FailedPrecondition (STALE_EPOCH) if a file is out of date. Pure.

    Args:
        path: The file of a database.
        own_epoch: The epoch that the file records.
        claimed: The epoch that was claimed last in the store.
        exist: Whether the store has backups; without any, no service can have been restored.
    """
    if exist and claimed > own_epoch:
        raise FailedPrecondition(
            f"database {path}: is out of date: another service was restored from its backup (epoch {claimed}, this"
            f" file has {own_epoch}); move the file away to start from the newest backup, or run `podrace restore"
            " --replace`",
            reason=STALE_EPOCH,
        )


def check_due(piece_digest: str, before: float, now: float) -> bool:
    """Returns whether a period of a piece ended between two backups, so that it must be stored again. Pure.

    Args:
        piece_digest: Digest of the piece. The periods of pieces end at different times, which spreads the work.
        before: When the backup before was made, seconds since 1970.
        now: When this one is made.
    """
    offset = int(piece_digest[:8], 16) / 2**32 * CHECK_SECONDS
    return (before + offset) // CHECK_SECONDS != (now + offset) // CHECK_SECONDS


def place_of(name: str, service: str) -> str:
    """Returns the folder of the backups of a service, with which the ids of their pointers begin."""
    return f"{BACKUP_PREFIX}{name}-{service}"


class Backups:
    """The backups of the database of one service.

    backups = Backups(store, "main", "orchestrator")
    epoch = backups.epoch() + 1
    backups.claim(epoch)
    backups.write(copy, epoch, database_id, now, hours=24)
    ...
    restored = backups.restore(path)
    """

    def __init__(self, store: CheckpointStore, name: str, service: str) -> None:
        """Names the backups of one service in a store; `name` distinguishes meshes that share the store."""
        self._place, self._service = place_of(name, service), service
        self._store = store.within(self._place)

    def epoch(self) -> int:
        """Returns the epoch that was claimed last; 0: none."""
        found = self._store.read_pointer(self._pointer(0))
        return found[0].lease_epoch if found else 0

    def claim(self, epoch: int) -> None:
        """Makes an epoch the only one that can write; raises FailedPrecondition (STALE_EPOCH) if a higher one has."""
        claim(self._store, self._pointer(0), epoch)

    def next_epoch(self, path: Path, identity: Identity, newest: Backup | None) -> int:
        """Returns the epoch to claim for backups of a file.

        Args:
            path: The file.
            identity: What identifies the database in it.
            newest: The newest backup that can be read.

        Raises:
            FailedPrecondition: The file is out of date (STALE_EPOCH), or the backups are those of another database.
        """
        if newest:
            self.refuse_another(newest, identity.database_id)
        exist, claimed = bool(self._newest_two()), self.epoch()
        refuse_outdated(path, identity.backup_epoch, claimed, exist=exist)
        # Backups may alternate between stores, whose epochs differ, but the file records one.
        return max(claimed + 1, identity.backup_epoch)

    def newest(self) -> Backup | None:
        """Returns the newest backup whose manifest can be read; None if there is none."""
        found = self._newest()
        return found[0] if found else None

    def list(self) -> list[Backup]:
        """Returns all backups that can be read, newest first."""
        digests: dict[str, None] = {}
        for slot in self._slots():
            found = self._store.read_pointer(self._pointer(slot))
            if found:
                digests |= dict.fromkeys((found[0].manifest_digest, found[0].previous_manifest_digest))
        backups = []
        for manifest_digest in filter(None, digests):
            with suppress(DataLoss, NotFound):
                backups.append(self._read(manifest_digest)[0])
        return sorted(backups, key=lambda backup: -backup.time)

    def write(
        self, copy: Path, epoch: int, database_id: str, now: float, *, hours: int, requested: bool = False
    ) -> Backup:
        """Stores a copy of the database as the newest backup.

        Args:
            copy: The copy.
            epoch: Epoch that was claimed.
            database_id: Which database it is.
            now: Seconds since 1970.
            hours: Number of past hours of which one backup is kept.
            requested: Whether a person asked for it; then all pieces are stored again, and it is kept for
                REQUESTED_DAYS.

        Raises:
            FailedPrecondition: A later epoch has been claimed (STALE_EPOCH), or the newest backup is one of another
                database.
            ResourceExhausted: The store is full.
        """
        found = self._store.read_pointer(self._pointer(0))
        pointer = found[0] if found else Pointer()
        if pointer.lease_epoch > epoch:
            raise FailedPrecondition(
                f"backup of the {self._service}: another one has started since, with epoch {pointer.lease_epoch}, and"
                f" makes the backups; this one has epoch {epoch}; stop it",
                reason=STALE_EPOCH,
            )
        known: Collection[str] = ()
        if newest := self._newest():
            self.refuse_another(newest[0], database_id)
            known = () if requested else self._intact(newest[0].time, newest[1], now)
        pieces = [self._piece(number, data, known) for number, data in enumerate(_pieces(copy))]
        facts = {"service": self._service, "database_id": database_id, "time": now, "size_bytes": copy.stat().st_size}
        manifest = Manifest(tournament_id=self._place)
        manifest.publish_time.FromMilliseconds(int(now * 1000))
        parts = {FACTS: json.dumps(facts).encode()}
        digest = publish(self._store, self._pointer(0), epoch, parts, manifest, stored=pieces)
        if hours:
            self._keep(1 + int(now // HOUR_SECONDS) % hours, digest, epoch, now)
        if requested:
            self._keep_requested(digest, epoch, now)
        elif not newest or newest[0].time // HOUR_SECONDS != now // HOUR_SECONDS:
            self._delete_hours_after(hours)
        return self._read(digest)[0]

    def restore(self, path: Path, manifest_digest: str = "", *, replace: bool = False) -> Backup | None:
        """Writes a backup to a file, which exists only if it is complete, and takes over from its service.

        The file gets a higher epoch, so the service that made the backup can make no more.

        Args:
            path: The file. Logs of an earlier file that are left there are moved aside.
            manifest_digest: Which backup; empty: the newest that can be read.
            replace: Whether a file that exists is moved aside (podrace.backup.replaced_files), once the backup has been
                read; otherwise it must not exist.

        Returns:
            The backup; None if there is none.

        Raises:
            DataLoss: No backup can be read.
            FailedPrecondition: The file exists or cannot be written, or a service has claimed an epoch meanwhile.
        """
        if path.exists() and not replace:
            raise FailedPrecondition(f"database {path}: exists; move it away first")
        failure: DataLoss | NotFound | None = None
        for digest in [manifest_digest] if manifest_digest else self._newest_two():
            try:
                return self._write_file(digest, path)
            except (DataLoss, NotFound) as error:
                failure = failure or error
        if failure:
            raise DataLoss(
                f"backup of the {self._service}: {failure.message}; restore an older one (podrace restore --at)"
            )
        return None

    def _write_file(self, digest: str, path: Path) -> Backup:
        backup, manifest = self._read(digest)
        unfinished = path.with_name(f"{path.name}.restoring")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(unfinished, "wb", opener=_private) as file:
                for part in sorted(manifest.parts, key=lambda part: part.name):
                    if part.name != FACTS:
                        file.write(zlib.decompress(read_part(self._store, part)))
                file.flush()
                os.fsync(file.fileno())
            if unfinished.stat().st_size != backup.size_bytes:
                raise DataLoss(f"backup {digest}: {unfinished.stat().st_size} of {backup.size_bytes} bytes")
            check_file(unfinished, backup.database_id)
            # The claimed epoch is the recorded one, so two restorations of one backup get different ones. It is not the
            # next one: a service may have recorded that in its file, but could not claim it.
            self.claim(mark_restored(unfinished, self.epoch() + 2))
            move_aside(path)
            unfinished.rename(path)
        except OSError as error:
            raise FailedPrecondition(f"database {path}: cannot be written: {error.strerror}") from None
        finally:
            unfinished.unlink(missing_ok=True)
        return backup

    def _keep(self, slot: int, digest: str, epoch: int, now: float) -> None:
        """Keeps a backup for its hour, unless one of the same hour is kept."""
        pointer_id = self._pointer(slot)
        found = self._store.read_pointer(pointer_id)
        if found and found[0].manifest_digest:
            with suppress(DataLoss, NotFound):
                if int(self._read(found[0].manifest_digest)[0].time // HOUR_SECONDS) == int(now // HOUR_SECONDS):
                    return
        kept = Pointer(agent_id=pointer_id, lease_epoch=epoch, manifest_digest=digest)
        with suppress(Aborted):
            self._store.swap_pointer(pointer_id, kept, found[1] if found else None)

    def _delete_hours_after(self, hours: int) -> None:
        """Deletes the backups of past hours that are no longer replaced, because `backup.hours` was larger once."""
        for slot in self._slots():
            if hours < slot < FIRST_REQUESTED:
                self._store.delete_pointer(self._pointer(slot))

    def _keep_requested(self, digest: str, epoch: int, now: float) -> None:
        """Keeps a backup that a person asked for, and no longer those that are too old or cannot be read."""
        earlier = [slot for slot in self._slots() if slot >= FIRST_REQUESTED]
        for slot in itertools.count(max(earlier, default=FIRST_REQUESTED - 1) + 1):
            pointer = Pointer(agent_id=self._pointer(slot), lease_epoch=epoch, manifest_digest=digest)
            with suppress(Aborted):
                self._store.swap_pointer(pointer.agent_id, pointer, None)
                break
        for slot in earlier:
            found = self._store.read_pointer(self._pointer(slot))
            with suppress(DataLoss, NotFound):
                if found and self._read(found[0].manifest_digest)[0].time > now - REQUESTED_DAYS * 24 * HOUR_SECONDS:
                    continue
            self._store.delete_pointer(self._pointer(slot))

    def refuse_another(self, newest: Backup, database_id: str) -> None:
        """Raises FailedPrecondition if a backup is one of another database."""
        if newest.database_id != database_id:
            raise FailedPrecondition(
                f"backup of the {self._service}: {self._store.uri} has backups of another database; restore the newest"
                " one (`podrace restore`), or set another backup.name"
            )

    def _intact(self, before: float, manifest: Manifest, now: float) -> Collection[str]:
        """Returns the pieces of the backup before that need not be stored again: present, complete and not due."""
        sizes = {part.digest: part.size_bytes for part in manifest.parts if not check_due(part.digest, before, now)}
        # An orchestrator without credentials may not list objects: it finds missing pieces when they are due.
        with suppress(PermissionDenied):
            listed = {each.digest: each.size_bytes for each in self._store.list_objects()}
            return {digest for digest, size_bytes in sizes.items() if listed.get(digest) == size_bytes}
        return sizes

    def _piece(self, number: int, data: bytes, known: Collection[str]) -> Part:
        compressed = zlib.compress(data, 1)
        part = Part(name=f"{number:08d}", digest=sha256_of(compressed), size_bytes=len(compressed))
        if part.digest not in known:
            self._store.put_object(compressed, part.digest)
        return part

    def _newest_two(self) -> Sequence[str]:
        """Returns the digests of the newest backup and the one before."""
        found = self._store.read_pointer(self._pointer(0))
        digests = (found[0].manifest_digest, found[0].previous_manifest_digest) if found else ()
        return [digest for digest in digests if digest]

    def _newest(self) -> tuple[Backup, Manifest] | None:
        """Returns the newest backup that can be read: a damaged one must not prevent that further ones are made."""
        newest_two = self._newest_two()
        for digest in newest_two:
            with suppress(DataLoss, NotFound):
                return self._read(digest)
        older = self.list() if newest_two else []
        return self._read(older[0].manifest_digest) if older else None

    def _read(self, manifest_digest: str) -> tuple[Backup, Manifest]:
        manifest = read_manifest(self._store, manifest_digest)
        part = next((part for part in manifest.parts if part.name == FACTS), None)
        if part is None:
            raise DataLoss(f"manifest {manifest_digest} in {self._store.uri} does not belong to a backup")
        facts = json.loads(read_part(self._store, part))
        epoch = manifest.lease_epoch
        return Backup(manifest_digest=manifest_digest, epoch=epoch, **facts), manifest

    def _pointer(self, slot: int) -> str:
        return f"{self._place}-a{slot}"

    def _slots(self) -> Sequence[int]:
        """Returns the slots that have a pointer."""
        ids = (pointer.agent_id for pointer in self._store.list_pointers())
        return [int(agent_id.rpartition("-a")[2]) for agent_id in ids if tournament_of(agent_id) == self._place]


def backup_message(backup: Backup) -> DatabaseBackup:
    """Returns a backup as in the contracts."""
    message = DatabaseBackup(
        service=backup.service,
        manifest_digest=backup.manifest_digest,
        size_bytes=backup.size_bytes,
        database_id=backup.database_id,
        epoch=backup.epoch,
    )
    message.backup_time.FromMilliseconds(int(backup.time * 1000))
    return message


def backup_of(message: DatabaseBackup) -> Backup:
    """Returns a backup from a message of the contracts."""
    return Backup(
        manifest_digest=message.manifest_digest,
        service=message.service,
        database_id=message.database_id,
        time=message.backup_time.ToMilliseconds() / 1000,
        epoch=message.epoch,
        size_bytes=message.size_bytes,
    )


def described(backup: Backup) -> dict[str, object]:
    """Returns a backup as values for JSON."""
    return asdict(backup)


def _private(path: str, flags: int) -> int:
    # Only this user can read the new file.
    return os.open(path, flags, 0o600)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece

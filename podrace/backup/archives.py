"""Stores what was recorded about deleted tournaments in the checkpoint store, and reads it back.

An archive is a manifest whose parts are files, named by their SHA-256 as all objects of a store:

    podrace-archive-TOURNAMENT-a0            pointer to the manifest
    tournaments/podrace-archive-TOURNAMENT/  the files

Files that end in `.jsonl.gz` have one JSON object a line, compressed by gzip. Its key `record` says what it is. Fields
have the names of the contracts. The pointer is written last, so an archive is complete or does not exist.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from google.protobuf import json_format
from google.protobuf.message import Message

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.publish import claim, fetch, publish, read_manifest
from podrace.checkpoint_store.store import ARCHIVE_PREFIX, CheckpointStore
from podrace.errors import DataLoss, NotFound

EPOCH = 1
"""An archive has one writer, the leaderboard."""
ORCHESTRATOR_FILE = "orchestrator.jsonl.gz"
"""Tournament with its specification, events and evaluations."""
LEADERBOARD_FILE = "leaderboard.jsonl.gz"
"""Agents, submissions with their verdicts, snapshots."""


@dataclass(frozen=True)
class Archive:
    """What is known about one archive."""

    tournament_id: str
    manifest_digest: str
    time: float
    """When it was written, seconds since 1970."""
    size_bytes: int
    """Size of its files."""
    files: Mapping[str, str]
    """SHA-256 of each file, by name."""


class Archives:
    """The archives in a store.

    archives = Archives(store)
    archives.write(tournament_id, {"leaderboard.jsonl.gz": json_lines(records)}, now)
    files = archives.read(tournament_id)
    """

    def __init__(self, store: CheckpointStore) -> None:
        """Reads and writes archives of a store, given as a whole."""
        self._store = store

    def write(self, tournament_id: str, files: Mapping[str, bytes], now: float) -> str:
        """Stores an archive and returns the digest of its manifest; one that exists is replaced.

        Args:
            tournament_id: The tournament.
            files: Contents by name.
            now: Seconds since 1970.

        Raises:
            ResourceExhausted: The store is full.
        """
        place = f"{ARCHIVE_PREFIX}{tournament_id}"
        store, manifest = self._store.within(place), Manifest(tournament_id=place)
        manifest.publish_time.FromMilliseconds(int(now * 1000))
        claim(store, f"{place}-a0", EPOCH)
        return publish(store, f"{place}-a0", EPOCH, files, manifest)

    def list(self) -> list[Archive]:
        """Returns the archives that can be read, oldest first."""
        found = []
        for pointer in self._store.list_pointers():
            if pointer.agent_id.startswith(ARCHIVE_PREFIX) and pointer.manifest_digest:
                place = pointer.agent_id.removesuffix("-a0")
                with suppress(DataLoss, NotFound):
                    manifest = read_manifest(self._store.within(place), pointer.manifest_digest)
                    found.append(_archive(place, pointer.manifest_digest, manifest))
        return sorted(found, key=lambda archive: archive.time)

    def read(self, tournament_id: str) -> dict[str, bytes]:
        """Returns the verified files of an archive by name.

        Raises:
            NotFound: There is no archive of the tournament.
            DataLoss: A file is damaged.
        """
        place = f"{ARCHIVE_PREFIX}{tournament_id}"
        found = self._store.read_pointer(f"{place}-a0")
        if found is None or not found[0].manifest_digest:
            raise NotFound(
                f"{self._store.uri} has no archive of tournament {tournament_id!r}; list them: podrace archive"
            )
        return fetch(self._store.within(place), found[0].manifest_digest)[1]

    def delete(self, tournament_id: str) -> None:
        """Deletes an archive; has no effect if there is none."""
        place = f"{ARCHIVE_PREFIX}{tournament_id}"
        self._store.delete_pointer(f"{place}-a0")
        self._store.delete_tournament(place)


def _archive(place: str, digest: str, manifest: Manifest) -> Archive:
    return Archive(
        place.removeprefix(ARCHIVE_PREFIX),
        digest,
        manifest.publish_time.ToMilliseconds() / 1000,
        sum(part.size_bytes for part in manifest.parts),
        {part.name: part.digest for part in manifest.parts},
    )


def record(kind: str, message: Message, **more: object) -> dict[str, object]:
    """Returns a record: its kind, the fields of a message, and further values."""
    fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return {"record": kind, **fields, **more}


def json_lines(records: Iterable[Mapping[str, object]]) -> bytes:
    """Returns the compressed lines of records; equal records give equal bytes."""
    lines = "".join(json.dumps(each, sort_keys=True, ensure_ascii=False) + "\n" for each in records)
    return gzip.compress(lines.encode(), mtime=0)

"""Provides each kind of checkpoint store with a clock and a way to damage it, and checkpoints to publish."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.minio_address import parse_address, read_access
from podrace.checkpoint_store.minio_client import Bucket, BucketEntry
from podrace.checkpoint_store.minio_retries import RetryPolicy
from podrace.checkpoint_store.publish import claim, publish
from podrace.checkpoint_store.store import SHARED, CheckpointStore, object_path
from podrace.digests import digest

STALE_EPOCH = "ERROR_REASON_STALE_EPOCH"
BAD_DIGEST = "ERROR_REASON_BAD_DIGEST"
HOUR = 3600.0
AGENT = "agent-7"


@dataclass
class Clock:
    """A clock that tests advance."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Harness:
    """A store with its clock and a way to damage it."""

    store: CheckpointStore
    clock: Clock
    damage: Callable[..., None]
    """Changes one byte of an object, in the shared folder or in that of a tournament, without using the store."""


def folder_harness(folder: Path) -> Harness:
    clock = Clock()

    def damage(name: str, tournament_id: str = SHARED) -> None:
        path = folder / object_path(tournament_id, name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return Harness(FolderStore(folder, clock), clock, damage)


@dataclass
class ClockedBucket(Bucket):
    """A bucket of a real server that measures the age of objects by the clock of the test."""

    clock: Clock = field(default_factory=Clock)
    put_times: dict[str, float] = field(default_factory=dict)

    def now_seconds(self) -> float:
        return self.clock.now

    def put(self, key: str, data: bytes, sha256: str, what: str) -> None:
        self.put_times[key] = self.clock.now
        super().put(key, data, sha256, what)

    def copy_onto_itself(self, entry: BucketEntry, what: str) -> bool:
        self.put_times[entry.key] = self.clock.now
        return super().copy_onto_itself(entry, what)

    def find(self, key: str, what: str) -> BucketEntry | None:
        entry = super().find(key, what)
        return entry and replace(entry, modified_seconds=self.put_times.get(key, self.clock.now))

    def entries(self, prefix: str, what: str) -> Iterator[BucketEntry]:
        for entry in super().entries(prefix, what):
            yield replace(entry, modified_seconds=self.put_times.get(entry.key, self.clock.now))


def minio_harness(uri: str) -> Harness:
    address = parse_address(uri)
    bucket = ClockedBucket(address, read_access(address, os.environ), RetryPolicy(60.0))

    def damage(name: str, tournament_id: str = SHARED) -> None:
        key = f"{address.prefix}{object_path(tournament_id, name)}"
        data = bytearray(bucket.get(key, "object")[0].data)
        data[len(data) // 2] ^= 1
        Bucket.put(bucket, key, bytes(data), digest(data), "object")

    return Harness(MinioStore(bucket), bucket.clock, damage)


def parts(version: int) -> dict[str, bytes]:
    return {"policy": b"policy %d" % version, "learner": b"learner %d" % version}


def manifest(version: int, previous: str = "") -> Manifest:
    return Manifest(tournament_id="t", algorithm="ppo", policy_version=version, previous_manifest_digest=previous)


def publish_versions(store: CheckpointStore, agent_id: str, *versions: int) -> list[str]:
    """Publishes versions one after the other and returns the digests of their manifests."""
    claim(store, agent_id, 1)
    digests = [""]
    for version in versions:
        digests.append(publish(store, agent_id, 1, parts(version), manifest(version, digests[-1])))
    return digests[1:]


def pointer_of(store: CheckpointStore, agent_id: str = AGENT) -> Pointer | None:
    found = store.read_pointer(agent_id)
    return found[0] if found else None

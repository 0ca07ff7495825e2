"""Measures the checkpoint store `minio` on a real S3 server of this machine, and the S3 client's own calls.

The client's put_object and get_object transfer the same objects. Prints one JSON object per line.

    store and read     one part: put, computing its digest; get, verifying its digest
    publish and fetch  a whole checkpoint: policy (a quarter) and learner, manifest, and a swap of the agent's pointer;
                       for comparison, the client puts the same four objects, or gets three of them, one after the other

The measured calls alternate in one run, with new bytes each time; values are medians. The time of a small checkpoint is
dominated by round trips (a publication is five), that of a large one by bytes. First come two lower bounds: the speed
of SHA-256, and the duration of a round trip.

    python -m benchmarks.services.store [--quick] [--sizes 64kB 1MB 16MB 256MB]
"""

import argparse
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minio import Minio

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part, Pointer
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.manifest import canonical_json
from podrace.checkpoint_store.publish import claim, fetch, publish, read_part, store_part
from podrace.checkpoint_store.store import CheckpointStore
from podrace.digests import digest
from podrace.telemetry import TelemetryConfig, configure_logging

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "contract"))
import weed

SIZES_BYTES = {"64kB": 64 * 2**10, "1MB": 2**20, "16MB": 16 * 2**20, "256MB": 256 * 2**20}
ROUNDS = {"64kB": 200, "1MB": 60, "16MB": 15, "256MB": 5}
QUICK = {"64kB": 30, "1MB": 10, "16MB": 3}
MEGABYTE = 1e6
AGENT = "measured"


def report(name: str, metric: str, size_bytes: int, seconds: float, against: str, plain_seconds: float) -> None:
    """Prints one result."""
    line = {
        "benchmark": "store",
        "case": f"minio/{name}",
        "metric": f"{metric}_megabytes_per_second",
        "value": float(f"{size_bytes / seconds / MEGABYTE:.4g}"),
        "unit": "MB/s",
        "against": against,
        "against_value": float(f"{size_bytes / plain_seconds / MEGABYTE:.4g}"),
        "ratio": float(f"{plain_seconds / seconds:.4g}"),
    }
    print(json.dumps(line), flush=True)


def median_seconds(
    actions: Sequence[Callable[[], object]], rounds: int, prepare: Callable[[int, int], None] = lambda _, __: None
) -> list[float]:
    """Times several actions in alternation, so that other load affects all of them equally; returns the medians.

    The order changes from round to round, because an action may find data of the previous one in the server's caches.

    Args:
        actions: Actions to time.
        rounds: Number of rounds; an additional first round is not counted.
        prepare: Called with round and action before each action; not timed.
    """
    times: list[list[float]] = [[] for _ in actions]
    for turn in range(rounds + 1):
        for place in range(len(actions)):
            index = (place + turn) % len(actions)
            prepare(turn, index)
            begin = time.perf_counter()
            actions[index]()
            times[index].append(time.perf_counter() - begin)
    return [statistics.median(measured[1:]) for measured in times]


@dataclass
class Checkpoints:
    """The bytes of one size, and the measured operations on them."""

    store: CheckpointStore
    client: Minio
    size_bytes: int
    data: bytes = b""
    part: Part = field(default_factory=Part)
    manifest_digest: str = ""
    other_files: dict[str, bytes] = field(default_factory=dict)
    """The other objects that the client puts: manifest and pointer."""

    def prepare(self, turn: int, index: int) -> None:
        """Makes bytes that have not been stored yet."""
        fresh = bytearray(self.data or os.urandom(self.size_bytes))
        for begin in (0, self.size_bytes // 4):
            fresh[begin : begin + 4] = bytes((turn // 256, turn % 256, index, 0))
        self.data = bytes(fresh)

    @property
    def files(self) -> dict[str, bytes]:
        """The parts of a checkpoint of this size."""
        policy = self.size_bytes // 4
        return {"policy": self.data[:policy], "learner": self.data[policy:]}

    def plain_put(self) -> None:
        self.client.put_object(weed.BUCKET, "plain", io.BytesIO(self.data), self.size_bytes)

    def store_part(self) -> None:
        self.part = store_part(self.store, "policy", self.data)

    def plain_puts(self) -> None:
        for name, data in (self.files | self.other_files).items():
            self.client.put_object(weed.BUCKET, name, io.BytesIO(data), len(data))

    def publish(self) -> None:
        self.manifest_digest = publish(self.store, AGENT, 1, self.files, Manifest(algorithm="ppo"))

    def plain_get(self, name: str = "plain") -> bytes:
        response = self.client.get_object(weed.BUCKET, name)
        data = response.read()
        response.release_conn()
        return data

    def plain_get_and_digest(self) -> None:
        digest(self.plain_get())

    def read_part(self) -> None:
        read_part(self.store, self.part)

    def plain_gets(self) -> None:
        for name in ("manifest", "policy", "learner"):
            self.plain_get(name)

    def fetch(self) -> None:
        fetch(self.store, self.manifest_digest)


def measure(store: CheckpointStore, client: Minio, name: str, rounds: int) -> None:
    """Reports one size."""
    subject = Checkpoints(store, client, SIZES_BYTES[name])
    subject.prepare(0, 9)
    subject.publish()
    pointer, _ = store.read_pointer(AGENT) or (Pointer(), "")
    subject.other_files = {"manifest": store.get_object(subject.manifest_digest), "pointer": canonical_json(pointer)}
    puts = [subject.plain_put, subject.store_part, subject.plain_puts, subject.publish]
    put, stored, put_all, published = median_seconds(puts, rounds, subject.prepare)
    report(name, "store", subject.size_bytes, stored, "put_object", put)
    report(name, "publish", subject.size_bytes, published, "put_object of the same objects", put_all)
    gets = [subject.plain_get, subject.plain_get_and_digest, subject.read_part, subject.plain_gets, subject.fetch]
    got, digested, read, got_all, fetched = median_seconds(gets, rounds)
    report(name, "read", subject.size_bytes, read, "get_object", got)
    report(name, "read", subject.size_bytes, read, "get_object and SHA-256", digested)
    report(name, "fetch", subject.size_bytes, fetched, "get_object of the same objects", got_all)


def measure_floors(store: CheckpointStore) -> None:
    """Reports the speed of SHA-256 and the duration of a round trip."""
    data = os.urandom(16 * 2**20)
    hashing, round_trip = median_seconds([lambda: digest(data), lambda: store.read_pointer(AGENT)], 20)
    for metric, value, unit in (
        ("sha256_megabytes_per_second", len(data) / hashing / MEGABYTE, "MB/s"),
        ("round_trip_milliseconds", 1e3 * round_trip, "ms"),
    ):
        line = {"benchmark": "store", "case": "floor", "metric": metric, "value": float(f"{value:.4g}"), "unit": unit}
        print(json.dumps(line), flush=True)


def main() -> None:
    """Starts a server and measures every size."""
    parser = argparse.ArgumentParser(
        description="Measures the throughput of the store minio and of its client; prints JSON lines."
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no large checkpoint")
    parser.add_argument("--sizes", nargs="+", choices=SIZES_BYTES, help="only these sizes")
    options = parser.parse_args()
    configure_logging(TelemetryConfig(log_level="error"))
    rounds = QUICK if options.quick else ROUNDS
    with weed.running_server() as server:
        os.environ.update(server.environ)
        store = open_store(server.uri("benchmark"))
        claim(store, AGENT, 1)
        measure_floors(store)
        for name in options.sizes or rounds:
            measure(store, server.client(), name, rounds.get(name, min(rounds.values())))


if __name__ == "__main__":
    main()

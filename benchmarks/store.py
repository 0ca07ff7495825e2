"""Measures the checkpoint store `minio` on a real S3 server of this machine, beside the S3 client's own put_object and
get_object of the same objects; prints one JSON object a line.

    store and read     one part: put with its digest taken, get with its digest verified
    publish and fetch  a whole checkpoint: policy (a quarter) and learner, manifest, and the agent's pointer swapped;
                       beside it the client puts the same four objects, or gets the three of them, one after the other

What is measured alternates in one run, on fresh bytes each time; medians. A small checkpoint is a matter of round trips
(a publication is five), a large one of bytes. The floors come first: what SHA-256 makes here,
and what a round trip takes.

    python benchmarks/store.py [--quick] [--sizes 64kB 1MB 16MB 256MB]
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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "contract"))
import weed

SIZES_BYTES = {"64kB": 64 * 2**10, "1MB": 2**20, "16MB": 16 * 2**20, "256MB": 256 * 2**20}
ROUNDS = {"64kB": 200, "1MB": 60, "16MB": 15, "256MB": 5}
QUICK = {"64kB": 30, "1MB": 10, "16MB": 3}
MEGABYTE = 1e6
AGENT = "measured"


def report(name: str, metric: str, size_bytes: int, seconds: float, against: str, plain_seconds: float) -> None:
    """Prints one line."""
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
    """Times some actions in alternation, so that a busy spell of the machine hits all of them; returns the medians.

    The order changes from round to round: what comes after another may find its traces in the server.

    Args:
        actions: What is timed.
        rounds: How often; one more comes first and does not count.
        prepare: Called with round and action beforehand; not timed.
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
class Subject:
    """The bytes of a size and the things that are done with them."""

    store: CheckpointStore
    client: Minio
    size_bytes: int
    data: bytes = b""
    part: Part = field(default_factory=Part)
    manifest_digest: str = ""
    beside: dict[str, bytes] = field(default_factory=dict)
    """What the client puts beside the parts: manifest and pointer."""

    def prepare(self, turn: int, index: int) -> None:
        """Makes bytes that were never stored."""
        fresh = bytearray(self.data or os.urandom(self.size_bytes))
        for begin in (0, self.size_bytes // 4):
            fresh[begin : begin + 4] = bytes((turn // 256, turn % 256, index, 0))
        self.data = bytes(fresh)

    @property
    def files(self) -> dict[str, bytes]:
        """The parts of a checkpoint of the size."""
        policy = self.size_bytes // 4
        return {"policy": self.data[:policy], "learner": self.data[policy:]}

    def plain_put(self) -> None:
        self.client.put_object(weed.BUCKET, "plain", io.BytesIO(self.data), self.size_bytes)

    def store_part(self) -> None:
        self.part = store_part(self.store, "policy", self.data)

    def plain_puts(self) -> None:
        for name, data in (self.files | self.beside).items():
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
    subject = Subject(store, client, SIZES_BYTES[name])
    subject.prepare(0, 9)
    subject.publish()
    pointer, _ = store.read_pointer(AGENT) or (Pointer(), "")
    subject.beside = {"manifest": store.get_object(subject.manifest_digest), "pointer": canonical_json(pointer)}
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
    """Reports how fast a digest and a round trip are."""
    data = os.urandom(16 * 2**20)
    hashing, round_trip = median_seconds([lambda: digest(data), lambda: store.read_pointer(AGENT)], 20)
    for metric, value, unit in (
        ("sha256_megabytes_per_second", len(data) / hashing / MEGABYTE, "MB/s"),
        ("round_trip_milliseconds", 1e3 * round_trip, "ms"),
    ):
        line = {"benchmark": "store", "case": "floor", "metric": metric, "value": float(f"{value:.4g}"), "unit": unit}
        print(json.dumps(line), flush=True)


def main() -> None:
    """Starts a server and measures one size after the other."""
    parser = argparse.ArgumentParser(description="Throughput of the store minio beside its client's, as JSON lines.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no large checkpoint")
    parser.add_argument("--sizes", nargs="+", choices=SIZES_BYTES, help="only these")
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

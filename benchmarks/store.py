"""Measures the checkpoint store `minio` on a real S3 server of this machine, beside the S3 client's own put_object and
get_object of the same bytes; prints one JSON object a line.

    store and read     one part through the store: put with its digest taken, get with its digest verified
    publish and fetch  a whole checkpoint of one part: also its manifest, and the agent's pointer swapped

What is measured alternates in one run, on fresh bytes each time; medians. A small checkpoint is a matter of requests (a
publication is six), a large one of bytes.

    python benchmarks/store.py [--quick]
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

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.checkpoints import open_store
from podrace.checkpoints.publish import claim, fetch, publish, read_part, store_part
from podrace.checkpoints.store import CheckpointStore, digest
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
    """The bytes of a size and the six things that are done with them."""

    store: CheckpointStore
    client: Minio
    size_bytes: int
    data: bytes = b""
    part: Part = field(default_factory=Part)
    manifest_digest: str = ""

    def prepare(self, turn: int, index: int) -> None:
        """Makes bytes that were never stored."""
        fresh = bytearray(self.data or os.urandom(self.size_bytes))
        fresh[:4] = bytes((turn // 256, turn % 256, index, 0))
        self.data = bytes(fresh)

    def plain_put(self) -> None:
        self.client.put_object(weed.BUCKET, "plain", io.BytesIO(self.data), self.size_bytes)

    def store_part(self) -> None:
        self.part = store_part(self.store, "policy", self.data)

    def publish(self) -> None:
        self.manifest_digest = publish(self.store, AGENT, 1, {"policy": self.data}, Manifest(algorithm="ppo"))

    def plain_get(self) -> bytes:
        response = self.client.get_object(weed.BUCKET, "plain")
        data = response.read()
        response.release_conn()
        return data

    def plain_get_and_digest(self) -> None:
        digest(self.plain_get())

    def read_part(self) -> None:
        read_part(self.store, self.part)

    def fetch(self) -> None:
        fetch(self.store, self.manifest_digest)


def measure(store: CheckpointStore, client: Minio, name: str, rounds: int) -> None:
    """Reports one size."""
    subject = Subject(store, client, SIZES_BYTES[name])
    puts = [subject.plain_put, subject.store_part, subject.publish]
    plain, *ours = median_seconds(puts, rounds, subject.prepare)
    for metric, seconds in zip(("store", "publish"), ours, strict=True):
        report(name, metric, subject.size_bytes, seconds, "put_object", plain)
    gets = [subject.plain_get, subject.plain_get_and_digest, subject.read_part, subject.fetch]
    plain, with_digest, read, fetched = median_seconds(gets, rounds)
    report(name, "read", subject.size_bytes, read, "get_object", plain)
    report(name, "read", subject.size_bytes, read, "get_object and SHA-256", with_digest)
    report(name, "fetch", subject.size_bytes, fetched, "get_object", plain)


def main() -> None:
    """Starts a server and measures one size after the other."""
    parser = argparse.ArgumentParser(description="Throughput of the store minio beside its client's, as JSON lines.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no large checkpoint")
    configure_logging(TelemetryConfig(log_level="error"))
    rounds = QUICK if parser.parse_args().quick else ROUNDS
    with weed.running_server() as server:
        os.environ.update(server.environ)
        store = open_store(server.uri("benchmark"))
        claim(store, AGENT, 1)
        for name in rounds:
            measure(store, server.client(), name, rounds[name])


if __name__ == "__main__":
    main()

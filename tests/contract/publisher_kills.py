"""Kills publishers with SIGKILL at random moments and checks the store after each; prints one line of JSON.

Each publisher claims the agent with a higher epoch, publishes one checkpoint after the other, and reports every
checkpoint that the store acknowledged. Counts of what was found after the kills:
    corrupt      the newest checkpoint is damaged or incomplete
    regressed    the pointer names an older checkpoint than was read or acknowledged before, or has a lower epoch
    unreadable   the pointer cannot be read

    python tests/contract/publisher_kills.py --store folder|minio [--kills 1000] [--seed 1]
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import weed

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store import STORES, open_store
from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.publish import claim, fetch, publish
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import DataLoss, NotFound, PodraceError

AGENT = "mortal"
LONGEST_RUN_SECONDS = {"folder": 0.15, "minio": 0.25}
SIZES_BYTES = (0, 1_000, 20_000, 200_000)
PART_BYTES = 5 * 2**20
"""Smallest part that an S3 server accepts. A kill may fall between two parts."""
PARTED_EVERY = 10
"""One publisher in this many also stores an object in two parts, if the store has parts."""
DEADLINE_SECONDS = 30.0


@dataclass
class KillReport:
    """Counts over all kills."""

    kills: int = 0
    publications: int = 0
    """Acknowledged publications."""
    unacknowledged: int = 0
    """Publishers killed between the swap of a pointer and its acknowledgement."""
    corrupt: int = 0
    regressed: int = 0
    unreadable: int = 0

    @property
    def harm(self) -> int:
        """Number of violations."""
        return self.corrupt + self.regressed + self.unreadable


@dataclass
class Seen:
    """The newest version and epoch that were read."""

    version: int = 0
    epoch: int = 0


def opened(uri: str) -> CheckpointStore:
    """Opens a store without checking it; uploads in the smallest parts."""
    store = STORES[uri.partition("://")[0]](uri, DEADLINE_SECONDS)
    if isinstance(store, MinioStore):
        store._bucket.part_bytes = PART_BYTES
    return store


def publish_forever(uri: str, epoch: int, version: int, acknowledge: int) -> None:
    """Publishes checkpoints until the process is killed."""
    store = opened(uri)
    os.write(acknowledge, b"0\n")  # the run time counts from here
    claim(store, AGENT, epoch)
    parted = (PART_BYTES + 1,) if isinstance(store, MinioStore) and epoch % PARTED_EVERY == 0 else ()
    while True:
        version += 1
        parts = {f"part-{index}": os.urandom(size) for index, size in enumerate(SIZES_BYTES + parted)}
        publish(store, AGENT, epoch, parts, Manifest(policy_version=version))
        os.write(acknowledge, b"%d\n" % version)


def run_publisher(uri: str, epoch: int, version: int, run_seconds: float) -> int:
    """Runs a publisher and kills it; returns the newest version that it reported, 0 for none."""
    reports, acknowledge = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reports)
            publish_forever(uri, epoch, version, acknowledge)
        except PodraceError as error:
            print(f"the publisher failed: {error.message}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    os.close(acknowledge)
    try:
        output = os.read(reports, 100)
        give_up = time.monotonic() + run_seconds
        while (rest := give_up - time.monotonic()) > 0 and select.select([reports], [], [], rest)[0]:
            received = os.read(reports, 1000)
            assert received, "the publisher exited"
            output += received
        os.kill(pid, signal.SIGKILL)
        while received := os.read(reports, 1000):
            output += received
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(reports)
    assert status == -signal.SIGKILL, status
    return int(output.split()[-1])


def check_after_kill(store: CheckpointStore, seen: Seen, acknowledged: int, report: KillReport) -> None:
    """Checks that the newest checkpoint is whole and not older than the last known one."""
    try:
        found = store.read_pointer(AGENT)
        pointer = found[0] if found else None
    except PodraceError as error:
        report.unreadable += 1
        print(error.message, file=sys.stderr)
        return
    if pointer is None or not pointer.manifest_digest:
        report.regressed += seen.version > 0 or acknowledged > 0
        return
    try:
        version = fetch(store, pointer.manifest_digest)[0].policy_version
    except (DataLoss, NotFound) as error:
        report.corrupt += 1
        print(error.message, file=sys.stderr)
        return
    report.regressed += version < max(seen.version, acknowledged) or pointer.lease_epoch < seen.epoch
    report.unacknowledged += version > max(seen.version, acknowledged)
    seen.version, seen.epoch = version, pointer.lease_epoch


def kill_repeatedly(uri: str, kills: int, longest_seconds: float, seed: int) -> KillReport:
    """Runs and kills this many publishers."""
    generator, report, seen = random.Random(seed), KillReport(), Seen()
    store = open_store(uri)
    for epoch in range(1, kills + 1):
        before = seen.version
        acknowledged = run_publisher(uri, epoch, before, generator.uniform(0.0, longest_seconds))
        report.kills += 1
        report.publications += max(acknowledged - before, 0)
        check_after_kill(store, seen, acknowledged, report)
    return report


@contextlib.contextmanager
def new_store(kind: str) -> Iterator[str]:
    """Provides the URI of a new store."""
    if kind == "folder":
        with tempfile.TemporaryDirectory() as folder:
            yield f"folder://{folder}/store"
    else:
        with weed.running_server() as server:
            os.environ.update(server.environ)
            yield server.uri("kills")


def main() -> int:
    """Runs the command; the exit code is 1 if there were violations."""
    parser = argparse.ArgumentParser(description="Kills publishers of a checkpoint store at random moments.")
    parser.add_argument("--store", choices=LONGEST_RUN_SECONDS, required=True)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begin = time.monotonic()
    with new_store(options.store) as uri:
        report = kill_repeatedly(uri, options.kills, LONGEST_RUN_SECONDS[options.store], options.seed)
    seconds = round(time.monotonic() - begin, 1)
    print(json.dumps({"store": options.store, **asdict(report), "seed": options.seed, "seconds": seconds}), flush=True)
    return 1 if report.harm else 0


if __name__ == "__main__":
    sys.exit(main())

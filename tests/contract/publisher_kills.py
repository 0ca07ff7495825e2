"""Kills a publisher with SIGKILL at random moments, again and again, and looks at what it leaves; prints one JSON line.

Each life of the publisher claims the agent under a higher epoch and publishes one checkpoint after the other; it
reports each that was acknowledged. After its death:
    corrupt      the newest checkpoint is damaged or incomplete
    regressed    the pointer names an older checkpoint than was seen, or acknowledged, before; or a lower epoch
    unreadable   the pointer cannot be read at all

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
LONGEST_LIFE_SECONDS = {"folder": 0.15, "minio": 0.25}
SIZES_BYTES = (0, 1_000, 20_000, 200_000)
PART_BYTES = 5 * 2**20
"""An S3 server takes no smaller parts; a kill may fall between two of them."""
PARTED_EVERY = 10
"""Each such life stores an object in two parts as well, where the store has parts."""
DEADLINE_SECONDS = 30.0


@dataclass
class Toll:
    """What the kills did."""

    kills: int = 0
    publications: int = 0
    """Acknowledged ones."""
    unacknowledged: int = 0
    """Lives that ended between the swap of a pointer and its acknowledgement."""
    corrupt: int = 0
    regressed: int = 0
    unreadable: int = 0

    @property
    def harm(self) -> int:
        """How often something was wrong."""
        return self.corrupt + self.regressed + self.unreadable


@dataclass
class Seen:
    """The newest that is known of the agent."""

    version: int = 0
    epoch: int = 0


def opened(uri: str) -> CheckpointStore:
    """A store of this process's own, unchecked, that sends in the smallest parts."""
    store = STORES[uri.partition("://")[0]](uri, DEADLINE_SECONDS)
    if isinstance(store, MinioStore):
        store._bucket.part_bytes = PART_BYTES
    return store


def live(uri: str, epoch: int, version: int, acknowledge: int) -> None:
    """The publisher: goes on until it is killed."""
    store = opened(uri)
    os.write(acknowledge, b"0\n")  # from here on its life counts
    claim(store, AGENT, epoch)
    parted = (PART_BYTES + 1,) if isinstance(store, MinioStore) and epoch % PARTED_EVERY == 0 else ()
    while True:
        version += 1
        parts = {f"part-{index}": os.urandom(size) for index, size in enumerate(SIZES_BYTES + parted)}
        publish(store, AGENT, epoch, parts, Manifest(policy_version=version))
        os.write(acknowledge, b"%d\n" % version)


def one_life(uri: str, epoch: int, version: int, life_seconds: float) -> int:
    """Lets a publisher live for that long; returns the newest version it acknowledged, 0 for none."""
    reports, acknowledge = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reports)
            live(uri, epoch, version, acknowledge)
        except PodraceError as error:
            print(f"the publisher failed: {error.message}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    os.close(acknowledge)
    try:
        told = os.read(reports, 100)
        give_up = time.monotonic() + life_seconds
        while (rest := give_up - time.monotonic()) > 0 and select.select([reports], [], [], rest)[0]:
            received = os.read(reports, 1000)
            assert received, "the publisher died by itself"
            told += received
        os.kill(pid, signal.SIGKILL)
        while received := os.read(reports, 1000):
            told += received
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(reports)
    assert status == -signal.SIGKILL, status
    return int(told.split()[-1])


def look(store: CheckpointStore, seen: Seen, acknowledged: int, toll: Toll) -> None:
    """Compares what is in the store with what must be."""
    try:
        found = store.read_pointer(AGENT)
        pointer = found[0] if found else None
    except PodraceError as error:
        toll.unreadable += 1
        print(error.message, file=sys.stderr)
        return
    if pointer is None or not pointer.manifest_digest:
        toll.regressed += seen.version > 0 or acknowledged > 0
        return
    try:
        version = fetch(store, pointer.manifest_digest)[0].policy_version
    except (DataLoss, NotFound) as error:
        toll.corrupt += 1
        print(error.message, file=sys.stderr)
        return
    toll.regressed += version < max(seen.version, acknowledged) or pointer.lease_epoch < seen.epoch
    toll.unacknowledged += version > max(seen.version, acknowledged)
    seen.version, seen.epoch = version, pointer.lease_epoch


def kill_again_and_again(uri: str, kills: int, longest_seconds: float, seed: int) -> Toll:
    """Runs and ends so many lives."""
    generator, toll, seen = random.Random(seed), Toll(), Seen()
    store = open_store(uri)
    for epoch in range(1, kills + 1):
        before = seen.version
        acknowledged = one_life(uri, epoch, before, generator.uniform(0.0, longest_seconds))
        toll.kills += 1
        toll.publications += max(acknowledged - before, 0)
        look(store, seen, acknowledged, toll)
    return toll


@contextlib.contextmanager
def a_store(kind: str) -> Iterator[str]:
    """A new store of a kind."""
    if kind == "folder":
        with tempfile.TemporaryDirectory() as folder:
            yield f"folder://{folder}/store"
    else:
        with weed.running_server() as server:
            os.environ.update(server.environ)
            yield server.uri("kills")


def main() -> int:
    """Exits with 1 if a kill did harm."""
    parser = argparse.ArgumentParser(description="SIGKILL at random moments against a checkpoint store.")
    parser.add_argument("--store", choices=LONGEST_LIFE_SECONDS, required=True)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begin = time.monotonic()
    with a_store(options.store) as uri:
        toll = kill_again_and_again(uri, options.kills, LONGEST_LIFE_SECONDS[options.store], options.seed)
    seconds = round(time.monotonic() - begin, 1)
    print(json.dumps({"store": options.store, **asdict(toll), "seed": options.seed, "seconds": seconds}), flush=True)
    return 1 if toll.harm else 0


if __name__ == "__main__":
    sys.exit(main())

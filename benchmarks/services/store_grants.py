"""Measures what it costs a pod to access an S3 store by grants of the leaderboard instead of with its own keys.

    publish    a whole checkpoint: policy (a quarter), learner, manifest, and a swap of the agent's pointer
    fetch      the same checkpoint

Both ways alternate in one run against a real S3 server and a separate process of the leaderboard, with new bytes each
time; values are medians. Prints one JSON object per line. A publication by grants makes three calls to the leaderboard
(pointer, uploads, swap), and the leaderboard reads the manifest before it swaps the pointer.

    python -m benchmarks.services.store_grants [--sizes 64kB 1MB 16MB 256MB]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from podrace import rpc
from podrace.checkpoint.v1 import store_pb2, store_pb2_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.assignment_store import GrantedStores
from podrace.checkpoint_store.publish import claim, fetch, publish
from podrace.checkpoint_store.store import CheckpointStore
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1.orchestrator_pb2 import Assignment
from podrace.specification import resolve as specification
from podrace.telemetry import TelemetryConfig, configure_logging

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "contract"))
import weed

from benchmarks.services.store import MEGABYTE, ROUNDS, SIZES_BYTES, median_seconds

TOURNAMENT = "measured-x1"
SPECIFICATION = {
    "environment": {"id": "CartPole-v1"},
    "algorithms": {"ppo": {}},
    "objective": {"environment_steps": 1_000_000},
}
WAIT_SECONDS = 30.0


class Subject:
    """The checkpoints of one agent, published and fetched in one way."""

    def __init__(self, store: CheckpointStore, agent_id: str, size_bytes: int) -> None:
        self._store, self._agent_id, self._data = store, agent_id, os.urandom(size_bytes)
        self._published = ""
        claim(store, agent_id, 1)

    def prepare(self) -> None:
        """Makes bytes that have not been stored yet."""
        fresh, quarter = bytearray(self._data), len(self._data) // 4
        for begin in (0, quarter):
            fresh[begin : begin + 16] = os.urandom(16)
        self._data = bytes(fresh)

    def publish(self) -> None:
        quarter = len(self._data) // 4
        parts = {"policy": self._data[:quarter], "learner": self._data[quarter:]}
        manifest = Manifest(tournament_id=TOURNAMENT, algorithm="ppo")
        self._published = publish(self._store, self._agent_id, 1, parts, manifest)

    def fetch(self) -> None:
        fetch(self._store, self._published)


def measure(size: str, direct: CheckpointStore, granted: Callable[[], CheckpointStore], rounds: int) -> None:
    """Reports one size."""
    subjects = [
        Subject(direct, f"{TOURNAMENT}-a0", SIZES_BYTES[size]),
        Subject(granted(), f"{TOURNAMENT}-a1", SIZES_BYTES[size]),
    ]
    publish_seconds = median_seconds(
        [subject.publish for subject in subjects], rounds, lambda _, index: subjects[index].prepare()
    )

    def fetch_granted() -> None:
        # A pod that fetches a checkpoint has just been given its assignment.
        subjects[1]._store = granted()
        subjects[1].fetch()

    fetch_seconds = median_seconds([subjects[0].fetch, fetch_granted], rounds)
    for what, (plain, by_grants) in (("publish", publish_seconds), ("fetch", fetch_seconds)):
        line = {
            "benchmark": "store_grants",
            "case": f"minio/{size}",
            "metric": f"{what}_milliseconds",
            "value": float(f"{1e3 * by_grants:.4g}"),
            "unit": "ms",
            "against": "with the keys of the store",
            "against_value": float(f"{1e3 * plain:.4g}"),
            "megabytes_per_second": float(f"{SIZES_BYTES[size] / by_grants / MEGABYTE:.4g}"),
            "ratio": float(f"{by_grants / plain:.4g}"),
        }
        print(json.dumps(line), flush=True)


async def generate(address: str) -> None:
    """Creates the two agents."""
    await rpc.wait_until_serving(address, deadline_seconds=WAIT_SECONDS)
    async with rpc.connect(address, leaderboard_pb2.DESCRIPTOR) as channel:
        stub = leaderboard_pb2_grpc.GeneratorServiceStub(channel)
        spec = specification.resolve(specification.parse(SPECIFICATION, source="benchmark"))
        for number in range(2):
            request = leaderboard_pb2.GenerateAgentRequest(
                request_id=f"{number}", tournament_id=TOURNAMENT, spec=spec, number=number
            )
            await rpc.call(stub.GenerateAgent, request, deadline_seconds=WAIT_SECONDS)


def run(server: weed.S3Server, folder: Path, sizes: list[str]) -> None:
    """Runs a leaderboard and measures every size."""
    uri, address = server.uri("grants"), f"unix:{folder}/l.sock"
    direct = open_store(uri)
    settings = {"server.listen": address, "database": f"{folder}/l.sqlite", "store": uri}
    arguments = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    board = subprocess.Popen([sys.executable, "-m", "leaderboard", *arguments], stderr=subprocess.DEVNULL)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def connect() -> GrantedStores:
        channel = rpc.connect(address, store_pb2.DESCRIPTOR)
        return GrantedStores(uri, store_pb2_grpc.StoreServiceStub(channel), loop, environ={})

    try:
        asyncio.run_coroutine_threadsafe(generate(address), loop).result()
        stores = asyncio.run_coroutine_threadsafe(connect(), loop).result()
        agent = leaderboard_pb2.Agent(agent_id=f"{TOURNAMENT}-a1", tournament_id=TOURNAMENT)
        assignment = Assignment(tournament_id=TOURNAMENT, lease_epoch=1, train=agent)
        for size in sizes:
            measure(size, direct.within(TOURNAMENT), lambda: stores.of(assignment), ROUNDS[size])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        board.terminate()
        board.wait()


def main() -> None:
    """Starts a server and measures every size."""
    parser = argparse.ArgumentParser(description="Measures access by grants; prints JSON lines.")
    parser.add_argument("--sizes", nargs="+", choices=SIZES_BYTES, default=["64kB", "1MB", "16MB"])
    options = parser.parse_args()
    configure_logging(TelemetryConfig(log_level="error"))
    with weed.running_server() as server, tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as folder:
        os.environ.update(server.environ)
        run(server, Path(folder), options.sizes)


if __name__ == "__main__":
    main()

"""Measures a leaderboard in its own process over a Unix socket; prints one JSON object per line.

Cases, each at several numbers of calls in flight:
    submit      candidates evaluated and durably recorded, against empty unary calls: the lower bound set by gRPC
    generate    agents generated and durably recorded, against the same bound
    watch       submissions received by a watcher that connects late
The other bound is the disk: `commit` is the rate of one SQLite transaction per submission, one after the other, on the
same file system. What `submit` achieves above that is the gain of group commit.

    python -m benchmarks.services.leaderboard [--quick] [--folder FOLDER]
"""

import argparse
import asyncio
import contextlib
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.harness.blank_policy import blank_policy
from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation, Manifest, Part
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.manifest import FORMAT_VERSION, manifest_bytes
from podrace.checkpoint_store.publish import claim
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "benchmark-000000"
AGENTS = 16
IN_FLIGHT = (1, 16)
DEADLINE_SECONDS = 30.0
START_SECONDS = 30.0
Call = Callable[[], Awaitable[object]]


def report(case: str, metric: str, value: float, against: str = "", against_value: float = 0.0) -> None:
    """Prints one result."""
    line: dict[str, object] = {
        "benchmark": "leaderboard",
        "case": case,
        "metric": metric,
        "value": float(f"{value:.4g}"),
        "unit": "1/s",
    }
    if against:
        line |= {
            "against": against,
            "against_value": float(f"{against_value:.4g}"),
            "ratio": float(f"{value / against_value:.4g}"),
        }
    print(json.dumps(line), flush=True)


def commits_per_second(folder: Path, count: int) -> float:
    """Measures small durable transactions one after the other, with the leaderboard's settings of SQLite."""
    connection = sqlite3.connect(folder / "floor.sqlite", isolation_level=None)
    for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE rows (row BLOB)")
    begin = time.perf_counter()
    for _ in range(count):
        connection.execute("INSERT INTO rows VALUES (?)", (b"x" * 400,))
    elapsed = time.perf_counter() - begin
    connection.close()
    return count / elapsed


async def calls_per_second(calls: Sequence[Call], in_flight: int) -> float:
    """Makes the calls, `in_flight` at a time; returns their rate."""
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            await call()

    begin = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return len(calls) / (time.perf_counter() - begin)


@contextlib.asynccontextmanager
async def leaderboard(folder: Path) -> AsyncIterator[str]:
    """Runs a leaderboard in its own process; yields its address."""
    address = f"unix:{folder}/leaderboard.sock"
    settings = {
        "server.listen": address,
        "database": folder / "leaderboard.sqlite",
        "store": folder / "store",
        "telemetry.log_level": "warning",
    }
    overrides = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "leaderboard", *overrides)
    try:
        await rpc.wait_until_serving(address, deadline_seconds=START_SECONDS)
        yield address
    finally:
        process.terminate()
        await process.wait()


def small_spec() -> TournamentSpec:
    """Returns a tournament with a board of 16 places."""
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 1_000_000},
        "evolution": {"maximum_unfinished_children": 10_000},
    }
    return specification.resolve(specification.parse(values, source="benchmark"))


def stored_manifests(store: FolderStore, agents: Sequence[pb.Agent], count: int) -> list[Checkpoint]:
    """Stores manifests whose scores rise with noise, of each agent in turn; all have the same policy."""
    for agent in agents:
        claim(store, agent.agent_id, 1)
    data = blank_policy(agents[0])
    policy = store.put_object(data)
    checkpoints = []
    for index in range(count):
        agent = agents[index % len(agents)]
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            tournament_id=TOURNAMENT,
            agent_id=agent.agent_id,
            algorithm=agent.algorithm,
            hyperparameters=agent.hyperparameters,
            seed=agent.seed,
            parts=[Part(name="policy", digest=policy, size_bytes=len(data))],
            environment_steps=index,
            lineage_environment_steps=index,
            evaluation=Evaluation(
                mean_return=index + 50.0 * (index % 7), variance=400.0, episodes=32, policy_digest=policy
            ),
            lease_epoch=1,
        )
        name = store.put_object(manifest_bytes(manifest))
        checkpoints.append(Checkpoint(agent_id=agent.agent_id, manifest_digest=name))
    return checkpoints


async def measure(folder: Path, count: int) -> None:
    """Reports every case, with `count` calls each."""
    report("commit", "commits_per_second", commits_per_second(folder, count))
    store = FolderStore(folder / "store")
    async with leaderboard(folder) as address:
        channel = rpc.connect(address, pb.DESCRIPTOR)
        updater: Any = pb_grpc.UpdaterServiceStub(channel)
        generator: Any = pb_grpc.GeneratorServiceStub(channel)
        health: Any = health_pb2_grpc.HealthStub(channel)
        spec = small_spec()

        def nothing() -> Awaitable[object]:
            return rpc.call(health.Check, health_pb2.HealthCheckRequest(), deadline_seconds=DEADLINE_SECONDS)

        def submit(checkpoint: Checkpoint) -> Call:
            request = pb.SubmitCandidateRequest(checkpoint=checkpoint, lease_epoch=1)
            return lambda: rpc.call(updater.SubmitCandidate, request, deadline_seconds=DEADLINE_SECONDS)

        def generate(number: int) -> Call:
            request = pb.GenerateAgentRequest(tournament_id=TOURNAMENT, spec=spec, number=number)
            return lambda: rpc.call(generator.GenerateAgent, request, deadline_seconds=DEADLINE_SECONDS)

        agents = [(await generate(number)()).agent for number in range(AGENTS)]  # type: ignore[attr-defined]
        checkpoints = stored_manifests(store, agents, count * len(IN_FLIGHT))
        await calls_per_second([nothing] * 100, 16)
        for index, in_flight in enumerate(IN_FLIGHT):
            floor = await calls_per_second([nothing] * count, in_flight)
            numbers = range(AGENTS + index * count, AGENTS + (index + 1) * count)
            for case, metric, calls in [
                ("submit", "submissions_per_second", list(map(submit, checkpoints[index * count :][:count]))),
                ("generate", "agents_per_second", list(map(generate, numbers))),
            ]:
                rate = await calls_per_second(calls, in_flight)
                report(f"{case}/concurrency-{in_flight}", metric, rate, "an empty unary call", floor)
        report("watch", "submissions_per_second", await watched_per_second(channel, len(checkpoints)))
        await channel.close()


async def watched_per_second(channel: Any, count: int) -> float:
    """Measures how fast a watcher that connects late receives all submissions."""
    request = pb.WatchCandidatesRequest(tournament_id=TOURNAMENT)
    responses = pb_grpc.LeaderboardServiceStub(channel).WatchCandidates(request, timeout=DEADLINE_SECONDS)
    begin = time.perf_counter()
    async for response in responses:
        if response.resume_token == count:
            break
    elapsed = time.perf_counter() - begin
    responses.cancel()
    return count / elapsed


def main() -> None:
    """Measures in a temporary folder, which is removed afterwards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls; under a minute")
    parser.add_argument("--folder", type=Path, help="folder to work in, on the disk that is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="podrace-", dir=options.folder) as folder:
        asyncio.run(measure(Path(folder), 300 if options.quick else 3000))


if __name__ == "__main__":
    main()

"""Measures a policy server from one client process: latency against an empty call, throughput, swaps under load.

Usage: `python -m benchmarks.serving [--rate 1000] [--seconds 10] [--swaps 1000]`. The network is 2 x 256. Prints
one JSON object.

- Latency: an open loop sends requests at fixed times, alternately `Act` with one observation and `ServerLive`, which is
  empty and passes through the same interceptors. A latency counts from the time at which a request was due.
- Throughput: four requests of 512 observations are under way at any time. The floor is the same network in ONNX
  Runtime alone, on one thread, per second of processor time; unlike rates, it can be compared on a machine in use.
- Swaps: another export replaces the policy again and again while 8 clients act. Each answer is compared with the policy
  of the version that it names.
"""

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving.server import CHOICES, OBSERVATION, Server, model, running, version
from podrace import rpc
from podrace.errors import PodraceError
from podrace.inference.v2 import open_inference_pb2, open_inference_pb2_grpc
from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.policy.v1 import policy_service_pb2_grpc as pb_grpc
from podrace.serving.policy_version import PolicyVersion

BATCH, UNDER_WAY, CLIENTS, VERSIONS = 512, 4, 8, 4


def observation(rows: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, OBSERVATION)).astype("<f4")


def quantiles(seconds: list[float]) -> dict[str, float]:
    return {name: round(1e3 * float(np.quantile(seconds, q)), 3) for name, q in (("p50_ms", 0.5), ("p99_ms", 0.99))}


async def latency(stub: Any, empty: Any, rate: float, seconds: float) -> dict[str, Any]:
    act = pb.ActRequest(observations=observation(1).tobytes())
    live = open_inference_pb2.ServerLiveRequest()
    taken: dict[str, list[float]] = {"act": [], "empty": []}
    failed: Counter[str] = Counter()

    async def one(name: str, due: float) -> None:
        try:
            await (stub.Act(act, timeout=30.0) if name == "act" else empty.ServerLive(live, timeout=30.0))
            taken[name].append(time.perf_counter() - due)
        except Exception as error:
            failed[type(error).__name__] += 1

    tasks, start, count = [], time.perf_counter() + 0.1, int(2 * rate * seconds)
    for number in range(count):
        due = start + number / (2 * rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one("act" if number % 2 else "empty", due)))
    await asyncio.gather(*tasks)
    found = {name: quantiles(values) for name, values in taken.items()}
    ratios = {f"{key[:3]}_ratio": round(found["act"][key] / found["empty"][key], 2) for key in found["act"]}
    return {**found, **ratios, "failed": sum(failed.values()), "requests_per_second_each": rate}


def processor_seconds(pid: int) -> float:
    """Returns the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def floor(seconds: float) -> int:
    """Returns actions per second of processor time of ONNX Runtime alone, on one thread."""
    policy, seen, state = PolicyVersion(model(1)), observation(BATCH), np.zeros((BATCH, 0), np.float32)
    policy.compute(seen, state, outputs=False)
    done, started = 0, time.process_time()
    while (taken := time.process_time() - started) < seconds:
        policy.compute(seen, state, outputs=False)
        done += BATCH
    return round(done / taken)


async def throughput(stub: Any, seconds: float, pid: int) -> dict[str, Any]:
    request, done = pb.ActRequest(observations=observation(BATCH).tobytes()), 0
    end = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await stub.Act(request, timeout=30.0)
            done += BATCH

    started, used = time.perf_counter(), processor_seconds(pid)
    await asyncio.gather(*(client() for _ in range(UNDER_WAY)))
    used = processor_seconds(pid) - used
    return {
        "batch": BATCH,
        "actions_per_second": round(done / (time.perf_counter() - started)),
        "actions_per_processor_second": round(done / used) if used else 0,
        "floor_per_processor_second": floor(seconds),
    }


async def swaps(stub: Any, server: Server, count: int) -> dict[str, Any]:
    models = [model(seed) for seed in range(1, VERSIONS + 1)]
    policies = {version(seed): PolicyVersion(models[seed - 1]) for seed in range(1, VERSIONS + 1)}
    stop, answers = asyncio.Event(), Counter[str]()

    async def client(number: int) -> None:
        seen, state = observation(16, number), np.zeros((16, 0), np.float32)
        wanted = {name: one.compute(seen, state, outputs=False)["action"] for name, one in policies.items()}
        request = pb.ActRequest(observations=seen.tobytes())
        while not stop.is_set():
            try:
                answer = await rpc.call(stub.Act, request, deadline_seconds=30.0)
            except PodraceError:
                answers["failed"] += 1
                continue
            same = (np.frombuffer(answer.actions, "<i8") == wanted[answer.version]).all()
            answers["right" if same else "mixed"] += 1

    clients, done = [asyncio.create_task(client(number)) for number in range(CLIENTS)], 0
    for swap in range(1, count + 1):
        number = swap % VERSIONS
        incoming = server.folder / "incoming"
        incoming.write_bytes(models[number])
        incoming.replace(server.folder / "policy.onnx")
        done += await served(stub, version(number + 1))
    stop.set()
    await asyncio.gather(*clients)
    return {"swaps": done, "requests": sum(answers.values()), **{key: answers[key] for key in ("failed", "mixed")}}


async def served(stub: Any, wanted: str) -> bool:
    """Waits until a version serves."""
    while (await stub.GetServing(pb.GetServingRequest(), timeout=30.0)).serving.version != wanted:
        await asyncio.sleep(0.01)
    return True


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1000.0, help="requests of each kind a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each of the first two parts")
    parser.add_argument("--swaps", type=int, default=1000, help="replacements of the policy under load")
    options = parser.parse_args()
    files = pb.DESCRIPTOR, open_inference_pb2.DESCRIPTOR
    async with running() as server, rpc.connect(server.address, *files) as channel:
        stub, empty = pb_grpc.PolicyServiceStub(channel), open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        await latency(stub, empty, 100.0, 1.0)
        report = {
            "network": f"{OBSERVATION}-256-256-{CHOICES}",
            "load_average": float(Path("/proc/loadavg").read_text().split()[0]),
            "latency": await latency(stub, empty, options.rate, options.seconds),
            "throughput": await throughput(stub, options.seconds, server.process.pid),
            "swaps": await swaps(stub, server, options.swaps),
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    asyncio.run(main())

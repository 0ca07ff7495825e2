"""Measures the plane `shared` between two processes, beside memcpy in the same run; prints one JSON object a line.

Two ways to hand a tensor over, both timed from the first byte written to the peer's answer:
    write_in_place           the owner fills the tensor where it lies and sends a token; the peer opens it and answers
    copy_in_read_in_place    the owner copies a tensor in and sends a token; the peer opens it, reads it all and answers
The floor of both is the round trip of a bare pipe (case `shared/token`) plus the memory's own speed (memcpy).

    python benchmarks/planes.py [--quick]
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensors.codec import spec_of
from podrace.tensors.plane import Region
from podrace.tensors.shared import SharedPlane

SIZES_BYTES = {"4KB": 4 * 2**10, "1MB": 2**20, "64MB": 64 * 2**20}
GIGABYTE = 1e9
ECHO, OPEN, READ = b"echo", b"open", b"read"


def answer(connection: Connection) -> None:
    """The peer: does what each token says to the tensor named with it, until the pipe closes."""
    torch.set_num_threads(1)
    plane = SharedPlane(f"podrace-bench_{os.getpid()}-")
    while token := connection.recv_bytes():
        verb, ref = token[:4], token[4:]
        if verb != ECHO:
            tensor = plane.open([TensorRef.FromString(ref)])["payload"]
            if verb == READ:
                tensor.sum()
        connection.send_bytes(verb)


def median_seconds(actions: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """Times some actions in alternation, so that a busy spell of the machine hits all of them; returns the medians."""
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for action, measured in zip(actions, times, strict=True):
            begin = time.perf_counter()
            action()
            measured.append(time.perf_counter() - begin)
    return [statistics.median(measured[len(measured) // 10 :]) for measured in times]


def report(case: str, metric: str, value: float, unit: str, against: str, against_value: float) -> None:
    """Prints one line."""
    line = {
        "benchmark": "planes",
        "case": case,
        "metric": metric,
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "against": against,
        "against_value": float(f"{against_value:.4g}"),
        "ratio": float(f"{value / against_value:.4g}"),
    }
    print(json.dumps(line), flush=True)


def measure_token(connection: Connection, region: Region, rounds: int) -> None:
    """Reports what handing over costs when nothing is written: the token, and the generation check at the peer."""
    token = OPEN + region.refs()[0].SerializeToString()

    def hand_over() -> None:
        exchange(connection, token)

    def bare_pipe() -> None:
        exchange(connection, ECHO)

    with_open, bare = median_seconds([hand_over, bare_pipe], rounds)
    report("shared/token", "hand_over_microseconds", with_open * 1e6, "us", "pipe", bare * 1e6)


def measure_size(connection: Connection, region: Region, name: str, rounds: int) -> None:
    """Reports both ways of handing over one tensor as bytes of the tensor a second, beside memcpy of as many bytes."""
    payload = region["payload"]
    source, target = torch.randn_like(payload), torch.empty_like(payload)
    ref = region.refs()[0].SerializeToString()

    def write_in_place() -> None:
        payload.fill_(1.0)
        exchange(connection, OPEN + ref)

    def copy_in_read_in_place() -> None:
        payload.copy_(source)
        exchange(connection, READ + ref)

    def memcpy() -> None:
        target.copy_(source)

    *ways, floor = median_seconds([write_in_place, copy_in_read_in_place, memcpy], rounds)
    size = payload.numel() * payload.element_size()
    for metric, seconds in zip(("write_in_place", "copy_in_read_in_place"), ways, strict=True):
        rate, floor_rate = size / seconds / GIGABYTE, size / floor / GIGABYTE
        report(f"shared/{name}", f"{metric}_gigabytes_per_second", rate, "GB/s", "memcpy", floor_rate)


def exchange(connection: Connection, token: bytes) -> None:
    """Sends a token and waits for the answer."""
    connection.send_bytes(token)
    connection.recv_bytes()


def payload_of(size_bytes: int) -> Tensor:
    """Returns a float32 tensor of that many bytes that takes no memory."""
    return torch.empty(size_bytes // 4, dtype=torch.float32, device="meta")


def main() -> None:
    """Starts the peer and measures one size after the other."""
    parser = argparse.ArgumentParser(description="Bandwidth of the shared plane beside memcpy, as JSON lines.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    rounds = 300 if parser.parse_args().quick else 3000
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    connection, far_end = context.Pipe()
    peer = context.Process(target=answer, args=(far_end,), daemon=True)
    peer.start()
    plane = SharedPlane(f"podrace-bench_{os.getpid()}-")
    try:
        measure_token(connection, plane.create("token", [spec_of("payload", payload_of(4))]), rounds)
        for name, size_bytes in SIZES_BYTES.items():
            region = plane.create(name, [spec_of("payload", payload_of(size_bytes))])
            measure_size(connection, region, name, rounds if size_bytes <= 2**20 else rounds // 10)
            region.close()
    finally:
        plane.close()
        connection.send_bytes(b"")
        peer.join(timeout=10)


if __name__ == "__main__":
    main()

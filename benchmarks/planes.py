"""Measures the planes between two processes, and memcpy and plain gRPC in the same run; prints JSON lines.

Ways to pass a tensor to the peer, all timed from the first byte written to the peer's answer:
    write_in_place           the owner writes the tensor in the plane and sends a token; the peer opens it and answers
    copy_in_read_in_place    the owner copies a tensor in and sends a token; the peer opens it, reads it all and answers
    pull_and_read            the same over `grpc` (with digests) and `group`: the peer pulls a copy and reads it
    grpc_bytes               without a plane: the bytes in messages of 1 MiB, the peer reads each
    grpc_unary               without a plane: all bytes in one message, with a raised limit; the peer reads it
The lower bound of the first two is the round trip of a pipe (case `shared/token`) plus the speed of the memory: memcpy,
and memcpy followed by reading the copy once, in one process.

If there is a GPU, the plane `cuda` is compared with a copy on the device.

    python benchmarks/planes.py [--quick]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc
import numpy as np
import torch
from torch import Tensor

from podrace.rpc import Server, ServerConfig, Service
from podrace.tensor.v1 import tensor_pb2, tensor_pb2_grpc
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensor_transport.codec import spec_of
from podrace.tensor_transport.cuda import CudaPlane
from podrace.tensor_transport.cupy_driver import CupyDriver
from podrace.tensor_transport.plane import Plane, Planes, Region
from podrace.tensor_transport.remote import CHUNK_BYTES, GrpcPlane, TensorServicer
from podrace.tensor_transport.shared import SharedPlane
from podrace.tensor_transport.transfer import GroupPlane, TransferServicer

SIZES_BYTES = {"64kB": 2**16, "1MB": 2**20, "64MB": 2**26, "1GB": 2**30}
BUDGET_BYTES = 2**35
"""Bytes per way and size, over all rounds."""
GIGABYTE = 1e9
ECHO, OPEN, READ, PULL = b"echo", b"open", b"read", b"pull"
BYTES_METHOD, UNARY_METHOD = "/bench/Bytes", "/bench/Unary"
UNARY_BYTES = 2**26
"""Larger messages take seconds each."""
NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


# --- the peer ------------------------------------------------------------------------------------------------------


def answer(connection: Connection, folder: str) -> None:
    """Executes the verb of each token on its tensor, until an empty token arrives."""
    torch.set_num_threads(1)
    loop = asyncio.new_event_loop()
    prefix = f"podrace-bench_{os.getpid()}-"
    planes = Planes(SharedPlane(prefix), GrpcPlane(), GroupPlane(peer="bench"), CudaPlane(prefix, CupyDriver))
    server = bytes_server(f"unix:{folder}/bytes.sock")
    connection.send_bytes(b"ready")
    while token := connection.recv_bytes():
        verb, refs = token[:4], [TensorRef.FromString(token[4:])]
        if verb == PULL:
            loop.run_until_complete(planes.pull(refs))
        if verb != ECHO:
            tensor = planes.open(refs)["payload"]
            if verb in (READ, PULL):
                tensor.sum()
            if verb == PULL and tensor.is_cuda:
                loop.run_until_complete(planes.push(refs, {}))
        connection.send_bytes(verb)
    planes.close()
    server.stop(None)


def bytes_server(address: str) -> grpc.Server:
    """Starts a server that receives messages of bytes and reads them."""

    def read(messages: Iterator[bytes], context: object) -> bytes:
        total = 0.0
        for message in messages:
            total += float(np.frombuffer(message, np.float32).sum())
        return b"%f" % total

    methods = {
        "Bytes": grpc.stream_unary_rpc_method_handler(read),
        "Unary": grpc.unary_unary_rpc_method_handler(lambda message, context: read(iter([message]), context)),
    }
    handler = grpc.method_handlers_generic_handler("bench", methods)
    server = grpc.server(futures.ThreadPoolExecutor(1), options=NO_LIMIT)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(address)
    server.start()
    return server


# --- the owner -----------------------------------------------------------------------------------------------------


@contextmanager
def serving(copied: GrpcPlane, grouped: GroupPlane, address: str) -> Iterator[None]:
    """Serves the regions of two planes from a thread, as a learner's event loop does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    services, add = tensor_pb2.DESCRIPTOR.services_by_name, tensor_pb2_grpc
    transfers = TransferServicer(grouped)
    offered = [
        Service(services["TensorService"], add.add_TensorServiceServicer_to_server, TensorServicer(copied)),
        Service(services["TransferService"], add.add_TransferServiceServicer_to_server, transfers),
    ]
    config = ServerConfig(listen=address, grace_seconds=0.0)
    server = asyncio.run_coroutine_threadsafe(Server.start(config, offered), loop).result()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(transfers.close)
        asyncio.run_coroutine_threadsafe(server.drain(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def chunks(tensor: Tensor) -> Iterator[bytes]:
    """Yields a tensor as messages of bytes."""
    data = memoryview(tensor.numpy()).cast("B")
    for begin in range(0, len(data), CHUNK_BYTES):
        yield bytes(data[begin : begin + CHUNK_BYTES])


def exchange(connection: Connection, token: bytes) -> None:
    """Sends a token and waits for the answer."""
    connection.send_bytes(token)
    connection.recv_bytes()


def median_seconds(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Times several actions in alternation, so that other load affects all of them equally; returns the medians."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            begin = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(measured[len(measured) // 10 :]) for name, measured in times.items()}


def report(case: str, metric: str, value: float, unit: str, against: str, against_value: float) -> None:
    """Prints one result."""
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


def measure_token(connection: Connection, name: str, region: Region, rounds: int) -> None:
    """Reports the cost of a hand-over without writing: the token, and the generation check at the peer."""
    token = OPEN + region.refs()[0].SerializeToString()
    actions = {
        "hand_over": lambda: exchange(connection, token),
        "pipe": lambda: exchange(connection, ECHO + token[4:]),
    }
    seconds = median_seconds(actions, rounds)
    report(name, "hand_over_microseconds", seconds["hand_over"] * 1e6, "us", "pipe", seconds["pipe"] * 1e6)


COMPARISONS = (
    ("shared", "write_in_place", "memcpy"),
    ("shared", "copy_in_read_in_place", "memcpy"),
    ("shared", "copy_in_read_in_place", "memcpy_and_read"),
    ("shared", "copy_in_read_in_place", "grpc_bytes"),
    ("shared", "copy_in_read_in_place", "grpc_unary"),
    ("grpc", "grpc_pull_and_read", "grpc_bytes"),
    ("group", "group_pull_and_read", "grpc_bytes"),
)
"""Plane of each case, the way that is measured, and the way that it is compared with."""


def measure_size(
    connection: Connection, channel: grpc.Channel, regions: Mapping[str, Region], name: str, rounds: int
) -> None:
    """Reports all ways of passing one tensor, in bytes of the tensor per second."""
    payload = regions["shared"]["payload"]
    seconds = median_seconds(ways_of_passing(connection, channel, regions, payload), rounds)
    rates = {way: payload.nbytes / time_ / GIGABYTE for way, time_ in seconds.items()}
    for case, way, against in COMPARISONS:
        if against in rates:
            metric = f"{way.removeprefix(f'{case}_')}_gigabytes_per_second"
            report(f"{case}/{name}", metric, rates[way], "GB/s", against, rates[against])


def ways_of_passing(
    connection: Connection, channel: grpc.Channel, regions: Mapping[str, Region], payload: Tensor
) -> dict[str, Callable[[], object]]:
    """Returns the actions to time, by name: every way of passing a tensor to the peer, and the lower bounds."""
    source, target = torch.randn_like(payload), torch.empty_like(payload)
    refs = {scheme: region.refs()[0].SerializeToString() for scheme, region in regions.items()}
    send: Any = channel.stream_unary(BYTES_METHOD)
    send_whole: Any = channel.unary_unary(UNARY_METHOD)

    def write_in_place() -> None:
        payload.fill_(1.0)
        exchange(connection, OPEN + refs["shared"])

    def copy_in(scheme: str, verb: bytes) -> Callable[[], None]:
        def action() -> None:
            regions[scheme]["payload"].copy_(source)
            exchange(connection, verb + refs[scheme])

        return action

    actions: dict[str, Callable[[], object]] = {
        "write_in_place": write_in_place,
        "copy_in_read_in_place": copy_in("shared", READ),
        "grpc_pull_and_read": copy_in("grpc", PULL),
        "group_pull_and_read": copy_in("group", PULL),
        "grpc_bytes": lambda: send(chunks(source)),
        "memcpy": lambda: target.copy_(source),
        "memcpy_and_read": lambda: target.copy_(source).sum(),
    }
    if payload.nbytes <= UNARY_BYTES:
        actions["grpc_unary"] = lambda: send_whole(bytes(memoryview(source.numpy()).cast("B")))
    return actions


def measure_cuda(connection: Connection, region: Region, name: str, rounds: int) -> None:
    """Reports a hand-over on the GPU, and a copy that the peer reads, compared with a copy on the device."""
    payload = region["payload"]
    source, target = torch.randn_like(payload), torch.empty_like(payload)

    def hand_over() -> None:
        exchange(connection, OPEN + region.refs()[0].SerializeToString())

    def copy_in_read_in_place() -> None:
        payload.copy_(source)
        exchange(connection, PULL + region.refs()[0].SerializeToString())
        torch.cuda.synchronize()

    def device_copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    actions = {"hand_over": hand_over, "copied": copy_in_read_in_place, "floor": device_copy}
    seconds = median_seconds(actions, rounds)
    report(f"cuda/{name}", "hand_over_microseconds", seconds["hand_over"] * 1e6, "us", "aim", 100.0)
    rates = {way: payload.nbytes / time_ / GIGABYTE for way, time_ in seconds.items()}
    metric = "copy_in_read_in_place_gigabytes_per_second"
    report(f"cuda/{name}", metric, rates["copied"], "GB/s", "copy on the device", rates["floor"])


def payload_of(size_bytes: int) -> Tensor:
    """Returns a float32 tensor of that many bytes that uses no memory."""
    return torch.empty(size_bytes // 4, dtype=torch.float32, device="meta")


def measure(connection: Connection, planes: Sequence[Plane], channel: grpc.Channel, most_rounds: int) -> None:
    """Measures every size."""
    token = planes[0].create("token", [spec_of("payload", payload_of(4))])
    measure_token(connection, "shared/token", token, most_rounds)
    for name, size_bytes in SIZES_BYTES.items():
        rounds = max(3, min(most_rounds, BUDGET_BYTES // size_bytes * most_rounds // 3000))
        specs = [spec_of("payload", payload_of(size_bytes))]
        regions = {plane.scheme: plane.create(name, specs) for plane in planes}
        measure_size(connection, channel, regions, name, rounds)
        if "cuda" in regions:
            measure_cuda(connection, regions["cuda"], name, rounds)
        for region in regions.values():
            region.close()


def main() -> None:
    """Starts the peer and measures."""
    parser = argparse.ArgumentParser(
        description="Measures the bandwidth of the planes and of memcpy; prints JSON lines."
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    most_rounds = 300 if parser.parse_args().quick else 3000
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    connection, peer_connection = context.Pipe()
    prefix = f"podrace-bench_{os.getpid()}-"
    with ExitStack() as resources:
        folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="pr"))
        peer = context.Process(target=answer, args=(peer_connection, folder), daemon=True)
        peer.start()
        resources.callback(peer.join, 10)
        resources.callback(connection.send_bytes, b"")
        connection.recv_bytes()
        address = f"unix:{folder}/tensors.sock"
        copied, grouped = GrpcPlane(address), GroupPlane(address)
        planes: list[Plane] = [SharedPlane(prefix), copied, grouped]
        if torch.cuda.is_available():
            planes.append(CudaPlane(prefix, CupyDriver))
        resources.callback(Planes(*planes).close)
        resources.enter_context(serving(copied, grouped, address))
        channel = resources.enter_context(grpc.insecure_channel(f"unix:{folder}/bytes.sock", NO_LIMIT))
        measure(connection, planes, channel, most_rounds)


if __name__ == "__main__":
    main()

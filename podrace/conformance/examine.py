"""Runs the examination of a contract within its time, and returns the report."""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

from podrace import rpc
from podrace.access.guard import Guard
from podrace.conformance.findings import Judge, Report, Requirement, Violated
from podrace.conformance.tensors import Blocks
from podrace.errors import PodraceError
from podrace.tensor.v1 import tensor_pb2, tensor_pb2_grpc

CONTRACTS = ("simulator", "evolution", "evaluator", "worker", "pod")
Part = Callable[[], Awaitable[None]]


def judge_of(contract: str) -> Judge:
    """Returns a judge of the requirements of a contract."""
    requirements: dict[str, Requirement] = import_module(f"podrace.conformance.requirements.{contract}").REQUIREMENTS
    return Judge(requirements)


@asynccontextmanager
async def tensor_server(listen: str, *, insecure: bool = False) -> AsyncIterator[Blocks]:
    """Serves tensors for the block; the examined service reads and writes them.

    Raises:
        Unavailable, FailedPrecondition: The address cannot be used.
    """
    blocks = Blocks()
    service = rpc.Service(
        tensor_pb2.DESCRIPTOR.services_by_name["TensorService"],
        tensor_pb2_grpc.add_TensorServiceServicer_to_server,
        blocks,
    )
    config = rpc.ServerConfig(listen=listen, grace_seconds=0.0, insecure=insecure)
    server = await rpc.Server.start(config, [service], guard=Guard.of_anyone())
    blocks.address = server.address
    try:
        yield blocks
    finally:
        await server.drain()


async def run_parts(contract: str, address: str, judge: Judge, parts: Sequence[Part], *, most_seconds: float) -> Report:
    """Runs one part of an examination after another.

    A violated requirement, or an error of the examination itself, may end a part, and never the next one.

    Args:
        contract: What is examined.
        address: Where.
        judge: Records what is found.
        parts: The parts, in order.
        most_seconds: Time for all of them; what is not examined by then is reported as untested.

    Raises:
        PodraceError: Nothing can be examined, because the service does not accept the caller, for instance.
    """
    begun = time.monotonic()
    unfinished: list[str] = []
    try:
        async with asyncio.timeout(most_seconds):
            for part in parts:
                try:
                    await part()
                except Violated:
                    continue
                except PodraceError:
                    raise
                except Exception as error:
                    # A response that no check foresaw must not hide what was found before.
                    unfinished.append(_failure(error))
    except TimeoutError:
        unfinished.append(f"the {most_seconds:g} s of the examination were over; --seconds gives it more")
    if reason := "; ".join(dict.fromkeys(unfinished)):
        judge.skip_rest(reason)
    return Report(contract, address, tuple(judge.findings()), time.monotonic() - begun, reason)


def _failure(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    return " ".join(f"a part of the examination failed at {where} with {type(error).__name__}: {error}".split())

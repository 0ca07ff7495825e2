"""Services of podrace, and the examples, pass the examination of their contracts."""

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from reports import untested, wrong

from agentpod.compute_thread import ComputeThread
from agentpod.roles.evaluator import EvaluatorServicer
from agentpod.roles.worker import WorkerServicer
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2, agentpod_pb2_grpc
from podrace.conformance.findings import Report
from podrace.conformance.sessions import Examination, examine
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.remote import GrpcPlane

REPOSITORY = Path(__file__).parents[3]
IDS = ("cartpole", "pendulum", "CartPole-v1", "spread", "tag", "matrix:two-step")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder directly under /tmp, because Linux limits socket paths to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        yield Path(name)


@contextmanager
def child(*command: str, cwd: Path = REPOSITORY) -> Iterator[str]:
    """Runs a program that prints its address, or only its port, at the end of its first line."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            word = process.stdout.readline().split()[-1]
            yield word if ":" in word else f"127.0.0.1:{word}"
        finally:
            process.kill()


def assert_passes(report: Report, *not_examined: str) -> None:
    assert wrong(report) == {}
    assert untested(report) <= set(not_examined)


async def test_the_simulator_service_passes(folder: Path) -> None:
    listen = f"unix:{folder}/s.sock"
    command = [sys.executable, "-m", "simulators", "--set", f"server.listen={listen}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    folder.chmod(0o700)
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            await rpc.wait_until_serving(listen, deadline_seconds=60.0)
            reports = [await examine(Examination("simulator", listen, id=id)) for id in IDS]
        finally:
            process.kill()
    for id, report in zip(IDS, reports, strict=True):
        # The games of matrix: are the same for every seed.
        same = ("lanes-differ",) if id.startswith("matrix:") else ()
        assert_passes(report, "split-actions", "message-size", *same)


async def test_the_examples_of_an_updater_and_an_evaluator_pass() -> None:
    with child(sys.executable, "examples/custom/updater.py", "127.0.0.1:0") as address:
        report = await examine(Examination("evolution", address))
    assert wrong(report) == {}
    with child(sys.executable, "examples/custom/evaluator_service.py", "127.0.0.1:0") as address:
        report = await examine(Examination("evaluator", address))
    assert_passes(report, "mean", "variance", "same-episodes")


async def test_the_examples_in_javascript_pass(node_program: Callable[[Path], Path]) -> None:
    examples, protos = REPOSITORY / "examples" / "custom", str(REPOSITORY / "protos")
    program = node_program(examples / "simulator-node")
    with child("node", "simulator.js", protos, "127.0.0.1:0", cwd=program) as address:
        report = await examine(Examination("simulator", address, id="point"))
    assert_passes(report, "split-actions", "message-size", "unseen-memory")
    program = node_program(examples / "generator-node")
    with child("node", "generator.js", protos, "127.0.0.1:0", cwd=program) as address:
        report = await examine(Examination("evolution", address))
    assert wrong(report) == {}


@asynccontextmanager
async def serving(folder: Path, name: str, servicer: Any) -> AsyncIterator[str]:
    descriptor = agentpod_pb2.DESCRIPTOR.services_by_name[name]
    add = getattr(agentpod_pb2_grpc, f"add_{name}Servicer_to_server")
    folder.chmod(0o700)
    config = rpc.ServerConfig(listen=f"unix:{folder}/r.sock", grace_seconds=0.0)
    server = await rpc.Server.start(config, [rpc.Service(descriptor, add, servicer)])
    try:
        yield server.address
    finally:
        await server.drain()


@pytest.fixture
def compute() -> Iterator[ComputeThread]:
    thread = ComputeThread()
    yield thread
    thread.close()


@pytest.mark.parametrize("environment", ["cartpole", "CartPole-v1", "Pendulum-v1"])
async def test_the_worker_of_a_pod_passes(folder: Path, compute: ComputeThread, environment: str) -> None:
    servicer = WorkerServicer(Planes(GrpcPlane()), compute)
    async with serving(folder, "WorkerService", servicer) as address:
        report = await examine(Examination("worker", address, environment=environment))
    assert_passes(report, "final-observation")


async def test_the_evaluator_of_a_pod_passes_except_for_its_single_session(
    folder: Path, compute: ComputeThread
) -> None:
    servicer = EvaluatorServicer(Planes(GrpcPlane()), compute)
    async with serving(folder, "EvaluatorService", servicer) as address:
        report = await examine(Examination("evaluator", address))
    assert [words for words in wrong(report) if "Opening a session" not in words] == []

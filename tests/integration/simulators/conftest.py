"""Fixtures: a simulator service as a child process, and services with scripted responses."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from podrace.simulator.v1 import simulator_pb2_grpc as pb_grpc
from podrace.simulator.v1.simulator_pb2 import StreamStepsRequest as Request
from podrace.simulator.v1.simulator_pb2 import StreamStepsResponse as Response

START_SECONDS = 60


@pytest.fixture(scope="session")
def service() -> Iterator[str]:
    """Starts `python -m simulators`; returns the address as an id prefix."""
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as folder:
        address = f"unix:{folder}/s.sock"
        settings = [f"server.listen={address}", "server.grace_seconds=0.2", "limits.maximum_environments=5000"]
        arguments = [argument for setting in settings for argument in ("--set", setting)]
        child = subprocess.Popen([sys.executable, "-m", "simulators", *arguments])
        try:
            with grpc.insecure_channel(address) as channel:
                grpc.channel_ready_future(channel).result(timeout=START_SECONDS)
            yield f"grpc://{address}"
        finally:
            child.terminate()
            child.wait(20)


Answers = Callable[[Request], list[Response]]


class ScriptedService(pb_grpc.SimulatorServiceServicer):
    """Answers every request by a given function, in a thread of this process."""

    def __init__(self, folder: str) -> None:
        self.address = f"unix:{folder}/s.sock"
        self.answers: Answers = lambda request: []
        self.ending: tuple[grpc.StatusCode, str] | None = None
        """Status with which the next request ends its stream; None: it is answered."""
        self.server = grpc.server(ThreadPoolExecutor(4))
        pb_grpc.add_SimulatorServiceServicer_to_server(self, self.server)
        self.server.add_insecure_port(self.address)
        self.server.start()

    def StreamSteps(self, requests: Iterator[Request], context: Any) -> Iterator[Response]:
        for request in requests:
            if self.ending:
                context.abort(*self.ending)
            yield from self.answers(request)


@pytest.fixture
def scripted() -> Iterator[ScriptedService]:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as folder:
        service = ScriptedService(folder)
        yield service
        service.server.stop(0).wait()


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[3]

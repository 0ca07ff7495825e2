import asyncio
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.process import launcher as launcher_module
from orchestrator.launchers.process import pod_files
from orchestrator.launchers.process.launcher import ProcessLauncher
from orchestrator.launchers.process.pod_files import POD_FILE, PodsPresent, Reservation
from podrace.processes.identity import Process, boot_id
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import LAYOUT_SEPARATE, PodSpec

TIMEOUT_SECONDS = 10.0


class ScriptedForkServer:
    """Answers when the gate is open, with pods whose leader is the process of this test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.gate = folder, asyncio.Event()
        self.gate.set()

    async def send_request(self, request: Mapping[str, Any], secrets: bytes = b"") -> dict[str, Any]:
        await self.gate.wait()
        own, order = Process.find(os.getpid()), request["pod"]
        assert own is not None
        leader = {"pid": own.pid, "start_ticks": own.start_ticks}
        content = {"pod_id": order["pod_id"], "tournament_id": "t", "start_time": 0.0, "layout": "separate"}
        content |= {"cores": 1.0, "memory_bytes": 1, "gpus": [], "cpus": order["cpus"], "boot_id": boot_id()}
        (self.folder / order["pod_id"]).mkdir(exist_ok=True)
        (self.folder / order["pod_id"] / POD_FILE).write_text(json.dumps(content | {"roles": {"learner": leader}}))
        return {"pid": own.pid}


@pytest.fixture
async def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessLauncher:
    monkeypatch.setattr(launcher_module, "allowed_cpus", lambda: list(range(4)))
    shared = PodEnvironment("unix:/o", "unix:/l", "", tmp_path, tmp_path, "", 60.0, TelemetryConfig())
    made = ProcessLauncher(shared, lambda: None, shared_memory=tmp_path, others_cpus=lambda _: {3})
    made._forkserver = ScriptedForkServer(tmp_path / "pods")  # type: ignore[assignment]
    (tmp_path / "pods").mkdir()
    return made


def pod(number: int) -> NewPod:
    spec = PodSpec(layout=LAYOUT_SEPARATE, workers=1, learners=1, cores=1.0, memory_bytes=1)
    return NewPod(f"t-p{number}", "t", spec)


def cpus(launcher: ProcessLauncher, number: int) -> list[int]:
    content = json.loads((launcher._folder / f"t-p{number}" / POD_FILE).read_text())
    return list(content["cpus"])


@pytest.mark.parametrize("operation", ["start", "stop", "list", "capacity"])
async def test_an_operation_reads_each_file_at_most_once_and_not_on_the_event_loop(
    launcher: ProcessLauncher, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    for number in range(3):
        await launcher.start(pod(number))
    read, threads, original = [], set(), pod_files.read_pod_file

    def recording(path: Path) -> Any:
        read.append(path.parent.name)
        threads.add(threading.get_ident())
        return original(path)

    monkeypatch.setattr(pod_files, "read_pod_file", recording)
    monkeypatch.setattr(launcher_module, "read_pod_file", recording)
    if operation == "start":
        await launcher.start(pod(3))
    elif operation == "stop":
        await launcher.stop("t-p9", kill=False)
    else:
        await getattr(launcher, operation)()
    assert read == (["t-p9"] if operation == "stop" else ["t-p0", "t-p1", "t-p2"])
    assert threading.get_ident() not in threads
    for watched in list(launcher._watched):
        launcher._unwatch(watched)


async def started_during_a_read(launcher: ProcessLauncher, monkeypatch: pytest.MonkeyPatch) -> asyncio.Task[None]:
    """Starts pod 0, which is not complete before the files are read next, and is when their content is used."""
    forkserver: Any = launcher._forkserver
    forkserver.gate.clear()
    starting = asyncio.create_task(launcher.start(pod(0)))
    while "t-p0" not in launcher._starting:
        await asyncio.sleep(0)
    loop, started = asyncio.get_running_loop(), threading.Event()
    starting.add_done_callback(lambda _: started.set())

    def read(folder: Path, starting: Mapping[str, Reservation]) -> PodsPresent:
        found = pod_files.read_pods(folder, starting)
        loop.call_soon_threadsafe(forkserver.gate.set)
        assert started.wait(TIMEOUT_SECONDS)
        return found

    monkeypatch.setattr(launcher_module, "read_pods", read)
    return starting


async def test_a_pod_that_has_started_while_the_files_were_read_keeps_its_processors(
    launcher: ProcessLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await started_during_a_read(launcher, monkeypatch)
    await launcher.start(pod(1))
    await first
    assert (cpus(launcher, 0), cpus(launcher, 1)) == ([0], [1])


async def test_a_pod_that_has_started_while_the_files_were_read_keeps_its_folder(
    launcher: ProcessLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    await launcher.start(pod(0))
    file = launcher._folder / "t-p0" / POD_FILE
    # Left by a run of the pod before the machine was started again.
    file.write_text(json.dumps(json.loads(file.read_text()) | {"boot_id": "another"}))
    again = await started_during_a_read(launcher, monkeypatch)
    assert await launcher.list() == []
    await again
    assert json.loads(file.read_text())["boot_id"] == boot_id()


async def test_pods_that_start_together_get_separate_processors(launcher: ProcessLauncher) -> None:
    await asyncio.gather(*(launcher.start(pod(number)) for number in range(4)))
    assert sorted(cpu for number in range(4) for cpu in cpus(launcher, number)) == [0, 1, 2]

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.pod_settings import threads_of_a_role
from orchestrator.launchers.process import launcher as launcher_module
from orchestrator.launchers.process.launcher import ProcessLauncher, choose_cpus, reachable_host
from orchestrator.launchers.process.local_gpus import LocalGpus
from podrace.errors import FailedPrecondition, InvalidArgument, PodraceError, Unavailable
from podrace.gpus import Gpu, Reading
from podrace.processes.identity import Process
from podrace.processes.metrics_ports import port_file
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import PodSpec

STAND_IN = Path(__file__).parent / "stand_in"
FUSED, SEPARATE = tournament_pb2.LAYOUT_FUSED, tournament_pb2.LAYOUT_SEPARATE
TIMEOUT_SECONDS = 10.0


def pod(pod_id: str = "race-aaaaaa-p0", **fields: Any) -> NewPod:
    values: dict[str, Any] = {"layout": SEPARATE, "workers": 1, "cores": 1.0, "memory_bytes": 1 << 30, "gpus": 0}
    return NewPod(pod_id, "race-aaaaaa", PodSpec(**(values | fields)))


class LauncherHarness:
    """A launcher with a separate folder, and what its pods leave there."""

    def __init__(
        self,
        folder: Path,
        store: str = "",
        gpus: LocalGpus | None = None,
        owns_tournament: Callable[[str], bool] = lambda _: True,
        others_cpus: Collection[int] = (),
    ) -> None:
        self.folder, self.died = folder, asyncio.Event()
        self.shared_memory = folder / "shm"
        self.shared_memory.mkdir(exist_ok=True)
        shared = PodEnvironment("unix:/o", "unix:/l", store, folder, folder, "", 60.0, TelemetryConfig())
        pod_environment = replace(shared, owns_tournament=owns_tournament)
        self.launcher = ProcessLauncher(
            pod_environment,
            self.died.set,
            shared_memory=self.shared_memory,
            gpus=gpus,
            # Tests that run at the same time have pods, too.
            others_cpus=lambda _: set(others_cpus),
        )

    def file(self, pod_id: str = "race-aaaaaa-p0") -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "pods" / pod_id / "pod.json").read_text())
        return content

    def processes(self, pod_id: str = "race-aaaaaa-p0") -> dict[str, Process]:
        return {name: Process(role["pid"], role["start_ticks"]) for name, role in self.file(pod_id)["roles"].items()}

    async def listed(self) -> list[str]:
        return [found.pod_id for found in await self.launcher.list()]

    async def death(self) -> None:
        await asyncio.wait_for(self.died.wait(), TIMEOUT_SECONDS)
        self.died.clear()

    async def cleaned_up(self) -> None:
        """Lists pods until no pod folder is left."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while await self.launcher.list() or any((self.folder / "pods").iterdir()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0)


def forkserver_processes(folder: Path) -> list[psutil.Process]:
    """The fork server of a folder and its pods, which share its command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "ppid"])
        if f"socket={folder}/forkserver.sock" in (process.info["cmdline"] or ())
    ]


def forkservers_of(folder: Path) -> list[psutil.Process]:
    found = forkserver_processes(folder)
    return [process for process in found if process.info["ppid"] == os.getpid()]


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> Iterator[None]:
    """Makes `python -m agentpod` run the stand-in, and kills its processes after the test."""
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.chdir(short_folder)
    yield
    for process in forkserver_processes(short_folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture
async def harness(short_folder: Path) -> AsyncIterator[LauncherHarness]:
    made = LauncherHarness(short_folder)
    async with made.launcher:
        yield made


@pytest.fixture
def harness_of(short_folder: Path) -> Callable[[str], LauncherHarness]:
    return lambda store: LauncherHarness(short_folder, store)


async def test_a_started_pod_is_listed_with_its_reservation(harness: LauncherHarness) -> None:
    await harness.launcher.start(pod())
    (found,) = await harness.launcher.list()
    assert (found.pod_id, found.tournament_id, found.layout) == ("race-aaaaaa-p0", "race-aaaaaa", SEPARATE)
    assert (found.reserved.cores, found.reserved.memory_bytes, found.reserved.gpus) == (1.0, 1 << 30, 0)
    assert sorted(harness.processes()) == ["evaluator", "learner", "worker-0"]
    assert all(process.lives for process in harness.processes().values())


async def test_every_pod_gets_the_shared_settings(harness: LauncherHarness) -> None:
    await harness.launcher.start(pod(layout=FUSED))
    request = harness.file()["order"]
    assert request["orchestrator"] == "unix:/o"
    assert request["folder"] == str(harness.folder / "pods" / "race-aaaaaa-p0")
    assert request["log_path"] == str(harness.folder / "race-aaaaaa-p0.log")
    assert request["telemetry"]["metrics_listen"] == "127.0.0.1:0"
    assert (request["layout"], request["threads"]) == ("fused", 1)


async def test_a_pod_is_listed_with_the_ports_that_its_present_processes_have_recorded(
    harness: LauncherHarness,
) -> None:
    await harness.launcher.start(pod())
    assert [found.metrics for found in await harness.launcher.list()] == [{}]
    processes = harness.processes()
    for role, pid in (("learner", processes["learner"].pid), ("worker-0", processes["evaluator"].pid)):
        port_file(harness.folder / "pods" / "race-aaaaaa-p0", role).write_text(f"{pid} 40123\n")
    assert [found.metrics for found in await harness.launcher.list()] == [{"learner": "127.0.0.1:40123"}]


@pytest.mark.parametrize(
    ("listen", "host"),
    [("127.0.0.1:0", "127.0.0.1"), ("[::1]:9090", "[::1]"), ("0.0.0.0:0", socket.gethostname()), ("", "")],
)
def test_metrics_are_reached_where_they_are_served(listen: str, host: str) -> None:
    assert reachable_host(listen) == host


async def test_no_process_of_a_pod_starts_with_the_secrets_of_the_service(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PODRACE_STORE_SECRET_KEY", "PODRACE_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"):
        monkeypatch.setenv(name, "hunter2")
    harness = LauncherHarness(short_folder)
    async with harness.launcher:
        await harness.launcher.start(pod())
        processes = forkserver_processes(short_folder)
        assert len(processes) == 4
        for process in processes:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            assert b"PYTHONPATH=" in environ
            assert b"hunter2" not in environ


async def test_starting_a_running_pod_has_no_effect(harness: LauncherHarness) -> None:
    await harness.launcher.start(pod())
    before = harness.processes()
    await harness.launcher.start(pod())
    assert harness.processes() == before


async def test_pods_can_be_started_concurrently(harness: LauncherHarness) -> None:
    names = [f"race-aaaaaa-p{number}" for number in range(4)]
    await asyncio.gather(*(harness.launcher.start(pod(name)) for name in names))
    assert await harness.listed() == names
    assert len(forkservers_of(harness.folder)) == 1


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_pod_is_not_bound_to_a_processor_that_a_pod_of_another_mesh_has(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    first = min(os.sched_getaffinity(0))
    monkeypatch.setattr(launcher_module, "allowed_cpus", lambda: [first])
    harness = LauncherHarness(short_folder, others_cpus=[first] if elsewhere else [])
    async with harness.launcher as launcher:
        await launcher.start(pod())
        assert harness.file()["cpus"] == ([] if elsewhere else [first])


async def test_a_pod_that_grows_gets_the_processors_of_the_pods_that_make_room_for_it(
    harness: LauncherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = sorted(os.sched_getaffinity(0))[:2]
    monkeypatch.setattr(launcher_module, "allowed_cpus", lambda: allowed)
    small = [pod(f"race-aaaaaa-p{number}") for number in range(len(allowed))]
    for one in small:
        await harness.launcher.start(one)
    names = [one.pod_id for one in small]
    grown = pod("race-aaaaaa-p9", cores=float(len(allowed)))
    await harness.launcher.start(replace(grown, replaces=names[0], retired=tuple(names[1:])))
    assert harness.file("race-aaaaaa-p9")["cpus"] == allowed


async def test_pods_with_whole_cores_get_separate_processors(harness: LauncherHarness) -> None:
    await asyncio.gather(*(harness.launcher.start(pod(f"race-aaaaaa-p{number}")) for number in range(3)))
    cpus = [cpu for number in range(3) for cpu in harness.file(f"race-aaaaaa-p{number}")["cpus"]]
    assert len(cpus) == len(set(cpus)) == min(3, len(os.sched_getaffinity(0)))


async def test_a_stopped_pod_is_noticed_at_once_and_leaves_nothing(harness: LauncherHarness) -> None:
    await harness.launcher.start(pod())
    await harness.launcher.list()
    left = harness.processes()
    own, other = "podrace-race-aaaaaa-p0-policy", "podrace-race-aaaaaa-p0-x-policy"
    for name in (own, other):
        (harness.shared_memory / name).touch()
    await harness.launcher.stop("race-aaaaaa-p0", kill=False)
    await harness.death()
    assert await harness.listed() == []
    await harness.cleaned_up()
    assert not any(process.lives for process in left.values())
    assert [path.name for path in harness.shared_memory.iterdir()] == [other], "files of a longer name are kept"


async def test_a_killed_leader_ends_the_other_roles(harness: LauncherHarness) -> None:
    await harness.launcher.start(pod(workers=2))
    await harness.launcher.list()
    left = harness.processes()
    os.kill(left["learner"].pid, signal.SIGKILL)
    await harness.death()
    await harness.cleaned_up()
    assert not any(process.lives for process in left.values())


async def test_a_pod_that_ignores_sigterm_can_be_killed(harness_of: Any) -> None:
    harness = harness_of("stubborn")
    async with harness.launcher:
        await harness.launcher.start(pod())
        left = harness.processes()
        await harness.launcher.stop("race-aaaaaa-p0", kill=False)
        assert await harness.listed() == ["race-aaaaaa-p0"]
        await harness.launcher.stop("race-aaaaaa-p0", kill=True)
        await harness.cleaned_up()
        assert not any(process.lives for process in left.values())


async def test_stopping_an_unknown_pod_has_no_effect(harness: LauncherHarness) -> None:
    await harness.launcher.stop("unknown", kill=True)


async def test_a_leader_that_is_replaced_before_it_has_read_the_processes_of_a_pod_stops_none(
    harness: LauncherHarness,
) -> None:
    def refuse() -> None:
        raise Unavailable("another replica leads")

    await harness.launcher.start(pod())
    environment = harness.launcher._pod_environment
    harness.launcher._pod_environment = replace(environment, check_leads=refuse)
    for kill in (False, True):
        with pytest.raises(Unavailable, match="another replica leads"):
            await harness.launcher.stop("race-aaaaaa-p0", kill=kill)
    assert all(process.lives for process in harness.processes().values())


async def test_the_last_log_line_of_a_pod_is_returned(harness_of: Any) -> None:
    harness = harness_of("crash")
    async with harness.launcher:
        await harness.launcher.start(pod())
        await harness.cleaned_up()
        assert harness.launcher.last_log_line("race-aaaaaa-p0") == "error: no such environment"
        assert harness.launcher.last_log_line("unknown") == ""


@pytest.mark.parametrize(("behavior", "kind"), [("refuse", FailedPrecondition), ("full", Unavailable)])
async def test_a_rejected_request_has_the_reason_of_the_fork_server(
    harness_of: Any, behavior: str, kind: type[PodraceError]
) -> None:
    async with harness_of(behavior).launcher as launcher:
        with pytest.raises(kind, match="race-aaaaaa-p0 was not started: no space"):
            await launcher.start(pod())


async def test_a_fork_server_that_exits_at_once_is_an_error(
    harness: LauncherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(FailedPrecondition, match="the fork server exited at once"):
        await harness.launcher.start(pod())


async def test_a_killed_fork_server_is_started_again_and_its_pods_keep_running(harness: LauncherHarness) -> None:
    await harness.launcher.start(pod())
    (forkserver,) = forkservers_of(harness.folder)
    forkserver.kill()
    forkserver.wait()
    await harness.launcher.start(pod("race-aaaaaa-p1"))
    assert await harness.listed() == ["race-aaaaaa-p0", "race-aaaaaa-p1"]
    await harness.launcher.stop("race-aaaaaa-p0", kill=True)
    await harness.launcher.stop("race-aaaaaa-p1", kill=True)
    await harness.cleaned_up()


async def test_a_restarted_launcher_lists_and_watches_existing_pods(harness_of: Any) -> None:
    first, second = harness_of(""), harness_of("")
    async with first.launcher:
        await first.launcher.start(pod())
    async with second.launcher:
        assert await second.listed() == ["race-aaaaaa-p0"]
        await second.launcher.stop("race-aaaaaa-p0", kill=False)
        await second.death()
        await second.cleaned_up()
    assert forkservers_of(first.folder) == [], "a fork server without pods is stopped"
    assert not (first.folder / "forkserver.sock").exists()


async def test_a_launcher_without_pods_leaves_no_process(harness_of: Any) -> None:
    harness = harness_of("")
    async with harness.launcher:
        assert await harness.listed() == []
    assert forkservers_of(harness.folder) == []


async def test_a_process_with_a_reused_pid_is_not_killed(harness: LauncherHarness) -> None:
    folder = harness.folder / "pods" / "race-aaaaaa-p0"
    folder.mkdir()
    content = {
        "pod_id": "race-aaaaaa-p0",
        "tournament_id": "race-aaaaaa",
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "start_time": 0.0,
        "layout": "fused",
        "cores": 1.0,
        "memory_bytes": 1,
        "gpus": [],
        "cpus": [],
        # The process of this test: if the launcher took it for the pod's, it would be killed.
        "roles": {"learner": {"pid": os.getpid(), "start_ticks": 1}},
    }
    (folder / "pod.json").write_text(json.dumps(content))
    assert await harness.listed() == []
    assert not folder.exists()


async def test_a_pod_folder_without_a_file_is_kept_for_a_while(harness: LauncherHarness) -> None:
    folder = harness.folder / "pods" / "race-aaaaaa-p0"
    folder.mkdir()
    assert await harness.listed() == []
    assert folder.exists()
    os.utime(folder, (0, 0))
    await harness.launcher.list()
    assert not folder.exists()


async def test_the_files_of_pods_of_other_orchestrators_are_left_alone(harness: LauncherHarness) -> None:
    """Fails on the earlier behaviour: whatever lay in the runtime folder and did not run was removed."""
    await harness.launcher.start(pod("race-aaaaaa-p0"))
    await harness.launcher.start(pod("race-bbbbbb-p0"))
    neighbour = LauncherHarness(harness.folder, owns_tournament=lambda name: name == "race-bbbbbb")
    region = harness.shared_memory / "podrace-race-aaaaaa-p0-r1"
    region.touch()
    own = harness.processes("race-bbbbbb-p0")["learner"]
    async with neighbour.launcher:
        assert await neighbour.listed() == ["race-aaaaaa-p0", "race-bbbbbb-p0"]
        for pod_id in ("race-aaaaaa-p0", "race-bbbbbb-p0"):
            leader = harness.processes(pod_id)["learner"]
            await harness.launcher.stop(pod_id, kill=True)
            assert await leader.ended(TIMEOUT_SECONDS)
        (unfinished := harness.folder / "pods" / "race-aaaaaa-p1").mkdir()
        os.utime(unfinished, (0, 0))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (harness.folder / "pods" / "race-bbbbbb-p0").exists():
            assert await neighbour.listed() == []
            assert time.monotonic() < deadline
            await asyncio.sleep(0)
    assert not own.lives
    assert sorted(path.name for path in (harness.folder / "pods").iterdir()) == ["race-aaaaaa-p0", "race-aaaaaa-p1"]
    assert region.exists()
    await harness.cleaned_up()
    assert not region.exists()


async def test_a_pod_of_a_deleted_tournament_is_still_cleaned_up(harness: LauncherHarness) -> None:
    known = {"race-aaaaaa"}
    owner = LauncherHarness(harness.folder, owns_tournament=known.__contains__)
    async with owner.launcher:
        await owner.launcher.start(pod())
        assert await owner.listed() == ["race-aaaaaa-p0"]
        known.clear()
        await owner.launcher.stop("race-aaaaaa-p0", kill=True)
        await owner.death()
        await owner.cleaned_up()


async def test_a_name_that_is_too_long_for_socket_paths_is_rejected(harness: LauncherHarness) -> None:
    with pytest.raises(InvalidArgument, match="characters too long for the pods' socket paths"):
        await harness.launcher.start(pod("x" * 90))


@pytest.mark.parametrize(
    ("cores", "taken", "expected"),
    [
        (1.0, [], (0,)),
        (2.0, [(0,)], (1, 2)),
        (1.0, [(0, 1), (2,)], (3,)),
        (2.0, [(0, 1), (2,)], ()),
        (0.5, [], ()),
        (1.5, [], ()),
    ],
)
def test_processors_are_assigned_only_to_pods_with_whole_cores(
    cores: float, taken: list[tuple[int, ...]], expected: tuple[int, ...]
) -> None:
    assert choose_cpus(cores, [0, 1, 2, 3], taken) == expected


@pytest.mark.parametrize(
    ("layout", "learners", "workers", "cores", "threads"),
    [
        (FUSED, 1, 1, 4.0, 4),
        (FUSED, 1, 1, 0.5, 1),
        (FUSED, 2, 1, 4.0, 2),
        (SEPARATE, 1, 1, 4.0, 2),
        (SEPARATE, 1, 3, 4.0, 1),
        (SEPARATE, 1, 7, 4.0, 1),
    ],
)
def test_the_cores_are_divided_among_the_computing_roles(
    layout: tournament_pb2.Layout.ValueType, learners: int, workers: int, cores: float, threads: int
) -> None:
    spec = PodSpec(layout=layout, learners=learners, workers=workers, cores=cores)
    assert threads_of_a_role(spec) == threads


async def test_pods_get_gpus_of_their_own_by_uuid(short_folder: Path) -> None:
    reading = Reading(tuple(Gpu(f"GPU-{name}", "H100", index, 80, 79) for index, name in enumerate("abc")))
    gpus = LocalGpus(lambda: reading, environ={"CUDA_VISIBLE_DEVICES": "GPU-c,GPU-a"}, owner=lambda _: None)
    harness = LauncherHarness(short_folder, gpus=gpus)
    async with harness.launcher as launcher:
        assert (await launcher.capacity()).total.gpus == 2
        await asyncio.gather(*(launcher.start(pod(f"race-aaaaaa-{name}", gpus=1)) for name in ("p0", "p1")))
        assert [harness.file(f"race-aaaaaa-{name}")["order"]["gpus"] for name in ("p0", "p1")] == [["GPU-c"], ["GPU-a"]]
        assert [listed.reserved.gpus for listed in await launcher.list()] == [1, 1]
        with pytest.raises(Unavailable, match="a pod needs 1 GPUs, 0 are free"):
            await launcher.start(pod("race-aaaaaa-p2", gpus=1))
        grown = replace(pod("race-aaaaaa-p3", gpus=2), replaces="race-aaaaaa-p0", retired=("race-aaaaaa-p1",))
        await launcher.start(grown)
        assert harness.file("race-aaaaaa-p3")["order"]["gpus"] == ["GPU-a", "GPU-c"]

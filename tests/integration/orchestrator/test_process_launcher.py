import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.pod_settings import threads_of_a_role
from orchestrator.launchers.process.launcher import ProcessLauncher, choose_cpus
from podrace.errors import InvalidArgument, Unavailable
from podrace.processes.identity import Process
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import PodSpec

STAND_IN = Path(__file__).parent / "stand_in"
FUSED, SEPARATE = tournament_pb2.LAYOUT_FUSED, tournament_pb2.LAYOUT_SEPARATE
PATIENCE_SECONDS = 10.0


def pod(pod_id: str = "race-aaaaaa-p0", **fields: Any) -> NewPod:
    values: dict[str, Any] = {"layout": SEPARATE, "workers": 1, "cores": 1.0, "memory_bytes": 1 << 30, "gpus": 0}
    return NewPod(pod_id, "race-aaaaaa", PodSpec(**(values | fields)))


class Yard:
    """A launcher over a folder of its own, and what it left there."""

    def __init__(self, folder: Path, store: str = "") -> None:
        self.folder, self.died = folder, asyncio.Event()
        self.shared_memory = folder / "shm"
        self.shared_memory.mkdir(exist_ok=True)
        pod_environment = PodEnvironment("unix:/o", "unix:/l", store, folder, folder, "", 60.0, TelemetryConfig())
        self.launcher = ProcessLauncher(pod_environment, self.died.set, shared_memory=self.shared_memory)

    def file(self, pod_id: str = "race-aaaaaa-p0") -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "pods" / pod_id / "pod.json").read_text())
        return content

    def processes(self, pod_id: str = "race-aaaaaa-p0") -> dict[str, Process]:
        return {name: Process(role["pid"], role["start_ticks"]) for name, role in self.file(pod_id)["roles"].items()}

    async def listed(self) -> list[str]:
        return [found.pod_id for found in await self.launcher.list()]

    async def death(self) -> None:
        await asyncio.wait_for(self.died.wait(), PATIENCE_SECONDS)
        self.died.clear()

    async def swept(self) -> None:
        """Looks until no folder of a pod is left."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while await self.launcher.list() or any((self.folder / "pods").iterdir()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0)


def family(folder: Path) -> list[psutil.Process]:
    """The nursery of a folder and what it forked, which looks like it."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"socket={folder}/nursery.sock" in (process.info["cmdline"] or ())
    ]


def nursery_of(folder: Path) -> list[psutil.Process]:
    found = family(folder)
    return [process for process in found if process.ppid() == os.getpid()]


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> Iterator[None]:
    """`python -m agentpod` means the stand-in here, and nothing of it outlives the test."""
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.chdir(short_folder)
    yield
    for process in family(short_folder):
        process.kill()


@pytest.fixture
async def yard(short_folder: Path) -> AsyncIterator[Yard]:
    made = Yard(short_folder)
    async with made.launcher:
        yield made


@pytest.fixture
def yard_of(short_folder: Path) -> Callable[[str], Yard]:
    return lambda store: Yard(short_folder, store)


async def test_a_pod_that_was_started_is_listed_with_what_it_reserves(yard: Yard) -> None:
    await yard.launcher.start(pod())
    (found,) = await yard.launcher.list()
    assert (found.pod_id, found.tournament_id, found.layout) == ("race-aaaaaa-p0", "race-aaaaaa", SEPARATE)
    assert (found.reserved.cores, found.reserved.memory_bytes, found.reserved.gpus) == (1.0, 1 << 30, 0)
    assert sorted(yard.processes()) == ["evaluator", "learner", "worker-0"]
    assert all(process.lives for process in yard.processes().values())


async def test_every_pod_is_told_where_everything_is(yard: Yard) -> None:
    await yard.launcher.start(pod(layout=FUSED))
    order = yard.file()["order"]
    assert order["orchestrator"] == "unix:/o"
    assert order["folder"] == str(yard.folder / "pods" / "race-aaaaaa-p0")
    assert order["log_path"] == str(yard.folder / "race-aaaaaa-p0.log")
    assert order["telemetry"]["metrics_listen"] == "127.0.0.1:0"
    assert (order["layout"], order["threads"]) == ("fused", 1)


async def test_starting_twice_starts_once(yard: Yard) -> None:
    await yard.launcher.start(pod())
    before = yard.processes()
    await yard.launcher.start(pod())
    assert yard.processes() == before


async def test_many_pods_can_be_started_at_once(yard: Yard) -> None:
    names = [f"race-aaaaaa-p{number}" for number in range(4)]
    await asyncio.gather(*(yard.launcher.start(pod(name)) for name in names))
    assert await yard.listed() == names
    assert len(nursery_of(yard.folder)) == 1


async def test_pods_of_whole_cores_get_processors_of_their_own(yard: Yard) -> None:
    await asyncio.gather(*(yard.launcher.start(pod(f"race-aaaaaa-p{number}")) for number in range(3)))
    given = [cpu for number in range(3) for cpu in yard.file(f"race-aaaaaa-p{number}")["cpus"]]
    assert len(given) == len(set(given)) == min(3, len(os.sched_getaffinity(0)))


async def test_a_pod_that_is_stopped_dies_is_noticed_at_once_and_leaves_nothing(yard: Yard) -> None:
    await yard.launcher.start(pod())
    await yard.launcher.list()
    left = yard.processes()
    mine, other = "podrace-race-aaaaaa-p0-policy", "podrace-race-aaaaaa-p0-x-policy"
    for name in (mine, other):
        (yard.shared_memory / name).touch()
    await yard.launcher.stop("race-aaaaaa-p0", kill=False)
    await yard.death()
    assert await yard.listed() == []
    await yard.swept()
    assert not any(process.lives for process in left.values())
    assert [path.name for path in yard.shared_memory.iterdir()] == [other], "a pod with a longer name keeps its files"


async def test_a_head_that_is_killed_takes_the_other_roles_with_it(yard: Yard) -> None:
    await yard.launcher.start(pod(workers=2))
    await yard.launcher.list()
    left = yard.processes()
    os.kill(left["learner"].pid, signal.SIGKILL)
    await yard.death()
    await yard.swept()
    assert not any(process.lives for process in left.values())


async def test_a_pod_that_ignores_the_request_to_go_can_be_killed(yard_of: Any) -> None:
    yard = yard_of("stubborn")
    async with yard.launcher:
        await yard.launcher.start(pod())
        left = yard.processes()
        await yard.launcher.stop("race-aaaaaa-p0", kill=False)
        assert await yard.listed() == ["race-aaaaaa-p0"]
        await yard.launcher.stop("race-aaaaaa-p0", kill=True)
        await yard.swept()
        assert not any(process.lives for process in left.values())


async def test_stopping_a_pod_that_is_not_there_does_nothing(yard: Yard) -> None:
    await yard.launcher.stop("nobody", kill=True)


async def test_the_last_words_of_a_pod_are_the_last_line_it_wrote(yard_of: Any) -> None:
    yard = yard_of("crash")
    async with yard.launcher:
        await yard.launcher.start(pod())
        await yard.swept()
        assert yard.launcher.last_log_line("race-aaaaaa-p0") == "error: no such environment"
        assert yard.launcher.last_log_line("nobody") == ""


async def test_an_order_that_is_refused_says_why(yard_of: Any) -> None:
    async with yard_of("refuse").launcher as launcher:
        with pytest.raises(Unavailable, match="race-aaaaaa-p0 was not started: no room"):
            await launcher.start(pod())


async def test_a_nursery_that_ends_at_once_is_an_error_with_its_last_words(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(Unavailable, match="the nursery ended at once"):
        await yard.launcher.start(pod())


async def test_a_nursery_that_was_killed_is_started_again_and_its_pods_stay(yard: Yard) -> None:
    await yard.launcher.start(pod())
    (forkserver,) = nursery_of(yard.folder)
    forkserver.kill()
    forkserver.wait()
    await yard.launcher.start(pod("race-aaaaaa-p1"))
    assert await yard.listed() == ["race-aaaaaa-p0", "race-aaaaaa-p1"]
    await yard.launcher.stop("race-aaaaaa-p0", kill=True)
    await yard.launcher.stop("race-aaaaaa-p1", kill=True)
    await yard.swept()


async def test_another_life_of_the_launcher_knows_the_pods_and_watches_them(yard_of: Any) -> None:
    first, second = yard_of(""), yard_of("")
    async with first.launcher:
        await first.launcher.start(pod())
    async with second.launcher:
        assert await second.listed() == ["race-aaaaaa-p0"]
        await second.launcher.stop("race-aaaaaa-p0", kill=False)
        await second.death()
        await second.swept()
    assert nursery_of(first.folder) == [], "a nursery without pods is sent home"
    assert not (first.folder / "nursery.sock").exists()


async def test_a_launcher_that_never_started_anything_leaves_nothing(yard_of: Any) -> None:
    yard = yard_of("")
    async with yard.launcher:
        assert await yard.listed() == []
    assert nursery_of(yard.folder) == []


async def test_a_pid_that_was_reused_is_neither_a_pod_nor_killed(yard: Yard) -> None:
    folder = yard.folder / "pods" / "race-aaaaaa-p0"
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
        # This very process: were it taken for the pod's, the test would not survive.
        "roles": {"learner": {"pid": os.getpid(), "start_ticks": 1}},
    }
    (folder / "pod.json").write_text(json.dumps(content))
    assert await yard.listed() == []
    assert not folder.exists()


async def test_a_folder_whose_file_is_not_written_yet_is_left_alone_for_a_while(yard: Yard) -> None:
    folder = yard.folder / "pods" / "race-aaaaaa-p0"
    folder.mkdir()
    assert await yard.listed() == []
    assert folder.exists()
    os.utime(folder, (0, 0))
    await yard.launcher.list()
    assert not folder.exists()


async def test_a_name_that_is_too_long_for_sockets_is_refused(yard: Yard) -> None:
    with pytest.raises(InvalidArgument, match="characters too long for the sockets of its pods"):
        await yard.launcher.start(pod("x" * 90))


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
def test_processors_are_given_whole_or_not_at_all(
    cores: float, taken: list[tuple[int, ...]], expected: tuple[int, ...]
) -> None:
    assert choose_cpus(cores, [0, 1, 2, 3], taken) == expected


@pytest.mark.parametrize(
    ("layout", "workers", "cores", "threads"),
    [(FUSED, 1, 4.0, 4), (FUSED, 1, 0.5, 1), (SEPARATE, 1, 4.0, 2), (SEPARATE, 3, 4.0, 1), (SEPARATE, 7, 4.0, 1)],
)
def test_the_roles_that_compute_share_the_cores(
    layout: tournament_pb2.Layout.ValueType, workers: int, cores: float, threads: int
) -> None:
    assert threads_of_a_role(PodSpec(layout=layout, workers=workers, cores=cores)) == threads

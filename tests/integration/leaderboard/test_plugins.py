"""Generator and updater plugins of a real leaderboard: functions, services, another language, and every failure."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from leaderboard.config import PluginConfig
from leaderboard.generator import Generator
from leaderboard.plugins import plugin_pool as pool_module
from leaderboard.plugins.plugin_pool import ANSWERS, PluginPool
from leaderboard.service import services
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store_access.access import StoreAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace import rpc
from podrace.checkpoint_store.folder import FolderStore
from podrace.database import Database
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.limits.config import EVERYTHING
from podrace.processes import lifeline
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "cartpole-abc123"
REPOSITORY = Path(__file__).parents[3]
FAULTY = "python:faulty:"


@dataclass
class Clock:
    """A monotonic clock that the test advances."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the faulty functions on the path of child processes; returns the file to which each call adds its pid."""
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{REPOSITORY}")
    monkeypatch.setenv("FAULTY_CALLS", str(folder / "calls"))
    (folder / "calls").touch()
    return folder / "calls"


def pids(calls: Path) -> list[int]:
    return [int(line) for line in calls.read_text().split()]


@pytest.fixture
async def serve(
    folder: Path, store: FolderStore, clock: Clock, calls: Path, make_client: Callable[[str], Any]
) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Starts leaderboards that call plugins, and returns a client whose specification names them."""
    async with contextlib.AsyncExitStack() as stack:
        count = 0

        async def start(**sections: Any) -> Any:
            nonlocal count
            count += 1
            state = Database.open(folder / f"leaderboard-{count}.sqlite", DATABASE_FORMAT, time.time)
            stack.callback(state.close)
            plugins, watch = PluginPool(PluginConfig(), folder, EVERYTHING, clock), SubmissionWatch()
            stack.push_async_callback(plugins.close)
            updater, generator = Updater(state, store, watch, plugins=plugins), Generator(state, plugins)
            stack.push_async_callback(updater.close)
            stack.push_async_callback(generator.close)
            access = StoreAccess(state, store, renew_after_seconds=1800.0)
            served = services(state, watch, updater, generator, SnapshotRecorder(state, store), access)
            config = rpc.ServerConfig(listen=f"unix:{folder}/{count}.sock", grace_seconds=0.5)
            server = await rpc.Server.start(config, served)
            stack.push_async_callback(server.drain)
            stack.push_async_callback(watch.close)
            client = make_client(server.address)
            client.spec = spec_with(**sections)
            stack.push_async_callback(client.channel.close)
            return client

        yield start


def spec_with(**sections: Any) -> TournamentSpec:
    evolution = {"initial_agents": 2, "fresh_probability": 0.0, "board_capacity": 4}
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 1_000_000},
        **sections,
        "evolution": evolution | sections.get("evolution", {}),
    }
    return specification.resolve(specification.parse(values, source="test"))


async def differences(client: Any) -> list[str]:
    request = pb.ReplayTournamentRequest(tournament_id=TOURNAMENT)
    return list((await client.call(client.reading.ReplayTournament, request)).differences)


# --- the examples ------------------------------------------------------------------------------------------------


async def test_the_example_of_a_generator_makes_children_of_the_best(serve: Any) -> None:
    client = await serve(evolution={"generator": "python:examples.custom.generator:propose"})
    first = await client.generate(0)
    assert first.reason.startswith("fresh, python:examples.custom.generator:propose: no parent is available")
    await client.submit(first, 5.0)
    agents = [await client.generate(number) for number in range(1, 6)]
    children = [agent for agent in agents if agent.parent_agent_ids]
    assert children
    annealed = pytest.approx(0.7 * first.hyperparameters["learning_rate"])
    assert [child.hyperparameters["learning_rate"] for child in children] == [annealed] * len(children)
    assert "; child of a0 (4.75 ± 0.5); learning_rate 0.0003 -> 0.00021" in children[0].reason
    assert await differences(client) == []


@contextlib.contextmanager
def serving(*command: str, cwd: Path = REPOSITORY) -> Iterator[str]:
    """Runs a program that prints `serves ADDRESS`, and kills it."""
    child = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        words = child.stdout.readline().split()
        assert words[:1] == ["serves"]
        yield words[1]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


async def test_the_example_of_an_updater_ranks_by_a_lower_confidence_bound(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with serving(sys.executable, "examples/custom/updater.py") as address:
        client = await serve(evolution={"updater": f"grpc://{address}"})
        agents = [await client.generate(number) for number in range(2)]
        first = await client.submit(agents[0], 5.0)
        assert (first.rank, first.rank_score) == (1, 4.0)
        assert first.reason == f"grpc://{address}: at least 4 (ranked by 4); the board has room"
        assert (await client.submit(agents[1], 6.0)).rank == 1
        assert [candidate.rank_score for candidate in await client.candidates()] == [5.0, 4.0]
        assert await differences(client) == []


async def test_the_example_in_another_language_is_called_like_any_other(serve: Any, node_program: Any) -> None:
    folder = node_program(REPOSITORY / "examples/custom/generator-node")
    with serving("node", "generator.js", str(REPOSITORY / "protos"), cwd=folder) as address:
        client = await serve(evolution={"generator": f"grpc://{address}"})
        first = await client.generate(0)
        assert first.reason == f"fresh, grpc://{address}: no candidate has been scored yet; values as specified"
        await client.submit(first, 5.0)
        children = [await client.generate(number) for number in range(1, 9)]
        assert {tuple(child.parent_agent_ids) for child in children} == {(first.agent_id,)}
        discounts = {child.hyperparameters["discount"] for child in children}
        assert len(discounts) > 1
        assert discounts <= {0.97, 0.98, 0.99, 0.995}
        assert await differences(client) == []


async def test_a_service_without_the_method_is_reported(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with serving(sys.executable, "examples/custom/updater.py") as address:
        client = await serve(evolution={"generator": f"grpc://{address}"})
        agent = await client.generate(0)
        assert f"generator grpc://{address}: does not implement the method" in agent.reason
        assert "; built-in strategy incumbent instead: " in agent.reason


# --- what can go wrong -------------------------------------------------------------------------------------------

FAULTS = {
    "raises": "the function raised ValueError: no idea at all",
    "exits": "its process exited with code 3",
    "leaves": "the function raised SystemExit: 4",
    "dies": "its process was killed by SIGSEGV",
    "hangs": "no answer within 1 s",
    "clings": "no answer within 1 s",
    "hoards": "the function raised MemoryError",
    "forgets": "the function returned NoneType, expected ProposeAgentResponse",
    "rambles": "invalid answer: 100006 bytes, expected at most 65536",
}


@pytest.mark.parametrize("function", FAULTS)
async def test_a_failing_generator_is_reported_and_the_built_in_strategy_is_used(
    serve: Any, calls: Path, function: str
) -> None:
    client = await serve(evolution={"generator": FAULTY + function, "answer_duration": "1s"})
    failed = ANSWERS.labels("generator", "failed")
    before = failed._value.get()
    agent = await client.generate(0)
    plain = await serve()
    built_in = await plain.generate(0)
    assert agent.reason == built_in.reason.replace(
        "fresh, ", f"fresh, generator {FAULTY}{function}: {FAULTS[function]}; built-in strategy incumbent instead: "
    )
    assert agent.hyperparameters == built_in.hyperparameters
    assert failed._value.get() == before + 1
    called = len(pids(calls))
    assert await client.generate(0) == agent
    assert len(pids(calls)) == called
    assert await differences(client) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('not now')", "module 'broken' cannot be imported (RuntimeError: not now)"),
        ("import os; os._exit(5)", "its process exited with code 5 before it served"),
        ("this is no python", "module 'broken' cannot be imported (SyntaxError"),
    ],
)
async def test_a_module_that_cannot_be_imported_is_reported_and_imported_again_at_the_next_call(
    serve: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{REPOSITORY}")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    module = folder / "broken.py"
    module.write_text(source)
    client = await serve(evolution={"generator": "python:broken:propose"})
    assert words in (await client.generate(0)).reason
    module.write_text("from faulty import best as propose\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parent}:{REPOSITORY}")
    assert "python:broken:propose: no agent was scored yet" in (await client.generate(1)).reason


async def test_an_unreachable_address_is_reported_at_once(serve: Any) -> None:
    client = await serve(evolution={"generator": "grpc://127.0.0.1:1"})
    begin = time.monotonic()
    agent = await client.generate(0)
    assert time.monotonic() - begin < 2.0
    assert "generator grpc://127.0.0.1:1: unreachable: " in agent.reason


async def test_an_address_at_which_no_grpc_server_listens_is_reported(serve: Any) -> None:
    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(10)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
            await writer.drain()
            writer.close()

    other = await asyncio.start_server(chatter, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    client = await serve(evolution={"generator": f"grpc://127.0.0.1:{port}", "answer_duration": "1s"})
    assert f"generator grpc://127.0.0.1:{port}: " in (await client.generate(0)).reason
    other.close()


async def test_an_answer_that_cannot_be_parsed_is_reported(serve: Any) -> None:
    async def babble(request: bytes, context: Any) -> bytes:
        return b"\xff\xff\xff\xff"

    method = grpc.unary_unary_rpc_method_handler(babble)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("podrace.evolution.v1.EvolutionService", {"ProposeAgent": method})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        client = await serve(evolution={"generator": f"grpc://127.0.0.1:{port}"})
        reason = (await client.generate(0)).reason
        assert f"generator grpc://127.0.0.1:{port}: invalid answer: not a ProposeAgentResponse;" in reason
    finally:
        await server.stop(None)


async def test_a_process_that_exited_is_started_again_for_the_next_call(serve: Any, calls: Path) -> None:
    client = await serve(evolution={"generator": FAULTY + "recovers"})
    assert "its process exited with code 3" in (await client.generate(0)).reason
    assert "recovers: back again" in (await client.generate(1)).reason
    assert len(set(pids(calls))) == 2


async def test_an_exit_after_the_answer_is_no_failure(serve: Any, calls: Path) -> None:
    client = await serve(evolution={"generator": FAULTY + "answers_and_dies"})
    for number in range(2):
        assert "my last answer" in (await client.generate(number)).reason
        while Path(f"/proc/{pids(calls)[-1]}").exists():
            await asyncio.sleep(0.02)


async def test_a_process_that_hangs_is_killed(serve: Any, calls: Path) -> None:
    client = await serve(evolution={"generator": FAULTY + "hangs", "answer_duration": "0.3s"})
    await client.generate(0)
    (pid,) = pids(calls)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_processes_of_a_plugin_are_killed_when_it_crashes(serve: Any, calls: Path) -> None:
    client = await serve(evolution={"generator": FAULTY + "dies_with_a_child"})
    assert "its process was killed by SIGABRT" in (await client.generate(0)).reason
    (child,) = pids(calls)
    async with asyncio.timeout(10):
        while Path(f"/proc/{child}").exists():
            await asyncio.sleep(0.02)


async def test_a_plugin_that_keeps_failing_is_paused_for_a_growing_time(serve: Any, calls: Path, clock: Clock) -> None:
    client = await serve(evolution={"generator": FAULTY + "raises"})
    for number in range(20):
        agent = await client.generate(number)
    assert len(pids(calls)) == 3
    problem = "paused after 3 failures in a row; last failure: the function raised ValueError: no idea at all"
    assert problem in agent.reason
    clock.now += 10.0
    await client.generate(20)
    clock.now += 10.0
    await client.generate(21)
    assert len(pids(calls)) == 4
    clock.now += 10.0
    await client.generate(22)
    assert len(pids(calls)) == 5
    assert await differences(client) == []


async def test_a_usable_answer_resets_the_count_of_failures(serve: Any, calls: Path) -> None:
    client = await serve(evolution={"generator": FAULTY + "stumbles"})
    reasons = [(await client.generate(number)).reason for number in range(9)]
    assert ["stumbles: on my feet" in reason for reason in reasons] == [False, False, True] * 3
    assert len(pids(calls)) == 9


async def test_a_caller_that_gives_up_gets_the_agent_that_was_being_made(serve: Any, calls: Path) -> None:
    client = await serve(evolution={"generator": FAULTY + "thinks"})
    cancelled = asyncio.create_task(client.generate(0))
    while not pids(calls) and not cancelled.done():
        await asyncio.sleep(0.01)
    cancelled.cancel()
    agents = await asyncio.gather(client.generate(0), client.generate(0))
    assert "thinks: thought 1" in agents[0].reason
    assert agents[0] == agents[1]


# --- updaters ----------------------------------------------------------------------------------------------------


async def test_an_updater_orders_the_board_and_keeps_its_capacity(serve: Any) -> None:
    client = await serve(evolution={"updater": FAULTY + "ranks_upside_down", "board_capacity": 2})
    agents = [await client.generate(number) for number in range(3)]
    answers = [await client.submit(agent, score) for agent, score in zip(agents, (3.0, 1.0, 2.0), strict=True)]
    assert [answer.rank for answer in answers] == [1, 1, 2]
    assert [candidate.score for candidate in await client.candidates()] == [1.0, 2.0]
    assert f"saw a1, a0 of {agents[2].agent_id}" in answers[2].reason
    assert (answers[2].opinion, answers[2].rank_score) == (pb.OPINION_ACCEPT, -2.0)
    assert await differences(client) == []


async def test_an_updater_may_refuse_every_candidate(serve: Any) -> None:
    client = await serve(evolution={"updater": FAULTY + "refuses"})
    agent = await client.generate(0)
    response = await client.call(client.updater.SubmitCandidate, client.publish(agent, 5.0))
    assert (response.candidate.verdict, response.best_score) == (pb.VERDICT_REFUSED, 0.0)
    assert response.candidate.reason == f"{FAULTY}refuses: not today; refused"
    assert await client.candidates() == []
    assert await differences(client) == []


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("ranks_by_nothing", "invalid answer: rank_score = nan: expected a finite number"),
        ("hangs", "no answer within 0.5 s"),
    ],
)
async def test_a_failing_updater_is_reported_and_the_built_in_rules_are_used(
    serve: Any, calls: Path, function: str, problem: str
) -> None:
    client = await serve(evolution={"updater": FAULTY + function, "answer_duration": "0.5s"})
    request = client.publish(await client.generate(0), 5.0)
    first = await client.call(client.updater.SubmitCandidate, request)
    reason = f"updater {FAULTY}{function}: {problem}; built-in rules instead: the board has room"
    assert (first.candidate.reason, first.candidate.rank) == (reason, 1)
    called = len(pids(calls))
    assert await client.call(client.updater.SubmitCandidate, request) == first
    assert len(pids(calls)) == called
    assert await differences(client) == []


# --- tournaments -------------------------------------------------------------------------------------------------


async def test_a_synchronous_tournament_with_deterministic_plugins_does_not_depend_on_which_pod_is_faster(
    serve: Any,
) -> None:
    async def population(order: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
        client = await serve(
            synchronous=True,
            evaluation={"episodes": 16},
            pool={"maximum_pods": 3},
            evolution={"generator": FAULTY + "seeded", "updater": FAULTY + "ranks_upside_down"},
        )
        agents: dict[int, pb.Agent] = {}
        reasons: dict[tuple[int, float], str] = {}
        for begin in (0, 3, 6):
            for place in order:
                agents[begin + place] = await client.generate(begin + place)
            for score in (0.0, 1.0):
                for place in order:
                    answer = await client.submit(agents[begin + place], float(begin + place) + score / 2)
                    reasons[begin + place, score] = answer.opinion_reason
        assert await differences(client) == []
        for agent in agents.values():
            agent.ClearField("create_time")
            agent.ClearField("starting_checkpoint")  # its files are not those of the other tournament
        return [agents[number] for number in sorted(agents)], [reasons[key] for key in sorted(reasons)]

    one, other = await population((0, 1, 2)), await population((2, 0, 1))
    assert one == other
    assert "seed" in one[0][8].reason


async def test_statistics_and_unfinished_agents_are_shown(serve: Any) -> None:
    client = await serve(evolution={"generator": FAULTY + "seeded"})
    await client.submit(await client.generate(0), 1.0)
    await client.generate(1)
    request = pb.GenerateAgentRequest(tournament_id=TOURNAMENT, spec=client.spec, number=2)
    request.unfinished_agent_ids.extend([f"{TOURNAMENT}-a1"])
    agent = (await client.call(client.generator.GenerateAgent, request)).agent
    assert "1 unfinished; child of a0" in agent.reason


async def test_when_memory_runs_out_the_child_is_killed_before_its_leaderboard(serve: Any, calls: Path) -> None:
    client = await serve(evolution={"generator": FAULTY + "best"})
    await client.generate(0)
    assert Path(f"/proc/{pids(calls)[0]}/oom_score_adj").read_text() == "1000\n"


# --- the process -------------------------------------------------------------------------------------------------


async def test_a_child_is_killed_with_its_leaderboard(
    folder: Path, calls: Path, make_client: Callable[[str], Any]
) -> None:
    settings = {
        "server.listen": f"unix:{folder}/leaderboard.sock",
        "database": folder / "leaderboard.sqlite",
        "store": folder / "store",
        "runtime_folder": folder / "run",
        "allow.everything": "true",
    }
    overrides = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leaderboard", *overrides, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await rpc.wait_until_serving(f"unix:{folder}/leaderboard.sock", deadline_seconds=20.0)
        client = make_client(f"unix:{folder}/leaderboard.sock")
        client.spec = spec_with(evolution={"generator": FAULTY + "clings"})
        generating = asyncio.create_task(client.generate(0))
        while not pids(calls) and not generating.done():
            await asyncio.sleep(0.02)
        (pid,) = pids(calls)
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    generating.cancel()
    await asyncio.wait([generating])
    await client.channel.close()

    async def until_gone() -> None:
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(until_gone(), 5.0)


async def test_the_files_of_a_killed_leaderboard_are_deleted_and_those_of_a_running_one_are_kept(
    serve: Any, folder: Path
) -> None:
    for name in ("plugins-1-a", "plugins-2-b"):
        os.mkfifo(folder / f"{name}.lifeline")
        (folder / f"{name}-c-1.sock").touch()
    with lifeline.hold(folder / "plugins-2-b.lifeline"):
        client = await serve(evolution={"generator": FAULTY + "best"})
        await client.generate(0)
        left = {path.name for path in folder.glob("plugins-[12]-*")}
        assert left == {"plugins-2-b.lifeline", "plugins-2-b-c-1.sock"}


async def test_a_process_that_is_not_called_for_long_is_killed(
    serve: Any, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "IDLE_SECONDS", 0.05)
    client = await serve(evolution={"generator": FAULTY + "best"})
    await client.generate(0)

    async def until_gone() -> None:
        while Path(f"/proc/{pids(calls)[0]}").exists():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(until_gone(), 5.0)
    assert "no agent was scored yet" in (await client.generate(1)).reason

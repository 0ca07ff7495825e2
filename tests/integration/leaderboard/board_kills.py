"""Kills a leaderboard with SIGKILL at every write to its database and checks what it leaves; prints one JSON line.

A run is a process with the real database, updater and generator. It answers a fixed list of requests, prints each
answer, and reopens its database half-way. It is killed at its k-th write: before the write, after half of its bytes, or
after the write, when the change may be durable without an answer. The same requests are then sent to a new leaderboard
on the same file. These are failures:
    unopened   the file cannot be opened again, or is damaged
    lost       a printed answer is no longer given, or differs
    torn       the board breaks its own rules, or the log does not explain it
    diverged   after all requests the file differs from that of an undisturbed run

    python tests/integration/leaderboard/board_kills.py [--every 1]
"""

import argparse
import asyncio
import contextlib
import ctypes
import itertools
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import structlog
from policy_files import manifest_of, policy_file

from leaderboard import queries
from leaderboard.decision_replay import differences
from leaderboard.evolution.agents import agent_id_of
from leaderboard.generator import Generator
from leaderboard.ranking.board import rank_key
from leaderboard.store import records
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish
from podrace.database import Database, Transaction
from podrace.errors import PodraceError
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, GenerateAgentRequest, SubmitCandidateRequest
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

NOW = 1_700_000_000.0
TOURNAMENTS = {"in-any-order": False, "in-rounds": True}
"""By id: whether it is synchronous."""
FRESH, AGENTS = 3, 6
SCORES = (10.0, 30.0, 30.0, 40.0, 5.0, 40.0)
"""Of the fresh agents in turn: the board fills; an equal one evicts the first, whose better one evicts it again; one is
no better than its own earlier; an equal one evicts again."""
CAPACITY = 2
END = "end"
"""The last line that a run prints."""

MOMENTS = ("before", "half", "after")
"""When a life is killed, seen from its fatal write."""

Request = GenerateAgentRequest | SubmitCandidateRequest
Requests = Sequence[Sequence[Request]]
"""One after the other; those of one step may be made at the same time."""


@dataclass
class Toll:
    """What the kills did."""

    kills: int = 0
    unacknowledged: int = 0
    """Lives that had made something durable which they had not answered yet."""
    unopened: int = 0
    lost: int = 0
    torn: int = 0
    diverged: int = 0

    @property
    def harm(self) -> int:
        """How often something was wrong."""
        return self.unopened + self.lost + self.torn + self.diverged


# --- a life ------------------------------------------------------------------------------------------------------


def make_spec(*, synchronous: bool) -> TournamentSpec:
    """A small specification with parents as early as possible."""
    values = {
        "environment": {"id": "CartPole-v1"},
        "synchronous": synchronous,
        "algorithms": {"ppo": {}, "a2c": {}},
        "objective": {"environment_steps": 1_000_000},
        "evaluation": {"episodes": 16},
        "pool": {"maximum_pods": FRESH},
        "evolution": {"initial_agents": FRESH, "fresh_probability": 0.0, "board_capacity": CAPACITY},
    }
    return specification.resolve(specification.parse(values, source="test"))


def make_requests(store: FolderStore) -> list[list[Request]]:
    """Publishes what is submitted, and returns the requests; those of a list may be made at the same time."""
    found: list[list[Request]] = []
    for name, synchronous in TOURNAMENTS.items():
        spec = make_spec(synchronous=synchronous)
        agents = asyncio.run(first_agents(name, spec))
        found += [
            [generation(name, spec, number, unfinished=range(number)) for number in range(FRESH)],
            *([published(store, name, agents, turn, score)] for turn, score in enumerate(SCORES)),
            [generation(name, spec, number, unfinished=range(FRESH, number)) for number in range(FRESH, AGENTS)],
        ]
    return found


def generation(name: str, spec: TournamentSpec, number: int, unfinished: Sequence[int]) -> GenerateAgentRequest:
    """Asks for an agent."""
    return GenerateAgentRequest(
        request_id=agent_id_of(name, number),
        tournament_id=name,
        spec=spec,
        number=number,
        unfinished_agent_ids=[agent_id_of(name, other) for other in unfinished],
    )


async def first_agents(name: str, spec: TournamentSpec) -> list[Agent]:
    """Returns the agents that the first requests of a tournament generate."""
    with tempfile.TemporaryDirectory() as folder:
        state = Database.open(Path(folder) / "l.sqlite", DATABASE_FORMAT, lambda: NOW)
        try:
            generator = Generator(state)
            made = [await generator.generate(generation(name, spec, number, range(number))) for number in range(FRESH)]
        finally:
            state.close()
    return [agent for agent in made if isinstance(agent, Agent)]


def published(
    store: FolderStore, name: str, agents: Sequence[Agent], turn: int, score: float
) -> SubmitCandidateRequest:
    """Publishes a checkpoint of an agent that will be generated, and returns the request that submits it."""
    number = turn % FRESH
    agent_id = agent_id_of(name, number)
    agent = agents[number]
    policy = policy_file(agent, f"{name} {turn}")
    manifest = manifest_of(agent, policy, score)
    claim(store, agent_id, 1)
    manifest_digest = publish(store, agent_id, 1, {"policy": policy}, manifest)
    checkpoint = Checkpoint(agent_id=agent_id, manifest_digest=manifest_digest)
    return SubmitCandidateRequest(request_id=manifest_digest, checkpoint=checkpoint, lease_epoch=1)


async def answers_to(
    requests: Requests, database: Path, store: FolderStore, report: Callable[[str, bytes], None]
) -> None:
    """Makes the requests of a leaderboard that is closed and opened again half-way, and reports each answer."""
    half = len(requests) // 2
    for part in (requests[:half], requests[half:]):
        state = Database.open(database, DATABASE_FORMAT, lambda: NOW)
        try:
            updater, generator = Updater(state, store, SubmissionWatch()), Generator(state)

            async def ask(request: Request, updater: Updater = updater, generator: Generator = generator) -> None:
                if isinstance(request, SubmitCandidateRequest):
                    answer = (await updater.submit(request)).SerializeToString(deterministic=True)
                else:
                    answer = (await generator.generate(request)).SerializeToString(deterministic=True)
                report(request.request_id, answer)

            for step in part:
                await asyncio.gather(*map(ask, step))
        finally:
            state.close()


# --- the end of it -----------------------------------------------------------------------------------------------


class _FileSystem(ctypes.Structure):
    """`sqlite3_vfs` of https://www.sqlite.org/c3ref/vfs.html as far as it is needed here."""

    _fields_ = (
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        ("pNext", ctypes.c_void_p),
        ("zName", ctypes.c_char_p),
        ("pAppData", ctypes.c_void_p),
        *((f"method{number}", ctypes.c_void_p) for number in range(13)),
        ("xSetSystemCall", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)),
        ("xGetSystemCall", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)),
    )


_Write = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_Truncate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_Unlink = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)


class Writes:
    """SQLite's own system calls, counted; at one of them the process kills itself."""

    def __init__(self, fatal: int, moment: str) -> None:
        """Nothing is fatal if `fatal` is 0."""
        self.count, self._fatal, self._moment = 0, fatal, moment
        self._kept: list[object] = []

    def install(self) -> None:
        """Has SQLite call us.

        Raises:
            AttributeError: This Python's SQLite does not show its functions.
        """
        import _sqlite3

        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_FileSystem)
        system = library.sqlite3_vfs_find(None)
        for name, kind, wrapper in (
            (b"pwrite", _Write, self._write),
            (b"pwrite64", _Write, self._write),
            (b"ftruncate", _Truncate, self._other),
            (b"unlink", _Unlink, self._other),
        ):
            before = system.contents.xGetSystemCall(system, name)
            if before:
                ours = kind(partial(wrapper, kind(before)))
                self._kept.append(ours)
                assert not system.contents.xSetSystemCall(system, name, ctypes.cast(ours, ctypes.c_void_p))

    def _write(self, write: Callable[..., int], file: int, content: int, size: int, offset: int) -> int:
        return self._counted(
            partial(write, file, content, size, offset), partial(write, file, content, size // 2, offset)
        )

    def _other(self, call: Callable[..., int], *arguments: object) -> int:
        return self._counted(partial(call, *arguments), lambda: 0)

    def _counted(self, whole: Callable[[], int], half: Callable[[], int]) -> int:
        self.count += 1
        if self.count != self._fatal:
            return whole()
        {"before": lambda: 0, "half": half, "after": whole}[self._moment]()
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


@dataclass(frozen=True)
class Life:
    """The answers that a process printed."""

    answers: dict[str, bytes]
    """By request id."""
    writes: dict[str, int]
    """Number of writes before each answer, and, unless it was killed, before its end (`END`)."""
    killed: bool
    """False: it made fewer writes than its fatal one, because more requests shared a commit than in another life."""


def one_life(requests: Requests, folder: Path, fatal: int = 0, moment: str = "") -> Life:
    """Lets a leaderboard live until its fatal write, or to its end if there is none."""
    reports, acknowledge = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reports)
            live(requests, folder, Writes(fatal, moment), acknowledge)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(acknowledge)
    with os.fdopen(reports) as pipe:
        lines = [line.split() for line in pipe]
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in ((0, -signal.SIGKILL) if fatal else (0,)), status
    answers = {key: bytes.fromhex(answer) for key, _, answer in lines if key != END}
    return Life(answers, {key: int(writes) for key, writes, _ in lines}, killed=status != 0)


def live(requests: Requests, folder: Path, writes: Writes, acknowledge: int) -> None:
    """The leaderboard: answers all requests, or dies."""
    writes.install()

    def report(key: str, answer: bytes) -> None:
        os.write(acknowledge, f"{key} {writes.count} {answer.hex()}\n".encode())

    asyncio.run(answers_to(requests, folder / "board.sqlite", FolderStore(folder.parent / "store"), report))
    report(END, b"end")


# --- what is left ------------------------------------------------------------------------------------------------


def compare(requests: Requests, folder: Path, printed: dict[str, bytes], whole: object, toll: Toll) -> None:
    """Compares the records of a run with the answers it printed, and with those of an undisturbed run (`whole`)."""
    database = folder / "board.sqlite"
    try:
        found = what_is_there(database)
        again: dict[str, bytes] = {}
        toll.unacknowledged += len(found.answers) > len(printed)
        asyncio.run(answers_to(requests, database, FolderStore(folder.parent / "store"), again.__setitem__))
        everything = what_is_there(database)
    except PodraceError as error:
        toll.unopened += 1
        print(error.message, file=sys.stderr)
        return
    for flaw in (*found.flaws, *everything.flaws):
        print(flaw, file=sys.stderr)
    toll.torn += bool(found.flaws or everything.flaws)
    toll.lost += any(again[key] != answer or found.answers.get(key) != answer for key, answer in printed.items())
    toll.diverged += everything != whole


@dataclass(frozen=True)
class Left:
    """What is in a file."""

    answers: dict[str, bytes]
    """By request id."""
    standings: dict[str, tuple[int, str]]
    """Verdict and reason of each candidate as of now."""
    flaws: tuple[str, ...]
    """What breaks a rule."""


def what_is_there(database: Path) -> Left:
    """Reads a file as a new leaderboard does."""
    state = Database.open(database, DATABASE_FORMAT, lambda: NOW)
    try:
        return state.submit(read_all).result()
    finally:
        state.close()


def read_all(transaction: Transaction) -> Left:
    """Everything recorded, and what is wrong with it."""
    answers: dict[str, bytes] = {}
    standings: dict[str, tuple[int, str]] = {}
    flaws: list[str] = []
    sequences = []
    for name in TOURNAMENTS:
        if records.find_spec(transaction, name) is None:
            continue
        log = queries.decision_log(transaction, name)
        flaws += differences(log)
        for generated in log.generations:
            answers[generated.agent.agent_id] = generated.agent.SerializeToString(deterministic=True)
        for submission in log.submissions:
            candidate = submission.answer.candidate
            answers[submission.request_id] = submission.answer.SerializeToString(deterministic=True)
            standings[candidate.candidate_id] = submission.standing.verdict, submission.standing.reason
            sequences.append(candidate.sequence)
        keys = [rank_key(candidate) for candidate in records.read_board(transaction, name)]
        if len(keys) > CAPACITY:
            flaws.append(f"the board of {name} has {len(keys)} places")
        if any(later <= earlier for earlier, later in itertools.pairwise(keys)):
            flaws.append(f"the board of {name} is not in order")
    if sorted(sequences) != list(range(1, len(sequences) + 1)):
        flaws.append(f"the sequence has gaps: {sorted(sequences)}")
    return Left(answers, standings, tuple(flaws))


def kill_again_and_again(folder: Path, *, every: int) -> tuple[Toll, int]:
    """Kills a process at every `every`-th write and commit, in turn before, within and after it; with 1, at each write
    at each moment. Returns what that did, and how many writes one run of the process has."""
    requests, toll = make_requests(FolderStore(folder / "store")), Toll()
    undisturbed = folder / "undisturbed"
    undisturbed.mkdir()
    life = one_life(requests, undisturbed)
    whole, count = what_is_there(undisturbed / "board.sqlite"), life.writes[END]
    assert len(whole.answers) == sum(map(len, requests)), "a request left no outcome"
    deaths = [(fatal, moment) for fatal in range(1, count + 1) for moment in MOMENTS]
    if every > 1:
        # What a commit writes last makes it durable: its caller is answered after that.
        commits = sorted(set(life.writes.values()))
        deaths = [(fatal, MOMENTS[turn % 3]) for turn, fatal in enumerate(range(1, count + 1, every))]
        deaths += [(fatal, "after") for fatal in commits[:: max(every // 6, 1)]]
    for fatal, moment in deaths:
        place = folder / f"life-{fatal}-{moment}"
        place.mkdir()
        life = one_life(requests, place, fatal, moment)
        compare(requests, place, life.answers, whole, toll)
        toll.kills += life.killed
        shutil.rmtree(place)
    return toll, count


def main() -> int:
    """Exits with 1 if a kill did harm."""
    parser = argparse.ArgumentParser(description="SIGKILL at every write of a leaderboard.")
    parser.add_argument("--every", type=int, default=1, help="kill only at every N-th write")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    begin = time.monotonic()
    with contextlib.ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
        toll, count = kill_again_and_again(folder, every=max(options.every, 1))
    seconds = round(time.monotonic() - begin, 1)
    print(json.dumps({**asdict(toll), "writes": count, "seconds": seconds}), flush=True)
    return 1 if toll.harm else 0


if __name__ == "__main__":
    sys.exit(main())

"""Owns the questions to custom parts: who is asked, how long is waited, what counts as a failure, who is left out.

    problem = await parts.misspelt(spec.evolution)
    reply = await parts.ask(PROPOSAL, spec.evolution, prepare)
    await parts.close()

A part can do no more harm than to be of no use: there is an answer within a bounded time, if only that there is none
and why. Decides nothing about agents and candidates, and remembers nothing beyond this process.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import prometheus_client
import structlog
from google.protobuf.message import Message

from leaderboard.config import PartsConfig
from leaderboard.text import one_line
from podrace import rpc
from podrace.errors import BAD_SPEC, DeadlineExceeded, InvalidArgument, PodraceError
from podrace.evolution.v1.evolution_pb2 import (
    JudgeCandidateRequest,
    JudgeCandidateResponse,
    ProposeAgentRequest,
    ProposeAgentResponse,
)
from podrace.plugins import address as custom
from podrace.plugins.child import ChildConnection, Connection, ServedConnection
from podrace.plugins.circuit_breaker import Patience
from podrace.processes import lifeline
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

STEP_SECONDS = 9.0
"""All that a question may cost beside its making: the wait for its turn, a start, and the answer. Whoever waits for us
waits 10 s."""
LOOK_SECONDS = 3.0
"""How long is waited to see whether there is a function of the name; what takes longer to import is asked unseen."""
LARGEST_ANSWER_BYTES = 1 << 16
"""Answers are kept for ever."""
ROOT = 0
"""User id of whoever makes the folders of a container."""
IDLE_SECONDS = 600.0
"""A part that was not asked for this long is hung up on, its process ended."""

ANSWERS = prometheus_client.Counter(
    "podrace_leaderboard_part_answers", "Questions to custom parts by what came of them", ["part", "outcome"]
)
ANSWER_SECONDS = prometheus_client.Histogram(
    "podrace_leaderboard_part_seconds", "Time from a question to a custom part to its usable answer", ["part"]
)
_log = structlog.get_logger(__name__)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True)
class Question(Generic[Answer]):
    """One of the two that there are."""

    part: str
    """Key of the specification that names who is asked."""
    method: str
    request: type[Message]
    answer: type[Answer]


PROPOSAL = Question("generator", "ProposeAgent", ProposeAgentRequest, ProposeAgentResponse)
JUDGEMENT = Question("updater", "JudgeCandidate", JudgeCandidateRequest, JudgeCandidateResponse)


@dataclass(frozen=True)
class Prepared(Generic[Answer]):
    """A question with all that is to be known."""

    request: Message
    check: Callable[[Answer], object]
    """Raises InvalidArgument for an answer that cannot be used."""


@dataclass(frozen=True)
class Reply(Generic[Answer]):
    """What came of a question."""

    answer: Answer | None
    """A usable one."""
    problem: str = ""
    """Else what went wrong: a whole clause for a person, the part named first. Empty if there was nothing to ask."""


Prepare = Callable[[], Awaitable[Prepared[Answer] | None]]
"""Called when it is the question's turn; None if there is nothing to ask any more."""


@dataclass
class _Line:
    """One part and who waits for it."""

    connection: Connection
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    patience: Patience = field(default_factory=Patience)
    hang_up: asyncio.TimerHandle | None = None


class Parts:
    """Asks, one question at a time of each part."""

    def __init__(
        self, config: PartsConfig, runtime_folder: Path, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts nothing yet.

        Args:
            config: What child processes may have.
            runtime_folder: Where their sockets lie.
            monotonic: Seconds, for how long a failing part is left out.
        """
        self._config, self._folder, self._monotonic = config, runtime_folder, monotonic
        self._lines: dict[tuple[str, str], _Line] = {}
        self._held = ExitStack()
        self._lifeline: Path | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def misspelt(self, evolution: EvolutionSpec) -> str:
        """Says, key and value first, which part is a function that does not exist; empty if none, or not known in time.

        What is broken otherwise, or not here, may come right later, and the house stands in for it until then.
        """
        imported = [
            question
            for question in (PROPOSAL, JUDGEMENT)
            if isinstance(custom.parse(getattr(evolution, question.part)), custom.Imported)
        ]
        problems = await asyncio.gather(*(self._look(one, getattr(evolution, one.part)) for one in imported))
        return next(filter(None, problems), "")

    async def _look(self, question: Question[Any], address: str) -> str:
        try:
            line = self._line(question.part, address)
        except PodraceError:
            return ""
        give_up = time.monotonic() + LOOK_SECONDS
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await line.turn.acquire()
        except TimeoutError:
            return ""
        try:
            stub = await line.connection.ready(give_up - time.monotonic())
            seconds = max(0.0, give_up - time.monotonic())
            await rpc.call(getattr(stub, question.method), question.request(), deadline_seconds=seconds)
        except PodraceError as error:
            await line.connection.failed(error)
            return f"evolution.{question.part} = {address!r}: {error.message}" if error.reason == BAD_SPEC else ""
        finally:
            line.turn.release()
            self._hang_up_later((question.part, address), line)
        return ""

    async def ask(
        self,
        question: Question[Answer],
        evolution: EvolutionSpec,
        prepare: Prepare[Answer],
    ) -> Reply[Answer]:
        """Asks whoever the specification names; never raises for what that does.

        Args:
            question: Which.
            evolution: Names the part and how long it may take.
            prepare: Makes the question; what it raises travels.
        """
        address = getattr(evolution, question.part)
        begin = time.monotonic()
        reply, outcome = await self._ask_in_turn(question, address, custom.answer_seconds(evolution), prepare)
        ANSWERS.labels(question.part, outcome).inc()
        if not reply.problem:
            ANSWER_SECONDS.labels(question.part).observe(time.monotonic() - begin)
            return reply
        return Reply(None, f"the {question.part} {address} {one_line(reply.problem)}")

    async def _ask_in_turn(
        self,
        question: Question[Answer],
        address: str,
        answer_seconds: float,
        prepare: Prepare[Answer],
    ) -> tuple[Reply[Answer], str]:
        give_up = time.monotonic() + STEP_SECONDS
        try:
            line = self._line(question.part, address)
        except PodraceError as error:
            return Reply(None, error.message), "failed"
        # No longer than leaves it all its time to answer: it would be blamed, and killed, for that of others.
        turn_seconds = min(answer_seconds, STEP_SECONDS - answer_seconds)
        try:
            async with asyncio.timeout(turn_seconds):
                await line.turn.acquire()
        except TimeoutError:
            return Reply(None, f"was busy with other questions for {turn_seconds:g} s"), "busy"
        try:
            if line.patience.rests(self._monotonic()):
                failures, last = line.patience.failures, line.patience.last
                return Reply(
                    None, f"is left out after {failures} failures in a row; the last time it {last}"
                ), "left out"
            begin = time.monotonic()
            prepared = await prepare()
            if prepared is None:
                return Reply(None), "nothing to ask"
            give_up += time.monotonic() - begin
            answer, problem = await _answer_of(line.connection, question, answer_seconds, give_up, prepared)
            self._learn(line, question.part, address, problem)
            return Reply(answer, problem), "failed" if problem else "used"
        finally:
            line.turn.release()
            self._hang_up_later((question.part, address), line)

    def _learn(self, line: _Line, part: str, address: str, problem: str) -> None:
        if not problem:
            if line.patience.failures:
                _log.info("custom part answers again", part=part, address=address)
            line.patience = Patience()
            return
        now = self._monotonic()
        line.patience = line.patience.after_failure(now, problem)
        _log.warning("custom part failed; the house decides", part=part, address=address, problem=one_line(problem))
        if line.patience.rests(now):
            _log.warning(
                "custom part is left out for a while",
                part=part,
                address=address,
                seconds=line.patience.until - now,
                failures_in_a_row=line.patience.failures,
            )

    def _line(self, part: str, address: str) -> _Line:
        """The line to a part; raises PodraceError where it cannot be laid."""
        line = self._lines.get((part, address))
        if line is None:
            line = self._lines[part, address] = _Line(self._connect(part, address))
        if line.hang_up is not None:
            line.hang_up.cancel()
        return line

    def _connect(self, part: str, address: str) -> Connection:
        named = custom.parse(address)
        if isinstance(named, custom.Served):
            return ServedConnection(named.target)
        if named is None:
            raise InvalidArgument(f"is no part: {custom.EXPECTED}")
        settings = {"address": address, "part": part, "memory_bytes": self._config.memory_bytes}
        return ChildConnection(settings, self._hold_lifeline())

    def _hold_lifeline(self) -> Path:
        if self._lifeline is None:
            path = self._folder / f"parts-{os.getpid()}-{id(self):x}.lifeline"
            try:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                # Whoever could put a socket there could pretend to be the part.
                if self._folder.stat().st_uid not in (os.getuid(), ROOT):
                    raise PermissionError(0, "belongs to somebody else")
                sweep(self._folder)
                self._held.enter_context(lifeline.hold(path))
            except OSError as error:
                raise InvalidArgument(
                    f"cannot be started: runtime_folder {self._folder}: {error.strerror}; choose another"
                ) from None
            self._lifeline = path
        return self._lifeline

    def _hang_up_later(self, key: tuple[str, str], line: _Line) -> None:
        def hang_up() -> None:
            if not line.turn.locked():
                self._lines.pop(key, None)
                task = asyncio.ensure_future(line.connection.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

        if line.hang_up is not None:
            line.hang_up.cancel()
        line.hang_up = asyncio.get_running_loop().call_later(IDLE_SECONDS, hang_up)

    async def close(self) -> None:
        """Hangs up on all, and ends the processes that were started."""
        for line in self._lines.values():
            if line.hang_up is not None:
                line.hang_up.cancel()
        await asyncio.gather(*(line.connection.close() for line in self._lines.values()), *self._closing)
        self._lines.clear()
        self._held.close()
        self._lifeline = None


def sweep(folder: Path) -> None:
    """Deletes what leaderboards that were killed have left in a folder: lifelines that nobody holds, and sockets."""
    for path in folder.glob("parts-*.lifeline"):
        held = lifeline.grasp(path)
        if held is not None:
            os.close(held)
            continue
        for left in (path, *folder.glob(f"{path.stem}-*.sock")):
            left.unlink(missing_ok=True)


async def _answer_of(
    connection: Connection,
    question: Question[Answer],
    answer_seconds: float,
    give_up: float,
    prepared: Prepared[Answer],
) -> tuple[Answer | None, str]:
    """Asks once; returns a usable answer, or what went wrong."""
    try:
        stub = await connection.ready(max(0.0, give_up - answer_seconds - time.monotonic()))
        seconds = min(answer_seconds, max(0.0, give_up - time.monotonic()))
        try:
            answer: Any = await rpc.call(getattr(stub, question.method), prepared.request, deadline_seconds=seconds)
        except DeadlineExceeded:
            raise DeadlineExceeded(f"gave no answer within {seconds:g} s") from None
    except PodraceError as error:
        return None, await connection.failed(error)
    try:
        if answer is None:
            # Bytes that are no message: gRPC has said so in its own log.
            raise InvalidArgument(f"no {question.answer.__name__}")
        if answer.ByteSize() > LARGEST_ANSWER_BYTES:
            raise InvalidArgument(f"{answer.ByteSize()} bytes, expected at most {LARGEST_ANSWER_BYTES}")
        prepared.check(answer)
    except InvalidArgument as error:
        return None, f"answered what cannot be: {error.message}"
    return answer, ""

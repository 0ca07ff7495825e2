"""Runs many fuzzing cases: `make fuzz CASES=1000000`.

A case is a target and a seed. A failure is printed as such, and `--target NAME --seed N --cases 1` repeats it, unless
it depends on earlier cases of a service with state.
"""

import argparse
import asyncio
import faulthandler
import logging
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import calls
import grpc
import message_maker
import readers
import structlog
import worlds

HANG_SECONDS = 10
"""A case that takes more processor time is a failure: it is interrupted, even if it does not return to the event loop.
Processor time, because a busy machine may not run this process for seconds."""
WAIT_SECONDS = 300
"""A case that takes longer is a failure, even if it only waits."""
DEADLINES = {"OpenWorker": 120, "OpenEvaluator": 120, "GetSimulator": 120, "StreamSteps": 110, "ReplayTournament": 60}
"""Processor time that methods may take that do more, for instance make a million environments."""
DEFECTS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
SHARES = {"OrchestratorService": 4, "UpdaterService": 2, "LeaderboardService": 3, "readers": 4}
"""Relative numbers of cases of the methods of a service; 1 for others."""
SLOW = {
    "ReplayTournament": 0.1,
    "NameChampion": 0.1,
    "GenerateAgent": 0.1,
    "GetSimulator": 0.02,
    "StreamSteps": 0.05,
    "OpenWorker": 0.05,
    "OpenEvaluator": 0.05,
    "ListTournaments": 0.02,
    "WatchTournament": 0.05,
    "WatchCandidates": 0.05,
    "GetTraining": 0.1,
    "JoinFusion": 0.05,
    "JoinTransfer": 0.01,
}
"""Factors for methods that wait, take milliseconds, or make simulators or process groups."""
tally: Counter[str] = Counter()
"""Results of the cases of the current target."""


current: list[str] = []
"""The case that runs now."""


class Hang(BaseException):
    """A case computes for too long."""


@dataclass(frozen=True)
class Target:
    """What is fuzzed: one method, or one reader."""

    name: str
    share: float
    run: Callable[[Random], Awaitable[str]]
    """Runs one case; returns why it failed, or an empty text."""


async def targets(folder: Path, stack: AsyncExitStack) -> list[Target]:
    """Returns all methods of all services, and all readers."""
    built = worlds.Worlds(folder, stack)
    found = []
    for world in await built.build():
        share = SHARES.get(world.service.descriptor.name, 1)
        for method in await calls.methods_of(world.service):
            weight = share * SLOW.get(method.short_name, 1.0)
            found.append(
                Target(f"{world.service.descriptor.name}.{method.short_name}", weight, _calling(method, world))
            )
    # Last: the cases of other methods need what these delete.
    found.sort(key=lambda target: ".Delete" in target.name)
    for name, read in readers.READERS.items():
        found.append(Target(name, SHARES["readers"], _reading(read)))
    return found


def _calling(method: calls.Method, world: worlds.World) -> Callable[[Random], Awaitable[str]]:
    seeds = [seed for seed in world.seeds if isinstance(seed, method.kind)]

    async def run(random: Random) -> str:
        maker = message_maker.MessageMaker(random, world.words)
        count = random.choice((1, 2, 4)) if method.handler.request_streaming else 1
        context = await calls.call(method, [maker.message(method.kind, seeds) for _ in range(count)])
        tally[context.status.name] += 1
        missing = calls.missing_detail(context, method.name)
        wrong = context.status in DEFECTS or missing
        return f"{context.status.name}: {context.message}; {missing}" if wrong else ""

    return run


def _reading(read: Callable[[Random], str]) -> Callable[[Random], Awaitable[str]]:
    async def run(random: Random) -> str:
        tally[read(random)] += 1
        return ""

    return run


async def run_case(target: Target, seed: int) -> str:
    """Runs one case; returns what is wrong, with the traceback."""
    current[:] = [f"{target.name} --seed {seed}"]
    seconds = DEADLINES.get(target.name.rpartition(".")[2], HANG_SECONDS)
    interrupts = signal.getsignal(signal.SIGPROF) is _interrupt
    if interrupts:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await target.run(Random(f"{target.name} {seed}"))
    except Hang:
        return "hangs:\n" + traceback.format_exc()
    except Exception:
        return traceback.format_exc()
    finally:
        if interrupts:
            signal.setitimer(signal.ITIMER_PROF, 0)


async def campaign(
    cases: int, only: str, first_seed: int, most_seconds: float, folder: Path, *, say: Callable[[str], None] = print
) -> dict[str, str]:
    """Runs cases in the order of their seeds; returns what is wrong, one entry for each kind of failure."""
    failures: dict[str, str] = {}
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    async with AsyncExitStack() as stack:
        found = [target for target in await targets(folder, stack) if only in target.name]
        total, done, begin = sum(target.share for target in found), 0, time.monotonic()
        for target in found:
            count, finished, started = max(1, round(cases * target.share / total)), 0, time.monotonic()
            deadline = started + most_seconds / len(found)
            for seed in range(first_seed, first_seed + count):
                problem = await run_case(target, seed)
                if unhandled:
                    problem = problem or f"not handled: {unhandled}"
                    unhandled.clear()
                if problem:
                    kind = f"{target.name}: {problem.strip().splitlines()[-1][:160]}"
                    if kind not in failures:
                        say(f"FAILED {target.name} --seed {seed}\n{problem}")
                    failures[kind] = problem
                finished += 1
                if time.monotonic() > deadline:
                    break
            done += finished
            seconds, shown = time.monotonic() - started, ", ".join(f"{name} {n}" for name, n in tally.most_common(4))
            say(f"{target.name}: {finished} cases in {seconds:.1f} s: {shown}")
            tally.clear()
    say(f"{done} cases in {time.monotonic() - begin:.0f} s, {len(failures)} kinds of failures")
    return failures


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ends a case that computes for too long, or the campaign, if a thread of the case does."""
    if asyncio.current_task() is None:
        print(f"FAILED {current[0]}\nhangs in a thread", flush=True)
        faulthandler.dump_traceback()
    raise Hang


def main() -> int:
    """Runs the campaign of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000, help="cases of all targets together")
    parser.add_argument("--target", default="", help="only targets whose name contains this")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case of each target")
    parser.add_argument("--seconds", type=float, default=1e9, help="time limit; each target has an equal part")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGPROF, _interrupt)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    # In memory: databases wait for the disk at each commit.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory) as folder:
        failures = asyncio.run(campaign(options.cases, options.target, options.seed, options.seconds, Path(folder)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

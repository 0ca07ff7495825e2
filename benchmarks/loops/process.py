"""Runs the measurements of `peers.py` in other processes: one process per contender, pinned to its cores.

Requests and answers are JSON objects, one per line. A process is started before the first measurement and waits,
blocked, while others are measured. So no measurement includes imports, and contenders can alternate. Only the standard
library is imported here: a peer may run in its own interpreter, without podrace's packages.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

Answer = Mapping[str, Any]
Measure = Callable[["Request", int], Answer]

READY_SECONDS = 120.0
"""Maximum duration of the imports."""
STOP_SECONDS = 15.0
"""A process that has not exited this many seconds after its input was closed is killed."""
LOG_TAIL_BYTES = 2000


@dataclasses.dataclass(frozen=True)
class Request:
    """What to measure; the same for every contender."""

    measure: str
    """`rate` (steps per second) or `target` (seconds to a return); podrace's process also measures `products` and
    `simulator`."""
    algorithm: str
    """`ppo` or `sac`."""
    environment: str
    """Gymnasium id."""
    count: int
    """Number of parallel environments."""
    settings: Mapping[str, Any]
    """Hyperparameters under podrace's names."""
    seed: int = 1
    """Seed of networks and environments."""
    seconds: float = 1.0
    """Duration over which a rate is measured, without warm-up."""
    target_return: float = 0.0
    """Mean return of EPISODES greedy episodes at which the measurement ends."""
    every_steps: int = 0
    """Environment steps between two evaluations."""
    limit_steps: int = 0
    """Environment steps after which the run stops without reaching the target."""
    limit_seconds: float = math.inf
    """Training seconds after which the run stops; only for a curve (papers/curve.py)."""
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Options of the environment by purpose (papers/curve.py), if it is one of podrace's simulators."""

    @property
    def warm_steps(self) -> int:
        """Environment steps before the measurement: those before the first update, and of updates that warm caches."""
        settings = self.settings
        steps: int = settings.get("warmup_steps", 0) + WARM_UPDATES * self.count * settings["horizon"]
        return steps


EPISODES = 32
"""Episodes of an evaluation."""
WARM_UPDATES = 3


class Rate:
    """Measures steps per second between the ends of two updates, excluding the first ones.

    rate = Rate(request)
    while not rate.over(environment_steps):
        ...                                   # one rollout and the update that follows
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._first: tuple[float, int] | None = None
        self.answer: Answer = {"steps_per_second": None}

    def over(self, steps: int) -> bool:
        """Whether the measurement is complete after `steps` steps."""
        now = time.perf_counter()
        if steps < self._request.warm_steps:
            return False
        if self._first is None:
            self._first = now, steps
            return False
        began, first = self._first
        self.answer = {"steps_per_second": (steps - first) / (now - began)}
        return now - began >= self._request.seconds


class Target:
    """Measures training seconds until the first policy that reaches the target return, without evaluations.

    target = Target(request, evaluate)        # before the environments are made
    while not target.over(environment_steps):
        ...
    """

    def __init__(self, request: Request, evaluate: Callable[[], float]) -> None:
        self._request, self._evaluate = request, evaluate
        self._due_steps = request.every_steps
        self._seconds, self._began = 0.0, time.perf_counter()
        self.answer: Answer = {"seconds": None, "steps": None}

    def over(self, steps: int) -> bool:
        """Whether the target is reached, or the limit exceeded, after `steps` steps."""
        if steps < self._due_steps:
            return False
        self._seconds += time.perf_counter() - self._began
        self._due_steps = (steps // self._request.every_steps + 1) * self._request.every_steps
        reached = self._evaluate() >= self._request.target_return
        if reached:
            self.answer = {"seconds": self._seconds, "steps": steps}
        self._began = time.perf_counter()
        return reached or steps >= self._request.limit_steps


def environment() -> dict[str, str]:
    """Returns the variables of a process that can import the modules of this folder, as can its children."""
    folder = str(Path(__file__).resolve().parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))}


class Contender:
    """A process that measures, on its own cores.

    with Contender("loops.sb3", cpus=[0, 1], threads=2) as contender:
        answer = contender.ask(request, deadline_seconds=60)
    """

    def __init__(self, module: str, cpus: Sequence[int], threads: int, python: str = sys.executable) -> None:
        """Starts the process; its imports continue after this returns.

        Args:
            module: A module of the benchmarks folder that calls `serve`.
            cpus: CPUs on which it may run.
            threads: Number of torch threads.
            python: Python interpreter.
        """
        self._name, self._ready = f"{module} on {len(cpus)} cores", False
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        cpu_list = ",".join(map(str, cpus))
        # A separate session: children of the peer can be killed with it, and Ctrl-C reaches only this process.
        self._process = subprocess.Popen(
            [python, "-m", module, "--cpus", cpu_list, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment() | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
            start_new_session=True,
        )

    def wait_until_ready(self, deadline_seconds: float = READY_SECONDS) -> None:
        """Waits until the imports are done; raises SystemExit with the end of the log on failure."""
        if not self._ready:
            self._read(deadline_seconds)
            self._ready = True

    def ask(self, request: Request, deadline_seconds: float) -> Answer:
        """Makes the process measure; raises SystemExit with the end of the log on failure or timeout."""
        self.wait_until_ready()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(dataclasses.asdict(request)).encode() + b"\n")
        self._process.stdin.flush()
        return self._read(deadline_seconds)

    def _read(self, deadline_seconds: float) -> Answer:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], deadline_seconds)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            trouble = "exited" if ready else f"did not answer within {deadline_seconds:g} s"
            raise SystemExit(f"{self._name} {trouble}; the end of its log:\n{self._tail()}")
        answer: Answer = json.loads(line)
        return answer

    def _tail(self) -> str:
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the process and all that it started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._log.close()


def serve(load: Callable[[int], Measure]) -> None:
    """Runs the process of a contender: answers requests until the input ends.

    Args:
        load: Called after the process is pinned, with the number of threads. Imports what is measured, and returns a
            function that answers a request, given the request and the number of CPUs.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpus", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    cpus = [int(cpu) for cpu in options.cpus.split(",")]
    # Before the imports: new threads inherit the affinity of the thread that starts them.
    os.sched_setaffinity(0, cpus)
    # SIGTERM raises SystemExit, so that everything the peer has started is shut down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_input, daemon=True).start()
    # Libraries print to stdout: redirect it to the log, so that the pipe has only answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    measure = load(options.threads)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(Request(**json.loads(line)), len(cpus))), file=answers, flush=True)


def _end_with_input() -> None:
    """Ends this process when its input ends, even during a measurement: the benchmark has exited."""
    poll = select.poll()
    poll.register(0, 0)
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)

"""Steps NVIDIA's simulators, `isaacgym:<task>` and `isaaclab:<id>`, in a separate process with its own interpreter.

Isaac Gym requires Python 3.8, and must be imported before torch; both simulators need a whole process for one
simulation. So the server (`simulators.isaac.server`) runs in the Python environment where the user has installed them,
and does not import podrace. Tensors lie in memory of a GPU that both processes map by CUDA IPC, or, where that does not
work, in a file that both map. A line on a pipe asks for a step, a line on another answers. Each process notices the end
of the other when its pipe closes.
"""

import json
import os
import secrets
import select
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor

from podrace.errors import DeadlineExceeded, Internal, InvalidArgument, Unavailable, Unimplemented
from podrace.limits.config import EVERYTHING, Allowed
from podrace.limits.user_environment import user_environment
from podrace.spaces.entries import Entry, problem_of
from podrace.tensor_transport.cupy_driver import CupyDriver
from podrace.tensor_transport.probe import check_probe, write_probe
from podrace.tensor_transport.shared import FOLDER, SharedPlane
from simulators.base import Report, Space, Step
from simulators.compilation import compiling
from simulators.isaac.gpu_memory import GpuShare, MakeDriver, share_on_gpu
from simulators.messages import step_specs
from simulators.options import parse_options

SERVER_PROGRAM = Path(__file__).parent / "server" / "__main__.py"
VARIABLES = {"isaacgym": "PODRACE_ISAACGYM_PYTHON", "isaaclab": "PODRACE_ISAACLAB_PYTHON"}
NAMES = {"isaacgym": "Isaac Gym", "isaaclab": "Isaac Lab"}
STEP_SECONDS = 60.0
END_SECONDS = 10.0
"""The server may take this many seconds to exit before it is killed."""
LINES_KEPT = 20

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class IsaacOptions:
    """Options of a specification."""

    interpreter: str = ""
    """Python of the environment that has the simulator, or a script that runs it. Empty: the one named by the
    environment variable PODRACE_ISAACGYM_PYTHON or PODRACE_ISAACLAB_PYTHON."""
    simulation_device: str = ""
    """Where it computes, as a torch device string. Empty: the observations' device if that is a GPU, else cuda:0."""
    start_seconds: float = 110.0
    """The simulator may take this many seconds to start. Above the longest deadline of a role
    (`progress.ceiling_seconds` of the orchestrator, 600 s) that deadline applies. Behind `grpc://` it may take at most
    110 s."""


def make(
    id: str, count: int, options: Mapping[str, object], device: str, allowed: Allowed = EVERYTHING
) -> "IsaacSimulator":
    """Starts the server and makes a task there.

    Args:
        id: `isaacgym:` and a task of IsaacGymEnvs, or `isaaclab:` and a registered id.
        count: Number of lanes.
        options: Fields of IsaacOptions.
        device: Where observations are returned.
        allowed: Which variables of the environment the interpreter gets.

    Raises:
        Unimplemented: No interpreter is named, or it does not have the simulator.
        InvalidArgument: An option is unknown, or the task cannot be made.
        DeadlineExceeded: It took longer than `start_seconds`.
        Unavailable: The server process died.
    """
    family, _, task = id.partition(":")
    settings = parse_options(id, options, IsaacOptions)
    interpreter = settings.interpreter or os.environ.get(VARIABLES[family], "")
    if not task:
        raise InvalidArgument(f"{id}: a task is missing, for instance {family}:Ant")
    if not interpreter:
        raise Unimplemented(
            f"{id}: set {VARIABLES[family]} (or the option 'interpreter') to the Python that has {NAMES[family]}"
        )
    simulation_device = settings.simulation_device or (device if device.startswith("cuda") else "cuda:0")
    server = IsaacServer(id, interpreter, allowed)
    try:
        opening = {"family": family, "task": task, "count": count, "device": simulation_device}
        # It may compile kernels and shaders when it starts.
        with compiling(NAMES[family]):
            opened = json.loads(server.ask(json.dumps(opening), settings.start_seconds))
        return IsaacSimulator(id, server, opened, count, device)
    except BaseException:
        # The server may still be starting the simulator: kill it without waiting.
        server.close(end_seconds=0.0)
        raise


class IsaacServer:
    """The server process that runs the simulator; it answers every line with a line.

    server = IsaacServer("isaacgym:Ant", "/path/of/python")
    answer = server.ask("step", deadline_seconds=60.0)
    server.close()
    """

    def __init__(self, id: str, interpreter: str, allowed: Allowed = EVERYTHING) -> None:
        """Starts the process.

        Args:
            id: The simulator's id as the user wrote it, for error messages.
            interpreter: The Python interpreter that runs it.
            allowed: Which variables of the environment it gets.

        Raises:
            InvalidArgument: The interpreter cannot be started.
        """
        self._id, self._interpreter = id, interpreter
        requests_there, self._requests = os.pipe()
        self._responses, responses_there = os.pipe()
        try:
            self._process = subprocess.Popen(
                [interpreter, str(SERVER_PROGRAM), str(requests_there), str(responses_there)],
                pass_fds=(requests_there, responses_there),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(allowed),
                # Its own session: signals of the terminal do not reach it. It exits when this process does.
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._requests)
            os.close(self._responses)
            raise InvalidArgument(f"{id}: {interpreter} cannot be started: {error.strerror}") from None
        finally:
            os.close(requests_there)
            os.close(responses_there)
        self._received, self._opened = b"", False
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._reader = threading.Thread(target=self._read_lines, name="isaac-output", daemon=True)
        self._reader.start()

    def ask(self, line: str, deadline_seconds: float) -> str:
        """Sends a line and waits for the answer.

        Raises:
            DeadlineExceeded: The answer did not arrive in time.
            Unavailable: The server process is gone.
            Unimplemented, InvalidArgument, Internal: The server reported a failure.
        """
        try:
            os.write(self._requests, line.encode() + b"\n")
        except BrokenPipeError:
            raise self._gone() from None
        due_time = time.monotonic() + deadline_seconds
        poll = select.poll()
        poll.register(self._responses, select.POLLIN)
        while b"\n" not in self._received:
            if not poll.poll(max(0.0, due_time - time.monotonic()) * 1000):
                raise DeadlineExceeded(
                    f"{self._id}: no answer from {self._interpreter} within {deadline_seconds:g} s{self._last_line()}"
                )
            piece = os.read(self._responses, 65536)
            if not piece:
                raise self._gone()
            self._received += piece
        answer, _, self._received = self._received.partition(b"\n")
        if answer.startswith(b"failed "):
            raise self._failure(json.loads(answer.removeprefix(b"failed ")))
        self._opened = True
        return answer.decode()

    def _failure(self, reason: dict[str, str | None]) -> Unimplemented | InvalidArgument | Internal:
        message = " ".join(str(reason["error"]).split())
        if reason["missing"]:
            return Unimplemented(f"{self._id}: {self._interpreter} has no package {reason['missing']!r}: {message}")
        if self._opened:
            return Internal(f"{self._id}: the simulator failed: {message}")
        return InvalidArgument(f"{self._id}: the task cannot be made: {message}")

    def _gone(self) -> Unavailable:
        try:
            code: object = self._process.wait(END_SECONDS)
            self._reader.join(END_SECONDS)
        except subprocess.TimeoutExpired:
            code = "none yet"
        return Unavailable(f"{self._id}: its server process is gone (exit code {code}){self._last_line()}")

    def _last_line(self) -> str:
        return f"; its last line: {self._lines[-1]}" if self._lines else ""

    def _read_lines(self) -> None:
        """Keeps the last lines that the server prints; a pipe that is not read would fill up and block it."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                text = line.decode(errors="replace").strip()
                if text:
                    self._lines.append(text)
                    _log.debug("isaac server output", id=self._id, line=text)

    def close(self, end_seconds: float = END_SECONDS) -> None:
        """Ends the process: closes its requests, and kills it if it does not exit in time. May be called repeatedly."""
        if self._requests < 0:
            return
        os.close(self._requests)
        os.close(self._responses)
        self._requests = self._responses = -1
        try:
            self._process.wait(end_seconds)
        except subprocess.TimeoutExpired:
            # Kills its children too: it leads its own session.
            os.killpg(self._process.pid, 9)
            self._process.wait(END_SECONDS)
        self._reader.join(END_SECONDS)


def _end_and_free(server: IsaacServer, share: GpuShare) -> None:
    """Ends the server, and then drops the memory that it has mapped."""
    server.close()
    del share


def _environment(allowed: Allowed) -> dict[str, str]:
    """Returns the variables for another Python, without those that make it use the packages of this one."""
    passed = user_environment(os.environ, allowed)
    return {name: value for name, value in passed.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _observation_space(id: str, opened: Mapping[str, Any]) -> Space:
    """Returns the space that the server describes; the numbers of its entries are float32, one after another."""
    shape = tuple(opened["observation"])
    entries = tuple(
        Entry(name, encoding, tuple(part), tuple(choices), (0,) * len(choices))
        for name, encoding, part, choices in opened["entries"]
    )
    if not entries:
        return Space("continuous", shape, torch.float32)
    if problem := problem_of(entries, prod(shape)):
        raise InvalidArgument(f"{id}: the observation {problem}")
    return Space("composite", shape, torch.float32, entries=entries)


def _action_space(opened: Mapping[str, Any]) -> Space:
    shape, choices = tuple(opened["action"]), tuple(opened["action_choices"])
    if opened["action_kind"] == "discrete":
        return Space("discrete", (), torch.int64, n=choices[0])
    if opened["action_kind"] == "multi_discrete":
        return Space("multi_discrete", shape, torch.int64, choices=choices)
    return Space("continuous", shape, torch.float32, tuple(opened["low"]), tuple(opened["high"]))


class IsaacSimulator:
    """N lanes in a server process. See simulators.base.Simulator for the methods.

    The seed determines the states in which episodes start. Physics on a GPU is not reproducible to the last bit.

    Attributes:
        observation_space: float32, without bounds; composite if the task observes several parts, or no real numbers.
        action_space: Discrete, multi-discrete, or float32; within [-1, 1] where the simulator states no bounds.
        count: Number of lanes, N.
    """

    def __init__(
        self,
        id: str,
        server: IsaacServer,
        opened: Mapping[str, Any],
        count: int,
        device: str,
        make_driver: MakeDriver | None = None,
    ) -> None:
        """Shares memory with the server and starts episodes with seed 0.

        Args:
            id: The simulator's id as the user wrote it.
            server: The process that steps it; closed by `close`, or when this object is garbage-collected.
            opened: The server's answer to the opening request.
            count: Number of lanes.
            device: Where observations are returned.
            make_driver: Of CUDA IPC, for tests; None: CuPy's.
        """
        self._server, self.count, self._device = server, count, torch.device(device)
        self._end: Any = weakref.finalize(self, server.close)
        self.observation_space, self.action_space = _observation_space(id, opened), _action_space(opened)
        if opened["note"]:
            _log.warning("the simulator deviates from the interface", id=id, how=opened["note"])
        self._memory = self._share()
        self._on_gpu = self._device.type == "cuda" and self._move_to_gpu(id, make_driver)
        self._final: Tensor | None = None
        """Final observations of the last step in which an episode ended, on the GPU."""
        self._live = Step(**{field.name: self._memory[field.name] for field in fields(Step)})
        self.reset(0)

    def _share(self) -> dict[str, Tensor]:
        plane = SharedPlane(f"podrace-isaac-{secrets.token_hex(8)}-", pinned=self._device.type == "cuda")
        specs = step_specs(self.observation_space, self.action_space, self.count)
        try:
            region = plane.create("step", list(specs.values()))
            sent = write_probe(region, seed=secrets.randbits(32))
            offsets = {ref.spec.name: ref.offset_bytes for ref in region.refs()}
            path = str(FOLDER / region.plane_uri.partition(":")[2])
            answer = json.loads(self._server.ask(json.dumps({"memory": path, "offsets": offsets}), STEP_SECONDS))
            check_probe(plane.scheme, sent, answer["probe_sum"])
            return dict(region)
        finally:
            # Both processes have mapped the file by now: it does not outlive them, however they end.
            plane.close()

    def _move_to_gpu(self, id: str, make_driver: MakeDriver | None) -> bool:
        """Shares memory of the GPU in place of the file, if both processes can map it; returns whether they can."""
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        specs = list(step_specs(self.observation_space, self.action_space, self.count).values())
        share, reason = share_on_gpu(
            lambda line: self._server.ask(line, STEP_SECONDS), make_driver or (lambda: CupyDriver(index)), specs
        )
        if share is None:
            _log.info("steps are copied through host memory", id=id, reason=reason)
            return False
        self._memory = share.tensors
        # CUDA forbids freeing memory that another process maps, so it lives until the server has exited.
        self._end.detach()
        self._end = weakref.finalize(self, _end_and_free, self._server, share)
        _log.info("steps stay on the GPU", id=id)
        return True

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self._finish_copies()
        self._server.ask(f"reset {seed}", STEP_SECONDS)
        return self._live.observation.to(self._device)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator; raises the errors of IsaacServer.ask."""
        shape, pinned = (self.count, *self.action_space.shape), self._device.type == "cuda"
        self._memory["action"].copy_(action.reshape(shape), non_blocking=pinned)
        # The one wait of a step: for the action, and for the copies of the step before.
        self._finish_copies()
        self._server.ask("step", STEP_SECONDS)
        return self._live if self._on_gpu or self._device.type == "cpu" else self._copy_to_device()

    def _finish_copies(self) -> None:
        """Waits for copies between the GPU and the memory, which the server reads and writes next."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _copy_to_device(self) -> Step:
        """Copies a step to the GPU without waiting; final observations only if an episode has ended."""
        live = self._live
        if self._final is None or bool((live.terminated | live.truncated).any()):
            self._final = live.final_observation.to(self._device, non_blocking=True)
        names = ("observation", "reward", "terminated", "truncated")
        copies = {name: getattr(live, name).to(self._device, non_blocking=True) for name in names}
        return Step(**copies, final_observation=self._final)

    def report(self) -> Report:
        """Returns an empty report: these simulators have no measure except the return."""
        return Report()

    def close(self) -> None:
        """Ends the server process."""
        self._end()

"""NVIDIA's simulators, `isaacgym:<task>` and `isaaclab:<id>`, in a process and an interpreter of their own.

Isaac Gym wants Python 3.8, and to be imported before torch; either takes a whole process for one simulation. So the far
side (`simulators.isaac.server`) runs where the user has installed them, and knows nothing of podrace. Tensors lie in a
file that both map; a word on a pipe says whose turn it is. Either side learns of the other's end by the end of a pipe.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor

from podrace.errors import DeadlineExceeded, Internal, InvalidArgument, Unavailable, Unimplemented
from podrace.tensor_transport.probe import check_probe, write_probe
from podrace.tensor_transport.shared import FOLDER, SharedPlane
from simulators.base import Report, Space, Step
from simulators.messages import step_specs
from simulators.options import parse_options

FAR_SIDE = Path(__file__).parent / "server" / "__main__.py"
VARIABLES = {"isaacgym": "PODRACE_ISAACGYM_PYTHON", "isaaclab": "PODRACE_ISAACLAB_PYTHON"}
NAMES = {"isaacgym": "Isaac Gym", "isaaclab": "Isaac Lab"}
STEP_SECONDS = 60.0
END_SECONDS = 10.0
"""The far side has this long to go by itself."""
LINES_KEPT = 20

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class IsaacOptions:
    """What a specification can set."""

    interpreter: str = ""
    """Python of the environment that has the simulator, or a script that runs it; empty: the one that
    PODRACE_ISAACGYM_PYTHON, or PODRACE_ISAACLAB_PYTHON, names."""
    simulation_device: str = ""
    """Where it computes, in torch's words; empty: where observations are wanted if that is a GPU, else cuda:0."""
    start_seconds: float = 110.0
    """The simulator may take this long to be there; a learner waits 120 s for a worker."""


def make(id: str, count: int, options: Mapping[str, object], device: str) -> "IsaacSimulator":
    """Starts the far side and makes a task there.

    Args:
        id: `isaacgym:` and a task of IsaacGymEnvs, or `isaaclab:` and a registered id.
        count: Number of lanes.
        options: Fields of IsaacOptions.
        device: Where observations are returned.

    Raises:
        Unimplemented: No interpreter is named, or it does not have the simulator.
        InvalidArgument: An option is unknown, or the task cannot be made.
        DeadlineExceeded: It took longer than `start_seconds`.
        Unavailable: The far side died.
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
    far = FarSide(id, interpreter)
    try:
        opening = {"family": family, "task": task, "count": count, "device": simulation_device}
        opened = json.loads(far.ask(json.dumps(opening), settings.start_seconds))
        return IsaacSimulator(id, far, opened, count, device)
    except BaseException:
        # Whatever it still does, nobody waits for it.
        far.close(end_seconds=0.0)
        raise


class FarSide:
    """The process that has the simulator: a line there, a line back.

    far = FarSide("isaacgym:Ant", "/path/of/python")
    answer = far.ask("step", deadline_seconds=60.0)
    far.close()
    """

    def __init__(self, id: str, interpreter: str) -> None:
        """Starts it.

        Args:
            id: What the user calls the simulator, for error lines.
            interpreter: Runs it.

        Raises:
            InvalidArgument: The interpreter cannot be started.
        """
        self._id, self._interpreter = id, interpreter
        requests_there, self._requests = os.pipe()
        self._responses, responses_there = os.pipe()
        try:
            self._process = subprocess.Popen(
                [interpreter, str(FAR_SIDE), str(requests_there), str(responses_there)],
                pass_fds=(requests_there, responses_there),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(),
                # Not of the terminal's group: it goes when this process does, and not before.
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
        """Sends a line and waits for the one that answers it.

        Raises:
            DeadlineExceeded: It did not come in time.
            Unavailable: The far side is gone.
            Unimplemented, InvalidArgument, Internal: It failed.
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
        said = " ".join(str(reason["error"]).split())
        if reason["missing"]:
            return Unimplemented(f"{self._id}: {self._interpreter} has no package {reason['missing']!r}: {said}")
        if self._opened:
            return Internal(f"{self._id}: the simulator failed: {said}")
        return InvalidArgument(f"{self._id}: it cannot be made: {said}")

    def _gone(self) -> Unavailable:
        try:
            code: object = self._process.wait(END_SECONDS)
            self._reader.join(END_SECONDS)
        except subprocess.TimeoutExpired:
            code = "none yet"
        return Unavailable(f"{self._id}: its process is gone (exit code {code}){self._last_line()}")

    def _last_line(self) -> str:
        return f"; its last line: {self._lines[-1]}" if self._lines else ""

    def _read_lines(self) -> None:
        """Keeps the last lines of what it prints: a full pipe would stop it."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                text = line.decode(errors="replace").strip()
                if text:
                    self._lines.append(text)
                    _log.debug("isaac prints", id=self._id, line=text)

    def close(self, end_seconds: float = END_SECONDS) -> None:
        """Ends it: by the end of its requests, by force if it has not gone in time. Repeating is harmless."""
        if self._requests < 0:
            return
        os.close(self._requests)
        os.close(self._responses)
        self._requests = self._responses = -1
        try:
            self._process.wait(end_seconds)
        except subprocess.TimeoutExpired:
            # With whatever it has started: it leads a session of its own.
            os.killpg(self._process.pid, 9)
            self._process.wait(END_SECONDS)
        self._reader.join(END_SECONDS)


def _environment() -> dict[str, str]:
    """This process's, without what would make another Python look for packages of this one."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


class IsaacSimulator:
    """N lanes in another process. See simulators.base.Simulator for the verbs.

    A seed draws the states in which episodes begin. Physics on a GPU is not reproducible to the last bit.

    Attributes:
        observation_space: Of float32, without bounds.
        action_space: Of float32; where the simulator states no bounds, within [-1, 1].
        count: Number of lanes, N.
    """

    def __init__(self, id: str, far: FarSide, opened: Mapping[str, Any], count: int, device: str) -> None:
        """Shares memory with the far side and begins episodes with seed 0.

        Args:
            id: What the user calls it.
            far: Where it is stepped; closed by `close`, or when this object goes.
            opened: What the far side said of it.
            count: Number of lanes.
            device: Where observations are returned.
        """
        self._far, self.count, self._device = far, count, torch.device(device)
        self._end: Callable[[], object] = weakref.finalize(self, far.close)
        low, high = tuple(opened["low"]), tuple(opened["high"])
        self.observation_space = Space("continuous", tuple(opened["observation"]), torch.float32)
        self.action_space = Space("continuous", tuple(opened["action"]), torch.float32, low, high)
        if opened["note"]:
            _log.warning("a simulator differs from the interface", id=id, how=opened["note"])
        self._memory = self._share()
        self._live = Step(**{field.name: self._memory[field.name] for field in fields(Step)})
        self.reset(0)

    def _share(self) -> dict[str, Tensor]:
        plane = SharedPlane(f"podrace-isaac-{secrets.token_hex(8)}-")
        specs = step_specs(self.observation_space, self.action_space, self.count)
        try:
            region = plane.create("step", list(specs.values()))
            sent = write_probe(region, seed=secrets.randbits(32))
            offsets = {ref.spec.name: ref.offset_bytes for ref in region.refs()}
            path = str(FOLDER / region.plane_uri.partition(":")[2])
            answer = json.loads(self._far.ask(json.dumps({"memory": path, "offsets": offsets}), STEP_SECONDS))
            check_probe(plane.scheme, sent, answer["probe_sum"])
            return dict(region)
        finally:
            # Both sides have it mapped: no file is left behind, however they end.
            plane.close()

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self._far.ask(f"reset {seed}", STEP_SECONDS)
        return self._live.observation.to(self._device)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator; raises as FarSide.ask does."""
        self._memory["action"].copy_(action.reshape(self.count, *self.action_space.shape))
        self._far.ask("step", STEP_SECONDS)
        return self._live if self._device.type == "cpu" else self._copy_to_device()

    def _copy_to_device(self) -> Step:
        return Step(**{field.name: getattr(self._live, field.name).to(self._device) for field in fields(Step)})

    def report(self) -> Report:
        """Empty: there is the return and nothing else."""
        return Report()

    def close(self) -> None:
        """Ends the far side."""
        self._end()

"""Gymnasium environments in processes of their own, which write into memory that this one reads.

A step is one byte to each process and one back; observations, rewards and actions are never sent. Worth it where a
step of one environment takes longer than the two bytes and the waking of a process: MuJoCo's, not CartPole's.

The processes are new interpreters, not forks of this one, where gRPC runs. They end when this process does, however
it ends, because their sockets close.
"""

import itertools
import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from podrace.errors import BY_CODE, DeadlineExceeded, InvalidArgument, PodraceError, Unavailable
from simulators.gym import lanes as gym_lanes
from simulators.gym.lanes import CLOSE, DONE, RESET, STEP, Arrays, layout_of, one_line, receive_object, send_object

PROGRAM = Path(gym_lanes.__file__)
STEP_DEADLINE_SECONDS = 600
CLOSE_DEADLINE_SECONDS = 5


class Child:
    """One process, and the lanes it steps."""

    def __init__(self, id: str, made_of: bytes, lanes: range, memory_file: int) -> None:
        """Starts it; `expect` waits until its environments are made.

        Args:
            id: What the user wrote, for error lines.
            made_of: Name, specification and options of the environment, pickled.
            lanes: Those it steps.
            memory_file: Descriptor of the file that holds the arrays.
        """
        self._id, self._lanes = id, lanes
        self._connection, other = socket.socketpair()
        self.set_deadline(STEP_DEADLINE_SECONDS)
        # Modules are found where this process finds them, except beside the program: `gym.py` is no package there.
        search_path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), str(other.fileno()), str(memory_file)],
                env={**os.environ, "PYTHONPATH": search_path},
                stdin=subprocess.DEVNULL,
                pass_fds=(other.fileno(), memory_file),
            )
        self.tell_object((lanes.start, len(lanes), id, made_of))

    def __str__(self) -> str:
        return f"the process of lanes {self._lanes.start} to {self._lanes.stop - 1}"

    def set_deadline(self, seconds: float) -> None:
        """Sets how long an answer may take; by the kernel, as Python's own way is another system call a step."""
        self._deadline_seconds = seconds
        whole, rest = divmod(seconds, 1)
        deadline = struct.pack("ll", int(whole), int(rest * 1e6))
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, deadline)

    def tell(self, what: bytes) -> None:
        """Tells one byte; who is gone is found out by `expect`."""
        try:
            self._connection.send(what)
        except ConnectionError:
            return

    def tell_object(self, thing: object) -> None:
        """Tells an object; as `tell`."""
        try:
            send_object(self._connection, thing)
        except ConnectionError:
            return

    def expect(self) -> PodraceError | None:
        """Waits for the answer to what was told; what went wrong, or None."""
        try:
            answer = self._connection.recv(1)
            if answer == DONE:
                return None
            if answer:
                code, message = receive_object(self._connection)
                return BY_CODE[code](message)
        except BlockingIOError:
            return DeadlineExceeded(f"{self._id}: {self} has not answered for {self._deadline_seconds:g} s")
        except (ConnectionError, EOFError):
            pass
        return Unavailable(f"{self._id}: {self} ended{self._ending()}; make the simulator anew")

    def receive_object(self) -> Any:
        """What `expect` was followed by."""
        return receive_object(self._connection)

    def _ending(self) -> str:
        try:
            code = self.process.wait(CLOSE_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            return ""
        return f" by signal {-code} (9: killed, perhaps for want of memory)" if code < 0 else f" with code {code}"

    def close(self) -> None:
        """Waits for its end, which `tell(CLOSE)` has asked for, and kills it if it takes long."""
        try:
            self.process.wait(CLOSE_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._connection.close()


class ProcessLanes:
    """Lanes of one registered name, divided among processes; the same numbers as in one.

    See simulators.gym.lanes.Lanes for the attributes and the verbs.
    """

    def __init__(self, id: str, name: str, options: Mapping[str, object], count: int, processes: int) -> None:
        """Starts the processes and waits until all environments are made.

        Args:
            id: What the user wrote, for error lines.
            name: What Gymnasium calls it.
            options: Keyword arguments of `gymnasium.make`.
            count: Number of lanes.
            processes: At most this many processes, and none without a lane.

        Raises:
            InvalidArgument: The environment refuses its options, or they cannot be sent.
            Unimplemented: The environment needs a package that is not installed.
        """
        self.count = count
        self._children: list[Child] = []
        self._memory_file = -1
        made_of = _pickled(id, (name, gymnasium.registry[name.rpartition(":")[2]], dict(options)))
        self._memory_file = os.memfd_create("gymnasium")
        bounds = np.linspace(0, count, min(processes, count) + 1).astype(int).tolist()
        try:
            for first, end in itertools.pairwise(bounds):
                self._children.append(Child(id, made_of, range(first, end), self._memory_file))
            self._await_all()
            made = [child.receive_object() for child in self._children]
            self.observation_space, self.action_space = made[0]
        except BaseException:
            self.close()
            raise

    def allocate(self) -> NDArray[np.uint8]:
        """See Lanes."""
        size, layout = layout_of(self.count, self.observation_space, self.action_space)
        os.ftruncate(self._memory_file, size)
        memory = mmap.mmap(self._memory_file, size)
        for child in self._children:
            child.tell_object((size, layout))
        self.arrays = Arrays.over(memory, layout)
        return np.frombuffer(memory, np.uint8)

    def reset(self, seeds: Sequence[int]) -> None:
        """See Lanes."""
        self.arrays.seed[:] = seeds
        self._tell_all(RESET)

    def step(self, actions: NDArray[Any]) -> None:
        """See Lanes.

        Raises:
            Unavailable: A process was ended by somebody else.
            DeadlineExceeded: A process does not answer.
        """
        self.arrays.action[:] = actions
        self._tell_all(STEP)

    def _tell_all(self, what: bytes) -> None:
        for child in self._children:
            child.tell(what)
        self._await_all()

    def _await_all(self) -> None:
        # Everybody's answer is taken before one error is told, or the next answers would be those of this call.
        errors = [error for child in self._children if (error := child.expect())]
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Ends the processes; may be called again."""
        for child in self._children:
            child.tell(CLOSE)
        for child in self._children:
            child.close()
        self._children = []
        if self._memory_file >= 0:
            os.close(self._memory_file)
            self._memory_file = -1


def _pickled(id: str, made_of: tuple[object, ...]) -> bytes:
    try:
        return pickle.dumps(made_of)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            f"{id}: what it is made of cannot be sent to another process ({one_line(error)}): step it in this one, "
            "processes = 0"
        ) from error

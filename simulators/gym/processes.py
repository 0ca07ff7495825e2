"""Runs Gymnasium environments in separate processes that write into memory shared with this process.

A step is one byte to each process and one byte back; observations, rewards and actions are never sent. This pays off
where a step of one environment takes longer than exchanging two bytes and waking a process: for MuJoCo, not CartPole.

The processes are new interpreters, not forks of this process, which runs gRPC. They end when this process ends, for
whatever reason, because their sockets close.
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
from podrace.limits.config import EVERYTHING, Allowed
from podrace.limits.user_environment import user_environment
from simulators.gym import lanes as gym_lanes
from simulators.gym.lanes import (
    CLOSE,
    DONE,
    RESET,
    RESET_ONCE,
    STEP,
    Arrays,
    layout_of,
    one_line,
    receive_object,
    send_object,
)

PROGRAM = Path(gym_lanes.__file__)
STEP_DEADLINE_SECONDS = 600
CLOSE_DEADLINE_SECONDS = 5


class Child:
    """A process and the lanes it steps."""

    def __init__(self, id: str, made_of: bytes, lanes: range, memory_file: int, allowed: Allowed = EVERYTHING) -> None:
        """Starts the process; `expect` waits until its environments are made.

        Args:
            id: The simulator's id as the user wrote it, for error messages.
            made_of: Name, specification and options of the environment, pickled.
            lanes: The lanes it steps.
            memory_file: Descriptor of the file that holds the arrays.
            allowed: Which variables of the environment it gets.
        """
        self._id, self._lanes = id, lanes
        self._connection, other = socket.socketpair()
        self.set_deadline(STEP_DEADLINE_SECONDS)
        # Modules are found where this process finds them, except next to the program: there, `gym.py` is not a package.
        search_path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), str(other.fileno()), str(memory_file)],
                env={**user_environment(os.environ, allowed), "PYTHONPATH": search_path},
                stdin=subprocess.DEVNULL,
                pass_fds=(other.fileno(), memory_file),
            )
        self.send_object((lanes.start, len(lanes), id, made_of))

    def __str__(self) -> str:
        return f"the process of lanes {self._lanes.start} to {self._lanes.stop - 1}"

    def set_deadline(self, seconds: float) -> None:
        """Sets how long an answer may take; a socket option, because Python's timeout costs a system call per step."""
        self._deadline_seconds = seconds
        whole, rest = divmod(seconds, 1)
        deadline = struct.pack("ll", int(whole), int(rest * 1e6))
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, deadline)

    def send(self, command: bytes) -> None:
        """Sends a command of one byte; if the process is gone, `expect` reports it."""
        try:
            self._connection.send(command)
        except ConnectionError:
            return

    def send_object(self, thing: object) -> None:
        """Sends an object; if the process is gone, `expect` reports it."""
        try:
            send_object(self._connection, thing)
        except ConnectionError:
            return

    def expect(self) -> PodraceError | None:
        """Waits for the answer to a command; returns its error, or None."""
        try:
            answer = self._connection.recv(1)
            if answer == DONE:
                return None
            if answer:
                code, message = receive_object(self._connection)
                return BY_CODE[code](message)
        except BlockingIOError:
            return DeadlineExceeded(f"{self._id}: {self} did not answer within {self._deadline_seconds:g} s")
        except (ConnectionError, EOFError):
            pass
        return Unavailable(f"{self._id}: {self} ended{self._ending()}; make a new simulator")

    def receive_object(self) -> Any:
        """Receives an object that follows an answer."""
        return receive_object(self._connection)

    def _ending(self) -> str:
        try:
            code = self.process.wait(CLOSE_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            return ""
        return f" by signal {-code} (9: killed, possibly out of memory)" if code < 0 else f" with code {code}"

    def close(self) -> None:
        """Waits for the process to end after `send(CLOSE)`; kills it if it takes too long."""
        try:
            self.process.wait(CLOSE_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._connection.close()


class ProcessLanes:
    """Lanes of one registered environment, divided among processes; the results equal those of a single process.

    See simulators.gym.lanes.Lanes for the attributes and methods.
    """

    def __init__(
        self,
        id: str,
        name: str,
        options: Mapping[str, object],
        count: int,
        processes: int,
        allowed: Allowed = EVERYTHING,
    ) -> None:
        """Starts the processes and waits until all environments are made.

        Args:
            id: The simulator's id as the user wrote it, for error messages.
            name: Gymnasium's name of the environment.
            options: Keyword arguments of `gymnasium.make`.
            count: Number of lanes.
            processes: Maximum number of processes; each has at least one lane.
            allowed: Which variables of the environment they get.

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
                self._children.append(Child(id, made_of, range(first, end), self._memory_file, allowed))
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
            child.send_object((size, layout))
        self.arrays = Arrays.over(memory, layout)
        return np.frombuffer(memory, np.uint8)

    def reset(self, seeds: Sequence[int], *, single_episodes: bool = False) -> None:
        """See Lanes."""
        self.arrays.seed[:] = seeds
        self._send_all(RESET_ONCE if single_episodes else RESET)

    def step(self, actions: NDArray[Any]) -> None:
        """See Lanes.

        Raises:
            Unavailable: A process was killed, or crashed.
            DeadlineExceeded: A process does not answer.
        """
        self.arrays.action[:] = actions
        self._send_all(STEP)

    def _send_all(self, command: bytes) -> None:
        for child in self._children:
            child.send(command)
        self._await_all()

    def _await_all(self) -> None:
        # Every answer is read before an error is raised; otherwise the next call would read the answers to this one.
        errors = [error for child in self._children if (error := child.expect())]
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Ends the processes; may be called repeatedly."""
        for child in self._children:
            child.send(CLOSE)
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
            f"{id}: the environment cannot be sent to another process ({one_line(error)}): use processes = 0"
        ) from error

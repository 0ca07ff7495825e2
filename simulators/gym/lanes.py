"""Steps N Gymnasium environments one after the other, into arrays that may be shared; does not import torch.

Run as a program, this module is one process of `simulators.gym.processes`. It imports no other module of this package,
which would load torch in every process: two seconds and hundreds of megabytes.
"""

import mmap
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from podrace.errors import Internal, InvalidArgument, PodraceError, Unimplemented
from podrace.spaces.entries import EntryError
from podrace.spaces.gymnasium_spaces import MaskFromInfo, acted, action_decoder, observation_encoder, observed

Environment = gymnasium.Env[Any, Any]
Array = NDArray[Any]
_ALIGNMENT_BYTES = 64
INFO_MASK = "info_action_mask"
"""The option of an environment that returns an action mask in `info`; all others are its constructor's."""
STEP, RESET, RESET_ONCE, CLOSE = b"s", b"r", b"o", b"c"
DONE, FAILED = b"\0", b"\1"


@dataclass(frozen=True)
class Arrays:
    """The arrays that N lanes write, and those that they read: seeds and actions.

    Attributes:
        observation: [N, *shape] float32 or uint8.
        final_observation: [N, *shape], of the same type.
        reward: [N] float32.
        terminated: [N] bool.
        truncated: [N] bool.
        began: [N] int64, the step, counted since `reset`, after which the current episode of each lane started.
        length: [N] int64, the number of steps of the last finished episode of each lane.
        seed: [N] int64, used by the next reset.
        action: [N, *action shape] in the type of the action space; int64 unless it is continuous.
    """

    observation: Array
    final_observation: Array
    reward: Array
    terminated: Array
    truncated: Array
    began: Array
    length: Array
    seed: Array
    action: Array

    @classmethod
    def over(cls, memory: Any, layout: Mapping[str, tuple[int, tuple[int, ...], str]]) -> "Arrays":
        """Creates arrays in `memory` (any writable buffer), at the offsets of `layout_of`."""
        return cls(
            **{name: np.ndarray(shape, dtype, memory, offset) for name, (offset, shape, dtype) in layout.items()}
        )

    def lanes(self, first: int, count: int) -> "Arrays":
        """Returns the rows of some lanes, in the same memory."""
        return Arrays(**{name: array[first : first + count] for name, array in vars(self).items()})


def layout_of(
    count: int, observation: spaces.Space[Any], action: spaces.Space[Any]
) -> tuple[int, dict[str, tuple[int, tuple[int, ...], str]]]:
    """Computes where the arrays of `count` lanes lie in one block of memory.

    Returns:
        The size of the block in bytes, and for each field of Arrays its offset in bytes, shape and type.
    """
    shape, dtype = observed(observation, action)
    action_shape, action_type = acted(action)
    kinds = {
        "observation": (shape, dtype),
        "final_observation": (shape, dtype),
        "reward": ((), "float32"),
        "terminated": ((), "bool"),
        "truncated": ((), "bool"),
        "began": ((), "int64"),
        "length": ((), "int64"),
        "seed": ((), "int64"),
        "action": (action_shape, action_type),
    }
    layout, offset = {}, 0
    for name, (row, element) in kinds.items():
        layout[name] = (offset, (count, *row), element)
        size = count * int(np.prod(row)) * np.dtype(element).itemsize
        offset += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return offset, layout


def make_environments(id: str, name: str, options: Mapping[str, Any], count: int) -> list[Environment]:
    """Makes environments of a registered name.

    Args:
        id: The simulator's id as the user wrote it, for error messages.
        name: Gymnasium's name of the environment.
        options: Keyword arguments of `gymnasium.make`, and INFO_MASK.
        count: Number of environments.

    Raises:
        InvalidArgument: The environment refuses its options.
        Unimplemented: The environment needs a package that is not installed.
    """
    own = dict(options)
    is_masked = own.pop(INFO_MASK, False)
    try:
        # Gymnasium's checker validates every step for mistakes of the environment's author, which costs time.
        made = [gymnasium.make(name, disable_env_checker=True, **own) for _ in range(count)]
        return [MaskFromInfo(environment) for environment in made] if is_masked else made
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise Unimplemented(f"{id}: {one_line(error)}") from error
    except (gymnasium.error.Error, TypeError, ValueError, KeyError, AssertionError, OSError) as error:
        raise InvalidArgument(f"{id} refuses its options {dict(options)}: {one_line(error)}") from error


def one_line(thing: object) -> str:
    """Returns the text of an object without line breaks."""
    return " ".join(str(thing).split())


class Lanes:
    """Environments with equal spaces, stepped in this process.

    Attributes:
        count: Number of lanes, N.
        observation_space: Gymnasium's space of one lane.
        action_space: Gymnasium's space of one lane.
        arrays: The arrays that the lanes write.
    """

    def __init__(self, id: str, environments: Sequence[Environment], first_lane: int = 0) -> None:
        """Takes ownership of the environments; `allocate` or `place` determines where they write.

        Args:
            id: The simulator's id as the user wrote it, for error messages.
            environments: At least one; closed by `close`.
            first_lane: Number of the first lane in error messages.
        """
        self.count = len(environments)
        self.observation_space, self.action_space = environments[0].observation_space, environments[0].action_space
        self.arrays: Arrays
        self._id, self._first_lane = id, first_lane
        self._environments = list(environments)
        self._step_of_lane = list(enumerate(environment.step for environment in environments))
        self._awake = self._step_of_lane
        self._single_episodes = False
        self._steps = 0

    @property
    def first_environment(self) -> Environment:
        """The environment of the first lane."""
        return self._environments[0]

    def allocate(self) -> NDArray[np.uint8]:
        """Allocates the arrays, and returns their memory: zeros, laid out by `layout_of`."""
        size, layout = layout_of(self.count, self.observation_space, self.action_space)
        memory = np.zeros(size, np.uint8)
        self.place(Arrays.over(memory, layout))
        return memory

    def place(self, arrays: Arrays) -> None:
        """Makes the lanes write into `arrays` from now on; their spaces are supported ones."""
        self.arrays = arrays
        self._encode = observation_encoder(self.observation_space, self.action_space)
        self._decode = action_decoder(self.action_space)
        self._shape, _ = observed(self.observation_space, self.action_space)

    def reset(self, seeds: Sequence[int], *, single_episodes: bool = False) -> None:
        """Starts an episode in every lane, with one seed per lane.

        Args:
            seeds: The seeds.
            single_episodes: Whether a lane rests when its episode has ended, until the next reset.

        Raises:
            InvalidArgument: An observation does not match the observation space.
            Internal: An environment raised an exception.
        """
        self.arrays.began.fill(0)
        self._steps, lane = 0, 0
        self._awake, self._single_episodes = self._step_of_lane, single_episodes
        try:
            for lane, seed in enumerate(seeds):
                observation, _ = self._environments[lane].reset(seed=int(seed))
                self.arrays.observation[lane] = self._row(observation)
        except Exception as error:  # an environment may raise anything
            raise self._fault(lane, error) from error

    def step(self, actions: Array) -> None:
        """Steps every lane that does not rest; where an episode ends, the lane is reset, or rests from then on.

        Raises:
            InvalidArgument: An observation does not match the observation space.
            Internal: An environment raised an exception.
        """
        arrays, shape, lane = self.arrays, self._shape, 0
        observations, rewards, is_encoded = arrays.observation, arrays.reward, self._encode is not None
        arrays.terminated.fill(False)
        arrays.truncated.fill(False)
        if self._single_episodes:
            rewards.fill(0.0)
        self._steps += 1
        native_actions = self._decode(actions)
        try:
            for lane, step in self._awake:
                observation, rewards[lane], terminated, truncated, _ = step(native_actions[lane])
                if terminated or truncated:
                    observation = self._end_episode(lane, observation, bool(terminated))
                if is_encoded or getattr(observation, "shape", None) != shape:
                    observation = self._row(observation)
                observations[lane] = observation
        except Exception as error:  # an environment may raise anything
            raise self._fault(lane, error) from error
        if self._single_episodes:
            self._rest()

    def _rest(self) -> None:
        """Keeps the lanes whose episode has just ended from being stepped until the next reset."""
        ended = self.arrays.terminated | self.arrays.truncated
        if ended.any():
            self._awake = [(lane, step) for lane, step in self._awake if not ended[lane]]

    def _end_episode(self, lane: int, observation: Any, terminated: bool) -> Any:
        """Stores the final observation of a lane and returns the first one of its next episode."""
        arrays = self.arrays
        arrays.final_observation[lane] = self._row(observation)
        arrays.terminated[lane], arrays.truncated[lane] = terminated, not terminated
        arrays.length[lane] = self._steps - arrays.began[lane]
        arrays.began[lane] = self._steps
        if self._single_episodes:
            return observation
        observation, _ = self._environments[lane].reset()
        return observation

    def _row(self, observation: Any) -> Array:
        """Returns an observation as a row; checks the shape, because assignment would broadcast a wrong one."""
        row: Array = self._encode(observation) if self._encode else np.asarray(observation)
        if row.shape != self._shape:
            raise _WrongShapeError(row.shape)
        return row

    def _fault(self, lane: int, error: Exception) -> PodraceError:
        """Returns the error to raise for an environment that failed."""
        if isinstance(error, PodraceError):
            return error
        steps = self._steps - int(self.arrays.began[lane])
        where = f"at step {steps} of its episode" if steps else "at the reset of its episode"
        subject = f"{self._id}: lane {self._first_lane + lane}"
        if isinstance(error, EntryError):
            return InvalidArgument(f"{subject} returned an observation whose {error} {where}")
        if isinstance(error, _WrongShapeError):
            return InvalidArgument(
                f"{subject} returned an observation of shape {error.shape} {where}; its observation space has the "
                f"shape {self._shape}"
            )
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {one_line(error)}"
        if frame.filename == __file__:
            return Internal(f"{subject} violates Gymnasium's interface {where}: {what}")
        return Internal(f"{subject} raised {what} ({os.path.basename(frame.filename)}:{frame.lineno}) {where}")  # noqa: PTH119

    def close(self) -> None:
        """Closes every environment."""
        for environment in self._environments:
            environment.close()


class _WrongShapeError(Exception):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.shape = shape


# --- run as a separate process -------------------------------------------------------------------------------------


def send_object(connection: socket.socket, thing: object) -> None:
    """Sends one object to a process of this program."""
    data = pickle.dumps(thing)
    connection.sendall(len(data).to_bytes(8, "little") + data)


def receive_object(connection: socket.socket) -> Any:
    """Receives an object sent by `send_object`.

    Raises:
        EOFError: The other process is gone.
    """
    size = int.from_bytes(_receive(connection, 8), "little")
    return pickle.loads(_receive(connection, size))


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def serve(connection: socket.socket, memory_file: int) -> None:
    """Makes lanes, then steps and resets them on command, until the connection closes.

    Every answer is one byte; FAILED is followed by the code and the message of the error.

    Args:
            connection: Connection to the parent.
            memory_file: Descriptor of the file that holds the arrays.
    """
    # Ctrl-C reaches the whole process group; the parent decides when this process stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=[connection.fileno()], daemon=True).start()
    first_lane, count, id, made_of = receive_object(connection)
    made: list[Lanes] = []
    if not _answered(connection, lambda: made.append(_made(id, made_of, count, first_lane))):
        return
    [own] = made
    send_object(connection, (own.observation_space, own.action_space))
    size, layout = receive_object(connection)
    own.place(Arrays.over(mmap.mmap(memory_file, size), layout).lanes(first_lane, count))
    calls = {
        # Copied: an environment may keep its action, and the next one overwrites the array.
        STEP: lambda: own.step(own.arrays.action.copy()),
        RESET: lambda: own.reset(own.arrays.seed.tolist()),
        RESET_ONCE: lambda: own.reset(own.arrays.seed.tolist(), single_episodes=True),
    }
    while (command := connection.recv(1)) in calls:
        _answered(connection, calls[command])
    own.close()


def _made(id: str, made_of: bytes, count: int, first_lane: int) -> Lanes:
    try:
        name, specification, options = pickle.loads(made_of)
    except (AttributeError, ImportError) as error:
        raise InvalidArgument(
            f"{id}: the environment's class cannot be loaded in another process: {one_line(error)}"
        ) from error
    if ":" not in name:
        # Registered in the parent, possibly by its own code; a module named in the id is imported and registers its
        # own.
        gymnasium.registry.setdefault(name, specification)
    return Lanes(id, make_environments(id, name, options, count), first_lane)


def _answered(connection: socket.socket, call: Callable[[], None]) -> bool:
    try:
        call()
    except PodraceError as error:
        connection.sendall(FAILED)
        send_object(connection, (error.code, error.message))
        return False
    connection.sendall(DONE)
    return True


def _end_with(connection: int) -> None:
    """Ends this process when the parent ends, even in the middle of a step that never returns."""
    poll = select.poll()
    poll.register(connection, 0)  # a hang-up is reported without being requested
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))

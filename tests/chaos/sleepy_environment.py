"""An environment that sleeps, so that the rate of a pod depends on time and not on the cores of the machine.

A file `hold` or `memory` in the folder of the option `faults`, or else in MOUNTED, lets one process, the first that
finds it, hold the interpreter's lock for the seconds that the file states, or allocate memory until it is killed.
"""

import ctypes
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

STEP_SECONDS = 0.005
EPISODE_STEPS = 40
CHUNK_BYTES = 64 << 20
MOUNTED = Path("/reports")
"""Folder that tests mount into containers. Services refuse specifications that name files."""


class Sleepy(gymnasium.Env[np.ndarray, int]):
    """Rewards the action 1; every step takes `step_seconds`."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_seconds: float = STEP_SECONDS, faults: str = "") -> None:
        self._step_seconds = step_seconds
        folder = Path(faults) if faults else MOUNTED
        self._faults = folder if folder.is_dir() else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_seconds)
        if self._faults:
            fail(self._faults)
        self._steps += 1
        return np.zeros(4, np.float32), float(action), False, self._steps >= EPISODE_STEPS, {}


def fail(folder: Path) -> None:
    """Fails in the way that a file of the folder names; another process that finds it afterwards does not."""
    if seconds := taken(folder / "hold"):
        # Functions of PyDLL keep the interpreter's lock.
        ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))
    if taken(folder / "memory"):
        kept = []
        while True:
            kept.append(bytearray(b"x") * CHUNK_BYTES)


def taken(path: Path) -> str:
    """Returns the content of a file and deletes it; empty if it does not exist, or if another process took it."""
    try:
        content = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return ""
    return content


class Drowsy(Sleepy):
    """Sleeps little: it trains at some thousand steps a second, and leaves most of a processor to others."""

    def __init__(self) -> None:
        super().__init__(step_seconds=0.0001)

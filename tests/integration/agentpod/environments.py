"""Environments that misbehave in chosen ways, reached as `python:environments:<factory>`."""

import ctypes
import itertools
import threading
import time

import gymnasium
import numpy as np

from simulators.compilation import compiling


class Line(gymnasium.Env):
    """Walks a line; at `bad_step` an observation is not finite, at `raising_step` it raises."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: float = 20, bad_step: int = -1, raising_step: int = -1) -> None:
        self._length, self._bad_step, self._raising_step = length, bad_step, raising_step
        self._step = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._step += 1
        if self._step == self._raising_step:
            raise RuntimeError("fell off the line")
        value = np.nan if self._step == self._bad_step else float(action)
        return np.array([value, self._step], np.float32), float(action), False, self._step >= self._length, {}


def line() -> gymnasium.Env:
    return Line()


def not_finite() -> gymnasium.Env:
    return Line(bad_step=10)


def raising() -> gymnasium.Env:
    return Line(raising_step=10)


def endless() -> gymnasium.Env:
    return Line(length=float("inf"))


class Hanging(Line):
    """Steps slowly, and hangs after some steps."""

    def __init__(self, hangs_after: int = 1500) -> None:
        super().__init__()
        self._left = hangs_after

    def step(self, action):
        self._left -= 1
        if self._left < 0:
            self.hang_forever()
        time.sleep(0.001)
        return super().step(action)

    def hang_forever(self) -> None:
        threading.Event().wait()


def hanging() -> gymnasium.Env:
    return Hanging()


class Holding(Hanging):
    """As Hanging, but holds the interpreter's lock, so that its process answers nothing."""

    def hang_forever(self) -> None:
        # Functions of PyDLL keep the lock.
        ctypes.PyDLL(None).sleep(3600)


def holding() -> gymnasium.Env:
    return Holding()


class Compiling(Line):
    """Compiles after some steps of all environments for longer than a step takes, and later without end."""

    steps = itertools.count()

    def step(self, action):
        number = next(self.steps)
        if number in (8_000, 16_000):
            with compiling("kernels of a test"):
                threading.Event().wait(6.0 if number == 8_000 else None)
        time.sleep(0.001)
        return super().step(action)


def recompiling() -> gymnasium.Env:
    return Compiling()

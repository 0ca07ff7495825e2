"""Evaluation functions that misbehave in chosen ways, reached as `python:tests.integration.agentpod.scorers:<name>`."""

import ctypes
import math
import os
import subprocess
import sys
from pathlib import Path

from torch import Tensor

from agentpod.roles.evaluator import play


def tenfold(simulator, actor, episodes, seed) -> Tensor:
    return 10.0 * play(simulator, actor, episodes, seed).returns


def raising(simulator, actor, episodes, seed):
    raise ZeroDivisionError("of nothing")


def exiting(simulator, actor, episodes, seed):
    sys.exit(5)


def crashing(simulator, actor, episodes, seed):
    ctypes.string_at(0)


def hanging(simulator, actor, episodes, seed):
    # Without letting go of the interpreter: nothing else of its process runs any more.
    ctypes.PyDLL(None).sleep(10**6)


def endless(simulator, actor, episodes, seed):
    while True:
        play(simulator, actor, episodes, seed)


def starting(simulator, actor, episodes, seed):
    start_child()
    endless(simulator, actor, episodes, seed)


def starting_and_crashing(simulator, actor, episodes, seed):
    start_child()
    crashing(simulator, actor, episodes, seed)


def start_child() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    started = Path(os.environ["SCORERS_CHILD"])
    started.with_suffix(".incoming").write_text(str(child.pid))
    started.with_suffix(".incoming").rename(started)


def not_finite(simulator, actor, episodes, seed):
    return [math.nan] * episodes


def too_few(simulator, actor, episodes, seed):
    return play(simulator, actor, episodes, seed).returns[1:]


def tampering(simulator, actor, episodes, seed):
    actor._policy.flat.add_(1.0)
    return play(simulator, actor, episodes, seed).returns


def seeded(simulator, actor, episodes, seed):
    """What the seed says: one process misbehaves in all ways."""
    return BY_SEED.get(seed, tenfold)(simulator, actor, episodes, seed)


BY_SEED = {1: raising, 2: exiting, 3: not_finite, 4: too_few, 5: tampering, 6: crashing, 7: hanging, 8: endless}

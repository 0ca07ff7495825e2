"""An environment that looks for secrets of the pod that runs it, reached as `python:spying:make`.

It appends what it found to the file that the variable SPY_REPORT names, one JSON object a line.
"""

import ctypes
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

SECRET = re.compile(rb"secret-[0-9a-f]{32}")
LARGEST_REGION = 256 << 20


def make() -> gymnasium.Env[Any, Any]:
    report("environment")
    return Walk()


def score(*arguments: object) -> object:
    """An evaluation function that looks around and fails, so that the built-in one is used."""
    report("evaluator")
    raise RuntimeError("seen enough")


def report(part: str) -> None:
    found = {"part": part, "uid": os.getuid(), "groups": os.getgroups(), **look()}
    with Path(os.environ["SPY_REPORT"]).open("a") as file:
        file.write(json.dumps(found) + "\n")


def look() -> dict[str, object]:
    others = [pid for pid in relatives() if pid != os.getpid()]
    return {
        "environ": "secret-" in str(dict(os.environ)),
        "memory": any(map(has_secret, regions())),
        "files": [name for name in map(link, Path("/proc/self/fd").iterdir()) if "secret" in name],
        "others": len(others),
        "environ of others": [pid for pid in others if works(Path(f"/proc/{pid}/environ").read_bytes)],
        "memory of others": [pid for pid in others if works(Path(f"/proc/{pid}/mem").open, "rb")],
        "signals": [pid for pid in others if works(os.kill, pid, 0)],
        "store": works(os.listdir, os.environ["SPY_STORE"]),
        "leader": works(connect, os.environ["SPY_LEADER"]),
        "root": works(os.setuid, 0),
    }


def relatives() -> list[int]:
    """Returns this process, its parent and grandparent, and all their children."""
    parent = os.getppid()
    fields = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
    found = [parent, *([int(fields[1])] if int(fields[1]) > 1 else [])]
    for pid in list(found):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return sorted(set(found))


def has_secret(region: tuple[int, int]) -> bool:
    start, size = region
    # Without a copy, which could exceed the limit on memory.
    return SECRET.search((ctypes.c_char * size).from_address(start)) is not None


def regions() -> Iterator[tuple[int, int]]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_ = line.split()
        start, end = (int(part, 16) for part in place.split("-"))
        if rights.startswith("rw-p") and end - start <= LARGEST_REGION:
            yield start, end - start


def link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)


def works(action: Callable[..., object], *arguments: object) -> bool:
    try:
        action(*arguments)
    except OSError:
        return False
    return True


class Walk(gymnasium.Env[Any, Any]):
    """Ten steps that nothing depends on."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.zeros(1, np.float32), float(action), False, self._steps >= 10, {}

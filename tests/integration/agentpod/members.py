"""Starts processes for tests of groups: each executes functions, keeps state between calls, and can be killed.

They are forked from a server that has imported torch once, so that starting one takes a tenth of a second.
"""

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["torch", "pytest", "agentpod.fusion.averaging"])
ROOT = Path(__file__).parents[3]
ANSWER_SECONDS = 30.0


class Member:
    """One process.

    member.send(function, 1, 2)  # there: function(state, 1, 2), with its own namespace as state
    member.result()              # what it returned; what it raised is raised here
    """

    def __init__(self) -> None:
        self._connection, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_serve, args=(theirs, str(ROOT)), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, function: Callable[..., Any], *arguments: Any) -> "Member":
        _put(self._connection, (function, arguments))
        return self

    def result(self) -> Any:
        assert self._connection.poll(ANSWER_SECONDS), "a member did not answer"
        value, error = _take(self._connection)
        if error is not None:
            raise error
        return value

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def freeze(self) -> None:
        assert self._process.pid
        os.kill(self._process.pid, signal.SIGSTOP)


def everywhere(members: list[Member], function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Calls function(state, rank, *arguments) in all members concurrently; returns their results in order."""
    for rank, member in enumerate(members):
        member.send(function, rank, *arguments)
    return [member.result() for member in members]


def _serve(connection: Connection, root: str) -> None:
    # Functions of test modules are sent by name, so the module path must be importable.
    sys.path.insert(0, root)
    import torch

    torch.set_num_threads(1)
    state = SimpleNamespace()
    while True:
        try:
            function, arguments = _take(connection)
        except EOFError:
            return
        try:
            _put(connection, (function(state, *arguments), None))
        except Exception as error:
            _put(connection, (None, error))


def _put(connection: Connection, message: object) -> None:
    """Sends by value: Connection.send would share the memory of tensors, which keep changing."""
    connection.send_bytes(pickle.dumps(message))


def _take(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())

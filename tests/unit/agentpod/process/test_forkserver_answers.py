"""The fork server says whether what prevents a start may pass."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from agentpod.config import ForkServerConfig
from agentpod.process.forkserver import ForkServer

POD = {"pod_id": "p0", "orchestrator": "unix:/o", "leaderboard": "unix:/l", "store": "/store", "folder": "/pod"}


@pytest.mark.parametrize(
    ("number", "passing"),
    [(errno.EAGAIN, True), (errno.ENOMEM, True), (errno.ENOSPC, True), (errno.EMFILE, True), (errno.EACCES, False)],
)
def test_errors_of_a_machine_that_lacks_something_now_may_pass(
    monkeypatch: pytest.MonkeyPatch, number: int, passing: bool
) -> None:
    def start(*_: Any) -> int:
        raise OSError(number, "refused")

    server = ForkServer(ForkServerConfig(socket=Path("/nowhere/socket")))
    monkeypatch.setattr(server, "start", start)
    answer = server.answer(json.dumps({"pod": POD}).encode())
    assert answer["error"].startswith("cannot start the pod: ")
    assert answer["passing"] is passing

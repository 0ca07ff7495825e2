"""The log of a policy server says what it waits for while it has no policy."""

from collections.abc import MutableMapping
from typing import Any

from policies import published

from podrace.errors import Unavailable
from podrace.policy.loading import onnx_file
from podrace.serving.engine import EngineLimits, PolicyEngine
from podrace.serving.follower import SourceFollower


class ScriptedSource:
    """Answers each request for the newest version from a list; an error is raised."""

    description = "tournament t"

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)

    async def newest(self) -> str:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def read(self, version: str) -> bytes:
        return onnx_file([published("logits", 1).checkpoint])


async def events_of_start(log_lines: list[MutableMapping[str, Any]], *answers: str | Exception) -> list[str]:
    engine = PolicyEngine(EngineLimits(), clock=lambda: 0.0)
    await SourceFollower(engine, ScriptedSource(*answers)).begin()
    await engine.close()
    return [str(line["event"]) for line in log_lines]


async def test_a_server_whose_source_has_no_policy_yet_logs_that_it_waits(log_lines: Any) -> None:
    assert await events_of_start(log_lines, "", "") == ["waits for the first policy"]
    assert log_lines[0]["source"] == "tournament t"


async def test_a_server_whose_source_cannot_be_read_logs_the_reason_instead(log_lines: Any) -> None:
    assert await events_of_start(log_lines, "", Unavailable("down")) == ["no other policy could be read"]


async def test_a_server_that_has_a_policy_does_not_wait(log_lines: Any) -> None:
    version = f"{1:064x}"
    assert "waits for the first policy" not in await events_of_start(log_lines, version, version)

"""A policy server serves each new file of its folder, and logs what it waits for while it has no policy."""

from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from policies import published

from podrace.errors import Unavailable
from podrace.policy.loading import onnx_file
from podrace.serving.engine import ActInput, EngineLimits, PolicyEngine
from podrace.serving.follower import SourceFollower
from podrace.serving.sources import FolderSource


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


async def test_another_file_of_the_same_checkpoint_is_another_version(tmp_path: Path) -> None:
    first, other = (published("logits", seed).checkpoint for seed in (1, 2))
    files = [onnx_file([one]) for one in (first, replace(other, manifest_digest=first.manifest_digest))]
    observation = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    engine = PolicyEngine(EngineLimits(), clock=lambda: 0.0)
    source = FolderSource(tmp_path, awaited=True)
    follower = SourceFollower(engine, source)
    acted = []
    for file in (*files, files[0]):
        (tmp_path / "incoming").write_bytes(file)
        (tmp_path / "incoming").replace(tmp_path / "policy.onnx")
        await follower.poll()
        assert engine.current.model == file
        assert await source.read(engine.record.current) == file
        acted.append(await engine.act(ActInput(observation)))
    assert acted[0].version == acted[2].version == first.manifest_digest
    assert acted[1].version != acted[0].version
    assert (acted[1].action != acted[0].action).any()
    assert (acted[2].action == acted[0].action).all()
    await engine.close()

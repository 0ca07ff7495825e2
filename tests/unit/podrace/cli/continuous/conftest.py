"""Continuous training on a mesh with prepared answers."""

from pathlib import Path
from typing import Any

import pytest
from continuous_rig import Rig

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.cli.continuous import controller, scores
from podrace.errors import FailedPrecondition

SPEC = """
name = "race"
seed = 3
[environment]
id = "stocks"
[environment.options]
path = "data"
[algorithms.ppo]
[objective]
environment_steps = 1000
[evaluation.options]
split = "validation"
"""


@pytest.fixture
def rig(tmp_path: Path, mesh: Any, known: Any, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.chdir(tmp_path)
    known.tournaments, known.pods = [], []
    (tmp_path / "race.toml").write_text(SPEC)
    made = Rig(tmp_path, mesh)

    async def evaluated(client: Any, tournament: Any, checkpoint: Any, **options: Any) -> Evaluation:
        made.scored.append((checkpoint.agent_id, options["request_id"]))
        made.members.append([member.manifest_digest for member in options["members"]])
        assert options["options"]["split"] == "validation"
        assert str(options["episodes"]) == "64"
        if made.scores.get(checkpoint.agent_id) == -1.0:
            raise FailedPrecondition("evaluation failed: another shape")
        mean = made.scores.get(checkpoint.agent_id, 1.0)
        fault = made.faults.get(checkpoint.agent_id, "")
        return Evaluation(mean_return=mean, variance=64.0, episodes=64, seed=options["seed"], evaluator_fault=fault)

    monkeypatch.setattr(scores, "evaluated", evaluated)
    monkeypatch.setattr(controller, "RETRY_SECONDS", 0.01)
    made.write("one")
    return made

"""An imported model is an exported policy that acts in its environment."""

import json
from pathlib import Path

import numpy as np
import pytest

from agentpod.imports.__main__ import converted, main
from podrace.policy.loading import load_policy

pytestmark = pytest.mark.long
SB3 = Path(__file__).parents[3] / "fixtures/sb3"


def request(name: str, environment: str, statistics: str = "", episodes: int = 4) -> dict[str, object]:
    kept = str(SB3 / statistics) if statistics else ""
    where = {"id": environment, "options": {}}
    return {"model": str(SB3 / name), "environment": where, "statistics": kept, "episodes": episodes}


def test_an_imported_model_is_written_compared_and_played(tmp_path: Path):
    facts = converted(tmp_path, request("ppo-cartpole.zip", "CartPole-v1"))
    assert facts["score"]["episodes"] == 4
    assert 1.0 <= facts["score"]["mean_return"] <= 500.0
    compared = facts["files"]["policy.onnx"]
    assert {compared[name]["worst"] for name in ("random", "recorded")} == {0.0}
    policy = load_policy(tmp_path / "policy.onnx")
    known = np.load(SB3 / "actions.npz")
    acted = policy.act(known["ppo-cartpole.observation"])
    assert (acted == known["ppo-cartpole.action"]).all()
    assert policy.members[0].algorithm == "ppo"


def test_statistics_are_part_of_the_exported_policy(tmp_path: Path):
    facts = converted(tmp_path, request("ppo-normalized.zip", "Pendulum-v1", "ppo-normalized.pkl", episodes=0))
    assert (facts["normalized"], facts["score"]) == (True, None)
    known = np.load(SB3 / "actions.npz")
    acted = load_policy(tmp_path / "policy.onnx").act(known["ppo-normalized.observation"])
    assert np.abs(acted - known["ppo-normalized.action"]).max() < 1e-4


def test_the_same_model_with_statistics_is_another_policy(tmp_path: Path):
    digests = []
    for statistics in ("ppo-normalized.pkl", ""):
        converted(tmp_path, request("ppo-normalized.zip", "Pendulum-v1", statistics, episodes=0))
        digests.append(load_policy(tmp_path / "policy.onnx").members[0].manifest_digest)
    assert len({*digests}) == 2
    assert all(len(digest) == 64 for digest in digests)


def test_a_refusal_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "request.json").write_text(json.dumps(request("ppo-cartpole.zip", "Pendulum-v1")))
    assert main([str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the model has 4 inputs and 2 outputs")

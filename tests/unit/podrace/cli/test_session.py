"""A command that needs pods says at once what they lack."""

import importlib.util
from pathlib import Path

import pytest

from podrace.cli import session
from podrace.cli.terminal.options import Settings
from podrace.errors import FailedPrecondition


def test_without_pytorch_training_is_refused_before_a_tournament_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    here = Settings(tmp_path, orchestrator="", debug=False, as_json=False)
    with pytest.raises(FailedPrecondition, match=r"torch is not installed: pip install 'podrace\[agentpod\]'"):
        session.require_training(here)
    session.require_training(Settings(tmp_path, orchestrator="mesh.example:7700", debug=False, as_json=False))
    assert not list(tmp_path.iterdir())

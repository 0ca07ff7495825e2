"""Makes replay memories of tests consist of several pieces, although they are small."""

import pytest

from agentpod.experience import replay_view


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_view, "PIECE_BYTES", 2_000)
    monkeypatch.setattr(replay_view, "MINIMUM_PIECES", 1)
    monkeypatch.setattr(replay_view, "SMALLEST_SAMPLE_STEPS", 12)

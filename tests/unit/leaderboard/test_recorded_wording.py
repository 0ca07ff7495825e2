"""Reasons recorded by earlier versions are translated into today's wording."""

from pathlib import Path

import pytest

from leaderboard.recorded_wording import current_wording

REASONS = Path(__file__).parents[2] / "fixtures/earlier_reasons.txt"
"""Pairs of lines: a reason that version 0.1.0 recorded, and the same reason today."""


@pytest.mark.parametrize("pair", REASONS.read_text(encoding="utf-8").strip().split("\n\n"))
def test_an_earlier_reason_is_translated_and_todays_is_not_changed(pair: str) -> None:
    earlier, today = pair.splitlines()
    assert current_wording(earlier) == today
    assert current_wording(today) == today

"""Reasons recorded by earlier versions are translated into today's wording."""

import pytest

from leaderboard.recorded_wording import current_wording


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        (
            "fresh, the generator python:m:f broke off: it ended with code 3; tournament instead: one of the first 2",
            "fresh, the generator python:m:f broke off: it ended with code 3; built-in strategy tournament instead: one"
            " of the first 2",
        ),
        (
            "the updater u gave no answer within 5 s; built-in rules instead: the board has room",
            "the updater u gave no answer within 5 s; built-in rules instead: the board has room",
        ),
        (
            "fresh, mine: x; values as specified but for discount 0.99 -> 0.9",
            "fresh, mine: x; values as specified except discount 0.99 -> 0.9",
        ),
        (
            "seat 3: a5 (1 ± 1) is 4 of 5, but no lead over it is beyond the error; goes on; unchanged",
            "seat 3: a5 (1 ± 1) is 4 of 5, but no donor leads it by more than the error; continues; unchanged",
        ),
        ("fresh, seat 2: nobody of ppo was ever scored", "fresh, seat 2: no agent of ppo was scored"),
        (
            "goes on from t-a1 (3 ± 1 there) of another tournament",
            "starts from t-a1 (3 ± 1 there) of another tournament",
        ),
    ],
)
def test_an_earlier_reason_is_translated_and_todays_is_not_changed(earlier: str, today: str) -> None:
    assert current_wording(earlier) == today
    assert current_wording(today) == today

import math

import pytest

from podrace.cli.terminal import formats


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1.0k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (999_960, "1.0M"),
        (1_234_567, "1.2M"),
        (2.5e9, "2.5G"),
        (7e16, "70000T"),
    ],
)
def test_counts_have_at_most_three_digits_and_a_unit(number: float, text: str) -> None:
    assert formats.count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0:00"), (42.9, "0:42"), (725, "12:05"), (3723, "1:02:03"), (90_000, "25:00:00")]
)
def test_durations_have_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (312.41, 8.13, "312.4 ± 8.1"),
        (312.41, 81.3, "312 ± 81"),
        (0.023456, 0.00123, "0.0235 ± 0.0012"),
        (475.0, 0.0, "475.0 ± 0.0"),
        (-1234.5, 0.0, "-1234.5 ± 0.0"),
        (0.0, 0.0, "0.0 ± 0.0"),
        (1.0, 1e-12, "1.000000 ± 0.000000"),
    ],
)
def test_scores_have_the_significant_decimals_of_their_error(value: float, error: float, text: str) -> None:
    assert formats.score(value, error) == text


def test_a_measure_is_named_in_words_and_no_measure_is_the_return() -> None:
    assert (formats.measure("sharpe_ratio"), formats.measure("return"), formats.measure("")) == (
        "sharpe ratio",
        "return",
        "return",
    )


def test_numbers_that_are_not_finite_can_be_formatted() -> None:
    assert formats.number(math.nan) == "nan"
    assert formats.number(math.inf) == "inf"
    assert formats.score(math.nan, math.nan) == "nan ± nan"
    assert formats.count(math.inf) == "infT"
    assert formats.percent(0.1234) == "12.3 %"

import datetime
from dataclasses import dataclass

import pytest

from podrace.errors import InvalidArgument
from simulators.options import parse_options


@dataclass(frozen=True)
class Example:
    name: str = ""
    share: float = 0.5
    days: int = 3
    tickers: tuple[str, ...] = ()


def test_values_as_a_file_writes_them_become_the_declared_types() -> None:
    written = {"name": datetime.date(2010, 1, 31), "share": 1, "days": 4, "tickers": ["A", "B"]}
    parsed = parse_options("example", written, Example)
    assert parsed == Example("2010-01-31", 1.0, 4, ("A", "B"))
    assert isinstance(parsed.share, float)


def test_an_omitted_option_keeps_its_default() -> None:
    assert parse_options("example", {}, Example) == Example()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("share", "a lot", "float"),
        ("days", 1.5, "int"),
        ("days", True, "int"),
        ("tickers", ["A", 1], "a list of texts"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(name: str, value: object, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=f"example: option '{name}' must be {expected}, not "):
        parse_options("example", {name: value}, Example)

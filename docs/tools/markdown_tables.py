"""Formats values and tables for the generated pages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def names_table(header: Sequence[str], entries: Mapping[str, str]) -> str:
    """Returns a table of names and their meanings."""
    return table(header, ([f"`{name}`", sentence(meaning)] for name, meaning in entries.items()))


def number(value: float) -> str:
    """Returns a number as a reader would write it: 0.001, 200,000, 1e13."""
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    if isinstance(value, int) and value % 2**20 == 0 and value < 2**40:  # bytes
        return f"{value:,} ({value // 2**30} GiB)" if value % 2**30 == 0 else f"{value:,} ({value // 2**20} MiB)"
    return f"{value:g}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")


def shown(value: Any) -> str:
    """Returns a value as a specification has it."""
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, list | tuple):
        return f"[{', '.join(number(item) for item in value)}]"
    return number(value)


def sentence(text: str) -> str:
    """Returns the text with a capital letter and a full stop, on one line."""
    line = " ".join(text.split()).removesuffix(".")
    return f"{line[:1].upper()}{line[1:]}." if line else ""

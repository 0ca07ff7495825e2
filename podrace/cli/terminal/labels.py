"""Reads labels and conditions on labels from options of commands."""

from collections.abc import Iterable

from podrace.errors import InvalidArgument


def read_labels(options: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the labels to set and the keys to remove, from KEY=VALUE and KEY-.

    Raises:
        InvalidArgument: An option is malformed.
    """
    labels: dict[str, str] = {}
    removed: list[str] = []
    for option in options:
        key, equals, value = option.partition("=")
        if equals:
            labels[key] = value
        elif key.endswith("-") and len(key) > 1:
            removed.append(key.removesuffix("-"))
        else:
            raise InvalidArgument(f"--label {option}: expected KEY=VALUE, or KEY- to remove a label")
    return labels, removed


def label_conditions(options: Iterable[str]) -> list[str]:
    """Returns the filter condition for each option: KEY=VALUE, KEY!=VALUE, or KEY, which matches any value."""
    return [_condition(option) for option in options]


def _condition(option: str) -> str:
    key, equals, value = option.partition("=")
    if not equals:
        return f"labels:{key}"
    operator = "!=" if key.endswith("!") else "="
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'labels.{key.removesuffix("!")} {operator} "{quoted}"'

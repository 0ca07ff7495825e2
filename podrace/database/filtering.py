"""Writes the filter and the order of a list as SQL."""

from collections.abc import Sequence

from podrace.listing.filters import Condition, Field, Kind

Parameters = list[str | float]


def where(conditions: Sequence[Condition]) -> tuple[str, Parameters]:
    """Returns conditions as one expression of SQL, and its parameters."""
    parts = [_condition(one) for one in conditions]
    return " AND ".join(text for text, _ in parts) or "true", [one for _, values in parts for one in values]


def order_by(order: Sequence[tuple[str, Field, bool]]) -> str:
    """Returns the expressions of ORDER BY, of names, fields and whether they are descending."""
    directions = {False: "ASC NULLS FIRST", True: "DESC NULLS LAST"}
    return ", ".join(f"{one.column} {directions[descending]}" for _, one, descending in order)


def _condition(condition: Condition) -> tuple[str, Parameters]:
    is_label = condition.field.kind == Kind.LABELS
    text, parameters = _label(condition) if is_label else _comparison(condition.field.column, condition)
    # A value that is absent satisfies no comparison but `!=`.
    absent = "true" if condition.operator == "!=" else "false"
    return f"{'NOT ' if condition.negated else ''}coalesce({text}, {absent})", parameters


def _label(condition: Condition) -> tuple[str, Parameters]:
    labels = f"json_each({condition.field.column}) WHERE key = ?"
    if condition.operator == ":":
        return f"EXISTS (SELECT 1 FROM {labels})", [condition.key]
    text, parameters = _comparison(f"(SELECT value FROM {labels})", condition)
    return text, [condition.key, *parameters]


def _comparison(column: str, condition: Condition) -> tuple[str, Parameters]:
    prefix = condition.prefix
    if prefix is not None:
        return f"substr({column}, 1, CAST(? AS INTEGER)) {condition.operator} ?", [len(prefix), prefix]
    return f"{column} {condition.operator} ?", [condition.value]

"""Checks labels: short texts that users attach to tournaments, with the rules of Kubernetes. Pure."""

import re
from collections.abc import Iterator, Mapping

from podrace.errors import FieldViolation, InvalidArgument

MOST_LABELS = 64
LONGEST_PREFIX = 192
"""Kubernetes allows 253; keys of maps in requests have at most 256 bytes."""
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_PART = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
KEY = re.compile(rf"(?:(?P<prefix>{_PART}(?:\.{_PART})*)/)?{_NAME}")
VALUE = re.compile(rf"(?:{_NAME})?")
RULE = "1 to 63 letters, digits, '.', '_' and '-', beginning and ending with a letter or a digit"


def check_labels(labels: Mapping[str, str]) -> None:
    """Checks keys, values and their number.

    Raises:
        InvalidArgument: Some are not allowed; all of them are listed.
    """
    found = list(_violations(labels))
    if found:
        raise InvalidArgument("; ".join(f"{one.field}: {one.problem}" for one in found), violations=found)


def _violations(labels: Mapping[str, str]) -> Iterator[FieldViolation]:
    if len(labels) > MOST_LABELS:
        yield FieldViolation("labels", f"has {len(labels)} entries; at most {MOST_LABELS} are allowed")
        return
    for key, value in labels.items():
        match = KEY.fullmatch(key)
        if match is None or len(match["prefix"] or "") > LONGEST_PREFIX:
            yield FieldViolation("labels", f"the key {key[:80]!r} must be {RULE}, perhaps after a domain name and '/'")
        elif VALUE.fullmatch(value) is None:
            yield FieldViolation(f"labels.{key}", f"{value[:80]!r} must be empty or {RULE}")

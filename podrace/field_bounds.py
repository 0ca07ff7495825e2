"""Checks messages against the bounds that the contracts state for their fields (podrace.bounds.v1).

    if found := violations(request):
        raise InvalidArgument(...)

The options of a message type are read once and compiled into one function for each field, so a check costs
microseconds. Ids have one form, which is defined here and in the contract.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from podrace.bounds.v1 import bounds_pb2
from podrace.bounds.v1.bounds_pb2 import Bounds
from podrace.errors import FieldViolation
from podrace.printable import printable

MOST_VIOLATIONS = 20
"""More violations of one message are not listed."""
LONGEST_KEY_BYTES = 256
"""Most bytes of a key of a map."""
LONGEST_SHOWN = 60
"""Characters of a wrong text, or of a key, that a violation repeats."""
LONGEST_DURATION_SECONDS = 315_576_000_000
"""Longest valid google.protobuf.Duration, ten thousand years."""
LATEST_TIMESTAMP_SECONDS = 253_402_300_799
"""Last second of the year 9999, the latest valid google.protobuf.Timestamp; the earliest is the year 1."""
EARLIEST_TIMESTAMP_SECONDS = -62_135_596_800

_CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029"
FORMATS: Mapping[int, tuple[re.Pattern[str], str]] = {
    bounds_pb2.FORMAT_ID: (
        re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"),
        "1 to 253 letters, digits, '.', '_' and '-', beginning with a letter or a digit",
    ),
    bounds_pb2.FORMAT_DIGEST: (re.compile(r"[0-9a-f]{64}"), "a SHA-256: 64 of the characters 0-9 and a-f"),
    bounds_pb2.FORMAT_NAME: (re.compile(f"[^{_CONTROL}]+"), "one line without control characters"),
    bounds_pb2.FORMAT_PAGE_TOKEN: (re.compile(r"[A-Za-z0-9=_-]{1,1024}"), "a next_page_token of this list"),
}
"""Pattern and description of each format of a text."""
LONGEST_NAME_BYTES = 256

_Check = Callable[[Any], str]
"""Returns what is expected of a value; empty if the value is within its bounds."""
_Walk = Callable[[Any, str, list[FieldViolation]], None]
"""Appends the violations within the value of a field; the second argument is the path of the field."""


def violations(message: Message) -> list[FieldViolation]:
    """Returns what is out of bounds in a message and all messages within it, at most MOST_VIOLATIONS."""
    found: list[FieldViolation] = []
    _check_message(message, "", found)
    return found[:MOST_VIOLATIONS]


def limits(descriptor: Descriptor) -> dict[str, tuple[float, float]]:
    """Returns the smallest and the largest number of each field of a message type that has both."""
    found = {field.name: bounds_of(field) for field in descriptor.fields}
    return {
        name: (bounds.minimum, bounds.maximum)
        for name, bounds in found.items()
        if bounds.HasField("minimum") and bounds.HasField("maximum")
    }


def bounds_of(field: FieldDescriptor) -> Bounds:
    """Returns the bounds that the contract states for a field; empty if it states none."""
    return field.GetOptions().Extensions[bounds_pb2.bounds]


def is_id(text: str) -> bool:
    """Returns whether a text has the form of the id of a tournament, an agent, a pod or another resource."""
    return FORMATS[bounds_pb2.FORMAT_ID][0].fullmatch(text) is not None


class _BoundedField(NamedTuple):
    name: str
    explicit: bool
    """Whether the field has presence. Otherwise a zero or an empty value counts as not set."""
    check: _Check | None
    walk: _Walk | None
    """Checks what is inside the value; None if `check` is sufficient."""


def _check_message(message: Message, prefix: str, found: list[FieldViolation]) -> None:
    fields, required = _compiled(message.DESCRIPTOR)
    # ListFields would copy the byte strings of all fields, also of those that are not checked.
    for name, explicit, check, walk in fields:
        if explicit and not message.HasField(name):
            continue
        value = getattr(message, name)
        if not explicit and not value:
            continue
        if check is not None and (expected := check(value)):
            found.append(_violation(prefix + name, value, expected))
        elif walk is not None:
            walk(value, prefix + name, found)
    for name, explicit in required:
        if not (message.HasField(name) if explicit else getattr(message, name)):
            found.append(FieldViolation(prefix + name, "is missing"))


@cache
def _compiled(descriptor: Descriptor) -> tuple[tuple[_BoundedField, ...], tuple[tuple[str, bool], ...]]:
    """Returns the fields of a message type that are checked, and the required ones with whether they have presence."""
    fields = tuple(found for field in descriptor.fields if (found := _bounded(field)) is not None)
    required = [field for field in descriptor.fields if bounds_of(field).required]
    return fields, tuple((field.name, field.has_presence) for field in required)


def _bounded(field: FieldDescriptor) -> _BoundedField | None:
    bounds = bounds_of(field)
    if bounds.checked_by_receiver and field.message_type is None:
        return None
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _BoundedField(field.name, False, None, _map_walk(field.message_type.fields_by_name["value"], bounds))
    if field.is_repeated:
        return _BoundedField(field.name, False, None, _list_walk(field, bounds))
    check, walk = _check_of(field, bounds), _inside if _is_walked(field) and not bounds.checked_by_receiver else None
    return None if check is None and walk is None else _BoundedField(field.name, field.has_presence, check, walk)


def _inside(value: Any, path: str, found: list[FieldViolation]) -> None:
    _check_message(value, path + ".", found)


def _element_walk(field: FieldDescriptor, bounds: Bounds) -> _Walk | None:
    """Returns the walk of an element of a list or of a value of a map; None if it needs no check."""
    check, inside = _check_of(field, bounds), _is_walked(field)
    if check is None:
        return _inside if inside else None

    def walk(value: Any, path: str, found: list[FieldViolation]) -> None:
        if expected := check(value):
            found.append(_violation(path, value, expected))
        elif inside:
            _check_message(value, path + ".", found)

    return walk


def _is_walked(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.file.package != "google.protobuf"


def _list_walk(field: FieldDescriptor, bounds: Bounds) -> _Walk:
    most = bounds.maximum_items if bounds.HasField("maximum_items") else None
    each, are_within = _element_walk(field, bounds), _quick_check(field, bounds)

    def walk(values: Any, path: str, found: list[FieldViolation]) -> None:
        if most is not None and len(values) > most:
            found.append(FieldViolation(path, f"has {len(values)} elements, expected at most {most}"))
        elif each is not None and not (are_within is not None and are_within(values)):
            for index, value in enumerate(values):
                each(value, f"{path}[{index}]", found)
                if len(found) >= MOST_VIOLATIONS:
                    return

    return walk


def _map_walk(values: FieldDescriptor, bounds: Bounds) -> _Walk:
    most = bounds.maximum_items if bounds.HasField("maximum_items") else None
    each = _element_walk(values, bounds)

    def walk(entries: Any, path: str, found: list[FieldViolation]) -> None:
        if most is not None and len(entries) > most:
            found.append(FieldViolation(path, f"has {len(entries)} entries, expected at most {most}"))
            return
        for key in sorted(entries):
            where = f"{path}.{_shown(key)}"
            if len(key.encode()) > LONGEST_KEY_BYTES:
                found.append(FieldViolation(where, f"has a key of more than {LONGEST_KEY_BYTES} bytes"))
            elif each is not None:
                each(entries[key], where, found)

    return walk


def _violation(path: str, value: Any, expected: str) -> FieldViolation:
    if isinstance(value, str | int | float):
        shown = repr(_shown(value)) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else value
        return FieldViolation(path, f"= {shown}: expected {expected}")
    return FieldViolation(path, f"expected {expected}")


def _shown(text: str) -> str:
    return printable(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "...")


# --- checks of one value -----------------------------------------------------------------------------------------


def _check_of(field: FieldDescriptor, bounds: Bounds) -> _Check | None:
    if field.message_type is not None:
        return _message_check(field.message_type.full_name, bounds)
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text_check(bounds)
    if field.type == FieldDescriptor.TYPE_BYTES:
        most = bounds.maximum_bytes
        return lambda value: f"at most {most} bytes, not {len(value)}" if len(value) > most else ""
    return _number_check(bounds)


def _text_check(bounds: Bounds) -> _Check | None:
    known = FORMATS.get(bounds.format)
    most = bounds.maximum_bytes if bounds.HasField("maximum_bytes") else None
    if most is None and bounds.format == bounds_pb2.FORMAT_NAME:
        most = LONGEST_NAME_BYTES
    if known is None and most is None:
        return None

    def check(value: str) -> str:
        # A text of n characters has at most 4 n bytes.
        if most is not None and len(value) * 4 > most and len(value.encode()) > most:
            return f"at most {most} bytes"
        if known is not None and value and known[0].fullmatch(value) is None:
            return known[1]
        return ""

    return check


def _number_check(bounds: Bounds) -> _Check | None:
    # The largest finite numbers: neither NaN nor infinity is between them.
    low = bounds.minimum if bounds.HasField("minimum") else -sys.float_info.max
    high = bounds.maximum if bounds.HasField("maximum") else sys.float_info.max
    if bounds.any_number or not (bounds.finite or bounds.HasField("minimum") or bounds.HasField("maximum")):
        return None
    expected = _range_text(bounds)
    return lambda value: "" if low <= value <= high else expected


def _range_text(bounds: Bounds) -> str:
    if bounds.HasField("minimum"):
        above = f" to {_plain(bounds.maximum)}" if bounds.HasField("maximum") else " or more"
        return f"{_plain(bounds.minimum)}{above}"
    return f"at most {_plain(bounds.maximum)}" if bounds.HasField("maximum") else "a finite number"


def _plain(number: float) -> str:
    return str(int(number)) if number.is_integer() else f"{number:.15g}"


def _quick_check(field: FieldDescriptor, bounds: Bounds) -> Callable[[Any], bool] | None:
    """Returns a quick check of all elements of a list; None if there is none. It may be wrong about correct lists."""
    if field.message_type is not None or field.type == FieldDescriptor.TYPE_BYTES:
        return None
    if field.type == FieldDescriptor.TYPE_STRING:
        if bounds.format not in (bounds_pb2.FORMAT_ID, bounds_pb2.FORMAT_DIGEST):
            return None
        matches = FORMATS[bounds.format][0].fullmatch
        return lambda values: all(map(matches, values))
    check = _number_check(bounds)
    if check is None:
        return None
    return lambda values: all(map(math.isfinite, values)) and not (check(min(values)) or check(max(values)))


def _message_check(name: str, bounds: Bounds) -> _Check | None:
    if name == "google.protobuf.Duration":
        return _duration_check(bounds)
    if name == "google.protobuf.Timestamp":
        return _timestamp_expected
    most = bounds.maximum_bytes if bounds.HasField("maximum_bytes") else None
    of_struct = name.startswith("google.protobuf.")
    if most is None and not of_struct:
        return None

    def check(value: Message) -> str:
        if most is not None and value.ByteSize() > most:
            return f"at most {most} bytes, not {value.ByteSize()}"
        return "finite numbers" if of_struct and not _is_finite(value) else ""

    return check


def _duration_check(bounds: Bounds) -> _Check:
    low = bounds.minimum if bounds.HasField("minimum") else 0.0
    high = bounds.maximum if bounds.HasField("maximum") else float(LONGEST_DURATION_SECONDS)

    def check(value: Duration) -> str:
        valid = 0 <= value.seconds <= LONGEST_DURATION_SECONDS and 0 <= value.nanos < 10**9
        if valid and low <= value.seconds + value.nanos / 1e9 <= high:
            return ""
        return f"a valid duration of {_plain(low)} to {_plain(high)} s"

    return check


def _timestamp_expected(value: Timestamp) -> str:
    valid = EARLIEST_TIMESTAMP_SECONDS <= value.seconds <= LATEST_TIMESTAMP_SECONDS and 0 <= value.nanos < 10**9
    return "" if valid else "a valid time between the years 1 and 9999"


def _is_finite(value: Message) -> bool:
    """Returns whether all numbers in a Struct, a ListValue or a Value are finite."""
    for field, item in value.ListFields():
        if field.name == "number_value":
            if not math.isfinite(item):
                return False
        elif field.message_type is not None:
            # Struct and ListValue behave like containers of plain values, so the fields decide what is a message.
            is_map = field.is_repeated and field.message_type.GetOptions().map_entry
            items: Iterable[Any] = item.values() if is_map else item if field.is_repeated else [item]
            if not all(map(_is_finite, items)):
                return False
    return True

"""Describes what an update changed in a tournament, for the message of its event. Pure functions."""

from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from podrace.tournament.v1.tournament_pb2 import TournamentSpec

CHANGEABLE = "pool", "objective"
UNSET = "none"
EMPTY = "''"


def describe_changes(
    before: TournamentSpec,
    after: TournamentSpec,
    labels_before: Mapping[str, str],
    labels_after: Mapping[str, str],
) -> str:
    """Lists the changed values among those that can change while a tournament runs: `pool.maximum_pods 2 -> 4`.

    Args:
        before: Resolved specification.
        after: Resolved specification.
        labels_before: Labels of the tournament.
        labels_after: Labels of the tournament.
    """
    found = []
    for section in CHANGEABLE:
        old, new = getattr(before, section), getattr(after, section)
        for field in old.DESCRIPTOR.fields:
            was, now = _display(old, field.name), _display(new, field.name)
            if was != now:
                found.append(f"{section}.{field.name} {was} -> {now}")
    for key in sorted({*labels_before, *labels_after}):
        old_label, new_label = labels_before.get(key, UNSET), labels_after.get(key, UNSET)
        if old_label != new_label:
            found.append(f"labels.{key} {old_label or EMPTY} -> {new_label or EMPTY}")
    return ", ".join(found) or "no value changed"


def _display(message: Message, name: str) -> str:
    """A value as text; UNSET for an optional field that is not set."""
    if message.DESCRIPTOR.fields_by_name[name].has_presence and not message.HasField(name):
        return UNSET
    value = getattr(message, name)
    if isinstance(value, Duration):
        return f"{value.ToNanoseconds() / 1e9:g} s"
    return f"{value:g}" if isinstance(value, float) else str(value)

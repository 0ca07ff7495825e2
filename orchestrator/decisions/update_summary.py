"""Says what an update changed of a tournament, for its event. Pure."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from podrace.tournament.v1.tournament_pb2 import TournamentSpec

CHANGEABLE = "pool", "objective"
NOTHING = "none"


def describe_changes(before: TournamentSpec, after: TournamentSpec) -> str:
    """What differs in what can be changed while a tournament runs: `pool.maximum_pods 2 -> 4`.

    Args:
        before: Resolved.
        after: Resolved.
    """
    found = []
    for section in CHANGEABLE:
        old, new = getattr(before, section), getattr(after, section)
        for field in old.DESCRIPTOR.fields:
            was, now = _display(old, field.name), _display(new, field.name)
            if was != now:
                found.append(f"{section}.{field.name} {was} -> {now}")
    return ", ".join(found) or "nothing that was not so before"


def _display(message: Message, name: str) -> str:
    """A value for a person; of what can be missing, whether it is there."""
    if message.DESCRIPTOR.fields_by_name[name].has_presence and not message.HasField(name):
        return NOTHING
    value = getattr(message, name)
    if isinstance(value, Duration):
        return f"{value.ToNanoseconds() / 1e9:g} s"
    return f"{value:g}" if isinstance(value, float) else str(value)

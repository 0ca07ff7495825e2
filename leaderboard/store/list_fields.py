"""Defines which fields filters and orders of the leaderboard's lists may name, and reads their values. Pure."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from podrace.leaderboard.v1.leaderboard_pb2 import Origin, Verdict
from podrace.listing.filters import Field, Kind


def _choices(enum: EnumDescriptor, prefix: str) -> Mapping[str, int]:
    return {name: one.number for one in enum.values for name in (one.name.removeprefix(prefix), one.name)}


TEXT, NUMBER, TIME = Field(Kind.TEXT), Field(Kind.NUMBER), Field(Kind.TIME)
CANDIDATE_FIELDS = {
    "candidate_id": TEXT,
    "agent_id": TEXT,
    "algorithm": TEXT,
    "verdict": Field(Kind.CHOICE, "", _choices(Verdict.DESCRIPTOR, "VERDICT_")),
    "rank": NUMBER,
    "score": NUMBER,
    "standard_error": NUMBER,
    "estimate": NUMBER,
    "episodes": NUMBER,
    "environment_steps": NUMBER,
    "agent_environment_steps": NUMBER,
    "agent_number": NUMBER,
    "trial": NUMBER,
    "depth": NUMBER,
    "sequence": NUMBER,
    "submit_time": TIME,
}
AGENT_FIELDS = {
    "agent_id": TEXT,
    "algorithm": TEXT,
    "origin": Field(Kind.CHOICE, "", _choices(Origin.DESCRIPTOR, "ORIGIN_")),
    "number": NUMBER,
    "trial": NUMBER,
    "seat": NUMBER,
    "rung": NUMBER,
    "pod_id": TEXT,
    "create_time": TIME,
}
SNAPSHOT_FIELDS = {
    "manifest_digest": TEXT,
    "agent_id": TEXT,
    "algorithm": TEXT,
    "champion": Field(Kind.CHOICE, "", {"false": 0, "true": 1}),
    "number": NUMBER,
    "environment_steps": NUMBER,
    "agent_environment_steps": NUMBER,
    "tournament_environment_steps": NUMBER,
    "sequence": NUMBER,
    "create_time": TIME,
}


def field_value(entry: Message, name: str) -> Any:
    """Returns the value of a field of a list; a time in seconds since the epoch, None if it is absent."""
    described = entry.DESCRIPTOR.fields_by_name[name]
    if described.has_presence and not entry.HasField(name):
        return None
    value = getattr(entry, name)
    return value.ToNanoseconds() / 1e9 if isinstance(value, Timestamp) else value

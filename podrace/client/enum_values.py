"""Reads enum values of messages by the rules of the contract for values that this build does not know."""

from google.protobuf.descriptor import EnumDescriptor

from podrace.tournament.v1.tournament_pb2 import (
    TOURNAMENT_STATE_RUNNING,
    TOURNAMENT_STATE_UNSPECIFIED,
    Tournament,
    TournamentState,
)

UNSPECIFIED = "unspecified"
"""Word for a value that is not set, or that this build does not know."""


def state_of(tournament: Tournament) -> TournamentState.ValueType:
    """Returns the state of a tournament; RUNNING if this build does not know it, as the contract requires."""
    known = tournament.state in TournamentState.values()
    return tournament.state if known and tournament.state != TOURNAMENT_STATE_UNSPECIFIED else TOURNAMENT_STATE_RUNNING


def word_of(enum: EnumDescriptor, value: int) -> str:
    """Returns the name of a value without the prefix of its enum, in lower case: `training` for POD_ACTIVITY_TRAINING.

    Args:
        enum: Descriptor of the enum, whose value 0 is `<PREFIX>_UNSPECIFIED`.
        value: A value of it, or one that a later version of the contract has added: `unspecified`.
    """
    names = enum.values_by_number
    prefix = names[0].name.removesuffix("UNSPECIFIED")
    return names[value].name.removeprefix(prefix).lower() if value in names else UNSPECIFIED

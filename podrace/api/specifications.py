"""Turns what a user calls a specification into a resolved one: a file, nested values, or a message."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from podrace import config
from podrace.specification import files
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

Specification: TypeAlias = str | Path | Mapping[str, Any] | TournamentSpec
"""A TOML file, its content as nested dictionaries, or a message."""


def resolved(specification: Specification, overrides: Mapping[str, Any] | None = None) -> TournamentSpec:
    """Returns a specification with every default.

    Args:
        specification: A TOML file, its content as nested dictionaries, or a message.
        overrides: Values that replace those of the specification, by dotted key: `{"pool.maximum_pods": 2}`.

    Raises:
        InvalidArgument: The file cannot be read, or the specification is invalid; `violations` has all wrong keys.
    """
    if isinstance(specification, TournamentSpec):
        values, source = files.to_values(specification), "specification"
    elif isinstance(specification, Mapping):
        values, source = copy.deepcopy(dict(specification)), "specification"
    else:
        values, source = config.read_toml(Path(specification)), str(specification)
    for key, value in (overrides or {}).items():
        config.assign(values, key, value)
    return files.from_values(values, source=source)

"""Builds the specification of each version's tournament: its data is the copied version, its ancestor the champion.

Pure.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Struct, Value

from podrace.errors import InvalidArgument
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

OPTIONS_FILE = "options.toml"
"""File in a watched folder that overrides `environment.options`, for instance to set the splits of this version."""


def check_reference(spec: TournamentSpec, reference: str, *, source: str) -> None:
    """Checks that a specification uses the watched data.

    Raises:
        InvalidArgument: No option names the data.
    """
    if bind_version(spec, reference, Path("/")) == spec:
        raise InvalidArgument(
            f"{source}: no option of environment, evaluation or reports names the watched data; set for instance"
            f" environment.options.path = {reference!r}, which is replaced by the path of each version"
        )


def bind_version(
    spec: TournamentSpec, reference: str, path: Path, options: Mapping[str, Any] | None = None
) -> TournamentSpec:
    """Returns a copy in which every option that names the watched data, or a file in it, names the version instead.

    Args:
        spec: Specification whose options name the reference.
        reference: The watched data, as the user wrote it.
        path: Path of the version.
        options: Options of the version, which override those of the environment.

    Raises:
        InvalidArgument: An option has a type that options cannot have.
    """
    made = TournamentSpec()
    made.CopyFrom(spec)
    if options:
        _override(made.environment.options, options)
    reports = (report.options for report in made.reports.values())
    for struct in (made.environment.options, made.evaluation.options, *reports):
        _bind(struct, reference, path)
    return made


def _override(struct: Struct, options: Mapping[str, Any]) -> None:
    try:
        # Options cannot be dates, so dates of TOML become text.
        struct.update({name: str(one) if hasattr(one, "isoformat") else one for name, one in options.items()})
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{OPTIONS_FILE}: {error}: expected text, numbers, true or false, and lists") from None


def _bind(struct: Struct, reference: str, path: Path) -> None:
    for value in struct.fields.values():
        _bind_value(value, reference, path)


def _bind_value(value: Value, reference: str, path: Path) -> None:
    match value.WhichOneof("kind"):
        case "string_value":
            value.string_value = _pinned(value.string_value, reference, path)
        case "struct_value":
            _bind(value.struct_value, reference, path)
        case "list_value":
            for item in value.list_value.values:
                _bind_value(item, reference, path)


def _pinned(text: str, reference: str, path: Path) -> str:
    below = text.removeprefix(reference.rstrip("/") + "/")
    if below != text:
        return str(path / below) if below else str(path)
    remote = "://" in reference
    same = text == reference if remote or not text else Path(text).absolute() == Path(reference).absolute()
    return str(path) if same else text


def spec_of_version(
    spec: TournamentSpec, *, tournament_name: str, number: int, ancestor_agent_id: str
) -> TournamentSpec:
    """Returns the specification of one version's tournament.

    Args:
        spec: Specification after `bind_version`.
        tournament_name: Unique name of the tournament.
        number: Number of the version, from 1. It changes the seed, otherwise all versions would generate the same
            fresh agents.
        ancestor_agent_id: Champion from which the tournament starts; empty for none.
    """
    made = TournamentSpec()
    made.CopyFrom(spec)
    made.name = tournament_name
    made.seed = (spec.seed + number - 1) % 2**64
    made.evolution.ancestor_agent_id = ancestor_agent_id
    if not ancestor_agent_id:
        made.evolution.ClearField("ancestor_agent_id")
    return made

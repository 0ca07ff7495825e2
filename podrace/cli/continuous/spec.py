"""The specification of each version's tournament: its data is the pinned version, its ancestor the champion (PURE)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Struct, Value

from podrace.errors import InvalidArgument
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

OPTIONS_FILE = "options.toml"
"""In a watched folder: laid over `environment.options`, so that data can say where its own splits lie."""


def check_reference(spec: TournamentSpec, reference: str, *, source: str) -> None:
    """Refuses a specification that does not use what is watched: it would train on something else.

    Raises:
        InvalidArgument: No option names it.
    """
    if bound(spec, reference, Path("/")) == spec:
        raise InvalidArgument(
            f"{source}: no option of environment, evaluation or reports names what is watched; set"
            f" environment.options.path = {reference!r}, say, and it will stand for each version in turn"
        )


def bound(spec: TournamentSpec, reference: str, path: Path, options: Mapping[str, Any] | None = None) -> TournamentSpec:
    """The specification with every option that names the watched data, or a file in it, naming the version instead.

    Args:
        spec: With the reference as somebody wrote it.
        reference: What is watched.
        path: Of the version.
        options: Of the version, laid over those of the environment.

    Raises:
        InvalidArgument: An option can be none.
    """
    made = TournamentSpec()
    made.CopyFrom(spec)
    if options:
        _lay_over(made.environment.options, options)
    reports = (report.options for report in made.reports.values())
    for struct in (made.environment.options, made.evaluation.options, *reports):
        _bind(struct, reference, path)
    return made


def _lay_over(struct: Struct, options: Mapping[str, Any]) -> None:
    try:
        # TOML has dates, which options are not: they are text.
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
    """The specification of one version's tournament.

    Args:
        spec: Bound to the version.
        tournament_name: Of no other tournament.
        number: Of the version, from 1. Each has a seed of its own, or all would draw the same fresh agents.
        ancestor_agent_id: Champion that it starts from; empty for none.
    """
    made = TournamentSpec()
    made.CopyFrom(spec)
    made.name = tournament_name
    made.seed = (spec.seed + number - 1) % 2**64
    made.evolution.ancestor_agent_id = ancestor_agent_id
    if not ancestor_agent_id:
        made.evolution.ClearField("ancestor_agent_id")
    return made

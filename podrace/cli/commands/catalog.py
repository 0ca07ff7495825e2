"""Implements `podrace algorithms`, `simulators`, `strategies` and `version`, which need no mesh.

With `--orchestrator` they show what the server of that address knows, which may be another version.
"""

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value
from rich.table import Table

from podrace import __version__
from podrace.cli.terminal.options import Command, output_options
from podrace.cli.terminal.output import show, show_json
from podrace.cli.views.tables import NOTHING, plain_table
from podrace.client import discovery
from podrace.client.enum_values import word_of
from podrace.config import unknown
from podrace.discovery import catalog_messages
from podrace.discovery.v1 import discovery_pb2 as pb
from podrace.errors import InvalidArgument, NotFound
from podrace.limits.config import EVERYTHING
from podrace.limits.user_environment import user_environment
from podrace.plugins.declarations import declare
from podrace.tournament.v1.tournament_pb2 import SCALE_REVERSE_LOG, Scale

Response = TypeVar("Response")


def server_option(command: Command) -> Command:
    """Adds --orchestrator to a command."""
    option = click.option("--orchestrator", default="", metavar="ADDRESS", help="Ask this running orchestrator.")
    added: Command = option(command)
    return added


def _listed(address: str, local: Callable[[], Response], remote: Callable[[str], Awaitable[Response]]) -> Response:
    """Returns a list of this version, or of the server at an address."""

    async def ask() -> Response:
        return await remote(address)

    return asyncio.run(ask()) if address else local()


@click.command()
@click.argument("name", required=False)
@click.option("--declaration", is_flag=True, help="Print what a user-defined algorithm declares, for other clients.")
@server_option
@output_options
def algorithms(name: str | None, declaration: bool, orchestrator: str, as_json: bool, debug: bool) -> int:
    """List the algorithms, or the hyperparameters of the algorithm NAME."""
    if declaration:
        return _print_declaration(name or "")
    response = _listed(orchestrator, catalog_messages.list_algorithms, discovery.list_algorithms)
    found = {entry.name: entry for entry in response.algorithms}
    if name is not None and name not in found:
        raise NotFound(unknown("algorithms", "algorithm", name, found))
    if as_json:
        show_json([_algorithm_values(entry) for entry in found.values() if name in (None, entry.name)])
    elif name is None:
        _show_algorithms(response)
    else:
        _show_hyperparameters(found[name])
    return 0


def _print_declaration(name: str) -> int:
    """Prints the JSON of `AlgorithmSpec.declaration` for a user-defined algorithm."""
    found = declare([name], user_environment(os.environ, EVERYTHING))
    if name not in found:
        raise InvalidArgument(
            f"algorithm {name!r}: expected python:module:Class, or the name of an installed algorithm"
        )
    click.echo(json_format.MessageToJson(found[name], preserving_proto_field_name=True))
    return 0


@click.command()
@server_option
@output_options
def simulators(orchestrator: str, as_json: bool, debug: bool) -> int:
    """List the simulators that `environment.id` can name."""
    found = _listed(orchestrator, catalog_messages.list_simulators, discovery.list_simulators).simulators
    if as_json:
        show_json(
            [
                {"id": each.environment_id, "actions": _action_kind(each.action_kind), "help": each.description}
                for each in found
            ]
        )
        return 0
    table = _prose_table("environment.id", "actions", "description")
    for each in found:
        table.add_row(each.environment_id, _action_kind(each.action_kind) or "any", each.description)
    show(table)
    return 0


@click.command()
@click.argument("name", required=False)
@server_option
@output_options
def strategies(name: str | None, orchestrator: str, as_json: bool, debug: bool) -> int:
    """List the evolution strategies, or the settings of the strategy NAME."""
    response = _listed(orchestrator, catalog_messages.list_strategies, discovery.list_strategies)
    found = {entry.name: entry for entry in response.strategies}
    if name is not None and name not in found:
        raise NotFound(unknown("strategies", "strategy", name, found))
    if as_json:
        show_json([_strategy_values(entry) for entry in found.values() if name in (None, entry.name)])
    elif name is None:
        table = _prose_table("strategy", "description")
        for entry in found.values():
            table.add_row(entry.name, entry.description)
        show(table)
    else:
        _show_settings(found[name])
    return 0


@click.command()
@server_option
@output_options
def version(orchestrator: str, as_json: bool, debug: bool) -> int:
    """Show the version."""
    values: dict[str, Any] = {"podrace": __version__, "python": platform.python_version()}
    if orchestrator:
        server = asyncio.run(discovery.get_server(orchestrator))
        values["server"] = {
            "podrace": server.version,
            "services": list(server.services),
            "features": list(server.features),
            "launcher": server.launcher,
            "starts_pods": server.starts_pods,
        }
    if as_json:
        show_json(values)
        return 0
    show(f"podrace {__version__} (Python {platform.python_version()})")
    if orchestrator:
        show(f"{orchestrator}: podrace {server.version}, launcher {server.launcher}")
    return 0


def _prose_table(*columns: str) -> Table:
    """Returns a table whose last column may wrap."""
    table = plain_table(*columns)
    table.columns[-1].no_wrap = False
    return table


def _action_kind(kind: "pb.ActionKind.ValueType") -> str | None:
    return word_of(pb.ActionKind.DESCRIPTOR, kind) if kind else None


def _show_algorithms(response: pb.ListAlgorithmsResponse) -> None:
    table = _prose_table("algorithm", "actions", "description")
    for entry in response.algorithms:
        table.add_row(entry.name, ", ".join(_action_kinds(entry)), entry.description)
    show(table)


def _action_kinds(algorithm: pb.Algorithm) -> list[str]:
    return [word_of(pb.ActionKind.DESCRIPTOR, kind) for kind in algorithm.action_kinds]


def _show_hyperparameters(algorithm: pb.Algorithm) -> None:
    show(f"{algorithm.name}: {algorithm.description}")
    table = _prose_table("hyperparameter", "default", "allowed", "searched", "description")
    for entry in algorithm.hyperparameters:
        searched = _searched(entry.search, entry) if entry.HasField("search") else NOTHING
        table.add_row(entry.name, _shown(entry), _allowed(entry), searched, entry.description)
    show(table)
    show("")
    wide = _prose_table('with search = "wide"', "searched")
    for entry in algorithm.hyperparameters:
        if entry.HasField("wide_search"):
            wide.add_row(entry.name, _searched(entry.wide_search, entry))
    show(wide)


def _show_settings(strategy: pb.Strategy) -> None:
    show(f"{strategy.name}: {strategy.description}")
    table = _prose_table("setting", "default", "allowed")
    for entry in strategy.settings:
        table.add_row(entry.name, _shown(entry), _allowed(entry))
    show(table)


def _searched(search: pb.SearchRange, entry: pb.Hyperparameter) -> str:
    odd = int(entry.scale == SCALE_REVERSE_LOG)
    extra = f", or {odd} ({search.zero_probability:.0%})" if search.zero_probability else ""
    return f"{search.minimum:g} to {search.maximum:g}, {word_of(Scale.DESCRIPTOR, entry.scale)}{extra}"


def _shown(entry: pb.Hyperparameter | pb.StrategySetting) -> str:
    plain = _default(entry)
    return f"[{', '.join(map(str, plain))}]" if isinstance(plain, list) else str(plain).lower()


def _default(entry: pb.Hyperparameter | pb.StrategySetting) -> Any:
    """Returns the default as JSON has it."""
    return _plain(entry.default_value, integer=entry.type != pb.VALUE_TYPE_REAL)


def _plain(value: Value, *, integer: bool) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return [_plain(each, integer=integer) for each in value.list_value.values]
    if kind == "number_value":
        return int(value.number_value) if integer and value.number_value.is_integer() else value.number_value
    return getattr(value, kind) if kind else None


def _allowed(entry: pb.Hyperparameter | pb.StrategySetting) -> str:
    if entry.choices:
        return ", ".join(entry.choices)
    if entry.type == pb.VALUE_TYPE_BOOLEAN:
        return "true, false"
    return f"{entry.minimum:g} to {entry.maximum:g}" if entry.HasField("minimum") else NOTHING


def _algorithm_values(algorithm: pb.Algorithm) -> dict[str, Any]:
    return {
        "name": algorithm.name,
        "help": algorithm.description,
        "actions": _action_kinds(algorithm),
        "hyperparameters": [_hyperparameter_values(entry) for entry in algorithm.hyperparameters],
    }


def _strategy_values(strategy: pb.Strategy) -> dict[str, Any]:
    settings = [
        {
            "name": entry.name,
            "default": _default(entry),
            "low": entry.minimum if entry.HasField("minimum") else None,
            "high": entry.maximum if entry.HasField("maximum") else None,
            "choices": list(entry.choices) or None,
        }
        for entry in strategy.settings
    ]
    return {"name": strategy.name, "help": strategy.description, "settings": settings}


def _hyperparameter_values(entry: pb.Hyperparameter) -> dict[str, Any]:
    search = entry.search if entry.HasField("search") else None
    wide = entry.wide_search if entry.HasField("wide_search") else None
    return {
        "name": entry.name,
        "help": entry.description,
        "default": _default(entry),
        "low": entry.minimum if entry.HasField("minimum") else None,
        "high": entry.maximum if entry.HasField("maximum") else None,
        "choices": list(entry.choices) or None,
        "scale": word_of(Scale.DESCRIPTOR, entry.scale),
        "search": [search.minimum, search.maximum] if search else None,
        "zero_probability": search.zero_probability if search else None,
        "wide": wide and {"low": wide.minimum, "high": wide.maximum, "zero_probability": wide.zero_probability},
    }

"""Implements `podrace algorithms`, `simulators`, `strategies` and `version`, which need no mesh."""

import platform
from typing import Any

import click
from rich.table import Table

from podrace import __version__
from podrace.cli.terminal.options import output_options
from podrace.cli.terminal.output import show, show_json
from podrace.cli.views.tables import NOTHING, plain_table
from podrace.config import unknown
from podrace.errors import NotFound
from podrace.specification.catalog import ALGORITHMS, SIMULATORS, STRATEGIES, Algorithm, Hyperparameter, Search


@click.command()
@click.argument("name", required=False)
@output_options
def algorithms(name: str | None, as_json: bool, debug: bool) -> int:
    """List the algorithms, or the hyperparameters of the algorithm NAME."""
    if name is not None and name not in ALGORITHMS:
        raise NotFound(unknown("algorithms", "algorithm", name, ALGORITHMS))
    if as_json:
        show_json([_algorithm_values(key, entry) for key, entry in ALGORITHMS.items() if name in (None, key)])
    elif name is None:
        _show_algorithms()
    else:
        _show_hyperparameters(name, ALGORITHMS[name])
    return 0


@click.command()
@output_options
def simulators(as_json: bool, debug: bool) -> int:
    """List the simulators that `environment.id` can name."""
    if as_json:
        entries = SIMULATORS.items()
        show_json([{"id": key, "actions": entry.action_kind or None, "help": entry.help} for key, entry in entries])
        return 0
    table = _prose_table("environment.id", "actions", "description")
    for key, entry in SIMULATORS.items():
        table.add_row(key, entry.action_kind or "any", entry.help)
    show(table)
    return 0


@click.command()
@output_options
def strategies(as_json: bool, debug: bool) -> int:
    """List the evolution strategies that `evolution.strategy` can name."""
    if as_json:
        show_json([{"name": name, "help": line} for name, line in STRATEGIES.items()])
        return 0
    table = _prose_table("strategy", "description")
    for name, line in STRATEGIES.items():
        table.add_row(name, line)
    show(table)
    return 0


@click.command()
@output_options
def version(as_json: bool, debug: bool) -> int:
    """Show the version."""
    if as_json:
        show_json({"podrace": __version__, "python": platform.python_version()})
    else:
        show(f"podrace {__version__} (Python {platform.python_version()})")
    return 0


def _prose_table(*columns: str) -> Table:
    """Returns a table whose last column may wrap."""
    table = plain_table(*columns)
    table.columns[-1].no_wrap = False
    return table


def _show_algorithms() -> None:
    table = _prose_table("algorithm", "actions", "description")
    for name, entry in ALGORITHMS.items():
        table.add_row(name, ", ".join(entry.action_kinds), entry.help)
    show(table)


def _show_hyperparameters(name: str, algorithm: Algorithm) -> None:
    show(f"{name}: {algorithm.help}")
    table = _prose_table("hyperparameter", "default", "allowed", "searched", "description")
    for key, entry in algorithm.hyperparameters.items():
        table.add_row(key, _value(entry.default), _allowed(entry), _searched(entry.search, entry), entry.help)
    show(table)
    show("")
    wide = _prose_table('with search = "wide"', "searched")
    for key, entry in algorithm.hyperparameters.items():
        if entry.wide:
            wide.add_row(key, _searched(entry.wide, entry))
    show(wide)


def _searched(search: Search | None, entry: Hyperparameter) -> str:
    if search is None:
        return NOTHING
    low, high, zero_probability = search
    extra = f", or {int(entry.scale == 'reverse_log')} ({zero_probability:.0%})" if zero_probability else ""
    return f"{low:g} to {high:g}, {entry.scale}{extra}"


def _value(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value).lower()


def _allowed(entry: Hyperparameter) -> str:
    if entry.choices:
        return ", ".join(entry.choices)
    if isinstance(entry.default, bool):
        return "true, false"
    return f"{entry.low:g} to {entry.high:g}" if entry.low is not None and entry.high is not None else NOTHING


def _algorithm_values(name: str, algorithm: Algorithm) -> dict[str, Any]:
    return {
        "name": name,
        "help": algorithm.help,
        "actions": list(algorithm.action_kinds),
        "hyperparameters": [_hyperparameter_values(key, entry) for key, entry in algorithm.hyperparameters.items()],
    }


def _hyperparameter_values(name: str, entry: Hyperparameter) -> dict[str, Any]:
    return {
        "name": name,
        "help": entry.help,
        "default": list(entry.default) if isinstance(entry.default, tuple) else entry.default,
        "low": entry.low,
        "high": entry.high,
        "choices": list(entry.choices) or None,
        "scale": entry.scale,
        "search": [entry.search.low, entry.search.high] if entry.search else None,
        "zero_probability": entry.search.zero_probability if entry.search else None,
        "wide": entry.wide._asdict() if entry.wide else None,
    }

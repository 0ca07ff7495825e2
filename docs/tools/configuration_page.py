"""Builds the tables of docs/configuration.md: every key of each service, from its configuration class."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docstrings import attribute_texts
from markdown_tables import number, sentence, table

import agentpod.config
import leaderboard.config
import leaderboard.plugins.host
import orchestrator.config
import podrace.serving.config
import simulators.config

SERVICES = {
    "orchestrator": orchestrator.config.Config,
    "leaderboard": leaderboard.config.Config,
    "leaderboard.plugins.host": leaderboard.plugins.host.HostConfig,
    "simulators": simulators.config.Config,
    "podrace.serving": podrace.serving.config.ServingConfig,
    "agentpod": agentpod.config.PodConfig,
}
"""Configuration classes by the module that is run."""
TEMPORARY = str(Path(orchestrator.config.Config().runtime_folder).parent)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Returns the default of a field; MISSING if it is required."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def written(value: Any) -> str:
    """Returns a default as a TOML file would have it."""
    if value is dataclasses.MISSING:
        return "required"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    text = str(value)
    if text.startswith(TEMPORARY):
        text = f"$TMPDIR{text.removeprefix(TEMPORARY)}"
    return f"`{text}`" if text else "empty"


def rows(kind: type, default: Any = None, prefix: str = "") -> Iterable[Sequence[str]]:
    """Yields a row for each key of a configuration class, nested ones dotted."""
    texts = attribute_texts(kind)
    for field in dataclasses.fields(kind):
        value = default_of(field) if default is None else getattr(default, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from rows(type(value), value, f"{prefix}{field.name}.")
        else:
            yield f"`{prefix}{field.name}`", written(value), sentence(texts.get(field.name, ""))


def tables() -> dict[str, str]:
    """Returns the tables of the page by the name in its template."""
    return {name: table(("Key", "Default", "Meaning"), rows(kind)) for name, kind in SERVICES.items()}

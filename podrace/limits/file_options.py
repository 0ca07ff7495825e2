"""Replaces names of files below data roots, in options whose meaning is not known, by the paths of these files."""

from collections.abc import Mapping
from typing import Any

from podrace.limits.config import Allowed
from podrace.limits.files import path_of
from podrace.limits.names import DATA, SERVICE, root_of


def with_paths(id: str, options: Mapping[str, object], allowed: Allowed) -> dict[str, Any]:
    """Returns the options of a simulator, with `ROOT:PATH` replaced by the path of the file.

    Options of services are not changed, nor those of simulators that open their files themselves.

    Raises:
        InvalidArgument: There is no such file below the folder of the data root.
    """
    if id in DATA or id.startswith(SERVICE):
        return dict(options)
    return {name: _located(value, allowed) for name, value in options.items()}


def _located(value: Any, allowed: Allowed) -> Any:
    if isinstance(value, str):
        return str(path_of(value, allowed)) if root_of(value, allowed) else value
    if isinstance(value, Mapping):
        return {name: _located(item, allowed) for name, item in value.items()}
    return [_located(item, allowed) for item in value] if isinstance(value, list) else value

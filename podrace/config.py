"""Reads the configuration of a service into a frozen dataclass: from a TOML file, the environment and `--set`.

    @dataclass(frozen=True)
    class Config:
        listen: str = "127.0.0.1:50051"
        \"\"\"Address the service listens on.\"\"\"

    config = config_from_arguments(Config, sys.argv[1:], program="orchestrator")

Later sources override earlier ones: defaults, file (`--config`), environment, `--set key=value`. An unknown key is an
error. A variable is named `PODRACE_<PROGRAM>__<KEY>`, with two underscores before each further part of a nested key
(`PODRACE_ORCHESTRATOR__SERVER__LISTEN`), because the names of programs and keys contain single ones. The program is
the last part of the name of its module.
"""

import argparse
import dataclasses
import difflib
import os
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from podrace.errors import InvalidArgument

Config = TypeVar("Config")
MASK = "********"
_URL_PASSWORD = re.compile(r"(?<=://)([^:/@\s]*):\S*@|(?<=password=)[^&\s]+", re.IGNORECASE)
"""The password of a URL, which some settings refuse, but only after they are printed."""


def config_from_arguments(
    kind: type[Config], arguments: Sequence[str], *, program: str, environ: Mapping[str, str] = os.environ
) -> Config:
    """Builds the configuration of a service from its command line.

    Raises:
        InvalidArgument: A key is unknown or missing, or a value has the wrong type; the message names source, key
            and value.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("--config", type=Path, help="TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key; repeatable")
    parser.add_argument(
        "--print-config", action="store_true", help="print the resulting configuration, secrets masked, and exit"
    )
    insecure = _insecure_key(kind)
    if insecure:
        parser.add_argument("--insecure", action="store_true", help=f"short for --set {insecure}=true: allow no TLS")
    options = parser.parse_args(arguments)
    values: dict[str, Any] = read_toml(options.config) if options.config else {}
    source = str(options.config or "defaults")
    prefix = f"PODRACE_{program.rpartition('.')[2].upper().replace('-', '_')}__"
    for name, text in environ.items():
        if name.startswith(prefix):
            assign(values, name.removeprefix(prefix).lower().replace("__", "."), text)
    for override in options.set:
        assign(values, *split_override(override))
    if insecure and options.insecure:
        assign(values, insecure, True)
    config = build(kind, values, source=source)
    if options.print_config:
        print("\n".join(describe(config)))
        sys.exit(0)
    return config


def _insecure_key(kind: type[Any]) -> str:
    """Key by which a configuration allows network addresses without TLS; empty: it has none."""
    names = {field.name for field in dataclasses.fields(kind)}
    return "server.insecure" if "server" in names else "insecure" if "insecure" in names else ""


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        InvalidArgument: The file cannot be read or is not TOML; the message names the file and the line.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: not valid TOML: {error}") from None
    except (ValueError, RecursionError):
        raise InvalidArgument(f"{path}: a number has thousands of digits, or lists are nested too deeply") from None


def split_override(text: str) -> tuple[str, Any]:
    """Splits `a.b=c`. The value is parsed as TOML if it is valid TOML; otherwise it is a string.

    Raises:
        InvalidArgument: There is no `=`, or no key before it.
    """
    key, found, value = text.partition("=")
    if not found or not key.strip():
        raise InvalidArgument(f"--set {text}: expected KEY=VALUE, for instance pool.maximum_pods=2")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value


def assign(tree: dict[str, Any], key: str, value: Any) -> None:
    """Sets the dotted `key` in nested dictionaries and creates missing ones.

    Raises:
        InvalidArgument: A part of the key, except the last, names a value instead of a table.
    """
    *parents, last = key.split(".")
    for depth, parent in enumerate(parents):
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise InvalidArgument(f"{key}: {'.'.join(parents[: depth + 1])} is a value, not a table")
    tree[last] = value


def build(
    kind: type[Config], values: Mapping[str, Any], *, source: str, path: str = "", default: Config | None = None
) -> Config:
    """Builds the dataclass `kind` from nested `values`.

    Args:
        kind: The dataclass.
        values: Values of its fields; those that are missing have their defaults.
        source: Where the values come from, for messages.
        path: Key of the dataclass in the whole configuration, with a final dot.
        default: Has the defaults of the fields; None: the class has them.

    Raises:
        InvalidArgument: A key is unknown, a value has the wrong type, or a key without a default is missing.
    """
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, kind))}
    arguments = {}
    for key, value in values.items():
        where = f"{path}{key}"
        if key not in fields:
            raise InvalidArgument(unknown(f"{source}: {where}", "key", key, fields))
        arguments[key] = _convert(hints[key], value, source=source, where=where, default=_default(fields[key], default))
    if default is not None:
        return typing.cast(Config, dataclasses.replace(typing.cast(Any, default), **arguments))
    missing = [repr(f"{path}{name}") for name in fields if name not in arguments and _is_required(fields[name])]
    if missing:
        raise InvalidArgument(f"{source}: missing {'key' if len(missing) == 1 else 'keys'} {', '.join(missing)}")
    return kind(**arguments)


def _default(field: dataclasses.Field[Any], of: object) -> Any:
    """Returns the default of a field whose values are dataclasses: that of an instance, or of the class."""
    if of is not None:
        return getattr(of, field.name)
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def unknown(where: str, what: str, name: str, known: Iterable[str]) -> str:
    """Returns the error message for an unknown name, with the most similar known name, or with all of them."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known) or 'none'}"
    return f"{where}: unknown {what} {name!r}; {hint}"


_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _convert(hint: Any, value: Any, *, source: str, where: str, default: Any = None) -> Any:
    """Converts a TOML value, or the text of an environment variable, to the type of its field."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
        origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        kept = default if isinstance(default, typing.cast(type[Any], hint)) else None
        return build(typing.cast(type[Any], hint), value, source=source, path=f"{where}.", default=kept)
    if origin is Mapping and isinstance(value, Mapping):
        kind = typing.get_args(hint)[1]
        if dataclasses.is_dataclass(kind) or kind is float:
            return {name: _convert(kind, item, source=source, where=f"{where}.{name}") for name, item in value.items()}
        return dict(value)
    if origin is tuple:
        if isinstance(value, str):
            value = value.split(",") if value.strip() else []
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(typing.get_args(hint)[0], item, source=source, where=where) for item in items)
    text = isinstance(value, str)
    try:
        if hint is bool and (text or isinstance(value, bool)):
            return _BOOLEANS[value.lower()] if text else value
        if hint in (int, float) and (text or not isinstance(value, bool)):
            converted = hint(value)
            if hint is int and not text and converted != value:
                raise ValueError
            return converted
        if hint in (str, Path) and isinstance(value, (str, Path, int, float)):
            return hint(str(value))
    except (ValueError, OverflowError, KeyError, TypeError):
        pass
    raise InvalidArgument(f"{source}: {where} = {value!r}: expected {getattr(hint, '__name__', hint)}")


def describe(config: object, path: str = "") -> list[str]:
    """Returns one line `key = value` per field, with dotted keys for nested fields.

    Fields marked `secret` and passwords in URLs are masked.
    """
    lines = []
    for field in dataclasses.fields(typing.cast(Any, config)):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            lines += describe(value, f"{path}{field.name}.")
        else:
            shown = MASK if field.metadata.get("secret") and value else value
            if isinstance(shown, str):
                shown = _URL_PASSWORD.sub(lambda found: f"{found[1]}:{MASK}@" if found[1] is not None else MASK, shown)
            lines.append(
                f"{path}{field.name} = {str(shown)!r}"
                if isinstance(shown, (str, Path))
                else f"{path}{field.name} = {shown}"
            )
    return lines

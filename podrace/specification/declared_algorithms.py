"""Looks up the algorithms of a specification: built-in ones in the catalog, user-defined ones in their declarations.

    entry = entry_of("python:mine:Mine", spec.algorithms["python:mine:Mine"])
    spec.algorithms["python:mine:Mine"].declaration.CopyFrom(declaration_message(entry))

Nothing is imported: a declaration is data that travels in the specification.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from google.protobuf import json_format, struct_pb2

from podrace.specification import catalog
from podrace.specification.catalog import Algorithm, Hyperparameter, Search, Value
from podrace.specification.declaration import declaration_problem
from podrace.tournament.v1 import tournament_pb2 as pb

NETWORK_CLASS, SCHEDULE = "network_class", "learning_rate_schedule"
LEARNER_CODE: Mapping[str, str] = {NETWORK_CLASS: "network", SCHEDULE: "schedule"}
"""Hyperparameters that name code which runs in the process of the learner, and what the code is."""
ACTION_KINDS = ("continuous", "discrete", "multi_discrete", "multi_binary")
_SCALES = {"linear": pb.SCALE_LINEAR, "log": pb.SCALE_LOG, "reverse_log": pb.SCALE_REVERSE_LOG}
_SCALE_NAMES = {pb.SCALE_UNSPECIFIED: "linear", **{number: name for name, number in _SCALES.items()}}
_TYPES = {
    bool: pb.HYPERPARAMETER_TYPE_BOOLEAN,
    int: pb.HYPERPARAMETER_TYPE_INTEGER,
    float: pb.HYPERPARAMETER_TYPE_REAL,
    str: pb.HYPERPARAMETER_TYPE_TEXT,
    tuple: pb.HYPERPARAMETER_TYPE_INTEGERS,
}


def entry_of(name: str, algorithm: pb.AlgorithmSpec) -> Algorithm | None:
    """Returns what is known about an algorithm of a specification; None if it is neither built in nor declared."""
    if name in catalog.ALGORITHMS:
        return catalog.ALGORITHMS[name]
    if not algorithm.HasField("declaration"):
        return None
    return _parsed(algorithm.declaration.SerializeToString(deterministic=True))


@lru_cache(maxsize=256)
def _parsed(declaration: bytes) -> Algorithm:
    # Mutations look up each hyperparameter separately.
    message = pb.AlgorithmDeclaration.FromString(declaration)
    found = {one.name: _hyperparameter(one) for one in message.hyperparameters}
    return Algorithm(message.description, tuple(message.action_kinds), found)


def declaration_message(entry: Algorithm) -> pb.AlgorithmDeclaration:
    """Returns the message for what a class declares."""
    return pb.AlgorithmDeclaration(
        description=entry.help,
        action_kinds=entry.action_kinds,
        hyperparameters=[_message(name, one) for name, one in entry.hyperparameters.items()],
    )


def declaration_problems(spec: pb.TournamentSpec) -> Iterator[str]:
    """Yields what is wrong with the declarations of a specification; nothing else may use them before."""
    for name, algorithm in sorted(spec.algorithms.items()):
        where = f"algorithms.{name}.declaration"
        if not algorithm.HasField("declaration"):
            continue
        if name in catalog.ALGORITHMS:
            yield f"{where}: is for user-defined algorithms, and {name!r} is built in"
        yield from (f"{where}.{problem}" for problem in _problems(algorithm.declaration))


def _problems(message: pb.AlgorithmDeclaration) -> Iterator[str]:
    """Yields what is wrong with a declaration, each with the key below `declaration`."""
    if not message.action_kinds or not set(message.action_kinds) <= set(ACTION_KINDS):
        yield f"action_kinds = {list(message.action_kinds)}: expected some of {', '.join(ACTION_KINDS)}"
    names = [one.name for one in message.hyperparameters]
    for one in message.hyperparameters:
        where = f"hyperparameters.{one.name}"
        if names.count(one.name) > 1:
            yield f"{where}: is declared twice"
        elif not one.name.isidentifier():
            yield f"hyperparameters: name {one.name[:80]!r}: expected letters, digits and '_'"
        elif not _has_type(one):
            yield f"{where}.default_value: does not have the type {pb.HyperparameterType.Name(one.type)}"
        elif problem := declaration_problem(_hyperparameter(one)):
            yield f"{where}{problem if problem.startswith(':') else ' ' + problem}"


def _has_type(one: pb.DeclaredHyperparameter) -> bool:
    plain: Any = json_format.MessageToDict(one.default_value) if one.HasField("default_value") else None
    match one.type:
        case pb.HYPERPARAMETER_TYPE_REAL:
            return isinstance(plain, float)
        case pb.HYPERPARAMETER_TYPE_INTEGER:
            return isinstance(plain, float) and plain.is_integer()
        case pb.HYPERPARAMETER_TYPE_BOOLEAN:
            return isinstance(plain, bool)
        case pb.HYPERPARAMETER_TYPE_TEXT:
            return isinstance(plain, str)
        case pb.HYPERPARAMETER_TYPE_INTEGERS:
            items = plain if isinstance(plain, list) else [None]
            return all(isinstance(item, float) and item.is_integer() for item in items)
    return False


def _hyperparameter(one: pb.DeclaredHyperparameter) -> Hyperparameter:
    return Hyperparameter(
        _default(one),
        one.description,
        one.minimum if one.HasField("minimum") else None,
        one.maximum if one.HasField("maximum") else None,
        tuple(one.choices),
        _SCALE_NAMES.get(one.scale, "linear"),
        _search(one.search) if one.HasField("search") else None,
        _search(one.wide_search) if one.HasField("wide_search") else None,
        one.structural,
    )


def _default(one: pb.DeclaredHyperparameter) -> Value:
    plain: Any = json_format.MessageToDict(one.default_value)
    if one.type == pb.HYPERPARAMETER_TYPE_INTEGER:
        return int(plain)
    if one.type == pb.HYPERPARAMETER_TYPE_INTEGERS:
        return tuple(int(item) for item in plain)
    value: Value = plain
    return value


def _search(message: pb.DeclaredRange) -> Search:
    return Search(message.minimum, message.maximum, message.zero_probability)


def _message(name: str, one: Hyperparameter) -> pb.DeclaredHyperparameter:
    default: Any = list(one.default) if isinstance(one.default, tuple) else one.default
    return pb.DeclaredHyperparameter(
        name=name,
        description=one.help,
        type=_TYPES[type(one.default)],
        default_value=json_format.ParseDict(default, struct_pb2.Value()),
        minimum=one.low,
        maximum=one.high,
        choices=one.choices,
        scale=_SCALES[one.scale],
        search=_range(one.search),
        wide_search=_range(one.wide),
        structural=one.structural,
    )


def _range(search: Search | None) -> pb.DeclaredRange | None:
    if search is None:
        return None
    return pb.DeclaredRange(minimum=search.low, maximum=search.high, zero_probability=search.zero_probability)


def learner_addresses(key: str, name: str, algorithm: pb.AlgorithmSpec) -> Iterator[str]:
    """Yields the addresses that agents of an algorithm may have as a hyperparameter `key`; not the empty one."""
    given = algorithm.hyperparameters[key] if key in algorithm.hyperparameters else pb.HyperparameterSpec()
    entry = entry_of(name, algorithm)
    declared = entry.hyperparameters.get(key) if entry else None
    found = [value.string_value for value in (given.value, *given.choices)]
    found += [start.fields[key].string_value for start in algorithm.starts if key in start.fields]
    found += [str(declared.default)] if declared and key not in algorithm.hyperparameters else []
    yield from filter(None, found)


def names_code(spec: pb.TournamentSpec, key: str, address: str) -> bool:
    """Returns whether a specification names code of an agent; an agent or a manifest decides no import."""
    return not address or any(address in learner_addresses(key, *pair) for pair in spec.algorithms.items())


def unnamed_code(key: str, address: str) -> str:
    """Returns the message about code that the specification of an agent does not name."""
    return f"agent: {key} = {address[:100]!r}: its specification does not name this {LEARNER_CODE[key]}"

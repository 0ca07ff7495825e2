"""Tournament specifications: TOML to message, defaults filled in, every value checked before anything starts.

    spec = resolve(parse(read_toml(path), source=str(path)))

A resolved specification leaves nothing to guess: every optional field is set and every hyperparameter of every
algorithm appears with its value and, if it is searched, with its range and scale. Third parties get the same treatment,
because the orchestrator resolves what it is sent.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, cast

from google.protobuf import json_format, struct_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from podrace.config import unknown
from podrace.errors import BAD_SPEC, InvalidArgument
from podrace.plugins import address
from podrace.specification import (
    ancestor,
    catalog,
    data_leakage,
    evolution_settings,
    plugin_settings,
    snapshot_schedule,
)
from podrace.specification.catalog import Hyperparameter
from podrace.tournament.v1 import tournament_pb2 as pb

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SCALES = {"linear": pb.SCALE_LINEAR, "log": pb.SCALE_LOG}
_LONGEST_DURATION_SECONDS = 315_576_000_000
_MAY_BE_ZERO = {"pool.cooldown_duration"}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "pool": {"minimum_pods": 1},
    "pod": {
        "workers": 1,
        "cores": 1.0,
        "memory_bytes": 1 << 30,
        "gpus": 0,
        "learners": 1,
        "precision": "float32",
        "plane": "auto",
        "hosts": 1,
    },
    "assignment": {"environment_steps": 200_000},
    "evaluation": {"episodes": 32, "share": 0.1, "greedy": True},
    "evolution": evolution_settings.DEFAULTS,
    "fusion": {"mode": "average", "every_updates": 8, "outer_learning_rate": 0.7, "outer_momentum": 0.9},
    "champion": {"reevaluate_top": 0, "reevaluate_episodes": 64},
}
"""Defaults of optional fields, by section; the protos state them beside each field."""

LIMITS: Mapping[str, tuple[float, float]] = {
    "environment.count": (1, 1_000_000),
    "pool.minimum_pods": (0, 10_000),
    "pool.maximum_pods": (1, 10_000),
    "pool.step_pods": (1, 10_000),
    "pod.workers": (1, 1024),
    "pod.cores": (0.1, 1024),
    "pod.memory_bytes": (64 << 20, 1 << 44),
    "pod.gpus": (0, 64),
    "pod.learners": (1, 1024),
    "pod.hosts": (1, 1024),
    "assignment.environment_steps": (1, 1e13),
    "evaluation.episodes": (1, 100_000),
    "evaluation.every_environment_steps": (1, 1e13),
    "evaluation.share": (0.0, 1.0),
    **evolution_settings.LIMITS,
    "champion.reevaluate_top": (0, 1000),
    "champion.reevaluate_episodes": (1, 100_000),
    "fusion.every_updates": (1, 1e9),
    "fusion.outer_learning_rate": (1e-6, 100.0),
    "fusion.outer_momentum": (0.0, 0.999),
    "objective.environment_steps": (1, 1e15),
}
"""Smallest and largest sensible value of numeric fields, inclusive."""


def bad(message: str) -> InvalidArgument:
    """The refusal of a specification."""
    return InvalidArgument(message, reason=BAD_SPEC)


# --- TOML to message ---------------------------------------------------------------------------------------------


def parse(values: Mapping[str, Any], *, source: str) -> pb.TournamentSpec:
    """Reads nested TOML values as a TournamentSpec.

    Raises:
        InvalidArgument: An unknown key or a value it can never hold; the message names the source and the dotted key.
    """
    spec = pb.TournamentSpec()
    _fill(spec, values, where=f"{source}: ", path="")
    _check_values(spec, f"{source}: ")
    return spec


def parse_duration(value: object) -> float | None:
    """Seconds from a number, or from text such as `90s`, `4m` or `1h30m`; None if it is neither."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", str(value))
    if not parts or "".join(number + unit for number, unit in parts) != value:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _fill(message: Message, values: Mapping[str, Any], *, where: str, path: str) -> None:
    fields = message.DESCRIPTOR.fields_by_name
    for key, value in values.items():
        if key not in fields:
            raise bad(unknown(f"{where}{path}{key}", "key", key, fields))
        _set(message, fields[key], value, where=where, path=f"{path}{key}")


def _set(message: Message, field: Any, value: Any, *, where: str, path: str) -> None:
    kind = field.message_type
    try:
        if kind is None:
            _set_scalar(message, field, value)
        elif kind.GetOptions().map_entry:
            for name, item in _table(value).items():
                _fill_special(getattr(message, field.name)[name], item, where=where, path=f"{path}.{name}")
        elif field.is_repeated:
            for item in value:
                json_format.ParseDict(item, getattr(message, field.name).add())
        else:
            child = getattr(message, field.name)
            child.SetInParent()
            _fill_special(child, value, where=where, path=path)
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError, json_format.ParseError):
        raise bad(f"{where}{path} = {value!r}: expected {_expected(field)}") from None


def _set_scalar(message: Message, field: Any, value: Any) -> None:
    if field.enum_type is not None:
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        value = field.enum_type.values_by_name[prefix + value.upper()].number if isinstance(value, str) else None
    elif isinstance(value, bool) != (field.type == FieldDescriptor.TYPE_BOOL):
        raise TypeError
    setattr(message, field.name, value)


def _fill_special(message: Message, value: Any, *, where: str, path: str) -> None:
    """Fills a message from its table, or from the shorthand its type has in TOML."""
    if isinstance(message, Duration):
        seconds = parse_duration(value)
        if seconds is None or seconds < 0:
            raise ValueError
        message.FromNanoseconds(round(seconds * 1e9))
    elif isinstance(message, struct_pb2.Struct):
        message.update(_table(value))
    elif isinstance(message, struct_pb2.Value):
        json_format.ParseDict(value, message)
    elif isinstance(message, pb.HyperparameterSpec) and not isinstance(value, Mapping):
        json_format.ParseDict(value, message.value)
    else:
        _fill(message, _table(value), where=where, path=f"{path}.")


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {str(key): str(item) if hasattr(item, "isoformat") else item for key, item in value.items()}


def _expected(field: Any) -> str:
    if field.enum_type is not None:
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        names = (value.name.removeprefix(prefix).lower() for value in field.enum_type.values[1:])
        return f"one of {', '.join(names)}"
    if field.message_type is not None:
        return "a duration such as '90s' or '4m'" if field.message_type.name == "Duration" else "a table"
    names_by_type = {
        FieldDescriptor.TYPE_BOOL: "true or false",
        FieldDescriptor.TYPE_STRING: "a string",
        FieldDescriptor.TYPE_DOUBLE: "a number",
    }
    return names_by_type.get(field.type, "a whole number that is not negative")


# --- defaults and checks -----------------------------------------------------------------------------------------


def resolve(given: pb.TournamentSpec) -> pb.TournamentSpec:
    """Fills in every default and checks every value; resolving twice changes nothing.

    Raises:
        InvalidArgument: The first key that is wrong, with its value and what would be right.
    """
    spec = pb.TournamentSpec()
    spec.CopyFrom(given)
    _check_values(spec, "")
    _resolve_environment(spec)
    evolution_settings.fill(spec.evolution)
    address.fill(spec.evolution)
    plugin_settings.fill(spec.evaluation)
    for section, defaults in DEFAULTS.items():
        message = getattr(spec, section)
        message.SetInParent()
        for name, default in defaults.items():
            if not message.HasField(name):
                setattr(message, name, default)
    # Assigning a default to itself makes its presence explicit.
    spec.seed = spec.seed
    spec.synchronous = spec.synchronous
    _resolve_layout(spec.pod)
    if not spec.evaluation.HasField("every_environment_steps"):
        spec.evaluation.every_environment_steps = max(1, spec.assignment.environment_steps // 4)
    for report in spec.reports.values():
        if not report.HasField("episodes"):
            report.episodes = spec.evaluation.episodes
    _check_limits(spec)
    _check_together(spec)
    _resolve_algorithms(spec)
    return spec


def _check_values(message: Message, prefix: str) -> None:
    """Refuses, at any depth, numbers that are not finite, unknown enum values and durations not valid or positive."""
    inner = message.DESCRIPTOR.file.package == "google.protobuf"
    for field, value in message.ListFields():
        # What Struct and Value consist of is not written in a specification: theirs is the key they stand under.
        path = prefix.removesuffix(".") if inner else f"{prefix}{field.name}"
        if field.is_repeated and isinstance(value, Mapping):
            for name in sorted(value):
                _check_values(value[name], f"{path}.{name}.")
            continue
        for item in value if field.is_repeated else [value]:
            _check_one(field, item, path)


def _check_one(field: Any, value: Any, path: str) -> None:
    if isinstance(value, Duration):
        _check_duration(value, path)
    elif isinstance(value, Message):
        _check_values(value, f"{path}.")
    elif field.enum_type is not None and value not in field.enum_type.values_by_number:
        raise bad(f"{path} = {value}: expected {_expected(field)}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise bad(f"{path} = {value}: expected a finite number")


def _check_duration(value: Duration, path: str) -> None:
    told = f"{path} = {value.seconds} s{f' and {value.nanos} ns' if value.nanos else ''}"
    if not (0 <= value.seconds <= _LONGEST_DURATION_SECONDS and 0 <= value.nanos < 10**9):
        raise bad(f"{told}: expected a valid duration of more than 0 and at most {_LONGEST_DURATION_SECONDS} s")
    if not value.ToNanoseconds() and path not in _MAY_BE_ZERO:
        raise bad(f"{told}: expected a duration of more than 0, such as '90s' or '4m'; or leave the key out")


def _resolve_environment(spec: pb.TournamentSpec) -> None:
    if not spec.environment.id:
        raise bad("environment.id: missing; name what is to be learned, for instance 'CartPole-v1'")
    if not spec.environment.HasField("count"):
        spec.environment.count = 16
    if not spec.name:
        spec.name = re.sub(r"[^a-z0-9]+", "-", spec.environment.id.lower()).strip("-")[:40]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", spec.name):
        raise bad(
            f"name = {spec.name!r}: expected up to 63 letters, digits, '-' and '_', beginning with a letter or digit"
        )


def _resolve_layout(pod: pb.PodSpec) -> None:
    if pod.layout == pb.LAYOUT_UNSPECIFIED:
        pod.layout = pb.LAYOUT_SEPARATE if pod.cores >= 2 else pb.LAYOUT_FUSED
    for name in ("workers", "learners", "hosts"):
        number = getattr(pod, name)
        if pod.layout == pb.LAYOUT_FUSED and number > 1:
            raise bad(
                f"pod.{name} = {number}: a fused pod has one compute thread, one worker and one learner;"
                " use layout = 'separate'"
            )
    if pod.precision not in catalog.PRECISIONS:
        raise bad(unknown("pod.precision", "precision", pod.precision, catalog.PRECISIONS))
    if pod.plane not in catalog.PLANES:
        raise bad(unknown("pod.plane", "plane", pod.plane, catalog.PLANES))
    if pod.plane == "cuda" and not pod.gpus:
        raise bad("pod.plane = 'cuda': set pod.gpus to 1 or more, or pod.plane to 'auto'")
    if pod.layout == pb.LAYOUT_FUSED and pod.plane != "auto":
        raise bad(f"pod.plane = {pod.plane!r}: a fused pod is one process; use layout = 'separate', or plane = 'auto'")
    for name in ("learners", "gpus"):
        number = getattr(pod, name)
        if number % pod.hosts:
            raise bad(f"pod.{name} = {number}: cannot be divided equally over pod.hosts = {pod.hosts}")


def _check_limits(spec: pb.TournamentSpec) -> None:
    for key, (low, high) in LIMITS.items():
        section, name = key.split(".")
        message = getattr(spec, section)
        value = getattr(message, name)
        if message.HasField(name) and not low <= value <= high:
            raise bad(f"{key} = {value:g}: expected {low:g} to {high:g}")


def _check_together(spec: pb.TournamentSpec) -> None:
    if not spec.objective.ListFields():
        raise bad(
            "objective: empty; set target_return, wall_clock_duration or environment_steps, or it would never end"
        )
    if spec.pool.HasField("maximum_pods") and spec.pool.maximum_pods < spec.pool.minimum_pods:
        raise bad(
            f"pool.maximum_pods = {spec.pool.maximum_pods}: less than pool.minimum_pods = {spec.pool.minimum_pods}"
        )
    if spec.synchronous and spec.assignment.HasField("duration"):
        raise bad("assignment.duration: wall clock ends agents at random places; leave it out when synchronous = true")
    if spec.synchronous and spec.pod.learners > 1:
        raise bad(
            f"pod.learners = {spec.pod.learners}: learners that do not arrive in time are left out, which is not"
            " reproducible; use one when synchronous = true"
        )
    if spec.synchronous and not spec.pool.HasField("maximum_pods"):
        raise bad(
            "pool.maximum_pods: missing; with synchronous = true it is the size of a round"
            " and must not depend on the machine"
        )
    if problem := plugin_settings.misplaced(spec.evaluation) or snapshot_schedule.too_short(spec.evaluation):
        raise bad(problem)
    if problem := data_leakage.unfair(spec):
        raise bad(problem)
    if spec.fusion.mode not in catalog.FUSION_MODES:
        raise bad(unknown("fusion.mode", "mode", spec.fusion.mode, catalog.FUSION_MODES))
    if spec.evolution.strategy not in catalog.STRATEGIES:
        raise bad(unknown("evolution.strategy", "strategy", spec.evolution.strategy, catalog.STRATEGIES))
    if spec.evolution.allocation not in evolution_settings.ALLOCATIONS:
        raise bad(
            unknown("evolution.allocation", "allocation", spec.evolution.allocation, evolution_settings.ALLOCATIONS)
        )
    for problem_of in (evolution_settings.misplaced, address.misplaced, ancestor.malformed):
        if refusal := problem_of(spec.evolution):
            raise bad(refusal)


def _resolve_algorithms(spec: pb.TournamentSpec) -> None:
    if not spec.algorithms:
        raise bad("algorithms: empty; name at least one, for instance [algorithms.ppo]")
    for name in sorted(spec.algorithms):
        if name not in catalog.ALGORITHMS:
            raise bad(unknown(f"algorithms.{name}", "algorithm", name, catalog.ALGORITHMS))
        algorithm, entry = spec.algorithms[name], catalog.ALGORITHMS[name]
        if not algorithm.HasField("ratio"):
            algorithm.ratio = 1.0
        if algorithm.ratio < 0:
            raise bad(f"algorithms.{name}.ratio = {algorithm.ratio:g}: expected a number that is not negative")
        check_action_kind(name, entry, spec.environment.id)
        where = f"algorithms.{name}.hyperparameters"
        for key in sorted(algorithm.hyperparameters):
            if key not in entry.hyperparameters:
                raise bad(unknown(f"{where}.{key}", "hyperparameter", key, entry.hyperparameters))
        for key, declared in entry.hyperparameters.items():
            _resolve_hyperparameter(algorithm.hyperparameters[key], declared, f"{where}.{key}")
    if not any(algorithm.ratio for algorithm in spec.algorithms.values()):
        raise bad("algorithms: every ratio is 0, so that no agent could be made")


def check_action_kind(name: str, entry: catalog.Algorithm, environment_id: str) -> None:
    """Refuses an algorithm on an environment whose action space is known and not among those it handles.

    Raises:
        InvalidArgument: It cannot work.
    """
    simulator = catalog.SIMULATORS.get(environment_id)
    if simulator and simulator.action_kind and simulator.action_kind not in entry.action_kinds:
        raise bad(
            f"algorithms.{name}: handles {' and '.join(entry.action_kinds)} actions,"
            f" but those of environment {environment_id!r} are {simulator.action_kind}"
        )


def _resolve_hyperparameter(given: pb.HyperparameterSpec, declared: Hyperparameter, where: str) -> None:
    """Completes one hyperparameter: a fixed value, or a value with the range or the choices it is searched in."""
    searched = given.HasField("low") or given.HasField("high") or len(given.choices) > 0
    if not given.HasField("value"):
        if not searched and declared.search:
            given.low, given.high = declared.search
            searched = True
        given.value.CopyFrom(_first_value(given, declared))
    if given.HasField("low") != given.HasField("high"):
        raise bad(f"{where}: low and high belong together")
    if given.scale == pb.SCALE_UNSPECIFIED and given.HasField("low"):
        given.scale = _SCALES[declared.scale]
    for value in (given.value, *given.choices):
        check_value(value, declared, where)
    if given.choices and given.value not in given.choices:
        raise bad(f"{where}: value {json_format.MessageToDict(given.value)!r} is none of its choices")
    if given.HasField("low"):
        _check_range(given, declared, where)


def _first_value(given: pb.HyperparameterSpec, declared: Hyperparameter) -> struct_pb2.Value:
    """The default, moved into the range; or the first choice."""
    if given.choices:
        return given.choices[0]
    default = declared.default
    if given.HasField("low") and isinstance(default, int | float) and not isinstance(default, bool):
        default = type(default)(min(max(default, given.low), given.high))
    plain: Any = list(default) if isinstance(default, tuple) else default
    return json_format.ParseDict(plain, struct_pb2.Value())


def check_value(value: struct_pb2.Value, declared: Hyperparameter, where: str) -> None:
    """Refuses a value of the wrong type or out of range.

    Raises:
        InvalidArgument: With the key, the value and what would be right.
    """
    plain: Any = json_format.MessageToDict(value)
    default = declared.default
    if isinstance(default, bool):
        good, expected = isinstance(plain, bool), "true or false"
    elif isinstance(default, str):
        good, expected = plain in declared.choices, f"one of {', '.join(declared.choices)}"
    elif isinstance(default, tuple):
        good = isinstance(plain, list) and bool(plain) and all(_is_number(item, declared, whole=True) for item in plain)
        expected = f"a list of whole numbers from {declared.low:g} to {declared.high:g}"
    else:
        whole = isinstance(default, int)
        good = _is_number(plain, declared, whole=whole)
        expected = f"a {'whole ' if whole else ''}number from {declared.low:g} to {declared.high:g}"
    if not good:
        raise bad(f"{where} = {plain!r}: expected {expected}")


def _is_number(value: object, declared: Hyperparameter, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return cast(float, declared.low) <= value <= cast(float, declared.high) and (not whole or value == int(value))


def _check_range(given: pb.HyperparameterSpec, declared: Hyperparameter, where: str) -> None:
    if isinstance(declared.default, bool | str | tuple) or declared.low is None or declared.high is None:
        raise bad(f"{where}: has no range; give a value or choices")
    if not declared.low <= given.low < given.high <= declared.high:
        raise bad(
            f"{where}: range {given.low:g} to {given.high:g}:"
            f" expected low < high within {declared.low:g} to {declared.high:g}"
        )
    if given.scale == pb.SCALE_LOG and given.low <= 0:
        raise bad(f"{where}: low = {given.low:g}: a logarithmic scale needs a positive range")
    if not given.low <= given.value.number_value <= given.high:
        raise bad(f"{where}: value {given.value.number_value:g} lies outside its range {given.low:g} to {given.high:g}")

"""Builds the tables of docs/specification.md from the contract, the defaults and limits, and the catalog.

Meanings are the comments in protos/podrace/tournament/v1/tournament.proto, so a key is described in one place.
"""

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from markdown_tables import names_table, number, sentence, shown, table

from podrace.bounds.v1 import bounds_pb2
from podrace.specification import catalog, evolution_settings, plugin_settings, presets, snapshot_schedule
from podrace.specification.catalog import Hyperparameter
from podrace.specification.files import to_values
from podrace.specification.resolve import CHOICES, LIMITS, parse, resolve

REPOSITORY = Path(__file__).parents[2]
PROTO = "podrace/tournament/v1/tournament.proto"

MINIMAL = {"environment": {"id": "cartpole"}, "algorithms": {"ppo": {}}, "objective": {"target_return": 475.0}}
SECTIONS = {
    "environment": "EnvironmentSpec",
    "algorithms.NAME": "AlgorithmSpec",
    "algorithms.NAME.hyperparameters.KEY": "HyperparameterSpec",
    "objective": "ObjectiveSpec",
    "pool": "PoolSpec",
    "pod": "PodSpec",
    "experience": "ExperienceSpec",
    "opponents": "OpponentsSpec",
    "fusion": "FusionSpec",
    "assignment": "AssignmentSpec",
    "evaluation": "EvaluationSpec",
    "evolution": "EvolutionSpec",
    "champion": "ChampionSpec",
    "reports.NAME": "ReportSpec",
}
"""TOML tables in the order of the page, with the message that each is."""
RANGES: Mapping[str, str] = {
    "assignment.checkpoint_period": f"at least {snapshot_schedule.SHORTEST_PERIOD_SECONDS:g} s",
    "evaluation.answer_duration": f"more than 0, at most {plugin_settings.LONGEST_EVALUATION_ANSWER_SECONDS} s",
    "evaluation.snapshot_period": f"at least {snapshot_schedule.SHORTEST_PERIOD_SECONDS:g} s",
    "evolution.answer_duration": "{:g} s to {:g} s".format(*plugin_settings.EVOLUTION_ANSWER_LIMITS),
    "pod.memory_bytes": "64 MiB to 16 TiB",
    "algorithms.NAME.ratio": "0 or more",
}
"""Ranges that are no pair of numbers in `LIMITS`."""
DEFAULTS: Mapping[str, str] = {
    "pod.layout": "`fused` if each learner has a GPU where the simulator steps; else `separate` with 2 or more cores",
    "environment.id": "required",
    "fusion.mode": "`average`; `allreduce` if pods with GPUs or several learners may grow (`pod.maximum_cores`)",
    "evolution.strategy": '`incumbent`; with `search = "wide"` and at most two pods `asha`',
}
"""Defaults that depend on other keys."""


# --- the contract ------------------------------------------------------------------------------------------------


def load_messages() -> dict[str, list[tuple[descriptor_pb2.FieldDescriptorProto, str]]]:
    """Returns the fields of each message of the contract with their comments, by the message's name."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "descriptors.binpb"
        includes = [REPOSITORY / "protos", Path(grpc_tools.__file__).parent / "_proto"]
        code = protoc.main(
            [
                "protoc",
                *(f"--proto_path={include}" for include in includes),
                "--include_source_info",
                f"--descriptor_set_out={output}",
                PROTO,
            ]
        )
        if code:
            raise SystemExit(f"protoc failed with exit code {code}")
        files = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    file = files.file[-1]
    comments = {
        tuple(location.path): one_line(location.leading_comments) for location in file.source_code_info.location
    }
    # In a path, 4 is a message of the file and 2 a field of a message.
    return {
        message.name: [(field, comments.get((4, at, 2, index), "")) for index, field in enumerate(message.field)]
        for at, message in enumerate(file.message_type)
    }


def one_line(comment: str) -> str:
    """Returns a comment as the text of one table cell; paragraphs and list items begin on lines of their own there."""
    broken = re.sub(r"\n\s*\n", "<br>", comment.strip())
    broken = re.sub(r"(?:\n|<br>)\s*- ", "<br>• ", broken)
    return " ".join(broken.split())


def split_default(comment: str) -> tuple[str, str]:
    """Splits a field's comment into its meaning and what it says about the default."""
    default = re.search(r"(?:^|(?<=\. ))Default:? (.*?)\.(?= [A-Z`]|$)", comment)
    if default is None:
        return comment, ""
    meaning = f"{comment[: default.start()]}{comment[default.end() :].lstrip()}"
    return meaning.strip(), default[1]


# --- the page ----------------------------------------------------------------------------------------------------


def kind_of(field: descriptor_pb2.FieldDescriptorProto) -> str:
    """Returns the type of a key as text."""
    name = field.type_name.rpartition(".")[2]
    names = {"Duration": "duration", "Struct": "table", "Value": "any value", "Layout": "name", "Scale": "name"}
    if name.endswith("Entry"):
        return "table"
    if field.label == field.LABEL_REPEATED:
        return "tables" if name.endswith("Spec") else "list"
    types = {field.TYPE_STRING: "string", field.TYPE_BOOL: "boolean", field.TYPE_DOUBLE: "number"}
    return names.get(name) or types.get(field.type) or ("table" if name else "integer")


def choices_of(field: descriptor_pb2.FieldDescriptorProto, key: str) -> str:
    """Returns the names that a key can have, or the range of its numbers."""
    enums = {"Layout": ("separate", "fused"), "Scale": ("linear", "log", "reverse_log")}
    names = enums.get(field.type_name.rpartition(".")[2]) or CHOICES.get(key)
    if names:
        return ", ".join(f"`{name}`" for name in names)
    if key in RANGES:
        return RANGES[key]
    longest = field.options.Extensions[bounds_pb2.bounds].maximum_bytes
    if field.type == field.TYPE_STRING and longest and field.label != field.LABEL_REPEATED:
        return f"up to {longest:,} bytes"
    if key in LIMITS:
        low, high = LIMITS[key]
        return f"{number(low)} to {number(high)}"
    return ""


def default_of(key: str, defaults: Mapping[str, Any], stated: str) -> str:
    """Returns the default of a key: what the contract says about it, else the value that is filled in."""
    if key in DEFAULTS:
        return DEFAULTS[key]
    section, _, name = key.rpartition(".")
    value = (defaults.get(section, {}) if section else defaults).get(name)
    if section == "evolution":
        return _evolution_default(name, value) or stated
    if section in MINIMAL:
        value = None if name in MINIMAL[section] else value
    if value is None or key == "name":
        return stated or "-"
    return stated if stated and not stated[0].isdigit() and section == "" else shown(value)


def _evolution_default(name: str, value: Any) -> str:
    """Returns the default of all strategies that use it, then those of the strategies that have another."""
    common = evolution_settings.DEFAULTS.get(name)
    own = {key: settings[name] for key, settings in evolution_settings.SETTINGS.items() if name in settings}
    if common is None and len(set(own.values())) == 1:
        return shown(next(iter(own.values())))
    parts = [] if common is None else [shown(common)]
    parts += [f"{shown(setting)} for `{strategy}`" for strategy, setting in own.items() if setting != common]
    return "; ".join(parts) or (shown(value) if value is not None else "")


def section_rows(path: str, fields: Sequence[tuple[Any, str]], defaults: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    """Yields a row for each key of a table."""
    for field, comment in fields:
        key = f"{path}.{field.name}" if path else field.name
        if (not path and field.type_name.endswith("Spec")) or any(one.startswith(f"{key}.") for one in SECTIONS):
            continue
        meaning, stated = split_default(comment)
        yield f"`{field.name}`", kind_of(field), default_of(key, defaults, stated), choices_of(field, key), meaning


def hyperparameter_rows(hyperparameters: Mapping[str, Hyperparameter]) -> Iterable[Sequence[str]]:
    """Yields a row for each hyperparameter of an algorithm."""
    for name, entry in hyperparameters.items():
        allowed = ", ".join(f"`{choice}`" for choice in entry.choices)
        if entry.low is not None and entry.high is not None:
            allowed = f"{number(entry.low)} to {number(entry.high)}"
        searched = search_of(entry.search, entry.scale) if entry.search else ""
        wide = search_of(entry.wide, entry.scale) if entry.wide else searched
        structural = " *Structural.*" if entry.structural else ""
        yield f"`{name}`", shown(entry.default), allowed, searched, wide, f"{sentence(entry.help)}{structural}"


def search_of(search: catalog.Search, scale: str) -> str:
    """Returns a range with its scale, and the extra value."""
    extra = f", or {int(scale == 'reverse_log')} ({search.zero_probability:.0%})" if search.zero_probability else ""
    return f"{number(search.low)} to {number(search.high)}, `{scale}`{extra}"


def same_hyperparameters() -> list[tuple[list[str], Mapping[str, Hyperparameter]]]:
    """Returns the algorithms grouped by their hyperparameters, in the order of the catalog."""
    groups: list[tuple[list[str], Mapping[str, Hyperparameter]]] = []
    for name, algorithm in catalog.ALGORITHMS.items():
        group = next((names for names, known in groups if known == algorithm.hyperparameters), None)
        if group is None:
            groups.append(([name], algorithm.hyperparameters))
        else:
            group.append(name)
    return groups


def hyperparameter_tables() -> str:
    """Returns a heading and a table for each group of algorithms."""
    header = ("Key", "Default", "Allowed", "Searched", 'With `search = "wide"`', "Meaning")
    parts = (
        f"### {', '.join(f'`{name}`' for name in names)}\n\n{table(header, hyperparameter_rows(hyperparameters))}"
        for names, hyperparameters in same_hyperparameters()
    )
    return "\n".join(parts)


def algorithm_rows() -> Iterable[Sequence[str]]:
    """Yields a row for each algorithm."""
    for name, entry in catalog.ALGORITHMS.items():
        yield f"`{name}`", ", ".join(entry.action_kinds), sentence(entry.help)


def tables() -> dict[str, str]:
    """Returns the tables of the page by the name in its template."""
    messages, defaults = load_messages(), to_values(resolve(parse(MINIMAL, source="defaults")))
    header = ("Key", "Type", "Default", "Range or names", "Meaning")
    return {
        "top": table(header, section_rows("", messages["TournamentSpec"], defaults)),
        **{path: table(header, section_rows(path, messages[name], defaults)) for path, name in SECTIONS.items()},
        "searches": names_table(("`search`", "What is searched"), presets.SEARCHES),
        "strategies": names_table(("`evolution.strategy`", "What it does"), catalog.STRATEGIES),
        "allocations": names_table(("`evolution.allocation`", "What it does"), evolution_settings.ALLOCATIONS),
        "planes": names_table(("`pod.plane`", "What it is"), catalog.PLANES),
        "precisions": names_table(("`pod.precision`", "What it is"), catalog.PRECISIONS),
        "fusion-modes": names_table(("`fusion.mode`", "What it does"), catalog.FUSION_MODES),
        "algorithms": table(("`[algorithms.NAME]`", "Actions", "What it is"), algorithm_rows()),
        "hyperparameters": hyperparameter_tables(),
    }

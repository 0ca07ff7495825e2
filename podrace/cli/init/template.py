"""Writes the text of a first specification. Pure."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from podrace.cli.init.environments import action_kind, known_environment
from podrace.config import unknown
from podrace.errors import InvalidArgument
from podrace.printable import printable
from podrace.specification import resolve
from podrace.specification.catalog import ALGORITHMS, SIMULATORS
from podrace.specification.files import toml_key, toml_literal
from podrace.specification.known.simulators import of_teams

LONGEST_NAME = 40


@dataclass(frozen=True)
class Choices:
    """What the user chose."""

    environment: str
    """Value of `environment.id`."""
    algorithms: Sequence[str]
    wall_clock: str
    """Duration of the tournament, for instance `10m`; empty: no limit."""
    target_return: float | None
    """Mean return that ends the tournament; None: none."""
    pods: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """`environment.options`."""
    name: str = ""
    """Empty: derived from the environment."""


def tournament_name(choices: Choices) -> str:
    """Returns the name of the tournament, after which its file is named."""
    derived = re.sub(r"[^a-z0-9]+", "-", choices.environment.lower()).strip("-")[:LONGEST_NAME].strip("-")
    return choices.name or derived or "tournament"


def specification_text(choices: Choices, file: str) -> str:
    """Returns a commented specification that `podrace train` accepts.

    Args:
        choices: What the user chose.
        file: Name of the file, for the comments.

    Raises:
        InvalidArgument: A choice cannot be used; the message names it.
    """
    check_environment(choices.environment)
    for name in choices.algorithms:
        check_algorithm(name, choices.environment)
    if choices.environment.startswith("grpc://") and "id" not in choices.options:
        raise InvalidArgument(
            "--option: a service steps several simulators; name one, for instance --option id=pendulum"
        )
    if not choices.wall_clock and choices.target_return is None:
        raise InvalidArgument("--duration, --target: give at least one, otherwise the tournament would never end")
    text = "\n".join(part for part in _parts(choices, printable(file)) if part)
    resolve.resolve(resolve.parse(tomllib.loads(text), source="init"))
    return text


def check_environment(id: str) -> None:
    """Checks the form of an environment's id; whether it can be made is known only where pods run.

    Raises:
        InvalidArgument: It is empty, or the pattern of a family instead of a member.
    """
    if not id or "<" in id:
        raise InvalidArgument(
            f"--environment {id!r}: name an environment, for instance cartpole or CartPole-v1; `podrace simulators`"
            " lists them, and what is in angle brackets there is yours to fill in"
        )


def suitable_algorithms(environment: str) -> list[str]:
    """Returns the algorithms that support the actions of an environment; all for its number of agents if these are not
    known.
    """
    kind, teams = action_kind(environment), of_teams(environment)
    fitting = {name: entry for name, entry in ALGORITHMS.items() if entry.teams == teams}
    return [name for name, entry in fitting.items() if not kind or kind in entry.action_kinds]


def check_algorithm(name: str, environment: str) -> None:
    """Checks that an algorithm exists and supports the actions of an environment.

    Raises:
        InvalidArgument: It does not.
    """
    if name not in ALGORITHMS:
        raise InvalidArgument(unknown("--algorithm", "algorithm", name, ALGORITHMS))
    suitable = suitable_algorithms(environment)
    if name not in suitable:
        raise InvalidArgument(
            f"--algorithm {name}: {environment} has {action_kind(environment)} actions; choose one of"
            f" {', '.join(suitable)}"
        )


def _parts(choices: Choices, file: str) -> list[str]:
    known = known_environment(choices.environment)
    name = tournament_name(choices)
    return [
        f"""\
# A specification for `podrace train {file}`. Keys that are absent have defaults: docs/specification.md lists them, and
# `podrace train {file} --print-config` prints this specification with all of them.
name = {toml_literal(name)}
# Results repeat only in part with the same seed, because pods run at the same time; see `synchronous`.
seed = 1
""",
        _environment(choices),
        *(_algorithm(algorithm, images=known.images) for algorithm in dict.fromkeys(choices.algorithms)),
        _objective(choices),
        f"""\
# Pods train agents at the same time, each on its own cores.
[pool]
maximum_pods = {choices.pods}

[pod]
cores = 1
""",
        f"""\
# How agents are scored: in separate environments, with other seeds than those of training.
[evaluation]
episodes = 32
# The strategy gives agents multiples of these steps, more to those that do well.
every_environment_steps = {known.environment_steps // 8:_}
{known.sections}
# How the next agent is generated. `podrace strategies` lists the strategies, and what they need.
[evolution]
strategy = "incumbent"
""",
    ]


def _environment(choices: Choices) -> str:
    known = known_environment(choices.environment)
    on = SIMULATORS.get(choices.environment)
    lines = [
        f"# {on.help[0].upper()}{on.help[1:]}."
        if on
        else "# What is learned. `podrace simulators` lists what the id can be."
    ]
    lines += [f"# {known.note}"] if known.note else []
    lines += [f"# Needs the extra {known.needs}: pip install 'podrace[{known.needs}]'."] if known.needs else []
    lines += ["# Each worker steps `count` environments as one batch.", "[environment]"]
    lines += [f"id = {toml_literal(choices.environment)}", f"count = {known.count}", ""]
    if choices.options:
        lines += ["# Options of the simulator.", "[environment.options]"]
        lines += [f"{toml_key(key)} = {toml_literal(value)}" for key, value in choices.options.items()] + [""]
    return "\n".join(lines)


def _algorithm(name: str, *, images: bool) -> str:
    entry = ALGORITHMS[name]
    rate = entry.hyperparameters.get("learning_rate")
    example = ""
    if rate and rate.search:
        low, high = rate.search.low, rate.search.high
        example = f"# learning_rate = {{ value = {rate.default}, low = {low}, high = {high} }}\n"
    pictures = '# Convolutional layers for images.\ntorso = "nature"\n' if images else ""
    return f"""\
# {entry.help[0].upper()}{entry.help[1:]}.
[algorithms.{name}]
# Its share of the fresh agents, compared with the ratios of other algorithms.
ratio = 1.0

# Hyperparameters that differ from the defaults, which `podrace algorithms {name}` lists. A range is searched:
{example}[algorithms.{name}.hyperparameters]
{pictures}"""


def _objective(choices: Choices) -> str:
    lines = ["# The tournament ends as soon as one of these is reached.", "[objective]"]
    if choices.target_return is not None:
        lines += [
            "# Mean return of the best agent, in new episodes.",
            f"target_return = {float(choices.target_return)}",
        ]
    if choices.wall_clock:
        lines.append(f"wall_clock_duration = {toml_literal(choices.wall_clock)}")
    return "\n".join([*lines, ""])

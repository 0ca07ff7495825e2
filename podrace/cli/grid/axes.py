"""Parses the axes of a grid and builds the resolved specification of every cell (pure).

    axes = parse_axes(["algorithm=ppo,sac", "seed=0..4"])
    cells = make_cells(values, axes, source="cartpole.toml")     # ten cells

Any key of a specification can be an axis, written as for `--set`; some have a short name. All cells are checked before
the first one is started.
"""

import copy
import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podrace import config
from podrace.errors import InvalidArgument
from podrace.specification import evolution_settings
from podrace.specification import resolve as spec
from podrace.specification.files import to_values
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

ALGORITHM = "algorithm"
"""Short name that is not a key: its value becomes the only algorithm."""
SEED = "seed"
STRATEGY = "evolution.strategy"
SHORT_NAMES: Mapping[str, str] = {
    ALGORITHM: "algorithms",
    "strategy": STRATEGY,
    SEED: SEED,
    "environment": "environment.id",
}
"""Keys with a short name."""
LARGEST_GRID = 1000
"""Largest number of cells; a larger grid is probably a typing error."""
NAME_CHARACTERS = 40
"""Number of characters of the specification's name before the digest in the name of a cell."""
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}


@dataclass(frozen=True)
class Axis:
    """A key and its values."""

    name: str
    """Key as the user typed it."""
    values: tuple[Any, ...]
    labels: tuple[str, ...]
    """Values as the user typed them; a range is expanded."""

    @property
    def key(self) -> str:
        """Dotted key of the specification."""
        return SHORT_NAMES.get(self.name, self.name)


@dataclass(frozen=True)
class Cell:
    """One cell of a grid, which is a tournament."""

    labels: Mapping[str, str]
    """Label of each axis, by the name of the axis."""
    values: Mapping[str, Any]
    """Value of each axis, by the name of the axis."""
    spec: TournamentSpec
    """Resolved specification. Its name contains a digest of what differs from the defaults, so the same cell has the
    same name in every grid, and a new key of a later version does not change it."""

    @property
    def title(self) -> str:
        """Labels for messages: `algorithm=ppo seed=3`."""
        return _title(self.labels)

    @property
    def combination(self) -> tuple[str, ...]:
        """Labels without the seed, which are equal for cells that differ only in the seed."""
        return tuple(label for name, label in self.labels.items() if name != SEED)


# --- axes --------------------------------------------------------------------------------------------------------


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """Parses axes such as `algorithm=ppo,sac`, `seed=0..4` and `pod.cores=1,2`.

    Raises:
        InvalidArgument: An axis is malformed, unknown, empty or repeated, or the grid is too large.
    """
    if not texts:
        raise InvalidArgument("grid: name at least one axis, for instance --axes algorithm=ppo,sac seed=0..4")
    axes = [_parse_axis(text) for text in texts]
    for number, axis in enumerate(axes):
        if any(axis.key == earlier.key for earlier in axes[:number]):
            raise InvalidArgument(f"axis {axis.name}: is repeated; write all of its values after one `=`")
    size = math.prod(len(axis.values) for axis in axes)
    if size > LARGEST_GRID:
        raise InvalidArgument(f"the axes make {size} cells; a grid has at most {LARGEST_GRID}")
    return axes


def _parse_axis(text: str) -> Axis:
    name, found, list_ = (part.strip() for part in text.partition("="))
    if not found or not name:
        raise InvalidArgument(f"axis {text!r}: expected KEY=VALUE,VALUE,..., for instance seed=0..4")
    known = {field.name for field in TournamentSpec.DESCRIPTOR.fields} | set(SHORT_NAMES)
    if name.partition(".")[0] not in known:
        raise InvalidArgument(config.unknown("grid", "axis", name.partition(".")[0], known))
    if name == "name":
        raise InvalidArgument("axis name: a grid names its tournaments itself; use another key, or --set name=...")
    labels = [label for piece in _split(list_) for label in _expand(name, piece)]
    values = tuple(_plain(config.split_override(f"{name}={label}")[1]) for label in labels)
    for number, value in enumerate(values):
        if any(value == earlier and type(value) is type(earlier) for earlier in values[:number]):
            raise InvalidArgument(f"axis {name}: has the value {labels[number]} twice")
    return Axis(name, values, tuple(labels))


def _split(text: str) -> list[str]:
    """Splits at commas outside of brackets and strings."""
    pieces, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += _BRACKETS.get(character, 0)
        if character == "," and not depth and not quote:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


def _expand(name: str, piece: str) -> list[str]:
    """Returns the values of one item: the item itself, or the values of a range including both ends."""
    if not piece:
        raise InvalidArgument(f"axis {name}: has an empty value; expected for instance {name}=0..4 or {name}=A,B")
    found = _RANGE.fullmatch(piece)
    if not found:
        return [piece]
    first, last = int(found[1]), int(found[2])
    if not first <= last < first + LARGEST_GRID:
        raise InvalidArgument(f"axis {name}: range {piece}: expected at most {LARGEST_GRID} values, the smallest first")
    return [str(value) for value in range(first, last + 1)]


def _plain(value: Any) -> Any:
    """Converts dates and times to text, because specifications have no dates."""
    return str(value) if hasattr(value, "isoformat") else value


# --- cells -------------------------------------------------------------------------------------------------------


def make_cells(values: Mapping[str, Any], axes: Sequence[Axis], *, source: str) -> list[Cell]:
    """Builds and checks the cells of a grid; the last axis varies fastest.

    Args:
        values: The specification as read from TOML.
        axes: Axes in the order of the result table.
        source: Name of the specification's file, for error messages.

    Raises:
        InvalidArgument: A cell is not a valid specification, or two cells are the same; the message names the cell.
    """
    cells: dict[str, Cell] = {}
    for numbers in itertools.product(*(range(len(axis.values)) for axis in axes)):
        labels = {axis.name: axis.labels[number] for axis, number in zip(axes, numbers, strict=True)}
        chosen = {axis.name: axis.values[number] for axis, number in zip(axes, numbers, strict=True)}
        resolved = _resolve(values, axes, chosen, f"{source}: cell {_title(labels)}")
        resolved.name = f"{resolved.name[:NAME_CHARACTERS]}-{digest(_chosen_values(resolved))}"
        cell = Cell(labels, chosen, resolved)
        if resolved.name in cells:
            raise InvalidArgument(
                f"{source}: cells {cells[resolved.name].title} and {cell.title} are the same tournament: an axis"
                " has no effect there"
            )
        cells[resolved.name] = cell
    return list(cells.values())


def _title(labels: Mapping[str, str]) -> str:
    return " ".join(f"{name}={label}" for name, label in labels.items())


def digest(value: object) -> str:
    """Returns the first ten hexadecimal digits of the SHA-256 digest of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def _chosen_values(resolved: TournamentSpec) -> dict[str, object]:
    """Returns the values of a specification by their keys, without those that are defaults.

    The strategy is never left out: a cell is another one if the default strategy changes.
    """
    plain = TournamentSpec(name=resolved.name, environment=resolved.environment)
    plain.objective.CopyFrom(resolved.objective)
    plain.evolution.strategy = resolved.evolution.strategy
    for name in resolved.algorithms:
        plain.algorithms[name].SetInParent()
    defaults = _leaves(to_values(spec.resolve(plain)))
    chosen = {key: value for key, value in _leaves(to_values(resolved)).items() if defaults.get(key) != value}
    whole = to_values(resolved)
    kept = {key: whole[key] for key in ("environment", "objective")}
    return {**chosen, **kept, STRATEGY: resolved.evolution.strategy, "algorithms": sorted(resolved.algorithms)}


def _leaves(values: Mapping[str, Any], path: str = "") -> dict[str, object]:
    """Returns nested values by their dotted keys."""
    found: dict[str, object] = {}
    for key, value in values.items():
        found |= _leaves(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return found


def grid_name(cells: Sequence[Cell], axes: Sequence[Axis]) -> str:
    """Returns the name of a grid: the name of its specification and a digest of its axes and cells."""
    base = cells[0].spec.name.rpartition("-")[0]
    return f"{base}-grid-{digest([[axis.key for axis in axes], [cell.spec.name for cell in cells]])}"


def _resolve(values: Mapping[str, Any], axes: Sequence[Axis], chosen: Mapping[str, Any], where: str) -> TournamentSpec:
    try:
        return spec.resolve(spec.parse(_cell_values(values, axes, chosen), source=where))
    except InvalidArgument as error:
        line = error.message if error.message.startswith(where) else f"{where}: {error.message}"
        raise InvalidArgument(line, reason=error.reason) from None


def _cell_values(values: Mapping[str, Any], axes: Sequence[Axis], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the specification of one cell as nested values.

    First removes the settings of other algorithms and strategies, then sets the values of the axes, so that an axis
    that does not fit the cell is reported as an error.
    """
    tree = copy.deepcopy(dict(values))
    for axis in axes:
        if axis.name == ALGORITHM:
            _keep_algorithm(tree, str(chosen[ALGORITHM]))
        elif axis.key == STRATEGY:
            _leave_out_other_strategies(tree, str(chosen[axis.name]))
    for axis in axes:
        if axis.name != ALGORITHM:
            config.assign(tree, axis.key, copy.deepcopy(chosen[axis.name]))
        # An axis with a hyperparameter of one algorithm would add that algorithm to the cells of the others.
        if ALGORITHM in chosen and set(tree["algorithms"]) != {str(chosen[ALGORITHM])}:
            raise InvalidArgument(
                f"axis {axis.name} belongs to another algorithm; use a separate grid for it, or for those cells"
            )
    return tree


def _keep_algorithm(tree: dict[str, Any], name: str) -> None:
    """Makes one algorithm the only one, with the hyperparameters that the specification gives it."""
    given = tree.get("algorithms")
    own = given.get(name, {}) if isinstance(given, dict) else {}
    # The ratio, which may be 0, has no meaning for a single algorithm.
    tree["algorithms"] = {name: {key: own[key] for key in own if key != "ratio"} if isinstance(own, dict) else own}


def _leave_out_other_strategies(tree: dict[str, Any], strategy: str) -> None:
    """Removes the settings of [evolution] that only other strategies have, which would be refused."""
    evolution = tree.get("evolution")
    if isinstance(evolution, dict):
        foreign = {name for settings in evolution_settings.SETTINGS.values() for name in settings} - set(
            evolution_settings.DEFAULTS
        )
        foreign -= set(evolution_settings.SETTINGS.get(strategy, ()))
        tree["evolution"] = {key: value for key, value in evolution.items() if key not in foreign}

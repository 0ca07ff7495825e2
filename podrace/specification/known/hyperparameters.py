"""Defines how an algorithm and its hyperparameters are described to a specification."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Value = float | int | bool | str | tuple[int, ...]
"""Value of a hyperparameter."""


class Search(NamedTuple):
    """Where to search for a hyperparameter, on its scale."""

    low: float
    """Lower end of the range, inclusive."""
    high: float
    """Upper end of the range, inclusive."""
    zero_probability: float = 0.0
    """Probability of 0, or on the scale `reverse_log` of 1, which no logarithmic range includes."""


@dataclass(frozen=True)
class Hyperparameter:
    """Default, allowed values and search range of one hyperparameter."""

    default: Value
    """Value if the specification does not set it; every value must have the same type."""
    help: str
    """One line."""
    low: float | None = None
    """Smallest allowed value, inclusive."""
    high: float | None = None
    """Largest allowed value, inclusive."""
    choices: tuple[str, ...] = ()
    """Allowed values of a hyperparameter that is a string."""
    scale: str = "linear"
    """Scale of the search: `linear`, `log` or `reverse_log`."""
    search: Search | None = None
    """What is searched if the specification does not mention the hyperparameter; None: fixed at the default."""
    wide: Search | None = None
    """What is searched instead of `search` with the preset `wide`; None: the same as without the preset."""
    structural: bool = False
    """Whether it determines the shape of the networks or of the saved state. A child keeps the value of its parent,
    otherwise it could not load the parent's checkpoint files."""


@dataclass(frozen=True)
class Algorithm:
    """Action spaces and hyperparameters of one algorithm."""

    help: str
    """One line."""
    action_kinds: tuple[str, ...]
    """Kinds of action space that it supports: `continuous`, `discrete`."""
    hyperparameters: Mapping[str, Hyperparameter] = field(default_factory=dict)
    """By name."""
    teams: bool = False
    """Whether it trains teams, in environments with several agents, instead of one agent."""

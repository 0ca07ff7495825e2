"""Lists the settings of each evolution strategy with their defaults, and fills them in. Does not import torch.

    fill(evolution)                # sets the defaults of the strategy
    error = misplaced(evolution)   # reports a setting of another strategy

All settings are keys of `[evolution]`, and strategies share them by name. Those in `DEFAULTS` are filled in and
accepted for every strategy; a strategy that does not use one of them ignores it. Any other setting is refused, unless
`SETTINGS` lists it for the strategy or, in the case of `HALVING`, the allocation is `halving`.
"""

from collections.abc import Mapping

from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

DEFAULTS: Mapping[str, str | float | int] = {
    "strategy": "incumbent",
    "board_capacity": 16,
    "tournament_size": 3,
    "fresh_probability": 0.1,
    "initial_agents": 4,
    "mutation_probability": 0.5,
    "mutation_factor": 1.25,
    "resample_probability": 0.1,
    "maximum_unfinished_children": 2,
    "allocation": "ratio",
}
"""Defaults for all strategies, unless `SETTINGS` has another default for the strategy."""

SETTINGS: Mapping[str, Mapping[str, float | int]] = {
    "incumbent": {
        "founder_share": 0.5,
        "founder_seeds": 2,
        "fresh_until": 0.4,
        "takeover_errors": 1.0,
        "takeover_scores": 2,
        "stop_errors": 1.5,
        "rung_factor": 3.0,
        "first_rung": 2,
        "riser_probability": 0.1,
        "unchanged_probability": 0.1,
        "mutation_step": 0.12,
        "catch_up": 1.0,
        "exploration_begin": 0.5,
        "exploration_end": 0.1,
    },
    "asha": {"rung_factor": 3.0, "first_rung": 2},
    # Falkner et al. 2018, section 4 and the authors' implementation.
    "bohb": {"rung_factor": 3.0, "first_rung": 2, "random_probability": 0.33, "good_share": 0.15},
    "tournament": {},
    "random-search": {},
    "softmax": {"temperature": 1.0},
    # Jaderberg et al. 2017, section 4.1.1 (truncation selection; perturb and resample).
    "truncation": {
        "population_size": 8,
        "replaced_share": 0.2,
        "donor_share": 0.2,
        "mutation_probability": 1.0,
        "perturbation": 0.2,
        "resample_probability": 0.25,
    },
    # Petrenko et al. 2023, as published with Isaac Gym's environments.
    "dexpbt": {
        "population_size": 8,
        "replaced_share": 0.125,
        "donor_share": 0.3,
        "lead_deviations": 0.5,
        "lead_share": 0.05,
        "mutation_probability": 0.15,
        "mutation_factor_low": 1.1,
        "mutation_factor": 1.5,
        "resample_probability": 0.0,
    },
    # Doulazmi et al. 2025, as published: quarters, 4 sub-populations, values are multiplied by 0.8 or 1.25. The periods
    # there are 1, 10, 25 and 50 of 1000 rounds.
    "mf-pbt": {
        "population_size": 8,
        "subpopulations": 4,
        "frequency_factor": 3,
        "replaced_share": 0.25,
        "mutation_probability": 1.0,
        "resample_probability": 0.0,
    },
    # Dalibard and Jaderberg 2021, the implementation in PBT-Zoo.
    "fire-pbt": {
        "population_size": 8,
        "replaced_share": 0.25,
        "donor_share": 0.25,
        "mutation_probability": 1.0,
        "mutation_factor": 2.0,
        "resample_probability": 0.0,
    },
    # Parker-Holder et al. 2020, section 5 and the implementation in Ray Tune.
    "pb2": {
        "population_size": 8,
        "replaced_share": 0.25,
        "donor_share": 0.25,
        "perturbation": 0.2,
        "resample_probability": 0.25,
    },
    # Bai and Cheng 2024, the authors' implementation.
    "gpbt": {"population_size": 8, "resample_probability": 0.25, "inertia_weight": 1.0, "learning_weight": 1.0},
    "generational": {"population_size": 8},
}
"""Settings and defaults of each strategy: those that only it has, and those that override `DEFAULTS`."""

HALVING: Mapping[str, int] = {"halving_agents": 4}
"""Settings of `allocation = "halving"`."""

ALLOCATIONS: Mapping[str, str] = {
    "ratio": "fresh agents and seats use the algorithms in the ratios of the specification",
    "halving": "starts as ratio, then repeatedly drops the worse half of the algorithms (successive halving)",
}


def fill(evolution: EvolutionSpec) -> None:
    """Sets the missing settings to the defaults of the strategy; an unknown strategy gets `DEFAULTS`."""
    strategy = evolution.strategy if evolution.HasField("strategy") else str(DEFAULTS["strategy"])
    defaults = {**DEFAULTS, **SETTINGS.get(strategy, {})}
    if evolution.allocation == "halving":
        defaults |= HALVING
    for name in defaults.keys() - _present(evolution):
        setattr(evolution, name, defaults[name])


def misplaced(evolution: EvolutionSpec) -> str:
    """Returns which setting belongs to another strategy or contradicts another setting; empty if there is none.

    Args:
        evolution: Settings after `fill`, with a known strategy and allocation.
    """
    owners = {name: [key for key in SETTINGS if name in SETTINGS[key]] for own in SETTINGS.values() for name in own}
    for field, value in evolution.ListFields():
        name, shown = field.name, f"evolution.{field.name} = {value}"
        if name in owners and name not in DEFAULTS and evolution.strategy not in owners[name]:
            return f"{shown}: is a setting of {', '.join(owners[name])}; the strategy is {evolution.strategy!r}"
        if name in HALVING and evolution.allocation != "halving":
            return f"{shown}: is a setting of allocation = 'halving'"
    if evolution.mutation_factor_low > evolution.mutation_factor:
        return (
            f"evolution.mutation_factor_low = {evolution.mutation_factor_low:g}: is more than"
            f" evolution.mutation_factor = {evolution.mutation_factor:g}"
        )
    return ""


def may_stop(evolution: EvolutionSpec) -> bool:
    """Whether the strategy may stop agents before they have used up their assignment."""
    return evolution.stop_errors > 0


def missing(evolution: EvolutionSpec) -> list[str]:
    """Returns the settings of the strategy that are not set, as `evolution.<name>`."""
    # Specifications resolved by old versions have no allocation, which means `ratio`, and no seeds, which means 1.
    needed = ({**DEFAULTS, **SETTINGS.get(evolution.strategy, {})}).keys() - {"allocation", "founder_seeds"}
    if evolution.allocation == "halving":
        needed |= HALVING.keys()
    return [f"evolution.{name}" for name in sorted(needed - _present(evolution))]


def _present(evolution: EvolutionSpec) -> set[str]:
    return {field.name for field, _ in evolution.ListFields()}

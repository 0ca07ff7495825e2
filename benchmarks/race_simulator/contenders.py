"""Defines the contenders of simulated races: every strategy of the leaderboard, and the controls. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leaderboard.evolution import STRATEGIES
from podrace.specification import budget, evolution_settings
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

QUANTA = 48
"""Quanta of training for each pod in a race."""
QUANTUM_STEPS = 1000
"""Environment steps of one pod in a quantum."""
QUANTUM_SECONDS = 10.0
PODS_EXPONENT = 0.85
"""An agent on P pods learns P to this power times as fast as on one."""
REEVALUATED, REEVALUATION = 4, 4
"""Number of candidates that are scored again at the end, and the number of episodes compared with an evaluation."""

SEARCHED = ("learning_rate", "discount", "entropy_coefficient")
"""The hyperparameters that the simulation maps to [0, 1]^3."""
RANGES: Mapping[str, Mapping[str, Any]] = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "scale": "log"},
    "discount": {"low": 0.9, "high": 0.9999, "scale": "linear"},
    "entropy_coefficient": {"low": 1e-8, "high": 1e-1, "scale": "log"},
}


@dataclass(frozen=True)
class Contender:
    """What takes part in a race; controls are strategies with their own settings."""

    strategy: str
    quanta: int
    """Quanta of training of an agent, where the strategy does not decide it."""
    search: bool = True
    """Whether hyperparameters are searched; else every agent has the default values."""
    one_agent: bool = False
    """Whether one pod trains and the others are idle."""
    all_pods: bool = False
    """Whether the one agent trains on all pods."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `[evolution]`."""
    grows: bool = False
    """Whether the pod of the incumbent grows and shrinks."""
    by_clock: bool = False
    """Whether it grows with the clock, and not while the incumbent improves."""

    def speed(self, pods: int) -> float:
        """Returns the training of an agent per quantum, compared with one pod."""
        return pods**PODS_EXPONENT if self.all_pods else 1.0

    def pods(self, pods: int) -> int:
        """Returns the number of pods that train separate agents."""
        return 1 if self.one_agent else pods


ASSIGNMENT_QUANTA: Mapping[str, int] = dict.fromkeys(
    ("truncation", "dexpbt", "mf-pbt", "fire-pbt", "pb2", "gpbt"), QUANTA // 12
)
"""Quanta of an assignment, if not QUANTA / 6: a population takes turns on few pods."""
CONTROLS: Mapping[str, Contender] = {
    "vanilla": Contender("random-search", QUANTA, search=False, one_agent=True),
    "vanilla-all": Contender("random-search", QUANTA, search=False, one_agent=True, all_pods=True),
    "best-of-p": Contender("random-search", QUANTA, search=False),
    "random-short": Contender("random-search", QUANTA // 6),
    "random-long": Contender("random-search", QUANTA),
}


GROWING: Mapping[str, Contender] = {
    "incumbent-grows": Contender("incumbent", QUANTA // 6, grows=True),
    "incumbent-grows-by-clock": Contender("incumbent", QUANTA // 6, grows=True, by_clock=True),
}
"""Contenders whose pods change their size."""


def known() -> dict[str, Contender]:
    """Returns all contenders by name: the strategies of the leaderboard, those that grow, then the controls."""
    strategies = {
        name: Contender(name, ASSIGNMENT_QUANTA.get(name, QUANTA // 6))
        for name in STRATEGIES
        if name != "random-search"
    }
    return strategies | dict(GROWING) | dict(CONTROLS)


def specification_of(
    contender: Contender, pods: int, episodes: int, overrides: Sequence[tuple[str, Any]] = ()
) -> TournamentSpec:
    """Returns the resolved specification of a race, without the default values of its task.

    Args:
        contender: The contender.
        pods: Number of pods.
        episodes: Episodes of an evaluation.
        overrides: Dotted keys and values that replace those of a strategy, such as `evolution.tournament_size`.

    Raises:
        InvalidArgument: A key is unknown, a value out of range, or a setting does not belong to the strategy.
    """
    values: dict[str, Any] = {
        "name": "race",
        "environment": {"id": "cartpole"},
        "algorithms": {"ppo": {"hyperparameters": {name: dict(RANGES[name]) for name in SEARCHED}}},
        "pool": {"minimum_pods": contender.pods(pods), "maximum_pods": contender.pods(pods)},
        "objective": {"wall_clock_duration": f"{QUANTA * QUANTUM_SECONDS:g}s"},
        "assignment": {"environment_steps": round(contender.quanta * QUANTUM_STEPS * contender.speed(pods))},
        "evaluation": {
            "episodes": episodes,
            "every_environment_steps": round(QUANTUM_STEPS * contender.speed(pods)),
        },
        "evolution": {"strategy": contender.strategy, **_population_of(contender, pods), **contender.settings},
        "champion": {"reevaluate_top": REEVALUATED, "reevaluate_episodes": REEVALUATION * episodes},
    }
    if contender.grows:
        values["pod"] = {"cores": 1.0, "maximum_cores": float(max(2, pods))}
    for key, value in overrides:
        *tables, last = key.split(".")
        table = values
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = value
    return specification.resolve(specification.parse(values, source="race"))


def _population_of(contender: Contender, pods: int) -> dict[str, int]:
    """Returns the size of the population that a budget of so many assignments gives, if the strategy has one.

    Resolving would derive it from the typical rate of the environment, which the simulated pods do not have.
    """
    if "population_size" not in evolution_settings.SETTINGS[contender.strategy]:
        return {}
    count = contender.pods(pods)
    return {"population_size": budget.population_of(count * QUANTA / contender.quanta, count, starts=0)}

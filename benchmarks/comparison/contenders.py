"""Defines the contenders: podrace's strategies and controls, and the libraries that users take instead. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.comparison.tasks import ALGORITHM, DEFAULTS, DRAWN, LOG, Prior, Task, space_of
from leaderboard.evolution.space import spaces_of
from leaderboard.seeding import stream
from podrace.cli.grid.axes import digest
from podrace.specification import catalog, evolution_settings
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

PODS = 2
SHORT, LONG = 24, 4
"""Parts of the budget that an agent trains for: in short ones, 48 agents train in turn on two pods, in long ones 8."""
MOMENTS = 8
"""Points of the anytime curve before the end."""
ENDLESS_STEPS = 10**12
REEVALUATED = 4
SHORT_STRATEGIES = ("tournament", "softmax", "truncation", "dexpbt", "mf-pbt", "fire-pbt", "pb2", "generational")
"""Strategies that leave the length of an agent's training to the specification."""
RANDOM_SEARCH, FOUNDER_SHARE = "random-search", "founder_share"


@dataclass(frozen=True)
class Own:
    """A contender that is a tournament of podrace."""

    strategy: str
    parts: int = 0
    """Part of the budget that an agent trains for, 1 / parts; 0: the strategy decides."""
    search: bool = True
    """Whether hyperparameters are searched; else every agent has the values of the first one."""
    pods: int = PODS
    cores: int = 1
    """Cores of a pod."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys by table of the specification, for ablations."""
    algorithm: str = ALGORITHM


@dataclass(frozen=True)
class Peer:
    """A contender that is another library."""

    library: str
    """`optuna` or `ray`."""
    method: str
    """Optuna: its pruner. Ray Tune: its scheduler."""


Contender = Own | Peer

CONTROLS: Mapping[str, Own] = {
    "vanilla": Own(RANDOM_SEARCH, 1, search=False, pods=1),
    "vanilla-all": Own(RANDOM_SEARCH, 1, search=False, pods=1, cores=PODS),
    "best-of-2": Own(RANDOM_SEARCH, 1, search=False),
    "random-short": Own(RANDOM_SEARCH, SHORT),
    "random-long": Own(RANDOM_SEARCH, LONG),
}
PEERS: Mapping[str, Peer] = {
    "optuna-median": Peer("optuna", "median"),
    "optuna-halving": Peer("optuna", "halving"),
    "ray-pbt": Peer("ray", "pbt"),
    "ray-pb2": Peer("ray", "pb2"),
    "ray-asha": Peer("ray", "asha"),
}
ABLATIONS: Mapping[str, Own] = {
    "incumbent-without-founder": Own("incumbent", settings={"evolution": {"founder_share": 0}}),
    "incumbent-without-stops": Own("incumbent", settings={"evolution": {"stop_errors": 100}}),
    "incumbent-fresh-to-the-end": Own("incumbent", settings={"evolution": {"fresh_until": 1, "catch_up": 100}}),
    "incumbent-without-racing": Own("incumbent", settings={"evaluation": {"racing": False}}),
    "incumbent-grows": Own(
        "incumbent", settings={"pod": {"maximum_cores": PODS}, "pool": {"minimum_pods": 1}}
    ),
    "incumbent-ensemble": Own("incumbent", settings={"champion": {"ensemble": 3}}),
    "incumbent-sac": Own("incumbent", algorithm="sac"),
    "incumbent-sac-without-replay": Own(
        "incumbent", algorithm="sac", settings={"assignment": {"replay_bytes": 0}}
    ),
}  # fmt: skip
"""The strategy `incumbent` with one rule changed."""
SAC_SEARCHED: Mapping[str, Prior] = {"learning_rate": Prior(1e-5, 1e-1, LOG)}


def known() -> dict[str, Contender]:
    """Returns every contender that this version of podrace can run, by name."""
    strategies = {
        name: Own(name, SHORT if name in SHORT_STRATEGIES else 0)
        for name in catalog.STRATEGIES
        if name != RANDOM_SEARCH
    }
    ablations = {name: own for name, own in ABLATIONS.items() if own.strategy in catalog.STRATEGIES}
    return {**strategies, **CONTROLS, **ablations, **PEERS}


# --- specifications ----------------------------------------------------------------------------------------------


def values_of(contender: Own, task: Task, conditions: str, seed: int, seconds: float) -> dict[str, Any]:
    """Returns the specification of a tournament as read from TOML, without defaults.

    Args:
        contender: The contender.
        task: The task.
        conditions: Where the values of the first agent come from; one of tasks.CONDITIONS.
        seed: Seed of the run; it also decides the first values if they are unknown.
        seconds: Wall-clock budget.
    """
    assignment: dict[str, Any] = {}
    if contender.parts:
        assignment = {"environment_steps": ENDLESS_STEPS, "duration": f"{seconds / contender.parts:g}s"}
    values: dict[str, Any] = {
        "name": "comparison",
        "seed": seed,
        "environment": {"id": task.id, "count": task.count, "options": dict(task.options)},
        "algorithms": {contender.algorithm: {"hyperparameters": hyperparameters(contender, task, conditions, seed)}},
        "objective": {"wall_clock_duration": f"{seconds:g}s"},
        "pool": {"minimum_pods": contender.pods, "maximum_pods": contender.pods},
        "pod": {"cores": contender.cores, "layout": "separate" if contender.cores > 1 else "fused"},
        "assignment": assignment,
        "evaluation": {
            "every_environment_steps": task.every_steps,
            "options": dict(task.evaluation_options),
            "snapshot_period": f"{seconds / MOMENTS:g}s",
        },
        "evolution": {"strategy": contender.strategy},
        "champion": {"reevaluate_top": REEVALUATED},
    }
    if conditions in DRAWN and FOUNDER_SHARE in evolution_settings.SETTINGS.get(contender.strategy, {}):
        # The first agent's values are drawn, so no trial deserves time because of its values.
        values["evolution"][FOUNDER_SHARE] = 0
    for table, keys in contender.settings.items():
        values[table] = {**values[table], **keys}
    return values


def hyperparameters(contender: Own, task: Task, conditions: str, seed: int) -> dict[str, Any]:
    """Returns the table of hyperparameters; every contender has the same first values at the same seed."""
    on_policy = contender.algorithm == ALGORITHM
    space = space_of(conditions) if on_policy else SAC_SEARCHED
    fixed = dict(task.fixed) if on_policy else {key: task.fixed[key] for key in ("hidden_sizes",) if key in task.fixed}
    table: dict[str, Any] = {**fixed, **{name: searched(prior) for name, prior in space.items()}}
    declared = catalog.ALGORITHMS[contender.algorithm].hyperparameters
    first = {name: declared[name].default for name in space}
    if conditions in DRAWN:
        first = first_values(table, contender.algorithm, seed)
    for name, value in first.items():
        # A bare value is fixed. Without one, podrace would search within its usual range.
        table[name] = {**table[name], "value": value} if contender.search else value
    return table


def searched(prior: Prior) -> dict[str, Any]:
    """Returns the range of a hyperparameter."""
    return {"low": prior.low, "high": prior.high, "scale": prior.scale}


def first_values(table: Mapping[str, Any], algorithm: str, seed: int) -> dict[str, Any]:
    """Draws the values of the first agent from the ranges of a table, as podrace draws those of a fresh agent."""
    values = {
        "name": "prior",
        "environment": {"id": "pendulum"},
        "algorithms": {algorithm: {"hyperparameters": dict(table)}},
        "objective": {"environment_steps": 1},
        "pool": {"maximum_pods": 1},
    }
    spec = specification.resolve(specification.parse(values, source="prior"))
    random = stream(seed, "comparison/first", 0)
    drawn = {name: space.draw(random) for name, space in spaces_of(algorithm, spec.algorithms[algorithm]).items()}
    return {name: int(v) if isinstance(v, float) and v.is_integer() and v > 1 else v for name, v in drawn.items()}


def resolved(values: Mapping[str, Any], source: str) -> TournamentSpec:
    """Returns the resolved specification; raises InvalidArgument as podrace.specification.resolve."""
    return specification.resolve(specification.parse(dict(values), source=source))


def peer_values(contender: Peer, name: str, task: Task, conditions: str, seed: int, seconds: float) -> dict[str, Any]:
    """Returns the request to the process of another library; see sb3_trial.Study for the keys."""
    spec = resolved(values_of(CONTROLS["vanilla"], task, DEFAULTS, seed, seconds), name)
    given = spec.algorithms[ALGORITHM].hyperparameters
    space = space_of(conditions)
    return {
        "method": contender.method,
        "environment": task.id,
        "count": task.count,
        "options": dict(task.options),
        "evaluation_options": task.evaluation(),
        "defaults": {key: _plain(given[key].value) for key in sorted(given)},
        "priors": {key: vars(prior) for key, prior in space.items()},
        "first_default": conditions not in DRAWN,
        "seed": seed,
        "seconds": seconds,
        "every_steps": task.every_steps,
        "trial_steps": task.trial_steps,
        "episodes": task.score_episodes,
        "cores": PODS,
        "moments": MOMENTS,
    }


def settings_digest(values: Mapping[str, Any]) -> str:
    """Returns the digest of what a run is asked to do; it does not depend on defaults of podrace."""
    return digest({key: value for key, value in values.items() if key != "name"})


def _plain(value: Any) -> Any:
    from google.protobuf import json_format

    found = json_format.MessageToDict(value)
    numbers = found if isinstance(found, list) else [found]
    whole = [int(one) if isinstance(one, float) and one.is_integer() and abs(one) > 1 else one for one in numbers]
    return whole if isinstance(found, list) else whole[0]

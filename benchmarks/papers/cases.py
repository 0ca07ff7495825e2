"""Defines the runs of `paper.py`: examples/paper-*.toml, reduced for this machine, for podrace and the peers. Pure.

All contenders have the same budget, network and update work: a peer gets the resolved hyperparameters of podrace's
vanilla agent, under podrace's names. The trading task uses no normalization in PPO, because RLlib cannot normalize
rewards. Ant and Humanoid use it for observations and rewards, and in RLlib only for observations.
"""

import copy
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from harness.races import Race
from loops.process import Request

from papers.curve import EPISODES_OPTION, REPORT, TRAIN, VALIDATION
from podrace.cli.grid.axes import digest
from podrace.specification import resolve as specification
from podrace.specification.files import to_toml

EXAMPLES = Path(__file__).parents[2] / "examples"
STOCKS, MUJOCO = "stocks", ("ant", "humanoid")
MIXED, VANILLA, TOURNAMENT = "ppo:sac:td3", "vanilla", "tournament"
SB3, RLLIB = "stable-baselines3", "rllib"
ALONE = ("ppo", "sac", "td3")
OWN_CONTENDERS = {STOCKS: (VANILLA, *ALONE, MIXED), **dict.fromkeys(MUJOCO, (VANILLA, TOURNAMENT))}
"""podrace's contenders by case, in the order of the table."""
PODS, CORES = 2, 2
SCORES = 8
"""Evaluations during training of a vanilla agent or a peer; a tournament has twice as many, every half as many
steps."""
STOCKS_COUNT, MUJOCO_COUNT = 64, 16
STEPS_UNIT = 2 * SCORES * STOCKS_COUNT * 64
"""Steps of a trading run are a multiple of this, so that every assignment has whole rollouts, and all have whole
rounds."""
EPISODES = 32
EPISODES_ON_THE_WAY = 8
"""Evaluation episodes during training of Ant and Humanoid: one takes as long as a thousand training steps,
and counts as training time."""
FRESH = "fresh"
REPLAY_STEPS = 100_000
ENDLESS_STEPS, ENDLESS_SECONDS = 10**12, 1e9

FIVE_MINUTES: Mapping[str, Any] = {
    # Layout minute has raw prices; `scaled` has the same state, scaled for a network without normalization.
    "layout": "scaled",
    "train_start": "",
    "train_end": "2022-12-01",
    "validation_end": "2023-02-01",
    "backtest_end": "2023-06-23",
    "ignored_shares": 10,
}
"""Changes of the papers' options for five-minute bars of 2022 and 2023."""
PLAIN = {
    "ppo": {"normalize_observations": False, "normalize_rewards": False},
    # One gradient step per batch of environment steps: one per environment step would take a night on this machine.
    "sac": {"normalize_observations": False, "updates_per_step": 1 / STOCKS_COUNT, "replay_capacity": REPLAY_STEPS},
    "td3": {"normalize_observations": False, "updates_per_step": 1 / STOCKS_COUNT, "replay_capacity": REPLAY_STEPS},
}


@dataclass(frozen=True)
class Budget:
    """The budget of every contender: total environment steps of the trading task, training seconds of the others."""

    steps: int
    seconds: float


@dataclass(frozen=True)
class PeerJob:
    """One run of a peer."""

    case: str
    peer: str
    seed: int
    request: Request

    @property
    def name(self) -> str:
        """A name that is equal for equal work; the folder of the data does not matter."""
        values = json.loads(json.dumps(vars(self.request)))
        for options in values["options"].values():
            options["path"] = Path(options.get("path", "")).name
        return f"{self.case}-{self.peer}-{digest(values)}"


def example(case: str) -> dict[str, Any]:
    """Reads the papers' file."""
    return tomllib.loads((EXAMPLES / f"paper-{case}.toml").read_text())


# --- podrace -----------------------------------------------------------------------------------------------------


def race(case: str, contender: str, seed: int, budget: Budget, data: str) -> Race:
    """Makes one of podrace's runs."""
    values = stocks(contender, budget.steps, data) if case == STOCKS else mujoco(case, contender, budget.seconds)
    return Race(case, contender, seed, values)


def stocks(contender: str, steps: int, data: str) -> dict[str, Any]:
    """Makes the trading task for one contender.

    Raises:
        SystemExit: No data is given.
    """
    if not data:
        raise SystemExit("--data: the case stocks needs prices; see --help")
    values = example(STOCKS)
    values["environment"] |= {"count": STOCKS_COUNT}
    values["environment"]["options"] |= {**FIVE_MINUTES, "path": data}
    if data.startswith("synthetic:"):
        # Their default split dates depend on their days.
        for name in ("train_start", "train_end", "validation_end", "backtest_end"):
            values["environment"]["options"].pop(name)
    names = ALONE if contender == MIXED else ("ppo",) if contender == VANILLA else (contender,)
    values["algorithms"] = {name: values["algorithms"][name] for name in names}
    for name, algorithm in values["algorithms"].items():
        algorithm["hyperparameters"] |= PLAIN[name]
    values["objective"] = {"environment_steps": steps}
    # In synchronous rounds the steps are exact, and the same seed gives the same champion.
    values["synchronous"] = True
    return scaled(values, contender, steps, assignment_steps=steps // (2 * SCORES), every_steps=steps // SCORES)


def mujoco(case: str, contender: str, seconds: float) -> dict[str, Any]:
    """Makes Ant or Humanoid for one contender."""
    values = example(case)
    values["environment"]["count"] = MUJOCO_COUNT
    values["objective"] = {"wall_clock_duration": f"{seconds:g}s"}
    # Every evaluation that is due takes place; a peer has as many, and they do not count as training time.
    values["evaluation"]["share"] = 1.0
    every_steps = max(10_000, int(seconds * 500))
    # A vanilla agent trains until the end. One of the tournament trains for about half of the time, but at most as long
    # as in the papers' file. Ant's return falls in its first million steps: if agents were selected earlier, those that
    # stand still would win.
    agent_steps = min(values["assignment"]["environment_steps"], 4 * every_steps)
    values = scaled(values, contender, ENDLESS_STEPS, assignment_steps=agent_steps, every_steps=every_steps)
    values["evaluation"]["episodes"] = EPISODES_ON_THE_WAY
    return values


def scaled(
    values: dict[str, Any], contender: str, steps: int, *, assignment_steps: int, every_steps: int
) -> dict[str, Any]:
    """Sizes a run for two cores: one pod with both for a vanilla agent, two pods of one core for a tournament.

    Args:
        values: The papers' specification.
        contender: The contender that the specification is for.
        steps: Steps of a vanilla agent.
        assignment_steps: Steps of each agent of a tournament.
        every_steps: Steps between two evaluations of a vanilla agent; half as many in a tournament.
    """
    values = copy.deepcopy(values)
    vanilla = contender == VANILLA
    for name in ("name", "seed"):
        values.pop(name)
    pods = 1 if vanilla else PODS
    values["pool"] = {"minimum_pods": pods, "maximum_pods": pods}
    layout = "separate" if vanilla else "fused"
    values["pod"] = {"cores": CORES // pods, "layout": layout}
    values["assignment"] = {"environment_steps": steps if vanilla else assignment_steps}
    values["evaluation"]["episodes"] = EPISODES
    values["evaluation"]["every_environment_steps"] = every_steps if vanilla else max(1, every_steps // 2)
    values["evolution"] |= (
        {"strategy": "random-search"} if vanilla else {"initial_agents": 2 * len(values["algorithms"])}
    )
    return values


# --- the peers ---------------------------------------------------------------------------------------------------


def peer_job(case: str, peer: str, seed: int, budget: Budget, data: str) -> PeerJob:
    """Makes one run of a peer, with the settings of podrace's vanilla agent."""
    values = race(case, VANILLA, seed, budget, data).values
    resolved = race(case, VANILLA, seed, budget, data).cell().spec
    given = resolved.algorithms["ppo"].hyperparameters
    settings = {name: plain(json_format.MessageToDict(given[name].value)) for name in given}
    options = trading_options(values) if case == STOCKS else {REPORT + FRESH: {EPISODES_OPTION: EPISODES}}
    request = Request(
        "curve",
        "ppo",
        STOCKS if case == STOCKS else resolved.environment.id.removeprefix("mujoco:"),
        resolved.environment.count,
        settings,
        seed,
        every_steps=resolved.evaluation.every_environment_steps,
        limit_steps=budget.steps if case == STOCKS else ENDLESS_STEPS,
        limit_seconds=ENDLESS_SECONDS if case == STOCKS else budget.seconds,
        options=options,
    )
    return PeerJob(case, peer, seed, request)


def plain(value: Any) -> Any:
    """Turns whole numbers to int: a Struct holds only floats."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) > 1 else value


def trading_options(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the options for training, for evaluations and for reports of a peer."""
    training = values["environment"]["options"]
    found = {TRAIN: training, VALIDATION: {**training, **values["evaluation"]["options"]}}
    for name, report in values["reports"].items():
        found[REPORT + name] = {**training, **report["options"], EPISODES_OPTION: report["episodes"]}
    return found


def resolved_toml(values: Mapping[str, Any], name: str) -> str:
    """Returns a resolved specification as TOML, for other benchmarks."""
    return to_toml(specification.resolve(specification.parse({**values, "name": name}, source=name)))

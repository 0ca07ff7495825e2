"""Owns what `paper.py` runs: the files examples/paper-*.toml, cut down to this machine, for us and for the peers. Pure.

Everybody has the same budget, network and update work: what a peer is asked for are the hyperparameters of our vanilla
agent, resolved, under our names. Of PPO's normalisers the trading task has none, because RLlib cannot normalise
rewards; Ant and Humanoid have both, and RLlib has the one of observations.
"""

import copy
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from loops.process import Request
from races import Race

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
"""Of each case, in the order of the table."""
PODS, CORES = 2, 2
SCORES = 8
"""Scores on the way of a vanilla agent or a peer; a tournament has twice as many candidates, of half as many steps."""
STOCKS_COUNT, MUJOCO_COUNT = 64, 16
STEPS_UNIT = 2 * SCORES * STOCKS_COUNT * 64
"""Steps of a trading run are a multiple of this: whole rollouts in every assignment, whole rounds in all."""
EPISODES = 32
EPISODES_ON_THE_WAY = 8
"""Of Ant and Humanoid: an episode takes as long as a thousand steps of training, and ours pay for theirs."""
FRESH = "fresh"
REPLAY_STEPS = 100_000
ENDLESS_STEPS, ENDLESS_SECONDS = 10**12, 1e9

FIVE_MINUTES: Mapping[str, Any] = {
    # The minute layout counts in raw prices; ours holds the same state, scaled for a network without a normaliser.
    "layout": "scaled",
    "train_start": "",
    "train_end": "2022-12-01",
    "validation_end": "2023-02-01",
    "backtest_end": "2023-06-23",
    "ignored_shares": 10,
}
"""What differs from the papers' options for the five-minute bars of 2022 and 2023."""
PLAIN = {
    "ppo": {"normalize_observations": False, "normalize_rewards": False},
    # A gradient step for every batch of environment steps: one for each of them is a night's work here.
    "sac": {"normalize_observations": False, "updates_per_step": 1 / STOCKS_COUNT, "replay_capacity": REPLAY_STEPS},
    "td3": {"normalize_observations": False, "updates_per_step": 1 / STOCKS_COUNT, "replay_capacity": REPLAY_STEPS},
}


@dataclass(frozen=True)
class Budget:
    """What everybody gets: environment steps in all of the trading task, seconds of training of the others."""

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
        """The same for the same work, of which the place of the data is no part."""
        values = json.loads(json.dumps(vars(self.request)))
        for options in values["options"].values():
            options["path"] = Path(options.get("path", "")).name
        return f"{self.case}-{self.peer}-{digest(values)}"


def example(case: str) -> dict[str, Any]:
    """The papers' file as it stands."""
    return tomllib.loads((EXAMPLES / f"paper-{case}.toml").read_text())


# --- ours --------------------------------------------------------------------------------------------------------


def race(case: str, contender: str, seed: int, budget: Budget, data: str) -> Race:
    """One of our runs."""
    values = stocks(contender, budget.steps, data) if case == STOCKS else mujoco(case, contender, budget.seconds)
    return Race(case, contender, seed, values)


def stocks(contender: str, steps: int, data: str) -> dict[str, Any]:
    """The trading task for one contender.

    Raises:
        SystemExit: There is no data.
    """
    if not data:
        raise SystemExit("--data: the case stocks needs prices; see --help")
    values = example(STOCKS)
    values["environment"] |= {"count": STOCKS_COUNT}
    values["environment"]["options"] |= {**FIVE_MINUTES, "path": data}
    if data.startswith("synthetic:"):
        # They are cut where their own days are.
        for name in ("train_start", "train_end", "validation_end", "backtest_end"):
            values["environment"]["options"].pop(name)
    names = ALONE if contender == MIXED else ("ppo",) if contender == VANILLA else (contender,)
    values["algorithms"] = {name: values["algorithms"][name] for name in names}
    for name, algorithm in values["algorithms"].items():
        algorithm["hyperparameters"] |= PLAIN[name]
    values["objective"] = {"environment_steps": steps}
    # In rounds the steps are exactly those, and the same seed gives the same champion.
    values["synchronous"] = True
    return scaled(values, contender, steps, assignment_steps=steps // (2 * SCORES), every_steps=steps // SCORES)


def mujoco(case: str, contender: str, seconds: float) -> dict[str, Any]:
    """Ant or Humanoid for one contender."""
    values = example(case)
    values["environment"]["count"] = MUJOCO_COUNT
    values["objective"] = {"wall_clock_duration": f"{seconds:g}s"}
    # Whenever it is due: a peer is scored as often, and the clock stands still for it meanwhile.
    values["evaluation"]["share"] = 1.0
    every_steps = max(10_000, int(seconds * 500))
    # A vanilla agent never ends; one of the tournament trains for about half of the time, at most as long as in the
    # papers' file. Ant loses for its first million steps, and whoever is followed up sooner has learned to stand still.
    agent_steps = min(values["assignment"]["environment_steps"], 4 * every_steps)
    values = scaled(values, contender, ENDLESS_STEPS, assignment_steps=agent_steps, every_steps=every_steps)
    values["evaluation"]["episodes"] = EPISODES_ON_THE_WAY
    return values


def scaled(
    values: dict[str, Any], contender: str, steps: int, *, assignment_steps: int, every_steps: int
) -> dict[str, Any]:
    """Two cores: a pod that has both for a vanilla agent, two pods of one each for a tournament.

    Args:
        values: The papers' specification.
        contender: Whose it becomes.
        steps: Of a vanilla agent.
        assignment_steps: Of each agent of a tournament.
        every_steps: From one score to the next of a vanilla agent; a tournament has twice as many.
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
    """One run of a peer: what our vanilla agent is given."""
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
    """Whole numbers as such: a message has only one kind of number."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) > 1 else value


def trading_options(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a peer learns in, is scored in, and is told by."""
    training = values["environment"]["options"]
    found = {TRAIN: training, VALIDATION: {**training, **values["evaluation"]["options"]}}
    for name, report in values["reports"].items():
        found[REPORT + name] = {**training, **report["options"], EPISODES_OPTION: report["episodes"]}
    return found


def resolved_toml(values: Mapping[str, Any], name: str) -> str:
    """A specification as a file for other benchmarks."""
    return to_toml(specification.resolve(specification.parse({**values, "name": name}, source=name)))

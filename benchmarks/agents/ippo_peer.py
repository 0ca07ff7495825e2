"""Compares `ippo` with the independent PPO of a public implementation, on simple spread and simple tag of mpe2.

The public implementation is PPO of Stable-Baselines3 with parameters shared by all agents, by the recipe of
PettingZoo's tutorial (loops/sb3_team.py). Each contender trains for the same number of environment steps on one thread.
Then all play the same episodes of mpe2, greedily. The return of a team is the sum over its learning agents.

    spread   simple_spread_v3: three agents, discrete actions, 25 steps, local_ratio = 0.5
    tag      simple_tag_v3: three adversaries learn, discrete actions, 25 steps; the prey acts at random

Contenders, all with the team's reward for each agent:
    ippo          podrace's, in its own batched version of the environment, which tests compare with mpe2 step by step
    ippo-mpe2     the same, trained in mpe2 as the others
    sb3           Stable-Baselines3, with the hyperparameters and normalization of `ippo`
    sb3-tutorial  Stable-Baselines3 with its defaults and batch_size = 256, 8 environments, nothing normalized
    random        acts at random; not trained

The other library needs a separate Python environment:

    python3 -m venv peer
    peer/bin/pip install torch==2.13.0 stable-baselines3==2.9.2 supersuit==3.11.0 mpe2==1.1.1 gymnasium==1.4.0
    python -m benchmarks.agents.ippo_peer --python peer/bin/python [--quick]

Prints one JSON object per run, then a table.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentpod.algorithms import make
from agentpod.experience.rollout import Lanes, collect, rollout_fields
from agentpod.models.actors import Actor, PolicyActor
from agentpod.roles.episodes import play
from agentpod.seeding import derive_generator, derive_seed
from podrace.telemetry import TelemetryConfig, configure_logging
from simulators import make as make_simulator

EVALUATION_SEED = 20_261_126
COUNT = 16
"""Environments in which a contender trains, unless said otherwise."""
IPPO = {
    "horizon": 25,
    "learning_rate": 7e-4,
    "entropy_coefficient": 0.01,
    "epochs": 10,
    "minibatch_size": 600,
    "shared_reward": True,
}
"""Hyperparameters that differ from the defaults; those of the learning tests."""
SB3 = {
    "n_steps": 25,
    "learning_rate": 7e-4,
    "ent_coef": 0.01,
    "n_epochs": 10,
    "batch_size": 600,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
"""The same under the names of Stable-Baselines3; its networks are ours by default: two layers of 64, tanh."""
SB3_CONTENDERS: Mapping[str, Mapping[str, Any]] = {
    "sb3": {"count": COUNT, "normalize": True, "settings": SB3},
    "sb3-tutorial": {"count": 8, "normalize": False, "settings": {"batch_size": 256}},
}
CONTENDERS = ("random", "ippo", "ippo-mpe2", *SB3_CONTENDERS)


@dataclass(frozen=True)
class Task:
    """One environment, for podrace and as a module of mpe2."""

    own: str
    own_options: Mapping[str, object]
    module: str
    options: Mapping[str, object]
    """Arguments of the module's `parallel_env`."""
    silent: tuple[str, ...]
    """Agents that act at random."""

    def make_mpe2(self, count: int) -> Any:
        """Makes `count` environments of mpe2."""
        return make_simulator(f"pettingzoo:{self.module}", count, {**self.options, "random_agents": list(self.silent)})

    def make_own(self, count: int) -> Any:
        """Makes `count` environments of podrace."""
        return make_simulator(self.own, count, self.own_options)


TASKS = {
    "spread": Task("spread", {}, "mpe2.simple_spread_v3", {"N": 3, "local_ratio": 0.5, "max_cycles": 25}, ()),
    "tag": Task("tag", {"prey_policy": "random"}, "mpe2.simple_tag_v3", {"max_cycles": 25}, ("agent_0",)),
}


@dataclass(frozen=True)
class Run:
    """The result of one contender with one seed."""

    task: str
    contender: str
    seed: int
    team_return: float
    standard_error: float
    """Over the episodes."""
    steps: int
    processor_seconds: float
    """Of the training, environments included."""


class Perceptron:
    """Acts greedily with the actor of Stable-Baselines3. See agentpod.models.actors.Actor for the methods."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def act(self, observation: Tensor) -> Tensor:
        """See Actor.act."""
        return scores(self._tensors, observation).argmax(-1)

    def reset(self, done: Tensor) -> None:
        """See Actor.reset; it has no state."""

    def begin(self, batch: int) -> None:
        """See Actor.begin; it has no state."""


class Random(Perceptron):
    """Acts uniformly at random."""

    def __init__(self, choices: int) -> None:
        self._choices, self._generator = choices, torch.Generator().manual_seed(1)

    def act(self, observation: Tensor) -> Tensor:
        """See Actor.act."""
        return torch.randint(self._choices, (len(observation),), generator=self._generator)


def scores(tensors: Mapping[str, Tensor], observation: Tensor) -> Tensor:
    """Returns the outputs of tanh layers `weight0`, `bias0`, ... for observations [N, D]: [N, choices].

    With `mean` and `deviation`, observations are normalized and limited to 10, as by VecNormalize.
    """
    if "mean" in tensors:
        observation = ((observation - tensors["mean"]) / tensors["deviation"]).clamp(-10.0, 10.0)
    last = sum(name.startswith("weight") for name in tensors) - 1
    for number in range(last + 1):
        observation = observation @ tensors[f"weight{number}"].T + tensors[f"bias{number}"]
        if number < last:
            observation = observation.tanh()
    return observation


def train_own(simulator: Any, seed: int, steps: int, discount: float) -> tuple[Any, int]:
    """Trains `ippo` for at least so many environment steps; returns its policy and the steps."""
    spaces = simulator.observation_space, simulator.action_space
    algorithm: Any = make("ippo", *spaces, {**IPPO, "discount": discount}, seed)
    horizon, count, agents = algorithm.memory.horizon, simulator.count, spaces[0].lanes
    fields = rollout_fields(*spaces, horizon, count)
    tensors = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
    lanes, taken = Lanes.start(simulator.reset(derive_seed(seed, "reset", 0)), agents=agents), 0
    while taken < steps:
        generator = derive_generator("cpu", seed, "act", 0, algorithm.update_number)
        lanes = collect(simulator, algorithm.policy, tensors, lanes, generator).lanes
        algorithm.update(tensors)
        taken += horizon * count // agents
    return algorithm.policy, taken


def train_sb3(
    task: Task, contender: str, seed: int, steps: int, discount: float, python: str
) -> tuple[Actor, int, float]:
    """Trains in another interpreter; returns the actor, environment steps and processor seconds."""
    variant = SB3_CONTENDERS[contender]
    request = {
        "module": task.module,
        "options": task.options,
        "silent": task.silent,
        "seed": seed,
        "steps": steps,
        **variant,
        "settings": {**variant["settings"], "gamma": discount},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.pt"
        command = [python, "-m", "loops.sb3_team", json.dumps(request), str(file)]
        # The folder of the package `loops`; that Python has none of podrace's packages.
        found = subprocess.run(command, cwd=Path(__file__).parents[1], check=True, stdout=subprocess.PIPE)
        answer = json.loads(found.stdout.splitlines()[-1])
        return Perceptron(torch.load(file)), answer["steps"], answer["seconds"]


def run(name: str, contender: str, seed: int, options: argparse.Namespace) -> Run:
    """Trains a contender and plays the episodes that are the same for all."""
    steps, episodes, discount = options.steps, options.episodes, options.discount
    task, taken, seconds = TASKS[name], 0, 0.0
    evaluated = task.make_mpe2(episodes)
    actor: Actor
    if contender == "random":
        actor = Random(evaluated.action_space.n)
    elif contender in SB3_CONTENDERS:
        actor, taken, seconds = train_sb3(task, contender, seed, steps, discount, options.python)
    else:
        began = time.process_time()
        simulator = task.make_mpe2(COUNT) if contender == "ippo-mpe2" else task.make_own(COUNT)
        policy, taken = train_own(simulator, seed, steps, discount)
        seconds = time.process_time() - began
        actor = PolicyActor(policy, evaluated.count, torch.Generator(), greedy=True)
    with torch.no_grad():
        returns = play(evaluated, actor, episodes, EVALUATION_SEED).returns
    error = float(returns.std()) / math.sqrt(episodes)
    return Run(name, contender, seed, round(float(returns.mean()), 2), round(error, 2), taken, round(seconds, 1))


def table(runs: Iterable[Run]) -> str:
    """Returns a Markdown table: a row for each contender of each task, with the returns of all seeds."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for one in runs:
        groups.setdefault((one.task, one.contender), []).append(one)
    lines = [
        "| Task | Contender | Return of the team, by seed | Environment steps | Processor seconds |",
        "|" + "---|" * 5,
    ]
    for (task, contender), found in groups.items():
        returns = ", ".join(f"{one.team_return:.1f} ± {one.standard_error:.1f}" for one in found)
        seconds = sum(one.processor_seconds for one in found) / len(found)
        lines.append(f"| `{task}` | {contender} | {returns} | {found[0].steps:,} | {seconds:.0f} |")
    return "\n".join(lines)


def chosen(text: str, known: Sequence[str], option: str) -> list[str]:
    """Splits a list of names; raises SystemExit for an unknown one."""
    names = text.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"{option} {name}: choose among {', '.join(known)}")
    return names


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has Stable-Baselines3 and SuperSuit")
    parser.add_argument("--quick", action="store_true", help="one seed, 2,000 steps, 16 episodes")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--contenders", default="random,ippo,sb3", help=", ".join(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300_000, help="environment steps of a training")
    parser.add_argument("--discount", type=float, default=0.99, help="of all contenders")
    parser.add_argument("--episodes", type=int, default=256, help="episodes of an evaluation")
    options = parser.parse_args()
    configure_logging(TelemetryConfig(log_level="error"))
    torch.set_num_threads(1)
    if options.quick:
        options.seeds, options.steps, options.episodes = 1, 2000, 16
    runs = []
    tasks = chosen(options.tasks, list(TASKS), "--tasks")
    contenders = chosen(options.contenders, CONTENDERS, "--contenders")
    for name in tasks:
        for seed in range(1, options.seeds + 1):
            # A random policy is not trained, so one seed says all.
            for contender in contenders if seed == 1 else [one for one in contenders if one != "random"]:
                runs.append(run(name, contender, seed, options))
                print(json.dumps(vars(runs[-1])), flush=True)
    print("\n" + table(runs))


if __name__ == "__main__":
    main()

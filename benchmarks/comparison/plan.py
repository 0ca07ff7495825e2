"""Lists the runs of the comparison in order, and estimates how long they take. Pure.

Within a block, runs are ordered by seed, then task, then contender: what is compared with each other runs alternately,
and an interrupted comparison has every contender at the same seeds.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.comparison.contenders import ABLATIONS, PEERS
from benchmarks.comparison.tasks import DEFAULTS, FIRST_DEFAULT, TASKS, UNKNOWN, UNKNOWN_LONG

PEER_TASKS = ("pendulum", "lunarlander", "docking")
UNKNOWN_TASKS = ("pendulum", "acrobot", "lunarlander", "docking", "swing", "stocks")
ABLATION_TASKS = ("pendulum", "docking", "stocks")
DEFAULTS_TASKS = ("ant", "halfcheetah", "lunarlander", "stocks")
REPLAY_ABLATIONS = ("incumbent-sac", "incumbent-sac-without-replay")
GROWTH = "incumbent-grows"
SEPARATE = (*REPLAY_ABLATIONS, GROWTH)
"""Ablations that do not belong to the block of the others."""
REPLAY_TASKS = ("pendulum",)
SLOW_EVALUATION_SECONDS = {"ant": 80.0, "halfcheetah": 30.0, "lunarlander": 40.0, "stocks": 15.0}
"""Seconds that fresh episodes take on an idle machine of two cores, where it is more than EVALUATION_SECONDS."""
EVALUATION_SECONDS = 8.0
STARTUP_SECONDS = {"ray": 20.0, "optuna": 10.0}
OWN_STARTUP_SECONDS = 6.0
"""Seconds from the start of a run to the end of its mesh, without the budget."""


@dataclass(frozen=True)
class Block:
    """Runs that belong together."""

    regime: str
    """Name that `--regime` selects."""
    conditions: str
    tasks: Sequence[str]
    contenders: Sequence[str]
    seeds: int
    purpose: str


@dataclass(frozen=True)
class Run:
    """One run of the plan."""

    regime: str
    conditions: str
    task: str
    contender: str
    seed: int
    seconds: float
    """Wall-clock budget."""

    @property
    def expected_seconds(self) -> float:
        """Duration of the run with its evaluation on fresh episodes."""
        peer = PEERS.get(self.contender)
        startup = STARTUP_SECONDS[peer.library] if peer else OWN_STARTUP_SECONDS
        return self.seconds + startup + SLOW_EVALUATION_SECONDS.get(self.task, EVALUATION_SECONDS)


BLOCKS: Sequence[Block] = (
    Block(
        "unknown", UNKNOWN, UNKNOWN_TASKS,
        ("incumbent", "asha", "random-long", "tournament", "vanilla", "best-of-2"), 10,
        "nothing is known about the hyperparameters",
    ),
    Block(
        "peers", UNKNOWN_LONG, PEER_TASKS, ("asha", "random-long", "ray-pbt", "optuna-median"), 5,
        "other libraries, with a budget that lets them score several trials",
    ),
    Block(
        "defaults", DEFAULTS, DEFAULTS_TASKS, ("incumbent", GROWTH, "vanilla-all", "best-of-2", "tournament"), 5,
        "the library's defaults are good",
    ),
    Block(
        "ablations", DEFAULTS, ABLATION_TASKS, ("incumbent", *(n for n in ABLATIONS if n not in SEPARATE)), 5,
        "the strategy incumbent with one rule changed",
    ),
    Block(
        "ablations", DEFAULTS, REPLAY_TASKS, REPLAY_ABLATIONS, 5, "replay memories of off-policy agents are inherited",
    ),
    Block(
        "peers", UNKNOWN_LONG, PEER_TASKS, ("optuna-halving", "ray-pb2", "ray-asha"), 1,
        "other methods of these libraries",
    ),
    Block(
        "strategies", UNKNOWN, UNKNOWN_TASKS, ("truncation", "pb2", "random-short", "vanilla-all"), 2,
        "the other strategies and controls",
    ),
    Block(
        "first-default", FIRST_DEFAULT, PEER_TASKS, ("incumbent", "random-long"), 2,
        "as unknown, but the first agent of each has the library's defaults",
    ),
)  # fmt: skip
"""In the order in which they run: what matters most comes first."""
REGIMES = tuple(dict.fromkeys(block.regime for block in BLOCKS))


@dataclass(frozen=True)
class Choice:
    """Which runs of the plan are wanted; empty: all."""

    regimes: Collection[str] = ()
    tasks: Collection[str] = ()
    contenders: Sequence[str] = ()
    """Contenders to run instead of those of the plan."""
    seeds: int = 0
    """Number of seeds instead of the plan's; 0: the plan's."""
    seconds: float = 0.0
    """Wall-clock budget instead of the tasks'; 0: the tasks'."""
    first_seed: int = 1


def runs(choice: Choice, known: Collection[str]) -> list[Run]:
    """Returns the wanted runs in order.

    Args:
        choice: Which runs are wanted.
        known: Contenders that this version can run; others of the plan are left out.
    """
    found: dict[Run, None] = {}
    for block in BLOCKS:
        if not choice.regimes or block.regime in choice.regimes:
            found |= dict.fromkeys(_of_block(block, choice, known))
    return list(found)


def _of_block(block: Block, choice: Choice, known: Collection[str]) -> Iterator[Run]:
    for seed in range(choice.first_seed, choice.first_seed + (choice.seeds or block.seeds)):
        for task in block.tasks:
            if choice.tasks and task not in choice.tasks:
                continue
            for name in choice.contenders or block.contenders:
                if name in known and (name not in PEERS or task in PEER_TASKS):
                    seconds = choice.seconds or TASKS[task].budget(block.conditions)
                    yield Run(block.regime, block.conditions, task, name, seed, seconds)


def unknown_contenders(known: Collection[str]) -> list[str]:
    """Returns the contenders of the plan that this version cannot run."""
    return sorted({name for block in BLOCKS for name in block.contenders} - set(known))


def plan_table(wanted: Sequence[Run], done: Collection[Run]) -> Iterator[str]:
    """Yields a Markdown table of the hours per regime.

    Args:
        wanted: The runs.
        done: Those of them that have a row.
    """
    yield "| regime | runs | done | hours | hours left | tasks | contenders |"
    yield "|---|---|---|---|---|---|---|"
    total = left = 0.0
    for regime in dict.fromkeys(run.regime for run in wanted):
        own = [run for run in wanted if run.regime == regime]
        hours = sum(run.expected_seconds for run in own) / 3600
        open_hours = sum(run.expected_seconds for run in own if run not in done) / 3600
        total, left = total + hours, left + open_hours
        tasks, names = (", ".join(dict.fromkeys(getattr(run, name) for run in own)) for name in ("task", "contender"))
        finished = sum(run in done for run in own)
        yield f"| {regime} | {len(own)} | {finished} | {hours:.1f} | {open_hours:.1f} | {tasks} | {names} |"
    yield f"| total | {len(wanted)} | {len(set(done) & set(wanted))} | {total:.1f} | {left:.1f} | | |"

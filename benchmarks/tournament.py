"""Compares podrace's tournament with what users take instead, at equal wall clock.

A contender is a strategy of podrace on two pods of one core, a control, or another library with Stable-Baselines3:

    vanilla, vanilla-all         one agent on one core; on both cores
    best-of-2                    two agents that differ only in their seed
    random-short, random-long    new agents only: 48 short ones or 8 long ones
    optuna-median, -halving      Optuna: TPE with the median pruner or the successive-halving pruner
    ray-pbt, -pb2, -asha         Ray Tune with this scheduler

Each run is one row of FOLDER/tournament.csv (default: docs/results), with a curve file. Runs that have a row are not
repeated, so the same command continues after a stop, also on another machine. What is compared runs alternately: seed
by seed, task by task, contender by contender. A failed run is repeated by the next command.

Final policies are evaluated by the same code (`final_return`) on 512 fresh episodes, which were not used for selection
and are the same for all contenders of a seed. Curves are those of the policy that the contender would have delivered at
that time.

    python benchmarks/tournament.py --plan                       # runs and hours of each regime
    python benchmarks/tournament.py --hours 4                    # what matters most first
    python benchmarks/tournament.py --regime unknown --tasks pendulum,docking --contenders tournament,vanilla --seeds 3
    python benchmarks/tournament.py --regime peers --contenders asha --steps-of ray-pbt   # at equal environment steps
    python benchmarks/tournament.py --report --base tournament   # tables, and figures in FOLDER
    python benchmarks/tournament.py --adapter                    # what our simulators cost as SB3 environments
    python benchmarks/tournament.py --quick

Regimes, in order:
    unknown        wide ranges; the first agent of every contender has values drawn from them
    peers          the same with three times the budget, and the methods of Optuna and Ray Tune
    defaults       the library's defaults and its usual ranges; Ant, HalfCheetah, LunarLander, stocks. The pod of
                   the incumbent may also grow to both cores
    ablations      the strategy incumbent with one rule changed; Pendulum, docking, stocks, as defaults
    strategies     the other strategies and controls
    first-default  as unknown, but the first agent of every contender has the library's defaults

The clock of a tournament begins when it is created, so the start of its pods counts. That of another library begins
when it is imported and, for Ray, when its cluster runs. The other libraries need the extra `bench`.
"""

import sys
from pathlib import Path


def main() -> None:
    """Runs the command."""
    # Instead of the folder of this file, where simulators.py would hide the package of that name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.comparison import command

    command.main(__doc__ or "")


if __name__ == "__main__":
    main()

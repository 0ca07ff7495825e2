"""Scores a policy by its bad episodes: the mean return of the worst quarter (conditional value at risk).

    [evaluation]
    evaluator = "python:examples.custom.evaluator:evaluate"

Whoever trades, or walks on expensive legs, does not care for a good mean that a few disasters have paid for.
"""

from torch import Tensor

from agentpod.models.actors import Actor
from agentpod.roles.evaluator import play
from simulators import Simulator

WORST_SHARE = 0.25


def evaluate(simulator: Simulator, actor: Actor, episodes: int, seed: int) -> Tensor:
    """One number for each episode, [E], whose mean is the score.

    The conditional value at risk of a return R at level a is the greatest value of v - E[max(v - R, 0)] / a, and the v
    that makes it so is the a-quantile of R (Rockafellar and Uryasev 2000, theorem 1). So the numbers below have it for
    their mean, and their deviation is the one that its standard error is made of.
    """
    returns = play(simulator, actor, episodes, seed).returns
    quantile = returns.quantile(WORST_SHARE)
    return quantile - (quantile - returns).clamp(min=0.0) / WORST_SHARE

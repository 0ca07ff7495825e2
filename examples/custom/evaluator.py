"""Evaluator plugin: scores a policy by the mean return of its worst quarter of episodes (conditional value at risk).

    [evaluation]
    evaluator = "python:examples.custom.evaluator:evaluate"

Use such a score where a good mean must not hide a few disasters, in trading or on an expensive robot.
"""

from torch import Tensor

from agentpod.models.actors import Actor
from agentpod.roles.evaluator import play
from simulators import Simulator

WORST_SHARE = 0.25


def evaluate(simulator: Simulator, actor: Actor, episodes: int, seed: int) -> Tensor:
    """Returns one number for each episode, [E]; their mean is the score.

    The conditional value at risk of a return R at level a is the greatest value of v - E[max(v - R, 0)] / a, and the v
    that makes it so is the a-quantile of R (Rockafellar and Uryasev 2000, theorem 1). So the numbers below have it for
    their mean, and their deviation is the one that its standard error is made of.
    """
    returns = play(simulator, actor, episodes, seed).returns
    quantile = returns.quantile(WORST_SHARE)
    return quantile - (quantile - returns).clamp(min=0.0) / WORST_SHARE

"""Averages the state of related agents, so that a child can start from the average (crossover).

The rules are those of mode `average` of a fusion round (agentpod.fusion.averaging), with one difference: the samples of
the statistics are not merged but averaged. Siblings share the samples of their common ancestor, which merging would
count twice.

| | |
|---|---|
| parameters, log temperature, target networks, moments of Adam | mean |
| step counters of Adam, counters of schedules | maximum |
| adaptive learning rates | geometric mean |
| statistics of observations and returns | mean and variance of the samples of all, whose number is the mean number |

The average of equal agents is that agent, to the bit if they are two.
"""

from collections.abc import Sequence
from functools import reduce

import torch

from agentpod.algorithms.fusible import Fusible
from agentpod.fusion.averaging import geometric_mean, layout_lines
from agentpod.models.normalizer import RunningMoments
from podrace.errors import InvalidArgument


def check_same_layout(first: Fusible, other: Fusible) -> None:
    """Checks that two agents can be averaged.

    Raises:
        InvalidArgument: They have other networks or statistics; the message names the first difference.
    """
    lines, others = layout_lines(first), layout_lines(other)
    for index in range(max(len(lines), len(others))):
        own, its = (found[index] if index < len(found) else "nothing" for found in (lines, others))
        if own != its:
            raise InvalidArgument(f"its state has another layout: {its} instead of {own}")


def average_into(target: Fusible, mates: Sequence[Fusible]) -> None:
    """Replaces the state of an agent by the average of its own and that of others, in place.

    Args:
        target: State of the agent.
        mates: States of the others.

    Raises:
        InvalidArgument: One of them has another layout; nothing was changed.
    """
    for mate in mates:
        check_same_layout(target, mate)
    members = [target, *mates]
    for kind in ("parameters", "targets", "moments"):
        for name, tensor in getattr(target, kind).items():
            rows = torch.stack([getattr(member, kind)[name].detach().double() for member in members])
            tensor.copy_(rows.mean(0))
    for name, count in target.counts.items():
        count.copy_(torch.stack([member.counts[name] for member in members]).amax(0))
    for name, rate in target.rates.items():
        rate.copy_(geometric_mean(torch.stack([member.rates[name].view(1) for member in members]))[0])
    for name, held in target.statistics.items():
        held.commit(pooled([member.statistics[name].total for member in members]))


def pooled(moments: Sequence[RunningMoments]) -> RunningMoments:
    """Returns the moments of the samples of all, with the mean number of samples."""
    whole, share = reduce(RunningMoments.merge, moments), len(moments)
    return RunningMoments(whole.count / share, whole.mean, whole.squared_deviation / share)

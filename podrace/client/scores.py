"""Computes standard deviations and standard errors of evaluations."""

import math

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation


def standard_error(evaluation: Evaluation) -> float | None:
    """Returns the standard error of the mean return; None for a single episode."""
    deviation = standard_deviation(evaluation)
    return None if deviation is None else deviation / math.sqrt(evaluation.episodes)


def standard_deviation(evaluation: Evaluation) -> float | None:
    """Returns the standard deviation of the return over episodes; None for a single episode."""
    return math.sqrt(evaluation.variance) if evaluation.episodes > 1 else None

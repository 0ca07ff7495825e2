"""Scores of checkpoints: numbers computed from evaluations."""

import math

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation


def standard_error(evaluation: Evaluation) -> float | None:
    """Standard error of the mean return; unknown of a single episode."""
    deviation = standard_deviation(evaluation)
    return None if deviation is None else deviation / math.sqrt(evaluation.episodes)


def standard_deviation(evaluation: Evaluation) -> float | None:
    """Of the return between episodes; a single one says nothing about it."""
    return math.sqrt(evaluation.variance) if evaluation.episodes > 1 else None

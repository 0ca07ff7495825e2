"""Has pods evaluate checkpoints, with messages for the user, and describes the results."""

import functools

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.cli.terminal import formats
from podrace.cli.terminal.output import notify
from podrace.client import evaluating
from podrace.client.scores import standard_error

evaluated = functools.partial(evaluating.evaluated, notify=notify)
"""`podrace.client.evaluating.evaluated`, which prints its lines."""


def headline(evaluation: Evaluation) -> str:
    """Returns the result in one line. The result of a single episode has no standard error."""
    mean = formats.score(evaluation.mean_return, standard_error(evaluation))
    episodes = formats.things(evaluation.episodes, "episode")
    measure, steps = formats.measure(evaluation.objective), evaluation.mean_length_steps
    return f"mean {measure} {mean} over {episodes} of {steps:.0f} steps"

"""Compares the spaces that the roles of a session answer with, and those of two openings. Pure."""

from collections.abc import Sequence
from typing import Any

import torch

from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import InvalidArgument
from simulators import Space


def check_same_spaces(opened: Sequence[Any], environment: str, worker: str = "") -> None:
    """Compares the spaces that the roles of a session answer with.

    Args:
        opened: Answers of the roles.
        environment: Id of the environment.
        worker: Address of a worker of a third party, which answers first; empty: there is none.

    Raises:
        InvalidArgument: They differ.
    """
    found = [(_rounded(one.observation_space), _rounded(one.action_space)) for one in opened]
    other = next((one for one in found if one != found[0]), None)
    if other is None:
        return
    if worker:
        theirs, ours = (" ".join(f"{observed} {acted}".split()) for observed, acted in (found[0], other))
        raise InvalidArgument(
            f"pod.worker = 'grpc://{worker}': its spaces are {theirs}, those of environment {environment!r} are {ours}"
        )
    raise InvalidArgument(
        f"environment {environment!r}: the options of the evaluation change its spaces, so the trained policy could not"
        " be scored"
    )


def _rounded(space: pb.Space) -> pb.Space:
    """Returns a space with bounds as float32 has them: third parties need not compute them in float64."""
    rounded = pb.Space()
    rounded.CopyFrom(space)
    for bounds in (rounded.low, rounded.high):
        bounds[:] = torch.tensor(list(bounds), dtype=torch.float32).tolist()
    return rounded


def check_unchanged_spaces(before: tuple[Space, Space] | None, now: tuple[Space, Space], environment: str) -> None:
    """Compares the spaces of an environment with those when the roles were opened before, in the same assignment.

    Args:
        before: Observation space and action space then; None: they were never opened.
        now: Those of this opening.
        environment: Id of the environment.

    Raises:
        InvalidArgument: They differ: memory and networks have the sizes of the spaces before.
    """
    for what, old, new in zip(("observation", "action"), before or now, now, strict=True):
        if old != new:
            raise InvalidArgument(
                f"environment {environment!r}: its {what} space has changed since the training began, from {old} to"
                f" {new}; the spaces of an environment must stay the same"
            )

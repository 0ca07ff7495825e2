"""Checks what a worker of a third party reports of a rollout, and what it wrote. Pure.

podrace's own workers check their rollouts themselves.
"""

import math
from collections.abc import Mapping

from torch import Tensor

from agentpod.experience.foreign_memory import check_actions
from agentpod.experience.replay_layout import FINAL
from agentpod.experience.rollout import used_finals
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import DataLoss, InvalidArgument
from simulators import Space


def check_report(answer: pb.CollectRolloutResponse, environment_steps: int, policy_version: int) -> None:
    """Checks the answer to CollectRollout.

    Args:
        answer: The answer.
        environment_steps: Steps of one rollout of the worker.
        policy_version: The version that the request named.

    Raises:
        InvalidArgument: It contradicts the request, or itself.
    """
    for field, found, expected in (
        ("environment_steps", answer.environment_steps, environment_steps),
        ("policy_version", answer.policy_version, policy_version),
        ("number of episode_lengths", len(answer.episode_lengths), len(answer.episode_returns)),
    ):
        if found != expected:
            raise InvalidArgument(f"CollectRollout answered with {field} = {found}: expected {expected}")
    if not all(map(math.isfinite, answer.episode_returns)):
        raise DataLoss("CollectRollout answered with episode_returns that are not finite")


def check_rollout(slot: Mapping[str, Tensor], first_row: int, horizon: int, action_space: Space) -> None:
    """Checks the rows of a slot that a worker has filled.

    Args:
        slot: Tensors of the slot, [R, N, ...] each.
        first_row: First row of the rollout.
        horizon: Rows of the rollout; `observation` of an on-policy algorithm has one more.
        action_space: Actions of one environment.

    Raises:
        DataLoss: A number is not finite.
        InvalidArgument: An action is not among the choices.
    """
    rows = {name: tensor[first_row : first_row + horizon] for name, tensor in slot.items()}
    if "log_prob" in slot:
        rows["observation"] = slot["observation"]
    # The others are undefined.
    rows[FINAL] = rows[FINAL][used_finals(rows)]
    for name, tensor in rows.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise DataLoss(f"the rollout has numbers in {name} that are not finite")
    check_actions(rows["action"], action_space)

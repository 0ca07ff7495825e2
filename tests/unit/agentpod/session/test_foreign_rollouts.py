"""Rollouts of third parties are checked before anything is trained on them."""

import math

import pytest
import torch
from torch import Tensor

from agentpod.session.foreign_rollouts import check_report, check_rollout
from podrace.agentpod.v1.agentpod_pb2 import CollectRolloutResponse
from podrace.errors import DataLoss, InvalidArgument
from simulators import Space

ACTIONS = Space("discrete", (), torch.int64, n=2)
STEPS, LANES = 3, 2


def slot(rows: int = STEPS, *, on_policy: bool = True) -> dict[str, Tensor]:
    """Returns the tensors of a valid rollout."""
    tensors = {
        "observation": torch.zeros(rows + on_policy, LANES, 4),
        "action": torch.ones(rows, LANES, dtype=torch.int64),
        "reward": torch.zeros(rows, LANES),
        "terminated": torch.zeros(rows, LANES, dtype=torch.bool),
        "truncated": torch.zeros(rows, LANES, dtype=torch.bool),
        "final_observation": torch.full((rows, LANES, 4), math.nan),
    }
    return tensors | ({"log_prob": torch.zeros(rows, LANES)} if on_policy else {})


def test_a_rollout_whose_unread_rows_are_not_finite_is_accepted() -> None:
    check_rollout(slot(), 0, STEPS, ACTIONS)
    memory = slot(9, on_policy=False)
    memory["final_observation"][5] = 0.0
    for rows in (slice(0, 3), slice(6, 9)):
        memory["reward"][rows] = math.inf
        memory["action"][rows] = 7
    check_rollout(memory, 3, STEPS, ACTIONS)


@pytest.mark.parametrize("name", ["observation", "reward", "log_prob", "final_observation"])
def test_numbers_that_are_not_finite_are_refused_with_the_name_of_the_field(name: str) -> None:
    wrong = slot()
    wrong["truncated"][1, 1] = True
    wrong["final_observation"][1, 1] = 0.0
    check_rollout(wrong, 0, STEPS, ACTIONS)
    # The last row of the observations is read as well.
    wrong[name][-1 if name == "observation" else 1, 1] = math.inf
    with pytest.raises(DataLoss, match=f"numbers in {name} that are not finite"):
        check_rollout(wrong, 0, STEPS, ACTIONS)


def test_the_observation_after_a_replay_segment_must_be_finite() -> None:
    memory = slot(9, on_policy=False)
    with pytest.raises(DataLoss, match="numbers in final_observation that are not finite"):
        check_rollout(memory, 3, STEPS, ACTIONS)


@pytest.mark.parametrize("choice", [-1, 2])
def test_an_action_that_is_no_choice_is_refused(choice: int) -> None:
    wrong = slot()
    wrong["action"][2, 0] = choice
    with pytest.raises(InvalidArgument, match="actions are not among the choices"):
        check_rollout(wrong, 0, STEPS, ACTIONS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environment_steps": 5}, r"environment_steps = 5: expected 6"),
        ({"policy_version": 3}, r"policy_version = 3: expected 4"),
        ({"episode_lengths": []}, r"number of episode_lengths = 0: expected 1"),
        ({"episode_returns": [math.inf]}, r"episode_returns that are not finite"),
    ],
)
def test_a_report_that_contradicts_the_request_or_itself_is_refused(changes: dict[str, object], said: str) -> None:
    right = {"environment_steps": 6, "policy_version": 4, "episode_returns": [1.0], "episode_lengths": [2]}
    check_report(CollectRolloutResponse(**right), 6, 4)  # type: ignore[arg-type]
    with pytest.raises((InvalidArgument, DataLoss), match=said):
        check_report(CollectRolloutResponse(**(right | changes)), 6, 4)  # type: ignore[arg-type]

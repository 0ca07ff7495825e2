"""What is taken for a score, and when somebody who gave none is asked again."""

import math

import pytest

from agentpod.roles.evaluator_faults import LONGEST_PAUSE_SECONDS, Pauses, nonsense
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation


def evaluation(**changes) -> Evaluation:
    values = {"mean_return": -3.0, "variance": 2.0, "episodes": 4, "mean_length_steps": 7.0, "policy_digest": "d" * 64}
    return Evaluation(**{**values, **changes})


def test_a_score_of_the_policy_over_enough_episodes_is_taken():
    assert nonsense(evaluation(), 4, ["d" * 64]) == ""
    assert nonsense(evaluation(episodes=9, variance=0.0, mean_length_steps=0.0), 4, ["d" * 64]) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean_return": math.nan}, "mean_return = nan is not finite"),
        ({"variance": math.inf}, "variance = inf is not finite"),
        ({"variance": -1.0}, "variance = -1 is negative"),
        ({"mean_length_steps": -1.0}, "mean_length_steps = -1 is negative"),
        ({"metrics": {"sharpe": -math.inf}}, "metrics['sharpe'] = -inf is not finite"),
        ({"episodes": 0}, "it scored 0 episodes instead of 4"),
        ({"episodes": 3}, "it scored 3 episodes instead of 4"),
        ({"policy_digest": ""}, f"it scored another policy: digest none instead of {'d' * 12}"),
        ({"policy_digest": "e" * 64}, f"it scored another policy: digest {'e' * 12} instead of {'d' * 12}"),
        ({"member_policy_digests": ["e" * 64]}, "it scored another policy"),
    ],
)
def test_nonsense_is_named(changes, said):
    assert nonsense(evaluation(**changes), 4, ["d" * 64]).startswith(said)


def test_a_member_that_was_left_out_is_noticed():
    assert "another policy" in nonsense(evaluation(), 4, ["d" * 64, "e" * 64])


def test_pauses_grow_until_an_answer_is_good():
    pauses = Pauses()
    assert pauses.due(0.0)
    assert [pauses.fault(100.0, lost_seconds=0.1) for _ in range(3)] == [10.0, 20.0, 40.0]
    assert not pauses.due(139.9)
    assert pauses.due(140.0)
    pauses.well()
    assert pauses.due(0.0)
    assert pauses.fault(100.0, lost_seconds=0.1) == 10.0


def test_waiting_in_vain_takes_a_fifth_of_the_time_at_most():
    pauses = Pauses()
    assert pauses.fault(0.0, lost_seconds=300.0) == 1200.0
    assert pauses.fault(0.0, lost_seconds=300.0) == LONGEST_PAUSE_SECONDS
    pauses = Pauses(faults_in_row=2000)
    assert pauses.fault(0.0, lost_seconds=0.0) == LONGEST_PAUSE_SECONDS

"""When a policy that is offered may replace the one that serves."""

import math

from podrace.serving.decisions.gate import EvaluatedPolicy, decide_gate

STEADY = EvaluatedPolicy(100.0, 0.0, 4, (100.0, 100.0, 100.0, 100.0))


def scored(*returns: float) -> EvaluatedPolicy:
    mean = sum(returns) / len(returns)
    variance = sum((value - mean) ** 2 for value in returns) / (len(returns) - 1)
    return EvaluatedPolicy(mean, variance, len(returns), returns)


def test_a_better_policy_is_accepted():
    assert decide_gate(scored(110.0, 111.0, 112.0, 113.0), STEADY, 1.0).accepted


def test_an_equal_policy_is_accepted():
    assert decide_gate(STEADY, STEADY, 0.0).accepted


def test_a_policy_that_is_worse_by_more_than_the_limit_is_refused_with_both_scores():
    verdict = decide_gate(scored(98.0, 99.0, 98.0, 99.0), STEADY, 2.0)
    assert not verdict.accepted
    assert verdict.reason.startswith("mean return 98.5 against 100, standard error 0.289: worse by more than 2")


def test_a_policy_that_is_worse_by_less_than_the_noise_is_accepted():
    assert decide_gate(scored(90.0, 105.0, 95.0, 105.0), STEADY, 1.0).accepted


def test_a_difference_without_noise_counts():
    assert not decide_gate(EvaluatedPolicy(99.0, 0.0, 4, (99.0,) * 4), STEADY, 3.0).accepted


def test_episodes_that_cannot_be_paired_are_compared_by_their_variances():
    offered, serving = EvaluatedPolicy(90.0, 400.0, 100), EvaluatedPolicy(100.0, 400.0, 100)
    assert not decide_gate(offered, serving, 3.0).accepted
    assert decide_gate(offered, serving, 4.0).accepted


def test_a_score_that_is_no_number_is_refused():
    assert not decide_gate(EvaluatedPolicy(math.nan, 0.0, 4), STEADY, 1.0).accepted

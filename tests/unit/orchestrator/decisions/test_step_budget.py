"""What is left of a step budget for one more agent."""

import random

import pytest

from orchestrator.decisions.step_budget import share_of_round, steps_left
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec

BUDGET = ObjectiveSpec(environment_steps=1000)


def test_what_others_were_promised_is_not_given_away_twice():
    assert steps_left(BUDGET, 400, [250, 250]) == 100
    assert steps_left(BUDGET, 400, []) == 600


def test_an_agent_gets_at_most_its_equal_part_of_what_is_left_and_at_least_a_quantum():
    assert steps_left(BUDGET, 400, [100, 100]) == 200
    assert steps_left(BUDGET, 401, [100, 100]) == 200
    assert steps_left(BUDGET, 400, [100], pods=6) == 100, "the other pods are about to ask"
    assert steps_left(BUDGET, 400, [100, 100], quantum=250) == 250
    assert steps_left(BUDGET, 400, [100, 400], quantum=250) == 100


@pytest.mark.parametrize("pods", [1, 2, 4, 7])
def test_all_pods_train_almost_until_the_budget_is_used_however_long_assignments_are(pods: int):
    """Each pod trains one step per second, and asks for assignments that triple."""
    for seed in range(20):
        draw, budget, quantum = random.Random(seed), 4000 * pods, 100
        left, trained, idle = [0] * pods, 0, 0
        while trained < budget:
            for pod in range(pods):
                if not left[pod]:
                    others = [steps for other, steps in enumerate(left) if other != pod and steps]
                    objective = ObjectiveSpec(environment_steps=budget)
                    limit = steps_left(objective, trained, others, pods=pods, quantum=quantum)
                    left[pod] = min(limit or 0, quantum * 3 ** draw.randint(0, 4))
            training = [pod for pod in range(pods) if left[pod]]
            step = min(left[pod] for pod in training)
            idle += step * (pods - len(training))
            trained += step * len(training)
            left = [max(0, steps - step) for steps in left]
        assert trained == budget
        assert idle <= pods * quantum, "each pod waits for about one quantum at most"


def test_nothing_is_left_once_everything_is_trained_or_promised():
    assert steps_left(BUDGET, 1000, []) == 0
    assert steps_left(BUDGET, 900, [200]) == 0


def test_without_a_step_budget_there_is_no_limit():
    assert steps_left(ObjectiveSpec(target_return=1.0), 400, [100]) is None
    assert share_of_round(ObjectiveSpec(target_return=1.0), 0, 4) is None


def test_the_agents_of_a_round_share_what_is_left_equally_and_cover_it():
    assert share_of_round(BUDGET, 0, 4) == 250
    assert share_of_round(BUDGET, 901, 4) == 25
    assert share_of_round(BUDGET, 1200, 4) == 0

"""What is left of a step budget for one more agent."""

from orchestrator.decisions.step_budget import share_of_round, steps_left
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec

BUDGET = ObjectiveSpec(environment_steps=1000)


def test_what_others_were_promised_is_not_given_away_twice():
    assert steps_left(BUDGET, 400, [100, 250]) == 250
    assert steps_left(BUDGET, 400, []) == 600


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

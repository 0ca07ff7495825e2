from collections.abc import Callable
from typing import Any

from leaderboard.ranking.learning_speed import Gain, gains_of
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate

MakeCandidate = Callable[..., Candidate]


def agent(candidate: Candidate, start: str = "") -> Agent:
    made = Agent(agent_id=candidate.agent_id, number=candidate.agent_number)
    if start:
        made.starting_checkpoint.CopyFrom(Checkpoint(manifest_digest=start))
    return made


def candidate(make_candidate: MakeCandidate, number: int, score: float, steps: int, name: str = "") -> Candidate:
    others: dict[str, Any] = {"candidate_id": name} if name else {}
    return make_candidate(number, score, environment_steps=steps, **others)


def test_a_child_gains_from_the_score_it_started_from(make_candidate: MakeCandidate) -> None:
    parent = candidate(make_candidate, 0, 10.0, 4000, "start")
    first, last = candidate(make_candidate, 1, 3.0, 5000), candidate(make_candidate, 1, 16.0, 8000)
    gains = gains_of([agent(first, "start")], [parent, first, last])
    assert gains == {first.agent_id: Gain(start_steps=4000, steps=4000, score=6.0)}
    assert gains[first.agent_id].speed == 6.0 / 4000


def test_a_fresh_agent_gains_from_its_first_submission(make_candidate: MakeCandidate) -> None:
    first, last = candidate(make_candidate, 0, -2.0, 1000), candidate(make_candidate, 0, -5.0, 3000)
    assert gains_of([agent(first)], [first, last]) == {first.agent_id: Gain(1000, 2000, -3.0)}


def test_an_agent_with_fewer_than_two_scores_has_no_gain(make_candidate: MakeCandidate) -> None:
    only = candidate(make_candidate, 0, 1.0, 1000)
    orphan = candidate(make_candidate, 1, 9.0, 2000)
    unscored = candidate(make_candidate, 2, 0.0, 0)
    assert gains_of([agent(only), agent(orphan, "long gone"), agent(unscored)], [only, orphan]) == {}


def test_scores_of_the_plugin_and_of_the_built_in_evaluator_are_not_subtracted(make_candidate: MakeCandidate) -> None:
    first, last = candidate(make_candidate, 0, 1.0, 1000), candidate(make_candidate, 0, 500.0, 3000)
    last.evaluator_fault = "the plugin failed"
    assert gains_of([agent(first)], [first, last]) == {}
    first.evaluator_fault = "the plugin failed"
    assert gains_of([agent(first)], [first, last])[first.agent_id].score == 499.0

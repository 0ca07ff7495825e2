"""Which candidates may become the champion."""

from collections.abc import Callable
from typing import Any

from leaderboard.ranking.contenders import contenders_of, newest_by_trial
from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_REFUSE, Candidate

MakeCandidate = Callable[..., Candidate]
MakeSpec = Callable[..., Any]


def names(contenders: list[Candidate]) -> list[str]:
    return [one.candidate_id for one in contenders]


def test_the_newest_of_each_trial_on_the_board_and_of_the_longest_one_are_contenders(
    make_candidate: MakeCandidate, make_spec: MakeSpec
) -> None:
    spec = make_spec(champion={"reevaluate_top": 2})
    submissions = [
        make_candidate(0, 5.0, candidate_id="founder", environment_steps=900),
        make_candidate(1, 9.0, candidate_id="lucky", environment_steps=100),
        make_candidate(2, 8.0, candidate_id="second", environment_steps=100),
        make_candidate(1, 6.0, candidate_id="later", environment_steps=200),
        make_candidate(3, 1.0, candidate_id="short", environment_steps=50),
    ]
    newest = newest_by_trial(submissions)
    board = (submissions[1], submissions[2], submissions[0])
    assert names(contenders_of(spec, board, newest)) == ["lucky", "second", "later", "founder"]
    submissions[0].opinion = OPINION_REFUSE
    assert names(contenders_of(spec, board, newest)) == ["lucky", "second", "later"]
    assert names(contenders_of(spec, board[:1], {})) == ["lucky"]

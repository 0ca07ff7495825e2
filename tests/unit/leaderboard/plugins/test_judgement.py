import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.plugins.judgement import check, with_opinion, without_opinion
from leaderboard.ranking.board import fold, judge, rank_key
from podrace.errors import InvalidArgument
from podrace.evolution.v1.evolution_pb2 import JudgeCandidateResponse
from podrace.leaderboard.v1.leaderboard_pb2 import (
    OPINION_ACCEPT,
    OPINION_BY_RANK,
    OPINION_REFUSE,
    OPINION_UNSPECIFIED,
    VERDICT_ACCEPTED,
    VERDICT_REFUSED,
    Candidate,
)

Make = Callable[..., Candidate]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (JudgeCandidateResponse(), "opinion = 0: expected OPINION_ACCEPT (1), OPINION_REFUSE (2) or OPINION_BY_RANK"),
        (JudgeCandidateResponse(opinion=9), "opinion = 9: expected"),  # type: ignore[arg-type]
        (JudgeCandidateResponse(opinion=OPINION_ACCEPT, rank_score=math.nan), "rank_score = nan: expected a finite"),
        (JudgeCandidateResponse(opinion=OPINION_REFUSE, rank_score=-math.inf), "rank_score = -inf: expected a finite"),
    ],
)
def test_an_invalid_answer_is_refused_by_name(answer: JudgeCandidateResponse, words: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check(answer)
    assert words in refusal.value.message


def test_a_candidate_records_the_opinion_and_keeps_its_score(make_candidate: Make) -> None:
    answer = JudgeCandidateResponse(opinion=OPINION_ACCEPT, rank_score=2.5, reason="why\nnot")
    check(answer)
    judged = with_opinion(make_candidate(3, 7.0), "python:mine:judge", answer)
    assert (judged.opinion, judged.rank_score, judged.score, judged.agent_number) == (OPINION_ACCEPT, 2.5, 7.0, 3)
    assert judged.opinion_reason == "python:mine:judge: why not (ranked by 2.5)"


def test_an_opinion_accepts_the_worst_and_refuses_the_best(make_candidate: Make) -> None:
    board = (make_candidate(0, 5.0), make_candidate(1, 4.0))
    accepted = judge(board, make_candidate(2, 1.0, opinion=OPINION_ACCEPT, opinion_reason="u: yes"), 2)
    assert [candidate.score for candidate in accepted.board] == [5.0, 1.0]
    assert [standing.reason for standing in accepted.standings.values()] == [
        "u: yes; took the place of a1 (4 ± 0)",
        "a2 (1 ± 0) took its place",
    ]
    refused = judge(board, make_candidate(2, 9.0, opinion=OPINION_REFUSE, opinion_reason="u: no"), 2)
    assert refused.board == board
    assert [standing.reason for standing in refused.standings.values()] == ["u: no; refused"]


def test_an_agent_has_one_place_with_any_opinion(make_candidate: Make) -> None:
    board = (make_candidate(0, 5.0), make_candidate(1, 4.0))
    judgement = judge(board, make_candidate(0, 3.0, opinion=OPINION_ACCEPT), 2)
    assert [(one.agent_number, one.score) for one in judgement.board] == [(1, 4.0), (0, 3.0)]


def test_with_rank_scores_a_full_board_ignores_the_noise(make_candidate: Make) -> None:
    last = make_candidate(0, 5.0, 3.0, rank_score=1.0)
    candidate = make_candidate(1, 5.1, 3.0, opinion=OPINION_BY_RANK, rank_score=1.1)
    best = make_candidate(2, 9.0, rank_score=9.0)
    assert judge((best, last), candidate, 2).standings[candidate.candidate_id].verdict == VERDICT_ACCEPTED
    # The same by the built-in rules: within one standard error of the difference the last stays.
    for one in (best, last, candidate):
        one.ClearField("rank_score")
    candidate.opinion = OPINION_UNSPECIFIED
    assert judge((best, last), candidate, 2).standings[candidate.candidate_id].verdict == VERDICT_REFUSED


def test_candidates_without_a_rank_score_rank_behind_those_with_one(make_candidate: Make) -> None:
    keyed, other = make_candidate(0, 5.0, rank_score=-1e9), make_candidate(1, 1e9)
    assert sorted([other, keyed], key=rank_key) == [keyed, other]
    failed = without_opinion(other, "the updater u crashed")
    judgement = judge((keyed,), failed, 1)
    assert judgement.board == (keyed,)
    assert judgement.standings[other.candidate_id].reason.startswith(
        "the updater u crashed; built-in rules instead: the board is full"
    )


OPINIONS = st.sampled_from([OPINION_UNSPECIFIED, OPINION_ACCEPT, OPINION_REFUSE, OPINION_BY_RANK])
SUBMISSIONS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.floats(-10, 10),
        OPINIONS,
        st.none() | st.sampled_from([-1.0, 0.0, 1.0]) | st.floats(-5, 5),
    ),
    max_size=20,
)


@given(SUBMISSIONS, st.integers(1, 4))
def test_for_any_opinions_the_order_is_total_and_the_capacity_is_kept(
    submissions: list[tuple[int, float, int, float | None]], capacity: int
) -> None:
    candidates = []
    for sequence, (agent, score, opinion, rank_score) in enumerate(submissions, start=1):
        candidate = Candidate(candidate_id=f"c{sequence}", agent_id=f"a{agent}", agent_number=agent, score=score)
        candidate.sequence, candidate.opinion = sequence, opinion  # type: ignore[assignment]
        if rank_score is not None:
            candidate.rank_score = rank_score
        candidates.append(candidate)
    judgement = fold(candidates, capacity)
    board = judgement.board
    assert len(board) <= capacity
    assert len({candidate.agent_id for candidate in board}) == len(board)
    assert all(rank_key(one) < rank_key(other) for one, other in itertools.pairwise(board))
    on_board = {key for key, standing in judgement.standings.items() if standing.verdict == VERDICT_ACCEPTED}
    assert on_board == {candidate.candidate_id for candidate in board}
    assert not on_board & {f"c{n}" for n, entry in enumerate(submissions, start=1) if entry[2] == OPINION_REFUSE}
    if candidates and candidates[-1].opinion == OPINION_ACCEPT:
        assert candidates[-1] in board

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.ranking.board import canonical, fold
from leaderboard.ranking.retention import NewestByAgent, Retention, TournamentRecord, retained
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

DAY = 86400.0


def candidates(scores: Iterable[tuple[int, float]]) -> list[Candidate]:
    return [
        Candidate(candidate_id=f"c{sequence}", agent_id=f"a{agent}", agent_number=agent, score=score, sequence=sequence)
        for sequence, (agent, score) in enumerate(scores, 1)
    ]


def record_of(
    submissions: list[Candidate], *, capacity: int = 3, contenders: int = 0, idle_seconds: float = 0.0
) -> TournamentRecord:
    board = fold(canonical(submissions), capacity).board
    return TournamentRecord(board, board[:1], submissions, contenders, idle_seconds)


histories = st.lists(st.tuples(st.integers(0, 5), st.floats(-10.0, 10.0)), max_size=30).map(candidates)
retentions = st.builds(Retention, st.integers(-1, 4), st.integers(0, 4), st.just(30 * DAY))


@given(histories, retentions, st.integers(1, 5), st.integers(0, 4), st.sampled_from([0.0, 29 * DAY, 30 * DAY]))
def test_the_champion_and_the_last_submission_of_each_agent_are_always_kept(
    submissions: list[Candidate], retention: Retention, capacity: int, contenders: int, idle_seconds: float
) -> None:
    state = record_of(submissions, capacity=capacity, contenders=contenders, idle_seconds=idle_seconds)
    stays = retained(state, retention)
    assert {candidate.candidate_id for candidate in state.board[: max(1, contenders)]} <= stays.keys()
    assert {candidate.candidate_id for candidate in {one.agent_id: one for one in submissions}.values()} <= stays.keys()
    assert all(stays.values())


@given(histories, retentions, st.integers(1, 5))
def test_submissions_that_are_not_the_last_of_their_agent_make_no_difference(
    submissions: list[Candidate], retention: Retention, capacity: int
) -> None:
    newest = NewestByAgent(retention.checkpoints_of_agent)
    for candidate in submissions:
        newest.add(candidate)
    state = record_of(submissions, capacity=capacity)
    reduced = replace(state, submissions=newest.with_others(()))
    assert retained(reduced, retention) == retained(state, retention)
    assert len(reduced.submissions) <= 6 * max(1, retention.checkpoints_of_agent)


@given(histories, st.integers(1, 5))
def test_a_board_is_cut_only_if_configured_and_idle(submissions: list[Candidate], capacity: int) -> None:
    for retention, idle_seconds in (
        (Retention(best_of_idle_board=0), 1000 * DAY),
        (Retention(best_of_idle_board=1, idle_seconds=DAY), 0.99 * DAY),
    ):
        state = record_of(submissions, capacity=capacity, idle_seconds=idle_seconds)
        shown = {candidate.candidate_id for candidate in (*state.board, *state.visible)}
        assert shown <= retained(state, retention).keys()


@pytest.mark.parametrize(
    ("best", "contenders", "stays"), [(1, 0, {"c1"}), (2, 0, {"c1", "c2"}), (1, 3, {"c1", "c2", "c3"})]
)
def test_an_idle_board_keeps_its_best_and_every_possible_champion(best: int, contenders: int, stays: set[str]) -> None:
    scores = [(0, 9.0), (1, 8.0), (2, 7.0), (3, 6.0), *((agent, -1.0) for agent in range(4))]
    state = record_of(candidates(scores), capacity=4, contenders=contenders, idle_seconds=DAY)
    reasons = retained(state, Retention(best_of_idle_board=best, idle_seconds=DAY))
    assert {name for name, reason in reasons.items() if reason == "among the best of an idle board"} == stays
    assert reasons.keys() - stays == {"c5", "c6", "c7", "c8"}


def test_the_reason_names_the_rule_that_keeps_a_candidate() -> None:
    first, second, third = candidates([(0, 1.0), (0, 2.0), (0, 0.0)])
    state = TournamentRecord((second,), (first,), [first, second, third], 0, 0.0)
    assert retained(state, Retention()) == {
        "c1": "on the board that the next generator sees",
        "c2": "on the board",
        "c3": "last submission of its agent",
    }

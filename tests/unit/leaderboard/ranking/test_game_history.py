"""Candidates are rated when they arrive, against opponents that say most about them; earlier leaders stay opponents."""

import pytest

from leaderboard.ranking import game_history as module
from leaderboard.ranking.game_history import GameHistory, add_opponents, rate
from podrace.checkpoint.v1.checkpoint_pb2 import MatchResult
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, PlanEvaluationResponse
from podrace.tournament.v1.tournament_pb2 import OpponentsSpec

RATED = OpponentsSpec(rated=True, training="built-in", matches=2)


def candidate(number: int, built_in: tuple[int, int], trial: int | None = None, **others: tuple[int, int]) -> Candidate:
    """A candidate with wins and losses against the built-in opponent, and against others by name."""
    results = {"": built_in, **others}
    return Candidate(
        candidate_id=f"c{number}",
        agent_id=f"t-a{number}",
        agent_number=number,
        trial=number if trial is None else trial,
        score=0.25,
        standard_error=0.1,
        episode_returns=[1.0, -1.0],
        matches=[
            MatchResult(opponent_candidate_id=name, wins=won, losses=lost) for name, (won, lost) in results.items()
        ],
    )


def submitted(history: GameHistory, one: Candidate) -> Candidate:
    rate(one, history)
    history.add(one)
    return one


def test_the_score_becomes_the_rating_and_the_return_a_measure() -> None:
    history = GameHistory()
    one = submitted(history, candidate(0, (30, 10)))
    # 400 log10(3), drawn a little to 0 by the prior.
    assert one.score == pytest.approx(400 * 0.4771, abs=3)
    assert 40 < one.standard_error < 80
    assert one.episode_metrics["return"] == 0.25
    assert not one.episode_returns


def test_results_against_stronger_opponents_count_more() -> None:
    history = GameHistory()
    submitted(history, candidate(0, (36, 4)))
    even = submitted(history, candidate(1, (20, 20)))
    better = submitted(history, candidate(2, (20, 20), c0=(30, 10)))
    assert better.score > even.score + 50


def test_opponents_are_those_of_similar_strength_and_former_leaders() -> None:
    history = GameHistory()
    weak = submitted(history, candidate(0, (4, 36)))
    middle = submitted(history, candidate(1, (20, 20)))
    strong = submitted(history, candidate(2, (38, 2)))
    assert history.leaders == [weak, middle, strong]

    def names(agent: Agent, board: tuple[Candidate, ...]) -> list[str]:
        answer = PlanEvaluationResponse()
        add_opponents(answer, RATED, board, history, agent)
        return [one.manifest_digest for one in answer.opponents]

    # Fresh agents are expected at the strength of the built-in opponent.
    assert names(Agent(number=7), (strong,)) == ["c1", "c0"] or names(Agent(number=7), (strong,))[0] == "c1"
    # The trial of the strong one, and a child of it, are expected to be strong.
    assert names(Agent(number=2), (strong,))[0] == "c2"
    child = Agent(number=9)
    child.starting_checkpoint.manifest_digest = "c2"
    assert names(child, (strong,))[0] == "c2"


def test_opponents_of_training_are_the_board_and_former_leaders_if_wanted() -> None:
    history = GameHistory()
    first, second = submitted(history, candidate(0, (4, 36))), submitted(history, candidate(1, (20, 20)))
    answer = PlanEvaluationResponse()
    add_opponents(answer, OpponentsSpec(training="board"), (second,), history, Agent())
    assert [one.manifest_digest for one in answer.training_opponents] == ["c1", "c0"]
    assert [one.agent_id for one in answer.training_opponents] == [second.agent_id, first.agent_id]
    assert not answer.opponents
    nothing = PlanEvaluationResponse()
    add_opponents(nothing, OpponentsSpec(), (second,), history, Agent())
    assert nothing == PlanEvaluationResponse()


def test_only_the_newest_candidates_and_leaders_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RATED", 3)
    history = GameHistory()
    leader = submitted(history, candidate(0, (39, 1)))
    for number in range(1, 8):
        submitted(history, candidate(number, (5, 35)))
    assert history.leaders == [leader]
    assert set(history._known) == {"c0", "c5", "c6", "c7"}


def test_a_copy_is_continued_separately() -> None:
    history = GameHistory()
    submitted(history, candidate(0, (20, 20)))
    other = history.copy()
    submitted(other, candidate(1, (39, 1)))
    assert len(history.leaders) == 1
    assert len(other.leaders) == 2


def test_candidates_without_games_change_nothing() -> None:
    history = GameHistory([Candidate(candidate_id="c", score=100.0)])
    assert history.leaders == []

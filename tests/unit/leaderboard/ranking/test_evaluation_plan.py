"""The bar of an evaluation is the candidate that decides whether the agent enters the board or leads it."""

import pytest

from leaderboard.ranking.evaluation_plan import ANCHORS, LEADERS, plan
from leaderboard.ranking.score_history import ScoreHistory
from podrace.checkpoint.v1.checkpoint_pb2 import EpochScore
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate

RETURNS = [1.0, 2.0, 4.0, 3.0, 6.0]


class KnownHistory(ScoreHistory):
    """A history with a given correlation."""

    def __init__(self, correlation: float = 0.5) -> None:
        super().__init__()
        self._correlation = correlation

    @property
    def correlation(self) -> float:
        return self._correlation


def candidate(agent: int, estimate: float, epoch: int = 0) -> Candidate:
    return Candidate(
        agent_id=f"a{agent}",
        agent_number=agent,
        score=estimate + 1,
        standard_error=2.0,
        estimate=estimate,
        estimate_error=1.5,
        evaluation_epoch=epoch,
        episode_returns=RETURNS,
    )


def agent_named(name: str) -> Agent:
    return Agent(agent_id=name, number=int(name[1:]))


BOARD = tuple(candidate(agent, 10.0 - agent) for agent in range(5))


def bar(board=BOARD, capacity=8, agent="a9", epoch=0, correlation=0.5):
    return plan(board, capacity, KnownHistory(correlation), agent_named(agent), epoch).bar


def test_while_the_board_has_room_the_first_one_is_the_bar():
    assert bar().agent_id == "a0"


def test_on_a_full_board_the_last_one_is_the_bar():
    assert bar(capacity=5).agent_id == "a4"


def test_an_agent_on_the_board_has_to_beat_itself():
    assert bar(agent="a2", capacity=5).agent_id == "a2"


def test_an_agent_has_to_beat_the_candidate_of_the_trial_that_it_continues():
    continued = agent_named("a9")
    continued.trial = 2
    assert plan(BOARD, 5, KnownHistory(), continued, 0).bar.agent_id == "a2"


@pytest.mark.parametrize(
    ("agent", "capacity", "lead"), [("a9", 8, ""), ("a9", 5, "a0"), ("a2", 8, "a0"), ("a0", 8, "")]
)
def test_the_first_one_has_to_be_beaten_for_the_lead_if_it_is_not_the_bar(agent, capacity, lead):
    answer = plan(BOARD, capacity, KnownHistory(), agent_named(agent), 0)
    assert answer.HasField("lead") == bool(lead)
    assert answer.lead.agent_id == lead


def test_an_empty_board_has_no_bar():
    assert not plan((), 8, KnownHistory(), agent_named("a0"), 0).HasField("bar")


def test_the_bar_is_the_number_that_the_board_ranks_by():
    assert (bar().score, bar().standard_error) == (10.0, 1.5)


def test_common_episodes_are_part_of_the_bar():
    assert list(bar().episode_returns) == RETURNS


@pytest.mark.parametrize("changes", [{"epoch": 1}, {"correlation": 0.2}])
def test_without_common_episodes_the_comparison_is_unpaired(changes):
    assert not bar(**changes).episode_returns


def test_the_bar_is_moved_to_the_epoch_of_the_evaluation():
    history = KnownHistory()
    for _ in range(500):
        other = EpochScore(epoch=0, mean_return=1.0, standard_error=2.0)
        history.add(Candidate(score=4.0, standard_error=2.0, evaluation_epoch=1, other_epochs=[other]))
    assert plan(BOARD, 8, history, agent_named("a9"), 1).bar.score == pytest.approx(13.0, rel=0.01)


def anchors(epoch: int, agent: str, *, known: int = 0, correlation: float = 0.5) -> list[int]:
    history = KnownHistory(correlation)
    for _ in range(known):
        history.add(Candidate(evaluation_epoch=epoch, other_epochs=[EpochScore(epoch=epoch - 1)]))
    return list(plan(BOARD, 8, history, agent_named(agent), epoch).other_epochs)


def test_leaders_are_scored_in_the_epoch_before_as_well():
    assert anchors(2, "a0") == [1]
    assert anchors(2, f"a{LEADERS - 1}") == [1]


def test_others_are_not():
    assert anchors(2, f"a{LEADERS}") == []
    assert anchors(2, "a9") == []


def test_a_few_anchors_for_each_pair_of_epochs_suffice():
    assert anchors(2, "a0", known=ANCHORS - 1) == [1]
    assert anchors(2, "a0", known=ANCHORS) == []


def test_the_first_epoch_and_uncorrelated_episodes_need_no_anchors():
    assert anchors(0, "a0") == []
    assert anchors(2, "a0", correlation=0.2) == []


def test_an_agent_that_continues_a_leader_is_one():
    history = KnownHistory()
    assert list(plan(BOARD, 8, history, Agent(agent_id="a9", number=9, trial=0), 2).other_epochs) == [1]

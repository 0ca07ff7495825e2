"""The racing benchmark counts what a race decides, and what it costs."""

from random import Random

from benchmarks.racing import Bar, Bars, Race, evaluations, pairs, race, race_for_the_board
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec, EvolutionSpec, TournamentSpec


def candidate(agent: int, mean: float, random: Random, epoch: int = 0) -> Candidate:
    returns = [random.gauss(mean, 1.0) for _ in range(64)]
    score = sum(returns) / 64
    return Candidate(
        candidate_id=f"c{agent}",
        agent_id=f"a{agent}",
        agent_number=agent,
        sequence=agent + 1,
        score=score,
        standard_error=1 / 8,
        estimate=score,
        estimate_error=1 / 8,
        evaluation_epoch=epoch,
        episode_returns=returns,
    )


def test_an_obvious_difference_is_decided_early_and_a_tie_is_not():
    returns = [float(i % 3) for i in range(64)]
    assert race(returns, Bar(50.0, 0.1), -1) == Race(same=True, early=True, episodes=8, of=64)
    assert race(returns, Bar(-50.0, 0.1), -1) == Race(same=False, early=True, episodes=8, of=64)
    assert not race(returns, Bar(sum(returns) / 64 + 0.01, 0.1), -1).early


def test_an_evaluation_is_the_same_if_entry_and_lead_are():
    returns = [float(i % 3) for i in range(64)]
    low, high = Bar(-50.0, 0.1), Bar(50.0, 0.1)
    assert race_for_the_board(returns, Bars(low, high)) == Race(same=True, early=True, episodes=8, of=64)
    assert race_for_the_board(returns, Bars(low, low)) == Race(same=True, early=False, episodes=64, of=64)


def test_agents_of_an_epoch_are_compared_pair_by_pair():
    random = Random(1)
    recorded = [candidate(number, 3.0 * number, random) for number in range(3)]
    recorded.append(candidate(3, 0.0, random, epoch=1))
    races = list(pairs(recorded, 64))
    assert len(races) == 3
    assert all(one.same for one in races)


def test_evaluations_meet_the_board_of_their_time():
    random = Random(2)
    spec = TournamentSpec(evolution=EvolutionSpec(board_capacity=2), evaluation=EvaluationSpec(episodes=64))
    recorded = [candidate(number, mean, random) for number, mean in enumerate((9.0, 5.0, -40.0))]
    # The first has no bar, the second cannot lead, and the third cannot enter.
    races = list(evaluations(spec, recorded))
    assert [one.early for one in races] == [True, True]
    assert all(one.same for one in races)

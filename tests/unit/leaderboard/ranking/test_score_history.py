"""A candidate is estimated by the last two scores of its lineage, on the scale of evaluation epoch 0."""

import math
from random import Random

import pytest

from leaderboard.ranking.score_history import RoundHistory, ScoreHistory, add_estimate
from podrace.checkpoint.v1.checkpoint_pb2 import EpochScore, MatchResult
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import PoolSpec, TournamentSpec


def candidate(agent: int, score: float, epoch: int = 0, error: float = 2.0, **fields) -> Candidate:
    return Candidate(
        agent_id=f"race-a{agent}",
        agent_number=agent,
        score=score,
        standard_error=error,
        evaluation_epoch=epoch,
        **fields,
    )


def correlated(history: ScoreHistory, share: float = 0.8, epoch: int = 0) -> ScoreHistory:
    """Adds agents 100 to 107, whose returns correlate."""
    random = Random(1)
    common = [random.gauss(0, math.sqrt(share)) for _ in range(64)]
    for agent in range(100, 108):
        returns = [value + random.gauss(0, math.sqrt(1 - share)) for value in common]
        history.add(candidate(agent, 0.0, epoch, episode_returns=returns))
    return history


def test_a_first_score_is_reduced_by_half_its_error():
    estimate = ScoreHistory().estimate(candidate(0, 10.0))
    assert (estimate.value, estimate.error) == (9.0, 2.0)


def test_later_scores_are_averaged_with_the_one_before():
    history = ScoreHistory([candidate(0, 10.0), candidate(0, 20.0, error=3.0), candidate(1, -50.0)])
    estimate = history.estimate(candidate(0, 30.0, error=4.0))
    assert (estimate.value, estimate.error) == (25.0, 2.5)


@pytest.mark.parametrize(
    ("errors", "own_weight"), [(0.0, 0.0), (2.0, 0.0), (-2.0, 0.0), (3.0, 5 / 6), (-3.0, 5 / 6), (1000.0, 1.0)]
)
def test_a_score_that_clearly_differs_from_the_one_before_counts_more(errors, own_weight):
    history = ScoreHistory([candidate(0, 100.0, error=3.0, episodes=8)])
    lead = 5.0 * errors  # the error of the difference is hypot(3, 4)
    estimate = history.estimate(candidate(0, 100.0 + lead, error=4.0, episodes=8))
    assert estimate.value == pytest.approx(100.0 + lead / 2 + own_weight * lead / 2, rel=1e-6)
    own, other = (1 + own_weight) / 2, (1 - own_weight) / 2
    assert estimate.error == pytest.approx(math.hypot(own * 4.0, other * 3.0), rel=1e-3)


def test_an_estimate_rises_with_its_score():
    history = ScoreHistory([candidate(0, 0.0, error=1.0, episodes=64)])
    scores = [step / 10 for step in range(-100, 101)]
    estimates = [history.estimate(candidate(0, score, error=1.0, episodes=64)).value for score in scores]
    assert estimates == sorted(estimates)


def test_deterministic_scores_are_their_own_estimates():
    history = ScoreHistory([candidate(0, 10.0, error=0.0, episodes=8)])
    assert history.estimate(candidate(0, 30.0, error=0.0, episodes=8)).value == 30.0
    assert history.estimate(candidate(0, 10.0, error=0.0, episodes=8)).value == 10.0


@pytest.mark.parametrize(("earlier", "later"), [(7, 64), (64, 7)])
def test_the_error_of_few_episodes_proves_no_change(earlier, later):
    history = ScoreHistory(
        [candidate(0, 10.0, error=1.0, episodes=64), candidate(0, 10.0, error=1.0, episodes=earlier)]
    )
    assert history.copy().estimate(candidate(0, 30.0, error=1.0, episodes=later)).value == 20.0
    history.add(candidate(0, 10.0, error=1.0, episodes=64))
    assert history.estimate(candidate(0, 30.0, error=1.0, episodes=64)).value > 29.0


def test_ratings_are_averaged_because_they_depend_on_the_opponents():
    rated = {"episodes": 64, "matches": [MatchResult(wins=40, losses=24)]}
    history = ScoreHistory([candidate(0, 10.0, error=1.0, **rated)])
    assert history.estimate(candidate(0, 30.0, error=1.0, **rated)).value == 20.0


def test_two_scores_on_the_same_correlated_episodes_are_less_precise_than_independent_ones():
    history = correlated(ScoreHistory([candidate(0, 10.0)]))
    same, other = (history.estimate(candidate(0, 30.0, epoch)) for epoch in (0, 1))
    assert same.error > other.error == pytest.approx(math.sqrt(2.0))


def test_scores_of_plugin_and_built_in_evaluator_are_not_averaged():
    history = ScoreHistory([candidate(0, 1000.0)])
    assert history.estimate(candidate(0, 10.0, evaluator_fault="it hangs")).value == 9.0


def test_scores_are_moved_to_epoch_0_by_what_anchors_show():
    history = correlated(ScoreHistory())
    assert history.estimate(candidate(0, 10.0, 1)).value == 9.0
    for agent in range(200, 300):
        other = EpochScore(epoch=0, mean_return=5.0, standard_error=2.0, episodes=64)
        history.add(candidate(agent, 9.0, 1, other_epochs=[other]))
    assert history.effects().of(1) == pytest.approx(4.0, rel=0.02)
    assert history.estimate(candidate(0, 10.0, 1)).value == pytest.approx(5.0, abs=0.1)
    assert history.estimate(candidate(0, 10.0, 0)).value == 9.0


def test_the_correlation_is_that_of_different_agents_in_the_same_epoch():
    history = correlated(ScoreHistory())
    assert history.episodes.pairs == 8 * 7 // 2
    assert history.correlation == pytest.approx(0.8, abs=0.1)
    pairs = history.episodes.pairs
    history.add(candidate(0, 0.0, 1, episode_returns=[1.0, 2.0, 3.0, 5.0]))
    history.add(candidate(0, 0.0, 1, episode_returns=[1.0, 2.0, 3.0, 5.0]))
    assert history.episodes.pairs == pairs, "a candidate was compared with its own agent or with another epoch"


def test_a_new_candidate_is_compared_with_a_limited_number_of_agents():
    history, random = ScoreHistory(), Random(2)
    for agent in range(100):
        history.add(candidate(agent, 0.0, episode_returns=[random.gauss(0, 1) for _ in range(8)]))
    assert history.episodes.pairs <= 8 * 100


def test_candidates_of_earlier_versions_have_no_effect_on_epochs():
    old = Candidate(agent_id="race-a0", score=10.0, standard_error=2.0)
    history = ScoreHistory([old])
    assert history.estimate(old).value == 10.0
    assert (history.correlation, history.effects().of(1)) == (0.0, 0.0)


def test_a_synchronous_tournament_knows_only_earlier_rounds_and_the_own_agent():
    spec = TournamentSpec(synchronous=True, pool=PoolSpec(maximum_pods=2))
    returns = [1.0, 3.0, 2.0, 9.0]
    seen = [candidate(n, 10.0 * n, sequence=9 - n, episode_returns=returns) for n in (0, 1, 2, 3)]
    new = candidate(3, 50.0)
    rounds = RoundHistory()
    history = rounds.of(spec, seen, new)
    assert history.estimate(new).value == 40.0
    assert rounds.of(spec, seen, new).estimate(new).value == 40.0, "the earlier rounds were changed"
    # Agent 2 trains at the same time, so whether its score is there already must not matter.
    assert history.estimate(candidate(2, 50.0)).value == 49.0
    assert history.correlation == RoundHistory().of(spec, list(reversed(seen)), new).correlation


def test_the_estimate_is_stored_with_the_correlation_that_was_known():
    history = correlated(ScoreHistory())
    new = candidate(0, 10.0)
    add_estimate(new, history)
    assert (new.estimate, new.estimate_error) == (9.0, 2.0)
    assert new.episode_correlation == history.correlation


def test_a_copy_continues_separately():
    history = correlated(ScoreHistory([candidate(0, 10.0)]))
    copy = history.copy()
    assert copy.correlation == history.correlation
    copy.add(candidate(0, 50.0, episode_returns=[1.0, 5.0, 2.0, 8.0]))
    assert history.estimate(candidate(0, 30.0)).value == 20.0
    assert copy.estimate(candidate(0, 30.0)).value == 40.0
    assert copy.episodes.pairs > history.episodes.pairs


def test_an_agent_that_continues_another_has_the_scores_of_the_trial():
    history = ScoreHistory([candidate(0, 10.0, trial=0)])
    assert history.estimate(candidate(5, 30.0, trial=0)).value == 20.0
    assert history.estimate(candidate(5, 30.0, trial=5)).value == 29.0

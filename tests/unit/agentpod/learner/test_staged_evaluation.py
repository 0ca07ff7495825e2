"""An evaluation in stages gives the same score as one call, and stops as soon as its bar is out of reach."""

import statistics

import pytest

from agentpod.learner.staged_evaluation import Bars, bars_of, evaluate_in_stages, joined
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Trace
from podrace.comparison.racing import Bar
from podrace.errors import DataLoss, InvalidArgument
from podrace.leaderboard.v1 import leaderboard_pb2 as pb

RETURNS = [float(value * value % 17) for value in range(64)]


def part(first: int, count: int, **fields) -> Evaluation:
    returns = RETURNS[first : first + count]
    return Evaluation(
        mean_return=statistics.fmean(returns),
        variance=statistics.variance(returns) if count > 1 else 0.0,
        episodes=count,
        mean_length_steps=float(first),
        episode_returns=returns,
        policy_digest="d",
        wall_seconds=1.0,
        **fields,
    )


def one_bar(score: float) -> Bars:
    return Bars(Bar(score, 0.1), Bar(score, 0.1))


class Player:
    """Plays the recorded returns, and records what was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    async def __call__(self, first: int, count: int) -> Evaluation:
        self.calls.append((first, count))
        return part(first, count)


async def test_without_a_bar_all_episodes_are_played_at_once():
    player = Player()
    evaluation = await evaluate_in_stages(player, 64, 8, None)
    assert player.calls == [(0, 64)]
    assert evaluation.episodes == 64


async def test_an_evaluation_that_stays_open_plays_every_stage_and_gives_the_whole_score():
    player, bar = Player(), one_bar(statistics.fmean(RETURNS))
    evaluation = await evaluate_in_stages(player, 64, 8, bar)
    assert player.calls == [(0, 8), (8, 8), (16, 16), (32, 32)]
    whole = part(0, 64)
    assert evaluation.mean_return == pytest.approx(whole.mean_return)
    assert evaluation.variance == pytest.approx(whole.variance)
    assert list(evaluation.episode_returns) == RETURNS


async def test_an_evaluation_far_behind_the_bar_stops():
    player = Player()
    evaluation = await evaluate_in_stages(player, 64, 8, one_bar(1000.0))
    assert player.calls == [(0, 8)]
    assert evaluation.episodes == 8


@pytest.mark.parametrize("bars", [None, one_bar(statistics.fmean(RETURNS))])
async def test_an_evaluation_without_time_for_the_next_stage_stops(bars):
    player, asked = Player(), []

    def affords(taken: float, further: float) -> bool:
        asked.append((taken, further))
        return len(asked) < 2

    evaluation = await evaluate_in_stages(player, 64, 8, bars, affords=affords)
    assert player.calls == [(0, 8), (8, 8)]
    # Each part took a second, and the third one has twice as many episodes as the second.
    assert asked == [(1.0, 1.0), (2.0, 2.0)]
    assert evaluation.episodes == 16


async def test_an_evaluation_far_ahead_of_the_bar_plays_all_episodes():
    # It leads, or enters where it may lead: its score must be precise.
    player = Player()
    await evaluate_in_stages(player, 64, 8, one_bar(-1000.0))
    assert sum(count for _, count in player.calls) == 64


async def test_an_evaluation_that_enters_and_cannot_lead_stops():
    player = Player()
    await evaluate_in_stages(player, 64, 8, Bars(entry=Bar(-1000.0, 0.1), lead=Bar(1000.0, 0.1)))
    assert player.calls == [(0, 8)]


async def test_an_evaluation_that_enters_and_may_lead_continues():
    player = Player()
    await evaluate_in_stages(player, 64, 8, Bars(Bar(-1000.0, 0.1), Bar(statistics.fmean(RETURNS), 0.1)))
    assert sum(count for _, count in player.calls) == 64


async def test_an_evaluation_that_may_enter_continues_although_it_cannot_lead():
    player = Player()
    await evaluate_in_stages(player, 64, 8, Bars(Bar(statistics.fmean(RETURNS), 0.1), Bar(1000.0, 0.1)))
    assert sum(count for _, count in player.calls) == 64


async def test_a_stage_is_not_smaller_than_the_lanes():
    player = Player()
    await evaluate_in_stages(player, 64, 32, one_bar(1000.0))
    assert player.calls == [(0, 32)]


def test_parts_are_joined_by_episodes():
    one, other = part(0, 3), part(3, 5)
    one.metrics["a"], other.metrics["a"] = 1.0, 9.0
    one.traces["t"].CopyFrom(Trace(values=[1.0]))
    whole = joined([one, other])
    assert whole.episodes == 8
    assert whole.mean_return == pytest.approx(statistics.fmean(RETURNS[:8]))
    assert whole.variance == pytest.approx(statistics.variance(RETURNS[:8]))
    assert whole.mean_length_steps == pytest.approx((3 * 0.0 + 5 * 3.0) / 8)
    assert whole.wall_seconds == 2.0
    assert whole.metrics["a"] == pytest.approx((3 * 1.0 + 5 * 9.0) / 8)
    assert list(whole.traces["t"].values) == [1.0]


def test_without_all_returns_none_are_listed():
    other = part(3, 5)
    other.ClearField("episode_returns")
    assert not joined([part(0, 3), other]).episode_returns


def test_parts_of_different_policies_are_an_error():
    other = part(3, 5)
    other.policy_digest = "e"
    with pytest.raises(DataLoss, match="different parameters"):
        joined([part(0, 3), other])


def plan(**fields) -> pb.PlanEvaluationResponse:
    return pb.PlanEvaluationResponse(bar=pb.Bar(**{"score": 1.0, "standard_error": 0.5, **fields}))


def test_a_plan_gives_the_bars():
    entry, lead = Bar(1.0, 0.5, (1.0, 2.0)), Bar(3.0, 0.25)
    assert bars_of(plan(episode_returns=[1.0, 2.0])) == Bars(entry, entry)
    answer = plan(episode_returns=[1.0, 2.0])
    answer.lead.CopyFrom(pb.Bar(score=3.0, standard_error=0.25))
    assert bars_of(answer) == Bars(entry, lead)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        pb.PlanEvaluationResponse(),
        plan(score=float("nan")),
        plan(standard_error=-1.0),
        plan(episode_returns=[1.0, float("inf")]),
        pb.PlanEvaluationResponse(bar=pb.Bar(score=1.0), lead=pb.Bar(score=float("inf"))),
    ],
)
def test_a_plan_without_usable_bars_has_none(answer):
    assert bars_of(answer) is None


def folded(first: int, count: int) -> Evaluation:
    return part(
        first,
        count,
        episode_folds=[1 + episode % 3 for episode in range(first, first + count)],
        episode_metrics={"sharpe_ratio": float(first)},
        objective="sharpe_ratio",
        undiscounted_return=float(first),
    )


def test_folds_and_measures_of_the_parts_are_joined():
    whole = joined([folded(0, 8), folded(8, 24)])
    assert list(whole.episode_folds) == [1 + episode % 3 for episode in range(32)]
    assert dict(whole.episode_metrics) == {"sharpe_ratio": 6.0}
    assert whole.undiscounted_return == 6.0
    assert whole.objective == "sharpe_ratio"


async def test_the_penalty_for_folds_is_that_of_all_episodes_however_many_stages_there_were():
    async def play(first: int, count: int) -> Evaluation:
        return folded(first, count)

    at_once = await evaluate_in_stages(play, 64, 8, None, fold_deviations=0.5)
    bar = one_bar(statistics.fmean(at_once.episode_returns))
    staged = await evaluate_in_stages(play, 64, 8, bar, fold_deviations=0.5)
    means = [statistics.fmean(RETURNS[fold::3]) for fold in range(3)]
    assert at_once.mean_return == pytest.approx(statistics.fmean(RETURNS) - 0.5 * statistics.stdev(means))
    assert at_once.fold_deviation == pytest.approx(statistics.stdev(means))
    assert staged.episodes == 64
    assert staged.mean_return == pytest.approx(at_once.mean_return)
    assert list(staged.episode_returns) == pytest.approx(list(at_once.episode_returns))


async def test_a_penalty_without_folds_is_refused():
    with pytest.raises(InvalidArgument, match="the simulator reports no folds"):
        await evaluate_in_stages(Player(), 8, 8, None, fold_deviations=0.5)

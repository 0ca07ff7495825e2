"""Validation folds: no bar of a fold, or that its features depend on, is traded in training, or the reverse."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from podrace.errors import InvalidArgument
from simulators.stocks.folds import Block, place_folds
from simulators.stocks.indicators import INDICATOR_HISTORY_DAYS
from simulators.stocks.market import Market, load_market
from simulators.stocks.options import StockOptions

WriteFrame = Callable[[pd.DataFrame], str]


def days(count: int, bars: int = 1) -> np.ndarray:
    return np.repeat(np.datetime64("2020-01-01") + np.arange(count), bars)


def test_three_folds_of_a_hundred_days_placed_by_hand() -> None:
    folds = place_folds(days(110), range(10, 100), 82, 3, lambda row: max(0, row - 5))
    assert folds.validation == (
        Block(range(34, 40), known=29),
        Block(range(64, 70), known=59),
        Block(range(94, 100), known=89),
    )
    assert folds.training == (
        Block(range(10, 29), known=0),
        Block(range(45, 59), known=40),
        Block(range(75, 89), known=70),
    )


def test_one_fold_is_the_period_of_validation_purged_from_training() -> None:
    folds = place_folds(days(100), range(10, 90), 70, 1, lambda row: max(0, row - 5))
    assert folds.validation == (Block(range(70, 90), known=65),)
    assert folds.training == (Block(range(10, 65)),)


def test_an_embargo_moves_the_training_after_a_fold_only() -> None:
    folds = place_folds(days(110), range(10, 100), 82, 3, lambda row: max(0, row - 5), embargo=3)
    assert [block.rows for block in folds.training] == [range(10, 29), range(48, 59), range(78, 89)]
    assert [block.known for block in folds.training] == [0, 43, 73]


def test_folds_and_training_begin_and_end_with_whole_days() -> None:
    folds = place_folds(days(60, bars=4), range(10, 240), 200, 2, lambda row: max(0, row - 5))
    # Five days each; the look-back of five bars takes two days on both sides of a fold.
    assert [block.rows for block in folds.validation] == [range(104, 124), range(220, 240)]
    assert [block.rows for block in folds.training] == [range(10, 96), range(132, 212)]


def test_too_many_folds_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="option 'folds': 21 folds need 21 days from train_end"):
        place_folds(days(100), range(10, 90), 70, 21, lambda row: row - 5)
    with pytest.raises(InvalidArgument, match="leave no 3 rows in a row to train on"):
        place_folds(days(100), range(10, 90), 70, 10, lambda row: max(0, row - 8))


@settings(max_examples=200)
@given(
    total=st.integers(60, 300),
    bars=st.integers(1, 5),
    count=st.integers(1, 8),
    look_back=st.integers(0, 30),
    embargo=st.integers(0, 20),
    share=st.floats(0.1, 0.5),
)
def test_training_and_folds_share_no_row_not_even_through_their_features(
    total: int, bars: int, count: int, look_back: int, embargo: int, share: float
) -> None:
    span = range(look_back, (total - 20) * bars)
    start = span.stop - round(share * len(span))
    try:
        folds = place_folds(days(total, bars), span, start, count, lambda row: max(0, row - look_back), embargo)
    except InvalidArgument:
        return
    traded, tested = (_rows(part, lambda block: block.rows) for part in (folds.training, folds.validation))
    seen, shown = (
        _rows(part, lambda block: range(block.known, block.rows.stop)) for part in (folds.training, folds.validation)
    )
    assert not tested & seen
    assert not traded & shown
    assert traded | tested <= set(span)
    assert len(folds.validation) == count
    assert max(tested) == span.stop - 1
    # Every block has the whole look-back before it, and it is all that its features use.
    assert all(block.rows.start - block.known >= min(look_back, block.rows.start) for block in folds.validation)
    assert all(block.rows.start - block.known >= look_back for block in folds.training)
    for fold in folds.validation:
        assert not traded & set(range(fold.rows.stop, fold.rows.stop + embargo + look_back))


def _rows(blocks: Iterable[Block], of: Callable[[Block], range]) -> set[int]:
    return {row for block in blocks for row in of(block)}


# --- the market of each split -------------------------------------------------------------------------------------

CUT = {"train_end": "2016-04-15", "validation_end": "2016-06-01", "folds": 2}


def changed(path: str, dates: Iterable[str], factor: float = 1.7) -> str:
    """Writes a copy of a file with other prices on some days, and returns its path."""
    frame = pd.read_csv(path, dtype={"date": str})
    rows = frame["date"].isin(set(dates)).to_numpy()
    generator = np.random.default_rng(1)
    for column in ("high", "low", "close", "adj_close"):
        frame.loc[rows, column] *= factor * generator.uniform(0.9, 1.1, int(rows.sum()))
    frame[["high", "low", "close"]] = np.sort(frame[["high", "low", "close"]].to_numpy(), axis=1)[:, [2, 0, 1]]
    frame["adj_close"] = frame["close"]
    copy = str(Path(path).with_name(f"changed-{abs(hash(tuple(sorted(dates))))}.csv"))
    frame.to_csv(copy, index=False)
    return copy


def same(one: Market, other: Market) -> bool:
    assert one.dates == other.dates
    return torch.equal(one.close, other.close) and torch.equal(one.features, other.features)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["scaled", "finrl"])
def test_prices_of_a_fold_change_nothing_in_training_and_the_reverse(
    random_prices: pd.DataFrame, write_prices: WriteFrame, layout: str
) -> None:
    options = StockOptions(path=write_prices(random_prices), layout=layout, **CUT)  # type: ignore[arg-type]
    training, validation = load_market(options), load_market(replace(options, split="validation"))
    assert len(training.blocks) == len(validation.blocks) == 2
    assert validation.folds == (1, 2)
    assert not training.folds
    assert not set(training.dates) & set(validation.dates)
    other_folds = replace(options, path=changed(options.path, validation.dates))
    assert same(load_market(other_folds), training)
    assert not same(load_market(replace(other_folds, split="validation")), validation)
    other_training = replace(options, path=changed(options.path, training.dates))
    assert same(load_market(replace(other_training, split="validation")), validation)
    assert not same(load_market(other_training), training)


def test_nothing_of_the_backtest_is_loaded_with_folds(random_prices: pd.DataFrame, write_prices: WriteFrame) -> None:
    options = StockOptions(path=write_prices(random_prices), **CUT)  # type: ignore[arg-type]
    later = [date for date in random_prices["date"].unique() if date >= CUT["validation_end"]]  # type: ignore[operator]
    other = replace(options, path=changed(options.path, later))
    for split in ("train", "validation"):
        market = load_market(replace(options, split=split))
        assert max(market.dates) < str(CUT["validation_end"])
        assert same(load_market(replace(other, split=split)), market)


def test_with_turbulence_a_fold_is_purged_by_its_longer_look_back(
    random_prices: pd.DataFrame, write_prices: WriteFrame
) -> None:
    given = {**CUT, "folds": 2, "turbulence_threshold": 20.0, "turbulence_days": 80}
    options = StockOptions(path=write_prices(random_prices), **given)  # type: ignore[arg-type]
    training, validation = load_market(options), load_market(replace(options, split="validation"))
    assert training.turbulent is not None
    assert validation.turbulent is not None
    for one, others in ((validation, training), (training, validation)):
        split = "validation" if one is validation else "train"
        other = load_market(replace(options, split=split, path=changed(options.path, others.dates)))
        assert same(other, one)
        assert other.turbulent is not None
        assert one.turbulent is not None
        assert torch.equal(other.turbulent, one.turbulent)
    every_day = sorted(random_prices["date"].unique())
    first = every_day.index(validation.dates[0])
    assert every_day[first - 82] in training.dates
    assert every_day[first - 81] not in training.dates


def test_the_features_of_a_fold_do_not_depend_on_how_many_folds_are_played(
    random_prices: pd.DataFrame, write_prices: WriteFrame
) -> None:
    path = write_prices(random_prices)
    both = load_market(StockOptions(path=path, split="validation", **CUT))  # type: ignore[arg-type]
    for number, block in enumerate(both.blocks, start=1):
        one = load_market(StockOptions(path=path, split="validation", fold=number, **CUT))  # type: ignore[arg-type]
        assert one.folds == (number,)
        assert torch.equal(one.features, both.features[block.start : block.stop])


def test_every_fold_must_have_room_for_an_episode(random_prices: pd.DataFrame, write_prices: WriteFrame) -> None:
    options = StockOptions(path=write_prices(random_prices), split="validation", episode_days=60, **CUT)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="validation fold 1 of 2 has 16 of the 60 days that an episode needs"):
        load_market(options)


def test_training_leaves_out_blocks_that_are_shorter_than_an_episode(
    random_prices: pd.DataFrame, write_prices: WriteFrame
) -> None:
    options = StockOptions(path=write_prices(random_prices), **CUT)  # type: ignore[arg-type]
    lengths = [len(block) for block in load_market(options).blocks]
    longest = max(lengths)
    assert [len(block) for block in load_market(replace(options, episode_days=longest)).blocks] == [longest]
    with pytest.raises(InvalidArgument, match=f"leave no {longest + 1} rows in a row to train on"):
        load_market(replace(options, episode_days=longest + 1))


def test_minute_bars_have_folds_of_whole_days() -> None:
    path = "synthetic:minute?symbols=3&days=60&seed=1&bar_minutes=30"
    options = StockOptions(path=path, layout="minute", train_end="2020-02-20", validation_end="2020-03-15", folds=3)
    training, validation = load_market(options), load_market(replace(options, split="validation"))
    assert training.bars_a_day == 13
    assert {len(block) % 13 for block in validation.blocks} == {0}
    assert not set(training.dates) & set(validation.dates)
    gap = -(-INDICATOR_HISTORY_DAYS // 13)
    dates = sorted({*training.dates, *validation.dates})
    first = np.datetime64(validation.dates[0])
    before = max(np.datetime64(date) for date in dates if np.datetime64(date) < first)
    assert np.busday_count(before, first) == gap + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folds": -1}, "'folds' must be 0 to 100, not -1"),
        ({"folds": 101}, "'folds' must be 0 to 100, not 101"),
        ({"folds": 3, "fold": 4}, "'fold' must be 0 to folds = 3, not 4"),
        ({"fold": 1}, "'fold' must be 0 to folds = 0, not 1"),
        ({"embargo_bars": -1}, "'embargo_bars' must be at least 0, not -1"),
    ],
)
def test_options_of_folds_out_of_range_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        StockOptions(**changes)  # type: ignore[arg-type]

import numpy as np
import pytest

from podrace.errors import InvalidArgument
from simulators import make
from simulators.stocks.bars import check_bars
from simulators.stocks.synthetic import (
    REGIME_CHANGE,
    REGIME_VOLATILITY,
    SyntheticMarket,
    intraday_shape,
    parse_synthetic,
    regimes,
    synthesize,
    synthetic_bars,
)

MARKET = SyntheticMarket(symbols=12, days=250, seed=4, bar_minutes=15)
BARS = synthetic_bars(MARKET)
A_DAY = 26
CLOSE = BARS.close.reshape(250, A_DAY, 12)
OPEN = BARS.open.reshape(250, A_DAY, 12)
WITHIN = np.log(CLOSE / OPEN)
GAPS = np.log(OPEN[1:, 0] / CLOSE[:-1, -1])


def test_the_bars_are_valid() -> None:
    check_bars("synthetic", BARS)
    assert BARS.close.shape == (250 * A_DAY, 12)
    assert (BARS.low <= np.minimum(BARS.open, BARS.close)).all()
    assert (BARS.high >= np.maximum(BARS.open, BARS.close)).all()
    assert (BARS.low > 0).all()
    # Within a day, a bar opens where the bar before it closed.
    np.testing.assert_allclose(OPEN[:, 1:], CLOSE[:, :-1])
    assert not BARS.daily


def test_a_seed_determines_the_market() -> None:
    again, other = synthetic_bars(MARKET), synthetic_bars(SyntheticMarket(**{**vars(MARKET), "seed": 5}))
    np.testing.assert_array_equal(BARS.close, again.close)
    np.testing.assert_array_equal(BARS.volume, again.volume)
    assert not np.allclose(BARS.close, other.close)


def test_the_bars_start_at_half_past_nine_in_new_york_in_summer_and_in_winter() -> None:
    times = BARS.time_utc_seconds.reshape(250, A_DAY)
    of_day = times[:, 0] % 86_400
    assert set(of_day.tolist()) == {14 * 3600 + 1800, 13 * 3600 + 1800}
    assert (np.diff(times, axis=1) == 900).all()
    dates = times[:, 0].astype("datetime64[s]").astype("datetime64[D]")
    np.testing.assert_array_equal(dates, BARS.date.reshape(250, A_DAY)[:, 0])
    assert np.is_busday(dates).all()


def test_volatility_is_high_at_the_open_and_the_close() -> None:
    shape = intraday_shape(A_DAY)
    assert shape[0] == shape.max() == pytest.approx(shape[-1])
    assert shape[A_DAY // 2] == pytest.approx(shape.min(), rel=1e-2)
    assert np.mean(shape**2) == pytest.approx(1)
    measured = WITHIN.std(axis=(0, 2))
    assert np.corrcoef(measured, shape)[0, 1] > 0.98


def test_a_year_is_as_volatile_as_stocks_are_and_a_quarter_of_it_comes_overnight() -> None:
    daily = np.log(CLOSE[1:, -1] / CLOSE[:-1, -1])
    volatility = daily.std(0) * np.sqrt(252)
    assert (volatility > 0.1).all()
    assert (volatility < 0.9).all()
    share = (GAPS.var(0) / daily.var(0)).mean()
    assert 0.17 < share < 0.33


def test_stocks_move_together_and_those_of_a_sector_more() -> None:
    # Relative to the day's volatility, which would correlate magnitudes but not signs.
    correlation = np.corrcoef(WITHIN.reshape(-1, 12).T)
    sector = np.arange(12) % 3
    same = (sector[:, None] == sector) & ~np.eye(12, dtype=bool)
    different = sector[:, None] != sector
    assert 0.25 < correlation[different].mean() < 0.45
    assert correlation[same].mean() > correlation[different].mean() + 0.08


def test_regimes_follow_their_markov_chain() -> None:
    chain = regimes(np.random.default_rng(0), 40_000)
    assert set(np.unique(chain)) == {0, 1}
    for regime in (0, 1):
        left = (chain[1:] != chain[:-1])[chain[:-1] == regime].mean()
        assert left == pytest.approx(REGIME_CHANGE[regime], abs=0.01)
    # Volatility clusters: the regime of a day is visible in the bars of the market drawn from the same numbers.
    drawn = regimes(np.random.default_rng(MARKET.seed), MARKET.days)
    ratio = WITHIN[drawn == 1].std() / WITHIN[drawn == 0].std()
    assert ratio == pytest.approx(REGIME_VOLATILITY[1] / REGIME_VOLATILITY[0], rel=0.08)


def test_volume_is_high_when_prices_move() -> None:
    volume = BARS.volume.reshape(250, A_DAY, 12)
    assert volume[:, 0].mean() > 1.5 * volume[:, A_DAY // 2].mean()
    quiet = volume[:, 10:16][np.abs(WITHIN[:, 10:16]) < np.quantile(np.abs(WITHIN[:, 10:16]), 0.2)]
    wild = volume[:, 10:16][np.abs(WITHIN[:, 10:16]) > np.quantile(np.abs(WITHIN[:, 10:16]), 0.8)]
    assert wild.mean() > 1.5 * quiet.mean()
    np.testing.assert_array_equal(BARS.volume, np.round(BARS.volume))


def test_a_path_names_a_market() -> None:
    assert parse_synthetic("synthetic:minute") == SyntheticMarket()
    named = parse_synthetic("synthetic:minute?symbols=3&days=9&seed=7&bar_minutes=1&start=2021-03-01")
    assert named == SyntheticMarket(3, 9, 7, 1, "2021-03-01")
    assert parse_synthetic(named.path) == named
    np.testing.assert_array_equal(synthesize(named.path).close, synthetic_bars(named).close)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("synthetic:daily", "unknown kind 'daily', expected synthetic:minute"),
        ("synthetic:minute?symbol=3", "unknown option 'symbol'; did you mean 'symbols'?"),
        ("synthetic:minute?symbols=many", "option 'symbols' must be int, not 'many'"),
        ("synthetic:minute?symbols", "bad query field: 'symbols'; write synthetic:minute"),
        ("synthetic:minute?days=2", "days must be 3 to 10000, not 2"),
        ("synthetic:minute?bar_minutes=7", "bar_minutes must divide the 390 minutes"),
        ("synthetic:minute?start=soon", "start is not a date: 'soon'"),
    ],
)
def test_an_invalid_path_is_refused(path: str, line: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_synthetic(path)
    assert line in caught.value.message


def test_the_days_are_split_into_training_validation_and_backtest() -> None:
    days = SyntheticMarket(days=100)
    assert days.split_dates == {"train_end": str(days.dates[69]), "validation_end": str(days.dates[84])}
    for split in ("train", "validation", "backtest"):
        simulator = make("stocks", 1, {"layout": "minute", "split": split, "episode_days": 2})
        assert simulator.observation_space.shape == (3 + 10 * 10,)

"""Generates the bars of a synthetic market from a seed, for experiments without redistributable minute prices.

A market is named by a path: `synthetic:minute?symbols=10&days=60&seed=1`, with any of the fields of SyntheticMarket. It
has the known properties of minute prices (Cont 2001, "Empirical properties of asset returns"; Andersen & Bollerslev
1997, "Intraday periodicity and volatility persistence in financial markets"): correlation through common factors,
high volatility at the open and the close, overnight gaps, volatility clustering, and volume that moves with volatility.
"""

from dataclasses import dataclass, fields
from datetime import date, datetime, time
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

import numpy as np

from podrace.errors import InvalidArgument
from simulators.options import parse_options
from simulators.stocks.bars import Array, Bars, Metadata

PREFIX = "synthetic:"
KIND = "minute"
TIMEZONE = "America/New_York"
SESSION_MINUTES = 390
OPENING_MINUTE = 570
"""09:30, in minutes after midnight."""
TRADING_DAYS_A_YEAR = 252
OVERNIGHT_SHARE = 0.25
"""Fraction of a day's variance that occurs between two sessions."""
SECTORS = 3
"""Number of factors besides the market; every stock belongs to one."""
MARKET_SHARE, SECTOR_SHARE = 0.35, 0.15
"""Average fractions of a stock's variance due to the market and to the sector; the rest is specific to the stock."""
REGIME_VOLATILITY = (0.7, 1.8)
"""Volatility of a calm and of a turbulent day, relative to the stock's own."""
REGIME_DRIFT = (0.15, -0.25)
"""Expected annual return in each regime."""
REGIME_CHANGE = (0.05, 0.15)
"""Probability that the next day has the other regime, by the current regime."""
SHAPE_DEPTH = 1.5
"""By how much the volatility at the open and the close exceeds that at noon, which is about 1."""


@dataclass(frozen=True)
class SyntheticMarket:
    """Parameters of a synthetic market, which its path sets.

    Raises:
        InvalidArgument: A value is out of range.
    """

    symbols: int = 10
    """Number of stocks, named S00, S01, ..."""
    days: int = 60
    seed: int = 1
    bar_minutes: int = 5
    """Length of a bar; must divide the 390 minutes of a session."""
    start: str = "2020-01-02"
    """Trading starts on the first weekday at or after this date: only weekdays are trading days."""

    def __post_init__(self) -> None:
        for name, low, high in (("symbols", 1, 1000), ("days", 3, 10_000), ("seed", 0, 2**62), ("bar_minutes", 1, 195)):
            if not low <= getattr(self, name) <= high:
                raise InvalidArgument(f"{PREFIX}{KIND}: {name} must be {low} to {high}, not {getattr(self, name)}")
        if SESSION_MINUTES % self.bar_minutes:
            raise InvalidArgument(
                f"{PREFIX}{KIND}: bar_minutes must divide the {SESSION_MINUTES} minutes of a session, "
                f"not {self.bar_minutes}"
            )
        try:
            year = date.fromisoformat(self.start).year
        except ValueError as error:
            raise InvalidArgument(f"{PREFIX}{KIND}: start is not a date: {self.start!r} (write 2010-01-31)") from error
        if not 1700 <= year <= 2200:
            raise InvalidArgument(f"{PREFIX}{KIND}: start must be in the years 1700 to 2200, not {self.start}")

    @property
    def path(self) -> str:
        """The path that names this market."""
        return f"{PREFIX}{KIND}?" + "&".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    @property
    def dates(self) -> np.ndarray[tuple[int], np.dtype[np.datetime64]]:
        """[days] datetime64[D]."""
        return np.busday_offset(np.datetime64(self.start, "D"), np.arange(self.days), roll="forward")

    @property
    def split_dates(self) -> dict[str, object]:
        """Options `train_end` and `validation_end` that give training 70 % and validation 15 % of the days."""
        validation, backtest = (self.dates[round(share * (self.days - 1))] for share in (0.7, 0.85))
        return {"train_end": str(validation), "validation_end": str(backtest)}


def is_synthetic(path: str) -> bool:
    """Whether a path names a synthetic market rather than a file."""
    return path.startswith(PREFIX)


def parse_synthetic(path: str) -> SyntheticMarket:
    """Reads the path of a synthetic market.

    Raises:
        InvalidArgument: The path is malformed; the message names the part.
    """
    kind, _, query = path.removeprefix(PREFIX).partition("?")
    if kind != KIND:
        raise InvalidArgument(f"option 'path': {path}: unknown kind {kind!r}, expected {PREFIX}{KIND}")
    texts = {field.name for field in fields(SyntheticMarket) if field.type is str}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        values = {name: text if name in texts or not _is_whole(text) else int(text) for name, text in pairs}
    except ValueError as error:
        raise InvalidArgument(f"option 'path': {path}: {error}; write {SyntheticMarket().path}") from error
    return parse_options(f"{PREFIX}{KIND}", values, SyntheticMarket)


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def synthesize(path: str) -> Bars:
    """Generates the bars of a synthetic market, given its path.

    Raises:
        InvalidArgument: The path is malformed.
    """
    return synthetic_bars(parse_synthetic(path))


def synthetic_bars(market: SyntheticMarket) -> Bars:
    """Generates the bars of a synthetic market; the same fields give the same bars.

    The return of stock i in a bar is s_i v_d u_b (b_i m + c_i f_g(i) + e_i) + drift, with standard normal factors m, f
    and e; s_i is the stock's own volatility, v_d that of the day's regime (a two-state Markov chain), and u_b the
    U-shaped profile of the session.
    """
    generator = np.random.default_rng(market.seed)
    bars_a_day, stocks = SESSION_MINUTES // market.bar_minutes, market.symbols
    regime = regimes(generator, market.days)
    volatility = generator.uniform(0.15, 0.45, stocks) / np.sqrt(TRADING_DAYS_A_YEAR)
    level = volatility * np.array(REGIME_VOLATILITY)[regime][:, None]  # [days, n], of a whole day
    shape = intraday_shape(bars_a_day)
    loadings = _loadings(generator, stocks)
    drift = (np.array(REGIME_DRIFT)[regime] / TRADING_DAYS_A_YEAR / bars_a_day)[:, None, None]
    within = np.sqrt((1 - OVERNIGHT_SHARE) / bars_a_day) * shape[None, :, None] * level[:, None, :]
    returns = drift - within**2 / 2 + within * _correlated(generator, loadings, (market.days, bars_a_day))
    gaps = np.sqrt(OVERNIGHT_SHARE) * level * _correlated(generator, loadings, (market.days,))
    gaps[0] = 0.0
    log_open = np.log(generator.uniform(20, 300, stocks)) + np.cumsum(gaps, 0) + _before(returns.sum(1))
    log_close = log_open[:, None, :] + np.cumsum(returns, 1)
    opening = np.concatenate([log_open[:, None, :], log_close[:, :-1]], axis=1)
    reach = 0.5 * within * np.abs(generator.standard_normal((2, *returns.shape)))
    surprise = np.abs(returns) / within
    volume = np.exp(generator.normal(10, 0.3, returns.shape)) * shape[None, :, None] * (0.5 + surprise)
    volume *= np.array(REGIME_VOLATILITY)[regime][:, None, None]
    return _bars(market, opening, log_close, reach, np.round(volume))


def regimes(generator: np.random.Generator, days: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Draws the regime of each day, [days]: 0 calm, 1 turbulent; the first day is calm."""
    regime = np.zeros(days, np.int64)
    for day, draw in enumerate(generator.random(days - 1), start=1):
        regime[day] = regime[day - 1] ^ int(draw < REGIME_CHANGE[regime[day - 1]])
    return regime


def intraday_shape(bars_a_day: int) -> Array:
    """Returns the U-shaped volatility of each bar of a session, [bars_a_day]; its mean square is 1."""
    place = (np.arange(bars_a_day) + 0.5) / bars_a_day
    shape = 1 + SHAPE_DEPTH * (2 * place - 1) ** 2
    result: Array = shape / np.sqrt((shape**2).mean())
    return result


def _loadings(generator: np.random.Generator, stocks: int) -> Array:
    """Draws loadings on the common factors, [1 + SECTORS, n]; the squares of a stock's sum to less than 1."""
    market = np.sqrt(generator.uniform(MARKET_SHARE - 0.15, MARKET_SHARE + 0.15, stocks))
    sectors = np.zeros((SECTORS, stocks))
    sectors[np.arange(stocks) % SECTORS, np.arange(stocks)] = np.sqrt(
        generator.uniform(SECTOR_SHARE - 0.1, SECTOR_SHARE + 0.1, stocks)
    )
    return np.concatenate([market[None], sectors])


def _correlated(generator: np.random.Generator, loadings: Array, shape: tuple[int, ...]) -> Array:
    """Draws standard normal numbers, [*shape, n], correlated through the common factors."""
    common = generator.standard_normal((*shape, len(loadings))) @ loadings
    own = np.sqrt(1 - (loadings**2).sum(0))
    result: Array = common + own * generator.standard_normal((*shape, loadings.shape[1]))
    return result


def _before(daily: Array) -> Array:
    """Returns the sum over all previous days, [days, n]."""
    return np.concatenate([np.zeros_like(daily[:1]), np.cumsum(daily, 0)[:-1]])


def _bars(market: SyntheticMarket, opening: Array, closing: Array, reach: Array, volume: Array) -> Bars:
    stocks = market.symbols
    opened, closed, upper, lower, volume = (
        values.reshape(-1, stocks)
        for values in (
            opening,
            closing,
            np.maximum(opening, closing) + reach[0],
            np.minimum(opening, closing) - reach[1],
            volume,
        )
    )
    never = np.zeros(closed.shape, bool)
    return Bars(
        open=np.exp(opened),
        high=np.exp(upper),
        low=np.exp(lower),
        close=np.exp(closed),
        volume=volume,
        filled=never,
        repaired=never,
        member=~never,
        time_utc_seconds=_times(market),
        date=np.repeat(market.dates, SESSION_MINUTES // market.bar_minutes),
        half_day=never[:, 0],
        index_close=np.empty(0),
        tickers=tuple(f"S{number:02d}" for number in range(stocks)),
        metadata=Metadata("none", TIMEZONE, 60 * market.bar_minutes, market.path, ""),
    )


def _times(market: SyntheticMarket) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the starts of the bars in Unix seconds, [bars]; New York's UTC offset changes twice a year."""
    minutes = OPENING_MINUTE + np.arange(0, SESSION_MINUTES, market.bar_minutes)
    zone = ZoneInfo(TIMEZONE)
    offsets = [
        int(day.astype("datetime64[s]").astype(np.int64)) - _noon_offset_seconds(day.astype(date), zone)
        for day in market.dates
    ]
    result: np.ndarray[tuple[int], np.dtype[np.int64]] = (np.array(offsets)[:, None] + 60 * minutes).reshape(-1)
    return result


def _noon_offset_seconds(day: date, zone: ZoneInfo) -> int:
    offset = datetime.combine(day, time(12), zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds())

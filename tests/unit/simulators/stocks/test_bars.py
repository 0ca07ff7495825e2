import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from podrace.errors import InvalidArgument
from simulators import make
from simulators.stocks.bars import Bars, check_bars, read_bars, write_bars
from simulators.stocks.data import load_prices
from simulators.stocks.synthetic import SyntheticMarket, synthetic_bars


@pytest.fixture
def bars() -> Bars:
    made = synthetic_bars(SyntheticMarket(symbols=3, days=4, bar_minutes=30))
    filled = np.zeros(made.filled.shape, bool)
    filled[5, 1] = True
    metadata = replace(made.metadata, source_digest="d" * 64, notes=("one", "two"), index="QQQ")
    return replace(made, filled=filled, index_close=made.close.mean(1), metadata=metadata)


def test_an_array_file_gives_back_what_was_written(tmp_path: Path, bars: Bars) -> None:
    path = str(tmp_path / "prices.npz")
    write_bars(path, bars)
    again = read_bars(path)
    assert (again.tickers, again.metadata) == (bars.tickers, bars.metadata)
    for name in ("open", "high", "low", "close", "volume", "filled", "repaired", "member", "date", "index_close"):
        written, read = getattr(bars, name), getattr(again, name)
        assert (read.dtype, read.tolist()) == (written.dtype, written.tolist()), name
    assert again.close.dtype == np.float64
    assert [each.name for each in tmp_path.iterdir()] == ["prices.npz"]


def test_the_same_bars_give_the_same_bytes(tmp_path: Path, bars: Bars) -> None:
    digests = set()
    for name in ("a.npz", "b.npz"):
        write_bars(str(tmp_path / name), bars)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_an_existing_file_stays_intact_when_writing_fails(
    tmp_path: Path, bars: Bars, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prices.npz"
    write_bars(str(path), bars)
    before = path.read_bytes()

    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(InvalidArgument, match=r"prices\.npz cannot be written: No space left"):
        write_bars(str(path), replace(bars, tickers=("X", "Y", "Z")))
    assert path.read_bytes() == before


def test_a_file_that_is_not_an_array_file_is_named(tmp_path: Path, bars: Bars) -> None:
    path = tmp_path / "prices.npz"
    with pytest.raises(InvalidArgument, match=r"prices\.npz cannot be read: No such file"):
        read_bars(str(path))
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InvalidArgument, match=r"prices\.npz cannot be read as an array file .*: BadZipFile"):
        read_bars(str(path))
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InvalidArgument, match=r"prices\.npz cannot be read as an array file"):
        read_bars(str(path))
    np.savez(path, close=np.zeros((2, 2)))
    with pytest.raises(InvalidArgument, match=r"arrays missing: open, high, .*make the file with `podrace data build`"):
        read_bars(str(path))


def test_a_file_of_another_version_is_refused(tmp_path: Path, bars: Bars) -> None:
    path = str(tmp_path / "prices.npz")
    write_bars(path, replace(bars, metadata=replace(bars.metadata, version=2)))
    with pytest.raises(InvalidArgument, match="this version of the array file is not supported, expected 1"):
        read_bars(path)


def broken(bars: Bars, name: str, row: int, column: int, value: float) -> Bars:
    values = getattr(bars, name).copy()
    values[row, column] = value
    return replace(bars, **{name: values})


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("close", np.nan, "symbol 2 at .*Z: close is not a possible value"),
        ("open", 0.0, "symbol 2 at .*Z: open is not a possible value"),
        ("low", -1.0, "symbol 2 at .*Z: low is not a possible value"),
        ("volume", -5.0, "symbol 2 at .*Z: volume is not a possible value"),
        ("high", 1e-9, "symbol 2 at .*Z: high is not a possible value"),
    ],
)
def test_an_impossible_number_is_refused_with_its_place(bars: Bars, name: str, value: float, line: str) -> None:
    with pytest.raises(InvalidArgument, match=line):
        check_bars("file", broken(bars, name, 7, 1, value))


def test_inconsistent_arrays_are_refused(bars: Bars) -> None:
    with pytest.raises(InvalidArgument, match=r"volume is float64 .*, expected float64"):
        check_bars("file", replace(bars, volume=bars.volume[1:]))
    with pytest.raises(InvalidArgument, match="close is float32"):
        check_bars("file", replace(bars, close=bars.close.astype(np.float32)))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="not in ascending order"):
        check_bars("file", replace(bars, time_utc_seconds=bars.time_utc_seconds[::-1].copy()))
    with pytest.raises(InvalidArgument, match="each symbol once"):
        check_bars("file", replace(bars, tickers=("A", "B", "A")))
    with pytest.raises(InvalidArgument, match="index_close has a value"):
        check_bars("file", replace(bars, index_close=0 * bars.index_close))


def test_the_simulator_reads_an_array_file(tmp_path: Path) -> None:
    path = str(tmp_path / "prices.npz")
    made = synthetic_bars(SyntheticMarket(symbols=4, days=12))
    write_bars(path, made)
    dates = {"train_end": "2020-01-10", "validation_end": "2020-01-15"}
    simulator = make("stocks", 2, {"path": path, "tickers": ["S03", "S01"], **dates})
    assert simulator.action_space.shape == (2,)
    prices = load_prices(path, ["S03", "S01"])
    assert prices.tickers == ("S03", "S01")
    np.testing.assert_array_equal(prices.close, made.close[:, [3, 1]])
    assert prices.bars_a_day == 78
    with pytest.raises(InvalidArgument, match=r"no prices of 'S1'$"):
        load_prices(path, ["S1"])

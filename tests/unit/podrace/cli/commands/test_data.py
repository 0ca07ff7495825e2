"""`podrace data`. Most tests call the worker in this process to save time; one test starts the real process."""

import contextlib
import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrace.cli.commands import data
from podrace.errors import Internal

REAL = subprocess.run
HEAD = "date,symbol,open,high,low,close,volume\n"
DAYS = ("2022-03-01", "2022-03-02", "2022-03-03", "2022-03-04")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls the `main` of the worker instead of starting a process."""
    from simulators.stocks.__main__ import main

    def run(arguments: list[str], *, input: str, **named: Any) -> subprocess.CompletedProcess[str]:
        assert arguments == [sys.executable, "-m", "simulators.stocks"]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            monkeypatch.setattr(sys, "stdin", io.StringIO(input))
            code = main()
        return subprocess.CompletedProcess(arguments, code, out.getvalue())

    monkeypatch.setattr(subprocess, "run", run)


def write(path: Path, closes: dict[str, list[float]]) -> str:
    rows = [
        f"{day},{symbol},{close},{close + 1},{close - 1},{close},1000\n"
        for symbol, values in closes.items()
        for day, close in zip(DAYS, values, strict=True)
    ]
    path.write_text(HEAD + "".join(rows))
    return path.name


def test_a_table_becomes_an_array_file_with_a_summary(type_: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "raw.csv", {"A": [10, 11, 12, 13], "B": [20, 21, 22, 23], "QQQ": [3, 4, 5, 6]})
    answer = type_("data", "build", source, "--output", "prices.npz", "--symbols", "B,A", "--index", "QQQ")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[0] == "prices.npz: 4 daily bars of 2 symbols (B, A)"
    assert "4 days from 2022-03-01 to 2022-03-04, calendar XNYS, index QQQ" in answer.out
    with np.load(tmp_path / "prices.npz") as file:
        assert file["close"].tolist() == [[20, 10], [21, 11], [22, 12], [23, 13]]
        assert file["index_close"].tolist() == [3, 4, 5, 6]
    built = type_("data", "build", source, "--output", "again.npz", "--symbols", "B,A", "--index", "QQQ", "--json")
    assert built.json["symbols"] == ["B", "A"]
    checked = type_("data", "check", "prices.npz", "--json")
    assert checked.code == 0
    assert (checked.json["symbols"], checked.json["suspicious"], checked.json["daily"]) == (["B", "A"], [], True)
    assert len(checked.json["source_digest"]) == 64


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--start", "garbage"), "--start 'garbage': not a date (write 2010-01-31)"),
        (("--end", "2022-13-01"), "--end '2022-13-01': not a date (write 2010-01-31)"),
        (("--timezone", "Mars/X", "--calendar", "none"), "--timezone 'Mars/X': not an IANA time zone"),
        (("--timezone", "Mars/X"), "--timezone 'Mars/X': not an IANA time zone"),
        (("--timezone", "America"), "--timezone 'America': not an IANA time zone"),
    ],
)
def test_a_malformed_option_is_one_line(type_: Any, tmp_path: Path, options: tuple[str, ...], line: str) -> None:
    source = write(tmp_path / "raw.csv", {"A": [100, 101, 102, 103]})
    refused = type_("data", "build", source, "--output", "prices.npz", *options)
    assert refused.code == 2
    assert line in refused.err
    assert len(refused.err.splitlines()) == 1


def test_a_table_without_rows_is_refused(type_: Any, tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text(HEAD)
    refused = type_("data", "build", "raw.csv", "--output", "prices.npz")
    assert (refused.code, refused.err.splitlines()) == (2, ["error: raw.csv: has no rows"])


@pytest.mark.parametrize("written", ["", "NaT"])
def test_a_split_of_the_table_needs_a_date(type_: Any, tmp_path: Path, written: str) -> None:
    source = write(tmp_path / "raw.csv", {"A": [100, 101, 102, 103]})
    (tmp_path / "splits.csv").write_text(f"symbol,date,ratio\nA,{written},1.25\n")
    refused = type_("data", "build", source, "--output", "prices.npz", "--splits", "splits.csv")
    assert (refused.code, "splits.csv: a split of A has no date" in refused.err) == (2, True)


@pytest.mark.long
def test_an_unadjusted_split_is_refused_and_can_be_adjusted_accepted_or_listed(type_: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "raw.csv", {"A": [100, 101, 50.5, 51], "B": [20, 21, 22, 23]})
    build = "data", "build", source, "--output", "prices.npz"
    refused = type_(*build)
    assert refused.code == 2
    assert "A 2022-03-03: looks like an unadjusted split, 2 for 1; --adjust removes it" in refused.err
    assert not (tmp_path / "prices.npz").exists()
    assert type_(*build, "--accept", "A:2022-03-03").code == 0
    checked = type_("data", "check", "prices.npz")
    assert checked.code == 1
    assert "looks like an unadjusted split" in checked.out
    assert "split, 2 for 1: removed" in type_(*build, "--adjust").out
    (tmp_path / "splits.csv").write_text("symbol,date,ratio\nA,2022-03-03,2\n")
    assert "A 2022-03-03: split 2 of the table removed" in type_(*build, "--splits", "splits.csv").out
    with np.load(tmp_path / "prices.npz") as file:
        assert file["close"][:, 0].tolist() == [50, 50.5, 50.5, 51]


def test_members_are_read_from_a_table(type_: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "raw.csv", {"A": [10, 11, 12, 13], "B": [20, 21, 22, 23]})
    (tmp_path / "members.csv").write_text("symbol,from,to\nA,,\nB,2022-03-03,\nGONE,,2022-03-02\n")
    answer = type_("data", "build", source, "--output", "prices.npz", "--members", "members.csv")
    assert "2 bars of stocks while they did not belong to the pool" in answer.out
    assert "members without prices: GONE" in answer.out
    (tmp_path / "members.csv").write_text("name,from\nA,\n")
    wrong = type_("data", "build", source, "--output", "prices.npz", "--members", "members.csv")
    assert (wrong.code, "expected the columns symbol, from, to" in wrong.err) == (2, True)


@pytest.mark.long
def test_synthetic_prices_depend_only_on_the_seed(type_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, run in (("a.npz", subprocess.run), ("b.npz", REAL)):
        monkeypatch.setattr(subprocess, "run", run)
        answer = type_("data", "synthesize", "--output", name, "--symbols", "3", "--days", "4", "--bar-minutes", "30")
        assert answer.code == 0, answer.err
        assert answer.out.startswith(f"{name}: 52 bars of 30 minutes of 3 symbols (S00, S01, S02)")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    again = type_("data", "synthesize", "--output", "c.npz", "--symbols", "3", "--days", "4", "--json")
    assert again.json["symbols"] == ["S00", "S01", "S02"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("build", "absent.csv", "--output", "x.npz"), "absent.csv: no such file or folder"),
        (("build", "absent.csv", "--output", "x.npz", "--calendar", "XNYC"), "unknown calendar 'XNYC'; did you"),
        (("check", "absent.npz"), "absent.npz cannot be read: No such file"),
        (("synthesize", "--output", "x.npz", "--days", "1"), "days must be 3 to 10000, not 1"),
    ],
)
def test_an_error_is_reported_in_one_line(type_: Any, arguments: tuple[str, ...], line: str) -> None:
    answer = type_("data", *arguments)
    assert answer.code == 2
    (error,) = answer.err.splitlines()
    assert error.startswith("error: ")
    assert line in error


def test_a_worker_that_crashes_or_is_too_slow_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", REAL)
    monkeypatch.setattr(data, "WORKER", "no.such.module")
    with pytest.raises(Internal, match="exited with code 1"):
        data.ask({"verb": "check", "file": "x"})

    def never(*arguments: object, timeout: float, **named: object) -> None:
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(Internal, match="not done after 2 s"):
        data.ask({"verb": "check", "file": "x"}, deadline_seconds=2)


def test_sigterm_ends_the_command_and_its_process(type_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Waiting(subprocess.Popen[str]):
        def __init__(self, arguments: list[str], **named: Any) -> None:
            super().__init__([sys.executable, "-c", "import signal; print(flush=True); signal.pause()"], **named)
            started.append(self)

        def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
            assert self.stdout is not None
            self.stdout.readline()
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("the signal had no effect")

    monkeypatch.setattr(subprocess, "run", REAL)
    monkeypatch.setattr(subprocess, "Popen", Waiting)
    # Without a handler of the command, the signal would end the process of the tests.
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert type_("data", "check", "prices.npz").code == 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    (process,) = started
    assert process.returncode == -signal.SIGKILL

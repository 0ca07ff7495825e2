"""A specification names files of data: nothing outside the operator's folders is opened, and errors quote nothing.

The files of these tests were opened before there were data roots, and what the attacks read was in the public
reason why the tournament failed.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from podrace.errors import InvalidArgument
from podrace.limits.config import EVERYTHING, NOTHING, Allowed
from podrace.limits.file_options import with_paths
from podrace.limits.files import open_data, version_of
from simulators import make
from simulators.stocks.data import load_prices

SECRET = "PODRACE_STORE_SECRET_KEY=hunter2"
PRICES = "date,ticker,high,low,close\n2020-01-02,A,2,1,1.5\n2020-01-03,A,2,1,1.6\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "prices"
    (folder / "us").mkdir(parents=True)
    (folder / "us" / "daily.csv").write_text(PRICES)
    (tmp_path / "secret.csv").write_text(SECRET)
    return folder


@pytest.fixture
def allowed(root: Path) -> Allowed:
    return Allowed(data_roots={"prices": str(root)})


def refusal(path: str, allowed: Allowed) -> str:
    with pytest.raises(InvalidArgument) as caught:
        load_prices(path, allowed=allowed)
    return caught.value.message


# --- the attacks -----------------------------------------------------------------------------------------------------


def test_the_environment_of_a_process_is_not_published_as_the_reason_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Used to fail with `columns missing: date, ticker, ... (found: PODRACE_STORE_SECRET_KEY=hunter2...)`."""
    stand_in = tmp_path / "environ"
    stand_in.write_text(f"PATH=/bin\0{SECRET}\0")
    for path in ("/proc/self/environ", str(stand_in)):
        with pytest.raises(InvalidArgument, match=r"^environment\.options\.path") as caught:
            make("stocks", 1, {"path": path}, allowed=NOTHING)
        assert "hunter2" not in caught.value.message
    # Also where any file may be opened, the error does not have what is in it.
    assert "hunter2" not in refusal(str(stand_in), EVERYTHING)


@pytest.mark.parametrize(
    "content",
    [
        SECRET,
        f"{SECRET},date\n1,2\n",
        f"date,ticker,high,low,close\n{SECRET},A,1,1,1\n",
        f"date,ticker,high,low,close\n2020-01-02,A,1,1,{SECRET}\n",
        f"date,ticker,high,low,close\n2020-01-02,{SECRET},1,1,1\n2020-01-02,{SECRET},1,1,1\n",
        f"date,ticker,high,low,close\n2020-01-02,{SECRET},1,1,0\n",
        f'"{SECRET}\n',
        f"a,b\n1,2\n{SECRET},{SECRET},{SECRET}\n",
    ],
)
@pytest.mark.parametrize("name", ["prices.csv", "prices.npz", "prices.parquet", "prices.csv.gz"])
def test_an_error_never_quotes_a_file(content: str, name: str, tmp_path: Path) -> None:
    """Used to quote columns, tickers, dates and prices."""
    (tmp_path / name).write_text(content)
    assert "hunter2" not in refusal(str(tmp_path / name), EVERYTHING)


def test_the_tickers_of_a_file_are_not_listed(tmp_path: Path) -> None:
    """Used to list all known tickers when a specification named an unknown one."""
    (tmp_path / "prices.csv").write_text(PRICES.replace(",A,", ",hunter2,"))
    with pytest.raises(InvalidArgument, match=r"no prices of 'hunter'$"):
        load_prices(str(tmp_path / "prices.csv"), ["hunter"])


def test_an_array_file_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "prices.npz"
    np.savez(path, hunter2=np.zeros(1))
    assert "hunter2" not in refusal(str(path), EVERYTHING)


# --- data roots ------------------------------------------------------------------------------------------------------


def test_a_file_below_a_data_root_is_read(allowed: Allowed, root: Path) -> None:
    assert load_prices("prices:us/daily.csv", allowed=allowed).close.tolist() == [[1.5], [1.6]]
    (root / "us" / "link.csv").symlink_to("daily.csv")
    assert load_prices("prices:us/link.csv", allowed=allowed).tickers == ("A",)
    before = version_of("prices:us/daily.csv", allowed)
    assert before
    (root / "us" / "daily.csv").write_text(PRICES + "2020-01-06,A,2,1,1.7\n")
    assert version_of("prices:us/daily.csv", allowed) != before


@pytest.mark.parametrize(
    "path",
    [
        "prices:../secret.csv",
        "prices:us/../../secret.csv",
        "prices:/etc/passwd",
        "prices:",
        "prices:us\\daily.csv",
        "prices:us/daily.csv\0",
        "other:us/daily.csv",
        "secret.csv",
        "./secret.csv",
        "~/secret.csv",
        "file:///etc/passwd",
        "//etc/passwd",
    ],
)
def test_a_path_stays_below_its_data_root(path: str, allowed: Allowed) -> None:
    assert "hunter2" not in refusal(path, allowed)


def test_a_link_does_not_lead_out_of_a_data_root(allowed: Allowed, root: Path) -> None:
    (root / "link.csv").symlink_to(root.parent / "secret.csv")
    (root / "folder").symlink_to(root.parent)
    for path in ("prices:link.csv", "prices:folder/secret.csv"):
        assert "leads out of the folder of its data root" in refusal(path, allowed)


def test_a_link_that_appears_after_the_check_is_not_followed(
    allowed: Allowed, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root / "us"
    monkeypatch.setattr("podrace.limits.files.located", lambda *_: (root, path / "secret.csv"))
    path.rename(root / "old")
    path.symlink_to(root.parent)
    assert "cannot be read" in refusal("prices:us/secret.csv", allowed)


def test_only_regular_files_are_opened(allowed: Allowed, root: Path) -> None:
    os.mkfifo(root / "pipe.csv")
    for path in ("prices:us", "prices:pipe.csv"):
        assert "it is not a file of data" in refusal(path, allowed)


def test_files_of_the_kernel_are_not_opened_even_below_a_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a bind mount of procfs below a data root."""
    monkeypatch.setattr("podrace.limits.config.KERNEL_FOLDERS", ())
    allowed = Allowed(data_roots={"kernel": "/proc/self", "system": "/sys"})
    for path in ("kernel:environ", "kernel:status", "system:kernel/mm/transparent_hugepage/enabled"):
        assert "cannot be read" in refusal(path, allowed)


def test_options_of_other_simulators_name_files_in_the_same_way(allowed: Allowed, root: Path) -> None:
    options = {"xml_file": "prices:us/daily.csv", "deep": {"list": ["prices:us/daily.csv", "plain", 1]}}
    path = str(root / "us" / "daily.csv")
    located = with_paths("Ant-v5", options, allowed)
    assert located == {"xml_file": path, "deep": {"list": [path, "plain", 1]}}
    with pytest.raises(InvalidArgument, match="cannot be read"):
        with_paths("Ant-v5", {"xml_file": "prices:absent.xml"}, allowed)


def test_the_error_of_a_library_about_a_file_is_not_passed_on(allowed: Allowed, root: Path) -> None:
    """Gymnasium passes on what MuJoCo says about an XML file, which quotes its elements."""
    (root / "body.xml").write_text("<hunter2/>")
    with pytest.raises(InvalidArgument) as caught:
        make("gym:Ant-v5", 1, {"xml_file": "prices:body.xml"}, allowed=allowed)
    assert "hunter2" not in caught.value.message
    assert "name files of a data root" in caught.value.message


def test_without_limits_any_file_is_opened(root: Path) -> None:
    with open_data(str(root / "us" / "daily.csv"), EVERYTHING) as file:
        assert file.read().decode() == PRICES

"""The HTML page of a backtest."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Trace
from podrace.cli.results import backtest_html, plots

DATES = ["2011-07-01", "2011-07-05", "2011-07-06"]


class Read(HTMLParser):
    """Parses the page and records its tags and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.words += data.split("\n")


def fill(evaluation: Any) -> None:
    evaluation.mean_return, evaluation.episodes, evaluation.mean_length_steps = 8.5, 1, 2.0
    evaluation.metrics.update(
        {
            "cumulative_return": 0.2,
            "sharpe_ratio": 1.234,
            "maximum_drawdown": -0.05,
            "costs_paid": 1234.0,
            "fills": 7,
            "equal_weight_cumulative_return": 0.1,
            "index_cumulative_return": 0.15,
            "random_cumulative_return": -0.4,
        }
    )
    traces = {
        "account_value": [1e6, 1.1e6, 1.2e6],
        "equal_weight_value": [1e6, 1.05e6, 1.1e6],
        "drawdown": [0.0, -0.05, 0.0],
        "exposure": [0.0, 0.5, 0.9],
        "turnover": [0.5, 0.1, 0.0],
        "costs_paid": [500.0, 1234.0, 1234.0],
        "random_low_value": [1e6, 7e5, 6e5],
        "random_high_value": [1e6, 9e5, 8e5],
        "attribution:AAPL": [0.0, 1e5, 1.5e5],
        "attribution:<IBM>": [0.0, 0.0, 5e4],
    }
    for name, values in traces.items():
        evaluation.traces[name].CopyFrom(Trace(values=values, labels=DATES))


@pytest.fixture
def evaluation() -> Evaluation:
    made = Evaluation()
    fill(made)
    return made


def rows(read: Read) -> str:
    return " ".join(read.words)


def test_the_page_loads_no_other_resources(evaluation: Evaluation) -> None:
    text = backtest_html.backtest_page("backtest: a2", evaluation)
    read = Read(text)
    assert not {tag for tag, _ in read.tags} & {"script", "link", "img", "iframe"}
    assert not [name for _, attributes in read.tags for name in attributes if name in ("src", "href")]
    assert "url(" not in text


def test_the_champion_is_shown_next_to_its_baselines(evaluation: Evaluation) -> None:
    text = backtest_html.backtest_page("backtest", evaluation)
    header = "<tr><th>measure</th><th>champion</th><th>index</th><th>equal weight</th><th>random traders</th></tr>"
    assert header in text
    line = "<tr><td>cumulative return</td><td>20.0 %</td><td>15.0 %</td><td>10.0 %</td><td>-40.0 %</td></tr>"
    assert line in text
    assert "<tr><td>sharpe ratio</td><td>1.23</td><td>-</td><td>-</td><td>-</td></tr>" in text
    assert "<tr><td>costs paid</td><td>1,234</td></tr>" in text
    assert "from 2011-07-01 to 2011-07-06, 3 days" in text


def test_the_profits_of_the_stocks_are_sorted_and_summed(evaluation: Evaluation) -> None:
    text = backtest_html.backtest_page("backtest", evaluation)
    places = [text.index(part) for part in ("<td>AAPL</td><td>150,000", "<td>&lt;IBM&gt;</td><td>50,000", "total")]
    assert places == sorted(places)
    assert "<td>total</td><td>200,000</td>" in text


def test_names_are_escaped(evaluation: Evaluation) -> None:
    text = backtest_html.backtest_page("<b>x</b> & y", evaluation)
    assert "<b>" not in text
    assert "<title>&lt;b&gt;x&lt;/b&gt; &amp; y</title>" in text
    assert "<IBM>" not in text


def test_a_line_starts_at_its_first_value_and_ends_at_its_last() -> None:
    drawn = backtest_html.line_chart([("a", "#000", Trace(values=[0.0, 5.0, 10.0]))], ["first", "last"])
    points = drawn.split('points="')[1].split('"')[0].split()
    bottom, top = backtest_html.HEIGHT - backtest_html.MARGIN_BOTTOM, backtest_html.MARGIN_TOP
    middle = (backtest_html.MARGIN_LEFT + backtest_html.WIDTH) / 2
    assert points == [
        f"{backtest_html.MARGIN_LEFT}.0,{bottom}.0",
        f"{middle:.1f},{(bottom + top) / 2:.1f}",
        f"{backtest_html.WIDTH}.0,{top}.0",
    ]
    assert ">first<" in drawn
    assert ">last<" in drawn


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0], [1.0, float("nan"), 3.0]])
def test_a_line_of_any_values_can_be_drawn(values: list[float]) -> None:
    drawn = backtest_html.line_chart([("a", "#000", Trace(values=values))], [])
    assert "nan" not in drawn
    Read(drawn)


def test_an_account_value_is_sufficient_for_a_page() -> None:
    evaluation = Evaluation(episodes=1)
    evaluation.traces["account_value"].values.extend([1.0, 2.0])
    read = Read(backtest_html.backtest_page("alone", evaluation))
    assert [tag for tag, _ in read.tags].count("svg") == 1
    assert "table" not in [tag for tag, _ in read.tags]


@pytest.mark.long
def test_a_backtest_is_drawn_even_if_traces_are_missing(tmp_path: Path, evaluation: Evaluation) -> None:
    for name in ("whole", "part"):
        plots.draw_backtest(tmp_path / f"{name}.png", evaluation.traces, title=name)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        for gone in ("random_low_value", "turnover"):
            evaluation.traces.pop(gone, None)
    assert len(list(tmp_path.iterdir())) == 2


SPEC = """
[environment]
id = "stocks"
[algorithms.ppo]
[objective]
wall_clock_duration = "1s"
[reports.backtest]
episodes = 1
[reports.backtest.options]
split = "backtest"
"""


@pytest.mark.long
def test_a_finished_tournament_leaves_the_page_and_the_plot(type_: Any, mesh: Any, tmp_path: Path) -> None:
    (tmp_path / "stocks.toml").write_text(SPEC)
    fill(mesh.known.evaluation)
    answer = type_("train", "stocks.toml", "--orchestrator", mesh.address)
    assert answer.code == 0, answer.err
    (folder,) = (tmp_path / "podrace-home/tournaments").iterdir()
    names = {file.name for file in folder.iterdir()}
    assert {"backtest.html", "backtest.png", "account_value_backtest.png", "report.json"} <= names
    assert not [name for name in names if "incoming" in name]
    assert "backtest: a2 of stocks-abc123" in (folder / "backtest.html").read_text()
    # The table on the terminal has the champion and one baseline.
    assert "index cumulative return" not in answer.out
    assert "random cumulative return" not in answer.out

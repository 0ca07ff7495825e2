import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BUDGET_STEPS, BUDGET_SECONDS = 327_680, 300.0


@pytest.fixture(scope="module")
def cases() -> Any:
    return importlib.import_module("papers.cases")


@pytest.fixture(scope="module")
def curve() -> Any:
    return importlib.import_module("papers.curve")


def request(**settings: Any) -> Any:
    process = importlib.import_module("loops.process")
    return process.Request("curve", "ppo", "CartPole-v1", 16, {}, **settings)


def test_a_curve_ends_with_its_steps_and_keeps_only_its_best_policy(curve: Any) -> None:
    scores, kept = iter([1.0, 5.0, 3.0]), []
    one = curve.PeerCurve(request(every_steps=10, limit_steps=30), lambda: next(scores), lambda: kept.append(True))
    assert [one.over(steps) for steps in (5, 12, 19, 20, 31)] == [False, False, False, False, True]
    answer = one.answer({})
    assert [(steps, score) for steps, _, score in answer["curve"]] == [(12, 1.0), (20, 5.0), (31, 3.0)]
    assert (len(kept), answer["selection_score"], answer["environment_steps"]) == (2, 5.0, 31)


def test_a_curve_ends_with_its_seconds_and_is_then_scored(curve: Any) -> None:
    one = curve.PeerCurve(request(every_steps=100, limit_steps=10**9, limit_seconds=0.0), lambda: 7.0, lambda: None)
    assert one.over(3)
    assert one.answer({})["selection_score"] == 7.0


def test_report_requests_pass_on_only_options_of_the_simulator(curve: Any) -> None:
    options = {"train": {"a": 1}, "report:backtest": {"a": 2, "paper_episodes": 3}}
    assert curve.reports_of(request(options=options)) == {"backtest": ({"a": 2}, 3)}


def test_every_contender_of_the_trading_task_has_the_same_steps_split_and_costs(cases: Any) -> None:
    budget = cases.Budget(BUDGET_STEPS, BUDGET_SECONDS)
    specs = [cases.race("stocks", name, 1, budget, "x.npz").cell().spec for name in cases.OWN_CONTENDERS["stocks"]]
    assert {spec.objective.environment_steps for spec in specs} == {BUDGET_STEPS}
    assert len({str(spec.environment) for spec in specs}) == 1
    assert {dict(spec.environment.options)["cost"] for spec in specs} == {0.002}
    assert [dict(spec.reports["backtest"].options)["split"] for spec in specs] == ["backtest"] * len(specs)
    for spec in specs[1:]:
        # Whole rounds of whole assignments: no contender exceeds the budget.
        assert spec.synchronous
        assert BUDGET_STEPS % (spec.assignment.environment_steps * spec.pool.maximum_pods) == 0
    job = cases.peer_job("stocks", cases.SB3, 1, budget, "x.npz")
    assert job.request.limit_steps == BUDGET_STEPS
    assert job.request.options["train"]["split"] == "train"
    assert job.request.options["validation"]["split"] == "validation"
    assert job.request.options["report:backtest"]["split"] == "backtest"


def test_a_peer_gets_the_network_and_the_batches_of_the_vanilla_agent(cases: Any) -> None:
    budget = cases.Budget(BUDGET_STEPS, BUDGET_SECONDS)
    settings = cases.peer_job("ant", cases.SB3, 1, budget, "").request.settings
    own = cases.race("ant", cases.VANILLA, 1, budget, "").cell().spec.algorithms["ppo"].hyperparameters
    assert settings["hidden_sizes"] == [64, 64] == list(own["hidden_sizes"].value.list_value)
    for name in ("horizon", "epochs", "minibatch_size", "learning_rate", "gae_lambda"):
        assert settings[name] == own[name].value.number_value
    assert isinstance(settings["minibatch_size"], int)
    assert settings["normalize_observations"] is True


@pytest.mark.parametrize(("seconds", "steps"), [(300.0, 600_000), (900.0, 1_800_000), (20_000.0, 2_000_000)])
def test_an_agent_of_a_tournament_trains_for_half_of_the_time_but_at_most_as_in_the_papers_file(
    cases: Any, seconds: float, steps: int
) -> None:
    spec = cases.race("ant", cases.TOURNAMENT, 1, cases.Budget(BUDGET_STEPS, seconds), "").cell().spec
    assert spec.assignment.environment_steps == steps
    assert spec.evaluation.every_environment_steps == seconds * 250


def test_the_name_of_a_peers_job_does_not_depend_on_the_folder_of_the_prices(cases: Any) -> None:
    budget = cases.Budget(BUDGET_STEPS, BUDGET_SECONDS)
    jobs = [cases.peer_job("stocks", cases.SB3, seed, budget, path) for seed, path in
            ((1, "/a/x.npz"), (1, "/b/x.npz"), (1, "/b/y.npz"), (2, "/a/x.npz"))]  # fmt: skip
    names = [job.name for job in jobs]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_an_archive_of_five_minute_bars_becomes_days_of_the_exchange(tmp_path: Path) -> None:
    data = importlib.import_module("papers.data")
    # Two full days of three bars, and a half day of two; the first day ends after midnight UTC.
    starts = [1_700_000_000, 1_700_086_400, 1_700_172_800]
    times = np.array([start + 300 * bar for start, bars in zip(starts, (3, 3, 2), strict=True) for bar in range(bars)])
    prices = 10.0 + np.arange(8.0)
    ohlcv = np.stack([prices, prices + 1, prices - 1, prices + 0.5, prices * 100], axis=-1)
    source = tmp_path / "bars.npz"
    np.savez(
        source,
        ohlcv=np.stack([ohlcv, 2 * ohlcv], axis=1).astype(np.float32),
        filled=np.zeros((8, 2), bool),
        qqq_ohlcv=ohlcv.astype(np.float32),
        time_utc_s=times,
        tickers=np.array(["AA", "BB"]),
    )
    from simulators.stocks.bars import read_bars

    written = data.prepare(source, tmp_path / "out" / "bars.npz")
    bars = read_bars(str(written))
    assert bars.tickers == ("AA", "BB")
    assert bars.half_day.tolist() == [False] * 6 + [True] * 2
    assert bars.close[:, 1].tolist() == (2 * (prices + 0.5)).tolist()
    assert bars.index_close.tolist() == (prices + 0.5).tolist()
    assert str(bars.date[0]) == "2023-11-14"
    assert data.prepare(written, tmp_path / "other.npz") == written


def test_missing_prices_are_refused(tmp_path: Path) -> None:
    data = importlib.import_module("papers.data")
    with pytest.raises(SystemExit, match="no such file"):
        data.prepare(tmp_path / "none.npz", tmp_path / "out.npz")

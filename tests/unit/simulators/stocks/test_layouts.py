import numpy as np
import pytest
import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators import make
from simulators.stocks import with_defaults
from simulators.stocks.data import load_prices
from simulators.stocks.environment import StockSimulator
from simulators.stocks.indicators import technical_indicators
from simulators.stocks.layouts import LAYOUTS, MINUTE_INDICATORS, turbulence_features
from simulators.stocks.options import LAYOUT_DEFAULTS, StockOptions

SYNTHETIC = "synthetic:minute?symbols=3&days=8"
FINRL_INDICATORS = ["macd", "boll_ub", "boll_lb", "rsi_30", "cci_30", "dx_30", "close_30_sma", "close_60_sma"]


def made(count: int = 2, **options: object) -> StockSimulator:
    simulator = make("stocks", count, options)
    assert isinstance(simulator, StockSimulator)
    return simulator


def random_actions(simulator: StockSimulator, steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    shape = simulator.count, *simulator.action_space.shape
    return [2 * torch.rand(shape, generator=generator) - 1 for _ in range(steps)]


def test_layout_finrl_is_cash_closes_shares_and_indicators_one_after_the_other() -> None:
    simulator, prices = made(3, layout="finrl", train_end="2005-06-01"), load_prices()
    assert simulator.observation_space.shape == (1 + 4 + 4 + 8 * 4,)
    indicators = technical_indicators(prices)
    # The first day on which every window is full.
    for row, action in enumerate(random_actions(simulator, 20), start=60):
        seen = simulator.step(action).observation[0].double()
        assert seen[0].item() == pytest.approx(simulator.cash[0].item(), rel=1e-6)
        np.testing.assert_allclose(seen[1:5], prices.close[row], rtol=1e-6)
        assert seen[5:9].tolist() == simulator.shares[0].tolist()
        expected = np.concatenate([indicators[name][row] for name in FINRL_INDICATORS])
        np.testing.assert_allclose(seen[9:], expected, rtol=1e-6)
    assert simulator.shares.any()


def test_layout_minute_has_the_scales_of_its_publication() -> None:
    simulator, prices = made(2, layout="minute", path=SYNTHETIC), load_prices(SYNTHETIC)
    assert simulator.observation_space.shape == (3 + 3 * 3 + 7 * 3,)
    indicators = technical_indicators(prices)
    assert list(MINUTE_INDICATORS) == [name for name in FINRL_INDICATORS if name != "cci_30"]
    for row, action in enumerate(random_actions(simulator, 30), start=60):
        seen = simulator.step(action).observation[0].double()
        assert seen[0].item() == pytest.approx(simulator.cash[0].item() * 2**-12, rel=1e-6)
        assert seen[1:3].tolist() == [0, 0]
        np.testing.assert_allclose(seen[3:6], prices.close[row] * 2**-6, rtol=1e-6)
        assert seen[6:9].tolist() == (simulator.shares[0] * 2**-6).tolist()
        expected = np.concatenate([indicators[name][row] for name in MINUTE_INDICATORS]) * 2**-7
        np.testing.assert_allclose(seen[12:], expected, rtol=1e-5)


def test_layout_minute_shows_at_least_ten_thousand_of_cash() -> None:
    simulator = made(1, layout="minute", path=SYNTHETIC, initial_cash=9_000.0)
    assert simulator.reset(0)[0, 0].item() == 10_000 * 2**-12
    rich = made(1, layout="minute", path=SYNTHETIC, initial_cash=20_000.0)
    assert rich.reset(0)[0, 0].item() == 20_000 * 2**-12


def test_layout_minute_counts_the_bars_since_a_stock_was_traded() -> None:
    simulator = made(1, layout="minute", path=SYNTHETIC)
    actions = torch.tensor([[0, 0, 0], [0.5, 0, 0], [0, 0.05, 0], [0.5, 0, 1]])
    counted = [simulator.step(action.unsqueeze(0)).observation[0, 9:12].tolist() for action in actions]
    # 5 shares are too few to be traded; 50 and 100 are enough.
    assert counted == [[1, 1, 1], [0, 2, 2], [1, 3, 3], [0, 4, 0]]


def test_a_new_episode_resets_the_bars_since_the_last_trade() -> None:
    simulator = made(1, layout="minute", path=SYNTHETIC, episode_days=2)
    while True:
        step = simulator.step(torch.zeros(1, 3))
        if step.truncated.any():
            break
    assert step.final_observation[0, 9:12].tolist() == [155, 155, 155]
    assert step.observation[0, 9:12].tolist() == [0, 0, 0]


def test_the_turbulence_of_layout_minute_is_a_bounded_term_and_a_flag() -> None:
    index = np.array([0.0, 50.0, 99.9, 100.0, 1e9])
    features = turbulence_features(index, 100.0)
    assert features[:, 1].tolist() == [0, 0, 0, 1, 1]
    assert features[0, 0] == 0
    assert features[-1, 0] == pytest.approx(100 * 0.5 / 32)
    assert features[1, 0] == pytest.approx(100 * (1 / (1 + np.exp(-np.e * 0.5)) - 0.5) / 32, rel=1e-6)
    assert (np.diff(features[:, 0]) > 0).all()
    assert not turbulence_features(index, 0.0).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_states_the_sizes_of_its_observations_and_blocks(layout: str) -> None:
    simulator = made(2, layout=layout, path=SYNTHETIC, episode_days=2)
    (size,) = simulator.observation_space.shape
    assert simulator.reset(0).shape == (2, size)
    accounts = {"scaled": 2 + 3, "finrl": 1 + 3, "minute": 1 + 3 + 3}[layout]
    assert sum(LAYOUTS[layout].blocks(3)) == size - accounts
    assert torch.isfinite(simulator.reset(0)).all()


def test_a_layout_has_its_own_defaults_and_the_user_overrides_them() -> None:
    assert set(LAYOUTS) == set(LAYOUT_DEFAULTS)
    completed = with_defaults({"layout": "minute", "ignored_shares": 3})
    assert (completed["reward_scale"], completed["ignored_shares"]) == (2**-13, 3)
    assert str(completed["path"]).startswith("synthetic:minute?")
    assert {"train_end", "validation_end"} <= set(completed)
    assert with_defaults({}) == {}
    assert with_defaults({"layout": "minute", "path": "x.npz", "train_end": "2020-01-01"})["path"] == "x.npz"


def test_an_unknown_layout_is_refused_with_the_closest_one() -> None:
    with pytest.raises(InvalidArgument, match="'layout' must be one of scaled, finrl, minute, not 'minutes'; did you"):
        make("stocks", 1, {"layout": "minutes"})


def test_orders_of_few_shares_are_ignored() -> None:
    simulator = made(1, ignored_shares=10, maximum_shares=20, train_end="2005-06-01")
    simulator.step(torch.tensor([[0.5, 0.55, -1.0, 1.0]]))
    assert simulator.shares.tolist() == [[0, 11, 0, 20]]
    simulator.step(torch.tensor([[0.0, -0.5, 0.0, -0.55]]))
    assert simulator.shares.tolist() == [[0, 11, 0, 9]]


def test_shares_are_traded_in_lots() -> None:
    simulator = made(1, lot_size=10, maximum_shares=100, train_end="2005-06-01", initial_cash=2e4)
    simulator.step(torch.tensor([[0.29, 0.0, 0.0, 1.0]]))
    assert simulator.shares.tolist() == [[20, 0, 0, 100]]
    cash = []
    for action in random_actions(simulator, 60):
        simulator.step(action)
        assert torch.equal(simulator.shares % 10, torch.zeros_like(simulator.shares))
        cash.append(simulator.cash.item())
    assert 0 <= min(cash) < 1e3


@pytest.mark.parametrize(("name", "value"), [("lot_size", 0), ("ignored_shares", -1), ("turbulence_days", 1)])
def test_an_option_of_trading_out_of_range_is_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"option '{name}' must be at least .* not {value}"):
        StockOptions(**{name: value})  # type: ignore[arg-type]

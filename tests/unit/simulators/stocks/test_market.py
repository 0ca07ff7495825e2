from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch

from simulators.stocks.market import load_market
from simulators.stocks.options import StockOptions

WriteFrame = Callable[[pd.DataFrame], str]
SPLITS = {"train_end": "2016-01-01", "validation_end": "2016-02-01"}


def test_a_split_is_computed_only_once(random_prices: pd.DataFrame, write_prices: WriteFrame) -> None:
    path = write_prices(random_prices)
    first = load_market(StockOptions(path=path, **SPLITS))
    assert load_market(StockOptions(path=path, **SPLITS)) is first
    assert load_market(StockOptions(path=path, split="validation", **SPLITS)) is not first


def test_a_changed_file_is_read_again(random_prices: pd.DataFrame, write_prices: WriteFrame) -> None:
    path = write_prices(random_prices)
    options = StockOptions(path=path, **SPLITS)
    before = load_market(options)
    dearer = random_prices.assign(close=random_prices["close"] * 2, high=random_prices["high"] * 2)
    Path(path).write_text(dearer.drop(columns="adj_close").to_csv(index=False))
    after = load_market(options)
    assert after is not before
    assert not torch.equal(after.close, before.close)

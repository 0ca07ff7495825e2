"""Tests that the algorithm shown in CONTRIBUTING.md works as it is written there."""

import re
import sys
import types
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from learning import evaluate, train

from agentpod import algorithms
from podrace.specification import catalog

PAGE = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Returns the module, registered in both dictionaries."""
    file, entry = (dedent(block) for block in re.findall(r" *```python\n(.*?) *```", PAGE, re.DOTALL))
    names = dict(vars(catalog))
    exec(entry, names)
    monkeypatch.setitem(catalog.ALGORITHMS, "spo", names["SPO"])  # type: ignore[arg-type]
    module = types.ModuleType("agentpod.algorithms.spo")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(file, vars(module))
    monkeypatch.setitem(algorithms.ALGORITHMS, "spo", module.SPO)
    return module


def test_the_derivative_of_the_shown_objective_is_correct(shown: types.ModuleType) -> None:
    log_ratio = torch.linspace(-1.0, 1.0, 21, dtype=torch.float64, requires_grad=True)
    advantage = torch.randn(21, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    objective, derivative = shown.penalized_surrogate(log_ratio, advantage, 0.2)
    (expected,) = torch.autograd.grad(objective.sum(), log_ratio)
    torch.testing.assert_close(derivative.detach(), expected)


@pytest.mark.long
def test_the_shown_algorithm_learns(shown: types.ModuleType) -> None:
    settings = {"learning_rate": 3e-3, "discount": 0.98, "horizon": 32, "epochs": 10, "minibatch_size": 256}
    algorithm = train("spo", "CartPole-v1", settings, seed=1, steps=20_000)
    assert type(algorithm) is shown.SPO
    assert evaluate("CartPole-v1", algorithm.policy) >= 150.0

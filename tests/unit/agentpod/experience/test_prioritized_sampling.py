"""Tests the priority tree against a plain list that is searched linearly."""

import math

import pytest
import torch
from torch import Tensor

from agentpod.experience import prioritized_sampling
from agentpod.experience.prioritized_sampling import (
    EPSILON,
    FIRST_PRIORITY,
    PriorityTree,
    importance_weights,
    replace_zero_priorities,
)

SHAPES = [(2, 2), (3, 4), (64, 32_768)]
"""Fan-out and maximum number of roots, for many levels, several, and a single one."""


@pytest.fixture(params=SHAPES, ids=str)
def tree_shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    fan_out, roots = request.param
    monkeypatch.setattr(prioritized_sampling, "FAN_OUT", fan_out)
    monkeypatch.setattr(prioritized_sampling, "MAXIMUM_ROOTS", roots)


def tree_of(values: list[float]) -> PriorityTree:
    tree = PriorityTree(len(values), 0.6)
    tree.set(torch.arange(len(values)), torch.tensor(values, dtype=torch.float64))
    return tree


def searched(values: list[float], points: list[float]) -> list[int]:
    """Returns the leaf whose range of the running sum contains each point."""
    found = []
    for point in points:
        leaf = 0
        while point >= values[leaf]:
            point -= values[leaf]
            leaf += 1
        found.append(leaf)
    return found


def churned(count: int, seed: int) -> tuple[PriorityTree, list[float]]:
    """Returns a tree after random changes of every kind, and the expected leaves."""
    generator = torch.Generator().manual_seed(seed)
    tree, values, greatest = PriorityTree(count, 0.6), [0.0] * count, FIRST_PRIORITY
    for _ in range(30):
        first = int(torch.randint(count, (), generator=generator))
        length = int(torch.randint(1, count - first + 1, (), generator=generator))
        tree.admit(first, length)
        values[first : first + length] = [greatest] * length
        index = torch.randint(count, (7,), generator=generator)
        priority = torch.rand(7, generator=generator, dtype=torch.float64) * 3.0
        tree.set(index, priority)
        greatest = max(greatest, float(priority.max()))
        for leaf in index.tolist():
            values[leaf] = max(p for i, p in zip(index.tolist(), priority.tolist(), strict=True) if i == leaf)
        first = int(torch.randint(count, (), generator=generator))
        tree.exclude(first, 1)
        values[first] = 0.0
    return tree, values


@pytest.mark.usefixtures("tree_shape")
@pytest.mark.parametrize("count", [9, 64, 100])
def test_leaves_hold_the_last_values_and_samples_agree_with_a_linear_search(count: int) -> None:
    for seed in range(5):
        tree, values = churned(count, seed)
        assert tree.get(torch.arange(count)).tolist() == values
        index, probability = tree.sample(50, torch.Generator().manual_seed(seed))
        share = torch.rand(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        total = math.fsum(values)
        points = ((share + torch.arange(50)) / 50 * total).tolist()
        assert index.tolist() == searched(values, points)
        expected = [values[leaf] / total for leaf in index.tolist()]
        assert probability.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.long
@pytest.mark.usefixtures("tree_shape")
def test_samples_are_proportional_to_priorities() -> None:
    generator = torch.Generator().manual_seed(0)
    values = (torch.rand(40, generator=generator) * 10).tolist()
    values[3] = values[39] = 0.0
    # Batches of one, so that stratification has no effect.
    drawn = torch.cat([tree_of(values).sample(1, generator)[0] for _ in range(4000)])
    expected = torch.tensor(values) / sum(values) * 4000
    count = drawn.bincount(minlength=40).float()
    positive = expected > 0
    assert count[~positive].sum() == 0
    # The 99.99 % quantile of chi-square with 37 degrees of freedom is 77.
    assert float(((count - expected).square() / expected)[positive].sum()) < 77


@pytest.mark.usefixtures("tree_shape")
def test_with_equal_priorities_a_batch_as_large_as_the_tree_draws_every_leaf_once() -> None:
    index, probability = tree_of([0.3] * 96).sample(96, torch.Generator().manual_seed(1))
    assert index.tolist() == list(range(96))
    torch.testing.assert_close(probability, torch.full((96,), 1 / 96, dtype=torch.float64))


@pytest.mark.usefixtures("tree_shape")
def test_the_only_positive_leaf_is_always_drawn() -> None:
    for leaf in range(33):
        index, probability = tree_of([1e-300 * (i == leaf) for i in range(33)]).sample(5, torch.Generator())
        assert index.tolist() == [leaf] * 5
        assert probability.tolist() == [1.0] * 5


@pytest.mark.usefixtures("tree_shape")
def test_a_point_rounded_past_the_end_belongs_to_the_last_positive_leaf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = tree_of([0.1] * 20 + [0.0] * 20)
    monkeypatch.setattr(torch, "rand", lambda size, **_: torch.ones(size, dtype=torch.float64))
    index, probability = tree.sample(20, torch.Generator())
    assert int(index.max()) == 19
    assert float(probability.min()) > 0


@pytest.mark.usefixtures("tree_shape")
def test_a_point_on_a_boundary_belongs_to_the_leaf_that_begins_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda size, **_: torch.zeros(size, dtype=torch.float64))
    index, _ = tree_of([0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]).sample(4, torch.Generator())
    assert index.tolist() == [1, 4, 5, 7]


def test_a_boundary_rounded_past_its_point_selects_no_zero_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prioritized_sampling, "FAN_OUT", 2)
    monkeypatch.setattr(prioritized_sampling, "MAXIMUM_ROOTS", 2)
    tree = tree_of([0.0, 0.1, 0.0, 0.2])
    assert (0.1 + 0.2) - 0.2 > 0.1, "by subtraction the second node begins past where the first one ends"
    monkeypatch.setattr(torch, "rand", lambda size, **_: torch.full((size,), 0.1 / (0.1 + 0.2), dtype=torch.float64))
    assert tree.sample(1, torch.Generator())[0].tolist() == [3]


def test_excluded_leaves_are_never_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    values = 10.0 ** torch.randint(-30, 30, (5000,), generator=generator).double()
    tree = PriorityTree(5000, 0.6)
    tree.set(torch.arange(5000), values)
    tree.exclude(1000, 3000)
    for _ in range(50):
        index, probability = tree.sample(500, generator)
        assert not ((index >= 1000) & (index < 4000)).any()
        assert float(probability.min()) > 0


def test_the_priority_of_an_error_is_its_size_plus_epsilon_to_the_exponent() -> None:
    tree = PriorityTree(4, 0.7)
    tree.admit(0, 4)
    tree.update(torch.arange(3), torch.tensor([-2.0, 0.0, 0.5]))
    expected = [(2 + EPSILON) ** 0.7, EPSILON**0.7, (0.5 + EPSILON) ** 0.7, FIRST_PRIORITY]
    assert tree.get(torch.arange(4)).tolist() == pytest.approx(expected, rel=1e-12)


def test_new_leaves_get_the_largest_priority_ever_set() -> None:
    tree = PriorityTree(4, 1.0)
    tree.admit(0, 2)
    assert tree.get(torch.arange(4)).tolist() == [FIRST_PRIORITY, FIRST_PRIORITY, 0.0, 0.0]
    tree.update(torch.tensor([0]), torch.tensor([9.0]))
    tree.update(torch.tensor([0]), torch.tensor([2.0]))
    tree.admit(2, 1)
    assert tree.get(torch.tensor([2])).item() == pytest.approx(9.0 + EPSILON)


def test_errors_that_are_not_finite_are_ignored() -> None:
    tree = PriorityTree(4, 0.6)
    tree.admit(0, 4)
    tree.update(torch.arange(4), torch.tensor([math.nan, math.inf, -math.inf, 3.0]))
    assert tree.get(torch.arange(3)).tolist() == [FIRST_PRIORITY] * 3
    tree.admit(0, 1)
    assert tree.get(torch.tensor([0])).item() == pytest.approx((3 + EPSILON) ** 0.6)


def test_an_error_does_not_readmit_an_excluded_leaf() -> None:
    tree = PriorityTree(4, 0.6)
    tree.admit(0, 4)
    tree.exclude(1, 2)
    tree.update(torch.tensor([0, 1, 2]), torch.tensor([1.0, 50.0, 1.0]))
    assert tree.get(torch.tensor([1, 2])).tolist() == [0.0, 0.0]
    assert set(tree.sample(100, torch.Generator())[0].tolist()) == {0, 3}


def test_zero_priorities_are_replaced_by_the_most_probable_leaf_of_the_batch() -> None:
    index, priority = replace_zero_priorities(torch.tensor([4, 5, 6, 7]), torch.tensor([0.0, 1.0, 3.0, 0.0]))
    assert index.tolist() == [6, 5, 6, 6]
    assert priority.tolist() == [3.0, 1.0, 3.0, 3.0]


def test_weights_correct_nonuniform_sampling_and_the_largest_is_one() -> None:
    probability = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
    weight = importance_weights(probability, 10, 0.5)
    expected = [(10 * p) ** -0.5 / (10 * 0.125) ** -0.5 for p in (0.5, 0.25, 0.125)]
    assert weight.tolist() == pytest.approx(expected)
    assert weight.dtype == torch.float32
    assert importance_weights(probability, 10, 0.0).tolist() == [1.0] * 3


def test_with_beta_1_the_weighted_mean_equals_that_of_uniform_sampling() -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(200, generator=generator, dtype=torch.float64) + 0.1
    tree, measured = tree_of(values.tolist()), torch.arange(200.0)
    index, probability = tree.sample(100_000, generator)
    weight = importance_weights(probability, 200, 1.0)
    mean = (weight * measured[index]).sum() / weight.sum()
    assert float(mean) == pytest.approx(float(measured.mean()), rel=5e-3)


def test_sums_accumulate_no_rounding_error() -> None:
    generator = torch.Generator().manual_seed(0)
    tree = PriorityTree(10_000, 1.0)
    tree.admit(0, 10_000)
    for _ in range(300):
        tree.set(torch.randint(10_000, (64,), generator=generator), 1e9 * torch.rand(64, dtype=torch.float64))
    tree.set(torch.arange(10_000), torch.full((10_000,), 1e-9, dtype=torch.float64))
    assert tree.sample(10_000, generator)[0].tolist() == list(range(10_000))


@pytest.mark.parametrize("count", [100, 40_000])
def test_a_tree_with_the_same_leaves_samples_the_same(count: int) -> None:
    tree, _ = churned(100, seed=0) if count == 100 else (PriorityTree(count, 0.6), [])
    tree.set(torch.randint(count, (999,)), torch.rand(999, dtype=torch.float64))
    twin = PriorityTree(count, 0.6)
    twin.maximum.copy_(tree.maximum)
    twin.assign(30, tree.leaves[30:])
    twin.assign(0, tree.leaves[:30])
    draws: list[Tensor] = []
    for each in (tree, twin):
        each.admit(0, 10)
        draws += each.sample(64, torch.Generator().manual_seed(1))
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1], draws[3])


@pytest.mark.parametrize("count", [1, 64, 32_768, 32_769, 1_000_000])
def test_size_bytes_equals_the_size_of_the_tree(count: int) -> None:
    assert PriorityTree.size_bytes(count) == PriorityTree(count, 0.6)._nodes.nbytes
    assert PriorityTree.size_bytes(count) < 8 * count * 1.02 + 600


def test_a_million_leaves_need_two_levels() -> None:
    tree = PriorityTree(1_000_000, 0.6)
    tree.admit(0, 1_000_000)
    assert tree._nodes.numel() == 1_000_000 + 15_625
    index, probability = tree.sample(1000, torch.Generator().manual_seed(0))
    assert (index // 1000).tolist() == list(range(1000))
    torch.testing.assert_close(probability, torch.full((1000,), 1e-6, dtype=torch.float64))

"""Tests the flat optimizer against the update rule of Kingma and Ba 2015."""

import torch

from agentpod.algorithms.flat_adam import FlatAdam


def flat_adam(size: int = 4, maximum_norm: float = 0.0) -> FlatAdam:
    gradient = torch.zeros(size)
    return FlatAdam(torch.zeros(size), gradient, learning_rate=0.1, epsilon=1e-5, maximum_norm=maximum_norm)


def test_steps_follow_adam() -> None:
    optimizer = flat_adam()
    generator = torch.Generator().manual_seed(0)
    expected, first, second = torch.zeros(3, 4, dtype=torch.float64)
    for step in range(1, 6):
        gradient = torch.randn(4, generator=generator)
        optimizer.gradient.copy_(gradient)
        optimizer.step()
        first = 0.9 * first + 0.1 * gradient.double()
        second = 0.999 * second + 0.001 * gradient.double().square()
        corrected = (second / (1 - 0.999**step)).sqrt() + 1e-5
        expected = expected - 0.1 * first / (1 - 0.9**step) / corrected
    torch.testing.assert_close(optimizer.parameters.double(), expected, rtol=1e-5, atol=1e-6)


def test_large_gradients_are_clipped_and_their_norm_is_returned() -> None:
    optimizer = flat_adam(maximum_norm=0.5)
    optimizer.gradient.copy_(torch.tensor([3.0, 4.0, 0.0, 0.0]))
    assert float(optimizer.step()) == 5.0
    torch.testing.assert_close(optimizer.gradient, torch.tensor([0.3, 0.4, 0.0, 0.0]), rtol=1e-5, atol=0.0)


def test_small_gradients_are_unchanged() -> None:
    optimizer = flat_adam(maximum_norm=0.5)
    gradient = torch.tensor([0.0, 0.1, 0.0, 0.2])
    optimizer.gradient.copy_(gradient)
    optimizer.step()
    assert torch.equal(optimizer.gradient, gradient)


def test_the_state_is_complete_before_the_first_step() -> None:
    assert {name: tensor.shape for name, tensor in flat_adam().tensors().items()} == {
        "step": (),
        "exp_avg": (4,),
        "exp_avg_sq": (4,),
    }


def test_a_copied_state_gives_equal_steps() -> None:
    one, other = flat_adam(), flat_adam()
    for optimizer, steps in ((one, 3), (other, 1)):
        for _ in range(steps):
            optimizer.gradient.fill_(0.5)
            optimizer.step()
    other.parameters.copy_(one.parameters)
    for name, tensor in one.tensors().items():
        other.tensors()[name].copy_(tensor)
    for optimizer in (one, other):
        optimizer.gradient.copy_(torch.tensor([1.0, -1.0, 2.0, 0.0]))
        optimizer.step()
    assert torch.equal(one.parameters, other.parameters)

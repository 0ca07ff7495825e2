import pytest
import torch

from agentpod.algorithms import ALGORITHMS
from agentpod.qualification import trials
from agentpod.qualification.numerics import (
    LARGEST_CONVOLUTION_ERROR,
    LARGEST_SHARE,
    agreement,
    convolutions_error,
    judge,
    judge_error,
    measure,
    moments_error,
    priorities_error,
)
from podrace.qualification.findings import Grade

START, END = torch.zeros(100), torch.ones(100)


def grades(first: torch.Tensor, second: torch.Tensor) -> list[Grade]:
    compared = agreement("ppo", "cuda:0", [START, END], [START, first], [START, second])
    return [finding.grade for finding in judge(compared)]


def test_equal_policies_pass() -> None:
    assert grades(END, END) == [Grade.PASS, Grade.PASS]


def test_a_policy_that_differs_by_more_than_rounding_fails() -> None:
    assert grades(END * (1 + 0.9 * LARGEST_SHARE), END * (1 + 0.9 * LARGEST_SHARE)) == [Grade.PASS, Grade.PASS]
    assert grades(END * 1.1, END * 1.1)[0] == Grade.FAIL


def test_numbers_that_are_not_finite_fail() -> None:
    assert grades(END * float("nan"), END)[0] == Grade.FAIL


def test_a_repetition_with_other_bits_fails() -> None:
    assert grades(END, END + 1e-6) == [Grade.PASS, Grade.FAIL]


def test_an_update_that_changes_nothing_fails() -> None:
    compared = agreement("ppo", "cuda:0", [START, START], [START, START], [START, START])
    update, _ = judge(compared)
    assert (update.grade, update.measured) == (Grade.FAIL, "the update changed nothing")


def test_errors_of_sums_are_graded() -> None:
    assert judge_error("x", 1e-12).grade == Grade.PASS
    assert judge_error("x", 1e-3).grade == Grade.FAIL
    assert judge_error("x", float("nan")).grade == Grade.FAIL


@pytest.mark.long
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_updated_twice_with_the_same_result(name: str) -> None:
    found = measure(name, "cpu")
    assert (found.share, found.repeated) == (0.0, True)
    assert found.moved > 0


def test_experience_of_another_seed_gives_another_policy() -> None:
    experience = trials.collected("ppo")
    segments = experience.segments[:1]
    _, (_, one) = trials.updated(experience, "cpu", updates=1)
    changed = {**segments[0], "reward": segments[0]["reward"] * torch.linspace(0, 1, trials.LANES)}
    _, (_, other) = trials.updated(trials.Experience("ppo", (changed,)), "cpu", updates=1)
    assert not torch.equal(one, other)


def test_statistics_and_priorities_agree_on_the_processor() -> None:
    assert moments_error("cpu") == 0.0
    assert priorities_error("cpu") == 0.0


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Rounds float32 to 10 bits of mantissa, as TF32 does."""
    if tensor.dtype != torch.float32:
        return tensor
    return ((tensor.detach().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def test_convolutions_pass_in_float32_and_fail_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    error = convolutions_error("cpu")
    assert 0.0 < error < LARGEST_CONVOLUTION_ERROR / 5
    convolve = torch.conv2d

    def rounding(image: torch.Tensor, weight: torch.Tensor, bias: None, stride: int) -> torch.Tensor:
        # Added to the inputs, so that gradients pass.
        return convolve(image + (rounded(image) - image).detach(), weight, bias, stride)

    monkeypatch.setattr(torch, "conv2d", rounding)
    assert convolutions_error("cpu") > 2 * LARGEST_CONVOLUTION_ERROR
    assert judge_error("convolutions", error, LARGEST_CONVOLUTION_ERROR).grade == Grade.PASS
    assert judge_error("convolutions", 2 * LARGEST_CONVOLUTION_ERROR, LARGEST_CONVOLUTION_ERROR).grade == Grade.FAIL

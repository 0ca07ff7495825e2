"""Tests that products and convolutions have the requested precision, and that both settings are float32 afterwards."""

import pytest
import torch

from agentpod.algorithms import matmul_precision as module
from agentpod.algorithms.matmul_precision import MATMUL_PRECISIONS, is_exact, matmul_precision
from podrace.specification import catalog


def test_every_precision_of_the_catalog_has_a_torch_name():
    assert set(MATMUL_PRECISIONS) == set(catalog.PRECISIONS)


@pytest.mark.parametrize("precision", MATMUL_PRECISIONS)
def test_the_setting_is_restored_after_an_exception(precision):
    with pytest.raises(ZeroDivisionError), matmul_precision(precision, (256,), "cpu"):
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32


def test_float32_is_exact_with_the_selected_kernels():
    left, right = torch.randn(300, 300), torch.randn(300, 300)
    with matmul_precision("float32", (256, 256), "cpu"):
        found = torch.mm(left, right)
    torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=0.0, atol=1e-4)


def test_kernels_that_round_are_not_used_for_float32(monkeypatch):
    def rounding(left, right):
        return left @ right if left.dtype == torch.float64 else (left.bfloat16() @ right.bfloat16()).float()

    monkeypatch.setattr(torch, "mm", rounding)
    is_exact.cache_clear()
    assert not is_exact("medium", "cpu")
    with matmul_precision("float32", (256,), "cpu"):
        assert torch.get_float32_matmul_precision() == "highest"
    is_exact.cache_clear()


def test_other_kernels_are_used_only_for_wide_layers(monkeypatch):
    monkeypatch.setattr(module, "is_exact", lambda *_: True)
    for hidden_sizes, wanted in (((64, 64), "highest"), ((64, 128), "medium"), ((), "highest")):
        with matmul_precision("float32", hidden_sizes, "cpu"):
            assert torch.get_float32_matmul_precision() == wanted


def test_lower_precisions_select_the_torch_setting():
    for precision, wanted in (("tf32", "high"), ("bfloat16", "medium")):
        with matmul_precision(precision, (64,), "cpu"):
            assert torch.get_float32_matmul_precision() == wanted


@pytest.mark.parametrize(("precision", "rounds"), [("float32", False), ("tf32", True), ("bfloat16", True)])
def test_convolutions_have_the_precision_of_products(precision, rounds, monkeypatch):
    # As torch sets it by default.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with matmul_precision(precision, (64,), "cpu"):
        assert torch.backends.cudnn.allow_tf32 == rounds

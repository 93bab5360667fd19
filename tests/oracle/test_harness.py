"""The referee itself: it must find PyTorch right, and a wrong module wrong."""

from __future__ import annotations

import types

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")
pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest: pip install expecttest")

import numpy as np
import torch

from tests.oracle.check import check_entry, check_in_place, check_method, samples
from tests.oracle.compare import array_difference, difference
from tests.oracle.convert import FrozenTensor, OutOfScope, copy_with_layout, freeze, thaw
from tests.oracle.entries import database, find
from tests.oracle.reasons import reason
from tests.oracle.rounding import as_close


def altered(**replacements):
    """PyTorch with some functions replaced, posing as the module under test."""
    return types.SimpleNamespace(**(vars(torch) | replacements))


@pytest.mark.parametrize("name", ["add", "sum", "sort", "linalg.svd", "__getitem__", "einsum", "empty_like", "item"])
def test_pytorch_agrees_with_itself(name):
    entry = database()[name]
    for dtype in entry.dtypes:
        outcome = check_entry(torch, entry, dtype)
        assert outcome.agrees, outcome.verdict
        assert outcome.checked == outcome.samples > 0
        assert outcome.gradients > 0 or not entry.record.supports_autograd


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return g


WRONG = {
    "value": (lambda x: torch.exp(x) * 1.00001, "values differ"),
    "gradient": (WrongGradient.apply, "gradient 0"),
    "shape": (lambda x: torch.exp(x).reshape(1, *x.shape), "shape"),
    "dtype": (lambda x: torch.exp(x).to(torch.float16), "float16 instead of"),
    "not differentiable": (lambda x: torch.exp(x).detach(), "requires_grad"),
    "not a tensor": (lambda x: torch.exp(x).detach().numpy(), "instead of a tensor"),
    "error": (lambda x: x.no_such_method(), "AttributeError"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("function", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_function_is_found(function, message, dtype):
    outcome = check_entry(altered(exp=function), database()["exp"], dtype)
    assert not outcome.agrees
    assert message in outcome.verdict


def test_a_bad_reference_excuses_no_bad_result():
    """Where PyTorch's float32 is far from its float64, ours must still be near it."""
    truth = np.array([1.0, 2.0])
    far = truth.astype(np.float32) * np.float32(1.01)
    near = truth.astype(np.float32) * np.float32(1 + 5e-5)
    assert not as_close(far, far, truth)
    assert as_close(near, far, truth)
    assert not as_close(near, truth.astype(np.float32), truth)


def test_float32_rounding_is_judged_by_float64():
    """A product rounded in another way agrees; one that is off by more than rounding does not."""
    entry = database()["matmul"]

    def in_float64(a, b):
        return torch.matmul(a.double(), b.double()).float()

    def ten_roundings_off(a, b):
        return torch.matmul(a, b) * (1 + 2e-5)

    assert check_entry(altered(matmul=in_float64), entry, torch.float32).agrees
    outcome = check_entry(altered(matmul=ten_roundings_off), entry, torch.float32)
    assert not outcome.agrees
    assert "values differ" in outcome.verdict or "value differs" in outcome.verdict


def test_a_wrong_distribution_is_found():
    for wrong in (lambda *size, **kwargs: torch.randn(*size, **kwargs) * 1.5, torch.rand):
        assert not check_entry(altered(randn=wrong), database()["randn"], torch.float32).agrees
    assert check_entry(altered(), database()["randn"], torch.float32).agrees


def test_methods_are_checked():
    for check in (check_method, check_in_place):
        outcome = check(torch, database()["mul"], torch.float64)
        assert outcome is not None
        assert outcome.checked > 0
        assert not outcome.failures


def test_an_absent_function_is_not_found():
    entry = database()["exp"]
    empty = types.SimpleNamespace(Tensor=object, __name__="empty")
    assert find(empty, entry) is None
    assert find(torch, entry) is torch.exp


def test_samples_are_the_same_in_every_run():
    first, second = (next(iter(samples(database()["add"], torch.float32))) for _ in range(2))
    assert np.array_equal(first.args[0].array, second.args[0].array)


def test_conversion_keeps_layout_sharing_and_gradients():
    x = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    frozen = freeze((x, [x, torch.float32], {"size": torch.Size([2])}))
    thawed = thaw(torch, frozen, {})
    first, (second, dtype), keywords = thawed.args
    assert first is second
    assert first.stride() == x.stride()
    assert first.requires_grad
    assert thawed.leaves == [first]
    assert dtype is torch.float32
    assert keywords == {"size": (2,)}
    first.detach().zero_()
    assert x.sum() == 15


def test_conversion_refuses_what_is_out_of_scope():
    for value in (
        torch.ones(2, dtype=torch.complex64),
        torch.float8_e5m2,
        1j,
        torch.eye(2).to_sparse(),
        object(),
    ):
        with pytest.raises(OutOfScope):
            freeze(value)


def test_layouts_of_every_kind_are_copied():
    base = np.arange(24.0).reshape(2, 3, 4)
    for array in (base, base.T, base[:, ::2], np.broadcast_to(base[0, 0], (3, 4)), base[1:1], np.array(3.0)):
        copied = copy_with_layout(array)
        assert copied.strides == array.strides or array.size <= 1
        assert np.array_equal(copied, array)
        assert not np.shares_memory(copied, array)


def test_comparison_knows_infinities_and_nans():
    array = np.array([1.0, np.inf, -np.inf, np.nan])
    assert array_difference(array, array.copy()) is None
    for place, wrong in enumerate((1.1, 1.0, np.inf, 0.0)):
        other = array.copy()
        other[place] = wrong
        assert f"at [{place}]" in array_difference(other, array)


def test_comparison_of_structures():
    result = torch.ones(2).sort()
    assert difference(result, result) is None
    assert "no field" in difference(tuple(result), result)
    assert "items" in difference((result[0],), result)
    assert difference(3, 3.0) is not None


def test_reasons_match_whole_names():
    assert reason("fft.fft") == "complex numbers are out of scope"
    assert reason("add") is None


def test_frozen_tensors_hold_their_own_memory():
    x = torch.zeros(3)
    frozen = freeze(x)
    assert isinstance(frozen, FrozenTensor)
    x.fill_(1)
    assert frozen.array.sum() == 0

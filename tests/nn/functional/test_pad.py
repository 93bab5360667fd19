"""Padding and shuffling, against NumPy and by their inverses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import ArgumentError, OperationError
from wayfare.nn import functional as F

NUMPY_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@given(st.tuples(*[st.integers(1, 4)] * 3), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=3))
def test_constant_padding_is_numpys(shape, pairs):
    array = np.random.default_rng(0).normal(size=shape)
    amounts = [n for pair in pairs for n in pair]
    widths = [(0, 0)] * (3 - len(pairs)) + pairs[::-1]
    got = F.pad(wf.from_numpy(array), amounts, value=1.5)
    np.testing.assert_array_equal(got.numpy(), np.pad(array, widths, constant_values=1.5))


@given(st.sampled_from(sorted(NUMPY_MODES)), st.tuples(*[st.integers(0, 3)] * 4))
def test_edge_modes_are_numpys(mode, amounts):
    array = np.random.default_rng(0).normal(size=(2, 1, 4, 5))
    left, right, top, bottom = amounts
    got = F.pad(wf.from_numpy(array), amounts, mode)
    widths = [(0, 0), (0, 0), (top, bottom), (left, right)]
    np.testing.assert_array_equal(got.numpy(), np.pad(array, widths, mode=NUMPY_MODES[mode]))


def test_negative_amounts_cut():
    x = wf.arange(5.0, requires_grad=True)
    out = F.pad(x, (-1, 2), value=9)
    assert out.tolist() == [1, 2, 3, 4, 9, 9]
    (out * 2).sum().backward()
    assert x.grad.tolist() == [0, 2, 2, 2, 2]


def test_gradients_of_the_edge_modes_sum_the_copies():
    for mode, want in {"reflect": [1, 2, 2, 1], "replicate": [2, 1, 1, 2], "circular": [2, 1, 1, 2]}.items():
        x = wf.zeros(1, 4, requires_grad=True)
        F.pad(x, (1, 1), mode).sum().backward()
        assert x.grad.tolist() == [want], mode


def test_dtypes_stay():
    assert F.pad(wf.tensor([1, 2]), (1, 0), value=3).tolist() == [3, 1, 2]
    assert F.pad(wf.tensor([True]), (0, 1)).tolist() == [True, False]


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda x: F.pad(x, (1,)), OperationError, r"pad: \[1\] must hold a left and a right amount"),
        (lambda x: F.pad(x, (-3, -2)), OperationError, r"cut too much from dimension 1 of f32\[2,4\]"),
        (lambda x: F.pad(x, (4, 0), "reflect"), OperationError, "reflecting 4 elements needs more than the 4"),
        (lambda x: F.pad(x, (5, 0), "circular"), OperationError, "going round more than once"),
        (lambda x: F.pad(x, (1, 1), "mirror"), OperationError, "mode must be constant, reflect, replicate or circular"),
        (lambda x: F.pad(x, (1, 1), "reflect", 2.0), ArgumentError, "a value has no meaning"),
        (lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), OperationError, "2 pairs do not fit"),
    ],
)
def test_errors_are_sentences(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(wf.zeros(2, 4))


def test_shuffles_undo_each_other():
    x = wf.randn(2, 12, 3, 2)
    big = F.pixel_shuffle(x, 2)
    assert tuple(big.shape) == (2, 3, 6, 4)
    assert big[0, 1, 2, 3].item() == x[0, 5, 1, 1].item()
    assert F.pixel_unshuffle(big, 2).tolist() == x.tolist()
    assert F.channel_shuffle(x, 3)[0, :, 0, 0].tolist() == x[0, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11], 0, 0].tolist()
    with pytest.raises(OperationError, match=r"12 channels of f32\[2,12,3,2\] are not a multiple of 5² = 25"):
        F.pixel_shuffle(x, 5)

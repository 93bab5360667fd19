"""Convolution: against plain loops in any dimension, the three gradients, groups, named padding, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

import wayfare as wf
from wayfare.core.tensor import wrap
from wayfare.nn import functional as F
from wayfare.ops.window import conv as records


def normal(*shape, seed=0):
    return wrap(np.random.default_rng(seed).normal(size=shape))


def test_conv2d_agrees_with_scipy():
    x, w, b = normal(2, 3, 6, 5), normal(4, 3, 3, 2, seed=1), normal(4, seed=2)
    want = np.zeros((2, 4, 4, 4))
    for n in range(2):
        for o in range(4):
            for c in range(3):
                want[n, o] += signal.correlate(x._array[n, c], w._array[o, c], mode="valid")
    want += b._array[:, None, None]
    np.testing.assert_allclose(F.conv2d(x, w, b)._array, want, rtol=1e-12, atol=1e-12)


def test_an_input_without_batch_gives_an_output_without():
    x, w = normal(3, 6, 5), normal(4, 3, 2, 2, seed=1)
    out = F.conv2d(x, w)
    assert tuple(out.shape) == (4, 5, 4)
    np.testing.assert_array_equal(out._array, F.conv2d(wrap(x._array[None]), w)._array[0])


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_same_padding_keeps_the_size(kernel):
    x, w = normal(1, 1, 7), normal(1, 1, kernel, seed=1)
    out = F.conv1d(x, w, padding="same", dilation=2)
    assert tuple(out.shape) == (1, 1, 7)
    # What is centred: behind the kernel's middle the padding is no smaller than before it.
    total = 2 * (kernel - 1)
    padded = np.pad(x._array[0, 0], (total // 2, total - total // 2))
    spread = np.zeros(total + 1)
    spread[::2] = w._array[0, 0]
    np.testing.assert_allclose(out._array[0, 0], np.correlate(padded, spread), atol=1e-12)


def test_groups_are_separate_convolutions():
    x, w = normal(2, 4, 5), normal(6, 2, 3, seed=1)
    parts = [F.conv1d(wrap(x._array[:, 2 * i : 2 * i + 2]), wrap(w._array[3 * i : 3 * i + 3])) for i in range(2)]
    want = np.concatenate([p._array for p in parts], 1)
    np.testing.assert_allclose(F.conv1d(x, w, groups=2)._array, want, rtol=1e-12, atol=1e-12)


@given(st.data())
@settings(max_examples=60)
def test_a_transposed_convolution_is_the_adjoint(data):
    """<conv(x), g> = <x, conv_transpose(g)> for all shapes."""
    rank = data.draw(st.integers(1, 3))
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(rank))
    kernel, stride, padding, dilation = draw(1, 3), draw(1, 3), draw(0, 1), draw(1, 2)
    groups = data.draw(st.integers(1, 2))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = tuple(r + extra for r, extra in zip(reach, draw(0, 3), strict=True))
    conv = getattr(F, f"conv{rank}d")
    transposed = getattr(F, f"conv_transpose{rank}d")
    x, w = normal(2, 2 * groups, *sizes), normal(3 * groups, 2, *kernel, seed=1)
    y = conv(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    g = normal(*y.shape, seed=2)
    least = [(o - 1) * s - 2 * p + r for o, s, p, r in zip(y.shape[2:], stride, padding, reach, strict=True)]
    back = transposed(
        g, w, stride=stride, padding=padding, dilation=dilation, groups=groups,
        output_padding=tuple(n - m for n, m in zip(sizes, least, strict=True)),
    )  # fmt: skip
    assert back.shape == x.shape
    np.testing.assert_allclose((y._array * g._array).sum(), (x._array * back._array).sum(), rtol=1e-9, atol=1e-9)


def test_a_large_batch_is_worked_in_pieces(monkeypatch):
    x, w = normal(5, 2, 6), normal(3, 2, 3, seed=1)
    x.requires_grad_(), w.requires_grad_()

    def run():
        out = F.conv1d(x, w, padding=1)
        return [out._array] + [g._array for g in wf.autograd.grad([out], [x, w], [normal(*out.shape, seed=3)])]

    whole = run()
    monkeypatch.setattr(records, "_COLUMN_LIMIT", 80)  # two examples at a time
    for a, b in zip(whole, run(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_half_precision_is_summed_in_single():
    x, w = (wrap(t._array.astype(np.float16)) for t in (normal(1, 64, 8), normal(4, 64, 3, seed=1)))
    out = F.conv1d(x, w)
    exact = F.conv1d(wrap(x._array.astype(np.float64)), wrap(w._array.astype(np.float64)))
    assert out.dtype is wf.float16
    np.testing.assert_allclose(out._array, exact._array, rtol=2e-3, atol=2e-3)


def test_unfold_and_fold():
    x = normal(2, 3, 5, 4)
    columns = F.unfold(x, (2, 3), padding=1, stride=2)
    assert tuple(columns.shape) == (2, 18, 3 * 2)
    counted = F.fold(F.unfold(wrap(np.ones((1, 1, 4, 4))), 2), (4, 4), 2)
    np.testing.assert_array_equal(counted._array[0, 0], np.outer([1, 2, 2, 1], [1, 2, 2, 1]))
    w = normal(4, 3, 2, 3, seed=1)
    product = w._array.reshape(4, -1) @ columns._array
    np.testing.assert_allclose(
        product.reshape(2, 4, 3, 2), F.conv2d(x, w, padding=1, stride=2)._array, rtol=1e-12, atol=1e-12
    )


REFUSALS = {
    "channels": (
        lambda: F.conv1d(normal(1, 2, 5), normal(3, 4, 2)),
        r"f64\[1,2,5\] has 2 channels .*takes 4",
    ),
    "kernel": (lambda: F.conv2d(normal(1, 1, 2, 9), normal(1, 1, 3, 3)), r"a kernel of \[3, 3\].*larger"),
    "rank": (
        lambda: F.conv2d(normal(1, 5), normal(1, 1, 2, 2)),
        r"4 dimensions, or 3 without a batch.*f64\[1,5\]",
    ),
    "bias": (
        lambda: F.conv1d(normal(1, 1, 5), normal(3, 1, 2), normal(2)),
        "one number for each of 3 channels",
    ),
    "dtype": (
        lambda: F.conv1d(normal(1, 1, 5), wrap(np.ones((1, 1, 2), np.float32))),
        r"one dtype.*\.to\(wf.float32\)",
    ),
    "same": (
        lambda: F.conv1d(normal(1, 1, 5), normal(1, 1, 2), stride=2, padding="same"),
        "needs a stride of 1",
    ),
    "stride": (lambda: F.conv1d(normal(1, 1, 5), normal(1, 1, 2), stride=0), "stride must be at least 1"),
    "output_padding": (
        lambda: F.conv_transpose1d(normal(1, 1, 5), normal(1, 1, 2), output_padding=1),
        "must be smaller than stride",
    ),
}


@pytest.mark.parametrize(("call", "text"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(call, text):
    with pytest.raises(wf.errors.WayfareError, match=text) as caught:
        call()
    assert "test_conv.py:" in str(caught.value)


def test_sizes_are_whole_numbers_of_any_kind():
    x, weight = wf.ones(1, 1, 4, 4), wf.ones(1, 1, 2, 2)
    assert F.conv2d(x, weight, stride=np.int64(2)).shape == (1, 1, 2, 2)
    assert F.conv2d(x, weight, stride=(np.int32(2), 1)).shape == (1, 1, 2, 3)
    for wrong in (2.0, "2", None, (1, 2, 3), (1, 2.0), ()):
        with pytest.raises(TypeError, match="conv2d: stride must be an int or 2 of them, not"):
            F.conv2d(x, weight, stride=wrong)


def test_input_and_weight_must_be_tensors():
    with pytest.raises(TypeError, match="conv2d: expected a tensor, not ndarray"):
        F.conv2d(np.ones((1, 1, 4, 4), np.float32), wf.ones(1, 1, 2, 2))
    with pytest.raises(TypeError, match="conv2d: expected a tensor, not NoneType"):
        F.conv2d(wf.ones(1, 1, 4, 4), None)

"""Convolutions as layers against SciPy and NumPy: padding modes, sizes of transposes, Unfold and Fold, refusals."""

import numpy as np
import pytest
from scipy.signal import correlate

import wayfare as wf
from wayfare import nn
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

rng = np.random.default_rng(0)


def plain(x, layer, strides):
    """Each output channel is a sum of correlations; strides take every so manieth."""
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    every = (slice(None), slice(None), *(slice(None, None, s) for s in strides))
    out = [[sum(correlate(x[n, c], w[c], "valid") for c in range(len(w))) for w in weight] for n in range(len(x))]
    return np.array(out)[every] + bias.reshape(-1, *(1,) * len(strides))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("mode", "numpy_mode"), [
    ("zeros", "constant"), ("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap"),
])  # fmt: skip
def test_a_convolution_with_padding(rank, mode, numpy_mode):
    sizes, kernel, padding, stride = (6, 7, 5)[:rank], (3, 2, 3)[:rank], (2, 1, 1)[:rank], (1, 2, 2)[:rank]
    layer = getattr(nn, f"Conv{rank}d")(2, 3, kernel, stride, padding, padding_mode=mode, dtype=wf.float64)
    x = rng.normal(size=(2, 2, *sizes))
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)], mode=numpy_mode)
    np.testing.assert_allclose(layer(wf.from_numpy(x)).detach().numpy(), plain(padded, layer, stride), atol=1e-12)
    alone = layer(wf.from_numpy(x[0])).detach().numpy()
    np.testing.assert_allclose(alone, plain(padded, layer, stride)[0], atol=1e-12)


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_same_keeps_the_size_also_with_an_even_kernel(mode):
    layer = nn.Conv2d(1, 1, (4, 3), padding="same", dilation=(1, 2), padding_mode=mode)
    assert layer(wf.ones(1, 1, 7, 6)).shape == (1, 1, 7, 6)
    assert ("padding_mode=circular)" in repr(layer)) == (mode == "circular")
    assert "padding=same, dilation=(1, 2)" in repr(layer)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_transposed_convolution_is_the_adjoint(rank):
    """<conv(x), y> = <x, transposed(y)> when they share a weight."""
    sizes = (7, 6, 5)[:rank]
    conv = getattr(nn, f"Conv{rank}d")(2, 4, 3, 2, 1, groups=2, bias=False, dtype=wf.float64)
    back = getattr(nn, f"ConvTranspose{rank}d")(4, 2, 3, 2, 1, groups=2, bias=False, dtype=wf.float64)
    back.load_state_dict(conv.state_dict())
    x = wf.from_numpy(rng.normal(size=(2, 2, *sizes)))
    y = conv(x)
    z = wf.from_numpy(rng.normal(size=y.shape))
    returned = back(z, output_size=sizes)
    assert returned.shape == x.shape
    np.testing.assert_allclose((y * z).sum().item(), (x * returned).sum().item(), rtol=1e-10)


def test_sizes_a_transpose_can_reach():
    layer = nn.ConvTranspose2d(1, 1, 3, stride=2, padding=1)
    x = wf.ones(1, 1, 4, 4)
    assert [layer(x, output_size=[n, n]).shape[-1] for n in (7, 8)] == [7, 8]
    assert layer(x, output_size=(1, 1, 8, 7)).shape == (1, 1, 8, 7)
    with pytest.raises(ArgumentError, match=r"sizes from \[7, 7\] to \[8, 8\], not \[9, 9\]"):
        layer(x, output_size=[9, 9])
    with pytest.raises(ArgumentError, match=r"must have 2 numbers, or 4 with the batch .* has 3"):
        layer(x, output_size=[1, 8, 8])


def test_first_values_are_within_the_bound():
    for layer, fan in ((nn.Conv2d(4, 64, 5), 100), (nn.ConvTranspose1d(64, 50, 4, groups=2), 100)):
        for values in (layer.weight, layer.bias):
            assert 0.08 < values.abs().max().item() <= fan**-0.5


def test_unfold_then_a_product_is_a_convolution():
    conv = nn.Conv2d(2, 3, (2, 3), stride=2, padding=1, bias=False, dtype=wf.float64)
    x = wf.from_numpy(rng.normal(size=(2, 2, 5, 6)))
    columns = nn.Unfold((2, 3), stride=2, padding=1)(x)
    wanted = conv(x)
    product = conv.weight.reshape(3, -1) @ columns
    np.testing.assert_allclose(product.reshape(wanted.shape).detach().numpy(), wanted.detach().numpy(), atol=1e-12)


def test_fold_counts_how_many_windows_cover_a_pixel():
    ones = wf.ones(1, 1, 3, 3)
    covered = nn.Fold((3, 3), 2)(nn.Unfold(2)(ones))
    assert covered[0, 0].tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]


def test_an_empty_batch():
    layer = nn.Conv2d(3, 4, 3)
    out = layer(wf.zeros(0, 3, 5, 5))
    assert out.shape == (0, 4, 3, 3)
    out.sum().backward()
    assert not layer.weight.grad.any() and not layer.bias.grad.any()


REFUSED = {
    "channels": (lambda: nn.Conv2d(3, 4, 3)(wf.ones(2, 1, 8, 8)), ShapeError,
                 r"conv2d: the input f32\[2,1,8,8\] has 1 channels \(dimension 1\), the weight f32\[4,3,3,3\] takes 3, "
                 r"in Conv2d\(3, 4"),
    "dimensions": (lambda: nn.Conv2d(3, 4, 3)(wf.ones(8, 8)), ShapeError, r"4 dimensions, or 3 .* this is f32\[8,8\]"),
    "small": (lambda: nn.Conv2d(3, 4, 3)(wf.ones(1, 3, 2, 2)), ShapeError, r"kernel of \[3, 3\] .* is larger than"),
    "dtype": (lambda: nn.Conv1d(3, 4, 3)(wf.ones(1, 3, 5, dtype=wf.int64)), DTypeError, r"\.to\(wf\.float32\)"),
    "transposed": (lambda: nn.ConvTranspose1d(3, 4, 3)(wf.ones(1, 2, 5)), ShapeError, "has 2 channels .* takes 3"),
    "groups": (lambda: nn.Conv2d(3, 4, 3, groups=2), ArgumentError, "in_channels 3 cannot be split into 2 groups"),
    "no groups": (lambda: nn.Conv2d(3, 4, 3, groups=0), ArgumentError, "groups must be positive, it is 0"),
    "kernel": (lambda: nn.Conv2d(3, 4, (3, 3, 3)), ArgumentTypeError, r"Conv2d: kernel_size must be an int or 2"),
    "padding": (lambda: nn.Conv2d(3, 4, 3, padding="full"), ArgumentError, "'same' or 'valid', not 'full'"),
    "stride": (lambda: nn.Conv2d(3, 4, 3, 2, "same"), ArgumentError, "needs a stride of 1"),
    "mode": (lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"), ArgumentError, "zeros, reflect, replicate, circular"),
    "mode of a transpose": (lambda: nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect"), ArgumentError, "'zeros'"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call()

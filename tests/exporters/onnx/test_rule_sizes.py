"""Rules with sizes that are only known when the model runs: written once, run at several sizes."""

import numpy as np
import pytest

from tests.exporters.onnx.alone import finished, listed, run
from wayfare.core.op import REGISTRY
from wayfare.core.spec import OF_NUMPY, int64
from wayfare.core.symbolic_sizes import symbol
from wayfare.exporters.onnx.builder import Builder

N, M = "n", "m"
WRITTEN_AT = {N: 5, M: 7}
# Sizes the model is run at: larger, smaller, equal to each other, one.
RUN_AT = ({N: 5, M: 7}, {N: 8, M: 6}, {N: 6, M: 11}, {N: 9, M: 9})


def _numbers(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 3, shape).astype(dtype)


def _at(shape, sizes):
    return tuple(sizes[n] if isinstance(n, str) else n for n in shape)


def _model(name, shapes, attrs, dtypes):
    b = Builder()
    known = {}
    inputs = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        sizes = [known.setdefault(n, symbol(len(known), WRITTEN_AT[n])) if isinstance(n, str) else n for n in shape]
        inputs.append(b.input("input", OF_NUMPY[np.dtype(dtype)], tuple(sizes)))
    for n in known:
        at = next(i for i, shape in enumerate(shapes) if n in shape)
        b.symbols.append((inputs[at], shapes[at].index(n)))
    for value in listed(b.apply(REGISTRY[name], inputs, attrs(**{N: 0, M: 0, **known}))):
        b.output("output", value, value.shape)
    return finished(b, open_axes=True)


def check(name, shapes, attrs, dtypes=None, run_at=RUN_AT):
    dtypes = dtypes or [np.float32] * len(shapes)
    model = _model(name, shapes, attrs, dtypes)
    for sizes in run_at:
        arrays = [_numbers(_at(s, sizes), d, i) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]
        want = listed(REGISTRY[name].forward(*arrays, **attrs(**sizes)))
        for got, expected in zip(run(model, arrays), want, strict=True):
            assert got.shape == np.shape(expected), (name, sizes, got.shape, np.shape(expected))
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name} {sizes}")
    return model


CASES = {
    "merged": ("reshape", [(N, M, 4)], lambda n, m: {"shape": (n * m, 4)}),
    "last two merged": ("reshape", [(N, M, 4)], lambda n, m: {"shape": (n, m * 4)}),
    "split": ("reshape", [(N, 6)], lambda n, m: {"shape": (n, 2, 3)}),
    "squeezed": ("squeeze", [(N, 1, M)], lambda n, m: {"shape": (n, m)}),
    "unsqueezed": ("unsqueeze", [(N, M)], lambda n, m: {"shape": (n, 1, m)}),
    "swapped": ("reshape", [(N, M)], lambda n, m: {"shape": (m, n)}),
    "stretched": ("expand", [(N, 1)], lambda n, m: {"shape": (2, n, 3)}),
    "cut at both ends": ("slice", [(N, M)], lambda n, m: {"dim": 1, "start": 1, "stop": m - 1, "step": 1}),
    "every other": ("slice", [(N, M)], lambda n, m: {"dim": 0, "start": 0, "stop": n, "step": 2}),
    "the last": ("select", [(N, M)], lambda n, m: {"dim": 1, "index": m - 1}),
    "the last but one": ("select", [(N, M)], lambda n, m: {"dim": 1, "index": m - 2}),
    "mixed": ("basic_index", [(N, M, 3)], lambda n, m: {"index": (n - 1, None, (1, m, 1), (0, 3, 2))}),
    "placed": ("place", [(N, 2)], lambda n, m: {"shape": (n, 5), "index": ((0, n, 1), (1, 3, 1))}),
    "rolled": ("roll", [(N, M)], lambda n, m: {"shifts": (2, -3), "dims": (0, 1)}),
    "rolled by half": ("roll", [(N, M)], lambda n, m: {"shifts": (n // 2,), "dims": (0,)}),
    "flipped": ("flip", [(N, M)], lambda n, m: {"dims": (0, 1)}),
    "padded": ("pad", [(N, M)], lambda n, m: {"amounts": ((1, 2), (-1, 3)), "value": 2.0}),
    "shifted": ("shifted", [(N, M)], lambda n, m: {"dim": 1, "by": 3, "fill": 1.0}),
    "windows": ("unfold", [(N, M)], lambda n, m: {"dim": 1, "size": 3, "step": 2}),
    "windows back": ("fold_back", [(2, N, 3)], lambda n, m: {"shape": (2, n + 2), "dim": 1, "step": 1}),
    "lower triangle": ("tril", [(N, M)], lambda n, m: {"diagonal": -1}),
    "copied": ("clone", [(N, M)], lambda n, m: {}),
    "summed": ("sum", [(N, M)], lambda n, m: {"dim": (0, 1), "keepdim": False}),
    "mean": ("mean", [(N, M)], lambda n, m: {"dim": (1,), "keepdim": True}),
    "variance": ("var", [(N, M)], lambda n, m: {"dim": (0,), "keepdim": False, "correction": 1}),
    "standardised": ("standardize", [(N, M)], lambda n, m: {"dim": (0, 1), "eps": 1e-5}),
    "largest": ("max_at", [(N, M)], lambda n, m: {"dim": 1, "keepdim": False}),
    "sorted": ("sort", [(N, M)], lambda n, m: {"dim": 1, "descending": True}),
    "half of them": ("topk", [(N, M)], lambda n, m: {"dim": 1, "k": m // 2, "largest": True}),
    "median": ("median", [(N, M)], lambda n, m: {"dim": 0, "ignore_nan": False, "keepdim": True}),
    "median of all": ("median_of_all", [(N, M)], lambda n, m: {"dim": (0, 1), "ignore_nan": True, "keepdim": True}),
    "running sum": ("cumsum", [(N, M)], lambda n, m: {"dim": 0, "reverse": True}),
    "running product": ("cumprod", [(N, M)], lambda n, m: {"dim": 1, "reverse": False}),
    "running product backwards": ("cumprod", [(N, M)], lambda n, m: {"dim": 1, "reverse": True}),
    "running maximum": ("cummax", [(N, M)], lambda n, m: {"dim": 0}),
    "scan": ("linear_scan", [(N, 2), (N, 2)], lambda n, m: {"dim": 0, "reverse": True}),
    "soft": ("softmax", [(N, M)], lambda n, m: {"dim": 0}),
    "product": ("matmul", [(N, 3, M), (M, 2)], lambda n, m: {}),
    "linear": ("linear", [(N, M, 3), (2, 3), (2,)], lambda n, m: {}),
    "einsum": ("einsum", [(N, M), (M, 3)], lambda n, m: {"equation": "nm,mk->kn"}),
    "causal attention": (
        "attention", [(2, N, 4), (2, M, 4), (2, M, 3), ()], lambda n, m: {"scale": 0.5, "causal": True}),
    "masked attention": ("attention", [(2, N, 4), (2, M, 4), (2, M, 3), (N, M)],
                         lambda n, m: {"scale": 0.5, "causal": False}),
    "self attention": ("self_attention", [(N, M, 3, 2, 4), ()], lambda n, m: {"scale": 0.5, "causal": True}),
    "layer norm": ("layer_norm", [(N, M, 4), (4,), (4,)], lambda n, m: {"eps": 1e-5}),
    "joined": ("cat", [(N, M), (N, 2)], lambda n, m: {"dim": 1}),
    "stacked": ("stack", [(N, M), (N, M)], lambda n, m: {"dim": 1}),
    "convolved": ("conv", [(N, 2, M), (3, 2, 3)],
                  lambda n, m: {"stride": (2,), "padding": (1,), "dilation": (1,), "groups": 1}),
    "transposed convolution": (
        "conv_input", [(N, 3, M), (3, 2, 3)],
        lambda n, m: {"sizes": ((m - 1) * 2 + 2,), "stride": (2,), "padding": (1,), "dilation": (1,), "groups": 1}),
    "largest of windows": (
        "max_pool", [(N, 2, M)], lambda n, m: {"kernel": (2,), "stride": (2,), "padding": (0,), "dilation": (1,),
                                               "counts": ((m - 2) // 2 + 1,)}),
    "rounded up": (
        "max_pool", [(N, 2, M)], lambda n, m: {"kernel": (2,), "stride": (2,), "padding": (0,), "dilation": (1,),
                                               "counts": (-(-(m - 2) // 2) + 1,)}),
    "sums of windows": (
        "pool_sum", [(N, 2, M)],
        lambda n, m: {"kernel": (3,), "stride": (1,), "padding": (1,), "counts": (m + 2 - 3 + 1,)}),
    "sum of all": ("pool_sum", [(N, 2, M, 3)], lambda n, m: {"kernel": (m, 3), "stride": (m, 3), "padding": (0, 0),
                                                            "counts": (1, 1)}),
    "one cell": ("adaptive_max_pool", [(N, 2, M, 3)], lambda n, m: {"counts": (1, 1)}),
    "uneven cells": ("adaptive_max_pool", [(2, 2, N, M, 3)], lambda n, m: {"counts": (3, 4, 2)}),
    "as many cells as there are": ("adaptive_max_pool", [(N, 2, M)], lambda n, m: {"counts": (m,)}),
    "sums over the edge": (
        "pool_sum", [(N, 2, M)], lambda n, m: {"kernel": (3,), "stride": (2,), "padding": (1,),
                                               "counts": (-(-(m + 2 - 3) // 2) + 1,)}),
    "columns": ("im2col", [(N, 2, M, 4)], lambda n, m: {"kernel": (2, 2), "stride": (1, 2), "padding": (0, 1),
                                                       "dilation": (1, 1)}),
    "weights of a convolution": (
        "conv_weight", [(N, 2, M), (N, 4, M)],
        lambda n, m: {"kernel": (3,), "stride": (1,), "padding": (1,), "dilation": (1,), "groups": 2}),
    "spread over windows": ("pool_spread", [(N, 2, M)],
                            lambda n, m: {"sizes": (m * 2 + 1,), "kernel": (2,), "stride": (2,), "padding": (1,)}),
    "commonest": ("mode", [(N, M)], lambda n, m: {"dim": 1, "keepdim": False}),
    "inverse": ("inv", [(N, M, M)], lambda n, m: {"strict": True}),
    "system": ("solve", [(M, M), (M, N)], lambda n, m: {"strict": True}),
    "triangular system": ("solve_triangular", [(M, M), (M, N)], lambda n, m: {"upper": True, "unitriangular": True}),
    "logarithm of a determinant": ("slogdet", [(N, M, M)], lambda n, m: {}),
    "permutation and triangles": ("lu_factor", [(N, M, M)], lambda n, m: {}),
    "reflections": ("qr", [(N, M, 3)], lambda n, m: {"mode": "reduced"}),
    "matrix exponential": ("matrix_exp", [(N, M, M)], lambda n, m: {}),
    "log gamma": ("lgamma", [(N, M)], lambda n, m: {}),
    "inverse error function": ("erfinv", [(N, M)], lambda n, m: {}),
    "windows at random": ("fractional_places", [(N, M, 2)],
                          lambda n, m: {"sizes": (n + 2, m + 1), "counts": (3, 2), "kernel": (2, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_written_once_run_at_several_sizes(case):
    check(*CASES[case])


@pytest.mark.parametrize("case", [
    "merged", "split", "squeezed", "stretched", "the last", "summed", "running product", "running product backwards",
    "linear", "joined", "copied", "last two merged", "inverse", "log gamma", "reflections",
    "logarithm of a determinant",
])  # fmt: skip
def test_an_empty_batch(case):
    check(*CASES[case], run_at=[{N: 0, M: 4}])


@pytest.mark.parametrize("case", ["running product", "running product backwards", "running maximum", "scan"])
def test_a_scan_along_nothing(case):
    # ONNX Runtime's own Scan does not survive this.
    check(*CASES[case], run_at=[{N: 0, M: 0}, {N: 1, M: 1}])


def test_integer_inputs():
    index = {"dtypes": [np.float32, np.int64]}
    check("embedding", [(4, 3), (N, M)], lambda n, m: {"padding_idx": None, "by_frequency": False}, **index)
    check("index", [(N, 3, M), (4,)], lambda n, m: {"dims": (1,)}, **index)
    check("gather", [(3, M), (3, N)], lambda n, m: {"dim": 1}, **index)
    check("at_index", [(N, M), (N, 1)], lambda n, m: {"dim": 1}, **index)
    check("one_hot", [(N, M)], lambda n, m: {"classes": 3}, dtypes=[np.int64])
    check("gcd", [(N, M), (M,)], lambda n, m: {}, dtypes=[np.int64] * 2)
    check("any", [(N, M)], lambda n, m: {"dim": (1,), "keepdim": False}, dtypes=[np.bool_])


def test_sizes_that_stay_are_plain_numbers_in_the_model():
    model = check(*CASES["split"])
    kinds = [node.op_type for node in model.graph.node]
    assert kinds == ["Reshape", "Identity"]  # [0, 2, 3]: no arithmetic of sizes


def test_sizes_are_worked_out_once():
    b = Builder()
    n = symbol(0, 5)
    x = b.input("x", OF_NUMPY[np.dtype(np.float32)], (n, 4))
    b.symbols.append((x, 0))
    for _ in range(3):
        b.sizes((n * 4 + 1, 2))
    assert [node.kind for node in b.graph.nodes] == ["Shape", "Mul", "Add", "Concat"]


@pytest.mark.parametrize("formula", [
    lambda n: n // 2, lambda n: -(-n // 3), lambda n: (n - 9) // 4, lambda n: n % 3, lambda n: n * n - 2 * n,
    lambda n: (3 - n) // 2, lambda n: (1 - n) % 4, lambda n: abs(3 - n), lambda n: n**2,
])  # fmt: skip
def test_arithmetic_of_sizes_is_pythons(formula):
    b = Builder()
    x = b.input("x", OF_NUMPY[np.dtype(np.float32)], (symbol(0, 5),))
    b.symbols.append((x, 0))
    b.output("size", b.number(formula(x.shape[0]), int64), ())
    model = finished(b, open_axes=True)
    for size in range(9):
        assert run(model, [np.zeros(size, np.float32)])[0] == formula(size)


def test_what_depends_on_a_size_is_refused():
    how = {"stride": (2,), "padding": (0,), "dilation": (1,), "groups": 1}
    with pytest.raises(Exception, match="how much its result is padded depends on a size that varies"):
        check("conv_input", [(1, 3, M), (3, 2, 3)], lambda n, m: {"sizes": (m * 3,), **how})
    with pytest.raises(Exception, match="the size of its matrices varies; leave those axes out"):
        check("svdvals", [(M, 3)], lambda n, m: {})
    with pytest.raises(Exception, match="where its elements lie depends on a size"):
        check("as_strided", [(N,)], lambda n, m: {"size": (n // 2,), "stride": (2,), "offset": 0, "layout": (1,)})

"""An infinite incoming gradient: what it does not reach stays finite, as in PyTorch (a choice is no product with 0)."""

import math

import numpy as np
import pytest

import wayfare as wf

X = np.array([[-2.0, -0.5, 0.0, 0.25], [1.0, 1.25, 3.5, 7.0]], "f4")


def _whole(name):
    return lambda lib, F, t: getattr(lib, name)(t)


def _of_F(name):
    return lambda lib, F, t: getattr(F, name)(t)


CASES = {
    **{n: _whole(n) for n in (
        "max", "min", "median", "nanmedian", "amax", "amin", "relu", "abs", "frac", "trunc", "square", "tanh", "expm1",
        "sigmoid", "exp", "erf", "sinc", "nansum", "mean", "sum", "prod", "logsumexp_of",
    ) if hasattr(wf, n)},
    **{"F." + n: _of_F(n) for n in (
        "relu", "relu6", "hardtanh", "leaky_relu", "elu", "selu", "celu", "softplus", "hardsigmoid", "hardswish",
        "hardshrink", "softshrink", "silu", "gelu", "mish", "logsigmoid", "softsign", "glu",
    )},
    **{n + " along": (lambda lib, F, t, n=n: getattr(lib, n)(t, 1)[0])
       for n in ("max", "min", "median", "nanmedian", "cummax", "cummin")},
    "quantile": lambda lib, F, t: lib.quantile(t, 0.5),
    "quantile along": lambda lib, F, t: lib.quantile(t, 0.3, dim=1),
    "nanquantile": lambda lib, F, t: lib.nanquantile(t, 0.3),
    "topk": lambda lib, F, t: t.topk(2, 1)[0],
    "clamp": lambda lib, F, t: t.clamp(0.1, 1.1),
    "clamp by tensors": lambda lib, F, t: t.clamp(lib.zeros(2, 4) + 0.1, lib.ones(2, 4)),
    "clamp of limits": lambda lib, F, t: (lib.zeros(2, 4) + 0.1).clamp(min=t),
    "threshold": lambda lib, F, t: F.threshold(t, 0.1, 9.0),
    "prelu": lambda lib, F, t: F.prelu(t, lib.tensor([0.25])),
    "maximum": lambda lib, F, t: lib.maximum(t, lib.zeros(2, 4) + 0.1),
    "fmin": lambda lib, F, t: lib.fmin(t, lib.zeros(2, 4) + 0.1),
    "where": lambda lib, F, t: lib.where(t > 0, t, t * 2),
    "masked_fill": lambda lib, F, t: t.masked_fill(t > 0, 3.0),
    "masked_select": lambda lib, F, t: t.masked_select(t > 0),
    "tril": lambda lib, F, t: t.tril(),
    "max_pool1d": lambda lib, F, t: F.max_pool1d(t[None], 2),
    "max_pool2d": lambda lib, F, t: F.max_pool2d(t[None], 2),
    "adaptive_max_pool1d": lambda lib, F, t: F.adaptive_max_pool1d(t[None], 2),
    "norm of order inf": lambda lib, F, t: t.norm(math.inf),
    "cdist of order inf": lambda lib, F, t: lib.cdist(t, lib.zeros(2, 4), p=math.inf),
    "scatter_reduce": lambda lib, F, t: lib.zeros(2, 2).scatter_reduce(
        1, lib.tensor([[0, 0, 0, 0], [0, 1, 1, 0]]), t, "amax"
    ),
    "embedding_bag": lambda lib, F, t: F.embedding_bag(lib.tensor([[0, 1]]), t, mode="max"),
    "embedding": lambda lib, F, t: F.embedding(lib.tensor([0, 1]), t, padding_idx=0),
    "smooth_l1_loss": lambda lib, F, t: F.smooth_l1_loss(t, lib.zeros(2, 4), reduction="none"),
    "multi_margin_loss": lambda lib, F, t: F.multi_margin_loss(t, lib.tensor([0, 1]), reduction="none"),
    "cross_entropy": lambda lib, F, t: F.cross_entropy(t, lib.tensor([0, -100]), reduction="none"),
    "xlogy": lambda lib, F, t: lib.xlogy(t, lib.tensor(0.0)),
    "xlog1py": lambda lib, F, t: lib.special.xlog1py(t, lib.tensor(-1.0)),
    "lerp": lambda lib, F, t: lib.lerp(t, lib.ones(2, 4), 0.5),
    "copysign": lambda lib, F, t: lib.copysign(t, -lib.ones(2, 4)),
}  # fmt: skip
# A product with 0 in PyTorch too; here the elements that were not chosen get 0.
BETTER = {"amax", "amin", "norm of order inf", "scatter_reduce", "cdist of order inf"}


def _gradient(lib, function, seed):
    t = lib.tensor(X, requires_grad=True)
    y = function(lib, lib.nn.functional, t)
    g = np.zeros(tuple(y.shape), "f4")
    g.reshape(-1)[seed] = np.inf
    y.backward(lib.tensor(g))
    return t.grad.detach().numpy()


@pytest.mark.parametrize("name", CASES)
def test_an_infinite_gradient_goes_where_it_goes_in_pytorch(name):
    torch = pytest.importorskip("torch")
    for seed in (slice(None), slice(0, 1), slice(-1, None)):
        ours, theirs = (_gradient(lib, CASES[name], seed) for lib in (wf, torch))
        if name in BETTER:
            ours, theirs = np.where(np.isnan(theirs), 0, ours), np.where(np.isnan(theirs), 0, theirs)
        np.testing.assert_array_equal(ours, theirs)


def test_the_root_of_the_largest():
    x = wf.tensor([0.0, -1.0], requires_grad=True)
    x.max().sqrt().backward()
    assert x.grad.tolist() == [math.inf, 0]


@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian", "amax", "amin"])
@pytest.mark.parametrize("size", [9, 20_001])
def test_equal_extremes_share_and_the_rest_has_nothing(name, size):
    x = wf.arange(float(size))
    x[:] = x.clamp(2, size - 3)
    x.requires_grad_()
    out = getattr(x, name)()
    out.backward(wf.tensor(math.inf))
    chosen = (x == out).detach()
    assert x.grad[chosen].isinf().all() and (x.grad[~chosen] == 0).all()

"""Functions to fuse, and tensors to call them with."""

import numpy as np

import wayfare as wf
from wayfare.nn import functional as F


def tensor(*shape, dtype=np.float64, grad=True, seed=0, low=-1.5, high=1.5):
    rng = np.random.default_rng([seed, *shape])
    return wf.tensor(rng.uniform(low, high, shape).astype(dtype), requires_grad=grad)


def chain(x, w, b):
    y = (x * w + b).tanh()
    y = (y * x + 1).sigmoid()
    y = y.exp() - 0.5
    return y * y / (1 + x * x)


def softmax(x):
    return wf.softmax(x, dim=-1)


def layer_norm(x, w, b):
    return F.layer_norm(x, tuple(x.shape[1:]), w, b)


def gates(z, c):
    i, f, g, o = z.chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def layer(x, w, b, r):
    return F.gelu(F.linear(x, w, b)) + r


def standardized(x):
    return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()


def squared_error(x, y):
    return ((x - y) ** 2).mean()


# Name → function, shapes of its inputs, kernels forward, kernels backward.
CASES = {
    "chain": (chain, [(16, 24), (24,), (16, 1)], 1, 2),
    "softmax": (softmax, [(16, 24)], 1, 1),
    "layer_norm": (layer_norm, [(16, 24), (24,), (24,)], 1, 2),
    "gates": (gates, [(8, 48), (8, 12)], 1, 1),
    "layer": (layer, [(8, 12), (24, 12), (24,), (8, 24)], 1, 1),
    "standardized": (standardized, [(16, 24)], 1, 1),
    "squared_error": (squared_error, [(16, 24), (16, 24)], 1, 1),
}

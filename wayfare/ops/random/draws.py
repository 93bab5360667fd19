"""Random draws as pure functions of a key.

A key is (seed, call): draw number `call` of a generator seeded with `seed`. The numbers come from the
counter-based Philox generator started at that place, so a draw depends on nothing else: it can be repeated in
another process, recomputed in backward instead of kept, and moved about in a graph.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from wayfare.core.errors import OperationError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample, checks_values
from wayfare.core.signature import COUNT, DTYPE, FLAG, KEY, NUMBER, SIZES, Signature, takes
from wayfare.core.spec import NARROW_ARRAYS, DType, Shape, Spec, bfloat16, float16, float32, float64, int64
from wayfare.ops._define import define
from wayfare.ops.random.onnx_rules import NO_DRAWS

Key = tuple[int, int]
A = TypeVar("A", bound=Any)


class _Bench(threading.local):
    """Each thread's own generator, moved to the place of a key: ten times as fast as making a new one."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(0)
        self.generator = np.random.Generator(self.bits)
        self.start: Any = np.random.Philox(key=0, counter=0).state


_bench: list[_Bench] = []


def stream(key: Key) -> np.random.Generator:
    """The random numbers that belong to a key: Philox from counter (0, call, 0, 0) on. Draw from it at once."""
    if not _bench:
        _bench.append(_Bench())  # on first use, because NumPy's random module is slow to import
    bench = _bench[0]
    place = bench.start["state"]
    place["key"][0], place["counter"][1] = key
    bench.bits.state = bench.start
    return bench.generator


# As many bits as a narrow float holds below 1; rounding a finer draw could give 1 itself.
_UNIFORM_BITS = {float16.numpy: 11, bfloat16.numpy: 8}


def draw_uniform(key: Key, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Uniform in [0, 1), drawn in the dtype itself."""
    if dtype in _UNIFORM_BITS:
        count = 1 << _UNIFORM_BITS[dtype]
        return (stream(key).integers(0, count, shape, dtype=np.uint16) / np.float32(count)).astype(dtype)
    return np.asarray(stream(key).random(shape, dtype=dtype.type))


def _drawn(draw: Any, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Drawn in the dtype itself, narrow floats from float32."""
    drawn_in: Any = np.float32 if dtype in NARROW_ARRAYS else dtype.type
    return np.asarray(draw(shape, dtype=drawn_in)).astype(dtype, copy=False)


def draw_normal(key: Key, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Normal with mean 0 and deviation 1."""
    return _drawn(stream(key).standard_normal, shape, dtype)


def draw_exponential(key: Key, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Exponential with rate 1."""
    return _drawn(stream(key).standard_exponential, shape, dtype)


def _scaled(array: A, factor: float, offset: float) -> A:
    """`array * factor + offset` in the array's own memory and dtype."""
    if factor != 1:
        array *= array.dtype.type(factor)
    if offset != 0:
        array += array.dtype.type(offset)
    return array


# -- draws of a given shape --------------------------------------------------------------------------------


def _uniform(*, key: Key, shape: Shape, dtype: DType, low: float, high: float) -> Array:
    out = draw_uniform(key, shape, dtype.numpy)
    return out if (low, high) == (0, 1) else np.asarray(between(out, low, high, np.minimum))


def between(array: Any, low: float, high: float, minimum: Any) -> Any:
    """Numbers in [0, 1) moved to [low, high), in the array's own memory."""
    number = array.dtype.type
    # Rounding may carry the largest draws up to `high`, which does not belong to the interval.
    top = np.nextafter(number(high), number(low))
    return minimum(_scaled(array, high - low, low), max(top, number(low)))


def _normal(*, key: Key, shape: Shape, dtype: DType, mean: float, std: float) -> Array:
    return _scaled(draw_normal(key, shape, dtype.numpy), std, mean)


def _integers(*, key: Key, shape: Shape, dtype: DType, low: int, high: int) -> Array:
    drawn = stream(key).integers(low, high, shape, dtype=np.int64)
    return np.asarray(drawn).astype(dtype.numpy, copy=False)


def _exponential(*, key: Key, shape: Shape, dtype: DType, rate: float) -> Array:
    return _scaled(draw_exponential(key, shape, dtype.numpy), 1 / rate, 0)


def _cauchy(*, key: Key, shape: Shape, dtype: DType, median: float, sigma: float) -> Array:
    angle = _scaled(draw_uniform(key, shape, dtype.numpy), math.pi, -math.pi / 2)
    return _scaled(np.tan(angle), sigma, median)


def _log_normal(*, key: Key, shape: Shape, dtype: DType, mean: float, std: float) -> Array:
    return np.exp(_normal(key=key, shape=shape, dtype=dtype, mean=mean, std=std))


def _geometric(*, key: Key, shape: Shape, dtype: DType, p: float) -> Array:
    return np.asarray(stream(key).geometric(p, shape)).astype(dtype.numpy)


def _permutation(*, key: Key, n: int, dtype: DType) -> Array:
    return stream(key).permutation(n).astype(dtype.numpy, copy=False)


def _source(name: str, forward: Any, **parameters: Any) -> Any:
    """A record without inputs: shape and dtype are attributes."""
    shape = {} if "n" in parameters else {"shape": (3, 4)}
    samples = [
        Sample((), {"key": (7, i), **shape, "dtype": dtype, **parameters})
        for i, dtype in enumerate((float64, float32, float16))
    ]
    own = {key: NUMBER for key in parameters} | {key: SIZES for key in shape}
    return define(
        name,
        signature=Signature(0, 0, {"key": KEY, "dtype": DTYPE, **own}),
        onnx=NO_DRAWS,
        family="random",
        forward=forward,
        infer=lambda **attrs: Spec(attrs["shape"] if "shape" in attrs else (attrs["n"],), attrs["dtype"]),
        vjp=None,
        reference=forward,
        samples=lambda rng: samples,
        random=True,
    )


random_uniform = _source("random_uniform", _uniform, low=-1.0, high=2.0)
random_normal = _source("random_normal", _normal, mean=1.0, std=2.0)
random_integers = _source("random_integers", _integers, low=-3, high=9)
random_exponential = _source("random_exponential", _exponential, rate=2.0)
random_cauchy = _source("random_cauchy", _cauchy, median=1.0, sigma=2.0)
random_log_normal = _source("random_log_normal", _log_normal, mean=0.5, std=0.25)
random_geometric = _source("random_geometric", _geometric, p=0.3)
random_permutation = _source("random_permutation", _permutation, n=9)


# -- draws whose parameters are tensors --------------------------------------------------------------------


def _zero_gradient(m: Any, g: Any, _y: Any, _x: Any, **_attrs: Any) -> Any:
    """A draw counts as constant in its parameters, as in PyTorch: the gradient is zero, not missing."""
    return m.zeros_like(g)


@checks_values
def _bernoulli(p: Array, *, key: Key) -> Array:
    if p.size and not (p.min() >= 0 and p.max() <= 1):
        raise OperationError(f"bernoulli: probabilities must lie in [0, 1], these reach from {p.min()} to {p.max()}")
    return (draw_uniform(key, p.shape, p.dtype) < p).astype(p.dtype)


@checks_values
def _poisson(rate: Array, *, key: Key) -> Array:
    if rate.size and not rate.min() >= 0:
        raise OperationError(f"poisson: rates must not be negative, the smallest is {rate.min()}")
    return np.asarray(stream(key).poisson(rate)).astype(rate.dtype)


for _name, _forward in (("bernoulli", _bernoulli), ("poisson", _poisson)):
    define(
        f"random_{_name}", signature=takes(1, key=KEY), family="random", onnx=NO_DRAWS, forward=_forward,
        infer=lambda x, *, key: x, vjp=(_zero_gradient,), reference=_forward, random=True,
        samples=lambda rng: [
            Sample((rng.uniform(0.1, 0.9, (3, 4)),), {"key": (7, 1)}), Sample((np.ones(()),), {"key": (7, 2)}),
        ],
        grad_name=f"{_name.capitalize()}Backward0",
    )  # fmt: skip


@checks_values
def _normal_around(mean: Array, std: Array, *, key: Key) -> Array:
    if std.size and not std.min() >= 0:
        raise OperationError(f"normal: deviations must not be negative, the smallest is {std.min()}")
    shape = np.broadcast_shapes(mean.shape, std.shape)
    return np.asarray(draw_normal(key, shape, mean.dtype) * std + mean)


random_normal_around = define(
    "random_normal_around", signature=takes(2, key=KEY),
    family="random", onnx=NO_DRAWS, forward=_normal_around,
    infer=lambda mean, std, *, key: Spec(np.broadcast_shapes(mean.shape, std.shape), mean.dtype),
    vjp=(lambda m, g, _y, _a, _b, *, key: m.zeros_like(g), lambda m, g, _y, _a, _b, *, key: m.zeros_like(g)),
    reference=_normal_around, random=True, broadcasts=True, grad_name="NormalBackward0",
    samples=lambda rng: [Sample((rng.normal(size=(2, 3)), rng.uniform(1, 2, (3,))), {"key": (7, 1)})],
)  # fmt: skip


@checks_values
def _multinomial(weights: Array, *, key: Key, num_samples: int, replacement: bool) -> Array:
    w = weights.astype(np.float64)
    if not np.isfinite(w).all() or (w < 0).any():
        raise OperationError("multinomial: every weight must be a finite number that is not negative")
    total = w.sum(-1, keepdims=True)
    if (total <= 0).any():
        raise OperationError("multinomial: the weights of a row are all zero")
    if replacement:
        return _with_replacement(w / total, key, num_samples)
    if ((w > 0).sum(-1) < num_samples).any():
        raise OperationError(f"multinomial: fewer than {num_samples} weights are positive", fix="Use replacement=True.")
    # A race: each index finishes after an exponential time of rate w; the first finishers are the sample.
    times = stream(key).standard_exponential(w.shape) / np.where(w > 0, w, 1)
    return np.argsort(np.where(w > 0, times, np.inf), axis=-1, kind="stable")[..., :num_samples].astype(np.int64)


def _with_replacement(p: Array, key: Key, num_samples: int) -> Array:
    """Look each uniform draw up in the cumulative weights."""
    edges = np.cumsum(p, axis=-1).reshape(-1, p.shape[-1])
    draws = stream(key).random((edges.shape[0], num_samples)) * edges[:, -1:]
    out = np.empty(draws.shape, np.int64)
    for row, (edge, draw) in enumerate(zip(edges, draws, strict=True)):
        out[row] = np.searchsorted(edge, draw, side="right")
    # A draw that rounding put on the last edge belongs to the last index of positive weight.
    last = p.shape[-1] - 1 - np.argmax(p.reshape(edges.shape)[:, ::-1] > 0, axis=-1)
    return np.asarray(np.minimum(out, last[:, None])).reshape(*p.shape[:-1], num_samples)


def _multinomial_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.uniform(0.1, 1, (2, 5)),), {"key": (7, 1), "num_samples": 3, "replacement": False})
    yield Sample((rng.uniform(0.1, 1, (5,)),), {"key": (7, 1), "num_samples": 8, "replacement": True})


random_multinomial = define(
    "random_multinomial", signature=takes(1, replacement=FLAG, key=KEY, num_samples=COUNT),
    family="random", onnx=NO_DRAWS, forward=_multinomial, vjp=None, reference=_multinomial,
    random=True,
    infer=lambda w, *, key, num_samples, replacement: Spec((*w.shape[:-1], num_samples), int64),
    samples=_multinomial_samples,
)  # fmt: skip

"""Random numbers on CUDA, and what the CPU computes for it.

A draw is a function of its key, and the same key gives the same numbers on every device. Uniform numbers and the masks
of dropout are made on the device; the others are drawn on the host and copied, which does not wait for the device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.codegen.cuda.kernels.random import uniform
from wayfare.codegen.loop.expr import NUMPY, OF_NUMPY
from wayfare.codegen.routines.dropout_mask import Key, factor_dtype, masking, pieces, scaling, words
from wayfare.core.errors import OperationError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import DType
from wayfare.ops.cuda.table import on_cuda, on_host, way
from wayfare.ops.elementwise.polynomials import POLYNOMIAL_NAMES
from wayfare.ops.random.draws import between, draw_normal


def _uniform_numbers(b: Any, key: Key, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Uniform in [0, 1): the bits of `draw_uniform`."""
    out = b.empty(shape, dtype)
    uniform(b.launcher, key, out)
    return out


@on_cuda("random_uniform")
def _uniform(b: Any, *, key: Key, shape: tuple[int, ...], dtype: DType, low: float, high: float) -> Any:
    out = _uniform_numbers(b, key, shape, dtype.numpy)
    if (low, high) == (0, 1):
        return out
    return between(out, low, high, b.xp.minimum)


@on_cuda("random_bernoulli")
def _bernoulli(b: Any, p: Any, *, key: Key) -> Any:
    b.require((p >= 0) & (p <= 1), OperationError("bernoulli: probabilities must lie in [0, 1]", deferred=True))
    return (_uniform_numbers(b, key, p.shape, p.dtype) < p).astype(p.dtype)


# -- the masks of dropout: the CPU's loops ----------------------------------------------------------------------------


def _row_words(b: Any, key: Key, p: float, rows: int, start: int = 0) -> list[Any]:
    """The operands that a mask is made of: numbers of rows, and three numbers."""
    low, high, limit = b.numbers(np.stack(words(key, p)))
    return [b.xp.arange(start, start + rows)[:, None], low, high, limit]


@on_cuda("random_mask")
def mask(b: Any, *, key: Key, shape: tuple[int, ...], p: float) -> Any:
    """True where an element is kept."""
    if p <= 0 or p >= 1:
        return b.xp.full(shape, p <= 0)
    out = b.empty((math.prod(shape),), np.dtype(bool))
    for where, rows, start in pieces(out.size):
        given = out[where].reshape(rows)
        b.kernel(masking().loop).into([given, *_row_words(b, key, p, rows[0], start)], [given], rows, (1,))
    return out.reshape(shape)


def mask_of_rows(b: Any, key: Key, shape: tuple[int, ...], p: float) -> Any:
    """The mask that a loop over the rows of an array of this shape draws; 0 < p < 1."""
    rows = (math.prod(shape[:-1]), shape[-1])
    out = b.empty(rows, np.dtype(bool))
    if out.size:
        b.kernel(masking().loop).into([out, *_row_words(b, key, p, rows[0])], [out], rows, (1,))
    return out.reshape(shape)


@on_cuda("dropout", bfloat16=True)
def _dropout(b: Any, x: Any, *, p: float, key: Key, shape: tuple[int, ...]) -> Any:
    if not 0 < p < 1 or shape != x.shape:
        factor = mask(b, key=key, shape=shape, p=p).astype(x.dtype)
        return x * (factor * x.dtype.type(1 / (1 - p)) if p < 1 else factor)
    flat, out, dtype = b.in_c_order(x).reshape(-1), b.empty((x.size,), x.dtype), OF_NUMPY[x.dtype]
    factor = b.constant_array(np.array(1 / (1 - p), NUMPY[factor_dtype(dtype)]))
    for where, rows, start in pieces(flat.size):
        given = [flat[where].reshape(rows), factor, *_row_words(b, key, p, rows[0], start)]
        b.kernel(scaling(dtype).loop).into(given, [out[where].reshape(rows)], rows, (1,))
    return out.reshape(x.shape)


# -- draws of the host ------------------------------------------------------------------------------------------------


def _drawing(name: str) -> None:
    @on_cuda(name)
    def forward(b: Any, **attrs: Any) -> Any:
        return b.xp.asarray(np.asarray(REGISTRY[name].forward(**attrs)))


for _op in REGISTRY.values():
    if _op.family == "random" and _op.signature is not None and _op.signature.inputs == 0 and not way(_op):
        _drawing(_op.name)


@on_cuda("random_normal_around")
def _normal_around(b: Any, mean: Any, std: Any, *, key: Any) -> Any:
    b.require(std >= 0, OperationError("normal: deviations must not be negative", deferred=True))
    shape = np.broadcast_shapes(mean.shape, std.shape)
    return b.xp.asarray(np.asarray(draw_normal(key, shape, mean.dtype))) * std + mean


on_host("its numbers are drawn by NumPy from parameters that are values", "random_poisson", "random_multinomial")
on_host("CuPy has no such function", "airy_ai")
on_host("how many steps it takes is a value", *POLYNOMIAL_NAMES)

"""The two loops of attention between its matmuls: softmax of the scores with dropout, and its gradient.

    signed, used = weights(scores, mask, scale, causal, p, key)
    gradient = scores_gradient(gradient_of_used, signed, scale, p)

`used` are the weights after dropout, which multiply the values. `signed` are the weights before dropout, negated where
dropout removes them: all that backward needs, in one array. Without dropout both are the same array.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import OF_NUMPY, Expr, apply, cast, const, index, load, reduction, reload
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage
from wayfare.codegen.routines.dropout_mask import OPERANDS, Key, drawing, is_kept
from wayfare.codegen.runtime import kernel
from wayfare.codegen.runtime.kernel import Kernel

Array = np.ndarray[Any, np.dtype[Any]]


def _where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return apply("where", condition, a, b)


@cache
def _softmax(dtype: str, mask: str, causal: bool, drops: bool) -> Kernel:
    """Softmax of scaled scores. Operands: scores, scale; then, if used: a mask, the number of keys each query sees,
    the dropout factor and OPERANDS."""
    inputs = [Operand(dtype), Operand(dtype, True)]
    score, scale = load(0, dtype), load(1, dtype)
    lowest, zero, one = (const(number, dtype) for number in (-math.inf, 0.0, 1.0))
    if mask:
        inputs.append(Operand(mask))
        given = load(len(inputs) - 1, mask)
        if mask == "bool":
            score = _where(given, score, lowest)
        else:
            score, scale = apply("fma", score, scale, cast(given, dtype)), one
    if causal:
        inputs.append(Operand("i64", True))
        score = _where(index() < load(len(inputs) - 1, "i64"), score, lowest)
    top = reduction(0, dtype)
    # A fully masked row has the maximum -inf and gets weights of zero. The scale is applied after the subtraction,
    # because the difference of two large scores is (nearly) exact.
    raised = apply("exp", (score - _where(apply("eq", top, lowest), zero, top)) * scale)
    total = reduction(1, dtype)
    weight = reload(0, dtype) * _where(apply("eq", total, zero), zero, one / total)
    before = (Stage(reductions=(Reduction("max", score),)), Stage(((0, raised),), (Reduction("sum", raised),)))
    if not drops:
        return kernel.build(Loop("attention", tuple(inputs), (Operand(dtype),), (*before, Stage(((0, weight),)))))
    inputs += [Operand(dtype, True), *OPERANDS]
    stays = is_kept(len(inputs) - 4)
    factor = load(len(inputs) - 5, dtype)
    last = Stage(((0, _where(stays, weight, -weight)), (1, _where(stays, weight * factor, zero))))
    outputs = (Operand(dtype), Operand(dtype))
    return kernel.build(Loop("attention", tuple(inputs), outputs, (*before, last)))


@cache
def _gradient(dtype: str, drops: bool) -> Kernel:
    """The gradient of the scores. Operands: the gradient of `used`, `signed`, the scale, the dropout factor."""
    grad, weight = load(0, dtype), load(1, dtype)
    inputs = [Operand(dtype), Operand(dtype), Operand(dtype, True)]
    if drops:
        inputs.append(Operand(dtype, True))
        grad = _where(apply("signbit", weight), const(0.0, dtype), grad * load(3, dtype))
        weight = apply("abs", weight)
    made = (grad - reduction(0, dtype)) * weight * load(2, dtype)
    stages = (Stage(reductions=(Reduction("sum", grad * weight),)), Stage(((0, made),)))
    return kernel.build(Loop("attention_backward", tuple(inputs), (Operand(dtype),), stages))


@lru_cache(64)
def _seen(queries: int) -> Array:
    """How many keys each query of a causal mask sees: query i sees keys 0 … i."""
    return np.arange(1, queries + 1).reshape(queries, 1)


def weights(
    scores: Array, mask: Array | None, scale: float, causal: bool, p: float, key: Key | None
) -> tuple[Array, Array]:
    """(signed, used) of scores […, queries, keys] in float32 or float64. The scores may be overwritten."""
    if scores.size == 0:
        return scores, scores
    if not scale > 0:  # scaling would not keep the order of the scores
        scores *= scores.dtype.type(scale)
        scale = 1.0
    dtype, number = OF_NUMPY[scores.dtype], scores.dtype.type
    given = [scores, np.array(scale, number)]
    if mask is not None:
        given.append(mask)
    if causal:
        given.append(_seen(scores.shape[-2]))
    drops = p > 0 and key is not None
    if drops and key is not None:
        given += [np.array(1 / (1 - p) if p < 1 else 0.0, number), *drawing(key, p, scores.shape[:-1])]
    made = _softmax(dtype, "" if mask is None else OF_NUMPY[mask.dtype], causal, drops).rows(given, -1)
    return made[0], made[-1]


def scores_gradient(grad: Array, signed: Array, scale: float, p: float) -> Array:
    """The gradient of the scores from that of the used weights."""
    if grad.size == 0:
        return grad
    number = grad.dtype.type
    given = [grad, signed, np.array(scale, number)]
    if p > 0:
        given.append(np.array(1 / (1 - p) if p < 1 else 0.0, number))
    return _gradient(OF_NUMPY[grad.dtype], p > 0).rows(given, -1)[0]  # type: ignore[no-any-return]

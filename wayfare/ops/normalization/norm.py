"""Normalisation: numbers brought to mean 0 and variance 1 over some dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.core.autocast import FLOAT32_ON_CUDA
from wayfare.core.errors import ShapeError
from wayfare.core.flops import per_input
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample, joint
from wayfare.core.signature import DIMS, NUMBER, takes
from wayfare.core.spec import Spec, as_dtype
from wayfare.ir.fuse.composite import as_rule
from wayfare.ops import _ragged as ragged
from wayfare.ops._define import define, expand_unbatched, in_front, reduced_shape
from wayfare.ops.normalization import onnx_rules as rules
from wayfare.ops.reduction.reduce import Dims, count_of, moments, shared_out

# -- standardize --------------------------------------------------------------------------------------------------


def _standardize(m: Any, x: Any, *, dim: Dims, eps: float) -> tuple[Any, Any, Any]:
    mean, lost, squares = moments(m, x, dim)
    variance = squares / count_of(x.shape, dim)
    return ((x - mean) - lost) * (1 / m.sqrt(variance + eps)), mean + lost, variance


def _standardize_infer(x: Spec, *, dim: Dims, eps: float) -> tuple[Spec, Spec, Spec]:
    folded = Spec(reduced_shape(x.shape, dim, True), x.dtype)
    return x, folded, folded


def _standardize_vjp(m: Any, g: Any, y: Any, x_spec: Spec, *, dim: Dims, eps: float) -> Any:
    of_out, of_mean, of_variance = g
    out, _, variance = y
    shape, count = x_spec.shape, max(count_of(x_spec.shape, dim), 1)
    inverse = 1 / m.sqrt(variance + eps)
    parts = []
    if of_out is not None:
        parts.append(m.standardize_backward(of_out, out, inverse, dim=dim))
    if of_mean is not None:
        parts.append(m.expand(shared_out(m, of_mean, count, x_spec.dtype), shape=shape))
    if of_variance is not None:
        parts.append(of_variance * (2 / count) * out / inverse)
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def _standardize_samples(rng: Any) -> Iterable[Sample]:
    for shape, dim in (((2, 4), (1,)), ((3, 2, 2), (0, 2)), ((5,), (0,))):
        yield Sample((rng.normal(size=shape),), {"dim": dim, "eps": 1e-5})
    yield Sample((rng.normal(size=(4, 3)).T,), {"dim": (1,), "eps": 0.1})


def standardize_reference(x: Array, dim: Dims, eps: float) -> Any:
    mean, variance = np.mean(x, axis=dim, keepdims=True), np.var(x, axis=dim, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps), mean, variance


# (x - mean) / sqrt(variance + eps), and the mean and the variance (the reduced dimensions kept).
standardize = define(
    "standardize",
    signature=takes(1, dim=DIMS, eps=NUMBER),
    family="normalisation",
    work=per_input(5),
    formula=_standardize,
    infer=_standardize_infer,
    vjp=(_standardize_vjp,),
    batch=in_front("standardize"),
    samples=_standardize_samples,
    reference=standardize_reference,
    outputs=3,
    takes_none=True,
    kinds="f",
    grad_name="NativeBatchNormBackward0",
)


def _standardize_backward(m: Any, g: Any, out: Any, inverse: Any, *, dim: Dims) -> Any:
    count = count_of(g.shape, dim)
    along = m.sum(g * out, dim=dim, keepdim=True) / count
    return (g - m.sum(g, dim=dim, keepdim=True) / count - out * along) * inverse


def _standardize_backward_vjp(
    m: Any, needs: Any, h: Any, z: Any, g: Any, out: Any, inverse: Any, *, dim: Dims
) -> Any:
    of_g = m.standardize_backward(h, out, inverse, dim=dim) if needs[0] else None
    of_out = None
    if needs[1]:
        scaled = h * inverse
        of_out = -scaled * m.mean(g * out, dim=dim, keepdim=True) - g * m.mean(scaled * out, dim=dim, keepdim=True)
    of_inverse = m.sum(h * z, dim=dim, keepdim=True) / inverse if needs[2] else None
    return of_g, of_out, of_inverse


def _standardize_backward_infer(g: Spec, out: Spec, inverse: Spec, *, dim: Dims) -> Spec:
    if g.shape != out.shape or inverse.shape != reduced_shape(g.shape, dim, True):
        raise ShapeError(f"standardize_backward: {g}, {out} and {inverse} do not fit dimensions {list(dim)}")
    return g


def _standardize_backward_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(2, 4)), rng.normal(size=(2, 4)), rng.uniform(0.5, 2, (2, 1))), {"dim": (1,)})
    yield Sample((rng.normal(size=(3, 2)), rng.normal(size=(3, 2)), rng.uniform(0.5, 2, (1, 2))), {"dim": (0,)})


def _standardize_backward_reference(g: Array, out: Array, inverse: Array, dim: Dims) -> Any:
    return inverse * (g - g.mean(axis=dim, keepdims=True) - out * (g * out).mean(axis=dim, keepdims=True))


standardize_backward = define(
    "standardize_backward",
    signature=takes(3, dim=DIMS),
    family="normalisation",
    formula=_standardize_backward,
    infer=_standardize_backward_infer,
    vjp=joint(_standardize_backward_vjp),
    batch=in_front("standardize_backward"),
    samples=_standardize_backward_samples,
    reference=_standardize_backward_reference,
)


# -- layer_norm ---------------------------------------------------------------------------------------------------


def _layer_dims(x_ndim: int, weight_ndim: int) -> Dims:
    return tuple(range(x_ndim - weight_ndim, x_ndim))


def _fits(x: Any, *vectors: Any) -> bool:
    """Are these the shapes of weights over the last dimensions of x?"""
    return all(x.shape[x.ndim - v.ndim :] == v.shape and v.ndim == vectors[0].ndim for v in vectors)


def _layer_norm(m: Any, x: Any, weight: Any, bias: Any, *, eps: float) -> tuple[Any, Any, Any]:
    if not _fits(x, weight, bias):
        raise ValueError("shapes differ")
    dim = _layer_dims(x.ndim, weight.ndim)
    mean, lost, squares = moments(m, x, dim)
    inverse = 1 / m.sqrt(squares / count_of(x.shape, dim) + eps)
    return ((x - mean) - lost) * inverse * weight + bias, mean + lost, inverse


def _layer_norm_infer(x: Spec, weight: Spec, bias: Spec, *, eps: float) -> tuple[Spec, Spec, Spec]:
    if not _fits(x, weight, bias):
        raise ShapeError(f"layer_norm: a weight of {weight} and a bias of {bias} do not fit the last sizes of {x}")
    folded = Spec(reduced_shape(x.shape, _layer_dims(x.ndim, weight.ndim), True), x.dtype)
    return x, folded, folded


def wanted_gradients(rule: Any, needs: Any, m: Any, of_out: Any, *kept: Any, **attrs: Any) -> list[Any]:
    """The gradients of all inputs, None for those that are not wanted: a rule gives only the others."""
    made = iter(() if of_out is None else rule(m, of_out, *kept, needs=needs, **attrs))
    return [next(made) if wanted and of_out is not None else None for wanted in needs]


def _layer_norm_gradients(m: Any, g: Any, x: Any, weight: Any, mean: Any, inverse: Any, *, needs: Any) -> Any:
    """The wanted gradients of x, weight and bias, from that of the result."""
    hat = (x - mean) * inverse
    made = []
    if needs[0]:
        made.append(m.standardize_backward(g * weight, hat, inverse, dim=_layer_dims(x.ndim, weight.ndim)))
    if needs[1]:
        made.append(m.sum_to(g * hat, shape=tuple(weight.shape)))
    if needs[2]:
        made.append(m.sum_to(g, shape=tuple(weight.shape)))
    return tuple(made)


_layer_norm_rule = as_rule(_layer_norm_gradients, name="layer_norm_backward")


def _layer_norm_vjp(m: Any, needs: Any, g: Any, y: Any, x: Any, weight: Any, _bias: Any, *, eps: float) -> Any:
    of_out, of_mean, of_inverse = g
    _, mean, inverse = y
    grads = wanted_gradients(_layer_norm_rule, needs, m, of_out, x, weight, mean, inverse)
    if needs[0]:  # only in gradients of gradients
        count = max(math.prod(weight.shape), 1)
        if of_mean is not None:
            part = m.expand(shared_out(m, of_mean, count, as_dtype(x.dtype)), shape=tuple(x.shape))
            grads[0] = part if grads[0] is None else grads[0] + part
        if of_inverse is not None:
            part = -(of_inverse * inverse * inverse * inverse / count) * (x - mean)
            grads[0] = part if grads[0] is None else grads[0] + part
    return grads


def _layer_norm_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    x, weight, bias = inputs
    if batched == (True, False, False):
        return m.layer_norm(x, weight, bias, **attrs)
    x, weight, bias = expand_unbatched(m, size, inputs, batched)
    dim = _layer_dims(x.ndim, weight.ndim - 1)
    hat, mean, variance = m.standardize(x, dim=dim, eps=attrs["eps"])
    shape = (size,) + (1,) * (x.ndim - weight.ndim) + tuple(weight.shape)[1:]
    out = hat * m.reshape(weight, shape=shape) + m.reshape(bias, shape=shape)
    return out, mean, 1 / m.sqrt(variance + attrs["eps"])


def _layer_norm_samples(rng: Any) -> Iterable[Sample]:
    for shape, own in (((2, 4), (4,)), ((2, 2, 3), (2, 3)), ((3,), (3,))):
        yield Sample((rng.normal(size=shape), rng.normal(size=own), rng.normal(size=own)), {"eps": 1e-5})
    yield Sample((rng.normal(size=(4, 3)).T, rng.normal(size=4), rng.normal(size=4)), {"eps": 0.1})


def _layer_norm_reference(x: Array, weight: Array, bias: Array, eps: float) -> Any:
    hat, mean, variance = standardize_reference(x, _layer_dims(x.ndim, weight.ndim), eps)
    return hat * weight + bias, mean, 1 / np.sqrt(variance + eps)


# Standardized over the last dimensions, then scaled and shifted; mean and 1/deviation are what the gradient needs.
layer_norm = define(
    "layer_norm", autocast=FLOAT32_ON_CUDA,
    signature=takes(3, eps=NUMBER),
    onnx=rules.layer_norm,
    family="normalisation",
    formula=_layer_norm,
    infer=_layer_norm_infer,
    vjp=joint(_layer_norm_vjp),
    batch=_layer_norm_batch,
    ragged=ragged.row_by_row("layer_norm", results=3),
    samples=_layer_norm_samples,
    reference=_layer_norm_reference,
    outputs=3,
    kept_outputs=(1, 2),
    takes_none=True,
    kinds="f",
    grad_name="NativeLayerNormBackward0",
)


# -- rms_norm -----------------------------------------------------------------------------------------------------


def _rms_norm(m: Any, x: Any, weight: Any, *, eps: float) -> tuple[Any, Any]:
    if not _fits(x, weight):
        raise ValueError("shapes differ")
    dim = _layer_dims(x.ndim, weight.ndim)
    inverse = 1 / m.sqrt(m.sum(x * x, dim=dim, keepdim=True) / count_of(x.shape, dim) + eps)
    return x * inverse * weight, inverse


def _rms_norm_infer(x: Spec, weight: Spec, *, eps: float) -> tuple[Spec, Spec]:
    if not _fits(x, weight):
        raise ShapeError(f"rms_norm: a weight of {weight} does not fit the last sizes of {x}")
    return x, Spec(reduced_shape(x.shape, _layer_dims(x.ndim, weight.ndim), True), x.dtype)


def _rms_norm_gradients(m: Any, g: Any, x: Any, weight: Any, inverse: Any, *, needs: Any) -> Any:
    """The wanted gradients of x and weight, from that of the result."""
    hat = x * inverse
    made = []
    if needs[0]:
        dim = _layer_dims(x.ndim, weight.ndim)
        along = m.sum(g * weight * hat, dim=dim, keepdim=True) / count_of(x.shape, dim)
        made.append((g * weight - hat * along) * inverse)
    if needs[1]:
        made.append(m.sum_to(g * hat, shape=tuple(weight.shape)))
    return tuple(made)


_rms_norm_rule = as_rule(_rms_norm_gradients, name="rms_norm_backward")


def _rms_norm_vjp(m: Any, needs: Any, g: Any, y: Any, x: Any, weight: Any, *, eps: float) -> Any:
    of_out, of_inverse = g
    inverse = y[1]
    grads = wanted_gradients(_rms_norm_rule, needs, m, of_out, x, weight, inverse)
    if needs[0] and of_inverse is not None:  # only in gradients of gradients
        part = -(of_inverse * inverse * inverse * inverse / max(math.prod(weight.shape), 1)) * x
        grads[0] = part if grads[0] is None else grads[0] + part
    return grads


def _rms_norm_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    x, weight = inputs
    if batched == (True, False):
        return m.rms_norm(x, weight, **attrs)
    x, weight = expand_unbatched(m, size, inputs, batched)
    dim = _layer_dims(x.ndim, weight.ndim - 1)
    inverse = 1 / m.sqrt(m.mean(x * x, dim=dim, keepdim=True) + attrs["eps"])
    shape = (size,) + (1,) * (x.ndim - weight.ndim) + tuple(weight.shape)[1:]
    return x * inverse * m.reshape(weight, shape=shape), inverse


def _rms_norm_samples(rng: Any) -> Iterable[Sample]:
    for shape, own in (((2, 4), (4,)), ((2, 2, 3), (2, 3)), ((3,), (3,))):
        yield Sample((rng.normal(size=shape), rng.normal(size=own)), {"eps": 1e-5})
    yield Sample((rng.normal(size=(4, 3)).T, rng.normal(size=4)), {"eps": 0.1})


def _rms_norm_reference(x: Array, weight: Array, eps: float) -> Any:
    square = np.mean(x**2, axis=_layer_dims(x.ndim, weight.ndim), keepdims=True)
    return x / np.sqrt(square + eps) * weight, 1 / np.sqrt(square + eps)


# Divided by the root of the mean square over the last dimensions, then scaled.
rms_norm = define(
    "rms_norm", autocast=FLOAT32_ON_CUDA,
    signature=takes(2, eps=NUMBER),
    family="normalisation",
    work=per_input(4),
    formula=_rms_norm,
    infer=_rms_norm_infer,
    vjp=joint(_rms_norm_vjp),
    batch=_rms_norm_batch,
    ragged=ragged.row_by_row("rms_norm", results=2),
    samples=_rms_norm_samples,
    reference=_rms_norm_reference,
    outputs=2,
    kept_outputs=(1,),
    takes_none=True,
    kinds="f",
)

"""Normalisation: numbers brought to mean 0 and variance 1 over some dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.backend.cpu import Array
from wayfare.backend.fold import total, total_of_product
from wayfare.errors import ShapeError
from wayfare.op import Sample, joint
from wayfare.ops._define import define, expand_unbatched, reduced_shape
from wayfare.ops.reduce import Dims, count_of
from wayfare.spec import Spec


def _standardized(x: Array, dim: Dims, eps: float) -> tuple[Array, Array, Array, Array]:
    """x̂, mean, variance and 1/deviation, the last three with the folded dimensions kept."""
    count = x.dtype.type(count_of(x.shape, dim))
    mean = total(x, dim, True) / count
    out = np.asarray(np.subtract(x, mean, order="C"))
    variance = total_of_product(out, out, dim, True) / count
    inverse = 1 / np.sqrt(variance + x.dtype.type(eps))
    out *= inverse
    return out, mean, variance, inverse


def _in_floats(x: Array) -> Array:
    """Half precision is too coarse for the sums here."""
    return x.astype(np.float32) if x.dtype.char == "e" else x


# -- standardize --------------------------------------------------------------------------------------------------


def _standardize(x: Array, *, dim: Dims, eps: float) -> tuple[Array, ...]:
    out, mean, variance, _ = _standardized(_in_floats(x), dim, eps)
    return tuple(a.astype(x.dtype, copy=False) for a in (out, mean, variance))


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
        parts.append(m.expand(of_mean / count, shape=shape))
    if of_variance is not None:
        parts.append(of_variance * (2 / count) * out / inverse)
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def _standardize_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    return m.standardize(inputs[0], dim=tuple(d + 1 for d in attrs["dim"]), eps=attrs["eps"])


def _standardize_samples(rng: Any) -> Iterable[Sample]:
    for shape, dim in (((2, 4), (1,)), ((3, 2, 2), (0, 2)), ((5,), (0,))):
        yield Sample((rng.normal(size=shape),), {"dim": dim, "eps": 1e-5})
    yield Sample((rng.normal(size=(4, 3)).T,), {"dim": (1,), "eps": 0.1})


def _standardize_reference(x: Array, dim: Dims, eps: float) -> Any:
    mean, variance = np.mean(x, axis=dim, keepdims=True), np.var(x, axis=dim, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps), mean, variance


# (x - mean) / sqrt(variance + eps), and the mean and the variance (the folded dimensions kept).
standardize = define(
    "standardize",
    family="normalisation",
    forward=_standardize,
    infer=_standardize_infer,
    vjp=(_standardize_vjp,),
    batch=_standardize_batch,
    samples=_standardize_samples,
    reference=_standardize_reference,
    outputs=3,
    takes_none=True,
    kinds="f",
    grad_name="NativeBatchNormBackward0",
)


def _standardize_backward(g: Array, out: Array, inverse: Array, *, dim: Dims) -> Array:
    count = g.dtype.type(count_of(g.shape, dim))
    along = total_of_product(g, out, dim, True) / count
    slope = np.asarray(np.multiply(out, along, order="C"))
    np.subtract(g, slope, out=slope)
    slope -= total(g, dim, True) / count
    slope *= inverse
    return slope


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


def _standardize_backward_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    full = expand_unbatched(m, size, inputs, batched)
    return m.standardize_backward(*full, dim=tuple(d + 1 for d in attrs["dim"]))


def _standardize_backward_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(2, 4)), rng.normal(size=(2, 4)), rng.uniform(0.5, 2, (2, 1))), {"dim": (1,)})
    yield Sample((rng.normal(size=(3, 2)), rng.normal(size=(3, 2)), rng.uniform(0.5, 2, (1, 2))), {"dim": (0,)})


def _standardize_backward_reference(g: Array, out: Array, inverse: Array, dim: Dims) -> Any:
    return inverse * (g - g.mean(axis=dim, keepdims=True) - out * (g * out).mean(axis=dim, keepdims=True))


standardize_backward = define(
    "standardize_backward",
    family="normalisation",
    forward=_standardize_backward,
    infer=lambda g, out, inverse, *, dim: g,
    vjp=joint(_standardize_backward_vjp),
    batch=_standardize_backward_batch,
    samples=_standardize_backward_samples,
    reference=_standardize_backward_reference,
)


# -- layer_norm ---------------------------------------------------------------------------------------------------


def _layer_dims(x_ndim: int, weight_ndim: int) -> Dims:
    return tuple(range(x_ndim - weight_ndim, x_ndim))


def _layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> tuple[Array, ...]:
    if x.shape[x.ndim - weight.ndim :] != weight.shape or bias.shape != weight.shape:
        raise ValueError("shapes differ")
    kind = x.dtype
    hat, _, _, inverse = _standardized(_in_floats(x), _layer_dims(x.ndim, weight.ndim), eps)
    out = hat * weight
    out += bias
    return tuple(a.astype(kind, copy=False) for a in (out, hat, inverse))


def _layer_norm_infer(x: Spec, weight: Spec, bias: Spec, *, eps: float) -> tuple[Spec, Spec, Spec]:
    if x.shape[x.ndim - weight.ndim :] != weight.shape or bias.shape != weight.shape:
        raise ShapeError(f"layer_norm: a weight of {weight} and a bias of {bias} do not fit the last sizes of {x}")
    return x, x, Spec(reduced_shape(x.shape, _layer_dims(x.ndim, weight.ndim), True), x.dtype)


def _layer_norm_vjp(m: Any, needs: Any, g: Any, y: Any, _x: Any, weight: Any, bias_spec: Spec, *, eps: float) -> Any:
    of_out, of_hat, of_inverse = g
    _, hat, inverse = y
    dim = _layer_dims(hat.ndim, weight.ndim)
    of_weight = of_bias = of_x = None
    if of_out is not None:
        if needs[1]:
            of_weight = m.sum_to(of_out * hat, shape=bias_spec.shape)
        if needs[2]:
            of_bias = m.sum_to(of_out, shape=bias_spec.shape)
    if needs[0]:
        if of_out is not None:
            of_out = of_out * weight
            of_hat = of_out if of_hat is None else of_out + of_hat
        if of_hat is not None:
            of_x = m.standardize_backward(of_hat, hat, inverse, dim=dim)
        if of_inverse is not None:  # only in gradients of gradients
            part = -(of_inverse * inverse * inverse / max(math.prod(bias_spec.shape), 1)) * hat
            of_x = part if of_x is None else of_x + part
    return of_x, of_weight, of_bias


def _layer_norm_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    x, weight, bias = inputs
    if batched == (True, False, False):
        return m.layer_norm(x, weight, bias, **attrs)
    x, weight, bias = expand_unbatched(m, size, inputs, batched)
    dim = _layer_dims(x.ndim, weight.ndim - 1)
    hat, _, variance = m.standardize(x, dim=dim, eps=attrs["eps"])
    shape = (size,) + (1,) * (x.ndim - weight.ndim) + tuple(weight.shape)[1:]
    out = hat * m.reshape(weight, shape=shape) + m.reshape(bias, shape=shape)
    return out, hat, 1 / m.sqrt(variance + attrs["eps"])


def _layer_norm_samples(rng: Any) -> Iterable[Sample]:
    for shape, own in (((2, 4), (4,)), ((2, 2, 3), (2, 3)), ((3,), (3,))):
        yield Sample((rng.normal(size=shape), rng.normal(size=own), rng.normal(size=own)), {"eps": 1e-5})
    yield Sample((rng.normal(size=(4, 3)).T, rng.normal(size=4), rng.normal(size=4)), {"eps": 0.1})


def _layer_norm_reference(x: Array, weight: Array, bias: Array, eps: float) -> Any:
    hat, _, variance = _standardize_reference(x, _layer_dims(x.ndim, weight.ndim), eps)
    return hat * weight + bias, hat, 1 / np.sqrt(variance + eps)


# Standardized over the last dimensions, then scaled and shifted; x̂ and 1/deviation are what the gradient needs.
layer_norm = define(
    "layer_norm",
    family="normalisation",
    forward=_layer_norm,
    infer=_layer_norm_infer,
    vjp=joint(_layer_norm_vjp),
    batch=_layer_norm_batch,
    samples=_layer_norm_samples,
    reference=_layer_norm_reference,
    outputs=3,
    kept_outputs=(1, 2),
    takes_none=True,
    kinds="f",
    grad_name="NativeLayerNormBackward0",
)

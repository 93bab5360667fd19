"""Normalisation over any dimensions with a scale and a shift that broadcast: batch, instance and group norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wayfare.core.errors import ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample, joint
from wayfare.core.signature import DIMS, NUMBER, takes
from wayfare.core.spec import Spec, as_dtype
from wayfare.ir.fuse.composite import as_rule
from wayfare.ops._define import define, in_front, reduced_shape
from wayfare.ops.normalization.norm import standardize_reference, wanted_gradients
from wayfare.ops.reduction.reduce import Dims, count_of, joined_moments, moments, shared_out


def _fits(x: Any, *scales: Any) -> bool:
    """Do all have the number of dimensions of x, with each size equal or 1?"""
    return all(
        s.ndim == x.ndim and all(a in (1, b) for a, b in zip(s.shape, x.shape, strict=True)) for s in scales
    )


def _in_turn(scale: tuple[int, ...], dim: Dims) -> tuple[Dims, Dims]:
    """The dimensions to fold first, along which the scale is one number, and those to fold then.

    So the large array is only ever visited in rows with one scale each.
    """
    return tuple(d for d in dim if scale[d] == 1), tuple(d for d in dim if scale[d] != 1)


def _scaled_norm(m: Any, x: Any, weight: Any, bias: Any, *, dim: Dims, eps: float) -> tuple[Any, Any, Any]:
    if not _fits(x, weight, bias):
        raise ValueError("shapes differ")
    inner, rest = _in_turn(weight.shape, dim)
    found = moments(m, x, inner or dim)
    if inner and rest:
        found = joined_moments(m, found, rest, count_of(x.shape, inner))
    mean, lost, squares = found
    variance = squares / count_of(x.shape, dim)
    return ((x - mean) - lost) * (1 / m.sqrt(variance + eps)) * weight + bias, mean + lost, variance


def _infer(x: Spec, weight: Spec, bias: Spec, *, dim: Dims, eps: float) -> tuple[Spec, Spec, Spec]:
    if not _fits(x, weight, bias):
        raise ShapeError(f"scaled_norm: a weight of {weight} and a bias of {bias} do not fit {x}")
    folded = Spec(reduced_shape(x.shape, dim, True), x.dtype)
    return x, folded, folded


def _gradients(m: Any, g: Any, x: Any, weight: Any, mean: Any, inverse: Any, *, needs: Any, dim: Dims) -> Any:
    """The wanted gradients of x, weight and bias, from that of the result."""
    inner, rest = _in_turn(tuple(weight.shape), dim)
    hat = (x - mean) * inverse
    along, total = g * hat, g
    if inner:
        along, total = m.sum(along, dim=inner, keepdim=True), m.sum(total, dim=inner, keepdim=True)
    made = []
    if needs[0]:
        of_hat, of_mean = along * weight, total * weight
        if rest:
            of_hat, of_mean = m.sum(of_hat, dim=rest, keepdim=True), m.sum(of_mean, dim=rest, keepdim=True)
        count = count_of(tuple(x.shape), dim)
        made.append((g * weight - of_mean / count - hat * (of_hat / count)) * inverse)
    if needs[1]:
        made.append(m.sum_to(along, shape=tuple(weight.shape)))
    if needs[2]:
        made.append(m.sum_to(total, shape=tuple(weight.shape)))
    return tuple(made)


_rule = as_rule(_gradients, name="scaled_norm_backward")


def _vjp(m: Any, needs: Any, g: Any, y: Any, x: Any, weight: Any, _bias: Any, *, dim: Dims, eps: float) -> Any:
    of_out, of_mean, of_variance = g
    _, mean, variance = y
    grads = wanted_gradients(_rule, needs, m, of_out, x, weight, mean, 1 / m.sqrt(variance + eps), dim=dim)
    if needs[0]:  # only in gradients of gradients
        count = max(count_of(tuple(x.shape), dim), 1)
        if of_mean is not None:
            part = m.expand(shared_out(m, of_mean, count, as_dtype(x.dtype)), shape=tuple(x.shape))
            grads[0] = part if grads[0] is None else grads[0] + part
        if of_variance is not None:
            part = of_variance * (2 / count) * (x - mean)
            grads[0] = part if grads[0] is None else grads[0] + part
    return grads


def _samples(rng: Any) -> Iterable[Sample]:
    shapes = (
        ((3, 2, 2), (1, 2, 1), (0, 2)), ((2, 2, 3), (1, 2, 1), (2,)), ((2, 2, 2, 3), (1, 2, 2, 1), (2, 3)),
        ((2, 1, 4), (1, 1, 4), (2,)),
    )  # fmt: skip
    for shape, own, dim in shapes:
        yield Sample((rng.normal(size=shape), rng.normal(size=own), rng.normal(size=own)), {"dim": dim, "eps": 1e-5})
    weight, bias = rng.normal(size=(2, 1, 4))
    yield Sample((rng.normal(size=(4, 3)).T, weight, bias), {"dim": (0,), "eps": 0.1})


def _reference(x: Array, weight: Array, bias: Array, dim: Dims, eps: float) -> Any:
    hat, mean, variance = standardize_reference(x, dim, eps)
    return hat * weight + bias, mean, variance


# Standardized over some dimensions, then scaled and shifted; the mean and the variance are also what is tracked.
scaled_norm = define(
    "scaled_norm",
    signature=takes(3, dim=DIMS, eps=NUMBER),
    family="normalisation",
    formula=_scaled_norm,
    infer=_infer,
    vjp=joint(_vjp),
    batch=in_front("scaled_norm"),
    samples=_samples,
    reference=_reference,
    outputs=3,
    kept_outputs=(1, 2),
    takes_none=True,
    kinds="f",
    grad_name="NativeBatchNormBackward0",
)

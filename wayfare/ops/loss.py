"""The losses that training loops call most, each as one record with few passes over memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.backend.cpu import Array
from wayfare.backend.fold import largest, total
from wayfare.errors import DTypeError, IndexRangeError, ShapeError
from wayfare.op import Sample, joint
from wayfare.ops._define import define, elementwise, expand_unbatched
from wayfare.ops.reduce import like
from wayfare.spec import Spec

_REDUCTIONS = ("none", "mean", "sum")


# -- classes: what cross_entropy and nll_loss share ---------------------------------------------------------------


def _check_shapes(op: str, x: Spec, target: Spec) -> None:
    if not x.dtype.is_floating_point:
        raise DTypeError(f"{op}: scores must be floating-point numbers, not {x}", fix="Convert them with .float().")
    if x.ndim != 2 or target.shape != x.shape[:1]:
        raise ShapeError(f"{op}: {x} scores need one class for each row, not {target}")


def _counted(target: Array, classes: int, ignore_index: int) -> Any:
    """The mask of rows that count; None where all of them do and every class is in range (the usual case)."""
    if not 0 <= ignore_index < classes:
        # Seen as unsigned, a negative number is a very large one: one look finds both ends.
        if target.dtype == np.int64 and (not target.size or target.view(np.uint64).max() < classes):
            return None
    return target != ignore_index


def _chosen(op: str, target: Array, classes: int, ignore_index: int) -> tuple[Array, Array | None]:
    """Target classes with ignored ones replaced by 0, and the mask of those that count."""
    counted = _counted(target, classes, ignore_index)
    if counted is None:
        return target, None
    target = np.where(counted, target, 0)
    if target.size and (target.min() < 0 or target.max() >= classes):
        wrong = target.max() if target.max() >= classes else target.min()
        raise IndexRangeError(f"{op}: class {wrong} is out of range for {classes} classes",
                              fix=f"Classes are numbered from 0 to {classes - 1}.")  # fmt: skip
    return target, counted


def _reduce(losses: Array, counted: Array | None, reduction: str) -> Any:
    if counted is not None:
        losses = np.where(counted, losses, losses.dtype.type(0))
    if reduction == "none":
        return losses
    summed = np.add.reduce(losses)
    if reduction == "sum":
        return summed
    return summed / losses.dtype.type(_count(losses.size, counted))


def _count(rows: int, counted: Array | None) -> int:
    return rows if counted is None else int(np.count_nonzero(counted))


def _mask(m: Any, target: Any, ignore_index: int, model: Any) -> tuple[Any, Any]:
    counted = target != ignore_index
    return like(m, counted, model), m.where(counted, target, m.zeros_like(target))


def _reduce_rows(m: Any, rows: Any, mask: Any, reduction: str, axis: int = 0) -> Any:
    """The same reduction in ops, for second gradients and batches; `rows` are masked already."""
    if reduction == "none":
        return rows
    summed = m.sum(rows, dim=(axis,), keepdim=False)
    return summed if reduction == "sum" else summed / m.sum(mask, dim=(axis,), keepdim=False)


def _out_spec(x: Spec, target: Spec, reduction: str) -> Spec:
    return Spec(target.shape if reduction == "none" else (), x.dtype)


def _class_samples(make: Any) -> Any:
    def samples(rng: Any) -> Iterable[Sample]:
        for reduction in _REDUCTIONS:
            attrs = {"ignore_index": -100, "reduction": reduction}
            yield Sample((make(rng, (4, 3)), np.array([0, 2, 1, 2])), attrs)
            yield Sample((make(rng, (3, 4)).T, np.array([2, -100, 0, -100])), attrs)
            yield Sample((make(rng, (3, 2)), np.array([0, 1, 1])), attrs | {"ignore_index": 1})

    return samples


def _rows_in_python(values: Any, target: Array, ignore_index: int, reduction: str) -> Any:
    """The reference: one row after the other."""
    kept = [(row, t) for row, t in zip(values, target.tolist(), strict=True) if t != ignore_index]
    if reduction == "none":
        return np.array([0.0 if t == ignore_index else -row[t] for row, t in zip(values, target.tolist(), strict=True)])
    summed = -math.fsum(row[t] for row, t in kept)
    return np.array(summed / len(kept) if reduction == "mean" else summed)


# -- cross entropy of scores against classes ----------------------------------------------------------------------


def _cross_entropy(x: Array, target: Array, *, ignore_index: int, reduction: str) -> tuple[Any, Array]:
    """The loss, and the probabilities: all that the gradient needs."""
    if x.ndim != 2 or target.shape != x.shape[:1]:
        raise ValueError("shapes differ")
    kind = x.dtype
    if kind.char == "e":
        x = x.astype(np.float32)
    target, counted = _chosen("cross_entropy", target, x.shape[1], ignore_index)
    top = largest(x, (1,), True) if x.size else np.zeros((x.shape[0], 1), x.dtype)
    p = np.subtract(x, top)
    at_target = p[np.arange(x.shape[0]), target]
    np.exp(p, out=p)
    summed = total(p, (1,), True)
    p /= summed
    losses = np.log(summed[:, 0])
    losses -= at_target
    loss = _reduce(losses, counted, reduction)
    return loss.astype(kind, copy=False), p.astype(kind, copy=False)


def _cross_entropy_infer(x: Spec, target: Spec, *, ignore_index: int, reduction: str) -> tuple[Spec, Spec]:
    _check_shapes("cross_entropy", x, target)
    return _out_spec(x, target, reduction), x


def _cross_entropy_vjp(
    m: Any, g: Any, y: Any, _x: Any, target: Any, *, ignore_index: int, reduction: str
) -> Any:
    of_loss, of_p = g
    p = y[1]
    out = None
    if of_loss is not None:
        out = m.cross_entropy_backward(of_loss, p, target, ignore_index=ignore_index, reduction=reduction)
    if of_p is not None:  # only in gradients of gradients
        through = m.softmax_backward(of_p, p, dim=1)
        out = through if out is None else out + through
    return out


def _cross_entropy_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    x, target = expand_unbatched(m, size, inputs, batched)
    _, rows, classes = x.shape
    flat_x, flat_target = m.reshape(x, shape=(size * rows, classes)), m.reshape(target, shape=(size * rows,))
    losses, p = m.cross_entropy(flat_x, flat_target, ignore_index=attrs["ignore_index"], reduction="none")
    mask, _ = _mask(m, target, attrs["ignore_index"], losses)
    loss = _reduce_rows(m, m.reshape(losses, shape=(size, rows)), mask, attrs["reduction"], axis=1)
    return loss, m.reshape(p, shape=(size, rows, classes))


def _cross_entropy_reference(x: Array, target: Array, ignore_index: int, reduction: str) -> Any:
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    return _rows_in_python(np.log(p), target, ignore_index, reduction), p


cross_entropy = define(
    "cross_entropy",
    family="loss",
    forward=_cross_entropy,
    infer=_cross_entropy_infer,
    vjp=(_cross_entropy_vjp, None),
    batch=_cross_entropy_batch,
    samples=_class_samples(lambda rng, shape: rng.normal(size=shape)),
    reference=_cross_entropy_reference,
    outputs=2,
    kept_outputs=(1,),
    takes_none=True,
    kinds="f",
)


def _cross_entropy_backward(g: Any, p: Array, target: Array, *, ignore_index: int, reduction: str) -> Any:
    target, counted = _chosen("cross_entropy", target, p.shape[1], ignore_index)
    rows = p.shape[0]
    if reduction == "mean":
        g = g / p.dtype.type(_count(rows, counted))
    if counted is not None:
        g = np.where(counted, g, p.dtype.type(0))
    out = p * (g[:, None] if g.ndim else g)
    out[np.arange(rows), target] -= g
    return out


def _cross_entropy_backward_vjp(
    m: Any, needs: Any, h: Any, _z: Any, g: Any, p: Any, target: Any, *, ignore_index: int, reduction: str
) -> Any:
    mask, safe = _mask(m, target, ignore_index, p)
    rows = int(p.shape[0])
    chosen = m.reshape(m.gather(h, m.reshape(safe, shape=(rows, 1)), dim=1), shape=(rows,))
    slope = (m.sum(h * p, dim=(1,), keepdim=False) - chosen) * mask
    weights = g * mask / (m.sum(mask, dim=(0,), keepdim=False) if reduction == "mean" else 1)
    return _reduce_rows(m, slope, mask, reduction), h * m.reshape(weights, shape=(rows, 1)), None


def _cross_entropy_backward_reference(g: Any, p: Array, target: Array, ignore_index: int, reduction: str) -> Any:
    counted = target != ignore_index
    hot = (target[:, None] == np.arange(p.shape[1])).astype(p.dtype)
    weights = (g * counted) / (counted.sum() if reduction == "mean" else 1)
    return (p - hot) * weights[:, None]


def _cross_entropy_backward_samples(rng: Any) -> Iterable[Sample]:
    for reduction in _REDUCTIONS:
        g = rng.normal(size=(4,) if reduction == "none" else ())
        attrs = {"ignore_index": -100, "reduction": reduction}
        yield Sample((g, rng.uniform(size=(4, 3)), np.array([0, -100, 1, 2])), attrs)


cross_entropy_backward = define(
    "cross_entropy_backward",
    family="loss",
    forward=_cross_entropy_backward,
    infer=lambda g, p, target, *, ignore_index, reduction: p,
    vjp=joint(_cross_entropy_backward_vjp),
    samples=_cross_entropy_backward_samples,
    reference=_cross_entropy_backward_reference,
)


# -- negative log likelihood: log probabilities given -------------------------------------------------------------


def _nll_loss(x: Array, target: Array, *, ignore_index: int, reduction: str) -> Any:
    if x.ndim != 2 or target.shape != x.shape[:1]:
        raise ValueError("shapes differ")
    target, counted = _chosen("nll_loss", target, x.shape[1], ignore_index)
    return _reduce(-x[np.arange(x.shape[0]), target], counted, reduction)


def _nll_loss_infer(x: Spec, target: Spec, *, ignore_index: int, reduction: str) -> Spec:
    _check_shapes("nll_loss", x, target)
    return _out_spec(x, target, reduction)


def _nll_loss_vjp(m: Any, g: Any, _y: Any, x_spec: Spec, target: Any, *, ignore_index: int, reduction: str) -> Any:
    rows, classes = x_spec.shape
    if not m.differentiable:
        target, counted = _chosen("nll_loss", target, classes, ignore_index)
        share = g / g.dtype.type(_count(rows, counted)) if reduction == "mean" else g
        out = np.zeros(x_spec.shape, g.dtype)
        out[np.arange(rows), target] = -share if counted is None else np.where(counted, -share, g.dtype.type(0))
        return out
    mask, safe = _mask(m, target, ignore_index, g)
    column = (rows, 1)
    weights = -g * mask / (m.sum(mask, dim=(0,), keepdim=False) if reduction == "mean" else 1)
    return m.scatter_place(
        m.reshape(weights, shape=column), m.reshape(safe, shape=column), shape=x_spec.shape, dim=1
    )


def _nll_loss_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    x, target = expand_unbatched(m, size, inputs, batched)
    _, rows, classes = x.shape
    flat_x, flat_target = m.reshape(x, shape=(size * rows, classes)), m.reshape(target, shape=(size * rows,))
    losses = m.nll_loss(flat_x, flat_target, ignore_index=attrs["ignore_index"], reduction="none")
    mask, _ = _mask(m, target, attrs["ignore_index"], losses)
    return _reduce_rows(m, m.reshape(losses, shape=(size, rows)), mask, attrs["reduction"], axis=1)


nll_loss = define(
    "nll_loss",
    family="loss",
    forward=_nll_loss,
    infer=_nll_loss_infer,
    vjp=(_nll_loss_vjp, None),
    batch=_nll_loss_batch,
    samples=_class_samples(lambda rng, shape: -rng.uniform(0.1, 3.0, shape)),
    reference=lambda x, target, ignore_index, reduction: _rows_in_python(x, target, ignore_index, reduction),
    kinds="f",
)


# -- mean squared error -------------------------------------------------------------------------------------------


def _mse_loss(x: Array, target: Array, *, reduction: str) -> Any:
    if x.shape != target.shape:
        raise ValueError("shapes differ")
    error = np.asarray(np.subtract(x, target, order="C"))
    if reduction == "none":
        error *= error
        return error
    if error.dtype.char == "e":
        error = error.astype(np.float32)
    flat = error.reshape(-1)
    summed = np.dot(flat, flat)
    if reduction == "mean":
        summed = summed / error.dtype.type(flat.size)
    return summed.astype(x.dtype)


def _mse_loss_infer(x: Spec, target: Spec, *, reduction: str) -> Spec:
    if x.shape != target.shape:
        raise ShapeError(f"mse_loss: {x} and its target {target} differ in shape")
    return Spec(x.shape if reduction == "none" else (), x.dtype)


def _mse_loss_vjp(m: Any, needs: Any, g: Any, _y: Any, x: Any, target: Any, *, reduction: str) -> Any:
    scale = 2 * g / max(math.prod(x.shape), 1) if reduction == "mean" else 2 * g
    slope = (x - target) * scale
    return slope, -slope if needs[1] else None


def _mse_loss_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    x, target = expand_unbatched(m, size, inputs, batched)
    squares = m.mse_loss(x, target, reduction="none")
    dims = tuple(range(1, x.ndim))
    if attrs["reduction"] == "none":
        return squares
    return (m.mean if attrs["reduction"] == "mean" else m.sum)(squares, dim=dims, keepdim=False)


def _mse_loss_samples(rng: Any) -> Iterable[Sample]:
    for reduction in _REDUCTIONS:
        yield Sample((rng.normal(size=(3, 2)), rng.normal(size=(2, 3)).T), {"reduction": reduction})
        yield Sample((rng.normal(size=()), rng.normal(size=())), {"reduction": reduction})


def _mse_loss_reference(x: Array, target: Array, reduction: str) -> Any:
    squares = x**2 - 2 * x * target + target**2
    return squares if reduction == "none" else np.mean(squares) if reduction == "mean" else np.sum(squares)


mse_loss = define(
    "mse_loss",
    family="loss",
    forward=_mse_loss,
    infer=_mse_loss_infer,
    vjp=joint(_mse_loss_vjp),
    batch=_mse_loss_batch,
    samples=_mse_loss_samples,
    reference=_mse_loss_reference,
    kinds="f",
)


# -- yes or no ----------------------------------------------------------------------------------------------------


def _logistic_loss(m: Any, x: Any, target: Any) -> Any:
    # max(x, 0) - x t + log(1 + exp(-|x|)): no exponent is ever positive.
    return m.maximum(x, 0) - x * target + m.log1p(m.exp(-m.abs(x)))


def _logistic_reference(x: float, target: float) -> float:
    p = 1 / (1 + math.exp(-x))
    return -target * math.log(p) - (1 - target) * math.log(1 - p)


# Cross entropy of sigmoid(x) against a probability.
logistic_loss = elementwise(
    "logistic_loss", arity=2, formula=_logistic_loss, reference=_logistic_reference, kinds="f",
    domain=((-3.0, 3.0), (0.0, 1.0)), grad_name="BinaryCrossEntropyWithLogitsBackward0",
    vjp=(
        lambda m, g, _y, x, target: g * (m.sigmoid(x) - target),
        lambda m, g, _y, x, _target: -g * x,
    ),
)  # fmt: skip


def _binary_loss(m: Any, x: Any, target: Any) -> Any:
    # Logarithms are cut off at -100, as PyTorch does, so that a sure but wrong answer costs a finite loss.
    return (target - 1) * m.maximum(m.log1p(-x), -100) - target * m.maximum(m.log(x), -100)


def _binary_loss_by_x(m: Any, g: Any, _y: Any, x: Any, target: Any) -> Any:
    room = x - x * x
    small = m.zeros_like(room) + 1e-12
    return g * (x - target) / m.where(room < small, small, room)


# Cross entropy of a probability against a probability.
binary_loss = elementwise(
    "binary_loss", arity=2, formula=_binary_loss, kinds="f", domain=((0.1, 0.9), (0.0, 1.0)),
    reference=lambda x, target: -target * math.log(x) - (1 - target) * math.log(1 - x),
    grad_name="BinaryCrossEntropyBackward0",
    vjp=(
        _binary_loss_by_x,
        lambda m, g, _y, x, _target: g * (m.log((m.zeros_like(x) + 1) - x) - m.log(x)),
    ),
)  # fmt: skip

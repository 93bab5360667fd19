"""The losses that training loops call most, each as one record with few passes over memory."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.core.autocast import FLOAT32
from wayfare.core.device import BACKENDS
from wayfare.core.errors import ArgumentError, DTypeError, ShapeError
from wayfare.core.flops import per_input, per_row
from wayfare.core.numpy_math import Array
from wayfare.core.op import BatchRule, Sample, checks_values, joint
from wayfare.core.signature import INT, NUMBER, TEXT, takes
from wayfare.core.spec import Spec
from wayfare.ir.fuse.composite import as_rule
from wayfare.ops._define import define, elementwise, expand_unbatched, in_front
from wayfare.ops.reduction.reduce import like

_REDUCTIONS = ("none", "mean", "sum")


# -- classes: what cross_entropy and nll_loss share ---------------------------------------------------------------


def _check_shapes(op: str, x: Spec, target: Spec) -> None:
    if not x.dtype.is_floating_point:
        raise DTypeError(f"{op}: scores must be floating-point numbers, not {x}", fix="Convert them with .float().")
    if x.ndim != 2 or target.shape != x.shape[:1]:
        raise ShapeError(f"{op}: {x} scores need one class for each row, not {target}")


def _column(m: Any, op: str, x: Any, target: Any, ignore_index: int) -> Any:
    """The classes, checked, as a column beside the scores."""
    if x.ndim != 2 or target.shape != x.shape[:1]:
        raise ValueError("shapes differ")
    if getattr(x.dtype, "kind", "f") != "f":
        raise ValueError("no floats")
    rows, classes = x.shape
    target = m.checked_classes(target, op=op, classes=classes, ignore_index=ignore_index)
    return m.reshape(target, shape=(rows, 1))


def _reduced(m: Any, losses: Any, counted: Any, reduction: str) -> Any:
    """A column of losses reduced; rows that do not count are 0 already."""
    rows = losses.shape[0]
    if reduction == "none":
        return m.reshape(losses, shape=(rows,))
    summed = m.sum(losses, dim=(0, 1), keepdim=False)
    return summed if reduction == "sum" else summed / _count(m, counted, losses)


def _count(m: Any, counted: Any, model: Any) -> Any:
    return m.sum(like(m, counted, model), dim=(0, 1), keepdim=False)


def _shares(m: Any, g: Any, counted: Any, reduction: str) -> Any:
    """The gradient of each row's loss, as a column."""
    if reduction == "mean":
        g = g / _count(m, counted, g)
    column = m.reshape(g, shape=(counted.shape[0], 1) if g.ndim else (1, 1))
    return m.where(counted, column, m.zeros_like(column))


def _batched(name: str) -> BatchRule:
    """All rows of a batch are rows of one matrix; then the losses of each example are reduced."""

    def batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        x, target = expand_unbatched(m, size, inputs, batched)
        _, rows, classes = x.shape
        flat = m.reshape(x, shape=(size * rows, classes)), m.reshape(target, shape=(size * rows,))
        made = getattr(m, name)(*flat, ignore_index=attrs["ignore_index"], reduction="none")
        losses, *columns = made if isinstance(made, tuple) else (made,)
        loss = m.reshape(losses, shape=(size, rows))
        if attrs["reduction"] != "none":
            loss = m.sum(loss, dim=(1,), keepdim=False)
        if attrs["reduction"] == "mean":
            loss = loss / m.sum(like(m, target != attrs["ignore_index"], losses), dim=(1,), keepdim=False)
        return (loss, *(m.reshape(c, shape=(size, rows, 1)) for c in columns)) if columns else loss

    return batch


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


@checks_values
def _cross_entropy(m: Any, x: Any, target: Any, *, ignore_index: int, reduction: str) -> tuple[Any, Any, Any]:
    """The loss; and for each row the largest score and 1 / the sum of the exponentials above it."""
    column = _column(m, "cross_entropy", x, target, ignore_index)
    if x.size == 0:
        losses = m.sum(x, dim=(1,), keepdim=True)
        return _reduced(m, losses, column != ignore_index, reduction), losses, losses
    top = m.amax(x, dim=(1,), keepdim=True)
    shifted = x - top
    chosen = m.sum(m.at_index(shifted, column, dim=1), dim=(1,), keepdim=True)
    summed = m.sum(m.exp(shifted), dim=(1,), keepdim=True)
    counted = column != ignore_index
    losses = m.where(counted, m.log(summed) - chosen, m.zeros_like(top))
    return _reduced(m, losses, counted, reduction), top, 1 / summed


def _cross_entropy_infer(x: Spec, target: Spec, *, ignore_index: int, reduction: str) -> tuple[Spec, Spec, Spec]:
    _check_shapes("cross_entropy", x, target)
    column = Spec((x.shape[0], 1), x.dtype)
    return _out_spec(x, target, reduction), column, column


def _cross_entropy_gradient(
    m: Any, g: Any, x: Any, target: Any, top: Any, inverse: Any, *, ignore_index: int, reduction: str
) -> Any:
    column = m.reshape(target, shape=(x.shape[0], 1))
    # A recorded gradient must be a function of x only; otherwise use what the forward pass kept for each row.
    p = m.softmax(x, dim=1) if top is None else m.exp(x - top) * inverse
    share = _shares(m, g, column != ignore_index, reduction)
    return p * share - m.at_index(m.expand(share, shape=tuple(x.shape)), column, dim=1)


_cross_entropy_rule = as_rule(_cross_entropy_gradient, name="cross_entropy_backward")


def _cross_entropy_vjp(
    m: Any, g: Any, y: Any, x: Any, target: Any, *, ignore_index: int, reduction: str
) -> Any:
    on_arrays = m.works_on_arrays or x.__class__ in BACKENDS
    _, top, inverse = y if on_arrays else (None, None, None)
    return _cross_entropy_rule(m, g[0], x, target, top, inverse, ignore_index=ignore_index, reduction=reduction)


def _cross_entropy_reference(x: Array, target: Array, ignore_index: int, reduction: str) -> Any:
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    top = x.max(axis=1, keepdims=True)
    return _rows_in_python(np.log(p), target, ignore_index, reduction), top, 1 / np.exp(x - top).sum(1, keepdims=True)


cross_entropy = define(
    "cross_entropy", autocast=FLOAT32,
    signature=takes(2, reduction=TEXT, ignore_index=INT),
    family="loss",
    formula=_cross_entropy,
    infer=_cross_entropy_infer,
    vjp=(_cross_entropy_vjp, None),
    batch=_batched("cross_entropy"),
    samples=_class_samples(lambda rng, shape: rng.normal(size=shape)),
    reference=_cross_entropy_reference,
    outputs=3,
    differentiable_outputs=(0,),
    kept_outputs=(1, 2),
    kinds="f",
)


# -- negative log likelihood: log probabilities given -------------------------------------------------------------


@checks_values
def _nll_loss(m: Any, x: Any, target: Any, *, ignore_index: int, reduction: str) -> Any:
    column = _column(m, "nll_loss", x, target, ignore_index)
    counted = column != ignore_index
    # Only one number of each row is read: `at_index` would visit all of them.
    chosen = m.gather(x, m.where(counted, column, m.zeros_like(column)), dim=1)
    return _reduced(m, m.where(counted, -chosen, m.zeros_like(chosen)), counted, reduction)


def _nll_loss_infer(x: Spec, target: Spec, *, ignore_index: int, reduction: str) -> Spec:
    _check_shapes("nll_loss", x, target)
    return _out_spec(x, target, reduction)


def _nll_loss_vjp(m: Any, g: Any, _y: Any, x_spec: Spec, target: Any, *, ignore_index: int, reduction: str) -> Any:
    column = m.reshape(target, shape=(x_spec.shape[0], 1))
    counted = column != ignore_index
    share = _shares(m, -g, counted, reduction)
    safe = m.where(counted, column, m.zeros_like(column))
    return m.scatter_place(m.expand(share, shape=tuple(safe.shape)), safe, shape=x_spec.shape, dim=1)


nll_loss = define(
    "nll_loss", autocast=FLOAT32,
    signature=takes(2, reduction=TEXT, ignore_index=INT),
    family="loss",
    work=per_row,
    formula=_nll_loss,
    native_from=sys.maxsize,
    infer=_nll_loss_infer,
    vjp=(_nll_loss_vjp, None),
    batch=_batched("nll_loss"),
    samples=_class_samples(lambda rng, shape: -rng.uniform(0.1, 3.0, shape)),
    reference=lambda x, target, ignore_index, reduction: _rows_in_python(x, target, ignore_index, reduction),
    kinds="f",
)


# -- mean squared error -------------------------------------------------------------------------------------------


# Below this size three NumPy calls are faster.
_SQUARES_FROM = 16384


def _mse_loss(m: Any, x: Any, target: Any, *, reduction: str) -> Any:
    if x.shape != target.shape:
        raise ValueError("shapes differ")
    error = x - target
    if reduction == "none":
        return error * error
    summed = m.sum(error * error, dim=tuple(range(x.ndim)), keepdim=False)
    return summed / math.prod(x.shape) if reduction == "mean" else summed


def _mse_loss_infer(x: Spec, target: Spec, *, reduction: str) -> Spec:
    if x.shape != target.shape:
        raise ShapeError(f"mse_loss: {x} and its target {target} differ in shape")
    return Spec(x.shape if reduction == "none" else (), x.dtype)


def _mse_loss_gradient(m: Any, g: Any, x: Any, target: Any, *, reduction: str, both: bool) -> Any:
    scale = 2 * g / max(math.prod(x.shape), 1) if reduction == "mean" else 2 * g
    gradient = (x - target) * scale
    return (gradient, -gradient) if both else gradient


_mse_loss_rule = as_rule(_mse_loss_gradient, name="mse_loss_backward", native_from=_SQUARES_FROM)


def _mse_loss_vjp(m: Any, needs: Any, g: Any, _y: Any, x: Any, target: Any, *, reduction: str) -> Any:
    made = _mse_loss_rule(m, g, x, target, reduction=reduction, both=needs[1])
    return made if needs[1] else (made, None)


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
    "mse_loss", autocast=FLOAT32,
    signature=takes(2, reduction=TEXT),
    family="loss",
    work=per_input(3),
    formula=_mse_loss,
    native_from=_SQUARES_FROM,
    infer=_mse_loss_infer,
    vjp=joint(_mse_loss_vjp),
    batch=_mse_loss_batch,
    samples=_mse_loss_samples,
    reference=_mse_loss_reference,
    kinds="f",
)


# -- the variance of a normal distribution ------------------------------------------------------------------------


@checks_values
def _floored_variance(var: Array, *, eps: float) -> Any:
    if (var < 0).any():
        raise ArgumentError("gaussian_nll_loss: var has a negative entry")
    return np.maximum(var, var.dtype.type(eps))


def _variance_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.uniform(0.5, 2, (3, 4)),), {"eps": 0.1})
    yield Sample((rng.uniform(0.5, 2, (0, 2)),), {"eps": 0.1})
    yield Sample((np.array([0.0, 1e-9, 3.0]),), {"eps": 1e-6}, smooth=False)


# max(var, eps), after a check that nothing is negative. As in PyTorch the gradient passes the floor unchanged.
floored_variance = define(
    "floored_variance",
    signature=takes(1, eps=NUMBER),
    onnx=lambda b, var, *, eps: b.node("Max", var, b.number(eps, var.dtype)),
    family="loss",
    work=per_input(1),
    forward=_floored_variance,
    infer=lambda var, *, eps: var,
    vjp=(lambda m, g, _y, _var, *, eps: g,),
    batch=in_front("floored_variance"),
    samples=_variance_samples,
    reference=lambda var, eps: np.array([max(v, eps) for v in var.ravel()]).reshape(var.shape),
    kinds="f",
)


# -- yes or no ----------------------------------------------------------------------------------------------------


def _logistic_loss(m: Any, x: Any, target: Any) -> Any:
    # max(x, 0) - x t + log(1 + exp(-|x|)): no exponent is ever positive.
    return m.maximum(x, 0) - x * target + m.log1p(m.exp(-m.abs(x)))


def _logistic_reference(x: float, target: float) -> float:
    p = 1 / (1 + math.exp(-x))
    return -target * math.log(p) - (1 - target) * math.log(1 - p)


def _logistic_gradient(m: Any, g: Any, _y: Any, x: Any, target: Any) -> Any:
    # sigmoid(x) - target, from the smaller of sigmoid(x) and 1 - sigmoid(x): so a confident right answer has a
    # gradient too.
    rest = m.sigmoid(-m.abs(x))
    return g * m.where(x > 0, (1 - target) - rest, rest - target)


# Cross entropy of sigmoid(x) against a probability.
logistic_loss = elementwise(
    "logistic_loss", autocast=FLOAT32, arity=2, formula=_logistic_loss, reference=_logistic_reference, kinds="f",
    domain=((-3.0, 3.0), (0.0, 1.0)), grad_name="BinaryCrossEntropyWithLogitsBackward0",
    vjp=(
        _logistic_gradient,
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
    "binary_loss", autocast=FLOAT32, arity=2, formula=_binary_loss, kinds="f", domain=((0.1, 0.9), (0.0, 1.0)),
    reference=lambda x, target: -target * math.log(x) - (1 - target) * math.log(1 - x),
    grad_name="BinaryCrossEntropyBackward0",
    vjp=(
        _binary_loss_by_x,
        lambda m, g, _y, x, _target: g * (m.log((m.zeros_like(x) + 1) - x) - m.log(x)),
    ),
)  # fmt: skip

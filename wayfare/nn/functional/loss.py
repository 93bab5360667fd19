"""Losses of classification: one class of many, and yes or no."""

from __future__ import annotations

from typing import Any

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_floating, check_tensors
from wayfare.api.functions._public import as_dtype_of
from wayfare.api.functions.elementwise import where
from wayfare.api.functions.softmax import log_softmax
from wayfare.api.fused import fused
from wayfare.core.autocast import FLOAT32, FLOAT32_ON_CPU
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, OperationError, ShapeError
from wayfare.core.mode import executor
from wayfare.core.op import REGISTRY
from wayfare.core.spec import int64
from wayfare.core.tensor import Tensor
from wayfare.nn.functional._reduction import in_one_dtype, read_reduction, reduced
from wayfare.nn.one_call import one_call_function

__all__ = [
    "cross_entropy", "linear_cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
]  # fmt: skip


# -- classes ------------------------------------------------------------------------------------------------------


def _rows(name: str, input: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Scores as a matrix with a column for each class, targets as a vector; and the shape of the losses."""
    shape = tuple(input.shape)
    if not shape:
        raise ShapeError(f"{name}: needs scores of classes, [C] or [N, C, ...], this is {input.spec}")
    wanted = () if len(shape) == 1 else (shape[0], *shape[2:])
    if len(shape) > 1 and target.ndim and target.shape[0] != shape[0]:
        raise ArgumentError(f"{name}: scores {input.spec} and target {target.spec} have different batches")
    if tuple(target.shape) != wanted:
        fix = "A target of classes has no class dimension." if target.ndim == len(shape) else ""
        raise ShapeError(f"{name}: scores of {input.spec} need a target of shape {list(wanted)}, not {target.spec}",
                         fix=fix)  # fmt: skip
    if target.dtype.numpy.kind not in "iu":
        raise OperationError(f"{name}: target classes must be integers, not {target.spec}",
                             fix="Convert them with .long().")  # fmt: skip
    target = as_dtype_of(target, int64)
    if len(shape) == 2:
        return input, target, wanted
    # While the target has its own shape, an error can name the place in it.
    attrs = {"op": name, "classes": shape[len(shape) > 1], "ignore_index": int(ignore_index)}
    target = apply(REGISTRY["checked_classes"], (target,), attrs)
    rows = input.reshape(1, shape[0]) if len(shape) == 1 else input.movedim(1, -1).reshape(-1, shape[1])
    return rows, target.reshape(-1), wanted


def _check_weight(name: str, weight: Tensor | None, classes: int) -> None:
    if weight is not None and tuple(weight.shape) != (classes,):
        raise ShapeError(f"{name}: {classes} classes need {classes} weights, not {weight.spec}")


def _weighted(
    name: str, rows: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, smoothing: float
) -> Tensor:
    """The losses of log-probabilities with class weights and label smoothing, reduced."""
    check = {"op": name, "classes": rows.shape[1], "ignore_index": ignore_index}
    target = apply(REGISTRY["checked_classes"], (target,), check)
    return _weighted_nll_loss(rows, target, weight, ignore_index, reduction, float(smoothing))  # type: ignore[no-any-return]


@fused
def _weighted_nll_loss(
    rows: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, smoothing: float
) -> Tensor:
    classes = rows.shape[1]
    counted = as_dtype_of(target != ignore_index, rows.dtype)
    share = counted
    if weight is not None:
        safe = where(target != ignore_index, target, 0)
        share = weight.index_select(0, safe) * counted
    attrs = {"ignore_index": ignore_index, "reduction": "none"}
    losses: Tensor = apply(REGISTRY["nll_loss"], (rows, target), attrs) * share
    if smoothing:
        everywhere = rows if weight is None else rows * weight
        spread_out = where(counted == 0, 0.0, -everywhere.sum(1))
        losses = losses * (1 - smoothing) + spread_out * (smoothing / classes)
    if reduction == "mean":
        return losses.sum() / share.sum()
    return reduced(losses, reduction)


@one_call_function
@follows_autocast(FLOAT32)
def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The negative of the log-probability that `input` gives to each class in `target`."""
    reduction = read_reduction("nll_loss", reduction, size_average, reduce)
    check_tensors("nll_loss", input, target)
    rows, classes, shape = _rows("nll_loss", input, target, ignore_index)
    _check_weight("nll_loss", weight, rows.shape[1])
    if weight is None:
        attrs = {"ignore_index": int(ignore_index), "reduction": reduction}
        out: Tensor = apply(REGISTRY["nll_loss"], (rows, classes), attrs)
    else:
        out = _weighted("nll_loss", rows, classes, weight, int(ignore_index), reduction, 0.0)
    return out.reshape(shape) if reduction == "none" and len(shape) != 1 else out


@one_call_function
@follows_autocast(FLOAT32)
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The cross entropy of scores (logits) against classes, or against probabilities of the scores' own shape."""
    check_tensors("cross_entropy", input, target)
    reduction = read_reduction("cross_entropy", reduction, size_average, reduce)
    if (weight is None and not label_smoothing and input.ndim == 2 and target.dtype is int64
            and target.shape == input.shape[:1]):  # fmt: skip
        attrs = {"ignore_index": int(ignore_index), "reduction": reduction}
        return apply(REGISTRY["cross_entropy"], (input, target), attrs)[0]  # type: ignore[no-any-return]
    if not 0.0 <= label_smoothing <= 1.0:
        raise OperationError(f"cross_entropy: label_smoothing must lie between 0 and 1, it is {label_smoothing}")
    if target.shape == input.shape and target.dtype.is_floating_point:
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    rows, classes, shape = _rows("cross_entropy", input, target, ignore_index)
    check_floating("cross_entropy", rows)
    _check_weight("cross_entropy", weight, rows.shape[1])
    if weight is None and not label_smoothing:
        out = cross_entropy(rows, classes, None, None, ignore_index, None, reduction)
    else:
        scores = log_softmax(rows, 1)
        out = _weighted(
            "cross_entropy", scores, classes, weight, int(ignore_index), reduction, label_smoothing
        )
    return out.reshape(shape) if reduction == "none" and len(shape) != 1 else out


def _soft_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    """Against probabilities: minus the sum over the classes of target times log-probability."""
    _check_weight("cross_entropy", weight, input.shape[0 if input.ndim == 1 else 1])
    return _cross_entropy_of_chances(input, target, weight, reduction, float(smoothing))  # type: ignore[no-any-return]


@fused
def _cross_entropy_of_chances(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    dim = 0 if input.ndim == 1 else 1
    classes = input.shape[dim]
    if smoothing:
        target = target * (1 - smoothing) + smoothing / classes
    scores = log_softmax(input, dim) * target
    if weight is not None:
        scores = scores * weight.reshape([classes if axis == dim else 1 for axis in range(input.ndim)])
    losses = -scores.sum(dim)
    if reduction == "mean" and not losses.ndim:
        return losses
    return reduced(losses, reduction)


def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
    weight: Tensor | None = None, reduction: str = "mean", ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """`cross_entropy(linear(input, linear_weight, linear_bias), target)`."""
    if not 1 <= input.ndim <= 2 or linear_weight.ndim < 2 or input.shape[-1] != linear_weight.shape[-1]:
        raise ShapeError(f"linear_cross_entropy: features of {input.spec} do not fit a weight of {linear_weight.spec}")
    if input.ndim == 1 and linear_weight.ndim > 2:
        raise ShapeError(f"linear_cross_entropy: a weight of {linear_weight.spec} needs a batch of features, "
                         f"not {input.spec}")  # fmt: skip
    if ignore_index is not None and target.dtype.is_floating_point:
        raise OperationError("linear_cross_entropy: ignore_index makes no sense for a target of probabilities")
    outputs = tuple(linear_weight.shape[:-1])
    logits = input @ linear_weight.reshape(-1, input.shape[-1]).transpose(0, 1)
    if linear_bias is not None:
        logits = logits + linear_bias.reshape(-1)
    logits = logits.reshape((*input.shape[:-1], *outputs))
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=label_smoothing
    )


@follows_autocast(FLOAT32_ON_CPU)
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The cross entropy of probabilities of "yes" against targets between 0 and 1."""
    reduction = read_reduction("binary_cross_entropy", reduction, size_average, reduce)
    _check_same("binary_cross_entropy", input, target)
    _check_probabilities("binary_cross_entropy", input)
    target = as_dtype_of(target, input.dtype)
    if weight is None:
        return _binary_cross_entropy(input, target, reduction)  # type: ignore[no-any-return]
    return _weighted_binary_cross_entropy(input, target, weight, reduction)  # type: ignore[no-any-return]


@fused
def _binary_cross_entropy(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return reduced(apply(REGISTRY["binary_loss"], (input, target)), reduction)


@fused
def _weighted_binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor, reduction: str) -> Tensor:
    return reduced(apply(REGISTRY["binary_loss"], (input, target)) * weight, reduction)


@follows_autocast(FLOAT32)
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`binary_cross_entropy(sigmoid(input), target)` without overflow; `pos_weight` weighs the "yes" side."""
    name = "binary_cross_entropy_with_logits"
    reduction = read_reduction(name, reduction, size_average, reduce)
    _check_same(name, input, target)
    input, target = in_one_dtype(input, target)
    if weight is None and pos_weight is None:
        return _logistic_loss(input, target, reduction)  # type: ignore[no-any-return]
    return _weighted_logistic_loss(input, target, weight, pos_weight, reduction)  # type: ignore[no-any-return]


@fused
def _logistic_loss(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return reduced(apply(REGISTRY["logistic_loss"], (input, target)), reduction)


@fused
def _weighted_logistic_loss(
    input: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, reduction: str
) -> Tensor:
    op = REGISTRY["logistic_loss"]
    if pos_weight is None:
        losses = apply(op, (input, target))
    else:
        # log(1 + exp(-x)) is the loss against a sure "yes".
        sure = apply(op, (input, as_dtype_of(1, input.dtype)))
        losses = (1 - target) * input + ((pos_weight - 1) * target + 1) * sure
    return reduced(losses if weight is None else losses * weight, reduction)


def _check_probabilities(name: str, input: Tensor) -> None:
    """Refuse probabilities outside [0, 1], where values can be read now."""
    if not executor().may_read(input):
        return
    array = input._read(name)
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        raise OperationError(f"{name}: probabilities must lie in [0, 1], these reach from {array.min():g} to "
                             f"{array.max():g}", fix="Use binary_cross_entropy_with_logits for scores, or apply "
                             "sigmoid first.")  # fmt: skip


def _check_same(name: str, input: Tensor, target: Tensor) -> None:
    check_tensors(name, input, target)
    check_floating(name, input)
    if input.shape != target.shape:
        raise ArgumentError(f"{name}: input {input.spec} and target {target.spec} differ in shape",
                            fix="Reshape the target to the input's shape.")  # fmt: skip

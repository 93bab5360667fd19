"""Losses with a margin between right and wrong, near and far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_floating, check_tensor, check_tensors
from wayfare.api.functions._public import as_dtype_of
from wayfare.api.functions.elementwise import where
from wayfare.api.functions.reduce import mean, sum
from wayfare.api.fused import fused
from wayfare.core.autocast import FLOAT32
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, OperationError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import int64
from wayfare.core.tensor import Tensor
from wayfare.nn.functional._reduction import in_one_dtype, read_reduction, reduced
from wayfare.nn.functional.distance import pairwise_distance

__all__ = [
    "soft_margin_loss", "hinge_embedding_loss", "margin_ranking_loss", "cosine_embedding_loss",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
    "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip


@follows_autocast(FLOAT32)
def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """`log(1 + exp(-target * input))` for targets 1 and -1."""
    reduction = read_reduction("soft_margin_loss", reduction, size_average, reduce)
    check_tensors("soft_margin_loss", input, target)
    if not target.dtype.is_floating_point:
        check_floating("soft_margin_loss", input)
    return _soft_margin_loss(input, target, reduction)  # type: ignore[no-any-return]


@fused
def _soft_margin_loss(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    agreement = target * input
    return reduced(apply(REGISTRY["logistic_loss"], (agreement, as_dtype_of(1, agreement.dtype))), reduction)


@follows_autocast(FLOAT32)
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`input` (a distance) where the target is 1, `max(0, margin - input)` where it is -1."""
    reduction = read_reduction("hinge_embedding_loss", reduction, size_average, reduce)
    check_tensors("hinge_embedding_loss", input, target)
    return _hinge_embedding_loss(input, target, float(margin), reduction)  # type: ignore[no-any-return]


@fused
def _hinge_embedding_loss(input: Tensor, target: Tensor, margin: float, reduction: str) -> Tensor:
    near = where(target == 1, input, 0.0)
    far = where(target == -1, (margin - input).clamp(min=0), 0.0)
    return reduced(where((target == 1) | (target == -1), near + far, input + (margin - input).clamp(min=0)), reduction)


@follows_autocast(FLOAT32)
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`max(0, margin - target * (input1 - input2))`; the target 1 says that the first should be larger."""
    reduction = read_reduction("margin_ranking_loss", reduction, size_average, reduce)
    if not input1.ndim == input2.ndim == target.ndim:
        raise OperationError(
            f"margin_ranking_loss: {input1.spec}, {input2.spec} and {target.spec} must have equally many dimensions"
        )
    return _margin_ranking_loss(input1, input2, target, float(margin), reduction)  # type: ignore[no-any-return]


@fused
def _margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float, reduction: str) -> Tensor:
    return reduced((-target * (input1 - input2) + margin).clamp(min=0), reduction)


@follows_autocast(FLOAT32)
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`1 - cos` for pairs that belong together (target 1), `max(0, cos - margin)` for others (-1)."""
    reduction = read_reduction("cosine_embedding_loss", reduction, size_average, reduce)
    if target.ndim > 1 or input1.ndim != target.ndim + 1:
        raise OperationError(f"cosine_embedding_loss: vectors of {input1.spec} do not fit a target of {target.spec}",
                             fix="Inputs are [N, D] with a target [N], or [D] with a single number.")  # fmt: skip
    if input1.shape != input2.shape:
        raise OperationError(f"cosine_embedding_loss: {input1.spec} and {input2.spec} differ in shape")
    return _cosine_embedding_loss(input1, input2, target, float(margin), reduction)  # type: ignore[no-any-return]


@fused
def _cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float, reduction: str) -> Tensor:
    dim = target.ndim
    # The floor is added, not taken as a maximum: both lengths stay differentiable.
    product = sum(input1 * input2, dim)
    squares = (sum(input1 * input1, dim) + 1e-12) * (sum(input2 * input2, dim) + 1e-12)
    cosine = product / squares.sqrt()
    together = where(target == 1, 1 - cosine, 0.0)
    apart = where(target == -1, (cosine - margin).clamp(min=0), 0.0)
    return reduced(together + apart, reduction)


# -- several classes ----------------------------------------------------------------------------------------------


def _matrix(name: str, input: Tensor) -> Tensor:
    check_tensor(name, input)
    if input.ndim > 2 or (input.ndim and input.shape[-1] == 0):
        raise ShapeError(f"{name}: needs scores [N, C] or [C], this is {input.spec}")
    return input if input.ndim == 2 else input.reshape(1, -1)


@follows_autocast(FLOAT32)
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    size_average: Any = None, reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The sum over the wrong classes of `max(0, margin - right score + wrong score) ** p`, divided by the classes."""
    reduction = read_reduction("multi_margin_loss", reduction, size_average, reduce)
    if p not in (1, 2):
        raise OperationError(f"multi_margin_loss: p must be 1 or 2, it is {p}")
    rows = _matrix("multi_margin_loss", input)
    if target.ndim > 1 or target.shape.numel() != rows.shape[0]:
        raise ShapeError(f"multi_margin_loss: scores of {input.spec} do not fit a target of {target.spec}")
    classes = rows.shape[1]
    if weight is not None and tuple(weight.shape) != (classes,):
        raise ShapeError(f"multi_margin_loss: {classes} classes need {classes} weights, not {weight.spec}")
    index = _checked("multi_margin_loss", as_dtype_of(target, int64), classes).reshape(-1, 1)
    lack = (margin - rows.gather(1, index) + rows).clamp(min=0)
    if p == 2:
        lack = lack * lack
    if weight is not None:
        lack = lack * weight.index_select(0, index.reshape(-1)).unsqueeze(1)
    own = _one_hot(index, rows)
    losses = sum(where(own, 0.0, lack), 1) / classes
    out = reduced(losses, reduction)
    return out.reshape(()) if reduction == "none" and input.ndim < 2 else out


def _checked(name: str, target: Tensor, classes: int) -> Tensor:
    """The target, checked to hold classes only."""
    # PyTorch's is a RuntimeError here.
    attrs = {"op": name, "classes": classes, "ignore_index": 0, "error": OperationError}
    return apply(REGISTRY["checked_classes"], (target,), attrs)  # type: ignore[no-any-return]


def _one_hot(index: Tensor, rows: Tensor) -> Tensor:
    marks = (rows.detach() * 0).scatter(1, index, 1.0)
    return marks == 1


@follows_autocast(FLOAT32)
def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """The hinge between every class that is set and every one that is not. A row of `target` lists the classes
    that are set; the list ends at the first -1."""
    reduction = read_reduction("multilabel_margin_loss", reduction, size_average, reduce)
    rows = _matrix("multilabel_margin_loss", input)
    if target.shape != input.shape:
        raise ShapeError(f"multilabel_margin_loss: scores of {input.spec} need a target of that shape, "
                         f"not {target.spec}")  # fmt: skip
    index = target.reshape(rows.shape)
    listed = (index < 0).cumsum(1) == 0
    safe = _checked("multilabel_margin_loss", where(listed, index, 0), rows.shape[1])
    zero = rows.detach() * 0
    is_set = zero.scatter_add(1, safe, as_dtype_of(listed, rows.dtype)) > 0
    scores = rows.gather(1, safe)
    # [rows, listed class, other class]
    lack = (1 - scores.unsqueeze(2) + rows.unsqueeze(1)).clamp(min=0)
    wanted = listed.unsqueeze(2) & ~is_set.unsqueeze(1)
    losses = sum(where(wanted, lack, 0.0), (1, 2)) / rows.shape[1]
    out = reduced(losses, reduction)
    return out.reshape(()) if reduction == "none" and input.ndim < 2 else out


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The mean over classes of the cross entropy of sigmoid scores against targets 0 and 1."""
    reduction = read_reduction("multilabel_soft_margin_loss", reduction, size_average, reduce)
    check_tensors("multilabel_soft_margin_loss", input, target)
    check_floating("multilabel_soft_margin_loss", input)
    return _multilabel_soft_margin_loss(*in_one_dtype(input, target), weight, reduction)  # type: ignore[no-any-return]


@fused
def _multilabel_soft_margin_loss(input: Tensor, target: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    losses = apply(REGISTRY["logistic_loss"], (input, target))
    if weight is not None:
        losses = losses * weight
    return reduced(mean(losses, -1), reduction)


# -- triplets -----------------------------------------------------------------------------------------------------


@follows_autocast(FLOAT32)
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`max(0, margin + distance to the positive - distance to the negative)`, with distances by p-norm."""
    reduction = read_reduction("triplet_margin_loss", reduction, size_average, reduce)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=distance, margin=margin, swap=swap, reduction=reduction
    )


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0, swap: bool = False,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`triplet_margin_loss` with a distance function of the user. `swap`: the nearer of anchor and positive counts."""
    reduction = read_reduction("triplet_margin_with_distance_loss", reduction)
    if margin <= 0:
        raise ArgumentError(f"triplet_margin_loss: margin must be positive, it is {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise OperationError("triplet_margin_loss: anchor, positive and negative must have equally many dimensions, "
                             f"not {anchor.spec}, {positive.spec} and {negative.spec}")  # fmt: skip
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return reduced((near - far + margin).clamp(min=0), reduction)

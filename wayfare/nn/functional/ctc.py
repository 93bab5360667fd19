"""Connectionist temporal classification: the likelihood of a label sequence, summed over all alignments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_floating, check_tensor
from wayfare.api.functions._public import as_dtype_of
from wayfare.api.functions.elementwise import where
from wayfare.api.functions.reduce import logsumexp
from wayfare.core.autocast import FLOAT32_ON_CPU
from wayfare.core.dispatch import apply
from wayfare.core.errors import OperationError, ShapeError
from wayfare.core.mode import current, executor
from wayfare.core.op import REGISTRY
from wayfare.core.spec import int64
from wayfare.core.tensor import Tensor, on_device_of
from wayfare.nn.functional._reduction import read_reduction

__all__ = ["ctc_loss"]


@follows_autocast(FLOAT32_ON_CPU)
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int],
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """The negative log likelihood of each target sequence under log-probabilities [time, batch, class].

    `targets` are rows of labels, or all labels one after the other. The mean is taken of losses divided by the
    length of their target.
    """
    reduction = read_reduction("ctc_loss", reduction)
    check_tensor("ctc_loss", log_probs)
    check_floating("ctc_loss", log_probs)
    single = log_probs.ndim == 2
    if single:
        log_probs = log_probs.unsqueeze(1)
    if log_probs.ndim != 3:
        raise ShapeError(f"ctc_loss: needs log-probabilities [time, batch, class], this is {log_probs.spec}")
    steps, batch, classes = log_probs.shape
    if 0 in log_probs.shape:
        raise OperationError(f"ctc_loss: log-probabilities {log_probs.spec} are empty",
                             fix="There must be a step, a sequence and a class; lengths may be 0.")  # fmt: skip
    if not 0 <= blank < classes:
        raise OperationError(f"ctc_loss: blank={blank} is not one of {classes} classes")
    times = _lengths("input", input_lengths, batch, steps, log_probs)
    here = executor().works_on_arrays
    # In a recording and under vmap nothing may depend on values: the longest possible rows of labels.
    sizes = _lengths("target", target_lengths, batch, -1 if here else targets.shape[-1], log_probs)
    targets = targets.to(log_probs.device)
    labels = (_with_blanks if here else _with_blanks_anywhere)(targets, sizes, blank, classes)
    inside = on_device_of(log_probs, np.arange(steps).reshape(steps, 1, 1)) < times.reshape(1, batch, 1)
    likelihood = _forward(log_probs, labels, inside, sizes, blank)
    losses = -likelihood
    if current().grad:
        # PyTorch's gradient holds for log-probabilities that sum to one: this adds its part of it, and no value.
        whole = where(inside, log_probs.exp(), 0.0).sum((0, 2))
        losses = whole - whole.detach() + losses
    if zero_infinity:
        losses = where(likelihood == -math.inf, 0.0, losses)
    if reduction == "mean":
        return (losses / as_dtype_of(sizes.clamp(min=1), losses.dtype)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses.reshape(()) if single else losses


def _lengths(what: str, given: Any, batch: int, most: int, there: Tensor) -> Tensor:
    """Lengths as int64 [batch] on the device of `there`, checked to be in range; `most` is -1 where it does not
    matter."""
    lengths = given.to(there.device) if isinstance(given, Tensor) else on_device_of(there, np.asarray(given))
    lengths = as_dtype_of(lengths.reshape(-1), int64)
    if lengths.shape[0] != batch:
        raise ShapeError(f"ctc_loss: a batch of {batch} needs {batch} {what} lengths, not {lengths.shape[0]}")
    return apply(REGISTRY["checked_lengths"], (lengths,), {"op": "ctc_loss", "what": what, "most": most})  # type: ignore[no-any-return]


def _with_blanks(given: Tensor, lengths: Tensor, blank: int, classes: int) -> Tensor:
    """Each row of labels with a blank before, between and after them."""
    targets, sizes = given._read("ctc_loss"), lengths._read("ctc_loss")
    longest = int(sizes.max(initial=0))
    rows = np.full((len(sizes), 2 * longest + 1), blank, np.int64)
    starts = np.cumsum(sizes) - sizes
    for n, size in enumerate(sizes):
        own = targets[starts[n] : starts[n] + size] if targets.ndim == 1 else targets[n, :size]
        if len(own) != size:
            raise ShapeError(f"ctc_loss: target {n} has fewer than its {size} labels")
        rows[n, 1 : 2 * size : 2] = own
    wrong = np.argwhere((rows < 0) | (rows >= classes))
    if len(wrong):
        sequence, place = wrong[0]
        raise OperationError(f"ctc_loss: label {rows[sequence, place]}, number {place // 2} of target {sequence}, is "
                             f"out of range for {classes} classes",
                             fix=f"They are numbered from 0 to {classes - 1}.")  # fmt: skip
    return on_device_of(lengths, rows)


def _with_blanks_anywhere(given: Tensor, sizes: Tensor, blank: int, classes: int) -> Tensor:
    """The same without a look at values; the rows are as long as the longest target could be."""
    labels, batch, longest = as_dtype_of(given, int64), sizes.shape[0], given.shape[-1]
    places = on_device_of(sizes, np.arange(longest))
    if labels.ndim == 1:
        starts = (sizes.cumsum(0) - sizes).unsqueeze(1)
        labels = apply(REGISTRY["pad"], (labels,), {"amounts": ((0, 1),), "value": blank})
        labels = apply(REGISTRY["index"], (labels, (starts + places).clamp(max=longest)), {"dims": (0,)})
    labels = where(places < sizes.unsqueeze(1), labels, blank)
    attrs = {"op": "ctc_loss", "classes": classes, "ignore_index": 0, "error": OperationError}
    labels = apply(REGISTRY["checked_classes"], (labels,), attrs)
    rows = apply(REGISTRY["stack"], (labels * 0 + blank, labels), {"dim": 2}).reshape(batch, 2 * longest)
    return apply(REGISTRY["pad"], (rows,), {"amounts": ((0, 0), (0, 1)), "value": blank})  # type: ignore[no-any-return]


def _forward(log_probs: Tensor, labels: Tensor, inside: Tensor, sizes: Tensor, blank: int) -> Tensor:
    """log p(target) for each of the batch: all ways through the labels, one time step after the other."""
    steps, batch, _ = log_probs.shape
    width = labels.shape[1]
    impossible = -math.inf
    emitted = log_probs.gather(2, labels.unsqueeze(0).expand(steps, batch, width))
    shifted = REGISTRY["shifted"]
    # A label may follow another directly unless they are equal; otherwise a blank must stand between them.
    may_skip = (labels != blank) & (labels != apply(shifted, (labels,), {"dim": 1, "by": 2, "fill": blank}))
    places = on_device_of(labels, np.arange(width))
    # Without time steps the probability is 1 for a target without labels, and 0 for any other.
    silent = where(places < 1, as_dtype_of(0.0, log_probs.dtype), impossible)
    reached = where(inside.select(0, 0), where(places < 2, emitted.select(0, 0), impossible), silent)
    for t in range(1, steps):
        before = apply(shifted, (reached,), {"dim": 1, "by": 1, "fill": impossible})
        earlier = apply(shifted, (reached,), {"dim": 1, "by": 2, "fill": impossible})
        ways = apply(REGISTRY["stack"], (reached, before, where(may_skip, earlier, impossible)), {"dim": 0})
        here = logsumexp(ways, 0) + emitted.select(0, t)
        reached = where(inside.select(0, t), here, reached)
    # The last label and the blank behind it; where there is no label, the blank alone.
    column = sizes.unsqueeze(1)
    ends = reached.gather(1, (column * 2 - on_device_of(sizes, np.array([0, 1]))).clamp(min=0))
    return logsumexp(where(column > on_device_of(sizes, np.array([-1, 0])), ends, impossible), 1)

"""Connectionist temporal classification: the likelihood of a label sequence, summed over all alignments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.backend.cpu import Array
from wayfare.eager import apply
from wayfare.errors import OperationError, ShapeError
from wayfare.functions._along import check_floating, check_tensor
from wayfare.functions.elementwise import where
from wayfare.functions.reduce import logsumexp
from wayfare.nn.functional._reduction import read_reduction
from wayfare.op import REGISTRY
from wayfare.tensor import Tensor, wrap

__all__ = ["ctc_loss"]


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
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
    if not 0 <= blank < classes:
        raise OperationError(f"ctc_loss: blank={blank} is not one of {classes} classes")
    times, sizes = _lengths("input", input_lengths, batch), _lengths("target", target_lengths, batch)
    if (times > steps).any():
        raise OperationError(f"ctc_loss: an input of length {times.max()} is longer than the {steps} steps given")
    labels = _with_blanks(targets._read("ctc_loss"), sizes, blank, classes)
    likelihood = _forward(log_probs, labels, times, sizes, blank)
    # PyTorch's gradient holds for log-probabilities that sum to one: this adds its part of it, and no value.
    inside = wrap((np.arange(steps)[:, None] < times).reshape(steps, batch, 1))
    whole = where(inside, log_probs.exp(), 0.0).sum((0, 2))
    losses: Tensor = whole - whole.detach() - likelihood
    if zero_infinity:
        losses = where(likelihood == -math.inf, 0.0, losses)
    if reduction == "mean":
        return (losses / wrap(np.maximum(sizes, 1).astype(log_probs.dtype.numpy))).mean()
    if reduction == "sum":
        return losses.sum()
    return losses.reshape(()) if single else losses


def _lengths(what: str, given: Any, batch: int) -> Array:
    values = given._read("ctc_loss") if isinstance(given, Tensor) else np.asarray(given)
    values = values.reshape(-1).astype(np.int64)
    if values.shape != (batch,):
        raise ShapeError(f"ctc_loss: a batch of {batch} needs {batch} {what} lengths, not {values.size}")
    if (values < 0).any():
        raise OperationError(f"ctc_loss: {what} length {values.min()} is negative")
    return values


def _with_blanks(targets: Array, sizes: Array, blank: int, classes: int) -> Array:
    """Each row of labels with a blank before, between and after them."""
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
    return rows


def _forward(log_probs: Tensor, labels: Array, times: Array, sizes: Array, blank: int) -> Tensor:
    """log p(target) for each of the batch: all ways through the labels, one time step after the other."""
    steps, batch, _ = log_probs.shape
    width = labels.shape[1]
    impossible = -math.inf
    index = np.broadcast_to(labels, (steps, batch, width))
    emitted = log_probs.gather(2, wrap(np.ascontiguousarray(index)))
    # A label may follow another directly unless they are equal; otherwise a blank must stand between them.
    skips = np.zeros(labels.shape, bool)
    skips[:, 2:] = (labels[:, 2:] != blank) & (labels[:, 2:] != labels[:, :-2])
    may_skip = wrap(skips)
    start = wrap(np.broadcast_to(np.arange(width) < 2, labels.shape))
    reached = where(start, emitted.select(0, 0), impossible)
    shifted = REGISTRY["shifted"]
    for t in range(1, steps):
        before = apply(shifted, (reached,), {"dim": 1, "by": 1, "fill": impossible})
        earlier = apply(shifted, (reached,), {"dim": 1, "by": 2, "fill": impossible})
        ways = apply(REGISTRY["stack"], (reached, before, where(may_skip, earlier, impossible)), {"dim": 0})
        here = logsumexp(ways, 0) + emitted.select(0, t)
        reached = where(wrap((t < times).reshape(batch, 1)), here, reached)
    last = np.stack([2 * sizes, np.maximum(2 * sizes - 1, 0)], axis=1)
    ends = reached.gather(1, wrap(last))
    ends = where(wrap(np.stack([sizes >= 0, sizes > 0], axis=1)), ends, impossible)
    return logsumexp(ends, 1)

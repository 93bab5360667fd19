"""Judges a disagreement in float32 or bfloat16 by PyTorch's float64 result for the same input.

Where a computation is so ill-conditioned that its rounding exceeds the tolerance (a matrix function, a
sum that cancels), PyTorch's result is no better an authority than ours. Its float64 result is: ours
is right where it lies about as near to that as the tolerance asks, or as PyTorch's own result does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tests.oracle.compare import as_array, default_tolerance, tensors_in
from tests.oracle.convert import FrozenDType, FrozenTensor, from_array, thaw

_JUDGED = ("float32", "bfloat16")
# How far a rounding error lands is luck: of two equally good results one is easily twice as far off.
_LUCK = 2.0

# Even where PyTorch is far off, ours may miss the truth by no more than this many tolerances.
_MOST = 20.0


def only_rounding(
    module: Any, function: Callable[..., Any], reference: Callable[..., Any], sample: Any, seed: int
) -> bool:
    """Whether the two results of a sample differ by no more than the rounding of their dtype explains."""
    ours = _results(module, function, sample.args, sample, seed)
    theirs = _results(torch, reference, sample.args, sample, seed)
    wide = dataclasses.replace(sample, kwargs=_widened(sample.kwargs))
    truth = _results(torch, reference, _widened(sample.args), wide, seed)
    if not len(ours) == len(theirs) == len(truth):
        return False
    return all(as_close(*triple) for triple in zip(ours, theirs, truth, strict=True))


def as_close(ours: np.ndarray, theirs: np.ndarray, truth: np.ndarray) -> bool:
    """Whether ours is about as near to the float64 array as theirs, or as the tolerance asks."""
    if ours.dtype != theirs.dtype or not ours.shape == theirs.shape == truth.shape:
        return False
    finite = np.isfinite(truth)
    if ours.dtype.name not in _JUDGED or not finite.all():
        # Nothing is rounded in integers, and an infinity or a NaN is not a matter of rounding.
        return np.array_equal(ours, theirs, equal_nan=ours.dtype.kind in "fV")
    if ours.size == 0:
        return True
    tolerance = default_tolerance(ours.dtype.name)
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    allowed = tolerance.absolute + tolerance.relative * np.abs(truth)
    our_error = (np.abs(ours - truth) / allowed).max()
    their_error = (np.abs(theirs - truth) / allowed).max()
    return bool(our_error <= min(_LUCK * max(1.0, their_error), _MOST))


def _results(
    module: Any, function: Callable[..., Any], args: tuple[Any, ...], sample: Any, seed: int
) -> list[np.ndarray]:
    """Outputs, then gradients of a random combination of them; its weights are numbers of the dtype that is judged."""
    thawed = thaw(module, args, sample.kwargs)
    outputs = list(tensors_in(sample.process(function(*thawed.args, **thawed.kwargs))))
    arrays = [as_array(tensor) for tensor in outputs]
    differentiable = [tensor for tensor in outputs if tensor.requires_grad]
    if differentiable and thawed.leaves:
        generator = np.random.default_rng(seed)
        weights = []
        for tensor in differentiable:
            numbers = generator.standard_normal(tuple(tensor.shape)).astype(_judged_dtype(sample.args))
            weights.append(from_array(module, numbers.astype(as_array(tensor).dtype)))
        found = module.autograd.grad(differentiable, thawed.leaves, weights, allow_unused=True)
        for leaf, gradient in zip(thawed.leaves, found, strict=True):
            arrays.append(np.zeros_like(as_array(leaf)) if gradient is None else as_array(gradient))
    return arrays


def _judged_dtype(frozen: Any) -> Any:
    """bfloat16 if a sample has a tensor of it, else float32."""
    if isinstance(frozen, (list, tuple)):
        return next((d for d in map(_judged_dtype, frozen) if d is not np.float32), np.float32)
    narrow = isinstance(frozen, FrozenTensor) and frozen.array.dtype.name == "bfloat16"
    return ml_dtypes.bfloat16 if narrow else np.float32


def _widened(frozen: Any) -> Any:
    """Frozen arguments with float64 in the place of the dtype that is judged."""
    if isinstance(frozen, FrozenTensor) and frozen.array.dtype.name in _JUDGED:
        return dataclasses.replace(frozen, array=frozen.array.astype(np.float64))
    if isinstance(frozen, FrozenDType) and frozen.name in _JUDGED:
        return FrozenDType("float64")
    if isinstance(frozen, (list, tuple)):
        return type(frozen)(_widened(item) for item in frozen)
    if isinstance(frozen, dict):
        return {key: _widened(item) for key, item in frozen.items()}
    return frozen

"""Judges a float32 disagreement by PyTorch's float64 result for the same input.

Where a computation is so ill-conditioned that float32 rounding exceeds the tolerance (a matrix function, a
sum that cancels), PyTorch's float32 result is no better an authority than ours. Its float64 result is: ours
is right where it lies about as near to that as the tolerance asks, or as PyTorch's float32 result does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.oracle.compare import as_array, default_tolerance, tensors_in
from tests.oracle.convert import FrozenDType, FrozenTensor, thaw

# How far a rounding error lands is luck: of two equally good results one is easily twice as far off.
_LUCK = 2.0

# Even where PyTorch is far off, ours may miss the truth by no more than this many tolerances.
_MOST = 20.0


def only_rounding(
    module: Any, function: Callable[..., Any], reference: Callable[..., Any], sample: Any, seed: int
) -> bool:
    """Whether the two float32 results of a sample differ by no more than float32's own rounding explains."""
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
    if ours.dtype.kind != "f" or not finite.all():
        # Nothing is rounded in integers, and an infinity or a NaN is not a matter of rounding.
        return np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f")
    if ours.size == 0:
        return True
    tolerance = default_tolerance("float32")
    allowed = tolerance.absolute + tolerance.relative * np.abs(truth)
    our_error = (np.abs(ours - truth) / allowed).max()
    their_error = (np.abs(theirs - truth) / allowed).max()
    return bool(our_error <= min(_LUCK * max(1.0, their_error), _MOST))


def _results(
    module: Any, function: Callable[..., Any], args: tuple[Any, ...], sample: Any, seed: int
) -> list[np.ndarray]:
    """Outputs, then gradients of a random combination of them, whose weights are float32 numbers."""
    thawed = thaw(module, args, sample.kwargs)
    outputs = list(tensors_in(sample.process(function(*thawed.args, **thawed.kwargs))))
    arrays = [as_array(tensor) for tensor in outputs]
    differentiable = [tensor for tensor in outputs if tensor.requires_grad]
    if differentiable and thawed.leaves:
        generator = np.random.default_rng(seed)
        weights = []
        for tensor in differentiable:
            numbers = generator.standard_normal(tuple(tensor.shape)).astype(np.float32)
            weights.append(module.from_numpy(numbers.astype(as_array(tensor).dtype)))
        found = module.autograd.grad(differentiable, thawed.leaves, weights, allow_unused=True)
        for leaf, gradient in zip(thawed.leaves, found, strict=True):
            arrays.append(np.zeros_like(as_array(leaf)) if gradient is None else as_array(gradient))
    return arrays


def _widened(frozen: Any) -> Any:
    """Frozen arguments with float64 in the place of float32."""
    if isinstance(frozen, FrozenTensor) and frozen.array.dtype == np.float32:
        return dataclasses.replace(frozen, array=frozen.array.astype(np.float64))
    if isinstance(frozen, FrozenDType) and frozen.name == "float32":
        return FrozenDType("float64")
    if isinstance(frozen, (list, tuple)):
        return type(frozen)(_widened(item) for item in frozen)
    if isinstance(frozen, dict):
        return {key: _widened(item) for key, item in frozen.items()}
    return frozen

"""Compares random functions: shape and dtype of a draw, distribution of many draws and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.stats import ks_2samp

from tests.oracle.compare import as_array, difference, tensors_in
from tests.oracle.convert import thaw

_SEED = 2026
_CALLS = 100

# Neighbours may be drawn together (whole channels dropped), and the comparison assumes independent values:
# so it takes few values of one result, far apart, and many results.
_VALUES_OF_A_CALL = 20

# Seeds are fixed, so a given pair of generators always gives the same answer: no flaky test.
_SIGNIFICANCE = 1e-4


class DrawsDiffer(Exception):
    """Two random functions whose results cannot come from the same distribution."""


def check_draws(module: Any, function: Callable[..., Any], reference: Callable[..., Any], sample: Any) -> bool:
    """Raises DrawsDiffer where the draws differ; says whether gradients were compared too."""
    first, values, gradients = _draws(torch, reference, sample)
    our_first, our_values, our_gradients = _draws(module, function, sample)
    found = difference(our_first, first, values=False)
    if found is not None:
        raise DrawsDiffer(found)
    _compare("values", our_values, values)
    _compare("gradients", our_gradients, gradients)
    return gradients.size > 0


def _draws(module: Any, function: Callable[..., Any], sample: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """The first result, and values and input gradients from many calls."""
    module.manual_seed(_SEED)
    first: Any = None
    values: list[np.ndarray] = []
    gradients: list[np.ndarray] = []
    for call in range(_CALLS):
        thawed = thaw(module, sample.args, sample.kwargs)
        result = function(*thawed.args, **thawed.kwargs)
        if call == 0:
            first = result
        outputs = list(tensors_in(result))
        values.extend(_spread(as_array(tensor)) for tensor in outputs)
        differentiable = [tensor for tensor in outputs if tensor.requires_grad]
        if differentiable and thawed.leaves:
            total = sum(tensor.sum() for tensor in differentiable)
            found = module.autograd.grad(total, thawed.leaves, allow_unused=True)
            gradients.extend(_spread(as_array(gradient)) for gradient in found if gradient is not None)
        if not any(part.size for part in values):
            break
    return first, _joined(values), _joined(gradients)


def _spread(array: np.ndarray) -> np.ndarray:
    """A few values from all over an array."""
    flat = array.ravel()
    return flat[:: max(1, flat.size // _VALUES_OF_A_CALL)][:_VALUES_OF_A_CALL]


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(np.float64) if parts else np.empty(0)


def _compare(what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    if ours.size != theirs.size:
        raise DrawsDiffer(f"{ours.size} {what} instead of {theirs.size}")
    if np.isnan(ours).sum() != np.isnan(theirs).sum():
        raise DrawsDiffer(f"{np.isnan(ours).sum()} NaN {what} instead of {np.isnan(theirs).sum()}")
    ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
    if ours.size == 0:
        return
    chance = ks_2samp(ours, theirs).pvalue
    if chance < _SIGNIFICANCE:
        raise DrawsDiffer(
            f"{what} differ in distribution (p = {chance:.1e}): "
            f"mean {ours.mean():.4g} instead of {theirs.mean():.4g}, "
            f"deviation {ours.std():.4g} instead of {theirs.std():.4g}"
        )

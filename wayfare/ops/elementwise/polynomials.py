"""Orthogonal polynomials by their recurrences: values only, as in PyTorch."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from wayfare.core.op import Sample
from wayfare.ops._define import elementwise
from wayfare.ops.elementwise.onnx_iterative import by_recurrence

_First = Callable[[Any], Any]
_Step = Callable[[Any, Any, Any, Any], Any]


def _by_recurrence(first: _First, step: _Step) -> Callable[..., Any]:
    """P0 = 1, P1 = first(x), P(k+1) = step(x, Pk, P(k-1), k); degrees below 0 give 0."""

    def values(x: Any, n: Any) -> Any:
        x, n = np.broadcast_arrays(np.asarray(x), np.asarray(n))
        degree = np.trunc(n)
        out = np.where(degree == 0, np.ones_like(x), np.zeros_like(x))
        before, now = np.ones_like(x), np.asarray(first(x), x.dtype)
        top = int(degree.max()) if degree.size and np.isfinite(degree).all() else 0
        for k in range(1, top + 1):
            out = np.where(degree == k, now, out)
            before, now = now, np.asarray(step(x, now, before, k), x.dtype)
        return out

    return values


# SciPy's name for it, the first polynomial, and the next from the last two.
_POLYNOMIALS: dict[str, tuple[str, _First, _Step]] = {
    "chebyshev_polynomial_t": ("eval_chebyt", lambda x: x, lambda x, p, q, k: 2 * x * p - q),
    "chebyshev_polynomial_u": ("eval_chebyu", lambda x: 2 * x, lambda x, p, q, k: 2 * x * p - q),
    "chebyshev_polynomial_v": ("", lambda x: 2 * x - 1, lambda x, p, q, k: 2 * x * p - q),
    "chebyshev_polynomial_w": ("", lambda x: 2 * x + 1, lambda x, p, q, k: 2 * x * p - q),
    "shifted_chebyshev_polynomial_t": (
        "eval_sh_chebyt", lambda x: 2 * x - 1, lambda x, p, q, k: 2 * (2 * x - 1) * p - q),
    "shifted_chebyshev_polynomial_u": (
        "eval_sh_chebyu", lambda x: 2 * (2 * x - 1), lambda x, p, q, k: 2 * (2 * x - 1) * p - q),
    "shifted_chebyshev_polynomial_v": (
        "", lambda x: 2 * (2 * x - 1) - 1, lambda x, p, q, k: 2 * (2 * x - 1) * p - q),
    "shifted_chebyshev_polynomial_w": (
        "", lambda x: 2 * (2 * x - 1) + 1, lambda x, p, q, k: 2 * (2 * x - 1) * p - q),
    "hermite_polynomial_h": ("eval_hermite", lambda x: 2 * x, lambda x, p, q, k: 2 * x * p - 2 * k * q),
    "hermite_polynomial_he": ("eval_hermitenorm", lambda x: x, lambda x, p, q, k: x * p - k * q),
    "laguerre_polynomial_l": (
        "eval_laguerre", lambda x: 1 - x, lambda x, p, q, k: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
    "legendre_polynomial_p": (
        "eval_legendre", lambda x: x, lambda x, p, q, k: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}  # fmt: skip


def _angle_form(name: str, x: float, n: float) -> float:
    """The third and fourth Chebyshev kinds by their trigonometric definition."""
    theta = math.acos(2 * x - 1 if name.startswith("shifted") else x)
    if name.endswith("_v"):
        return math.cos((n + 0.5) * theta) / math.cos(theta / 2)
    return math.sin((n + 0.5) * theta) / math.sin(theta / 2)


def _reference(name: str, scipy_name: str, x: float, n: float) -> float:
    if not scipy_name:
        return _angle_form(name, x, n)
    return float(getattr(importlib.import_module("scipy.special"), scipy_name)(int(n), x))


def _samples(rng: Any) -> list[Sample]:
    x = rng.uniform(0.1, 0.9, (3, 4))
    degrees = (np.floor(rng.uniform(0, 6, (3, 4))), np.asarray(3.0))
    return [*(Sample((x, n)) for n in degrees), Sample((x[:0], np.asarray(2.0)))]


for _name, (_scipy_name, _first, _step) in _POLYNOMIALS.items():
    elementwise(
        _name, arity=2, forward=_by_recurrence(_first, _step), reference=partial(_reference, _name, _scipy_name),
        samples=_samples, promotion="float", kinds="f", onnx=by_recurrence(_first, _step),
    )  # fmt: skip

POLYNOMIAL_NAMES = tuple(_POLYNOMIALS)

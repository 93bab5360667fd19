"""Comparing the results of a plan with those of Python: the first difference, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.core.device import BACKENDS, device_of, moved, to_host
from wayfare.core.numpy_math import Array
from wayfare.core.spec import BFLOAT16, FLOAT_KINDS, NARROW_ARRAYS, OF_NUMPY, limits_of, widened
from wayfare.core.tensor import Tensor
from wayfare.ir.graph import Value, in_order

# Relative and absolute tolerances: ten times those of `assert_close`, because fused kernels add in another order.
_CLOSE = {"e": (1e-2, 1e-4), BFLOAT16.char: (1e-1, 1e-3), "f": (1.3e-5, 1e-4), "d": (1e-6, 1e-6)}


# Differences up to this many times the noise are allowed.
_NOISE = 4.0


class Difference(Exception):
    """A plan and Python differ: what, and by how much."""


class Shown:
    """A tensor as a plan would make it: its values, whether it requires a gradient, and the noise of the values."""

    __slots__ = ("array", "needs", "noise")

    def __init__(self, array: Array, needs: bool, noise: float) -> None:
        self.array, self.needs, self.noise = array, needs, noise


# Stands for something that is compared elsewhere, or whose value is not known before.
ANY: Any = object()


def same(where: str, got: Any, want: Any, step: float = 0.0) -> None:
    """Raise `Difference` unless a structure made by a plan equals the one that Python made. `step`: the largest
    rounding step on the way, if it is larger than that of the results."""
    if got is want or got is ANY:
        return
    if isinstance(got, Shown):
        if not isinstance(want, Tensor):
            fail(where, f"the plan gives a tensor, Python {_called(want)}")
        arrays(where, got.array, content(want), got.noise, step)
        if got.needs is not want.requires_grad:
            fail(where, f"its requires_grad is {got.needs} there and {want.requires_grad} in Python")
    elif isinstance(got, Tensor) or isinstance(want, Tensor):
        if not (isinstance(got, Tensor) and isinstance(want, Tensor)):
            fail(where, f"the plan gives {_called(got)}, Python {_called(want)}")
        arrays(where, content(got), content(want), step=step)
    elif isinstance(got, np.ndarray) or isinstance(want, np.ndarray):
        arrays(where, got, want, step=step)
    elif type(got) is not type(want):
        fail(where, f"the plan gives {_called(got)}, Python {_called(want)}")
    elif isinstance(want, dict):
        if list(got) != list(want):
            fail(where, f"the plan gives the keys {list(got)}, Python {list(want)}")
        for key in want:
            same(f"{where}[{key!r}]", got[key], want[key], step)
    elif isinstance(want, (tuple, list)):
        if len(got) != len(want):
            fail(where, f"the plan gives {len(got)} entries, Python {len(want)}")
        for number, (a, b) in enumerate(zip(got, want, strict=True)):
            same(f"{where}[{number}]", a, b, step)
    elif isinstance(want, (float, complex)):
        arrays(where, np.asarray(got), np.asarray(want), step=step)
    elif got != want:
        fail(where, f"the plan gives {got!r}, Python {want!r}")


def arrays(where: str, got: Any, want: Any, noise: float = 0.0, step: float = 0.0) -> None:
    """The same for two arrays or None. `noise`: how far apart two runs of the plan were, on inputs that differ by
    rounding."""
    if _called(got) != _called(want):
        fail(where, f"the plan gives {_called(got)}, Python {_called(want)}")
    if want is None:
        return
    if want.dtype.char not in _CLOSE:
        wrong = int(np.sum(got != want))
        if wrong:
            fail(where, f"{wrong} of {want.size} elements differ")
        return
    relative, absolute = _CLOSE[want.dtype.char]
    got, want = widened(got), widened(want)
    # The rounding errors of a sum grow with the size of what is added.
    scale = max(1.0, _scale(want))
    absolute = absolute * scale + _NOISE * (noise + step * scale)
    with np.errstate(all="ignore"):
        apart = ~np.isclose(got, want, relative, absolute, equal_nan=True)
        if apart.any():
            most = float(np.nanmax(np.abs(np.asarray(got - want, want.dtype))[apart]))
            fail(where, f"{int(apart.sum())} of {want.size} elements differ, by up to {most:.3g}")


def fail(where: str, what: str) -> Any:
    """Raise `Difference`."""
    raise Difference(f"{where}: {what}")


def content(t: Tensor) -> Array:
    """The values of a tensor."""
    if t._view is not None:
        t._renew()
    return to_host(t._array)


def coarsest_step(values: Sequence[Value]) -> float:
    """The largest rounding step among the narrow floats that these values are computed from; 0 if there are none."""
    dtypes = {out.dtype for step in in_order(values) for out in step.outputs}
    return max([float(limits_of(OF_NUMPY[d]).eps) for d in dtypes & NARROW_ARRAYS], default=0.0)


def nudged(array: Array, least: float = 0.0) -> Array:
    """A copy; every second float is changed by one rounding step, of at least this size."""
    if array.__class__ in BACKENDS:
        return moved(nudged(to_host(array), least), device_of(array))  # type: ignore[no-any-return]
    copy = array.copy(order="K")
    if array.dtype.kind in FLOAT_KINDS and array.size:
        steps = np.arange(array.size).reshape(array.shape) % 2
        copy *= (1 + max(float(limits_of(OF_NUMPY[array.dtype]).eps), least) * steps).astype(array.dtype)
    return copy


def noise_between(one: Array, other: Array) -> float:
    """The largest difference between two arrays."""
    one, other = to_host(one), to_host(other)
    if one.dtype.kind not in FLOAT_KINDS or one.shape != other.shape or not one.size:
        return 0.0
    with np.errstate(all="ignore"):
        apart = np.abs(widened(one) - widened(other))
        return float(np.max(apart, where=np.isfinite(apart), initial=0.0))


def _scale(array: Array) -> float:
    if not array.size:
        return 0.0
    with np.errstate(all="ignore"):
        found = np.abs(array[np.isfinite(array)]) if array.ndim else np.abs(array)
        return float(found.max()) if found.size and np.isfinite(found.max()) else 0.0


def _called(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return "nothing" if value is None else type(value).__name__

"""Constants that depend on sizes: numbers such as 1/n, and arrays such as zeros(n) or arange(n)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array
from wayfare.core.spec import FLOAT_KINDS
from wayfare.exporters.recover.sizes import Fitting


class Differs(Exception):
    """Something that differs between runs without an explanation; `fix` is what the user can do."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.fix = fix


class Hidden(Differs):
    """A value that only one branch makes, used where no run came from the other branch."""


class FromElsewhere(Differs):
    """An input that takes values of different steps in different runs."""

    def __init__(self) -> None:
        super().__init__("made by different steps")


def number_of(fitting: Fitting, numbers: dict[int, Any]) -> Any:
    """The number that has these values in the runs: a constant, a Dim, a Number (1/n, √n, 1/√n, m/n), or None."""
    values = list(numbers.values())
    if all(v == values[0] for v in values):
        return values[0]
    if any(isinstance(v, bool) or not math.isfinite(v) for v in values):
        return None
    for back, forth in _FORMS:
        whole = {r: _whole(back, v) for r, v in numbers.items()}
        if all(w is not None for w in whole.values()):
            found = fitting.explain(whole)  # type: ignore[arg-type]
            if found is not None:
                return forth(found)
    for size, by_run in fitting.varying(list(numbers)):
        # A number divided by a size, or by one near it: 2 / (n - 1).
        for more in (0, -1, 1, -2, 2):
            over = [v * (n + more) for v, n in zip(values, by_run, strict=True)]
            if over[0] and all(abs(c - over[0]) <= 1e-6 * abs(over[0]) for c in over):
                return (_whole(float, over[0]) or over[0]) / (size + more)
        # A quotient of sizes: multiplied by one of them it is an integer.
        whole = {r: _whole(lambda v, n=n: v * n, v) for (r, v), n in zip(numbers.items(), by_run, strict=True)}
        found = fitting.explain(whole) if None not in whole.values() else None  # type: ignore[arg-type]
        if found is not None:
            return found / size
    return None


# Pairs of functions: from the number to an integer, and back.
_FORMS: list[tuple[Any, Any]] = [
    (lambda v: v, lambda n: n),
    (lambda v: 1 / v, lambda n: 1 / n),
    (lambda v: v * v, lambda n: n**0.5),
    (lambda v: 1 / (v * v), lambda n: n**-0.5),
    (lambda v: -v, lambda n: -n),
    (lambda v: 2 * v, lambda n: n / 2),
]


def _whole(form: Any, value: float) -> int | None:
    try:
        found = form(value)
    except ZeroDivisionError:
        return None
    near = round(found)
    # float32 has 24 bits of precision.
    return near if abs(found - near) <= 1e-6 * max(1.0, abs(near)) else None


def grid_of(fitting: Fitting, arrays: dict[int, Array]) -> dict[str, Any]:
    """An array as (start + Σ step·index) // over: a constant, arange, sums of such along axes, and indices that
    repeat each number `over` times."""
    for over in range(2, 9):
        if all(a.ndim == 1 and a.dtype.kind == "i" and np.array_equal(a, np.arange(a.size) // over)
               for a in arrays.values()):  # fmt: skip
            return {"start": 0, "steps": (1,), "over": over}
    starts, steps = {}, {}
    for r, a in arrays.items():
        if a.size == 0:
            continue
        starts[r] = a.reshape(-1)[0].item()
        steps[r] = [_step(a, axis) for axis in range(a.ndim)]
        grid = np.asarray(starts[r], a.dtype)
        for axis, step in enumerate(steps[r]):
            if step:
                indices = np.arange(a.shape[axis]) * step
                grid = grid + indices.astype(a.dtype).reshape(-1, *[1] * (a.ndim - axis - 1))
        if not _near(np.broadcast_to(grid, a.shape), a):
            raise Differs(f"arrays whose numbers follow from no formula, of shapes {_shapes(arrays)}")
    start = number_of(fitting, starts)
    axes = []
    for axis in range(next(iter(arrays.values())).ndim):
        known = {r: s[axis] for r, s in steps.items() if s[axis] is not None}
        axes.append(number_of(fitting, known) if known else 0)
    if start is None or None in axes:
        raise Differs(f"arrays whose numbers follow from no formula, of shapes {_shapes(arrays)}")
    return {"start": start, "steps": tuple(axes), "over": 1}


def _step(a: Array, axis: int) -> Any:
    """The difference of neighbours along an axis; None if its size is 1."""
    last = a.shape[axis] - 1
    if last == 0:
        return None
    at = [0] * a.ndim
    at[axis] = last
    begin, end = a.reshape(-1)[0].item(), a[tuple(at)].item()
    if a.dtype.kind == "b" or begin == end:
        return 0
    # Computed over the whole length, where rounding matters least.
    return (end - begin) / last if a.dtype.kind in FLOAT_KINDS else (end - begin) // last


def _near(a: Array, b: Array) -> bool:
    """Equal up to rounding (linspace counts from both ends)."""
    if b.dtype.kind not in FLOAT_KINDS:
        return np.array_equal(a, b)
    close = 4 * np.finfo(b.dtype).eps * np.abs(b[np.isfinite(b)]).max(initial=0.0)
    return np.allclose(a, b, rtol=0, atol=close, equal_nan=True)


def _shapes(arrays: dict[int, Array]) -> str:
    return " and ".join(str(list(a.shape)) for a in list(arrays.values())[:2])

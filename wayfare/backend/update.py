"""Optimisers' updates: one visit of memory for all parameters, gradients and states of a model.

    adam_update(params, grads, averages, squares, step=3, lr=1e-3)

All functions here take lists of NumPy arrays (one entry for each parameter) and change parameters and states in place.
They know nothing of tensors: the caller leaves out parameters without a gradient, makes sparse gradients dense, and
notes the writes (`backend.writes.note_write` for each parameter), so that a graph which kept an old value notices.
Within one call, arrays of different parameters must not overlap.

Each optimiser is an `Update`: a formula of one element, written once. Its variants (with or without decay, …) are
updates of their own, because a term that is absent must not turn an infinity into NaN by multiplying it by 0. Numbers
such as the learning rate are read from memory when the update runs, so nothing is compiled when they change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from wayfare.backend import native
from wayfare.backend.batch import Batch
from wayfare.backend.expr import FLOATS, NUMPY, OF_NUMPY, Expr, LoopError, cast, load
from wayfare.backend.loop import elementwise
from wayfare.backend.mathlib import loop_math
from wayfare.backend.native import Kernel

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Sequence[Array]

# Layouts of whole models remembered for one update.
_REMEMBERED = 16


class Update:
    """A formula that gives new values to some of its arguments, run over many sets of arrays.

    `formula(m, *arguments, *numbers)` returns the new values of the arguments `written`, in that order.
    """

    def __init__(self, name: str, formula: Callable[..., tuple[Any, ...]], written: tuple[int, ...]) -> None:
        self.name = name
        self.formula = formula
        self.written = written
        self._kernels: dict[tuple[str, ...], Kernel] = {}
        self._plans: dict[Any, list[Batch]] = {}

    def __call__(self, arguments: Sequence[Arrays], numbers: Sequence[float]) -> None:
        """Update all sets: `arguments[k][i]` is argument k of set i."""
        arrays = [array for column in arguments for array in column]
        if any([array.__class__ is not np.ndarray for array in arrays]):
            self._check_classes(arrays)
        key = (len(arguments), tuple([(a.shape, a.strides, a.dtype) for a in arrays]))
        # A plan in use is nobody else's: the numbers and addresses of two threads must not mix.
        plan = self._plans.pop(key, None)
        if plan is None:
            plan = self._plan(arguments, arrays, len(numbers))
        for k in self.written:
            if not all([array.flags.writeable for array in arguments[k]]):
                raise LoopError(f"{self.name}: an array to be updated is read-only", fix="Give a writable array.")
        for batch in plan:
            batch.numbers[:] = numbers
            batch.run(arrays)
        if len(self._plans) >= _REMEMBERED:
            self._plans.clear()
        self._plans[key] = plan

    def _check_classes(self, arrays: Arrays) -> None:
        for array in arrays:
            if not isinstance(array, np.ndarray):
                raise LoopError(f"{self.name}: takes NumPy arrays, not {type(array).__name__}",
                                fix="Give the arrays of the tensors.")  # fmt: skip

    def _plan(self, arguments: Sequence[Arrays], arrays: Arrays, numbers: int) -> list[Batch]:
        count = len(arguments[0])
        if any(len(column) != count for column in arguments):
            raise LoopError(f"{self.name}: got lists of {' and '.join(str(len(c)) for c in arguments)} arrays",
                            fix="Give one array of each kind for each parameter.")  # fmt: skip
        by_dtypes: dict[tuple[str, ...], list[list[int]]] = {}
        for i in range(count):
            dtypes = tuple(self._dtype(column[i]) for column in arguments)
            places = [k * count + i for k in range(len(arguments))]
            by_dtypes.setdefault(dtypes, []).append([*places, *(places[k] for k in self.written)])
        plan = []
        for dtypes, sets in by_dtypes.items():
            room = np.zeros(numbers, NUMPY[_computed_in(dtypes)])
            plan.append(Batch(self.kernel(dtypes, numbers), sets, arrays, room))
        return plan

    def _dtype(self, array: Array) -> str:
        found = OF_NUMPY.get(array.dtype)
        if found not in FLOATS:
            raise LoopError(f"{self.name}: cannot update with an array of {array.dtype}",
                            fix="Use float32 or float64.")  # fmt: skip
        return found

    def kernel(self, dtypes: tuple[str, ...], numbers: int) -> Kernel:
        """The kernel for arguments of these dtypes."""
        found = self._kernels.get(dtypes)
        if found is None:
            wide = _computed_in(dtypes)
            given = [cast(load(k, dtype), wide) for k, dtype in enumerate(dtypes)]
            given += [load(len(dtypes) + k, wide) for k in range(numbers)]
            made: tuple[Expr, ...] = self.formula(loop_math, *given)
            kept = [cast(value, dtypes[k]) for value, k in zip(made, self.written, strict=True)]
            found = native.build(elementwise(self.name, [*dtypes, *[wide] * numbers], *kept))
            self._kernels[dtypes] = found
        return found


def _computed_in(dtypes: Sequence[str]) -> str:
    return "f64" if "f64" in dtypes else "f32"


# -- stochastic gradient descent ---------------------------------------------------------------------------------------


@cache
def _sgd(decay: bool, momentum: bool, nesterov: bool) -> Update:
    def slope(g: Any, p: Any, sign: Any, weight_decay: Any) -> Any:
        return g * sign + p * weight_decay if decay else g * sign

    def plain(m: Any, p: Any, g: Any, lr: Any, sign: Any, weight_decay: Any) -> tuple[Any, ...]:
        return (p - slope(g, p, sign, weight_decay) * lr,)

    def with_momentum(
        m: Any, p: Any, g: Any, v: Any, lr: Any, sign: Any, weight_decay: Any, keep: Any, take: Any, momentum: Any
    ) -> tuple[Any, ...]:
        d = slope(g, p, sign, weight_decay)
        v = v * keep + d * take
        return p - (d + v * momentum if nesterov else v) * lr, v

    name = "sgd" + "_nesterov" * nesterov + "_momentum" * (momentum and not nesterov) + "_decay" * decay
    return Update(name, with_momentum, (0, 2)) if momentum else Update(name, plain, (0,))


def sgd_update(
    params: Arrays,
    grads: Arrays,
    velocities: Arrays | None = None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
    first: bool = False,
) -> None:
    """One step of SGD, in place. With momentum, `velocities` are its states; `first` says that they are zeros still.

    The first step takes the gradient whole, whatever the dampening. The caller notes the writes.
    """
    sign = -1.0 if maximize else 1.0
    if momentum == 0.0:
        _sgd(weight_decay != 0, False, False)((params, grads), (lr, sign, weight_decay))
        return
    if velocities is None:
        raise LoopError("sgd: momentum needs velocities", fix="Give a list of zeros like the parameters at first.")
    if nesterov and dampening:
        raise LoopError("sgd: nesterov works without dampening only", fix="Leave dampening at 0.")
    keep, take = (0.0, 1.0) if first else (momentum, 1.0 - dampening)
    update = _sgd(weight_decay != 0, True, nesterov)
    update((params, grads, velocities), (lr, sign, weight_decay, keep, take, momentum))


# -- Adam --------------------------------------------------------------------------------------------------------------


@cache
def _adam(decay: str, amsgrad: bool) -> Update:
    """`decay` is "none", "slope" (added to the gradient: Adam) or "weight" (taken from the parameter: AdamW)."""

    def formula(m: Any, p: Any, g: Any, average: Any, square: Any, *rest: Any) -> tuple[Any, ...]:
        largest, numbers = (rest[0], rest[1:]) if amsgrad else (None, rest)
        rate, sign, weight_decay, fresh, keep_square, fresh_square, root, eps = numbers
        g = g * sign
        if decay == "slope":
            g = m.fma(p, weight_decay, g)
        elif decay == "weight":
            p = p * weight_decay
        average = m.fma(g - average, fresh, average)
        square = m.fma(g * fresh_square, g, square * keep_square)
        if amsgrad:
            largest = m.maximum(largest, square)
        p = p - average * rate / m.fma(m.sqrt(largest if amsgrad else square), root, eps)
        return (p, average, square, largest) if amsgrad else (p, average, square)

    name = ("adamw" if decay == "weight" else "adam") + "_decay" * (decay == "slope") + "_amsgrad" * amsgrad
    return Update(name, formula, (0, 2, 3, 4) if amsgrad else (0, 2, 3))


def _adam_step(
    decay: str, weight_decay: float, lists: Sequence[Arrays | None], step: int, lr: float, betas: tuple[float, float],
    eps: float, maximize: bool,
) -> None:  # fmt: skip
    if step < 1:
        raise LoopError(f"adam: step is {step}, it counts from 1", fix="Count the step before the update.")
    first, second = betas
    rate = lr / (1.0 - first**step)
    # The average of squares is corrected under the root.
    root = 1.0 / math.sqrt(1.0 - second**step)
    numbers = (rate, -1.0 if maximize else 1.0, weight_decay, 1.0 - first, second, 1.0 - second, root, eps)
    given = [arrays for arrays in lists if arrays is not None]
    _adam(decay, len(given) == 5)(given, numbers)


def adam_update(
    params: Arrays,
    grads: Arrays,
    averages: Arrays,
    squares: Arrays,
    largest: Arrays | None = None,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    """One step of Adam, in place; with `largest` (the largest averages of squares so far) it is AMSGrad.

    States are zeros before the first step, which has the number 1. The caller notes the writes.
    """
    lists = (params, grads, averages, squares, largest)
    _adam_step("slope" if weight_decay else "none", weight_decay, lists, step, lr, betas, eps, maximize)


def adamw_update(
    params: Arrays,
    grads: Arrays,
    averages: Arrays,
    squares: Arrays,
    largest: Arrays | None = None,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    maximize: bool = False,
) -> None:
    """One step of AdamW, in place: as `adam_update`, but the decay shrinks the parameters themselves."""
    lists = (params, grads, averages, squares, largest)
    shrink = 1.0 - lr * weight_decay
    _adam_step("weight" if weight_decay else "none", shrink, lists, step, lr, betas, eps, maximize)

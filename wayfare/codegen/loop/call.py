"""Calls of kernels, the same on every device: what a call may be given, and new outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import NUMPY
from wayfare.codegen.loop.language import Loop, source
from wayfare.core.errors import LoopError

Shape = tuple[int, ...]


def no_arrays(loop: Loop, given: Any) -> LoopError:
    """The error for something that is no list of arrays."""
    kinds = ", ".join(type(a).__name__ for a in given) if isinstance(given, (list, tuple)) else type(given).__name__
    return LoopError(f"loop {loop.name}: takes a list of arrays, not {kinds}")


def not_elementwise(loop: Loop) -> LoopError:
    """The error for a loop over rows that is called without an axis."""
    return LoopError(f"loop {loop.name} works on rows", fix="Say along which axis: kernel.rows(arrays, axis).")


def broadcast(loop: Loop, inputs: Sequence[Any]) -> Shape:
    """The shape that the inputs broadcast to."""
    if len(inputs) != len(loop.inputs):
        raise LoopError(f"loop {loop.name}: takes {len(loop.inputs)} arrays, not {len(inputs)}")
    try:
        first: Shape = inputs[0].shape
        for array in inputs:
            if array.shape != first:
                return tuple(np.broadcast_shapes(*(a.shape for a in inputs)))
        return first
    except AttributeError:
        raise no_arrays(loop, inputs) from None


def row_axes(loop: Loop, axis: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The axes of a row, ascending."""
    named = (axis,) if isinstance(axis, int) else tuple(axis)
    if not named or any(not isinstance(a, int) or not -rank <= a < rank for a in named):
        raise LoopError(f"loop {loop.name}: there is no axis {axis!r} in an array of {rank} dimensions")
    axes = tuple(sorted(a % rank for a in named))
    if axes != tuple(range(axes[0], axes[-1] + 1)):
        raise LoopError(f"loop {loop.name}: the axes {axes} of a row must be adjacent")
    return axes


def row_shapes(loop: Loop, inputs: Sequence[Any], shape: Shape, axes: tuple[int, ...]) -> tuple[Shape, list[Shape]]:
    """The shape of values per row, and the shape of each output."""
    short = tuple(1 if a in axes else n for a, n in enumerate(shape))
    for array, operand in zip(inputs, loop.inputs, strict=True):
        own = (1,) * (len(shape) - array.ndim) + array.shape
        if operand.per_row and any(own[a] != 1 for a in axes):
            raise LoopError(f"loop {loop.name}: an array of {list(array.shape)} was given for one value per row")
    return short, [short if o.per_row else shape for o in loop.outputs]


def check_outputs(loop: Loop, outputs: Sequence[Any], shapes: Sequence[Shape], dtypes: Sequence[np.dtype[Any]]) -> None:
    """Raise LoopError unless the arrays to write to have the shapes and dtypes that the loop makes."""
    if len(outputs) != len(shapes):
        raise LoopError(f"loop {loop.name}: makes {len(shapes)} arrays, not {len(outputs)}")
    for array, shape, dtype in zip(outputs, shapes, dtypes, strict=True):
        if array.shape != shape or array.dtype != dtype:
            raise LoopError(f"loop {loop.name}: an output of {array.dtype}{list(array.shape)} was given, "
                            f"{dtype}{list(shape)} is made")  # fmt: skip


# How many plans are cached for one kernel. Programs with more change their shapes all the time.
PLANS = 512


class CallableLoop:
    """A loop that is called on arrays: the base of kernels. A subclass makes arrays, and runs the loop on them by plans
    for the layouts met so far."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.name = loop.name
        self._inputs = len(loop.inputs)
        self._dtypes = tuple(NUMPY[o.dtype] for o in (*loop.inputs, *loop.outputs))
        self._itemsizes = tuple(d.itemsize for d in self._dtypes)
        self._elementwise = loop.elementwise
        self._plans: dict[Any, Any] = {}
        # By the inputs alone, for calls that create their outputs.
        self._plans_of_new: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"

    @property
    def source(self) -> str:
        """The loop as text."""
        return source(self.loop)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any] | None = None) -> list[Any]:
        """Run an elementwise loop on arrays that broadcast against each other; writes to `outputs` if given."""
        if outputs is None:
            try:
                key = tuple([(a.shape, a.strides) for a in inputs])
            except (AttributeError, TypeError):
                raise no_arrays(self.loop, inputs) from None
            plan = self._plans_of_new.get(key)
            if plan is not None:
                outs = self._rerun(plan, inputs)
                if outs is not None:
                    return outs
        if not self._elementwise:
            raise not_elementwise(self.loop)
        shape = broadcast(self.loop, inputs)
        if outputs is None:
            outs = self._new_outputs(inputs, shape)
        else:
            outs = self._given(inputs, outputs, [shape] * len(self.loop.outputs), in_place=True)
        if 0 not in shape and self._run(inputs, outs, shape, None) and outputs is None:
            self._remember(key, shape, None, inputs, outs)
        return _hand_over(outs, outputs)

    def rows(
        self, inputs: Sequence[Any], axis: int | tuple[int, ...], outputs: Sequence[Any] | None = None
    ) -> list[Any]:
        """Run the loop on the rows along `axis` (or adjacent axes); per-row outputs have size 1 there."""
        if self.loop.indexed:
            raise LoopError(f"loop {self.name} has arrays with axes of their own",
                            fix="Say what it runs over: kernel.into(inputs, outputs, shape, axes).")  # fmt: skip
        if outputs is None:
            try:
                key = (axis, *[(a.shape, a.strides) for a in inputs])
            except (AttributeError, TypeError):
                raise no_arrays(self.loop, inputs) from None
            plan = self._plans_of_new.get(key)
            if plan is not None:
                outs = self._rerun(plan, inputs)
                if outs is not None:
                    return outs
        shape = broadcast(self.loop, inputs)
        axes = row_axes(self.loop, axis, len(shape))
        short, shapes = row_shapes(self.loop, inputs, shape, axes)
        if outputs is None:
            outs = [self._empty(s, d) for s, d in zip(shapes, self._dtypes[self._inputs :], strict=True)]
        else:
            outs = self._given(inputs, outputs, shapes, in_place=False)
        if 0 not in short and self._run(inputs, outs, shape, axes) and outputs is None:
            self._remember(key, shape, axes, inputs, outs)
        return _hand_over(outs, outputs)

    def plan_of_new(self, inputs: Sequence[Any]) -> Any:
        """The cached plan of `kernel(inputs)` with new outputs, for this layout; None if there is none."""
        return self._plans_of_new.get(tuple([(a.shape, a.strides) for a in inputs]))

    def plan_of(self, arrays: Sequence[Any], shape: Shape, axes: tuple[int, ...] | None) -> Any:
        """The plan for inputs and outputs of this layout; None if there is none."""
        raise NotImplementedError

    def _remember(self, key: Any, shape: Shape, axes: Any, inputs: Sequence[Any], outs: Sequence[Any]) -> None:
        """Cache the plan by the inputs alone."""
        plan = self.plan_of((*inputs, *outs), shape, axes)
        if plan is not None and all(o.flags.c_contiguous for o in outs):
            if len(self._plans_of_new) >= PLANS:
                self._plans_of_new.clear()
            plan.made = tuple(o.shape for o in outs)
            self._plans_of_new[key] = plan

    def _new_outputs(self, inputs: Sequence[Any], shape: Shape) -> list[Any]:
        dtypes = self._dtypes[self._inputs :]
        if len(shape) > 1 and not inputs[0].flags.c_contiguous and all(a.flags.f_contiguous for a in inputs):
            # Fortran order if all inputs have it, as in NumPy.
            return [self._empty(shape[::-1], d).T for d in dtypes]
        return [self._empty(shape, d) for d in dtypes]

    def _empty(self, shape: Shape, dtype: np.dtype[Any]) -> Any:
        """A new array."""
        raise NotImplementedError

    def _rerun(self, plan: Any, inputs: Sequence[Any]) -> list[Any] | None:
        """Run a plan on other inputs of the same shapes and strides; None if it does not fit them."""
        raise NotImplementedError

    def _given(self, inputs: Sequence[Any], outputs: Sequence[Any], shapes: Sequence[Shape], in_place: bool
               ) -> list[Any]:  # fmt: skip
        """The arrays to write to: those given, or temporaries where a write could destroy unread input. `in_place`: may
        the loop write over an element that it has read?"""
        raise NotImplementedError

    def _run(self, inputs: Sequence[Any], outs: list[Any], shape: Shape, axes: tuple[int, ...] | None) -> bool:
        """Run; True if there is a plan for it."""
        raise NotImplementedError


def _hand_over(outs: list[Any], outputs: Sequence[Any] | None) -> list[Any]:
    """Copy temporaries to the outputs that were given."""
    if outputs is None:
        return outs
    for made, wanted in zip(outs, outputs, strict=True):
        if made is not wanted:
            wanted[...] = made
    return list(outputs)

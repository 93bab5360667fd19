"""Ops that are not loops but have native commands: convolution, max pooling, and checks of values.

Each has a `Form` by the name of its op. An op without one runs as Python, between two native calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import NUMPY, OF_NUMPY, Expr, load, reduction
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage
from wayfare.codegen.routines.conv import convolution_commands
from wayfare.codegen.routines.max_pooling import LONGEST_TABLE, max_pool_commands, window_table
from wayfare.codegen.routines.windows import Slide
from wayfare.codegen.runtime import kernel
from wayfare.codegen.runtime.command import BufferView, Command, Scratch, Unsuited
from wayfare.codegen.runtime.commands import Commands
from wayfare.core.op import Op
from wayfare.ir.graph import Step, has_slots
from wayfare.ir.plan.actions import Action, CopyAction, Objects, PythonAction, Run, array_of
from wayfare.ir.plan.buffers import View, is_contiguous, new_view
from wayfare.ir.target import Target

Attrs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """How an op is written as commands.

    `commands(attrs, reads, writes, threads, scratch)` returns them. All operands are contiguous; an output that is not
    used is None. Raises `Unsuited` if the op has no native form for these operands.
    """

    commands: Callable[[Attrs, Sequence[BufferView], Sequence[BufferView | None], int, Scratch], list[Command]]


FORMS: dict[str, Form] = {}


class NativeAction(PythonAction):
    """An op with a native form."""

    def __init__(
        self, form: Form, op: Op, attrs: Attrs, reads: Sequence[View], outputs: Sequence[View | None]
    ) -> None:
        super().__init__(op, attrs, reads, [view for view in outputs if view is not None])
        self._form, self._outputs = form, list(outputs)

    def enter(self, commands: Commands) -> bool:
        """As the commands of its form."""
        reads = [view.resolve() for view in self.reads]
        writes = [None if view is None else view.resolve() for view in self._outputs]
        form, attrs = self._form, self.attrs
        return commands.routine(lambda threads, scratch: form.commands(attrs, reads, writes, threads, scratch))

    def python(self, target: Target) -> Run:
        """Run the forward of the record, and copy its results."""
        forward, attrs = target.forward(self.op, [view.dtype for view in self.reads]), self.attrs
        inputs = [array_of(view, target) for view in self.reads]
        outs = [None if view is None else array_of(view, target) for view in self._outputs]

        def run(objects: Objects, _given: Sequence[Any]) -> None:
            made = forward(*[find(objects) for find in inputs], **attrs)
            for out, array in zip(outs, made if made.__class__ is tuple else (made,), strict=True):
                if out is not None:
                    target.copy(out(objects), array)

        return run


class CheckAction(PythonAction):
    """An op that only checks its input and raises. Its record may say in the loop language which elements are wrong."""

    def __init__(self, op: Op, attrs: Attrs, reads: Sequence[View]) -> None:
        super().__init__(op, attrs, reads, [])

    def enter(self, commands: Commands) -> bool:
        """On a device: as a loop that sets a flag, which is read with the next value. On the CPU a list ends here."""
        watch = getattr(commands, "watch", None)
        return watch is not None and watch(self.op.name, self.attrs, lambda: self.enter_check(commands))

    def enter_check(self, commands: Commands) -> BufferView | None:
        """Add a loop that tells whether any element is wrong; returns where it writes that, or None without one."""
        (view,) = self.reads
        dtype = OF_NUMPY.get(view.dtype)
        if self.op.expression is None or dtype is None or 0 in view.shape or not view.shape:
            return None
        numbers: list[tuple[Any, str]] = []

        def parameter(value: Any, kind: str) -> Expr:
            numbers.append((value, kind))
            return load(len(numbers), kind)

        wrong = self.op.expression((load(0, dtype),), self.attrs, parameter)
        given = (Operand(dtype), *[Operand(kind) for _, kind in numbers])
        loop = Loop(self.op.name, given, (Operand("bool", per_row=True),), (Stage((), (Reduction("any", wrong),)),),
                    ((0, reduction(0, "bool")),))  # fmt: skip
        ones = (1,) * view.ndim
        operands = [commands.own(np.full(ones, value, NUMPY[kind])) for value, kind in numbers]
        found = commands.own(np.zeros(ones, np.bool_))
        axes = tuple(range(view.ndim))
        entered = commands.kernel(kernel.build(loop), view.shape, axes, [view.resolve(), *operands], [found])
        return found if entered else None


def native_actions(step: Step, reads: Sequence[View], writes: Sequence[View], used: Sequence[bool]) -> list[Action]:
    """The actions of a step with a native form; empty if it has none."""
    op = step.op
    form = FORMS.get(op.name) if op is not None and kernel.available() and not has_slots(step.attrs) else None
    if form is None or op is None or any(0 in view.shape for view in (*reads, *writes)):
        return []
    try:
        # Only to see whether there is a form: the buffers are not placed yet.
        whole = [BufferView(0, 0, s.shape, new_view(s.shape, s.dtype).strides, s.dtype) for s in (*reads, *writes)]
        given = [place if wanted else None for place, wanted in zip(whole[len(reads) :], used, strict=True)]
        form.commands(step.attrs, whole[: len(reads)], given, 1, Scratch())
    except Unsuited:
        return []
    before: list[Action] = []
    after: list[Action] = []
    inputs: list[View] = []
    for view in reads:
        inputs.append(view if is_contiguous(view) else new_view(view.shape, view.dtype))
        if inputs[-1] is not view:
            before.append(CopyAction(view, inputs[-1]))
    outputs: list[View | None] = []
    for view, wanted in zip(writes, used, strict=True):
        own = view if is_contiguous(view) else new_view(view.shape, view.dtype)
        outputs.append(own if wanted else None)
        if wanted and own is not view:
            after.append(CopyAction(own, view))
    return [*before, NativeAction(form, op, step.attrs, inputs, outputs), *after]


# -- windows over images ----------------------------------------------------------------------------------------------


def _convolution(
    attrs: Attrs, reads: Sequence[BufferView], writes: Sequence[BufferView | None], threads: int, scratch: Scratch
) -> list[Command]:
    x, weight, *bias = reads
    (out,) = writes
    groups = attrs["groups"]
    # Depthwise convolutions have another implementation.
    fits = len({p.dtype for p in (*reads, out) if p is not None}) == 1
    if out is None or not fits or groups == x.shape[1] == weight.shape[0] or x.shape[1] != weight.shape[1] * groups:
        raise Unsuited
    slide = Slide(weight.shape[2:], attrs["stride"], attrs["padding"], attrs["dilation"], out.shape[2:])
    return convolution_commands(x, weight, bias[0] if bias else None, out, slide, groups, threads, scratch)


def _largest(
    attrs: Attrs, reads: Sequence[BufferView], writes: Sequence[BufferView | None], threads: int, scratch: Scratch
) -> list[Command]:
    (x,) = reads
    values, places = writes
    slide = Slide(attrs["kernel"], attrs["stride"], attrs["padding"], attrs["dilation"], attrs["counts"])
    if math.prod(slide.kernel) * math.prod(slide.counts) > LONGEST_TABLE:
        raise Unsuited
    shape = (*x.shape[:2], *slide.counts)
    values = scratch.allocate(shape, x.dtype) if values is None else values
    places = scratch.allocate(shape, np.dtype(np.int64)) if places is None else places
    return max_pool_commands(x, values, places, window_table(x.shape[2:], slide), threads)


FORMS["conv"] = FORMS["conv_bias"] = Form(_convolution)
FORMS["max_pool"] = Form(_largest)

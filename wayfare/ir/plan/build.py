"""From a lowered graph to the actions of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.codegen.runtime import kernel
from wayfare.core.numpy_math import Array
from wayfare.ir.assemble import numpy_key, placed
from wayfare.ir.fuse.emit import Given, emit
from wayfare.ir.fuse.partition import Group, Map
from wayfare.ir.fuse.update_op import of_update
from wayfare.ir.graph import Step, Value, in_order
from wayfare.ir.plan.actions import (  # fmt: skip
    Action,
    CopyAction,
    KernelAction,
    MatmulAction,
    PythonAction,
    UpdateAction,
)
from wayfare.ir.plan.buffers import Buffer, BufferAssignment, View, contiguous_strides, new_view
from wayfare.ir.plan.early_updates import early_updates
from wayfare.ir.plan.groups import NearPartition, is_one_row
from wayfare.ir.plan.lower import accumulations, is_matmul, uses_of
from wayfare.ir.plan.memory import with_zeros
from wayfare.ir.plan.native import CheckAction, native_actions
from wayfare.ir.plan.rematerialise import Rematerialisation
from wayfare.ir.target import target_of

# The smallest buffer that is worth a kernel to free it earlier, in bytes. (A launch on a device copies megabytes.)
WORTH, WORTH_ON_DEVICE = 1 << 18, 1 << 26
# A kernel is named after this many of its ops.
_NAMED = 3


class Builder:
    """The actions that compute some lowered values, and the buffer assignment of all values."""

    def __init__(self, inputs: Sequence[Value], outputs: Sequence[Value], samples: Sequence[Array]) -> None:
        steps = in_order([*inputs, *outputs])
        self._uses = uses = uses_of(steps, outputs)
        self.assignment = BufferAssignment(steps, inputs, samples)
        self._accumulated = accumulations(steps, uses)
        self._zeros: list[View] = []
        self._actions: list[Action] = []
        # The values that loops store, by buffer.
        self._made: dict[Buffer, Value] = {}
        partition = NearPartition(outputs, self.assignment, self._accumulated)
        stored = partition.stores()
        for item in partition.order:
            if isinstance(item, Step):
                self._single(item)
                continue
            wanted = [v for v in item.members if v in stored]
            if wanted:
                self._kernel(partition, item, wanted)
        worth = WORTH if target_of(samples).native else WORTH_ON_DEVICE
        actions = early_updates(with_zeros(self._actions, self._zeros), worth)
        kept = {self.assignment[v].buffer.real for v in outputs}

        def rematerialise(group: Group, v: Value, view: View) -> KernelAction:
            return self._loop(partition, group, [v], [view], f"{v.step.name}_remat")

        view_of = self.assignment.__getitem__
        self.actions = Rematerialisation(actions, self._made, kept, partition, rematerialise, view_of, worth).actions()

    # -- kernels

    def _kernel(self, partition: NearPartition, group: Group, wanted: list[Value]) -> None:
        names = dict.fromkeys(v.step.name for v in group.members)
        views = [self.assignment[v] for v in wanted]
        made = self._loop(partition, group, wanted, views, "_".join(list(names)[-_NAMED:]))
        made.ops = tuple([v.step.name for v in group.members])
        if made.axes and len(made.axes) > 1:
            made.reads = [self._in_one_row(view, made.axes, made.shape) for view in made.reads]
        self._actions.append(made)
        self._made.update((self.assignment[v].buffer.real, v) for v in wanted)

    def _loop(
        self, partition: NearPartition, group: Group, wanted: list[Value], views: list[View], name: str
    ) -> KernelAction:
        emitted = emit(partition, group, wanted, name)
        shape = group.shape
        reads = [self._operand(given, len(shape)) for given in emitted.inputs]
        writes = []
        for v, view in zip(wanted, views, strict=True):
            own = group.maps[v]
            writes.append(_along(view, own, tuple(n if a in own else 1 for a, n in enumerate(shape))))
        return KernelAction(kernel.build(emitted.loop), shape, group.reduced or None, reads, writes)

    def _in_one_row(self, view: View, axes: tuple[int, ...], shape: tuple[int, ...]) -> View:
        """An operand of a reduction over several axes: a copy, if its strides do not let them be walked as one axis."""
        if is_one_row(view, tuple(range(view.ndim)), axes):
            return view
        full = view.as_strided(shape, tuple(0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True)))
        own = new_view(shape, view.dtype)
        self._actions.append(CopyAction(full, own))
        return own

    def _operand(self, given: Given, rank: int) -> View:
        if given.value is None:
            number = np.full((1,) * rank, given.number, given.dtype)
            buffer = Buffer("constant", number.nbytes, len(self.assignment.constants))
            self.assignment.constants.append(number)
            return View(buffer, 0, number.shape, number.strides, number.dtype)
        view = self.assignment[given.value]
        full = [1] * rank
        for n, a in zip(given.value.shape, given.own, strict=True):
            if a >= 0:
                full[a] = n
        return _along(view, given.own, tuple(full))

    # -- single steps

    def _single(self, step: Step) -> None:
        op = step.op
        assert op is not None
        views = self.assignment
        reads, writes = [views[v] for v in step.inputs], [views[v] for v in step.outputs]
        if op.family == "check":
            check = CheckAction(op, step.attrs, reads)
            # A check of an input runs first, so that it does not split a list of native actions.
            self._actions.insert(0 if reads[0].buffer.kind == "input" else len(self._actions), check)
        elif step.outputs[0] in views.copies and 0 not in step.outputs[0].shape:
            # The same elements in the same order: contiguous in either shape.
            target = writes[0].as_strided(reads[0].shape, contiguous_strides(reads[0].shape, reads[0].dtype))
            self._actions.append(CopyAction(reads[0], target))
        elif step.outputs[0] in self._accumulated:
            self._accumulate(*self._accumulated[step.outputs[0]], writes[0])
        elif is_matmul(step):
            self._matmul(step, writes[0], False)
        elif step.outputs[0] in views.assembled:
            self._assembly(step, writes[0])
        elif op.family == "update":
            self._actions.append(UpdateAction(of_update(op), step.attrs["numbers"], reads, writes))
        else:
            used = [v in self._uses for v in step.outputs]
            self._actions += native_actions(step, reads, writes, used) or self._python(step, reads, writes)

    def _matmul(self, step: Step, out: View, add: bool) -> None:
        a, b = (self.assignment[v] for v in step.inputs)
        assert step.op is not None
        if step.op.gemm == "nt":
            b = b.as_strided(b.shape[::-1], b.strides[::-1])
        self._actions.append(MatmulAction(a, b, out, add))

    def _accumulate(self, x: Value, matmul: Value, out: View) -> None:
        """Add a matmul to a value, in place if possible."""
        view = self.assignment[x]
        if view.is_whole and out.is_whole and view.buffer.kind == "arena":
            out.buffer.become(view.buffer.real)
        else:
            self._actions.append(CopyAction(view, out))
        self._matmul(matmul.step, out, True)

    def _assembly(self, step: Step, out: View) -> None:
        """Copy the parts that were not computed in place."""
        if not self.assignment.assembled[step.outputs[0]]:
            self._zeros.append(out)
        for v, index in zip(step.inputs, placed(step.op, step.attrs) or (), strict=True):
            view, target = self.assignment[v], _part(out, index)
            if (view.buffer, view.offset, view.strides) != (target.buffer, target.offset, target.strides):
                self._actions.append(CopyAction(view, target))

    def _python(self, step: Step, reads: list[View], writes: list[View]) -> list[Action]:
        made: list[View] = []
        copies: list[Action] = []
        for view in writes:
            own = new_view(view.shape, view.dtype, "slot")
            if view.is_whole:
                view.buffer.become(own.buffer)
            else:
                # One part of a larger array.
                copies.append(CopyAction(own, view))
            made.append(own)
        assert step.op is not None
        return [PythonAction(step.op, step.attrs, reads, made), *copies]


def _along(view: View, own: Map, shape: tuple[int, ...]) -> View:
    """A view with one dimension for each axis of a group."""
    strides = [0] * len(shape)
    for stride, a in zip(view.strides, own, strict=True):
        if a >= 0:
            strides[a] = stride
    return view.as_strided(shape, tuple(strides))


def _part(out: View, index: Any) -> View:
    """The part of a view that a basic index names."""
    key = numpy_key(index)
    offset, shape, strides, axis = out.offset, [], [], 0
    for entry in key:
        if entry is Ellipsis:
            break
        if entry is None:
            shape.append(1)
            strides.append(0)
            continue
        stride = out.strides[axis]
        if isinstance(entry, slice):
            span = range(out.shape[axis])[entry]
            offset += span.start * stride
            shape.append(len(span))
            strides.append(stride * span.step)
        else:
            offset += entry * stride
        axis += 1
    return View(out.buffer, offset, (*shape, *out.shape[axis:]), (*strides, *out.strides[axis:]), out.dtype)

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
    ProductAction,
    PythonAction,
    UpdateAction,
)
from wayfare.ir.plan.buffers import Memory, Seat, Seating, fresh, row_strides
from wayfare.ir.plan.groups import NearPartition, is_one_row
from wayfare.ir.plan.lower import accumulations, is_product, uses_of
from wayfare.ir.plan.memory import with_zeros
from wayfare.ir.plan.native import native_actions
from wayfare.ir.plan.rematerialise import Again

# Ops that name a kernel after themselves, and how many of them.
_NAMED = 3


class Builder:
    """The actions that compute some lowered values, and the seats of everything."""

    def __init__(self, inputs: Sequence[Value], outputs: Sequence[Value], samples: Sequence[Array]) -> None:
        steps = in_order([*inputs, *outputs])
        self._uses = uses = uses_of(steps, outputs)
        self.seating = Seating(steps, inputs, samples)
        self._accumulated = accumulations(steps, uses)
        self._zeros: list[Seat] = []
        self._actions: list[Action] = []
        # What loops have made, by its memory.
        self._made: dict[Memory, Value] = {}
        partition = NearPartition(outputs, self.seating, self._accumulated)
        stored = partition.stores()
        for item in partition.order:
            if isinstance(item, Step):
                self._single(item)
                continue
            wanted = [v for v in item.members if v in stored]
            if wanted:
                self._kernel(partition, item, wanted)
        actions = with_zeros(self._actions, self._zeros)
        kept = {self.seating[v].memory.real for v in outputs}

        def again(group: Group, v: Value, seat: Seat) -> KernelAction:
            return self._loop(partition, group, [v], [seat], f"{v.step.name}_again")

        self.actions = Again(actions, self._made, kept, partition, again, self.seating.__getitem__).actions()

    # -- kernels

    def _kernel(self, partition: NearPartition, group: Group, wanted: list[Value]) -> None:
        names = dict.fromkeys(v.step.name for v in group.members)
        made = self._loop(partition, group, wanted, [self.seating[v] for v in wanted], "_".join(list(names)[-_NAMED:]))
        made.ops = tuple([v.step.name for v in group.members])
        if made.axes and len(made.axes) > 1:
            made.reads = [self._in_one_row(seat, made.axes, made.shape) for seat in made.reads]
        self._actions.append(made)
        self._made.update((self.seating[v].memory.real, v) for v in wanted)

    def _loop(
        self, partition: NearPartition, group: Group, wanted: list[Value], seats: list[Seat], name: str
    ) -> KernelAction:
        emitted = emit(partition, group, wanted, name)
        shape = group.shape
        reads = [self._operand(given, len(shape)) for given in emitted.inputs]
        writes = []
        for v, seat in zip(wanted, seats, strict=True):
            own = group.maps[v]
            writes.append(_along(seat, own, tuple(n if a in own else 1 for a, n in enumerate(shape))))
        return KernelAction(kernel.build(emitted.loop), shape, group.folded or None, reads, writes)

    def _in_one_row(self, seat: Seat, axes: tuple[int, ...], shape: tuple[int, ...]) -> Seat:
        """An operand of rows of several axes: a copy, where it cannot be walked along them in one go."""
        if is_one_row(seat, tuple(range(seat.ndim)), axes):
            return seat
        full = seat.seen(shape, tuple(0 if n == 1 else s for n, s in zip(seat.shape, seat.strides, strict=True)))
        own = fresh(shape, seat.dtype)
        self._actions.append(CopyAction(full, own))
        return own

    def _operand(self, given: Given, rank: int) -> Seat:
        if given.value is None:
            number = np.full((1,) * rank, given.number, given.dtype)
            memory = Memory("constant", number.nbytes, len(self.seating.constants))
            self.seating.constants.append(number)
            return Seat(memory, 0, number.shape, number.strides, number.dtype)
        seat = self.seating[given.value]
        full = [1] * rank
        for n, a in zip(given.value.shape, given.own, strict=True):
            if a >= 0:
                full[a] = n
        return _along(seat, given.own, tuple(full))

    # -- single steps

    def _single(self, step: Step) -> None:
        op = step.op
        assert op is not None
        seats = self.seating
        reads, writes = [seats[v] for v in step.inputs], [seats[v] for v in step.outputs]
        if op.family == "check":
            check = PythonAction(op, step.attrs, reads, [])
            # What can be looked at from the beginning does not part the native actions.
            self._actions.insert(0 if reads[0].memory.kind == "input" else len(self._actions), check)
        elif step.outputs[0] in seats.copies and 0 not in step.outputs[0].shape:
            # Of the same elements in the same order: row after row, in either shape.
            target = writes[0].seen(reads[0].shape, row_strides(reads[0].shape, reads[0].dtype))
            self._actions.append(CopyAction(reads[0], target))
        elif step.outputs[0] in self._accumulated:
            self._accumulate(*self._accumulated[step.outputs[0]], writes[0])
        elif is_product(step):
            self._product(step, writes[0], False)
        elif step.outputs[0] in seats.assembled:
            self._assembly(step, writes[0])
        elif op.family == "update":
            self._actions.append(UpdateAction(of_update(op), step.attrs["numbers"], reads, writes))
        else:
            used = [v in self._uses for v in step.outputs]
            self._actions += native_actions(step, reads, writes, used) or self._python(step, reads, writes)

    def _product(self, step: Step, out: Seat, add: bool) -> None:
        a, b = (self.seating[v] for v in step.inputs)
        assert step.op is not None
        if step.op.gemm == "nt":
            b = b.seen(b.shape[::-1], b.strides[::-1])
        self._actions.append(ProductAction(a, b, out, add))

    def _accumulate(self, x: Value, product: Value, out: Seat) -> None:
        """Add a product to what is there, in its own memory."""
        seat = self.seating[x]
        if seat.is_whole and out.is_whole and seat.memory.kind == "arena":
            out.memory.become(seat.memory.real)
        else:
            self._actions.append(CopyAction(seat, out))
        self._product(product.step, out, True)

    def _assembly(self, step: Step, out: Seat) -> None:
        """Put what is not there yet into its place."""
        if not self.seating.assembled[step.outputs[0]]:
            self._zeros.append(out)
        for v, index in zip(step.inputs, placed(step.op, step.attrs) or (), strict=True):
            seat, target = self.seating[v], _part(out, index)
            if (seat.memory, seat.offset, seat.strides) != (target.memory, target.offset, target.strides):
                self._actions.append(CopyAction(seat, target))

    def _python(self, step: Step, reads: list[Seat], writes: list[Seat]) -> list[Action]:
        made: list[Seat] = []
        copies: list[Action] = []
        for seat in writes:
            own = fresh(seat.shape, seat.dtype, "slot")
            if seat.is_whole:
                seat.memory.become(own.memory)
            else:
                # One part of a larger array.
                copies.append(CopyAction(own, seat))
            made.append(own)
        assert step.op is not None
        return [PythonAction(step.op, step.attrs, reads, made), *copies]


def _along(seat: Seat, own: Map, shape: tuple[int, ...]) -> Seat:
    """A value as it lies along the axes of a group."""
    strides = [0] * len(shape)
    for stride, a in zip(seat.strides, own, strict=True):
        if a >= 0:
            strides[a] = stride
    return seat.seen(shape, tuple(strides))


def _part(out: Seat, index: Any) -> Seat:
    """The part of a seat that a basic index names."""
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
    return Seat(out.memory, offset, (*shape, *out.shape[axis:]), (*strides, *out.strides[axis:]), out.dtype)

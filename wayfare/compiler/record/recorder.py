"""The recorder: the executor that runs the first calls of a compiled function eagerly and records every op.

Every op runs at once on real arrays, and Python takes its branches as usual; meanwhile a graph of steps is built. Where
Python reads a value, the recording is cut into blocks, and the value is noted (`Decision`).
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from wayfare.compiler.captures.bytecode import is_returned
from wayfare.compiler.record.backward import RecordedPass
from wayfare.compiler.record.graph import like
from wayfare.compiler.record.memory import ArrayState
from wayfare.compiler.record.recorder_state import KEEP_HISTORY, Decision, Draw, GiveUp, GradSlot, RecorderState
from wayfare.core.callsite import user_frame
from wayfare.core.device import copied, zeros_on_device_of
from wayfare.core.dispatch import apply
from wayfare.core.executor import CallOut, Interceptor
from wayfare.core.grad_layout import in_layout_of
from wayfare.core.mode import STATE, called_by_user, current
from wayfare.core.node import Node
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, Op
from wayfare.core.quiet import quietly
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.walk import reachable, split_edge
from wayfare.core.write_clock import note_write, owner_of
from wayfare.ir.fuse.update_op import update_op
from wayfare.ir.graph import Slot, Value

__all__ = ["NO_DECISION", "Decision", "Draw", "GiveUp", "Recorder", "outcome_of"]

# Reads that do not depend on the numbers.
NO_DECISION = frozenset({"repr()", "stride()", "is_contiguous()", "as_strided()"})
# Reads after which Python may see or change what cannot be recorded.
_REFUSED = {
    "numpy()": "it gives the memory of a tensor to NumPy; use .tolist(), or do it outside",
    "data_ptr()": "it reads the address of a tensor",
    "storage_offset()": "it reads the storage offset of a tensor",
    "pickle": "it pickles a tensor",
}
# Families of ops that raise an error for some numbers: an index out of range, a singular matrix.
_MAY_FAIL = frozenset({"indexing", "check", "linear algebra", "loss", "segments"})
_ADD = REGISTRY["add"]


class Recorder(RecorderState, Interceptor):
    """The executor while a function is recorded."""

    works_on_rows = False
    allows_batches = True

    # -- the executor

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Run and record one op. The call audit is paused: watching our own calls would take most of the time."""
        profiler = sys.getprofile()
        if profiler is None:
            return self._apply(op, inputs, attrs)
        sys.setprofile(None if self.audit is None else self.audit.before)
        try:
            return self._apply(op, inputs, attrs)
        finally:
            sys.setprofile(profiler)

    def _apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        knowns: list[ArrayState] = []
        with self.entering() as going:
            if going:
                self._check_writes()
                knowns = [self.known(t) for t in inputs]
                values = [self.arrays.value(k) for k in knowns]
        with self.plain():
            made = apply(op, inputs, attrs)
        outputs = made if made.__class__ is tuple or made.__class__ is list else (made,)
        with self.entering() as going:
            if going:
                recording = current().grad
                # In a backward pass tensors have no history, but gradients of the gradient may pass through them.
                bare = self.passing and not recording
                cut = () if bare else tuple([not (recording and t._requires_grad) for t in inputs])
                viewed = knowns[0] if knowns and op.view else None
                self.enter(op, values, attrs, [t._array for t in outputs], viewed, cut)
                if op.family in _MAY_FAIL:
                    self.may_fail.append(self.arrays.value(self.known(outputs[0])))
        return made

    def is_contiguous(self, t: Tensor) -> bool:
        """Is a tensor contiguous?"""
        return bool(t._array.flags.c_contiguous)

    def is_copy(self, out: Tensor) -> bool:
        """Did a reshape have to copy? Ops run here as in eager mode, so it can be told."""
        return out._view is None

    def picked(self, x: Tensor, index: Any, out: Tensor) -> None:
        """`x[i]` with a tensor `i`: a view in eager mode, but a copy here, until the difference can be noticed."""
        self.copies_of_parts[id(out)] = (weakref.ref(out), x, index)

    def show_parts(self, written: Tensor | None = None) -> None:
        """Turn these copies into views, as in eager mode, before the difference can be noticed: when a copy or its
        source is written, or when a copy is still alive at the end of the call. Such a call cannot be replayed."""
        found = [(out, x, index) for copy, x, index in self.copies_of_parts.values() if (out := copy()) is not None]
        if written is not None:
            memory = owner_of(written._array)
            if not any(out is written or owner_of(x._array) is memory for out, x, _ in found):
                return
        for out, x, index in found:
            with self.plain():
                place: list[Any] = [slice(None)] * x.ndim
                for dim, number in index:
                    place[dim] = int(number._array.item())
                view = x[tuple(place)]
            out._array, out._view = view._array, view._view
            out._edge = view._edge if out._requires_grad else None
        self.copies_of_parts.clear()
        if found:
            self.give_up("it relies on x[i], where i is a tensor, being a view of x")

    def not_replayable(self, reason: str) -> None:
        """The function does something that a replay cannot repeat or notice."""
        self.give_up(reason)

    def unseen_input(self, reason: str) -> None:
        """The call reads something that a replay would not see."""
        self.give_up(reason)

    def step_state_used(self, owner: Any, name: str) -> None:
        """The user's code reads an attribute of an optimiser that changes with every step."""
        if called_by_user(3):
            self.give_up(f"it reads or sets `{name}` of {type(owner).__name__}, which changes with every step")

    def flag_set(self, t: Tensor, what: str) -> None:
        """A property of a tensor is set. For a captured tensor or an argument, a replay would not repeat that."""
        with self.entering() as going:
            if going and self.source_of(t) is not None:
                self.give_up(f"it sets {what} of a tensor from outside")
        self.new_leaves += 1

    def custom_recorded(self, name: str) -> None:
        """A custom Function has become a node of the graph."""
        self.customs.append(name)

    def read(self, tensor: Tensor, how: str) -> Any:
        """Python reads a value: record a decision."""
        array = tensor._array
        if how in _REFUSED:
            self.give_up(_REFUSED[how])
        elif how == "repr()" and not (self.audit is not None and self.audit.quiet):
            self.give_up("it converts a tensor to text")
        if how not in NO_DECISION and not how.startswith("the index of"):
            with self.entering() as going:
                if going:
                    self._check_writes()
                    known = self.known(tensor)
                    value = self.arrays.value(known)
                    frame = user_frame(1)
                    if how == "item()" and array.size == 1 and is_returned(frame, self.code):
                        self.returned = tensor
                    elif value.step.name not in ("number", "array"):
                        line = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
                        self.decisions.append(Decision(value, how, outcome_of(array, how), line, len(self.slots)))
        return array

    def write(self, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
        """Write in place, and record the new value of the memory."""
        if self.copies_of_parts:
            self.show_parts(tensor)
        with self.entering() as going:
            if going:
                self._check_writes()
                source = self.known(result)
                value = self.arrays.value(source)
                known = self.known(tensor)
                old = self.arrays.value(known)
        copies: list[tuple[Any, Any]] = []
        STATE.copies = copies
        try:
            with self.plain():
                move(tensor, result)
        finally:
            STATE.copies = None
        with self.entering() as going:
            if going:
                for array, copy in copies:
                    seen = self.arrays.find(array)
                    self.arrays.own(copy, old if seen is None else self.arrays.value(seen))
                target = tensor._array
                before = known.memory.value
                self.arrays.write(known, self._expand(self._cast(value, target.dtype), target.shape))
                if not (current().grad and tensor._requires_grad):
                    self._keep_history(known, before)
        self.mark_writes()

    def _keep_history(self, known: ArrayState, before: Value) -> None:
        """A write without grad mode, or through a detached tensor, changes the values of a tensor but not its autograd
        history: record that."""
        memory = known.memory
        base = like(before.shape, before.dtype)
        (memory.value,) = self.step(KEEP_HISTORY, (memory.value, before), {}, (base,))
        memory.version += 1

    def _check_writes(self) -> None:
        """Give up if memory was written in a way that the recorder did not see."""
        if self._writes.is_surprised(self.arrays.owners):
            raise GiveUp("it writes to the memory of a tensor in a way that cannot be recorded")

    def written_past_ops(self) -> None:
        """A custom Function has written to memory, and said so."""
        self.mark_writes()

    def mark_writes(self) -> None:
        """A write was recorded."""
        self._writes.renew()

    # -- backward passes

    def backward(self, roots: Any, *, retain: bool, create: bool, capture: Any, accumulate: bool) -> bool:
        """A backward pass inside the function. One whose rules are ops (`create`) is recorded op by op."""
        if create:
            self.stays_inside(roots, capture)
            return False
        with self.entering() as going:
            if going:
                self._check_writes()
        with quietly(), self.unseen() if _is_all_ours(roots) else nullcontext():
            RecordedPass(self, retain, capture, accumulate).run(roots)
        self.mark_writes()
        return True

    def stays_inside(self, roots: Sequence[tuple[Any, Any]], capture: Any) -> None:
        """Give up if a backward pass that is recorded op by op would continue into the graph from before the call."""
        edges = [edge for node in reachable([e for e, _ in roots], self.start)[0] for edge in node.edges]
        for target in [split_edge(edge)[0] for edge in (*edges, *[e for e, _ in roots])]:
            if isinstance(target, Node) and target.number < self.start and (
                capture is None or target not in capture.nodes
            ):  # fmt: skip
                self.give_up("backward() continues into the graph of a tensor computed outside the function")
                return

    def enter_seed(self, array: Array) -> None:
        """Record the start of a backward pass: a given gradient, or the number 1."""
        with self.entering() as going:
            if going:
                if self.arrays.find(array) is None:
                    if array.size != 1 or array.item() != 1:
                        raise GiveUp("backward() starts from values that were not computed by tensor operations")
                    self.arrays.own(array, self.graph.constant(array))
                    self._alive.append(array)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
        """Zeros in place of a missing gradient."""
        array = zeros_on_device_of(like, shape, dtype)
        with self.entering() as going:
            if going:
                self.arrays.own(array, self.graph.constant(array))
        return array

    def copied(self, array: Array, like: Array | None = None) -> Tensor:
        """A tensor with a copy of an array; with `like`, in the memory layout of that array."""
        copy = copied(array if like is None else in_layout_of(array, like))
        self.array_copied(array, copy)
        return wrap(copy)

    def array_copied(self, array: Array, copy: Array) -> None:
        """An array was copied: the copy holds the same value."""
        with self.entering() as going:
            if going:
                self.arrays.own(copy, self.array_value(array))

    def own_gradient(self, g: Tensor) -> Tensor:
        """The pass makes arrays of its own, and must know whose values they are."""
        return g

    def add_into(self, t: Tensor, array: Array) -> None:
        """Add an array to a tensor in place."""
        with self.entering() as going:
            if going:
                known = self.known(t)
                values = (self.arrays.value(known), self.array_value(array))
        np.add(t._array, array, out=t._array)
        note_write(t._array)
        self.mark_writes()
        with self.entering() as going:
            if going:
                self.arrays.write(known, self.step(_ADD, values, {}, (t._array,))[0])

    # -- `.grad` of arguments and captured tensors

    def grad_read(self, t: Tensor) -> None:
        """`t.grad` is read."""
        with self.entering() as going:
            if going:
                slot = self._grad_slot(t)
                if slot is None or slot.written or slot.read:
                    return
                slot.read = True
                grad = t._grad
                if grad is not None:
                    slot.entry = self.graph.source("grad", slot.owner, grad._array)
                    slot.final = grad
                    self._enter_source(slot.entry, grad)

    def grad_written(self, t: Tensor, grad: Tensor | None) -> None:
        """`t.grad` was set."""
        with self.entering() as going:
            if going:
                slot = self._grad_slot(t)
                if slot is not None:
                    slot.written = True
                    slot.final = grad

    def _grad_slot(self, t: Tensor) -> GradSlot | None:
        found = self.grads.get(id(t))
        if found is None:
            source = self.source_of(t)
            if source is None:
                return None
            found = self.grads[id(t)] = GradSlot(source)
            self._alive.append(t)
        return found

    # -- optimisers and random numbers

    def call_out(self, make: Callable[[], CallOut], run: Callable[[], Any]) -> Any:
        """Python with a state of its own: every replay runs it."""
        call = make()
        with self.calling(call):
            return call.take()

    @contextmanager
    def calling(self, call: CallOut) -> Iterator[None]:
        """What runs inside this context is a call-out: Python that runs again at every replay."""
        self.calls.append((call, len(self.decisions)))
        before, self._call = self._call, [len(self.calls) - 1, 0]
        try:
            with self.unseen():
                yield
        finally:
            self._call = before

    def update(self, update: Any, written: list[Tensor], read: list[Tensor], numbers: Sequence[float]) -> None:
        """A fused update of parameters in place."""
        numbers = tuple(map(float, numbers))
        with self.entering() as going:
            if going:
                self._check_writes()
                knowns = [self.known(t) for t in (*written, *read)]
                values = [self.arrays.value(k) for k in knowns]
        with self.plain():
            update([t._array for t in written], [t._array for t in read], numbers)
        with self.entering() as going:
            if going:
                given: Any = numbers
                if self._call is not None:
                    self.slots.append(tuple(self._call))
                    given = Slot(len(self.slots) - 1)
                    self._call[1] += 1
                op = update_op(update, len(written) // len(update.written))
                made = self.step(op, values, {"numbers": given}, [t._array for t in written])
                for known, value in zip(knowns, made, strict=False):
                    self.arrays.write(known, value)
        self.mark_writes()

    def before_update(self, name: str) -> None:
        """Updates are recorded."""

    def generator_state_read(self, state: Tensor) -> None:
        """Remember that it was taken in this call."""
        state._more()["taken_under"] = self

    def generator_state_set(self, state: Tensor) -> None:
        """A state that was taken in the same call only says how far to go back. Otherwise a recorded call draws from
        where its generators stand, and cannot be replayed if it puts them somewhere itself."""
        if (state._extras or {}).get("taken_under") is not self:
            self.give_up("the state of a generator is set to one from outside the function")

    def draw(self, generator: Any, key: tuple[int, int]) -> None:
        """A random key was taken."""
        if (id(generator), key) in self._drawn:
            return
        if id(generator) not in self.states:
            # The first key of a generator is its state before the call.
            self.states[id(generator)] = (generator, key)
        seed, calls = self.states[id(generator)][1]
        offset = key[1] - calls if key[0] == seed and key[1] >= calls else None
        self.slots.append(Draw(generator, key, offset))
        self._drawn[id(generator), key] = len(self.slots) - 1


def _is_all_ours(roots: Sequence[tuple[Any, Any]]) -> bool:
    """Does a backward pass from these roots run only our own code: no hook, no custom Function?"""
    nodes, leaves = reachable([edge for edge, _ in roots])
    return not any(node.extras is not None or node.op.family == "custom" for node in nodes) and not any(
        leaf._extras for leaf in leaves
    )  # fmt: skip


def outcome_of(array: Array, how: str) -> Any:
    """The value that Python reads, in a form that can be compared and hashed."""
    if how == "bool()" and array.size == 1:
        return bool(array.item())
    if array.size == 1:
        return array.dtype.name, repr(array.item())
    return array.shape, array.dtype.char, hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest()

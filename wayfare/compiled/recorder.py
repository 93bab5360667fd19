"""Runs a function's ops as usual and writes down what they compute: the executor of a compiled function's first calls.

Nothing is pretended: every op runs at once, every branch of Python is taken for real. Beside it grows a graph of steps.
Where Python looks at a number the recording is cut, and the answer noted (`Decision`).
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from wayfare.backend.cpu import Array
from wayfare.backend.writes import latest_write, note_write
from wayfare.compiled.code import is_returned
from wayfare.compiled.graph import like
from wayfare.compiled.memory import Known
from wayfare.compiled.notes import RETOLD, Decision, Draw, GiveUp, GradSlot, Notes
from wayfare.compiled.passes import RecordedPass
from wayfare.eager import apply
from wayfare.fusion.plan import Slot
from wayfare.fusion.trace import Value
from wayfare.fusion.update_op import update_op
from wayfare.op import REGISTRY, Op
from wayfare.site import user_frame
from wayfare.state import STATE, current
from wayfare.tensor import Tensor, wrap

__all__ = ["NO_DECISION", "Decision", "Draw", "GiveUp", "Recorder", "outcome_of"]

# Looks that tell nothing of the numbers, or are meant for people.
NO_DECISION = frozenset({"repr()", "stride()", "storage_offset()", "is_contiguous()", "as_strided()", "data_ptr()"})
_ADD = REGISTRY["add"]


class Recorder(Notes):
    """The executor while a function is recorded."""

    records = True
    follows = False

    # -- the executor

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Run one op and enter it."""
        knowns: list[Known] = []
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
                # In a backward pass tensors have no history, though a gradient of the gradient may go through them.
                bare = self.passing and not recording
                cut = () if bare else tuple([not (recording and t._requires_grad) for t in inputs])
                viewed = knowns[0] if knowns and op.view else None
                self.enter(op, values, attrs, [t._array for t in outputs], viewed, cut)
                self.happened("apply", op, knowns, attrs, outputs, inputs)
        return made

    def happened(
        self, kind: str, op: Any, knowns: Sequence[Known], attrs: Any = None, outputs: Sequence[Tensor] = (),
        inputs: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        """Told of everything the function does, in its order; for those who want to follow it."""

    def detached(self, t: Tensor, alias: Tensor) -> None:
        """Told of another tensor on the same array; for those who want to know all that may be held."""

    def is_contiguous(self, t: Tensor) -> bool:
        """Do the rows of a tensor lie one after the other?"""
        return bool(t._array.flags.c_contiguous)

    def picked(self, x: Tensor, index: Any, out: Tensor) -> None:
        """`x[i]` with a number that is in a tensor: a view in plain Python, a copy here, where nobody looks at it."""
        self.copies_of_parts[id(out)] = (weakref.ref(out), x, index)

    def _write_back(self, tensor: Tensor) -> None:
        """A write to such a copy is meant for the tensor it was taken from."""
        copy, x, index = self.copies_of_parts.get(id(tensor), (None, None, None))
        if copy is not None and copy() is tensor:
            with self.plain():
                place: list[Any] = [slice(None)] * x.ndim
                for dim, number in index:
                    place[dim] = int(number._array.item())
                x[tuple(place)] = tensor
            self.give_up("it writes in place to x[i], where i is a tensor")

    def custom(self, name: str) -> None:
        """A custom Function was recorded as a node."""
        self.customs.append(name)

    def autograd(self, kind: str, function: Callable[..., Any], *args: Any) -> Any:
        """A call of `backward` or `grad`."""
        return function(*args)

    def read(self, tensor: Tensor, how: str) -> Any:
        """Python looks at a value: a decision."""
        array = tensor._array
        if self.decides(how):
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
                        self.happened("read", how, (known,))
                        self.decisions.append(Decision(value, how, self.outcome(array, how), line, len(self.slots)))
        return array

    def decides(self, how: str) -> bool:
        """Does Python learn anything of the numbers by looking in this way?"""
        return how not in NO_DECISION and not how.startswith("the index of")

    def outcome(self, array: Array, how: str) -> Any:
        """What Python learns by looking."""
        return outcome_of(array, how)

    def behind(self, tensor: Tensor) -> Tensor:
        """A tensor is itself here."""
        return tensor

    def write(self, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
        """Write in place, and enter what the memory holds now."""
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
        if self.copies_of_parts:
            self._write_back(tensor)
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
                self.happened("write", None, (known, source), None, (tensor,), (result,))
        self.mark_writes()

    def _keep_history(self, known: Known, before: Value) -> None:
        """Written where nothing is recorded, or through a detached tensor, memory has new values, and those who look at
        it their old history."""
        memory = known.memory
        base = like(before.shape, before.dtype)
        (memory.value,) = self.step(RETOLD, (memory.value, before), {}, (base,))
        memory.version += 1

    def _check_writes(self) -> None:
        """Memory may not change behind the recorder's back."""
        if latest_write[0] != self._writes:
            raise GiveUp("it writes to the memory of a tensor in a way that cannot be recorded")

    def mark_writes(self) -> None:
        """A write was entered."""
        self._writes = latest_write[0]

    # -- what a backward pass does

    def backward(self, roots: Any, *, retain: bool, capture: Any, accumulate: bool) -> None:
        """A backward pass inside the function."""
        with self.entering() as going:
            if going:
                self._check_writes()
        RecordedPass(self, retain, capture, accumulate).run(roots)
        self.mark_writes()

    def enter_seed(self, array: Array) -> None:
        """What a backward pass begins with: a gradient that was given, or the number 1."""
        with self.entering() as going:
            if going:
                if self.arrays.find(array) is None:
                    if array.size != 1 or array.item() != 1:
                        raise GiveUp("backward() begins with values that were not computed by tensor operations")
                    self.arrays.own(array, self.graph.constant(array))
                    self._alive.append(array)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Zeros for a gradient that did not come."""
        array = np.zeros(shape, dtype)
        with self.entering() as going:
            if going:
                self.arrays.own(array, self.graph.constant(array))
        return array

    def copied(self, array: Array) -> Tensor:
        """A tensor in memory of its own that holds what an array holds now."""
        copy = np.array(array)
        with self.entering() as going:
            if going:
                self.arrays.own(copy, self.array_value(array))
        return wrap(copy)

    def shown_again(self, array: Array, other: Array) -> None:
        """Another array object on the whole memory of a known one."""
        with self.entering() as going:
            if going:
                found = self.arrays.find(array)
                if found is not None:
                    self.arrays.view(other, self.arrays.value(found), found, ())

    def add_into(self, t: Tensor, array: Array) -> None:
        """Add an array to a tensor's memory."""
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

    # -- gradients of tensors from outside

    def grad_read(self, t: Tensor) -> None:
        """Somebody looks at `t.grad`."""
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

    # -- what else happens in a training step

    @contextmanager
    def calling(self, call: Any) -> Iterator[None]:
        """What happens inside is Python that runs again at every replay."""
        self.calls.append((call, len(self.decisions)))
        before, self._call = self._call, [len(self.calls) - 1, 0]
        try:
            yield
        finally:
            self._call = before

    def update(self, update: Any, written: list[Tensor], read: list[Tensor], numbers: Sequence[float]) -> None:
        """A fused update of parameters in place."""
        with self.entering() as going:
            if going:
                self._check_writes()
                knowns = [self.known(t) for t in (*written, *read)]
                values = [self.arrays.value(k) for k in knowns]
        with self.plain():
            update([t._array for t in written], [t._array for t in read], numbers)
        with self.entering() as going:
            if going:
                given: Any = tuple(float(n) for n in numbers)
                if self._call is not None:
                    self.slots.append(tuple(self._call))
                    given = Slot(len(self.slots) - 1)
                    self._call[1] += 1
                op = update_op(update, len(written) // len(update.written))
                made = self.step(op, values, {"numbers": given}, [t._array for t in written])
                for known, value in zip(knowns, made, strict=False):
                    self.arrays.write(known, value)
                self.happened("update", update, knowns)
        self.mark_writes()

    def draw(self, generator: Any, key: tuple[int, int]) -> None:
        """A random key was taken."""
        if (id(generator), key) in self._drawn:
            return
        if id(generator) not in self.states:
            # The key is the first: the state before it is the key itself.
            self.states[id(generator)] = (generator, key)
        seed, calls = self.states[id(generator)][1]
        offset = key[1] - calls if key[0] == seed and key[1] >= calls else None
        self.slots.append(Draw(generator, key, offset))
        self._drawn[id(generator), key] = len(self.slots) - 1


def outcome_of(array: Array, how: str) -> Any:
    """What Python learns by looking, as something that can be compared."""
    if how == "bool()" and array.size == 1:
        return bool(array.item())
    if array.size == 1:
        return array.dtype.char, repr(array.item())
    return array.shape, array.dtype.char, hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest()

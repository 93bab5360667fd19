"""A session of automatic batching: the executor that records what examples do as calls to be made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from wayfare.batched.automatic import OF_MODULE, forward_of, may_be_whole
from wayfare.batched.kind import Kind, Unkeyable, as_of_now, attributes_key, carried, is_own, is_shared, outcome
from wayfare.batched.lazy import LazyTensor, lazy, seen_from
from wayfare.batched.parts import Picked, part_seen
from wayfare.batched.runners import run_op, run_random, run_selected
from wayfare.batched.value import Array, Call, Value, row_of
from wayfare.batched.whole import NOT_WHOLE, About, find_whole, take_apart
from wayfare.batched.work import Work
from wayfare.batched.writing import write
from wayfare.eager import apply
from wayfare.nested import TENSOR, rebuild
from wayfare.op import REGISTRY, Op
from wayfare.site import INSIDE
from wayfare.state import STATE
from wayfare.tensor import Tensor

_getframe = sys._getframe
_SELECT = REGISTRY["select"]
_new_call, _new_value, _new_tensor = Call.__new__, Value.__new__, Tensor.__new__


class Session(Work):
    """Records what examples do and runs it in groups. It is in force as an executor."""

    batches = True

    # -- recording

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Record one op."""
        mode = STATE.mode
        assert mode is not None
        grad = mode.grad
        extra = None
        key: list[Any] = [op, "inference" if mode.inference else grad]
        rows: list[Any] = []
        concrete = True
        for t in inputs:
            if t.__class__ is LazyTensor:
                value = t._lazy
                key.append(value.row)
                rows.append(value)
                concrete = False
            elif is_shared(t):
                key.append(t)
            else:
                array = t._array
                key.append(row_of(array.shape, array.dtype))
                rows.append(t if is_own(array) else as_of_now(t))
        if concrete and (not inputs or op.view) and not (grad and any([t._requires_grad for t in inputs])):
            return self._now(op, inputs, attrs)
        if attrs:
            if attrs.get("key") is not None:
                extra = attrs["key"]
                attrs = attrs | {"key": None}
            elif op is _SELECT and not rows and attrs["dim"] == 0:
                extra = attrs["index"]
                attrs = {"dim": 0, "index": None}
            try:
                attrs_key = attributes_key(attrs)
            except Unkeyable:
                return self._now(op, inputs, attrs)
            key.append(attrs_key)
            if op.view and extra is None and not concrete:
                seen = part_seen(op, attrs, attrs_key, rows[0].row)
                if seen is not None:
                    row, offset = seen
                    value = rows[0]
                    part = value.part(row, offset, grad and value.needs and row.is_float)
                    return seen_from(inputs[0], part, op, attrs)
        found = tuple(key)
        kind = self.kinds.get(found)
        if kind is None:
            kind = self._new_kind(op, found, inputs, attrs, extra)
            if kind is None:
                return self._now(op, inputs, attrs if extra is None else attrs | {"key": extra})
        made = self.record(kind, rows, extra, 3)
        if op.view:
            if concrete:
                self.looking_outside = True
            else:
                inputs[0]._lazy.viewed = True
            if extra is not None:
                attrs = attrs | {"index": extra}
            made[0]._lazy.seen_from = (inputs[0], op, attrs)
        return made[0] if op.outputs == 1 else tuple(made)

    def two(self, op: Op, a: Tensor, b: Tensor) -> Tensor:
        """`apply` for an op of two lazy tensors, or of one and a number, without attributes: the commonest case."""
        mode = STATE.mode
        assert mode is not None
        grad: Any = "inference" if mode.inference else mode.grad
        if a.__class__ is not LazyTensor:
            kind = self.kinds.get((op, grad, row_of(a._array.shape, a._array.dtype), b._lazy.row))
            rows = (a, b._lazy)
        elif b.__class__ is not LazyTensor:
            kind = self.kinds.get((op, grad, a._lazy.row, row_of(b._array.shape, b._array.dtype)))
            rows = (a._lazy, b)
        else:
            kind = self.kinds.get((op, grad, a._lazy.row, b._lazy.row))
            rows = (a._lazy, b._lazy)
        if kind is None:
            return self.apply(op, (a, b), {})  # type: ignore[no-any-return]
        return self.record(kind, rows, None, 3)[0]

    def one(self, op: Op, a: Tensor) -> Tensor:
        """`apply` for an op of one lazy tensor without attributes."""
        mode = STATE.mode
        assert mode is not None
        kind = self.kinds.get((op, "inference" if mode.inference else mode.grad, a._lazy.row))
        if kind is None:
            return self.apply(op, (a,), {})  # type: ignore[no-any-return]
        return self.record(kind, (a._lazy,), None, 3)[0]

    def record(self, kind: Kind, rows: Any, extra: Any, depth: int) -> list[LazyTensor]:
        """Enter a call; gives tensors for its outputs. The user's line is at least `depth` frames up."""
        if not rows and extra is None:
            known = self.once.get(kind)
            if known is not None:
                again = [lazy(v) for v in known]
                self.live += again
                return again
        needs = False
        if kind.differentiable:
            needs = kind.leaf_needs
            if not needs:
                for v in rows:
                    if v.needs if v.__class__ is Value else v._requires_grad:
                        needs = True
                        break
        if self.pending_bytes > self.limit:
            self.flush()
        call = _new_call(Call)
        call.kind = kind
        call.inputs = rows
        call.extra = extra
        call.group = None
        call.example = self.hub.current
        made: list[LazyTensor] = []
        # Written out, because it runs for every output of every call.
        for number, row, carries in kind.layout:
            value = _new_value(Value)
            value.call = call
            value.number = number
            value.row = row
            value.needs = own = needs and carries
            value.is_part = value.viewed = False
            value.offset = 0
            value.seen_from = None
            t = _new_tensor(LazyTensor)
            t._lazy = value
            t._requires_grad = own
            made.append(t)
        call.handles = made
        frame: Any = _getframe(depth)
        code = frame.f_code
        while INSIDE[code.co_filename]:
            frame = frame.f_back
            if frame is None:  # The function itself is one of the library's.
                code = None
                break
            code = frame.f_code
        call.code = code
        call.offset = 0 if code is None else frame.f_lasti
        kind.nodes += 1
        self.pending.append(call)
        if not rows and extra is None:
            self.once[kind] = tuple([t._lazy for t in made])
        self.pending_bytes += kind.pending_bytes
        return made

    def whole_call(
        self, owner: Any, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], about: About
    ) -> Any:
        """A cell or a compiled function as one call; NotImplemented where it must be taken apart."""
        mode = STATE.mode
        assert mode is not None
        key: list[Any] = [function, owner, "inference" if mode.inference else mode.grad]
        rows: list[Any] = []
        kind: Kind | None = None
        # Written out for the usual arguments: lazy tensors, tuples of them, and rows from outside.
        for part in args:
            if part.__class__ is LazyTensor:
                value = part._lazy
                key.append(value.row)
                rows.append(value)
            elif part.__class__ is tuple:
                key.append(tuple)
                for t in part:
                    if t.__class__ is not LazyTensor:
                        break
                    value = t._lazy
                    key.append(value.row)
                    rows.append(value)
                else:
                    key.append(")")
                    continue
                break
            elif part.__class__ is Tensor and not is_shared(part):
                array = part._array
                key.append(row_of(array.shape, array.dtype))
                rows.append(part if is_own(array) else as_of_now(part))
            else:
                break
        else:
            if not options:
                # Nearly always the same cell is called again. There are no tensors in this key, so it can be compared.
                last = self.recent.get(about)
                if last is not None and last[0] == key:
                    kind = last[1]
                else:
                    kind = self.kinds.get(tuple(key))
                    if kind is not None:
                        self.recent[about] = (key, kind)
                if kind is not None and not kind.what.holds():
                    kind = None
        if kind is None:
            kind, rows = self._unusual_call(key[:3], owner, function, args, options, about)
        if kind is None or kind is NOT_WHOLE:
            return NotImplemented
        made = self.record(kind, rows, None, 3)
        whole = kind.what
        if whole.result is TENSOR:
            return made[0]
        # A plain tuple of tensors is what most cells give.
        return tuple(made) if whole.plain_tuple else rebuild(whole.result, iter(made), iter(()))

    def module_call(self, module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A call of a module: as one, where its `forward` only computes; else NotImplemented."""
        kind = module.__class__
        known = self.whole_classes.get(kind)
        if known is None:
            known = self.whole_classes[kind] = may_be_whole(module)
        if not known or any([a.__class__ is list for a in args]):
            # Lists are of any length: their examples have steps in common, not whole calls.
            return NotImplemented
        return self.whole_call(module, forward_of, args, options, OF_MODULE)

    def _unusual_call(
        self, key: list[Any], owner: Any, function: Any, args: Any, options: Any, about: About
    ) -> tuple[Kind | None, list[Any]]:
        """The kind and the rows of a call with any arguments, met before or not; None if no key can be made of them."""
        tensors: list[Tensor] = []
        rows: list[Any] = []
        try:
            take_apart(args, key, tensors, rows)
            for option, value in options.items():
                key.append(option)
                take_apart((value,), key, tensors, rows)
        except TypeError:
            return None, rows
        found = tuple(key)
        kind = self.kinds.get(found)
        if kind is None or not kind.what.holds():
            if kind is not None:
                self.retired.append(kind)
            kind = self.kinds[found] = find_whole(self, found, owner, function, args, options, tensors, about)
        return kind, rows

    def _new_kind(
        self, op: Op, key: Any, inputs: tuple[Tensor, ...], attrs: dict[str, Any], extra: Any
    ) -> Kind | None:
        """A kind met for the first time; None for an op whose shape rule needs the numbers."""
        pattern = [t if t.__class__ is not LazyTensor and is_shared(t) else None for t in inputs]
        rows = [t._lazy.row if t.__class__ is LazyTensor else row_of(t._array.shape, t._array.dtype) for t in inputs]
        run = run_op
        given = attrs
        if extra is not None:
            run = run_selected if op is _SELECT else run_random
            given = attrs | ({"index": extra} if op is _SELECT else {"key": extra})
        try:
            outs = outcome(op, given, attributes_key(attrs), rows)
        except NotImplementedError:
            return None
        kind = Kind(self, key, op.name, op, attrs, pattern, outs, carried(op, outs), run, key[1])
        self.kinds[key] = kind
        return kind

    def _now(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Run an op for real, on ordinary tensors."""
        if any([t.__class__ is LazyTensor for t in inputs]):
            self.settle()
        with self.outside():
            return apply(op, inputs, attrs)

    # -- looking and writing

    def read(self, tensor: Tensor, how: str) -> Array:
        """Python looks at a value: wait until it is there."""
        if tensor.__class__ is not LazyTensor:
            return tensor._array
        if how == "numpy()" or how == "data_ptr()":
            # Whoever holds the memory may write to it, or see it written to.
            memory: Array = tensor._array
            return memory
        value = tensor._lazy
        if value.call.group is None:
            self.hub.wait(value)
        array: Array = value.call.group.array_of(value)
        return array

    def is_contiguous(self, t: Tensor) -> bool:
        """Would its rows lie one after the other?"""
        while t.__class__ is LazyTensor:
            if t._lazy.seen_from is None:
                return True
            base, op, _ = t._lazy.seen_from
            if op is not None and not t._lazy.is_part:
                return False
            t = base
        return bool(t._array.flags.c_contiguous)

    def picked(self, tensor: Tensor, places: tuple[tuple[int, Tensor], ...], out: Tensor) -> None:
        """One place of a tensor was read by an index that is itself a tensor: in plain Python that is a view."""
        if out.__class__ is LazyTensor:
            if tensor.__class__ is LazyTensor:
                tensor._lazy.viewed = True
            else:
                self.looking_outside = True
            out._lazy.seen_from = (tensor, Picked(places), {})

    def behind(self, tensor: Tensor) -> Tensor | None:
        """The tensor whose memory a write goes to; None where that is not there yet."""
        return None if tensor.__class__ is LazyTensor else tensor

    def write(self, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
        """Write in place."""
        write(self, tensor, result, move)

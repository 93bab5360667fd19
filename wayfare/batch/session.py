"""A session of automatic batching: the executor that records what examples do as calls to be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

from wayfare.batch.alone import alone
from wayfare.batch.automatic import OF_MODULE, as_whole
from wayfare.batch.entering import MISSED, lane_for, recorder_for
from wayfare.batch.kind import Kind, Unkeyable, as_of_now, attributes_key, carried, is_shared, outcome
from wayfare.batch.layout import stand_in
from wayfare.batch.lazy import LazyTensor, lazy, seen_from
from wayfare.batch.parts import Picked, part_seen
from wayfare.batch.runners import run_op, run_random, run_selected
from wayfare.batch.trying import in_try
from wayfare.batch.value import Array, Row, row_of_array
from wayfare.batch.whole import NOT_WHOLE, About, find_whole, take_apart
from wayfare.batch.work import Work
from wayfare.batch.writing import write
from wayfare.core.callsite import user_frame
from wayfare.core.dispatch import apply
from wayfare.core.mode import STATE, Mode
from wayfare.core.op import REGISTRY, Op
from wayfare.core.pytree import TENSOR, rebuild
from wayfare.core.tensor import Tensor

_SELECT = REGISTRY["select"]
# Ways of looking at numbers that are for people.
_SHOWN = frozenset({"repr()", "format()"})
# Ways that need an ordinary tensor.
_ORDINARY = frozenset({"as_strided()", "storage_offset()", "pickle"})
# Short ways that are tried for one cell: more would cost those who miss them all.
_MOST_LANES = 4


class Session(Work):
    """Records what examples do and runs it in groups. It is in force as an executor."""

    batches = True
    # Examples take turns, and their ops run later: what runs in groups is in no module.
    times_modules = False

    # -- recording

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Record one op."""
        if self.hub.in_order:
            return self._now(op, inputs, attrs)
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
                key.append(row_of_array(t._array))
                rows.append(t if alone(t) else as_of_now(t))
        if concrete and (not inputs or op.view) and not (grad and any([t._requires_grad for t in inputs])):
            return self._now(op, inputs, attrs)
        if self.apart and concrete:
            key.append(object())
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
        return made[0] if op.outputs == 1 else made

    def learn_short(self, key: Any, made: Any) -> None:
        """Remember how a call of an op without attributes was entered: the next like it is entered so at once."""
        if made.__class__ is LazyTensor:
            kind = made._lazy.call.kind
            if kind.record is not None and not kind.inference:
                self.shorts[kind.grad][key] = kind.record

    def record(self, kind: Kind, rows: Any, extra: Any, depth: int) -> tuple[LazyTensor, ...]:
        """Enter a call; gives tensors for its outputs. The user's line is at least `depth` frames up."""
        if not rows and extra is None:
            known = self.once.get(kind)
            if known is not None and not self.apart:
                again = tuple([lazy(v) for v in known])
                self.live += map(ref, again)
                return again
        enter = kind.record
        if enter is None:
            enter = kind.record = recorder_for(kind)
        made: tuple[LazyTensor, ...] = enter(self, rows, depth + 1)
        if extra is not None:
            self.pending[-1].extra = extra
        elif not rows:
            self.once[kind] = tuple([t._lazy for t in made])
        if kind.checks_values:
            fits: Any = getattr(kind.what, "fits", None)
            told = fits is not None and rows and rows[0].__class__ is Tensor
            if not fits(kind.what.owner(), rows[0]) if told else in_try(user_frame(depth)):
                self.flush([made[0]._lazy], only=True)  # it fails here if it fails
        return made

    def whole_call(
        self, owner: Any, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], about: About
    ) -> Any:
        """A cell or a compiled function as one call; NotImplemented where it must be taken apart."""
        if self.hub.in_order:
            return NotImplemented
        mode = STATE.mode
        assert mode is not None
        if not options and not mode.inference and not self.apart:
            for lane in self.lanes[mode.grad].get((id(owner), function), ()):
                made = lane(self, args)
                if made is not MISSED:
                    return made
        return self._whole_call(owner, function, args, options, about, mode, (id(owner), function), 3)

    def _whole_call(
        self, owner: Any, function: Any, args: Any, options: Any, about: About, mode: Mode, place: Any, depth: int
    ) -> Any:
        """A whole call for which there is no lane, or not yet."""
        key: list[Any] = [function, owner, "inference" if mode.inference else mode.grad]
        if self.apart and not any([t.__class__ is LazyTensor for t in args]):
            key.append(object())
        kind, rows = self._kind_of_call(key, owner, function, args, options, about)
        if kind is None or kind is NOT_WHOLE:
            return NotImplemented
        if not options and not mode.inference:
            lane = lane_for(kind, owner, args, rows, depth)
            if lane is not None:
                lanes = self.lanes[mode.grad]
                lanes[place] = (lane, *lanes.get(place, ())[: _MOST_LANES - 1])
        made = self.record(kind, rows, None, depth + 1)
        whole = kind.what
        return made[0] if whole.result is TENSOR else rebuild(whole.result, iter(made), iter(()))

    def module_call(self, module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A call of a module: as one, where its `forward` only computes; else NotImplemented."""
        if self.hub.in_order:
            return NotImplemented
        mode = STATE.mode
        assert mode is not None
        if not options and not mode.inference and not self.apart:
            for lane in self.lanes[mode.grad].get(id(module), ()):
                made = lane(self, args)
                if made is not MISSED:
                    return made
        kind = module.__class__
        known = self.whole_classes.get(kind)
        if known is None:
            known = self.whole_classes[kind] = as_whole(module)
        if not known:
            return NotImplemented
        function, about = known
        if about is OF_MODULE and any([a.__class__ is list for a in args]):
            # Lists are of any length: their examples have steps in common, not whole calls.
            return NotImplemented
        if "forward" in module.__dict__ and about is not OF_MODULE:
            return NotImplemented
        return self._whole_call(module, function, args, options, about, mode, id(module), 4)

    def _kind_of_call(
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
        if any([part.__class__ is Row and part.layout is not None for part in key]):
            return None, rows  # Its ops know how results of such rows lie.
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
        rows = [t._lazy.row if t.__class__ is LazyTensor else row_of_array(t._array) for t in inputs]
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
            made = apply(op, inputs, attrs)
        for t in made if made.__class__ is tuple else (made,):
            self.born(t._array)
        return made

    # -- looking and writing

    def read(self, tensor: Tensor, how: str) -> Array:
        """Python looks at a value: wait until it is there."""
        takes_memory = how == "numpy()" or how == "data_ptr()"
        if tensor.__class__ is not LazyTensor:
            if takes_memory and self.hub.current is None:
                self.leave()  # nothing more is recorded in this block: nobody can tell when that memory is written
            elif takes_memory and self.owned.given_to(tensor) is not self.hub.current:
                self.changes(tensor, f"{how} hands out memory that all examples see")
            return tensor._array
        if how == "stride()" or how == "is_contiguous()":
            return stand_in(tensor._lazy.row)
        if takes_memory or how in _ORDINARY:
            # Whoever holds the memory may write to it, or see it written to.
            memory: Array = tensor._array
            return memory
        value = tensor._lazy
        if value.call.group is None:
            if how in _SHOWN:
                # Who prints or debugs sees this example go on line by line.
                self.flush([value], only=True)
            else:
                self.hub.wait(value)
        array: Array = value.call.group.array_of(value)
        return array

    def may_read(self, *tensors: Tensor) -> bool:
        """May a check look at these numbers? They must be there, or it must matter where an error is raised."""
        return not any([t.__class__ is LazyTensor for t in tensors]) or in_try(user_frame(2))

    def may_decide(self, tensor: Tensor) -> bool:
        """Not before it is there."""
        return False

    def is_view(self, t: Tensor, shape: tuple[int, ...]) -> bool:
        """Could the tensor have that shape without a copy, as it would lie in the loop?"""
        if t.__class__ is not LazyTensor or t._lazy.row.layout is None:
            return True
        try:
            array = stand_in(t._lazy.row, memory=True)
        except ValueError:
            return True
        return bool(np.may_share_memory(array.reshape(shape), array))

    def is_contiguous(self, t: Tensor) -> bool:
        """Would its rows lie one after the other?"""
        return t._lazy.row.layout is None if t.__class__ is LazyTensor else bool(t._array.flags.c_contiguous)

    def picked(self, tensor: Tensor, places: tuple[tuple[int, Tensor], ...], out: Tensor) -> None:
        """One place of a tensor was read by an index that is itself a tensor: in plain Python that is a view."""
        if out.__class__ is LazyTensor:
            if tensor.__class__ is LazyTensor:
                tensor._lazy.viewed = True
            else:
                self.looking_outside = True
            out._lazy.seen_from = (tensor, Picked(places), {})

    def behind(self, tensor: Tensor, name: str) -> Tensor | None:
        """The tensor whose memory a write goes to; None where that is not there yet."""
        self.changes(tensor, f"{name} writes to a tensor that all examples see")
        return None if tensor.__class__ is LazyTensor else tensor

    def write(self, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
        """Write in place."""
        write(self, tensor, result, move)

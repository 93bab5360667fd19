"""A session of automatic batching: the executor that records the ops of examples as pending calls."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

from wayfare.batch.analysis.exception_scopes import in_try
from wayfare.batch.record.call import Array, Row, lazy_view, row_of_array
from wayfare.batch.record.function_call import as_copy, chosen_in
from wayfare.batch.record.inplace import write
from wayfare.batch.record.layout import probe_array
from wayfare.batch.record.module_call import MODULE_INFO, opaque_form_of
from wayfare.batch.record.opaque_call import NOT_OPAQUE, OpaqueInfo, find_opaque_call, flatten_arguments
from wayfare.batch.record.opaque_fast_path import MISSED, fast_path_for, recorder_for
from wayfare.batch.record.row_copy import RowCopy
from wayfare.batch.record.signature import (
    Signature,
    Unkeyable,
    attributes_key,
    differentiable_outs,
    infer_rows,
    is_shared,
)
from wayfare.batch.record.views import PickedView, contiguous_view
from wayfare.batch.run.pending_calls import PendingCalls
from wayfare.batch.run.runners import run_op, run_random, run_selected
from wayfare.compiler.captures.reach import can_be_weak
from wayfare.core.callsite import user_frame
from wayfare.core.dispatch import apply, apply1
from wayfare.core.mode import STATE, Mode, set_mode
from wayfare.core.op import REGISTRY, Op
from wayfare.core.stand_in import StandIn, stand_in
from wayfare.core.tensor import Tensor
from wayfare.ir.layout import keeps_memory, layout_of

_SELECT = REGISTRY["select"]
# Reads of values that only display them.
_FOR_DISPLAY = frozenset({"repr()", "format()"})
# Reads that need an ordinary tensor.
_NEED_MEMORY = frozenset({"as_strided()", "storage_offset()", "pickle"})
# At most this many fast paths are tried for one owner: each one that misses costs time.
_MAX_FAST_PATHS = 24


class Session(PendingCalls):
    """The executor that records calls and runs them in groups."""

    batches = True
    # The ops of examples run later, in groups: no module is running then.
    times_modules = False

    # -- recording

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Record one op."""
        if self.hub.in_order:
            return self._run_now(op, inputs, attrs)
        mode = STATE.mode
        assert mode is not None
        grad = mode.grad
        if op.view and inputs[0].__class__ is not StandIn and not (grad and inputs[0]._requires_grad):
            return self._view_now(op, inputs[0], attrs, mode)
        extra = None
        key: list[Any] = [op, "inference" if mode.inference else grad]
        rows: list[Any] = []
        concrete = True
        for t in inputs:
            if t.__class__ is StandIn:
                value = t._handle
                key.append(value.row)
                rows.append(value)
                concrete = False
            elif is_shared(t):
                key.append(t)
            else:
                array = t._array
                row = row_of_array(array)
                key.append(row)
                # Python numbers are read-only tensors, which nobody can write to.
                is_number = array.ndim == 0 and array.__class__ is np.ndarray and not array.flags.writeable
                rows.append(t if is_number else self.row_copies.of(t, row))
        if not inputs:
            return self._run_now(op, inputs, attrs)
        if self.no_common_calls and concrete:
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
                return self._run_now(op, inputs, attrs)
            key.append(attrs_key)
            if op.view and extra is None and not concrete:
                seen = contiguous_view(op, attrs, attrs_key, rows[0].row)
                if seen is not None:
                    row, offset = seen
                    value = rows[0]
                    part = value.part(row, offset, grad and value.needs_grad and row.is_float)
                    return lazy_view(inputs[0], part, op, attrs)
        found = tuple(key)
        signature = self.signatures.get(found)
        if signature is None:
            signature = self._new_signature(op, found, inputs, attrs, extra)
            if signature is None:
                return self._run_now(op, inputs, attrs if extra is None else attrs | {"key": extra})
        made = self.record(signature, rows, extra, 3)
        if op.view:
            if concrete:
                self.note_outside_view(inputs[0])
            else:
                inputs[0]._handle.has_views = True
            if extra is not None:
                attrs = attrs | {"index": extra}
            made[0]._handle.view_of = (inputs[0], op, attrs)
        return made[0] if op.outputs == 1 else made

    def is_own_row(self, t: Tensor) -> bool:
        """Whether an ordinary tensor is a row of one example that is copied: of the CPU, no weight, no number, no
        history."""
        array = t._array
        plain = array.__class__ is np.ndarray and array.ndim > 0 and not t._requires_grad
        return plain and not self.hub.in_order and not is_shared(t)

    def learn_fast_path(self, key: Any, made: Any) -> None:
        """Remember how a call without attributes was recorded, for the fast path of the next one like it."""
        if made.__class__ is StandIn:
            signature = made._handle.call.signature
            if signature.record is not None and not signature.inference:
                self.op_fast_paths[signature.grad][key] = signature.record

    def record(self, signature: Signature, rows: Any, extra: Any, depth: int) -> tuple[StandIn, ...]:
        """Record a call; returns lazy tensors for its outputs. The user's line is at least `depth` frames up."""
        if not rows and extra is None:
            known = self.common_results.get(signature)
            if known is not None and not self.no_common_calls:
                common = tuple([stand_in(v, v.needs_grad) for v in known])
                self.live += map(ref, common)
                return common
        enter = signature.record
        if enter is None:
            enter = signature.record = recorder_for(signature)
        made: tuple[StandIn, ...] = enter(self, rows, depth + 1)
        if extra is not None:
            self.pending[-1].extra = extra
        elif not rows:
            self.common_results[signature] = tuple([t._handle for t in made])
        if signature.checks_values:
            fits: Any = getattr(signature.target, "fits", None)
            checkable = fits is not None and rows and rows[0].__class__ is RowCopy
            if not fits(signature.target.owner(), rows[0].source) if checkable else in_try(user_frame(depth)):
                self.flush([made[0]._handle], only=True)  # if it fails, it must fail here
        return made

    def opaque_call(
        self, owner: Any, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], info: OpaqueInfo
    ) -> Any:
        """Record a cell or a function as one opaque call; NotImplemented if its ops must be recorded."""
        if self.hub.in_order:
            return NotImplemented
        mode = STATE.mode
        assert mode is not None
        if not options and not mode.inference and not self.no_common_calls:
            for fast_path in self.opaque_fast_paths[mode.grad].get((id(owner), function), ()):
                made = fast_path(self, args)
                if made is not MISSED:
                    return made
        return self._opaque_call(owner, function, args, options, info, mode, (id(owner), function), 3)

    def _opaque_call(
        self,
        owner: Any,
        function: Any,
        args: Any,
        options: Any,
        info: OpaqueInfo,
        mode: Mode,
        fast_path_key: Any,
        depth: int,
    ) -> Any:
        """An opaque call for which there is no fast path yet."""
        key: list[Any] = [function, owner, "inference" if mode.inference else mode.grad]
        if self.no_common_calls and not any([t.__class__ is StandIn for t in args]):
            key.append(object())
        signature, rows = self._signature_of_call(key, owner, function, args, options, info)
        if signature is None or signature is NOT_OPAQUE:
            return NotImplemented
        if not options and not mode.inference:
            fast_path = fast_path_for(signature, owner, args, rows, depth)
            if fast_path is not None:
                known = self.opaque_fast_paths[mode.grad]
                known[fast_path_key] = (fast_path, *known.get(fast_path_key, ())[: _MAX_FAST_PATHS - 1])
        return signature.target.results(self.record(signature, rows, None, depth + 1))

    def compiled_call(
        self, compiled: Any, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """A call of a compiled function that no copy made: like one of a plain function or method in a copy."""
        if compiled._is_method and args and can_be_weak(args[0]):
            return chosen_in(self, types.MethodType(compiled, args[0]))(*args[1:], **options)
        return chosen_in(self, compiled)(*args, **options)

    def module_call(self, module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Record a call of a module as one opaque call if its `forward` only computes; else NotImplemented."""
        if self.hub.in_order:
            return NotImplemented
        mode = STATE.mode
        assert mode is not None
        if not options and not mode.inference and not self.no_common_calls:
            for fast_path in self.opaque_fast_paths[mode.grad].get(id(module), ()):
                made = fast_path(self, args)
                if made is not MISSED:
                    return made
        cls = module.__class__
        form = self.opaque_classes.get(cls)
        if form is None:
            form = self.opaque_classes[cls] = opaque_form_of(module)
        if not form:
            return NotImplemented
        function, info = form
        if info is not MODULE_INFO:
            if "forward" in module.__dict__:
                return NotImplemented
            return self._opaque_call(module, function, args, options, info, mode, id(module), 4)
        # Lists have any length: examples share the steps inside, not the opaque call.
        if not any([a.__class__ is list for a in args]):
            made = self._opaque_call(module, function, args, options, info, mode, id(module), 4)
            if made is not NotImplemented:
                return made
        return as_copy(module.forward)(*args, **options)

    def _signature_of_call(
        self, key: list[Any], owner: Any, function: Any, args: Any, options: Any, info: OpaqueInfo
    ) -> tuple[Signature | None, list[Any]]:
        """The signature and the rows of an opaque call; None if its arguments cannot be part of a key."""
        tensors: list[Tensor] = []
        rows: list[Any] = []
        try:
            flatten_arguments(self, args, key, tensors, rows)
            for option, value in options.items():
                key.append(option)
                flatten_arguments(self, (value,), key, tensors, rows)
        except TypeError:
            return None, rows
        if any([part.__class__ is Row and part.layout is not None for part in key]):
            return None, rows  # a trace does not know the strides of its results; the ops inside do
        found = tuple(key)
        signature = self.signatures.get(found)
        if signature is None or not signature.target.holds():
            if signature is not None:
                self.retired.append(signature)
            signature = self.signatures[found] = find_opaque_call(
                self, found, owner, function, args, options, tensors, info
            )
        return signature, rows

    def _new_signature(
        self, op: Op, key: Any, inputs: tuple[Tensor, ...], attrs: dict[str, Any], extra: Any
    ) -> Signature | None:
        """A new signature; None for an op whose shape rule needs values."""
        pattern = [t if t.__class__ is not StandIn and is_shared(t) else None for t in inputs]
        rows = [t._handle.row if t.__class__ is StandIn else row_of_array(t._array) for t in inputs]
        run = run_op
        given = attrs
        if extra is not None:
            run = run_selected if op is _SELECT else run_random
            given = attrs | ({"index": extra} if op is _SELECT else {"key": extra})
        try:
            outs = infer_rows(op, given, attributes_key(attrs), rows)
        except NotImplementedError:
            return None
        signature = Signature(self, key, op.name, op, attrs, pattern, outs, differentiable_outs(op, outs), run, key[1])
        self.signatures[key] = signature
        for t in signature.shared:
            self.ownership.share(t)
        if extra is None:
            self.ragged_signatures.join(signature)
        return signature

    def _run_now(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Run an op eagerly, on ordinary tensors."""
        if any([t.__class__ is StandIn for t in inputs]):
            self.materialise()
        if op.view:
            inside = STATE.mode
            assert inside is not None
            return self._view_now(op, inputs[0], attrs, inside)
        with self.outside():
            made = apply(op, inputs, attrs)
        for t in made if made.__class__ is tuple else (made,):
            self.born(t._array)
        for t in inputs:
            self.ownership.share(t)  # a result may be a view of it, and a node may keep it
        return made

    def _view_now(self, op: Op, tensor: Tensor, attrs: dict[str, Any], inside: Mode) -> Tensor:
        """A view of an ordinary tensor. Views are frequent, and draw no random numbers: the mode is just set."""
        try:
            self.set_outer_mode(inside.grad)
            made = apply1(op, tensor, attrs)
        finally:
            set_mode(inside)
        if made._array.base is None:
            self.born(made._array)
        self.ownership.share(tensor)
        return made

    # -- reading and writing

    def read(self, tensor: Tensor, how: str) -> Array:
        """Python reads a value: wait until it is computed."""
        takes_memory = how == "numpy()" or how == "data_ptr()"
        if tensor.__class__ is not StandIn:
            if takes_memory and self.hub.current is None:
                self.leave()  # stop recording in this block: writes to that memory cannot be seen
                return tensor._array
            if takes_memory or how in _NEED_MEMORY:
                self.ownership.share(tensor)
            if takes_memory and self.ownership.given_to(tensor) is not self.hub.current:
                self.changes(tensor, f"{how} hands out memory that all examples see")
            return tensor._array
        if how == "stride()" or how == "is_contiguous()":
            return probe_array(tensor._handle.row)
        if takes_memory or how in _NEED_MEMORY:
            # The caller may write to the memory, or expect to see writes: materialise.
            memory: Array = tensor._array
            return memory
        value = tensor._handle
        if value.call.group is None:
            if how in _FOR_DISPLAY:
                # Printing must not switch to other examples.
                self.flush([value], only=True)
            else:
                self.hub.wait(value)
        found: Array = value.row.memory.read(value, self.awaited)
        return found

    def may_read(self, *tensors: Tensor) -> bool:
        """Whether a check may read these values: if they are computed, or if an error must be raised right here."""
        return not any([t.__class__ is StandIn for t in tensors]) or in_try(user_frame(2))

    def may_decide(self, tensor: Tensor) -> bool:
        """Never: the value may not be computed yet."""
        return False

    def is_view(self, t: Tensor, shape: tuple[int, ...]) -> bool:
        """Whether `view` to that shape would need no copy, with the strides the tensor would have in the loop."""
        layout = t._handle.row.layout if t.__class__ is StandIn else layout_of(t._array)
        return layout is None or keeps_memory(tuple(t.shape), layout, shape)

    def is_contiguous(self, t: Tensor) -> bool:
        """Whether the tensor would be contiguous in the loop."""
        return t._handle.row.layout is None if t.__class__ is StandIn else bool(t._array.flags.c_contiguous)

    def picked(self, tensor: Tensor, indices: tuple[tuple[int, Tensor], ...], out: Tensor) -> None:
        """`out` was read from a tensor by integer indices that are tensors: in the plain loop that is a view."""
        if out.__class__ is StandIn and out._handle.row.memory.is_host:  # elsewhere it is a copy in the loop, too
            if tensor.__class__ is StandIn:
                tensor._handle.has_views = True
            else:
                self.note_outside_view(tensor)
            out._handle.view_of = (tensor, PickedView(indices), {})

    def behind(self, tensor: Tensor, name: str) -> Tensor | None:
        """The tensor whose memory a write goes to; None if it is lazy."""
        self.changes(tensor, f"{name} writes to a tensor that all examples see")
        return None if tensor.__class__ is StandIn else tensor

    def write(self, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
        """Write in place."""
        write(self, tensor, result, move)

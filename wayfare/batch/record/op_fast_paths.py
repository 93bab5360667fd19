"""Fast paths for the most common ops on lazy tensors: operators and functions of one or two tensors of one dtype.

The general path computes the dtype of the result and dispatches to the executor. Here the function that records such a
call is looked up in a dictionary instead.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

from wayfare.batch.fibers.hub import Hub
from wayfare.batch.record.call import Call, Row, Value, row_of_array
from wayfare.batch.record.opaque_fast_path import MISSED, check_now
from wayfare.batch.record.row_copy import RowCopies, RowCopy
from wayfare.batch.session import Session
from wayfare.core.constant import constant
from wayfare.core.mode import STATE, Mode
from wayfare.core.native import NATIVE, in_front_of_calls
from wayfare.core.op import REGISTRY, Op
from wayfare.core.stand_in import FAST_PATHS, StandIn
from wayfare.core.structure_epoch import EPOCH
from wayfare.core.tensor import Tensor

_STACK = REGISTRY["stack"]
_new_value, _new_tensor = Value.__new__, Tensor.__new__
_F32, _F64 = np.dtype("float32"), np.dtype("float64")
_OPERATORS = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}
_REDUCTIONS = ("sum", "mean", "softmax", "log_softmax", "logsumexp", "argmax", "argmin", "norm", "amax", "amin")
_COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")
_SEVERAL = ("chunk", "split", "unbind")
_VIEWS = ("__getitem__", "squeeze", "unsqueeze", "view", "reshape", "flatten")
_METHODS = ("sigmoid", "tanh", "relu", "exp", "log", "neg", "sqrt", "square", "abs", "sin", "cos", "__neg__")


def _binary(op: Op, general: Any, reverse: bool) -> Any:
    def call(self: Tensor, other: Any) -> Any:
        # The session may be active in another thread: then the general path applies.
        mode: Any = STATE.mode
        executor: Any = None if mode is None else mode.executor
        if executor.__class__ is not Session:
            return general(self, other)
        value = self._handle
        row = value.row
        dtype = row.dtype
        cls = other.__class__
        if dtype is not _F32 and dtype is not _F64:
            return general(self, other)
        if cls is StandIn:
            second = other._handle
            key = (op, second.row, row) if reverse else (op, row, second.row)
        elif cls is float or cls is int:
            second = other = constant(other, dtype)
            key = (op, row, reverse)
        elif cls is Tensor and other._array.dtype is dtype and self.__class__ is StandIn:
            if not executor.is_own_row(other):
                return executor.apply(op, (other, self) if reverse else (self, other), {})
            second = executor.row_copies.of(other, row_of_array(other._array))
            key = (op, second.row, row) if reverse else (op, row, second.row)
        else:
            return general(self, other)
        record = executor.op_fast_paths[mode.grad].get(key)
        if record is not None and not mode.inference:
            return record(executor, (second, value) if reverse else (value, second), 2)[0]
        if cls is StandIn and second.row.dtype is not dtype:
            return general(self, other)
        made = executor.apply(op, (other, self) if reverse else (self, other), {})
        executor.learn_fast_path(key, made)
        return made

    return call


def _unary(op: Op, general: Any) -> Any:
    def call(self: Tensor) -> Any:
        if self.__class__ is not StandIn:
            return general(self)  # it was materialised after the method was looked up
        mode: Any = STATE.mode
        executor: Any = None if mode is None else mode.executor
        if executor.__class__ is not Session:
            return general(self)
        value = self._handle
        key = (op, value.row)
        record = executor.op_fast_paths[mode.grad].get(key)
        if record is not None and not mode.inference:
            return record(executor, (value,), 2)[0]
        dtype = value.row.dtype
        if dtype is not _F32 and dtype is not _F64:
            return general(self)
        made = executor.apply(op, (self,), {})
        executor.learn_fast_path(key, made)
        return made

    return call


def _method(name: str, general: Any) -> Any:
    """A method of one tensor and plain arguments; its fast path is learnt from what the general path records."""

    def call(self: Tensor, *args: Any, **options: Any) -> Any:
        if self.__class__ is not StandIn:
            return general(self, *args, **options)  # it was materialised after the method was looked up
        mode: Any = STATE.mode
        executor: Any = None if mode is None else mode.executor
        if executor.__class__ is not Session or mode.inference:
            return general(self, *args, **options)
        value = self._handle
        # With the types: True equals 1.
        key = (name, value.row, args, tuple(map(type, args)), *options.items(), *map(type, options.values()))
        try:
            record = executor.op_fast_paths[mode.grad].get(key)
        except TypeError:
            return general(self, *args, **options)
        if record is not None:
            return record(executor, (value,), 2)[0]
        before = len(executor.pending)
        made = general(self, *args, **options)
        # Learn it only if the method recorded exactly one call, on this tensor alone, and returned its output.
        if len(executor.pending) == before + 1 and made.__class__ is StandIn and not made._handle.is_part:
            call_made = executor.pending[-1]
            only = len(call_made.inputs) == 1 and call_made.inputs[0] is value and call_made.extra is None
            if only and made._handle.call is call_made and made._handle.origin is None:
                executor.learn_fast_path(key, made)
        return made

    return call


def _join(op: Op) -> Any:
    """`cat` or `stack` of lazy tensors."""

    def call(tensors: Any, dim: Any) -> Any:
        mode: Any = STATE.mode
        executor: Any = None if mode is None else mode.executor
        if executor.__class__ is not Session or mode.inference or dim.__class__ is not int:
            return NotImplemented
        if any([t.__class__ is not StandIn for t in tensors]):
            return NotImplemented
        values = tuple([t._handle for t in tensors])
        rows = [value.row for value in values]
        key = (op, dim, *rows)
        record = executor.op_fast_paths[mode.grad].get(key)
        if record is not None:
            return record(executor, values, 3)[0]
        first = rows[0]
        if any([row.dtype is not first.dtype or len(row.shape) != len(first.shape) for row in rows]):
            return NotImplemented  # tensors of one dtype and rank are joined as they are
        rank = len(first.shape) + (op is _STACK)
        if not -rank <= dim < rank:
            return NotImplemented
        made = executor.apply(op, tuple(tensors), {"dim": dim % rank})
        executor.learn_fast_path(key, made)
        return made

    return call


# (method, row, arguments) → for each part: its row, its offset in bytes, the view op and its attributes.
_PARTS: dict[Any, tuple[tuple[Row, int, Op, dict[str, Any]], ...]] = {}
_CACHE_SIZE = 4096


def _parts(name: str, general: Any) -> Any:
    """A method that returns one view of a tensor, or a tuple of views."""
    several = name in _SEVERAL

    def call(self: Tensor, *args: Any, **options: Any) -> Any:
        mode = STATE.mode
        session: Any = None if mode is None else mode.executor
        if session.__class__ is not Session or self.__class__ is not StandIn:
            return general(self, *args, **options)
        value = self._handle
        key = (name, value.row, *args, *options.items())
        try:
            found = _PARTS.get(key)
        except TypeError:
            return general(self, *args, **options)
        # As an index True is not 1.
        if found is None or bool in map(type, args):
            whole = general(self, *args, **options)
            _learn_parts(key, self, whole)
            return whole
        value.has_views = True
        live = session.live
        grad = mode.grad and value.needs_grad  # type: ignore[union-attr]
        call, number, before = value.call, value.number, value.offset
        made: list[Any] = []
        for row, offset, op, attrs in found:
            # `Value(...)` and `lazy()` written out, for speed: views are as frequent as calls.
            part = _new_value(Value)
            part.call, part.number, part.row = call, number, row
            part.needs_grad = needs_grad = grad and row.is_float
            part.is_part = True
            part.offset = before + offset
            part.view_of = (self, op, attrs)
            t = _new_tensor(StandIn)
            t._handle = part
            t._requires_grad = needs_grad
            made.append(t)
        live += map(ref, made)
        return tuple(made) if several else made[0]

    return call


def _learn_parts(key: Any, whole: Tensor, made: Any) -> None:
    """Remember the result of the general path, if it consists of contiguous parts of the tensor."""
    parts = made if isinstance(made, tuple) else (made,)
    found = []
    for t in parts:
        if t.__class__ is not StandIn or not t._handle.is_part:
            return
        base, op, attrs = t._handle.view_of
        if base is not whole or op is None:
            return
        found.append((t._handle.row, t._handle.offset - whole._handle.offset, op, attrs))
    if len(_PARTS) >= _CACHE_SIZE:
        _PARTS.clear()
    _PARTS[key] = tuple(found)


def _natively(call: Any, name: str, arity: int, flag: bool) -> Any:
    """The native form of a method, which leaves what is not known yet to `call`: of an op of one or two tensors
    (`flag`: reversed), or, with arity 0, of a method that returns parts (`flag`: one part, not a tuple)."""
    return call if NATIVE is None else NATIVE.LazyMethod(call, REGISTRY[name] if arity else name, arity, flag)


def _no_fast_path(*_: Any) -> Any:
    return NotImplemented


def install() -> None:
    """Set the fast paths as methods of StandIn, and for the function forms."""
    for name, op in _OPERATORS.items():
        for reverse in (False, True):
            method = f"__{'r' * reverse}{name}__"
            setattr(StandIn, method, _natively(_binary(REGISTRY[op], getattr(Tensor, method), reverse), op, 2, reverse))
        FAST_PATHS[REGISTRY[op]] = _natively(_binary(REGISTRY[op], _no_fast_path, False), op, 2, False)
    for method in _COMPARISONS:
        name = method.strip("_")
        setattr(StandIn, method, _natively(_binary(REGISTRY[name], getattr(Tensor, method), False), name, 2, False))
    for name in (*_SEVERAL, *_VIEWS):
        setattr(StandIn, name, _natively(_parts(name, getattr(Tensor, name)), name, 0, name not in _SEVERAL))
    for name in _REDUCTIONS:
        setattr(StandIn, name, in_front_of_calls(_method(name, getattr(Tensor, name)), "arguments", name))
    for name in _METHODS:
        op_of_name = REGISTRY[name.strip("_")]
        setattr(StandIn, name, _natively(_unary(op_of_name, getattr(Tensor, name)), op_of_name.name, 1, False))
        FAST_PATHS[op_of_name] = _natively(_unary(op_of_name, _no_fast_path), op_of_name.name, 1, False)
    for joining in (REGISTRY["cat"], _STACK):
        FAST_PATHS[joining] = in_front_of_calls(_join(joining), "join", joining)


if NATIVE is not None:
    NATIVE.set_up_recording(
        StandIn, Call, Value, Row, RowCopy, RowCopies, Session, Mode, MISSED, check_now, _PARTS, EPOCH, Hub
    )
    Session.opaque_call = in_front_of_calls(Session.opaque_call, "opaque")  # type: ignore[method-assign]
install()

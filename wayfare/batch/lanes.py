"""Short ways for the commonest ops on lazy tensors: operators and functions of one or two tensors of one dtype.

The general way asks what dtype the result has and who runs ops now; for these the answers are known.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

from wayfare.batch.lazy import LazyTensor
from wayfare.batch.session import Session
from wayfare.batch.value import Row, Value
from wayfare.core.mode import STATE
from wayfare.core.op import REGISTRY, Op
from wayfare.core.tensor import Tensor, constant

_new_value, _new_tensor = Value.__new__, Tensor.__new__
_F32, _F64 = np.dtype("float32"), np.dtype("float64")
_OPERATORS = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}
_REDUCTIONS = ("sum", "mean", "softmax", "log_softmax", "logsumexp", "argmax", "argmin", "norm", "amax", "amin")
_COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")
_METHODS = ("sigmoid", "tanh", "relu", "exp", "log", "neg", "sqrt", "square", "abs", "sin", "cos", "__neg__")


def _binary(op: Op, general: Any, reverse: bool) -> Any:
    def call(self: Tensor, other: Any) -> Any:
        # Lazy tensors are there only while an executor is in force: in this thread, or in another one.
        mode: Any = STATE.mode
        executor: Any = None if mode is None else mode.executor
        if executor.__class__ is not Session:
            return general(self, other)
        value = self._lazy
        row = value.row
        dtype = row.dtype
        kind = other.__class__
        if dtype is not _F32 and dtype is not _F64:
            return general(self, other)
        if kind is LazyTensor:
            second = other._lazy
            key = (op, second.row, row) if reverse else (op, row, second.row)
        elif kind is float or kind is int:
            second = other = constant(other, dtype)
            key = (op, row, reverse)
        else:
            return general(self, other)
        record = executor.shorts[mode.grad].get(key)
        if record is not None and not mode.inference:
            return record(executor, (second, value) if reverse else (value, second), 2)[0]
        if kind is LazyTensor and second.row.dtype is not dtype:
            return general(self, other)
        made = executor.apply(op, (other, self) if reverse else (self, other), {})
        executor.learn_short(key, made)
        return made

    return call


def _unary(op: Op, general: Any) -> Any:
    def call(self: Tensor) -> Any:
        if self.__class__ is not LazyTensor:
            return general(self)  # it has become an ordinary one since the method was looked up
        mode: Any = STATE.mode
        executor: Any = None if mode is None else mode.executor
        if executor.__class__ is not Session:
            return general(self)
        value = self._lazy
        key = (op, value.row)
        record = executor.shorts[mode.grad].get(key)
        if record is not None and not mode.inference:
            return record(executor, (value,), 2)[0]
        dtype = value.row.dtype
        if dtype is not _F32 and dtype is not _F64:
            return general(self)
        made = executor.apply(op, (self,), {})
        executor.learn_short(key, made)
        return made

    return call


def _method(name: str, general: Any) -> Any:
    """A method that depends on the tensor and its arguments, whole numbers or nothing: learnt from what it did."""

    def call(self: Tensor, *args: Any, **options: Any) -> Any:
        if self.__class__ is not LazyTensor:
            return general(self, *args, **options)  # since the method was looked up its arguments were waited for
        mode: Any = STATE.mode
        executor: Any = None if mode is None else mode.executor
        if executor.__class__ is not Session or options or mode.inference:
            return general(self, *args, **options)
        value = self._lazy
        # The types too: True is not 1.
        key = (name, value.row, args, tuple(map(type, args)))
        try:
            record = executor.shorts[mode.grad].get(key)
        except TypeError:
            return general(self, *args)
        if record is not None:
            return record(executor, (value,), 2)[0]
        before = len(executor.pending)
        made = general(self, *args)
        # One call of this tensor and nothing else, and what it gave is what comes out.
        if len(executor.pending) == before + 1 and made.__class__ is LazyTensor and not made._lazy.is_part:
            call_made = executor.pending[-1]
            only = len(call_made.inputs) == 1 and call_made.inputs[0] is value and call_made.extra is None
            if only and made._lazy.call is call_made and made._lazy.origin is None:
                executor.learn_short(key, made)
        return made

    return call


# What a way of taking a row apart gives: for each part its row, the bytes before it, the view op and its attributes.
_PARTS: dict[Any, tuple[tuple[Row, int, Op, dict[str, Any]], ...]] = {}
_MOST = 4096


def _parts(name: str, general: Any) -> Any:
    """A method that gives parts of a tensor (one, or a tuple of them)."""

    def call(self: Tensor, *args: Any) -> Any:
        mode = STATE.mode
        session: Any = None if mode is None else mode.executor
        if session.__class__ is not Session or self.__class__ is not LazyTensor:
            return general(self, *args)
        value = self._lazy
        key = (name, value.row, *args)
        try:
            found = _PARTS.get(key)
        except TypeError:
            return general(self, *args)
        # As indices True and False are not the numbers they are equal to.
        if found is None or bool in map(type, args):
            whole = general(self, *args)
            _learn(key, self, whole)
            return whole
        value.viewed = True
        live = session.live
        grad = mode.grad and value.needs  # type: ignore[union-attr]
        call, number, before = value.call, value.number, value.offset
        made: list[Any] = []
        for row, offset, op, attrs in found:
            # Written out, as in recording: parts are taken as often as calls are made.
            part = _new_value(Value)
            part.call, part.number, part.row = call, number, row
            part.needs = needs = grad and row.is_float
            part.is_part = True
            part.offset = before + offset
            part.seen_from = (self, op, attrs)
            t = _new_tensor(LazyTensor)
            t._lazy = part
            t._requires_grad = needs
            made.append(t)
        live += map(ref, made)
        return tuple(made) if name != "__getitem__" else made[0]

    return call


def _learn(key: Any, whole: Tensor, made: Any) -> None:
    """Remember what came out, if all of it are dense parts of the tensor."""
    parts = made if isinstance(made, tuple) else (made,)
    found = []
    for t in parts:
        if t.__class__ is not LazyTensor or not t._lazy.is_part:
            return
        base, op, attrs = t._lazy.seen_from
        if base is not whole or op is None:
            return
        found.append((t._lazy.row, t._lazy.offset - whole._lazy.offset, op, attrs))
    if len(_PARTS) >= _MOST:
        _PARTS.clear()
    _PARTS[key] = tuple(found)


def install() -> None:
    """Give lazy tensors methods of their own for these ops."""
    for name, op in _OPERATORS.items():
        for reverse in (False, True):
            method = f"__{'r' * reverse}{name}__"
            setattr(LazyTensor, method, _binary(REGISTRY[op], getattr(Tensor, method), reverse))
    for method in _COMPARISONS:
        setattr(LazyTensor, method, _binary(REGISTRY[method.strip("_")], getattr(Tensor, method), False))
    for name in ("chunk", "split", "unbind", "__getitem__"):
        setattr(LazyTensor, name, _parts(name, getattr(Tensor, name)))
    for name in _REDUCTIONS:
        setattr(LazyTensor, name, _method(name, getattr(Tensor, name)))
    for name in _METHODS:
        setattr(LazyTensor, name, _unary(REGISTRY[name.strip("_")], getattr(Tensor, name)))


install()

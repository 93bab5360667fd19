"""Short ways for the commonest ops on lazy tensors: operators and functions of one or two tensors of one dtype.

The general way asks what dtype the result has and who runs ops now; for these the answers are known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.batched.lazy import LazyTensor, lazy
from wayfare.batched.session import Session
from wayfare.batched.value import Row
from wayfare.op import REGISTRY, Op
from wayfare.state import STATE
from wayfare.tensor import Tensor, constant

_F32, _F64 = np.dtype("float32"), np.dtype("float64")
_OPERATORS = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}
_METHODS = ("sigmoid", "tanh", "relu", "exp", "log", "neg", "sqrt", "square", "abs", "sin", "cos", "__neg__")


def _binary(op: Op, general: Any, reverse: bool) -> Any:
    def call(self: Tensor, other: Any) -> Any:
        # Lazy tensors are there only while an executor is in force.
        executor: Any = STATE.mode.executor  # type: ignore[union-attr]
        if executor.__class__ is Session:
            dtype = self._lazy.row.dtype
            if dtype is _F32 or dtype is _F64:
                kind = other.__class__
                if kind is LazyTensor:
                    if other._lazy.row.dtype is dtype:
                        return executor.two(op, other, self) if reverse else executor.two(op, self, other)
                elif kind is float or kind is int:
                    number = constant(other, dtype)
                    return executor.two(op, number, self) if reverse else executor.two(op, self, number)
        return general(self, other)

    return call


def _unary(op: Op, general: Any) -> Any:
    def call(self: Tensor) -> Any:
        executor: Any = STATE.mode.executor  # type: ignore[union-attr]
        if executor.__class__ is Session:
            dtype = self._lazy.row.dtype
            if dtype is _F32 or dtype is _F64:
                return executor.one(op, self)
        return general(self)

    return call


# What a way of taking a row apart gives: for each part its row, the bytes before it, the view op and its attributes.
_PARTS: dict[Any, tuple[tuple[Row, int, Op, dict[str, Any]], ...]] = {}
_MOST = 4096


def _parts(name: str, general: Any) -> Any:
    """A method that gives parts of a tensor (one, or a tuple of them)."""

    def call(self: Tensor, *args: Any) -> Any:
        mode = STATE.mode
        session: Any = None if mode is None else mode.executor
        if session.__class__ is not Session:
            return general(self, *args)
        value = self._lazy
        key = (name, value.row, *args)
        try:
            found = _PARTS.get(key)
        except TypeError:
            return general(self, *args)
        if found is None or True in args or False in args:  # as indices those are not the numbers they are equal to
            made = general(self, *args)
            _learn(key, self, made)
            return made
        value.viewed = True
        live = session.live
        grad = mode.grad and value.needs  # type: ignore[union-attr]
        made = []
        for row, offset, op, attrs in found:
            part = value.part(row, offset, grad and row.is_float)
            part.seen_from = (self, op, attrs)
            t = lazy(part)
            live.append(t)
            made.append(t)
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
    for name in ("chunk", "split", "unbind", "__getitem__"):
        setattr(LazyTensor, name, _parts(name, getattr(Tensor, name)))
    for name in _METHODS:
        setattr(LazyTensor, name, _unary(REGISTRY[name.strip("_")], getattr(Tensor, name)))


install()

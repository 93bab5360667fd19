"""Short ways for the commonest ops on lazy tensors: operators and functions of one or two tensors of one dtype.

The general way asks what dtype the result has and who runs ops now; for these the answers are known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.batched.lazy import LazyTensor
from wayfare.batched.session import Session
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


def install() -> None:
    """Give lazy tensors methods of their own for these ops."""
    for name, op in _OPERATORS.items():
        for reverse in (False, True):
            method = f"__{'r' * reverse}{name}__"
            setattr(LazyTensor, method, _binary(REGISTRY[op], getattr(Tensor, method), reverse))
    for name in _METHODS:
        setattr(LazyTensor, name, _unary(REGISTRY[name.strip("_")], getattr(Tensor, name)))


install()

"""Tensors among others: NumPy's functions on them (`np.sin(t)`, `array + t`) keep the history or say why not, and
pickle carries leaves between processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.errors import ArgumentTypeError, GraphError
from wayfare.functions._public import promoted
from wayfare.functions.generator import Generator
from wayfare.functions.matmul import matmul
from wayfare.op import REGISTRY, Op
from wayfare.tensor import Tensor, fill


def _op_of(ufunc: Any) -> Op | None:
    """The elementwise op whose forward is this very NumPy function."""
    return next((op for op in REGISTRY.values() if op.forward is ufunc), None)


def array_ufunc(self: Tensor, ufunc: Any, how: str, *inputs: Any, **options: Any) -> Any:
    """NumPy asks here before it would turn a tensor into a bare array and lose its gradient."""
    if ufunc is np.matmul and how == "__call__" and not options:
        return matmul(*inputs)
    op = _op_of(ufunc) if how == "__call__" else None
    if op is None or options:
        shown = ufunc.__name__ if how == "__call__" else f"{ufunc.__name__}.{how}"
        extra = f" with {', '.join(options)}=" if options else ""
        raise ArgumentTypeError(f"numpy.{shown}{extra} does not work on tensors",
                                fix="Use the function of wayfare, or .detach().numpy() for a plain array.")  # fmt: skip
    return promoted(op, inputs)


Tensor.__array_ufunc__ = array_ufunc  # type: ignore[attr-defined]


def rebuilt(kind: type[Tensor], array: Any, requires_grad: bool, role: str | None) -> Tensor:
    """The tensor that `reduce_tensor` took apart."""
    # What came as bytes cannot be written to, but a tensor can.
    out = fill(kind.__new__(kind), array if array.flags.writeable else array.copy())
    out._requires_grad = requires_grad
    if role is not None:
        out._role = role
    return out


def reduce_tensor(self: Tensor, protocol: Any) -> tuple[Any, ...]:
    """For pickle: the array, whether a gradient is wanted, and the mark of a parameter; no gradient and no hooks.

    A view is stored alone, without the rest of the memory it looks into. From protocol 5 on the numbers can travel
    out of band, without a copy.
    """
    if self.requires_grad and not self.is_leaf:
        raise GraphError("pickle: only leaves can be pickled, this tensor was computed and its history cannot travel",
                         fix="Use .detach() to leave the history behind.")  # fmt: skip
    return rebuilt, (type(self), self._read("pickle"), self.requires_grad, getattr(self, "_role", None))


def rebuilt_generator(state: Tensor) -> Generator:
    """The generator that `reduce_generator` took apart."""
    return Generator().set_state(state)


def reduce_generator(self: Generator) -> tuple[Any, ...]:
    """For pickle and copy: another generator that goes on from the same place."""
    return rebuilt_generator, (self.get_state(),)


Tensor.__reduce_ex__ = reduce_tensor  # type: ignore[method-assign, assignment]
Generator.__reduce__ = reduce_generator  # type: ignore[method-assign, assignment]

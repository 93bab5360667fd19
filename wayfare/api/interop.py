"""Tensors among others: NumPy's functions on them (`np.sin(t)`, `array + t`) keep the history or say why not, and
pickle carries leaves between processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.api.functions._public import promoted
from wayfare.api.functions.matmul import matmul
from wayfare.core.errors import ArgumentTypeError, GraphError
from wayfare.core.generator import Generator
from wayfare.core.op import REGISTRY, Op
from wayfare.core.tensor import Tensor, fill


def _op_of(ufunc: Any) -> Op | None:
    """The elementwise op whose forward is this very NumPy function, or makes use of it."""
    return next((op for op in REGISTRY.values() if getattr(op.forward, "ufunc", op.forward) is ufunc), None)


def array_ufunc(self: Tensor, ufunc: Any, how: str, *inputs: Any, **options: Any) -> Any:
    """NumPy calls this before it would convert a tensor to a plain array and lose its gradient."""
    if ufunc is np.matmul and how == "__call__" and not options:
        return matmul(*inputs)
    op = _op_of(ufunc) if how == "__call__" else None
    out = options.get("out", ())
    if (how != "__call__" or out) and not any(isinstance(array, Tensor) for array in out):
        # np.add.reduce(t), array += t: what comes out is an array, as of NumPy's other functions.
        return getattr(ufunc, how)(*_as_arrays(inputs), **_as_arrays(options))
    if op is None or options:
        shown = ufunc.__name__ if how == "__call__" else f"{ufunc.__name__}.{how}"
        extra = f" with {', '.join(options)}=" if options else ""
        raise ArgumentTypeError(f"numpy.{shown}{extra} does not work on tensors",
                                fix="Use the function of wayfare, or .detach().numpy() for a plain array.")  # fmt: skip
    return promoted(op, inputs)


def array_function(self: Tensor, function: Any, types: Any, args: Any, options: Any) -> Any:
    """NumPy's other functions read tensors as arrays, and refuse one that requires a gradient.

    Without this some of them would call the tensor's method of the same name, with arguments it does not have.
    """
    if not options and len(args) == 1 and function in _OF_SHAPE:
        return _OF_SHAPE[function](args[0])
    return function(*_as_arrays(args), **_as_arrays(options))


# What can be said of a tensor without its numbers.
_OF_SHAPE: dict[Any, Callable[[Tensor], Any]] = {
    np.shape: lambda t: tuple(t.shape), np.ndim: lambda t: t.ndim, np.size: lambda t: t.numel(),
}  # fmt: skip


def _as_arrays(part: Any) -> Any:
    if isinstance(part, Tensor):
        return np.asarray(part)
    if part.__class__ in (tuple, list):
        return part.__class__([_as_arrays(inner) for inner in part])
    return {name: _as_arrays(inner) for name, inner in part.items()} if part.__class__ is dict else part


Tensor.__array_ufunc__ = array_ufunc  # type: ignore[attr-defined]
Tensor.__array_function__ = array_function  # type: ignore[attr-defined]


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
    array = self._read("pickle")  # after this it is an ordinary tensor, if it was still to be computed
    return rebuilt, (type(self), array, self.requires_grad, getattr(self, "_role", None))


def rebuilt_generator(state: Tensor) -> Generator:
    """The generator that `reduce_generator` took apart."""
    return Generator().set_state(state)


def reduce_generator(self: Generator) -> tuple[Any, ...]:
    """For pickle and copy: another generator that goes on from the same place."""
    return rebuilt_generator, (self.get_state(),)


Tensor.__reduce_ex__ = reduce_tensor  # type: ignore[method-assign, assignment]
Generator.__reduce__ = reduce_generator  # type: ignore[method-assign, assignment]

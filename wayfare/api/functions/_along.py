"""What the functions that work along dimensions share: checks of dims and dtypes, pairs of values and indices."""

from __future__ import annotations

from typing import Any, NamedTuple

from wayfare.api.functions._guard import tensor_advice
from wayfare.api.functions._public import as_dtype_of
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentTypeError, DTypeError, IndexRangeError, NoSuchDimensionError
from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import as_dtype, normal_dim, normal_dims
from wayfare.core.tensor import Tensor


class Unset:
    """The default of a `dim` that may be left out but may not be None, as in PyTorch."""

    def __repr__(self) -> str:
        return "<all>"


UNSET = Unset()


class ValuesAndIndices(NamedTuple):
    """Elements picked along a dimension, and where they were."""

    values: Tensor
    indices: Tensor


def check_tensor(op: str, input: Any) -> None:
    """The first argument must be a tensor."""
    if not isinstance(input, Tensor):
        kind = type(input)
        shown = f"{kind.__module__}.Tensor" if kind.__name__ == "Tensor" else kind.__name__
        raise ArgumentTypeError(f"{op}: expected a tensor, not {shown}", fix=tensor_advice(input))


def check_tensors(op: str, *inputs: Any) -> None:
    """All of these arguments must be tensors."""
    for input in inputs:
        check_tensor(op, input)


def cast_first(op: str, input: Tensor, dtype: Any) -> Tensor:
    """`dtype=` of a reduction: the input is converted before anything is added up."""
    check_tensor(op, input)
    return input if dtype is None else as_dtype_of(input, as_dtype(dtype, op=op))


def cast_last(result: Tensor, dtype: Any) -> Tensor:
    """Integers are added up in int64; with `dtype=` the result has the dtype asked for."""
    return result if dtype is None else as_dtype_of(result, as_dtype(dtype))


def check_floating(op: str, input: Tensor) -> None:
    """Refuse integers and bools: the result exists for floats only."""
    if not input.dtype.is_floating_point:
        raise DTypeError(f"{op}: needs floating-point numbers, this is {input.spec}",
                         fix="Convert it with .float() first.")  # fmt: skip


def check_not_empty(op: str, input: Tensor, dim: tuple[int, ...]) -> None:
    """Refuse an empty dimension: it has no largest or smallest element."""
    shape = input.shape
    if len(dim) == len(shape) and 0 in shape:
        raise NoSuchDimensionError(f"{op}: there is no {op} of {input.spec}, which has no elements")
    for d in dim:
        if shape[d] == 0:
            raise IndexRangeError(f"{op}: dimension {d} of {input.spec} is empty, so there is no {op} along it",
                                  fix="Reduce along a dimension that has elements.")  # fmt: skip


def dims_of(op: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """`normal_dims`, quickly for the commonest case of one dimension."""
    if dim.__class__ is int and -ndim <= dim < ndim:
        return (dim + ndim if dim < 0 else dim,)
    return normal_dims(op, dim, ndim)


def along(op: Op, input: Tensor, dim: Any, name: str, **attrs: Any) -> Any:
    """Apply an op that works along one dimension; a 0-dim tensor counts as one element."""
    check_tensor(name, input)
    d = normal_dim(name, dim, input.ndim)
    if input.ndim:
        return apply(op, (input,), {"dim": d, **attrs})
    reshape = REGISTRY["reshape"]
    out = apply(op, (apply(reshape, (input,), {"shape": (1,)}),), {"dim": 0, **attrs})
    if isinstance(out, tuple):
        return tuple(apply(reshape, (o,), {"shape": ()}) for o in out)
    return apply(reshape, (out,), {"shape": ()})

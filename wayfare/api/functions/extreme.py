"""Largest and smallest, with and without their places."""

from __future__ import annotations

from typing import Any, NamedTuple

from wayfare.api.functions._along import UNSET, Unset, ValuesAndIndices, along, check_not_empty, check_tensor
from wayfare.api.functions._public import method, promoted
from wayfare.api.functions.reduce import Dims
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentTypeError, DTypeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import bool_, normal_dim, normal_dims
from wayfare.core.tensor import Tensor

__all__ = ["amax", "amin", "aminmax", "max", "min", "argmax", "argmin"]


class MinAndMax(NamedTuple):
    """What `aminmax` gives."""

    min: Tensor
    max: Tensor


def _values(op: str, input: Tensor, dim: Any, keepdim: bool, name: str) -> Tensor:
    check_tensor(name, input)
    dims = normal_dims(name, dim, input.ndim)
    check_not_empty(name, input, dims)
    return apply(REGISTRY[op], (input,), {"dim": dims, "keepdim": keepdim})  # type: ignore[no-any-return]


@method
def amax(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """The largest element over `dim`; equal ones share the gradient evenly."""
    return _values("amax", input, dim, keepdim, "amax")


@method
def amin(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """The smallest element over `dim`; equal ones share the gradient evenly."""
    return _values("amin", input, dim, keepdim, "amin")


@method
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinAndMax:
    """The smallest and the largest element, of all or along one dimension."""
    if dim is not None:
        check_tensor("aminmax", input)
        dim = normal_dim("aminmax", dim, input.ndim)
    least = _values("amin", input, dim, keepdim, "aminmax")
    return MinAndMax(least, _values("amax", input, dim, keepdim, "aminmax"))


def _extreme(name: str, input: Tensor, dim: Any, keepdim: bool, other: Any) -> Any:
    check_tensor(name, input)
    if other is not None:
        dim = other
    if isinstance(dim, Tensor):
        return promoted(REGISTRY[name + "imum"], (input, dim))
    if isinstance(dim, Unset):
        if keepdim:
            raise ArgumentTypeError(f"{name}: keepdim needs a dim", fix=f"Use a{name} to keep all dimensions.")
        return _values(name + "_of_all", input, None, False, name)
    d = normal_dim(name, dim, input.ndim)
    check_not_empty(name, input, (d,) if input.ndim else ())
    return ValuesAndIndices(*along(REGISTRY[name + "_at"], input, d, name, keepdim=keepdim))


@method
def max(
    input: Tensor, dim: int | Tensor | Unset = UNSET, keepdim: bool = False, *, other: Tensor | None = None
) -> Any:
    """The largest of all elements; with a dim, values and indices along it; with another tensor, the larger of
    the two element by element."""
    return _extreme("max", input, dim, keepdim, other)


@method
def min(
    input: Tensor, dim: int | Tensor | Unset = UNSET, keepdim: bool = False, *, other: Tensor | None = None
) -> Any:
    """The smallest of all elements; with a dim, values and indices along it; with another tensor, the smaller of
    the two element by element."""
    return _extreme("min", input, dim, keepdim, other)


def _place(name: str, input: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    check_tensor(name, input)
    if input.dtype is bool_:
        raise DTypeError(f"{name}: does not take bool, this is {input.spec}", fix="Convert it with .int() first.")
    if dim is None:
        check_not_empty(name, input, tuple(range(input.ndim)))
        shape = input.shape
        flat = apply(REGISTRY["reshape"], (input,), {"shape": (shape.numel(),)}) if input.ndim != 1 else input
        out = apply(REGISTRY[name], (flat,), {"dim": (0,), "keepdim": False})
        return apply(REGISTRY["reshape"], (out,), {"shape": (1,) * len(shape)}) if keepdim else out  # type: ignore[no-any-return]
    d = normal_dim(name, dim, input.ndim)
    dims = (d,) if input.ndim else ()
    check_not_empty(name, input, dims)
    return apply(REGISTRY[name], (input,), {"dim": dims, "keepdim": keepdim})  # type: ignore[no-any-return]


@method
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the largest element is (the first of equals): in the flattened tensor, or along one dimension."""
    return _place("argmax", input, dim, keepdim)


@method
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the smallest element is (the first of equals): in the flattened tensor, or along one dimension."""
    return _place("argmin", input, dim, keepdim)

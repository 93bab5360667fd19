"""Where a database entry lives in the module under test: a function, a method, or a wrapped call.

The database calls an entry with the tensor first, whatever the public signature is; for the entries whose
public signature differs, `_WRAPPED` says how the call is written, for any module `m` with PyTorch's API.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.oracle.areas import area


@dataclass(frozen=True)
class Entry:
    """One entry of PyTorch's operator database."""

    record: Any
    name: str
    area: str

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes the referee runs: the floats, or for an entry without floats int64 and bool."""
        floats = tuple(dtype for dtype in (torch.float32, torch.float64) if dtype in self.record.dtypes)
        if floats:
            return floats
        return tuple(dtype for dtype in (torch.int64, torch.bool) if dtype in self.record.dtypes)


@cache
def database() -> dict[str, Entry]:
    """All entries by name; the variant follows the name after a dot."""
    entries = {}
    for record in op_db:
        variant = record.variant_test_name
        name = f"{record.name}.{variant}" if variant else record.name
        entries[name] = Entry(record, name, area(record.name, variant, type(record).__name__))
    return entries


def _method(name: str) -> Callable[[Any], Callable[..., Any]]:
    def find(m: Any) -> Callable[..., Any]:
        getattr(m.Tensor, name)
        return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)

    return find


def _on_a_copy(name: str) -> Callable[[Any], Callable[..., Any]]:
    def find(m: Any) -> Callable[..., Any]:
        getattr(m.Tensor, name)
        return lambda x, *args, **kwargs: getattr(x.clone(), name)(*args, **kwargs)

    return find


def _property(name: str) -> Callable[[Any], Callable[..., Any]]:
    def find(m: Any) -> Callable[..., Any]:
        getattr(m.Tensor, name)
        return operator.attrgetter(name)

    return find


def _swapped(path: str) -> Callable[[Any], Callable[..., Any]]:
    """A function whose first two arguments the database gives the other way round."""

    def find(m: Any) -> Callable[..., Any]:
        function = operator.attrgetter(path)(m)
        return lambda first, second, *args, **kwargs: function(second, first, *args, **kwargs)

    return find


def _of_product(path: str) -> Callable[[Any], Callable[..., Any]]:
    """A function of a matrix which the database gives as two factors, so that its rank is low."""

    def find(m: Any) -> Callable[..., Any]:
        function = operator.attrgetter(path)(m)
        return lambda a, b, **kwargs: function(a @ b.mT, **kwargs)

    return find


def _slice(m: Any) -> Callable[..., Any]:
    def along(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
        index = [slice(None)] * x.ndim
        index[dim] = slice(start, end, step)
        return x[tuple(index)]

    return along


def _least_squares(m: Any) -> Callable[..., Any]:
    lstsq = m.linalg.lstsq
    return lambda a, b, driver: lstsq(a, b, driver=driver)[:2]


def _reverse_division(m: Any) -> Callable[..., Any]:
    return _special_method(m.Tensor, "__rtruediv__")


_WRAPPED: dict[str, Callable[[Any], Callable[..., Any]]] = {
    **{name: _property(name) for name in ("T", "H", "mT", "mH")},
    **{name: _on_a_copy(name) for name in ("resize_", "resize_as_", "zero_")},
    "normal.in_place": _method("normal_"),
    **{name: _method(name + "_") for name in ("cauchy", "exponential", "geometric", "log_normal", "uniform")},
    # `torch.bool` and its like are dtypes; the entries are the conversion methods.
    **{
        name: _method(name)
        for name in ("bool", "byte", "char", "short", "int", "long", "half", "float", "double", "bfloat16")
    },
    **{name: _method(name) for name in ("cfloat", "cdouble", "chalf")},
    "slice": _slice,
    "einsum": _swapped("einsum"),
    "where": _swapped("where"),
    "normal.number_mean": _swapped("normal"),
    "special.polygamma.special_polygamma_n_0": _swapped("special.polygamma"),
    **{f"polygamma.polygamma_n_{n}": _swapped("polygamma") for n in range(5)},
    "nn.functional.embedding": _swapped("nn.functional.embedding"),
    "nn.functional.embedding_bag": _swapped("nn.functional.embedding_bag"),
    **{name: _of_product(name) for name in ("svd_lowrank", "pca_lowrank")},
    "linalg.pinv.singular": _of_product("linalg.pinv"),
    "linalg.lstsq.grad_oriented": _least_squares,
    "__rdiv__": _reverse_division,
}


def find(module: Any, entry: Entry) -> Callable[..., Any] | None:
    """How to call the entry in `module`, or None where the module does not have it."""
    wrapped = _WRAPPED.get(entry.name)
    name = entry.record.name
    try:
        if wrapped is not None:
            return wrapped(module)
        if name.startswith("__"):
            return _special_method(module.Tensor, name)
        return _function(module, name) or _method(name)(module)
    except AttributeError:
        return None


def _special_method(tensor_class: type, name: str) -> Callable[..., Any]:
    """The class's own method: `getattr` would also find `type.__ror__`, which joins classes into a union."""
    for cls in tensor_class.__mro__:
        if cls is not object and name in vars(cls):
            return vars(cls)[name]
    raise AttributeError(name)


def _function(module: Any, path: str) -> Callable[..., Any] | None:
    try:
        function = operator.attrgetter(path)(module)
    except AttributeError:
        return None
    return function if callable(function) else None


def find_method(module: Any, entry: Entry) -> Callable[..., Any] | None:
    """The entry as a method of the module's Tensor."""
    return _form(module, entry.record.method_variant)


def find_in_place(module: Any, entry: Entry) -> Callable[..., Any] | None:
    """The entry as a method that writes into its tensor, called on a copy."""
    name = getattr(entry.record.inplace_variant, "__name__", "")
    if not hasattr(module.Tensor, name) or not name.endswith("_") or name.startswith("_"):
        return None
    return _on_a_copy(name)(module)


def _form(module: Any, variant: Any) -> Callable[..., Any] | None:
    name = getattr(variant, "__name__", "")
    if not hasattr(module.Tensor, name) or name.startswith("_"):
        return None
    return _method(name)(module)


def found(module: Any) -> Iterator[Entry]:
    """The entries that `module` has."""
    return (entry for entry in database().values() if entry.dtypes and find(module, entry) is not None)

"""Stand-ins: tensors without numbers, which an executor hands out for results that are not computed now.

A stand-in knows its shape, its dtype and whether it requires a gradient. Everything else is known by its handle, which
is the executor's own: a value of the graph while `@wf.fused` traces a function, a result of a pending call in `wf.map`.
Whatever needs the memory or the autograd edge of a stand-in asks the handle to materialise it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Protocol

from wayfare.core.device import Device, device_of
from wayfare.core.native import NATIVE
from wayfare.core.spec import OF_NUMPY, DType, Size
from wayfare.core.tensor import Tensor

_new = Tensor.__new__

# Op → what applies it to stand-ins quickly (the function forms come by here), or returns NotImplemented. An executor
# sets them.
FAST_PATHS: dict[Any, Callable[..., Any]] = {}


class StandInHandle(Protocol):
    """What an executor knows about one of its stand-ins."""

    @property
    def row(self) -> Any:
        """What has its shape, and its dtype (a NumPy dtype), as attributes."""

    @property
    def device(self) -> Device:
        """Where its tensor is, or will be."""

    @property
    def extras(self) -> dict[str, Any] | None:
        """The marks of the tensor (`Tensor._extras`)."""

    @property
    def is_view(self) -> bool:
        """Whether it is a view of another tensor."""

    @property
    def history_name(self) -> str:
        """The name that its `grad_fn` will have, if it requires a gradient."""

    @property
    def is_leaf(self) -> bool:
        """Whether it is a leaf, if it requires a gradient."""

    def materialise(self) -> None:
        """Make its stand-in an ordinary tensor (see `become`), or raise an error that says why that cannot be."""

    def detached(self, tensor: StandIn) -> Tensor:
        """The same values, cut from the history."""

    def text(self, tensor: StandIn) -> str:
        """What `repr` shows."""


class StandIn(Tensor):
    """A tensor without numbers; `_handle` is the executor's own."""

    # No slots of its own, so that its class can be set to Tensor.
    __slots__ = ()

    _grad = _view = None

    def __hash__(self) -> int:
        refuse = getattr(self._handle, "refuse_hash", None)
        if refuse is not None:
            refuse()
        return object.__hash__(self)

    @property
    def _extras(self) -> Any:  # type: ignore[override]
        return self._handle.extras

    @property
    def _array(self) -> Any:  # type: ignore[override]
        _materialise(self)
        return self._array

    @property
    def _edge(self) -> Any:
        _materialise(self)
        return self._edge

    @_edge.setter
    def _edge(self, edge: Any) -> None:
        _materialise(self)
        self._edge = edge

    @property
    def shape(self) -> Size:
        """The size of each dimension."""
        return Size(self._handle.row.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._handle.row.shape)

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return OF_NUMPY[self._handle.row.dtype]

    @property
    def device(self) -> Device:
        """Where it is, or will be."""
        return self._handle.device if self.__class__ is StandIn else device_of(self._array)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self._handle.row.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.itemsize

    @property
    def is_leaf(self) -> bool:
        """Whether it was made by the user, not computed from tensors that require a gradient."""
        return not self._requires_grad or self._handle.is_leaf

    def _is_view(self) -> bool:
        """Whether it is a view of another tensor."""
        return Tensor._is_view(self) if self.__class__ is not StandIn else self._handle.is_view

    def _history_name(self) -> str:
        """The name of its `grad_fn`, for printing; nothing is computed for that."""
        return self._handle.history_name if self._requires_grad else ""

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for a gradient (or no longer ask). Leaves only."""
        if self._requires_grad and requires_grad:
            return self
        _materialise(self)
        return self.requires_grad_(requires_grad)

    def detach(self) -> Tensor:
        """The same values, cut from the history."""
        return Tensor.detach(self) if self.__class__ is not StandIn else self._handle.detached(self)

    @property
    def data(self) -> Tensor:
        """The same memory without history."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        _materialise(self)
        self.data = value

    def _more(self) -> dict[str, Any]:
        _materialise(self)
        return self._more()

    def __repr__(self) -> str:
        return Tensor.__repr__(self) if self.__class__ is not StandIn else self._handle.text(self)


# Python's own errors name it: "'Tensor' object has no attribute …", as in the plain loop.
StandIn.__name__ = Tensor.__name__


def _materialise(t: StandIn) -> None:
    """Make it an ordinary tensor, unless it became one after the property was looked up."""
    if t.__class__ is StandIn:
        t._handle.materialise()


def stand_in(handle: StandInHandle, requires_grad: bool) -> StandIn:
    """A stand-in with this handle."""
    t = _new(StandIn)
    t._handle = handle
    t._requires_grad = requires_grad
    return t


def _set_class(t: Tensor, cls: type[Tensor]) -> None:
    """A stand-in becomes an ordinary tensor, or a tensor a stand-in."""
    t.__class__ = cls


set_class: Callable[[Tensor, type[Tensor]], None] = _set_class if NATIVE is None else NATIVE.set_class


def become(t: Tensor, real: Tensor) -> None:
    """Turn a stand-in into the ordinary tensor `real`."""
    set_class(t, Tensor)
    t._array, t._edge, t._requires_grad = real._array, real._edge, real._requires_grad
    t._grad, t._view, t._extras = real._grad, real._view, real._extras

"""Lazy tensors: what the user's code gets for a recorded call in `wf.map`.

A lazy tensor knows its shape, its dtype and whether it requires a gradient. Reading its values waits for them. Whatever
needs more than that (its memory, its autograd node) materialises: all pending calls are run, and every lazy tensor that
is still held becomes an ordinary tensor.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from wayfare.batch.record.call import Value
from wayfare.core.errors import GraphError
from wayfare.core.spec import OF_NUMPY, DType, Size
from wayfare.core.tensor import Tensor

_new = Tensor.__new__


class LazyTensor(Tensor):
    """A tensor that is not computed yet; `_lazy` is the recorded Value it stands for."""

    # No slots of its own, so that its class can be set to Tensor.
    __slots__ = ()

    _grad = _view = None

    @property
    def _extras(self) -> Any:  # type: ignore[override]
        return {"inference": True} if self._lazy.call.signature.inference else None

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
        return Size(self._lazy.row.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._lazy.row.shape)

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return OF_NUMPY[self._lazy.row.dtype]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self._lazy.row.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(self._lazy.row.bytes)

    @property
    def is_leaf(self) -> bool:
        """Whether it was made by the user, not computed from tensors that require a gradient."""
        return not self._requires_grad

    def _is_view(self) -> bool:
        """Whether it is a view of another tensor."""
        return Tensor._is_view(self) if self.__class__ is not LazyTensor else self._lazy.origin is not None

    def _history_name(self) -> str:
        """The name of its `grad_fn`, for printing; nothing is computed for that."""
        made_by = self._lazy.call.signature.target
        return getattr(made_by, "grad_name", "MapBackward") if self._requires_grad else ""

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for a gradient (or no longer ask). Leaves only."""
        if self._requires_grad and requires_grad:
            return self
        _materialise(self)
        return self.requires_grad_(requires_grad)

    def detach(self) -> Tensor:
        """The same values, cut from the history."""
        if self.__class__ is not LazyTensor:
            return Tensor.detach(self)
        return lazy_view(self, self._lazy.part(self._lazy.row, 0, False), None, {})

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


def _materialise(t: LazyTensor) -> None:
    """Make it (and all other lazy tensors of the session) an ordinary tensor."""
    if t.__class__ is not LazyTensor:
        return  # it was materialised after the property was looked up
    session = t._lazy.call.signature.session
    if session is None:
        raise GraphError("this tensor was never computed: its map or batching block ended with an error before",
                         fix="Compute it again.")  # fmt: skip
    session.materialise()


def lazy(value: Value) -> LazyTensor:
    """A lazy tensor for a value."""
    t = _new(LazyTensor)
    t._lazy = value
    t._requires_grad = value.needs_grad
    return t


def lazy_view(base: Tensor, value: Value, op: Any, attrs: dict[str, Any]) -> LazyTensor:
    """A lazy tensor that is a view of `base` by a view op (None: `base.detach()`)."""
    base._lazy.has_views = True
    value.view_of = (base, op, attrs)
    t = lazy(value)
    session = value.call.signature.session
    assert session is not None
    session.live.append(ref(t))
    return t


def become(t: Tensor, real: Tensor) -> None:
    """Turn a lazy tensor into the ordinary tensor `real`."""
    t.__class__ = Tensor
    t._array, t._edge, t._requires_grad = real._array, real._edge, real._requires_grad
    t._grad, t._view, t._extras = real._grad, real._view, real._extras

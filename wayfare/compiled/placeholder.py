"""A tensor whose numbers are not computed yet: what Python holds while a compiled function is followed.

It knows its shape, dtype and whether it requires a gradient. Whoever needs more makes the whole call happen for real up
to here, and the placeholder becomes an ordinary tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.spec import OF_NUMPY, DType, Size
from wayfare.tensor import Tensor, View

if TYPE_CHECKING:
    from wayfare.compiled.follow import Follower


class Pending:
    """What stands in the place of an array."""

    __slots__ = ("__weakref__", "contiguous", "dtype", "follower", "number", "shape", "view")

    def __init__(
        self, follower: Follower, number: int, shape: tuple[int, ...], dtype: np.dtype[Any], contiguous: bool,
        view: bool,
    ) -> None:  # fmt: skip
        self.follower, self.number, self.shape, self.dtype = follower, number, shape, dtype
        self.contiguous, self.view = contiguous, view


# What a placeholder of a view is a view of is known when its numbers are.
_SOME_VIEW: Any = View(None, (), None)  # type: ignore[arg-type]
_ARRAY: Any = Tensor.__dict__["_array"]
_EDGE: Any = Tensor.__dict__["_edge"]


class Placeholder(Tensor):
    """A tensor that is not there yet."""

    # No slots of its own: it must be able to become a Tensor.
    __slots__ = ()

    @property
    def _array(self) -> Any:  # type: ignore[override]
        pending(self).follower.happen()
        return _ARRAY.__get__(self)

    @property
    def _edge(self) -> Any:
        pending(self).follower.happen()
        return _EDGE.__get__(self)

    @property
    def shape(self) -> Size:
        """The size of each dimension."""
        return Size(pending(self).shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(pending(self).shape)

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return OF_NUMPY[pending(self).dtype]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(pending(self).dtype.itemsize)

    @property
    def is_leaf(self) -> bool:
        """Was it made by the user, not computed from tensors that require a gradient?"""
        return not self._requires_grad

    def _renew(self) -> None:
        """Its history is what was recorded."""

    def detach(self) -> Tensor:
        """The same memory, cut from the history."""
        return pending(self).follower.shown_as(pending(self), False)

    @property
    def data(self) -> Tensor:
        """The same memory without history."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        pending(self).follower.happen()
        self.data = value


def pending(t: Tensor) -> Pending:
    """What a placeholder stands for."""
    return _ARRAY.__get__(t)  # type: ignore[no-any-return]


def new_placeholder(what: Pending, needs: bool) -> Placeholder:
    """A placeholder."""
    t = Placeholder.__new__(Placeholder)
    _ARRAY.__set__(t, what)
    _EDGE.__set__(t, None)
    t._requires_grad = needs
    t._grad = None
    t._view = _SOME_VIEW if what.view else None
    t._extras = None
    return t


def become(t: Tensor, real: Tensor, cut: bool) -> Tensor:
    """Make a placeholder the tensor it stands for; with `cut`, without its history."""
    t.__class__ = Tensor
    t._array = real._array
    if cut:
        t._edge, t._requires_grad, t._view = None, False, None
    else:
        t._edge, t._requires_grad, t._view = real._edge, real._requires_grad, real._view
        t._extras = real._extras
    return t

"""Reductions of ragged tensors: over all values, within each row, or over features; softmax likewise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import wayfare as wf
from wayfare.core.errors import IndexRangeError, OperationError

if TYPE_CHECKING:
    from wayfare.ragged.ragged import Ragged


class Reductions:
    """Reductions and softmax. Dimension 1 is the ragged one: a reduction over it gives a tensor [rows, …]."""

    __slots__ = ()

    if TYPE_CHECKING:
        values: wf.Tensor
        offsets: wf.Tensor

        @property
        def lengths(self) -> wf.Tensor: ...
        @property
        def ndim(self) -> int: ...
        def map_values(self, function: Callable[[wf.Tensor], wf.Tensor]) -> Ragged: ...

    def sum(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The sum of all values, or along `dim`; 0 for an empty row."""
        return self._along("sum", dim, keepdim, lambda: wf.segment_sum(self.values, self.offsets))

    def mean(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The mean of all values, or along `dim`; NaN for an empty row."""
        return self._along("mean", dim, keepdim, lambda: wf.segment_mean(self.values, self.offsets))

    def max(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The largest value of all, or along `dim` (values only: see `argmax`). Equal ones share the gradient."""
        return self._along("amax", dim, keepdim, lambda: wf.segment_max(self.values, self.offsets), "max")

    def min(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The smallest value of all, or along `dim` (values only: see `argmin`). Equal ones share the gradient."""
        return self._along("amin", dim, keepdim, lambda: wf.segment_min(self.values, self.offsets), "min")

    amax, amin = max, min

    def argmax(self, dim: int) -> Any:
        """Where along `dim` the largest value is (the first of equals); within rows a place from 0 on, [rows, …]."""
        return self._along("argmax", dim, False, lambda: self._first(wf.segment_max), "argmax")

    def argmin(self, dim: int) -> Any:
        """Where along `dim` the smallest value is (the first of equals); within rows a place from 0 on, [rows, …]."""
        return self._along("argmin", dim, False, lambda: self._first(wf.segment_min), "argmin")

    def any(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Is any value true? Of an empty row none is."""
        return self._along("any", dim, keepdim, lambda: wf.segment_sum(self.values != 0, self.offsets) > 0)

    def all(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Are all values true? Of an empty row all are."""
        return self._along("all", dim, keepdim, lambda: wf.segment_sum(self.values == 0, self.offsets) == 0)

    def var(self, dim: int | None = None, correction: int = 1, keepdim: bool = False) -> Any:
        """The variance of all values, or along `dim`; divided by the number of values less `correction`."""
        kept = {"correction": correction}
        return self._along("var", dim, keepdim, lambda: self._variance(correction), options=kept)

    def std(self, dim: int | None = None, correction: int = 1, keepdim: bool = False) -> Any:
        """The standard deviation of all values, or along `dim`: the root of `var`. Where it is 0 the gradient is 0."""
        kept = {"correction": correction}
        return self._along("std", dim, keepdim, lambda: self._deviation(correction), options=kept)

    def logsumexp(self, dim: int, keepdim: bool = False) -> Any:
        """`log(sum(exp(x)))` along `dim`, without overflow; -inf for an empty row."""
        return self._along("logsumexp", dim, keepdim, lambda: wf.segment_logsumexp(self.values, self.offsets))

    def softmax(self, dim: int) -> Ragged:
        """Softmax within each row (`dim=1`) or over features."""
        return self._normalised("softmax", dim, wf.segment_softmax)

    def log_softmax(self, dim: int) -> Ragged:
        """The logarithm of softmax within each row (`dim=1`) or over features."""
        return self._normalised("log_softmax", dim, wf.segment_log_softmax)

    # -- how ----------------------------------------------------------------------------------------------------------

    def _dim(self, op: str, dim: int) -> int:
        if not -self.ndim <= dim < self.ndim:
            raise IndexRangeError(f"Ragged.{op}: dim {dim} is out of range for {self.ndim} dimensions")
        if dim % self.ndim == 0:
            raise OperationError(f"Ragged.{op}: dim 0 goes across rows, which have different lengths",
                                 fix="dim=1 is within rows; for the other way use r.to_padded().")  # fmt: skip
        return dim % self.ndim

    def _along(
        self, name: str, dim: int | None, keepdim: bool, of_rows: Callable[[], wf.Tensor], needs_values: str = "",
        options: dict[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """All values by the tensor's method, rows by `of_rows`, features by the method again."""
        method = getattr(wf.Tensor, name)
        if dim is None:
            return method(self.values, **(options or {}))
        dim = self._dim(needs_values or name, dim)
        if dim > 1:
            options = (options or {}) | ({"keepdim": True} if keepdim else {})
            return self.map_values(lambda values: method(values, dim=dim - 1, **options))
        if needs_values:
            self._refuse_empty(needs_values)
        rows = of_rows()
        return rows.unsqueeze(1) if keepdim else rows

    def _refuse_empty(self, op: str) -> None:
        empty = self.lengths == 0
        if bool(empty.any()):
            row = int(empty.to(wf.int64).argmax())
            raise OperationError(f"Ragged.{op}: row {row} is empty, so it has no {op[-3:]}",
                                 fix="Leave empty rows out with r[r.lengths > 0].")  # fmt: skip

    def _first(self, extreme: Callable[[wf.Tensor, wf.Tensor], wf.Tensor]) -> wf.Tensor:
        """The place in its row of the first value that equals the row's extreme; a NaN is the extreme itself."""
        values = self.values.detach()
        is_it = (values == wf.segment_repeat(extreme(values, self.offsets), self.offsets)) | (values != values)
        total = values.shape[0]
        places = wf.arange(total) - wf.segment_repeat(self.offsets[:-1], self.offsets)
        places = places.reshape((total,) + (1,) * (values.ndim - 1)).expand(values.shape)
        return wf.segment_min(wf.where(is_it, places, total), self.offsets)

    def _deviation(self, correction: int) -> wf.Tensor:
        variance = self._variance(correction)
        # The root has an infinite gradient at 0, and that times 0 would be NaN for the whole row.
        none = variance == 0
        return variance.masked_fill(none, 1).sqrt().masked_fill(none, 0)

    def _variance(self, correction: int) -> wf.Tensor:
        centred = self.values - wf.segment_repeat(wf.segment_mean(self.values, self.offsets), self.offsets)
        counts = (self.lengths - correction).clamp(min=0).to(centred.dtype)
        shape = (-1,) + (1,) * (centred.ndim - 1)
        return wf.segment_sum(centred * centred, self.offsets) / counts.reshape(shape)

    def _normalised(self, name: str, dim: int, of_rows: Callable[[wf.Tensor, wf.Tensor], wf.Tensor]) -> Ragged:
        dim = self._dim(name, dim)
        if dim == 1:
            return self.map_values(lambda values: of_rows(values, self.offsets))
        method = getattr(wf.Tensor, name)
        return self.map_values(lambda values: method(values, dim=dim - 1))

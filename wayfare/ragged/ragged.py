"""`wf.Ragged`: rows of different lengths, packed one behind the other.

    r = wf.Ragged([wf.randn(5, 8), wf.randn(2, 8)])      # counts as [2, length, 8]
    r.values     [7, 8]      all rows, packed: an ordinary tensor, and what gradients flow through
    r.offsets    [3]         where each row begins, and the end: 0, 5, 7
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, IndexRangeError, OperationError, ShapeError
from wayfare.ragged import indexing, parts
from wayfare.ragged.elementwise import Elementwise, fitted, same_lengths
from wayfare.ragged.reductions import Reductions
from wayfare.ragged.text import described


class Ragged(Elementwise, Reductions):
    """Rows of different lengths without padding; counts as a tensor of shape [rows, length, *features]."""

    __slots__ = ("values", "offsets", "_lengths", "_bounds")

    values: wf.Tensor
    offsets: wf.Tensor

    def __init__(self, rows: Any, dtype: wf.dtype | None = None) -> None:
        """From a list of rows, each [length, *features]; no rows at all give float values without features."""
        self._set(*parts.from_rows(rows, dtype))

    def _set(self, values: wf.Tensor, offsets: wf.Tensor) -> None:
        self.values, self.offsets = values, offsets
        self._lengths: wf.Tensor | None = None
        self._bounds: list[int] | None = None

    @classmethod
    def _of(cls, values: wf.Tensor, offsets: wf.Tensor) -> Ragged:
        """From parts that are known to fit."""
        made = cls.__new__(cls)
        made._set(values, offsets)
        return made

    @classmethod
    def from_parts(cls, values: Any, offsets: Any) -> Ragged:
        """From packed values [total, *features] and offsets [rows + 1], which go from 0 to total. Nothing is copied."""
        return cls._of(*parts.from_offsets(values, offsets))

    @classmethod
    def from_lengths(cls, values: Any, lengths: Any) -> Ragged:
        """From packed values [total, *features] and how many of them each row has."""
        return cls._of(*parts.from_lengths(values, lengths))

    @classmethod
    def from_padded(cls, x: wf.Tensor, lengths: Any) -> Ragged:
        """From `x` [rows, longest, *features], of which only the first `lengths` of each row count."""
        return cls._of(*parts.from_padded(wf.as_tensor(x), lengths))

    def to_padded(self, padding: float = 0, length: int | None = None) -> wf.Tensor:
        """[rows, longest (or `length`), *features], with `padding` behind the end of each row."""
        return parts.to_padded(self.values, self.offsets, padding, length)

    def mask(self, length: int | None = None) -> wf.Tensor:
        """Bools [rows, longest (or `length`)]: true where `to_padded` has a value, false where it has padding."""
        longest = (int(self.lengths.max()) if len(self) else 0) if length is None else length
        return wf.arange(longest) < self.lengths.unsqueeze(1)

    def to_list(self) -> list[wf.Tensor]:
        """The rows as tensors."""
        if not len(self):
            return []
        return list(self.values.split(self.lengths.tolist()))

    def unbind(self) -> tuple[wf.Tensor, ...]:
        """The rows as a tuple of tensors."""
        return tuple(self.to_list())

    def tolist(self) -> list[Any]:
        """The rows as nested lists of numbers."""
        return [row.tolist() for row in self.to_list()]

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def lengths(self) -> wf.Tensor:
        """How many values each row has: int64 [rows]."""
        if self._lengths is None:
            self._lengths = self.offsets[1:] - self.offsets[:-1]
        return self._lengths

    @property
    def shape(self) -> tuple[int | None, ...]:
        """(rows, None, *features)."""
        return (len(self), None, *self.values.shape[1:])

    @property
    def ndim(self) -> int:
        """Dimensions: rows, length and those of the features."""
        return self.values.ndim + 1

    @property
    def dtype(self) -> wf.dtype:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def requires_grad(self) -> bool:
        """Do the values want a gradient?"""
        return self.values.requires_grad

    @property
    def grad(self) -> Ragged | None:
        """The gradient of the values, as rows; None where there is none."""
        found = self.values.grad
        return None if found is None else self._of(found, self.offsets)

    def numel(self) -> int:
        """How many numbers there are in all."""
        return self.values.numel()

    def __len__(self) -> int:
        """How many rows."""
        return self.offsets.shape[0] - 1

    def __iter__(self) -> Iterator[wf.Tensor]:
        """The rows, one after the other."""
        return iter(self.to_list())

    def __repr__(self) -> str:
        return described(self.values, self._places())

    def _places(self) -> list[int]:
        if self._bounds is None:
            self._bounds = self.offsets.tolist()
        return self._bounds

    # -- parts of it ---------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """`r[3]` is a row; `r[1:4]`, `r[[2, 0]]`, `r[mask]` are ragged; `r[:, a:b]` cuts every row, `r[:, -1]` takes
        one value of each; further indices go to the features."""
        rows, places, features = indexing.split_index(index, self.ndim)
        if indexing.is_number(rows):
            row = indexing.row_number(int(rows), len(self))
            begin, end = self._places()[row : row + 2]
            whole = self.values[begin:end]
            return whole if isinstance(places, slice) and places == indexing.ALL and not features else (
                whole[(places, *features)])  # fmt: skip
        values, offsets = self.values, self.offsets
        if not (isinstance(rows, slice) and rows == indexing.ALL):
            values, offsets = indexing.choose_rows(values, offsets, rows)
        if indexing.is_number(places):
            picked = indexing.one_of_each(values, offsets, int(places))
            return picked[(indexing.ALL, *features)] if features else picked
        if not isinstance(places, slice):
            raise ArgumentTypeError(f"Ragged: within rows use a number or a slice, not {type(places).__name__}")
        if places != indexing.ALL:
            values, offsets = indexing.cut_rows(values, offsets, places)
        return self._of(values[(indexing.ALL, *features)] if features else values, offsets)

    def flip(self, dims: int = 1) -> Ragged:
        """Every row from its end to its beginning."""
        if dims not in (1, 1 - self.ndim):
            raise ArgumentError(f"Ragged.flip: turns the values within rows around (dims=1), not dims={dims}")
        lasts = wf.segment_repeat(self.offsets[:-1] + self.offsets[1:] - 1, self.offsets)
        return self._of(self.values.index_select(0, lasts - wf.arange(lasts.shape[0])), self.offsets)

    @classmethod
    def cat(cls, raggeds: Sequence[Ragged], dim: int = 0) -> Ragged:
        """Ragged tensors joined: `dim=0` row behind row, 1 each row longer, from 2 on along the features."""
        given = list(raggeds)
        if not given:
            raise ArgumentError("Ragged.cat: needs at least one ragged tensor")
        for k, one in enumerate(given):
            if not isinstance(one, Ragged):
                raise ArgumentTypeError(f"Ragged.cat: number {k} is {type(one).__name__}, not a ragged tensor",
                                        fix="Make one of it with wf.Ragged([...]).")  # fmt: skip
        ndim = given[0].ndim
        if not -ndim <= dim < ndim:
            raise IndexRangeError(f"Ragged.cat: dim {dim} is out of range for {ndim} dimensions")
        dim %= ndim
        for k, one in enumerate(given):
            if dim < 2 and one.shape[2:] != given[0].shape[2:]:
                raise ShapeError(f"Ragged.cat: number {k} has the features {list(one.shape[2:])} and number 0 "
                                 f"{list(given[0].shape[2:])}")  # fmt: skip
            if dim == 1 and len(one) != len(given[0]):
                raise ShapeError(f"Ragged.cat: number {k} has {len(one)} rows and number 0 {len(given[0])}")
            if dim > 1:
                same_lengths("Ragged.cat", given[0].offsets, one.offsets)
        if dim > 1:
            return cls._of(wf.cat([one.values for one in given], dim - 1), given[0].offsets)
        pairs = [(one.values, one.offsets) for one in given]
        return cls._of(*(parts.joined_rows(pairs) if dim == 0 else parts.joined_lengthwise(pairs)))

    # -- functions of the values ---------------------------------------------------------------------------------------

    def map_values(self, function: Callable[[wf.Tensor], wf.Tensor]) -> Ragged:
        """`function(values)` as rows: values [total, …] → [total, …]. Layers and functions of features go here."""
        return self.apply(function, self)

    @classmethod
    def apply(cls, function: Callable[..., wf.Tensor], *operands: Any) -> Ragged:
        """`function` of the values of ragged tensors with equal lengths, and of tensors that broadcast with them."""
        model = next((one for one in operands if isinstance(one, Ragged)), None)
        if model is None:
            raise ArgumentTypeError("Ragged.apply: needs at least one ragged tensor")
        name = f"Ragged.{getattr(function, '__name__', type(function).__name__)}".replace("<lambda>", "apply")
        given = []
        for one in operands:
            if isinstance(one, Ragged):
                same_lengths(name, model.offsets, one.offsets)
                if one.ndim != model.ndim:
                    raise ShapeError(f"{name}: the features {list(model.shape[2:])} and {list(one.shape[2:])} differ "
                                     "in dimensions", fix="Use r.map_values(lambda v: v.unsqueeze(-1)).")  # fmt: skip
                given.append(one.values)
            else:
                given.append(fitted(name, model.values, model.offsets, one))
        made = function(*given)
        if not isinstance(made, wf.Tensor) or made.ndim == 0 or made.shape[0] != model.values.shape[0]:
            came = made.spec if isinstance(made, wf.Tensor) else type(made).__name__
            raise OperationError(f"{name}: must give one result for each of the {model.values.shape[0]} packed values "
                                 f"[total, …], out came {came}")  # fmt: skip
        return cls._of(made, model.offsets)

    def __matmul__(self, weight: wf.Tensor) -> Ragged:
        """The features times `weight` [features, out] (or [features])."""
        if not isinstance(weight, wf.Tensor):
            return NotImplemented
        self._check_weight("@", weight, 0)
        return self._of(self.values @ weight, self.offsets)

    def linear(self, weight: wf.Tensor, bias: wf.Tensor | None = None) -> Ragged:
        """The features times `weight` [out, features] transposed, plus `bias` [out]."""
        self._check_weight("linear", weight, -1)
        return self._of(wf.nn.functional.linear(self.values, weight, bias), self.offsets)

    def _check_weight(self, op: str, weight: wf.Tensor, axis: int) -> None:
        features = list(self.shape[2:])
        if not features or weight.ndim not in (1, 2) or weight.shape[axis] != features[-1]:
            raise ShapeError(f"Ragged {op}: the features {features} do not go with the weight {weight.spec}",
                             fix="For values without features use r.map_values(lambda v: v.unsqueeze(-1))."
                             if not features else "")  # fmt: skip

    def requires_grad_(self, requires_grad: bool = True) -> Ragged:
        """Let the values want a gradient, or not."""
        self.values.requires_grad_(requires_grad)
        return self

    def detach(self) -> Ragged:
        """The same values without their history."""
        return self._of(self.values.detach(), self.offsets)

    def clone(self) -> Ragged:
        """A copy of the values; gradients flow back."""
        return self._of(self.values.clone(), self.offsets)

    def to(self, *args: Any, **options: Any) -> Ragged:
        """The values with another dtype: `r.to(wf.float64)`."""
        return self._of(self.values.to(*args, **options), self.offsets)

    def float(self) -> Ragged:
        """The values in float32."""
        return self.to(wf.float32)

    def double(self) -> Ragged:
        """The values in float64."""
        return self.to(wf.float64)

    def half(self) -> Ragged:
        """The values in float16."""
        return self.to(wf.float16)

    def bfloat16(self) -> Ragged:
        """The values in bfloat16."""
        return self.to(wf.bfloat16)

    def long(self) -> Ragged:
        """The values in int64."""
        return self.to(wf.int64)

    def bool(self) -> Ragged:
        """The values as bools."""
        return self.to(wf.bool)

    def equal(self, other: Ragged) -> Any:
        """Are lengths and values the same?"""
        return wf.equal(self.offsets, other.offsets) and wf.equal(self.values, other.values)

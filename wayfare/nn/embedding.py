"""Tables of vectors: Embedding looks rows up, EmbeddingBag reduces the rows of each bag to one.

The gradient of a table is kept as the rows that were used, for every value of `sparse`.
"""

from __future__ import annotations

from typing import Any, Self

from wayfare.api.functions.creation import empty
from wayfare.autograd.modes import no_grad
from wayfare.core.errors import ArgumentError, ShapeError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.sparse import embedding, embedding_bag
from wayfare.nn.init import normal_
from wayfare.nn.module import Module
from wayfare.nn.one_call import one_call_of_any_rank
from wayfare.nn.parameter import Parameter
from wayfare.nn.shown_options import differing

__all__ = ["Embedding", "EmbeddingBag"]


class _Table(Module):
    """What both have: a table (num_embeddings, embedding_dim), and how its rows are treated."""

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool
    sparse: bool
    weight: Parameter

    def _set_padding(self, padding_idx: int | None) -> None:
        """A row from the end is counted from the front."""
        rows = self.num_embeddings
        if padding_idx is not None and not -rows <= padding_idx < rows:
            raise ArgumentError(f"{type(self).__name__}: padding_idx {padding_idx} is out of range for a table of "
                                f"{rows} rows")  # fmt: skip
        self.padding_idx = padding_idx + rows if padding_idx is not None and padding_idx < 0 else padding_idx

    def _set_weight(self, given: Tensor | None, trained: bool, device: Any, dtype: Any) -> None:
        """A new table, or the memory of one that is given."""
        if given is None:
            new = empty(self.num_embeddings, self.embedding_dim, device=device, dtype=dtype)
            self.weight = Parameter(new, requires_grad=trained)
            self.reset_parameters()
            return
        if tuple(given.shape) != (self.num_embeddings, self.embedding_dim):
            raise ShapeError(f"{type(self).__name__}: a table of {given.spec} is not of shape "
                             f"{[self.num_embeddings, self.embedding_dim]}")  # fmt: skip
        self.weight = Parameter(given, requires_grad=trained)

    def reset_parameters(self) -> None:
        """Draw a new table: normal numbers, zeros in the row of padding."""
        normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].fill_(0)


def _check_table(name: str, embeddings: Tensor) -> tuple[int, int]:
    """The sizes of a table that is given."""
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
        shown = embeddings.spec if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise ShapeError(f"{name}.from_pretrained: takes a table of two dimensions, this is {shown}")
    rows, columns = embeddings.shape
    return rows, columns


def _are_rows(layer: Embedding, indices: Any) -> bool:
    """Are all of these indices (an array) inside the table?"""
    if indices.ndim == 0:
        return 0 <= int(indices) < layer.num_embeddings
    return bool(indices.size and indices.min() >= 0 and indices.max() < layer.num_embeddings)


_are_rows.below = "num_embeddings"  # type: ignore[attr-defined]


class Embedding(_Table):
    """Row numbers (…) to rows (…, embedding_dim) of a table that is learnt.

    The row `padding_idx` starts as zeros and gets no gradient. With `max_norm` the rows that are looked up are scaled,
    in the table itself, to that norm at most. With `scale_grad_by_freq` the gradient of a row is divided by how often
    it was looked up.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, _weight: Tensor | None = None,
        _freeze: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self._set_padding(padding_idx)
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self._set_weight(_weight, not _freeze, device, dtype)
        self.sparse = sparse

    def _is_alike(self) -> bool:
        """Does a row not depend on the other rows that are looked up? With `scale_grad_by_freq` it does."""
        return self.max_norm is None and not self.scale_grad_by_freq

    @one_call_of_any_rank(only_if=_is_alike, fits=_are_rows)
    def forward(self, input: Tensor) -> Tensor:
        """Integers (…) to (…, embedding_dim)."""
        how = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        return embedding(input, self.weight, *how)

    def extra_repr(self) -> str:
        """Sizes, and options that differ from the default."""
        usual = {"padding_idx": None, "max_norm": None, "norm_type": 2, "scale_grad_by_freq": False, "sparse": False}
        return ", ".join([f"{self.num_embeddings}, {self.embedding_dim}", *differing(self, **usual)])

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
    ) -> Self:  # fmt: skip
        """A layer with this table (rows, columns), whose memory it shares; frozen unless told otherwise."""
        rows, columns = _check_table(cls.__name__, embeddings)
        return cls(
            rows, columns, padding_idx=padding_idx, max_norm=max_norm, norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq, sparse=sparse, _weight=embeddings, _freeze=freeze,
        )  # fmt: skip


class EmbeddingBag(_Table):
    """The sum, mean or max of the rows of each bag: (bags, numbers in each), or (numbers) with the `offsets` at which
    bags begin, to (bags, embedding_dim)."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, _weight: Tensor | None = None,
        include_last_offset: bool = False, padding_idx: int | None = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self._set_padding(padding_idx)
        self._set_weight(_weight, True, device, dtype)
        self.mode = mode
        self.sparse = sparse
        self.include_last_offset = include_last_offset

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Row numbers in bags to (bags, embedding_dim); `per_sample_weights` (shaped like `input`) go with "sum"."""
        return embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode,
            self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Sizes, the mode, and options that differ from the default."""
        parts = [f"{self.num_embeddings}, {self.embedding_dim}"]
        parts += differing(self, max_norm=None, norm_type=2, scale_grad_by_freq=False)
        return ", ".join([*parts, f"mode={self.mode!r}", *differing(self, padding_idx=None)])

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Self:  # fmt: skip
        """A layer with this table (rows, columns), whose memory it shares; frozen unless told otherwise."""
        rows, columns = _check_table(cls.__name__, embeddings)
        bag = cls(
            rows, columns, _weight=embeddings, max_norm=max_norm, norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq, mode=mode, sparse=sparse, include_last_offset=include_last_offset,
            padding_idx=padding_idx,
        )  # fmt: skip
        bag.weight.requires_grad_(not freeze)
        return bag

"""Ragged rules: how calls of an op that differ in the length of their first dimension run as one.

The rows of all calls lie one after another (`x` is [total, …]), and offsets say where those of each call begin. A rule,
`Op.ragged`, looks at the shapes of one call, where None stands for the length, and gives a form that runs many calls;
or None, where they cannot run so. The `batch` rule does the same for calls that do not differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from wayfare.core.numpy_math import Array
from wayfare.core.spec import int64
from wayfare.core.tensor import Tensor, wrap

# The shape of one call's input or attribute: a leading None is the length, which calls have each for themselves.
Shape = tuple[Any, ...]
# The shape of a result that calls have each in another size, and not by the length alone: the elements of all calls.
FLAT: Shape = ("flat",)
# rule(shapes, given, attrs): `given` says which inputs calls have each for themselves; the others are one for all.
RaggedRule = Callable[[Sequence[Shape], Sequence[bool], dict[str, Any]], "RaggedForm | None"]


class Segments:
    """Where the rows of each call lie."""

    __slots__ = ("count", "lengths", "offsets", "starts", "total")

    def __init__(self, lengths: Array) -> None:
        self.lengths = lengths
        self.count = len(lengths)
        self.starts: Array = np.zeros(self.count + 1, np.int64)
        np.cumsum(lengths, out=self.starts[1:])
        self.offsets: Tensor = wrap(self.starts)
        self.total = int(self.starts[-1])

    def rows_of(self, flags: Array) -> Array:
        """A flag for each row, from flags for the calls."""
        return np.repeat(flags, self.lengths)


class RaggedForm(NamedTuple):
    """How many calls run as one: `run(m, segments, inputs, many)`. An input without a length has the calls in front
    where `many` says so, else it is one for all of them."""

    # For each result: does it have the length, or is it FLAT? The others have the calls in front.
    ragged: tuple[Any, ...]
    run: Callable[[Any, Segments, Sequence[Any], Sequence[bool]], Any]


def has_length(shape: Shape) -> bool:
    """Whether the first dimension is the length."""
    return bool(shape) and shape[0] is None


def _repeated(m: Any, segments: Segments, x: Any, shape: Sequence[Any], width: int) -> Any:
    """What each call has one of, of that shape, for each of its rows; lined up behind results of so many dimensions."""
    lined_up = (*(1 for _ in range(width - len(shape))), *shape)[1:]
    x = m.reshape(x, shape=(segments.count, *lined_up))
    return m.segment_repeat(x, segments.offsets, size=segments.total)


def elementwise(name: str) -> RaggedRule:
    """Of all rows at once; what each call has one of is repeated for its rows."""

    def rule(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
        width = max(map(len, shapes))
        if any([len(s) != width if has_length(s) else len(s) == width and s[0] != 1 for s in shapes]):
            return None

        def run(m: Any, segments: Segments, inputs: Sequence[Any], many: Sequence[bool]) -> Any:
            lined_up = [_repeated(m, segments, x, s, width) if each and not has_length(s) else x
                        for x, s, each in zip(inputs, shapes, many, strict=True)]  # fmt: skip
            return getattr(m, name)(*lined_up, **attrs)

        return RaggedForm((True,), run)

    return rule


def row_by_row(name: str, features: int = 0, results: int = 1) -> RaggedRule:
    """An op of a first input with rows and shared others, which looks only at so many last dimensions of it (0: as many
    as the second input has): of all rows."""

    def rule(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
        last = features or len(shapes[1])
        if not has_length(shapes[0]) or len(shapes[0]) <= last or any(given[1:]):
            return None
        return RaggedForm((True,) * results, lambda m, segments, inputs, many: getattr(m, name)(*inputs, **attrs))

    return rule


def _dims_of(attrs: dict[str, Any]) -> tuple[int, ...]:
    dim = attrs["dim"]
    return dim if dim.__class__ is tuple else (dim,)


def along(name: str, of_segments: Callable[[Any, Segments, Any], Any] | None = None) -> RaggedRule:
    """An op of one input along `dim`, which keeps its shape: of all rows, or of segments if that is the length."""

    def rule(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
        if not has_length(shapes[0]):
            return None
        if 0 not in _dims_of(attrs):
            return RaggedForm((True,), lambda m, segments, inputs, many: getattr(m, name)(*inputs, **attrs))
        if of_segments is None:
            return None
        return RaggedForm((True,), lambda m, segments, inputs, many: of_segments(m, segments, inputs[0]))

    return rule


def reduction(name: str, of_segments: Callable[[Any, Segments, Any], Any] | None = None) -> RaggedRule:
    """A reduction over dimensions: of all rows, or of segments if the length is one of those. Other dimensions are
    reduced first, which `of_segments` allows."""

    def rule(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
        if not has_length(shapes[0]):
            return None
        dim, keepdim = _dims_of(attrs), attrs["keepdim"]
        if 0 not in dim:
            return RaggedForm((True,), lambda m, segments, inputs, many: getattr(m, name)(*inputs, **attrs))
        if of_segments is None:
            return None
        others = tuple([d for d in dim if d])

        def run(m: Any, segments: Segments, inputs: Sequence[Any], many: Sequence[bool]) -> Any:
            x = inputs[0]
            if others:
                x = getattr(m, name)(x, **attrs | {"dim": others})
            y = of_segments(m, segments, x)
            return m.reshape(y, shape=(segments.count, 1, *tuple(y.shape)[1:])) if keepdim else y

        return RaggedForm((False,), run)

    return rule


def movement(name: str) -> RaggedRule:
    """An op that moves no element along the length."""

    def rule(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
        shape = shapes[0]
        if not has_length(shape):
            return None
        if "shape" in attrs:
            to = attrs["shape"]
            if not has_length(to) or -1 in to or math.prod(to[1:]) != math.prod(shape[1:]):
                return None
            return RaggedForm((True,), lambda m, segments, inputs, many: getattr(m, name)(
                inputs[0], **attrs | {"shape": (segments.total, *to[1:])}))  # fmt: skip
        if "dims" not in attrs and "dim" not in attrs:
            return None
        if 0 in (attrs["dims"] if "dims" in attrs else _dims_of(attrs)):  # it moves elements along the length
            return None
        return RaggedForm((True,), lambda m, segments, inputs, many: getattr(m, name)(*inputs, **attrs))

    return rule


def permute(name: str) -> RaggedRule:
    """The length stays the first dimension."""

    def rule(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
        if not has_length(shapes[0]) or attrs["dims"][0] != 0:
            return None
        return RaggedForm((True,), lambda m, segments, inputs, many: getattr(m, name)(*inputs, **attrs))

    return rule


def expand(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
    """What each call has one of, for each of its rows; or rows along other dimensions."""
    shape, to = shapes[0], attrs["shape"]
    if not has_length(to):
        return None
    if has_length(shape):
        if len(shape) != len(to):
            return None
        return RaggedForm((True,), lambda m, segments, inputs, many: m.expand(
            inputs[0], shape=(segments.total, *to[1:])))  # fmt: skip

    def run(m: Any, segments: Segments, inputs: Sequence[Any], many: Sequence[bool]) -> Any:
        x = _repeated(m, segments, inputs[0], shape, len(to)) if many[0] else inputs[0]
        return m.expand(x, shape=(segments.total, *to[1:]))

    return RaggedForm((True,), run)


def cat(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
    """Row by row."""
    if attrs["dim"] == 0 or not all(map(has_length, shapes)):
        return None
    return RaggedForm((True,), lambda m, segments, inputs, many: m.cat(*inputs, **attrs))


def matmul(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
    """Rows times a shared matrix or vector, rows times a vector of each call, or weights of the rows times the rows."""
    a, b = shapes
    if has_length(a) and has_length(b):
        if len(a) != 1 or len(b) > 2:
            return None

        def weighted(m: Any, segments: Segments, inputs: Sequence[Any], many: Sequence[bool]) -> Any:
            weights, x = inputs
            if len(b) == 2:
                weights = m.reshape(weights, shape=(segments.total, 1))
            return m.segment_sum(m.mul(weights, x), segments.offsets)

        return RaggedForm((False,), weighted)
    if not has_length(a) or len(a) < 2 or len(b) > 2:
        return None
    if not given[1]:
        return RaggedForm((True,), lambda m, segments, inputs, many: m.matmul(*inputs))
    if len(a) != 2 or len(b) != 1:
        return None

    def by_vector(m: Any, segments: Segments, inputs: Sequence[Any], many: Sequence[bool]) -> Any:
        x, vector = inputs
        if not many[1]:
            return m.matmul(x, vector)
        return m.sum(m.mul(x, m.segment_repeat(vector, segments.offsets, size=segments.total)), dim=(1,), keepdim=False)

    return RaggedForm((True,), by_vector)


def attention(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
    """Queries, keys and values of one shape, of one head, without a mask: put side by side."""
    if len(set(shapes[:3])) > 1 or not has_length(shapes[0]) or len(shapes[0]) != 2 or shapes[3] or attrs.get("p"):
        return None

    def run(m: Any, segments: Segments, inputs: Sequence[Any], many: Sequence[bool]) -> Any:
        packed = m.reshape(m.stack(*inputs[:3], dim=1), shape=(segments.total, 3, 1, shapes[0][1]))
        out, kept, _ = _attended(m, segments, packed, attrs)
        return m.reshape(out, shape=(segments.total, shapes[0][1])), kept, kept

    return RaggedForm((True, FLAT, FLAT), run)


def self_attention(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm | None:
    """Without a mask: each call's rows look at each other."""
    if not has_length(shapes[0]) or len(shapes[0]) != 4 or shapes[1] or attrs.get("p"):
        return None
    return RaggedForm((True, FLAT, FLAT), lambda m, segments, inputs, many: _attended(m, segments, inputs[0], attrs))


def _attended(m: Any, segments: Segments, x: Any, attrs: dict[str, Any]) -> Any:
    settings = {"scale": attrs["scale"], "causal": attrs["causal"], "squares": int((segments.lengths**2).sum())}
    out, kept = m.ragged_self_attention(x, segments.offsets, **settings)
    return out, kept, kept


def segment_sum(m: Any, segments: Segments, x: Any) -> Any:
    """The sum of each segment; integers and bools are summed in int64."""
    if x.dtype.kind in "biu":
        x = m.cast(x, dtype=int64)
    return m.segment_sum(x, segments.offsets)


def segment_mean(m: Any, segments: Segments, x: Any) -> Any:
    """The mean of each segment."""
    counts = segments.lengths.astype(x.dtype.numpy).reshape((-1,) + (1,) * (x.ndim - 1))
    return m.div(m.segment_sum(x, segments.offsets), wrap(counts))


def segment_logsumexp(m: Any, segments: Segments, x: Any) -> Any:
    """The logarithm of the sum of exponentials of each segment."""
    return m.segment_logsumexp(x, segments.offsets)


def segment_softmax(m: Any, segments: Segments, x: Any) -> Any:
    """The softmax of each segment."""
    return m.segment_softmax(x, segments.offsets)


def segment_log_softmax(m: Any, segments: Segments, x: Any) -> Any:
    """The logarithm of the softmax of each segment."""
    total = m.segment_logsumexp(x, segments.offsets)
    return m.sub(x, m.segment_repeat(total, segments.offsets, size=segments.total))

"""FLOPs of an op, counted from shapes: one rule for each family of ops; records may have their own.

One addition, product, comparison or function value counts as one operation, a multiply-add as two. Moving numbers
counts as zero. A rule takes the shapes of inputs and outputs (None for an input whose shape is not known any more) and
the attributes; it returns None if it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Shape = tuple[int, ...]
Work = Callable[[Sequence[Shape | None], Sequence[Shape], dict[str, Any]], int | None]


def nothing(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """Numbers are only moved."""
    return 0


def unknown(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """Not known: a custom op."""
    return None


def per_output(count: int = 1) -> Work:
    """`count` operations for each element of the first output."""

    def rule(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
        return count * math.prod(outputs[0])

    return rule


def per_input(count: int = 1, which: int = 0) -> Work:
    """`count` operations for each element of one input."""

    def rule(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
        shape = inputs[which] if which < len(inputs) else ()
        return None if shape is None else count * math.prod(shape)

    return rule


def per_row(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """One operation for each row of scores; the classes are along the second axis, or the only one."""
    x = inputs[0]
    return None if x is None else math.prod(x) // max(1, x[1 if len(x) > 1 else 0])


def per_window(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """Every output element reads one window."""
    kernel: Shape = attrs["kernel"]
    return math.prod(outputs[0]) * math.prod(kernel)


def by_sorting(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """Sorting n numbers takes about n·log₂ n comparisons."""
    x = inputs[0]
    if x is None:
        return None
    along = x[attrs["dim"]] if x else 1
    return math.prod(x) * max(1, math.ceil(math.log2(max(along, 2))))


def by_searching(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """Binary search of each value in a sorted row."""
    row = inputs[0]
    return None if row is None else math.prod(outputs[0]) * max(1, math.ceil(math.log2(max(math.prod(row[-1:]), 2))))


# -- products ---------------------------------------------------------------------------------------------------


def matrix_product(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """2·m·n·k; the length k of the sums is taken from either factor."""
    a, b = inputs[0], inputs[1]
    length = a[-1] if a is not None else None if b is None else b[-2] if len(b) > 1 else b[0]
    return None if length is None else 2 * math.prod(outputs[0]) * length


def affine_map(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """2·rows·in·out. A bias is the initial value of the sums, so it adds nothing."""
    x, weight = inputs[0], inputs[1]
    length = x[-1] if x is not None else None if weight is None else weight[-1]
    return None if length is None else 2 * math.prod(outputs[0]) * length


def convolution(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """Every output element sums over one window of the channels of its group."""
    weight = inputs[1]
    return None if weight is None else 2 * math.prod(outputs[0]) * math.prod(weight[1:])


def convolution_to_input(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """Every element of the gradient is added to one window of the channels of its group."""
    g, weight = inputs[0], inputs[1]
    return None if g is None or weight is None else 2 * math.prod(g) * math.prod(weight[1:])


def convolution_to_weight(
    inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]
) -> int | None:
    """Every element of the weight is multiplied with each element of the gradient of its output channel."""
    g = inputs[1]
    return None if g is None else 2 * math.prod(g) * math.prod(outputs[0][1:])


def summed_products(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """An einsum, contracted pair by pair: each product of two operands costs 2 for every combination of its labels."""
    left, _, out = attrs["equation"].partition("->")
    terms = left.split(",")
    sizes: dict[str, int] = dict(zip(out, outputs[0], strict=True))
    for term, shape in zip(terms, inputs, strict=True):
        if shape is not None:
            sizes.update(zip(term, shape, strict=True))
    if any(label not in sizes for term in terms for label in term):
        return None
    if len(terms) == 1:
        return 0 if set(terms[0]) == set(out) else math.prod(sizes[label] for label in set(terms[0]))
    total, made = 0, terms[0]
    for i, term in enumerate(terms[1:], 1):
        labels = {*made, *term}
        later = {*out}.union(*terms[i + 1 :])
        summed = bool(labels - later)
        total += (2 if summed else 1) * math.prod(sizes[label] for label in labels)
        made = "".join(labels & later)
    return total


def weighted_places(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """Resampling: each resampled element is a weighted sum of a few others (or, backwards, is added to them)."""
    places = inputs[1]
    side = inputs[0] if "size" in attrs else outputs[0]
    return None if places is None or side is None else 2 * places[0] * math.prod(side)


def attention(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
    """Two matrix products of the weights (with keys, with values), and a softmax over them.

    A causal mask changes nothing: the masked scores are computed as well.
    """
    values, weights = outputs[0], outputs[1]
    each = math.prod(weights)
    # A self-attention has one input and as many features of keys as of values.
    known = [shape for shape in (inputs[:1] if len(inputs) < 4 else inputs[:2]) if shape is not None]
    length = known[0][-1] if known else values[-1]
    return each * (2 * length + 2 * values[-1] + _SOFTMAX)


def recurrence(gates: int, around: int) -> Work:
    """The steps of a cell: products with its two weights, and `around` other operations per element of the state."""

    def rule(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
        rows, hidden = outputs[0]
        # The input rows, or the weight they are multiplied with (the first of the last four inputs).
        known = [shape for shape in (inputs[0], inputs[-4]) if shape is not None]
        return rows * hidden * (2 * gates * (known[0][-1] + hidden) + around) if known else None

    return rule


def cubic(factor: float) -> Work:
    """A decomposition of an m×n matrix: about factor·m·n·min(m, n)."""

    def rule(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
        a = inputs[0]
        if a is None:
            return None
        return round(factor * math.prod(a) * min(a[-2:]))

    return rule


def by_solving(factor: float) -> Work:
    """A decomposition (factor·n³) and two triangular solves for each column of the right side."""

    def rule(inputs: Sequence[Shape | None], outputs: Sequence[Shape], attrs: dict[str, Any]) -> int | None:
        size = outputs[0]
        a = inputs[0]
        if a is None:
            return None
        return round(factor * math.prod(a) * a[-1] + (2 if factor else 1) * math.prod(size) * a[-1])

    return rule


# -- by family --------------------------------------------------------------------------------------------------

# Maximum, difference, exponential, sum, quotient.
_SOFTMAX = 5

FAMILIES: dict[str, Work] = {
    "elementwise": per_output(),
    "reduction": per_input(),
    "contraction": matrix_product,
    "attention": attention,
    "movement": nothing,
    "joining": nothing,
    "indexing": nothing,
    "check": nothing,
    "linear algebra": cubic(1.0),
    "random": per_output(),
    "softmax": per_input(_SOFTMAX),
    "normalisation": per_input(_SOFTMAX + 2),
    "loss": per_input(_SOFTMAX + 1),
    "scan": per_output(),
    "segments": per_input(),
    "sort": by_sorting,
    "update": per_output(),
}  # fmt: skip

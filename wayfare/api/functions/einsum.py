"""Sums of products by labels: `einsum` in all its forms, and `tensordot`."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError, ShapeError
from wayfare.core.mode import changed_mode, current
from wayfare.core.op import REGISTRY
from wayfare.core.spec import normal_dim
from wayfare.core.tensor import Tensor, to_tensor
from wayfare.ops.contraction.einsum import label_sizes, unused_labels

__all__ = ["einsum", "tensordot"]

_EINSUM, _RESHAPE = REGISTRY["einsum"], REGISTRY["reshape"]


def einsum(*args: Any) -> Tensor:
    """Sums of products of elements, by labels: `einsum("ij,jk->ik", a, b)` is `a @ b`.

    Labels that do not occur after `->` are summed over, a label named twice in one operand runs along its diagonal,
    and `...` stands for the dimensions that have no label. Without `->` the labels that occur once are the output's,
    in alphabetical order. The operands may also come with lists of numbers: `einsum(a, [0, 1], b, [1, 2], [0, 2])`.
    """
    if not args:
        raise ArgumentError("einsum: needs an equation and at least one tensor")
    if isinstance(args[0], str):
        equation, operands = args[0], args[1:]
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
    else:
        equation, operands = _from_sublists(args)
    if not operands:
        raise ArgumentError(f"einsum: {equation!r} has no tensors to work on")
    for value in operands:
        if not isinstance(value, (Tensor, np.ndarray)):
            raise ArgumentTypeError(f"einsum: expected tensors, not {type(value).__name__}")
    tensors = [to_tensor(value, op="einsum") for value in operands]
    terms, out = _explicit(equation, tuple(t.ndim for t in tensors))
    return contract(tensors, list(terms), out)


def contract(tensors: list[Tensor], terms: list[str], out: str) -> Tensor:
    """Run an explicit equation. Where a label has size 1 in one operand only, that operand is broadcast along it."""
    full: dict[str, int] = {}
    for term, t in zip(terms, tensors, strict=True):
        for label, size in zip(term, t.shape, strict=False):
            if size != 1:
                full[label] = size
    for i, (term, t) in enumerate(zip(terms, tensors, strict=True)):
        shape = t.shape
        if 1 in shape:
            stay = [axis for axis, label in enumerate(term) if shape[axis] != 1 or full.get(label, 1) == 1]
            if len(stay) < len(term):
                terms[i] = "".join(term[axis] for axis in stay)
                tensors[i] = apply(_RESHAPE, (t,), {"shape": tuple(shape[axis] for axis in stay)})
    equation = f"{','.join(terms)}->{out}"
    label_sizes(terms, [t.shape for t in tensors], equation)
    with nullcontext() if len(tensors) > 1 or current().autocast is None else changed_mode(autocast=None):
        # Of one operand nothing is multiplied, so autocast leaves it as it is.
        return apply(_EINSUM, tuple(tensors), {"equation": equation})  # type: ignore[no-any-return]


def _from_sublists(args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """`einsum(a, [0, 1], b, [1, ...], [0])` as an equation."""

    def term(labels: Sequence[Any]) -> str:
        if not isinstance(labels, (list, tuple)):
            raise ArgumentTypeError(f"einsum: expected a list of labels after each tensor, not {type(labels).__name__}")
        bad = [v for v in labels if v is not Ellipsis and not (isinstance(v, int) and 0 <= v < 52)]
        if bad:
            raise ArgumentError(f"einsum: labels are numbers from 0 to 51 or `...`, not {bad[0]!r}")
        # Capitals first: the order in which an implicit output is sorted is then that of the numbers.
        letters = string.ascii_uppercase + string.ascii_lowercase
        return "".join("..." if v is Ellipsis else letters[v] for v in labels)

    pairs = len(args) // 2
    equation = ",".join(term(args[2 * i + 1]) for i in range(pairs))
    if len(args) % 2:
        equation += "->" + term(args[-1])
    return equation, tuple(args[2 * i] for i in range(pairs))


@lru_cache(maxsize=4096)
def _explicit(written: str, ranks: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    """The terms and the output of an equation, with labels in place of every ellipsis."""
    equation = written.replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise OperationError(f"einsum: {written!r} is about {len(terms)} operands, and {len(ranks)} were given")
    for part in (*terms, out):
        bad = [c for c in part.replace("...", "", 1) if c not in string.ascii_letters]
        if bad:
            raise OperationError(f"einsum: {bad[0]!r} in {written!r} is not a label", fix="Labels are letters.")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    for number, (term, rank, extra) in enumerate(zip(terms, ranks, hidden, strict=True)):
        if extra < 0 or (extra > 0 and "..." not in term):
            raise ShapeError(f"einsum: operand {number} has {rank} dimensions; {term!r} of {written!r} does not fit",
                             fix="Name every dimension, or use `...` for the others.")  # fmt: skip
    width = max((extra for term, extra in zip(terms, hidden, strict=True) if "..." in term), default=0)
    dots = "".join(islice(unused_labels(equation), width))
    terms = [
        term.replace("...", dots[width - extra :] if extra else "") for term, extra in zip(terms, hidden, strict=True)
    ]
    if arrow:
        out = out.replace("...", dots)
    else:
        counts = Counter("".join(terms))
        out = dots + "".join(sorted(c for c in counts if counts[c] == 1 and c not in dots))
    twice = [c for c, count in Counter(out).items() if count > 1]
    if twice:
        raise OperationError(f"einsum: label {twice[0]!r} occurs twice in the output of {written!r}")
    unknown = [c for c in out if not any(c in term for term in terms)]
    if unknown:
        raise OperationError(f"einsum: label {unknown[0]!r} of the output of {written!r} is in no operand")
    return tuple(terms), out


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Sums of products over the last `dims` dimensions of `a` and the first of `b`, or over two lists of them."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise ArgumentError(f"tensordot: dims={dims} does not fit {a.spec} and {b.spec}")
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        left, right = ([dims[0]], [dims[1]]) if isinstance(dims[0], int) else (list(dims[0]), list(dims[1]))
        left = [normal_dim("tensordot", d, a.ndim) for d in left]
        right = [normal_dim("tensordot", d, b.ndim) for d in right]
    if len(left) != len(right):
        raise ArgumentError(f"tensordot: dims names {len(left)} dimensions of a and {len(right)} of b")
    labels = iter(unused_labels(""))
    first = [next(labels) for _ in range(a.ndim)]
    second = [next(labels) for _ in range(b.ndim)]
    for i, j in zip(left, right, strict=True):
        if a.shape[i] != b.shape[j] and 1 not in (a.shape[i], b.shape[j]):
            raise ShapeError(f"tensordot: sizes {a.shape[i]} and {b.shape[j]} differ at dims {i} and {j} of {a.spec} "
                             f"and {b.spec}")  # fmt: skip
        second[j] = first[i]
    out = [c for i, c in enumerate(first) if i not in left] + [c for j, c in enumerate(second) if j not in right]
    return contract([a, b], ["".join(first), "".join(second)], "".join(out))

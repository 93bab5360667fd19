"""Einstein summation as one op, contracted pair by pair through matrix products so that BLAS does the work.

The attribute `equation` is canonical: explicit output, no spaces, no ellipsis, equal sizes for equal labels. The
public function brings whatever the user wrote into that form.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, combinations
from typing import Any

import numpy as np

from wayfare.core.autocast import LOWER
from wayfare.core.errors import ShapeError
from wayfare.core.flops import summed_products
from wayfare.core.op import Sample, joint
from wayfare.core.signature import MANY, TEXT, takes
from wayfare.core.spec import Spec
from wayfare.ops import _workspace
from wayfare.ops._define import define
from wayfare.ops.contraction import onnx_rules as rules
from wayfare.ops.contraction.matmul import Attrs, Batch, check_one_dtype, raw_matmul

# The product of two (stacks of) matrices, and the sum over axes, which keeps the dtype.
Product = Callable[[Any, Any], Any]
Total = Callable[[Any, tuple[int, ...]], Any]


@lru_cache(maxsize=4096)
def split_equation(equation: str) -> tuple[tuple[str, ...], str]:
    """The labels of each operand, and those of the result."""
    left, _, out = equation.partition("->")
    return tuple(left.split(",")), out


def unused_labels(used: Iterable[str]) -> Iterable[str]:
    """Labels that do not occur yet: letters, and when those run out, other characters."""
    taken = set(used)
    return (c for c in chain(string.ascii_letters, map(chr, range(0x100, 0x1000))) if c not in taken)


def label_sizes(terms: Sequence[str], shapes: Sequence[Sequence[int]], equation: str) -> dict[str, int]:
    """The size of each label; a ShapeError where two operands disagree."""
    sizes: dict[str, int] = {}
    for number, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        if len(term) != len(shape):
            raise ShapeError(f"einsum: operand {number} has {len(shape)} dimensions {list(shape)}, and {term!r} of "
                             f"{equation!r} names {len(term)}")  # fmt: skip
        for label, size in zip(term, shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise ShapeError(f"einsum: label {label!r} of {equation!r} stands for sizes {sizes[label]} and {size} "
                                 f"in {', '.join(str(list(s)) for s in shapes)}")  # fmt: skip
    return sizes


def _infer(*xs: Spec, equation: str) -> Spec:
    check_one_dtype("einsum", "and", *xs)
    terms, out = split_equation(equation)
    sizes = label_sizes(terms, [x.shape for x in xs], equation)
    return Spec([sizes[label] for label in out], xs[0].dtype)


# -- computing ----------------------------------------------------------------------------------------------


def _forward(*xs: Any, equation: str) -> Any:
    dtype = xs[0].dtype
    if dtype.kind == "b" or any(x.dtype != dtype for x in xs):
        raise TypeError("operands of one numeric dtype are needed")
    return contracted(xs, equation, raw_matmul, lambda x, axes: np.add.reduce(x, axis=axes, dtype=x.dtype))


def contracted(xs: Sequence[Any], equation: str, product: Product, total: Total) -> Any:
    """The arrays multiplied and summed, pair by pair, by functions for products of matrices and sums over axes."""
    terms, out = split_equation(equation)
    parts = [_diagonals(term, x) for term, x in zip(terms, xs, strict=True)]
    while len(parts) > 2:
        i, j = _next_pair(parts, out)
        right, left = parts.pop(j), parts.pop(i)
        later = {label for term, _ in parts for label in term}.union(out)
        parts.append(_contract(left, right, "".join(sorted(later)), product, total))
    term, x = parts[0] if len(parts) == 1 else _contract(parts[0], parts[1], out, product, total)
    gone = tuple(axis for axis, label in enumerate(term) if label not in out)
    if gone:
        x, term = total(x, gone), "".join(label for label in term if label in out)
    x = x.transpose([term.index(label) for label in out])
    # A permutation of one operand must be a copy: the graph would not know that it is a view.
    return x.copy() if len(xs) == 1 and not gone else x


def _diagonals(term: str, x: Any) -> tuple[str, Any]:
    """A label named twice in one operand runs along the diagonal."""
    while len(set(term)) < len(term):
        second = next(axis for axis, label in enumerate(term) if label in term[:axis])
        first = term.index(term[second])
        x = x.diagonal(0, first, second)
        label = term[first]
        term = "".join(c for axis, c in enumerate(term) if axis not in (first, second)) + label
    return term, x


def _next_pair(parts: Sequence[tuple[str, Any]], out: str) -> tuple[int, int]:
    """The pair whose product shrinks most, counted in elements held."""
    sizes = {label: size for term, x in parts for label, size in zip(term, x.shape, strict=True)}

    def growth(pair: tuple[int, int]) -> int:
        i, j = pair
        left, right = parts[i][0], parts[j][0]
        later = {label for k, (term, _) in enumerate(parts) if k not in pair for label in term}.union(out)
        kept: int = math.prod(sizes[label] for label in set(left + right) & later)
        return kept - int(parts[i][1].size) - int(parts[j][1].size)

    return min(combinations(range(len(parts)), 2), key=growth)


Plan = tuple[bool, tuple[int, ...], tuple[int, ...], int, int, int, int, tuple[int, ...], tuple[int, ...], str]


@lru_cache(maxsize=4096)
def _plan(left: str, right: str, keep: str) -> Plan:
    """How to bring two operands into the form of a (stack of) matrix products: axes to sum, orders, group sizes."""
    alone_left = tuple(i for i, c in enumerate(left) if c not in right and c not in keep)
    alone_right = tuple(i for i, c in enumerate(right) if c not in left and c not in keep)
    left = "".join(c for c in left if c in right or c in keep)
    right = "".join(c for c in right if c in left or c in keep)
    stack = [c for c in left if c in right and c in keep]
    inner = [c for c in left if c in right and c not in keep]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    order_left = tuple(left.index(c) for c in (*stack, *rows, *inner))
    order_right = tuple(right.index(c) for c in (*stack, *inner, *columns))
    # Multiplied the other way round, the result comes out in the wanted order.
    swapped = bool(rows and columns) and keep.find(columns[0]) < keep.find(rows[0])
    term = "".join((*stack, *columns, *rows) if swapped else (*stack, *rows, *columns))
    counts = len(stack), len(rows), len(inner), len(columns)
    return swapped, alone_left, alone_right, *counts, order_left, order_right, term


def _contract(
    a: tuple[str, Any], b: tuple[str, Any], keep: str, product: Product, total: Total
) -> tuple[str, Any]:
    """Multiply two operands and sum over the labels that are not needed later."""
    (left, x), (right, y) = a, b
    swapped, alone_x, alone_y, stack, rows, inner, columns, order_x, order_y, term = _plan(left, right, keep)
    if alone_x:
        x = total(x, alone_x)
    if alone_y:
        y = total(y, alone_y)
    x, y = x.transpose(order_x), y.transpose(order_y)
    lead, height, width = x.shape[:stack], x.shape[stack : stack + rows], y.shape[stack + inner :]
    if not inner:
        if swapped:
            return term, x.reshape(lead + (1,) * columns + height) * y.reshape(lead + width + (1,) * rows)
        return term, x.reshape(lead + height + (1,) * columns) * y.reshape(lead + (1,) * rows + width)
    depth = math.prod(x.shape[stack + rows :])
    front = (math.prod(lead),) if stack else ()
    x = x.reshape(*front, math.prod(height), depth)
    y = y.reshape(*front, depth, math.prod(width))
    if swapped:
        return term, product(y.swapaxes(-1, -2), x.swapaxes(-1, -2)).reshape(lead + width + height)
    return term, product(x, y).reshape(lead + height + width)


# -- gradient, batching -------------------------------------------------------------------------------------


def _vjp(m: Any, needs: tuple[bool, ...], g: Any, _y: Any, *xs: Any, equation: str) -> list[Any]:
    terms, out = split_equation(equation)
    return [
        _by_operand(m, g, out, terms[i], x, terms[:i] + terms[i + 1 :], xs[:i] + xs[i + 1 :]) if needs[i] else None
        for i, x in enumerate(xs)
    ]


def _by_operand(
    m: Any, g: Any, out: str, own: str, x: Any, other_terms: tuple[str, ...], others: tuple[Any, ...]
) -> Any:
    """The gradient by one operand: the result's gradient contracted with all the other operands."""
    sizes = dict(zip(own, x.shape, strict=True))
    reached = set(out).union(*other_terms)
    unique = "".join(dict.fromkeys(own))
    known = "".join(label for label in unique if label in reached)
    grad = m.einsum(g, *others, equation=f"{','.join((out, *other_terms))}->{known}")
    if known != unique:  # What was summed over alone gets the same gradient everywhere.
        grad = m.reshape(grad, shape=tuple(sizes[c] if c in reached else 1 for c in unique))
        grad = m.expand(grad, shape=tuple(sizes[c] for c in unique))
    if unique != own:  # A repeated label is a diagonal: the gradient is zero off it.
        fresh = iter(unused_labels(own))
        renamed = [c if c not in own[:i] else next(fresh) for i, c in enumerate(own)]
        eyes = [(old + new, sizes[old]) for old, new in zip(own, renamed, strict=True) if old != new]
        dtype = getattr(x.dtype, "numpy", x.dtype)
        equation = f"{','.join((unique, *(term for term, _ in eyes)))}->{''.join(renamed)}"
        grad = m.einsum(grad, *(np.eye(size, dtype=dtype) for _, size in eyes), equation=equation)
    return grad


def _batch(m: Any, size: int, inputs: tuple[Any, ...], batched: Batch, attrs: Attrs) -> Any:
    terms, out = split_equation(attrs["equation"])
    label = next(iter(unused_labels(attrs["equation"])))
    left = ",".join(label + term if is_batched else term for term, is_batched in zip(terms, batched, strict=True))
    return m.einsum(*inputs, equation=f"{left}->{label}{out}")


def _samples(rng: Any) -> list[Sample]:
    sizes = dict(b=2, i=3, j=4, k=2, l=3, z=0)
    equations = (
        "ij,jk->ik", "ij,jk->ki", "bij,bjk->bik", "bij,bkj->bki", "ij->ji", "ij->j", "ij->", "ii->i", "ii->", "iij->j",
        "i,j->ij", "j,i->ij", "ij,ij->ij", "ij,kl->ijkl", "ij,jk,kl->il", "bi,bij,j->b", "ij,k->i", "ii,ij->ij",
        "zi,ij->zj", "iz,zj->ij", ",ij->ij", "lil->il", "lll->l", "bijk,kj->b",
    )  # fmt: skip
    return [
        Sample(
            tuple(rng.normal(size=tuple(sizes[c] for c in term)) for term in split_equation(equation)[0]),
            {"equation": equation},
        )
        for equation in equations
    ]


einsum = define(
    "einsum", autocast=LOWER,
    workspace=_workspace.of_labels,
    signature=takes(1, MANY, equation=TEXT),
    onnx=rules.einsum,
    family="contraction",
    work=summed_products,
    forward=_forward,
    infer=_infer,
    vjp=joint(_vjp),
    batch=_batch,
    reference=lambda *xs, equation: np.einsum(equation, *xs),
    samples=_samples,
    kinds="iuf",
)

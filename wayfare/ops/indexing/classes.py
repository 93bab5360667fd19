"""Classes: whole numbers that name a place along a dimension. Lengths: whole numbers that count places."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from wayfare.core.errors import IndexRangeError, OperationError, ShapeError, WayfareError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample, checks_values
from wayfare.core.signature import COUNT, DIM, INT, TEXT, Attribute, Signature, takes
from wayfare.core.spec import Spec
from wayfare.ops import _loop
from wayfare.ops._define import define, in_front
from wayfare.ops.indexing import onnx_rules as rules


def _check(
    name: str, forward: Callable[..., Array], wrong: Callable[..., Any], samples: Callable[[Any], Iterable[Sample]],
    **attrs: Attribute,
) -> None:  # fmt: skip
    """An op that checks its input and returns it; `wrong` says in the loop language which elements it refuses. An
    exported model does not check."""
    define(
        name, signature=Signature(1, 1, attrs), expression=wrong,
        onnx=lambda b, x, **_attrs: x, family="check", forward=forward, infer=lambda x, **_attrs: x, vjp=None,
        batch=in_front(name), samples=samples,
        reference=lambda x, **_attrs: x, kinds="iu",
    )  # fmt: skip


# -- classes that are known to be in range ------------------------------------------------------------------------


@checks_values
def _checked_classes(
    target: Array, *, op: str, classes: int, ignore_index: int, error: type[WayfareError] = IndexRangeError
) -> Array:
    # Read as unsigned, a negative number is a very large one, so one comparison checks both ends.
    if target.dtype == np.int64 and (not target.size or np.maximum.reduce(target.view(np.uint64), None) < classes):
        return target
    wrong = np.argwhere((target != ignore_index) & ((target < 0) | (target >= classes)))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        at = f" at {list(place)} of the target" if place else ""
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise error(f"{op}: class {target[place]} is out of range for {classes} classes{at}{more}",
                    fix=f"Classes are numbered from 0 to {classes - 1}.")  # fmt: skip
    return target


def _checked_samples(rng: Any) -> Iterable[Sample]:
    attrs = {"op": "nll_loss", "classes": 3, "ignore_index": -100}
    yield Sample((np.array([0, 2, 1]),), attrs, smooth=False)
    yield Sample((np.array([2, -100, 0, -100]),), attrs, smooth=False)


# The same numbers, after a check that each is a class or `ignore_index`.
_check("checked_classes", _checked_classes, _loop.wrong_class, _checked_samples,
       op=TEXT, classes=COUNT, ignore_index=INT)  # fmt: skip


# -- lengths that are known to be in range --------------------------------------------------------------------------


@checks_values
def _checked_lengths(lengths: Array, *, op: str, what: str, most: int) -> Array:
    if lengths.size:
        if lengths.min() < 0:
            raise OperationError(f"{op}: {what} length {lengths.min()} is negative")
        if 0 <= most < lengths.max():
            whole, parts = ("an input", "steps") if what == "input" else (f"a {what}", "labels")
            raise OperationError(f"{op}: {whole} of length {lengths.max()} is longer than the {most} {parts} given")
    return lengths


def _lengths_samples(rng: Any) -> Iterable[Sample]:
    attrs = {"op": "ctc_loss", "what": "input", "most": 4}
    yield Sample((np.array([0, 4, 1]),), attrs, smooth=False)
    yield Sample((np.array([7, 2]),), attrs | {"most": -1}, smooth=False)
    yield Sample((np.zeros(0, np.int64),), attrs, smooth=False)


# The same numbers, after a check that none is negative or more than `most` (-1: no limit).
_check("checked_lengths", _checked_lengths, _loop.wrong_length, _lengths_samples, op=TEXT, what=TEXT, most=INT)


# -- what lies at a place -----------------------------------------------------------------------------------------

_counting: dict[int, Array] = {}


def _places(size: int) -> Array:
    """0, 1, 2, …"""
    found = _counting.get(size)
    if found is None:
        if len(_counting) >= 64:
            _counting.clear()
        found = _counting[size] = np.arange(size)
    return found


def _at_index(x: Array, index: Array, *, dim: int) -> Any:
    places = _places(x.shape[dim]).reshape((-1,) + (1,) * (x.ndim - 1 - dim))
    return np.where(places == index, x, x.dtype.type(0))


def _at_index_infer(x: Spec, index: Spec, *, dim: int) -> Spec:
    if index.shape != (*x.shape[:dim], 1, *x.shape[dim + 1 :]):
        raise ShapeError(f"at_index: {x} needs one place along dimension {dim} for each row, not {index}")
    return x


def _at_index_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(3, 4)), np.array([[1], [0], [3]])), {"dim": 1})
    yield Sample((rng.normal(size=(3, 2, 2)), np.array([[[2, 7], [0, -1]]])), {"dim": 0})
    yield Sample((rng.normal(size=(2, 1)), np.array([[0], [1]])), {"dim": 1})


def _at_index_reference(x: Array, index: Array, dim: int) -> Array:
    out = np.zeros_like(x)
    for place in np.ndindex(*index.shape):
        found = int(index[place])
        if 0 <= found < x.shape[dim]:
            at = (*place[:dim], found, *place[dim + 1 :])
            out[at] = x[at]
    return out


# x where its position along `dim` is `index`, 0 elsewhere.
at_index = define(
    "at_index",
    signature=takes(2, mixed=True, dim=DIM),
    onnx=rules.at_index,
    family="elementwise",
    expression=_loop.at_index,
    forward=_at_index,
    infer=_at_index_infer,
    vjp=(lambda m, g, _y, _x, index, *, dim: m.at_index(g, index, dim=dim), None),
    batch=in_front("at_index"),
    samples=_at_index_samples,
    reference=_at_index_reference,
)

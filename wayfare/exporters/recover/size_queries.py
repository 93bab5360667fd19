"""Size queries: comparisons of sizes that a function makes (`if n > 1000`), and sizes that give the other answer.

Runs at a few sizes do not show a branch that only larger sizes take. So the function is called once more with symbolic
sizes that record every comparison.
"""

from __future__ import annotations

import builtins
import itertools
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from wayfare.core.callsite import INSIDE, Site, current_site
from wayfare.core.mode import Watcher, changed_mode
from wayfare.core.numpy_math import Array
from wayfare.core.spec import Size
from wayfare.core.symbolic_sizes import Guards, holds, noted, symbol, symbols_of
from wayfare.core.tensor import Tensor, wrap
from wayfare.exporters.examples import Examples, Sizes

_SIZES_FILE = symbol.__code__.co_filename
# At most this many queries are tried with their other answer.
_MOST = 16
# The call is stopped after this many ops; later queries are not recorded.
_MAX_OPS = 50_000
# Sizes to try for the other answer, in addition to the numbers in the query itself.
_LADDER = sorted({1, 2, 3, 5, 6, 7, *[2**k + d for k in range(2, 31) for d in (-1, 0, 1)],
                  *[10**k + d for k in range(1, 10) for d in (-1, 0, 1)]})  # fmt: skip


class Untried(NamedTuple):
    """Sizes at which a query has an answer that no run has seen, nearest first, and the line of the query.

    With `by_user` False it is Wayfare that compares, to choose between equivalent implementations.
    """

    sizes: list[Sizes]
    site: Site | None
    by_user: bool


class _Table(threading.local):
    """The symbolic sizes of the current call, by their value."""

    dims: dict[int, int] = {}  # noqa: RUF012 - replaced as a whole


_TABLE = _Table()


# Held while `Tensor.shape` and `builtins.len` are replaced.
_REPLACED = threading.RLock()


@contextmanager
def _symbolic_shapes() -> Iterator[None]:
    """Inside, `x.shape` and `len(x)` of a tensor are symbolic where their value is in the table.

    Python turns the result of `__len__` into a plain int, so `builtins.len` itself is replaced. For other objects, and
    in other threads, both work as always.
    """

    def shape(self: Tensor) -> Size:
        sizes, dims = self._array.shape, _TABLE.dims
        return Size([dims.get(n, n) for n in sizes] if self.__class__ is Tensor else sizes)

    def length(container: Any, /) -> int:
        n = plain_length(container)
        return _TABLE.dims.get(n, n) if container.__class__ is Tensor else n

    with _REPLACED:
        plain_shape, plain_length = Tensor.shape, builtins.len
        Tensor.shape, builtins.len = property(shape), length  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            Tensor.shape, builtins.len = plain_shape, plain_length  # type: ignore[method-assign]


class _OpLimit(Watcher):
    """Stops the call after `_MAX_OPS` ops."""

    allows_plans = False
    allows_batches = False

    def __init__(self) -> None:
        self._left = _MAX_OPS

    def ran(self, op: Any, inputs: Any, outputs: Any, attrs: Any) -> None:
        """After an op."""
        self._left -= 1
        if self._left < 0:
            raise TimeoutError


def _table(values: Sequence[int]) -> dict[int, int]:
    """Symbolic numbers by their value: the sizes, and what strides, borders and products usually make of them.

    The sizes are distinct primes. A number that is mistaken for a size does no harm: one more size is tried.
    """
    sizes = [symbol(number, value) for number, value in enumerate(values)]
    made = [n // 2 for n in sizes] + [(n + 1) // 2 for n in sizes]
    made += [n * k for n in sizes for k in (2, 3, 4, 8)] + [a * b for a, b in itertools.combinations(sizes, 2)]
    made += [n + k for n in sizes for k in (-3, -2, 2, 3)] + [n + k for n in sizes for k in (-1, 1)] + sizes
    return {int.__int__(n): n for n in made if n > 1}


class _Located(dict[Any, bool]):
    """Queries with their answers, and the lines that made them."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[Any, Site | None] = {}
        self.by_user: set[Any] = set()

    def __setitem__(self, query: Any, answer: bool) -> None:
        super().__setitem__(query, answer)
        self.sites.setdefault(query, current_site())
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == _SIZES_FILE:
            frame = frame.f_back
        if frame is not None and not INSIDE[frame.f_code.co_filename]:
            self.by_user.add(query)


def untried(examples: Examples, tried: Sequence[Sizes], calls: Sequence[Sequence[Array]]) -> Iterator[Untried]:
    """Sizes at which a query of the function has an answer that it had at none of the sizes tried.

    `calls` are arguments to call the function with, at sizes that are distinct primes.
    """
    labels = list(dict.fromkeys(label for named in examples.axes for label in named.values()))
    seen = [[sizes[label] for label in labels] for sizes in tried]
    found: set[Any] = set()
    for arrays in calls if labels else ():
        have = examples.sizes_of(arrays)
        values = [have[label] for label in labels]
        asked = _asked(examples, arrays, values)
        for query, answer in asked.items():
            if query in found or len(found) == _MOST or any(_flips(query, answer, one) for one in seen):
                continue
            others = _other_side(query, answer, values)
            if others:
                found.add(query)
                yield Untried([dict(zip(labels, other, strict=True)) for other in others], asked.sites[query],
                              query in asked.by_user)  # fmt: skip


def _asked(examples: Examples, arrays: Sequence[Array], values: list[int]) -> _Located:
    """The queries of one call. An error ends it silently: symbolic sizes may fail where plain ones would not."""
    noting, asked = noted(), _Located()
    noting.guards = asked
    before, _TABLE.dims = _TABLE.dims, _table(values)
    tensors = [wrap(np.array(a)) for a in arrays]
    with noting, changed_mode(watcher=_OpLimit(), grad=False), warnings.catch_warnings(), _symbolic_shapes():
        warnings.simplefilter("ignore")
        try:
            examples.call(tensors)
        except Exception:
            return asked
        finally:
            _TABLE.dims = before
    return asked


def _flips(query: Any, answer: bool, values: Sequence[int]) -> bool:
    guards: Guards = {query: answer}
    try:
        return not holds(guards, values)
    except (ArithmeticError, ValueError, TypeError):
        return False


def _other_side(query: Any, answer: bool, values: Sequence[int]) -> list[list[int]]:
    """The nearest sizes with the other answer, and twice those: with one size changed, or with all of them.

    Twice, because at the border both branches may give the same (`min(n, 100)`).
    """
    _, left, right = query
    about = sorted(symbols_of(left) | symbols_of(right))
    numbers = {n + d for n in (*_numbers(left), *_numbers(right)) for d in (-1, 0, 1)}
    ladder = sorted({*_LADDER, *[n for n in numbers if n >= 1]})
    for changed in (*[[number] for number in about], about):
        for n in ladder:
            both = [[m if number in changed else v for number, v in enumerate(values)] for m in (n, 2 * n)]
            if _flips(query, answer, both[0]):
                return [other for other in both if _flips(query, answer, other)]
    return []


def _numbers(formula: Any) -> Iterator[int]:
    if formula.__class__ is tuple:
        for part in formula[1:] if formula[0] != "symbol" else ():
            yield from _numbers(part)
    elif isinstance(formula, (int, float)) and abs(formula) < 2**40:
        yield round(formula)

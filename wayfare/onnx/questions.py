"""What a function asks about its sizes (`if n > 1000`), and sizes at which it gets the other answer.

Runs at a few sizes show what Python does there; a comparison with a number beyond all of them would be taken for
granted without being seen. So the function is called once more with sizes that remember who compares them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from wayfare.autograd.modes import no_grad
from wayfare.backend.cpu import Array
from wayfare.fusion.sizes import Guards, holds, noted, symbol
from wayfare.onnx.examples import Examples, Sizes
from wayfare.onnx.sizes import symbols_of
from wayfare.site import Site, current_site
from wayfare.spec import Size
from wayfare.tensor import Tensor, fill

# So many questions are followed up.
_MOST = 16
# Sizes to try for the other answer, beside the numbers that the question itself has.
_LADDER = sorted({1, 2, 3, 5, 6, 7, *[2**k + d for k in range(2, 31) for d in (-1, 0, 1)],
                  *[10**k + d for k in range(1, 10) for d in (-1, 0, 1)]})  # fmt: skip


class Untried(NamedTuple):
    """Sizes at which a question about them has an answer that no run has seen, and the line that asks."""

    sizes: Sizes
    site: Site | None


class _Sized(Tensor):
    """A tensor whose sizes remember that they are those of an input."""

    __slots__ = ("dims",)

    dims: tuple[int, ...]

    @property
    def shape(self) -> Size:
        """The sizes."""
        return Size(self.dims) if len(self.dims) == self._array.ndim else Size(self._array.shape)


class _Located(dict[Any, bool]):
    """The questions with the lines that asked them."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[Any, Site | None] = {}

    def __setitem__(self, question: Any, answer: bool) -> None:
        super().__setitem__(question, answer)
        self.sites.setdefault(question, current_site())


def untried(examples: Examples, tried: Sequence[Sizes]) -> Iterator[Untried]:
    """Sizes at which the function gets answers about its sizes that it has got at none of those tried."""
    labels = list(dict.fromkeys(label for named in examples.axes for label in named.values()))
    seen = [[sizes[label] for label in labels] for sizes in tried]
    found: set[Any] = set()
    for arrays in examples.arrays if labels else ():
        have = examples.sizes_of(arrays)
        values = [have[label] for label in labels]
        asked = _asked(examples, arrays, labels, values)
        for question, answer in list(asked.items()):
            if question in found or len(found) == _MOST or any(_flips(question, answer, one) for one in seen):
                continue
            other = _other_side(question, answer, values)
            if other is not None:
                found.add(question)
                yield Untried(dict(zip(labels, other, strict=True)), asked.sites[question])


def _asked(examples: Examples, arrays: Sequence[Array], labels: list[str], values: list[int]) -> _Located:
    """The questions of one call. What goes wrong with such sizes would not go wrong with plain ones."""
    dims = [symbol(number, value) for number, value in enumerate(values)]
    tensors: list[Tensor] = []
    for array, named in zip(arrays, examples.axes, strict=True):
        tensor = fill(Tensor.__new__(_Sized), np.array(array))
        assert isinstance(tensor, _Sized)
        tensor.dims = tuple(dims[labels.index(named[axis])] if axis in named else n for axis, n in enumerate(array.shape))
        tensors.append(tensor)
    noting, asked = noted(), _Located()
    noting.guards = asked
    with noting, no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            examples.call(tensors)
        except Exception:
            return asked
    return asked


def _flips(question: Any, answer: bool, values: Sequence[int]) -> bool:
    guards: Guards = {question: answer}
    try:
        return not holds(guards, values)
    except (ArithmeticError, ValueError, TypeError):
        return False


def _other_side(question: Any, answer: bool, values: Sequence[int]) -> list[int] | None:
    """The nearest sizes at which a question has the other answer: one size changed, or all that it is about."""
    _, left, right = question
    about = sorted(symbols_of(left) | symbols_of(right))
    numbers = {n + d for n in (*_numbers(left), *_numbers(right)) for d in (-1, 0, 1)}
    ladder = sorted({*_LADDER, *[n for n in numbers if n >= 1]}, key=lambda n: (n > 4096, n))
    for changed in (*[[number] for number in about], about):
        for n in ladder:
            other = [n if number in changed else value for number, value in enumerate(values)]
            if _flips(question, answer, other):
                return other
    return None


def _numbers(formula: Any) -> Iterator[int]:
    if formula.__class__ is tuple:
        for part in formula[1:] if formula[0] != "symbol" else ():
            yield from _numbers(part)
    elif isinstance(formula, (int, float)) and abs(formula) < 2**40:
        yield round(formula)

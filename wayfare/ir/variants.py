"""Traces of one function for many sizes: which trace can be used for which sizes.

A trace holds for the sizes it was made with. It also holds for other sizes if they give the same answers to all
questions that the function asked about sizes (its guards), and if a second trace with other values of these sizes had
the same symbolic graph: then nothing depends on them unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from wayfare.core.symbolic_sizes import Guards, holds, noted, shown
from wayfare.ir.graph import Step, Value, in_order

T = TypeVar("T")

# The most traces of one structure: a function that depends on its sizes has one for each.
_KEPT = 64
# Arrays up to this size are compared by their numbers.
_SMALL = 64


class Variant(Generic[T]):
    """One trace: the sizes it was made with, its guards, and what was built from it."""

    def __init__(self, symbols: tuple[Any, ...], signature: Any, guards: Guards, made: T) -> None:
        self.symbols = symbols
        self.signature = signature
        self.guards = guards
        self.made = made
        self.free: set[int] = set()

    def other(self, symbols: tuple[Any, ...]) -> set[int]:
        """The numbers of the symbols that differ from those of the trace."""
        return {i for i, (a, b) in enumerate(zip(self.symbols, symbols, strict=True)) if a != b}

    def serves(self, symbols: tuple[Any, ...]) -> bool:
        """Is this trace known to hold for these sizes?"""
        return self.other(symbols) <= self.free and holds(self.guards, symbols)


class Variants(Generic[T]):
    """The traces of one structure. `trace(symbols)` returns a signature to compare, and a function that builds the
    result."""

    def __init__(self, trace: Callable[[tuple[Any, ...]], tuple[Any, Callable[[], T]]]) -> None:
        self._trace = trace
        self._variants: list[Variant[T]] = []
        self.traces = 0

    def find(self, symbols: tuple[Any, ...]) -> T:
        """The result for these sizes; traced if no variant holds for them."""
        for variant in self._variants:
            if variant.serves(symbols):
                return variant.made
        self.traces += 1
        with noted() as guards:
            signature, build = self._trace(symbols)
            for variant in self._variants:
                if variant.signature == signature and holds(variant.guards, symbols):
                    variant.free |= variant.other(symbols)
                    return variant.made
            made = build()
        if len(self._variants) >= _KEPT:
            self._variants.pop(0)
        self._variants.append(Variant(symbols, signature, guards, made))
        return made


def signature(outputs: Sequence[Value]) -> Any:
    """A description of a graph that can be compared; sizes are represented by their formulas."""
    numbers: dict[int, int] = {}
    lines: list[Any] = []
    for step in in_order(outputs):
        numbers[id(step)] = len(lines)
        given = tuple((numbers[id(v.step)], v.position) for v in step.inputs)
        made = tuple((repr(shown(v.shape)), v.dtype.char) for v in step.outputs)
        what = _leaf(step) if step.op is None else (step.op.name, id(step.op), repr(shown(step.attrs)))
        lines.append((what, given, made))
    return tuple(lines), tuple((numbers[id(v.step)], v.position) for v in outputs)


def _leaf(step: Step) -> Any:
    kind, what = step.kind, step.data
    if kind == "array" and isinstance(what, np.ndarray) and what.size <= _SMALL:
        return kind, what.tobytes()
    return (kind, id(what)) if kind == "array" else (kind, repr(shown(what)))

"""Composite ops: a formula that runs op by op on small arrays, and as fused kernels on large ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from wayfare.core.device import BACKENDS
from wayfare.core.locks import lock
from wayfare.core.numpy_math import Array
from wayfare.core.op import raw_ops
from wayfare.core.symbolic_sizes import size_classes, symbol, symbolic_shape
from wayfare.ir.formulas import in_single
from wayfare.ir.fuse.bound import Bound
from wayfare.ir.fuse.program import FusedProgram
from wayfare.ir.graph import Value, leaf, trace_ops
from wayfare.ir.lower import Lowering
from wayfare.ir.target import HOST, target_of
from wayfare.ir.variants import Variants, signature

# Arrays of at least this many elements run as kernels; for smaller ones NumPy is faster.
NATIVE_FROM = 256
# The most sets of sizes that are kept for one formula.
_BOUND = 256

_LOCK = lock()


class Composite:
    """A formula `formula(m, *arrays, **attrs)` over ops, callable on arrays; narrow floats are computed in float32."""

    def __init__(self, formula: Callable[..., Any], name: str, native_from: int = NATIVE_FROM) -> None:
        self.formula = in_single(formula)
        self.__name__ = name
        self.native_from = native_from
        # The formula on arrays, op by op.
        self.step_by_step = partial(self.formula, raw_ops)
        self._structures: dict[Any, Variants[tuple[FusedProgram, bool]]] = {}
        self._bound: dict[Any, tuple[Bound, bool]] = {}

    def __repr__(self) -> str:
        return f"<composite {self.__name__}>"

    @property
    def traces(self) -> int:
        """How often the formula was traced so far."""
        return sum(v.traces for v in self._structures.values())

    def __call__(self, *arrays: Array, **attrs: Any) -> Any:
        for a in arrays:
            if a.size >= self.native_from:
                return self.at_once(*arrays, **attrs)
        if BACKENDS and target_of(arrays) is not HOST:
            return self.at_once(*arrays, **attrs)
        return self.step_by_step(*arrays, **attrs)

    def at_once(self, *arrays: Array, **attrs: Any) -> Any:
        """Run the formula as kernels, whatever the size."""
        target = target_of(arrays)
        if not target.has_kernels() or any(a.size == 0 for a in arrays):
            return self.formula(target.ops, *arrays, **attrs)
        key = (target, tuple([(a.shape, a.dtype) for a in arrays]), *attrs.items())
        found = self._bound.get(key)
        if found is None:
            with _LOCK:
                program, symbols, several = self._program(arrays, attrs)
                found = (Bound(program, symbols, target), several)
                if len(self._bound) >= _BOUND:
                    self._bound.clear()
                self._bound[key] = found
        own = target.array
        outs = found[0]([a if a.__class__ is own else target.as_array(a) for a in arrays])
        return tuple(outs) if found[1] else outs[0]

    def program(self, *arrays: Array, **attrs: Any) -> FusedProgram:
        """The program for arrays like these."""
        with _LOCK:
            return self._program(arrays, attrs)[0]

    def _program(self, arrays: tuple[Array, ...], attrs: dict[str, Any]) -> tuple[FusedProgram, tuple[Any, ...], bool]:
        structure, sizes = size_classes([a.shape for a in arrays])
        floats = {k: v for k, v in attrs.items() if v.__class__ is float}
        fixed = {k: v for k, v in attrs.items() if k not in floats}
        dtypes = tuple(a.dtype for a in arrays)
        key = (structure, dtypes, tuple(floats), tuple(fixed.items()))
        variants = self._structures.get(key)
        if variants is None:

            def trace(symbols: tuple[Any, ...]) -> tuple[Any, Callable[[], tuple[FusedProgram, bool]]]:
                numbers = {k: symbol(len(sizes) + i, symbols[len(sizes) + i]) for i, k in enumerate(floats)}
                inputs = [leaf("input", i, symbolic_shape(s, symbols), d)
                          for i, (s, d) in enumerate(zip(structure, dtypes, strict=True))]  # fmt: skip
                made = self.formula(trace_ops, *inputs, **fixed, **numbers)
                several = isinstance(made, tuple)
                outputs: list[Value] = list(made) if several else [made]
                return (signature(outputs), several), lambda: (self._built(inputs, outputs), several)

            variants = self._structures[key] = Variants(trace)
        symbols = (*sizes, *floats.values())
        program, several = variants.find(symbols)
        return program, symbols, several

    def _built(self, inputs: list[Value], outputs: list[Value]) -> FusedProgram:
        lowering = Lowering()
        lowering(inputs)
        return FusedProgram(self.__name__, inputs, lowering(outputs))


def composite(formula: Callable[..., Any], *, name: str, native_from: int = NATIVE_FROM) -> Composite:
    """A forward for arrays from a formula over ops: `formula(m, *arrays, **attrs)`.

    It runs as kernels if an array has at least `native_from` elements.
    """
    return Composite(formula, name, native_from)


def as_rule(formula: Callable[..., Any], *, name: str, native_from: int = NATIVE_FROM) -> Callable[..., Any]:
    """A formula for gradient rules: kernels in a plain backward pass, ops if the gradient is differentiated again.

    The names of its parameters say what a node keeps, as those of any rule do.
    """
    whole = Composite(formula, name, native_from)

    @wraps(formula)
    def rule(m: Any, *arrays: Any, **attrs: Any) -> Any:
        there = m.works_on_arrays or (BACKENDS and any([a.__class__ in BACKENDS for a in arrays]))
        return whole(*arrays, **attrs) if there else formula(m, *arrays, **attrs)

    return rule

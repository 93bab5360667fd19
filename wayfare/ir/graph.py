"""The SSA graph: values, the steps that compute them, and blocks of steps for branches and loops.

Recorded and traced functions, plans, gradients, exported programs and `.wf` files all use it. A `Value` stands for an
array: it has a shape, a dtype and an array's operators. So formulas and gradient rules run on values as they do on
arrays, with `trace_ops` as their `m`. Sizes in shapes and attributes may be symbols (`core.symbolic_sizes`).
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.core.callsite import Site
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, ByName, Op
from wayfare.core.operators import Operators
from wayfare.core.spec import OF_NUMPY, Spec, common_of_arrays

_births = itertools.count()


@dataclass(frozen=True, slots=True)
class Slot:
    """An attribute of a step that is given at each run: value number `number`."""

    number: int


def has_slots(attrs: dict[str, Any]) -> bool:
    """Is an attribute given at each run?"""
    return any(value.__class__ is Slot for value in attrs.values())


class Step:
    """One step of the graph. `kind` says which sort of step it is:

    - "op": an op on values.
    - A leaf, with its content in `data`: "input", "number" (a Python number or a formula of sizes), "array" (a constant
      array or tensor). "grid" is the array (start + Σ step·index along the axes) // over, with these three in `attrs`.
      The recorder and the exporter have further kinds of leaves of their own.
    - "if": the input is the condition; two blocks, then and else.
    - "loop": one block, the body. Its attributes are `trips`, the maximal number of iterations (None: no bound);
      `carried`, the number of loop-carried values; `entry`, whether the first input is the condition to begin; `asks`,
      whether the first output of the body is the condition to continue. The other inputs are the initial values of the
      carried values. The body takes the number of the iteration and the carried values; it gives their next values,
      then the values that the loop collects by stacking.
    """

    __slots__ = ("attrs", "blocks", "born", "data", "inputs", "kind", "op", "outputs", "path", "site")

    def __init__(
        self, op: Op | None, inputs: tuple[Value, ...], attrs: dict[str, Any], kind: str = "op", data: Any = None,
        blocks: tuple[Block, ...] = (), site: Site | None = None, path: str = "",
    ) -> None:  # fmt: skip
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.kind = kind
        self.data = data
        self.blocks = blocks
        self.site = site  # the user's line, where it is known
        self.path = path  # the path of the module; of a weight its name
        self.born = next(_births)
        self.outputs: tuple[Value, ...] = ()

    @property
    def name(self) -> str:
        """The op's name, or the kind."""
        return self.kind if self.op is None else self.op.name

    def makes(self, *outputs: Value) -> Step:
        """Make these values its outputs."""
        self.outputs = outputs
        for position, value in enumerate(outputs):
            value.step, value.position = self, position
        return self


class Value(Operators):
    """Output number `position` of a step."""

    __slots__ = ("dtype", "position", "shape", "step")

    def __init__(self, step: Step, position: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.step = step
        self.position = position
        self.shape = shape
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for n in self.shape:
            count = count * n
        return count

    @property
    def spec(self) -> Spec:
        """Shape and dtype."""
        return Spec(self.shape, OF_NUMPY[self.dtype])

    @property
    def array(self) -> Array | None:
        """The array of a constant, else None."""
        return self.step.data if self.step.kind == "array" else None

    def __repr__(self) -> str:
        return f"<{self.step.name} {self.spec}>"

    def __invert__(self) -> Any:
        return run("logical_not" if self.dtype.kind == "b" else "bitwise_not", self)

    def __bool__(self) -> bool:
        raise TypeError("a traced value has no truth value: it is only known when the program runs")


class Block:
    """Steps in order, with inputs and outputs. A block inside a step may use values of the blocks around it.

    Constant arrays belong to no block. Leaves that depend on sizes are among the steps.
    """

    __slots__ = ("inputs", "outputs", "steps")

    def __init__(self, inputs: list[Value], steps: list[Step], outputs: list[Value]) -> None:
        self.inputs = inputs
        self.steps = steps
        self.outputs = outputs

    def walk(self) -> Iterator[Step]:
        """Every step; those of inner blocks come after the step that holds the block."""
        waiting = self.steps[::-1]
        while waiting:
            step = waiting.pop()
            yield step
            for block in reversed(step.blocks):
                waiting.extend(reversed(block.steps))

    def constants(self) -> list[Value]:
        """Every constant, also those of inner blocks, once, in the order of first use."""
        used: list[Value] = []
        for step in self.walk():
            used += step.inputs
            for block in step.blocks:
                used += block.outputs
        return list({id(v): v for v in (*used, *self.outputs) if v.step.kind == "array"}.values())


def leaf(kind: str, what: Any, shape: Sequence[int], dtype: np.dtype[Any], path: str = "") -> Value:
    """A leaf: an input, a number, or a constant array."""
    step = Step(None, (), {}, kind, what, path=path)
    value = Value(step, 0, tuple(shape), dtype)
    step.outputs = (value,)
    return value


def constant(array: Array, name: str = "") -> Value:
    """A constant array; weights have a name."""
    return leaf("array", array, array.shape, array.dtype, name)


_NO_STEP = Step(None, (), {}, "no step yet")


def unbound(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Value:
    """A value that is known before the step that will make it (`Step.makes`)."""
    return Value(_NO_STEP, 0, shape, dtype)


def run(name: str, *inputs: Any, **attrs: Any) -> Any:
    """Record an op by its name."""
    return record(REGISTRY[name], inputs, attrs)


Value._apply = staticmethod(run)


def record(op: Op, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Add one op to the graph; numbers and arrays among its inputs become leaves."""
    values = _operands(op, inputs)
    step = Step(op, values, attrs)
    specs = op.infer(*(v.spec for v in values), **attrs)
    several = isinstance(specs, (tuple, list))
    step.outputs = tuple(
        Value(step, i, s.shape, s.dtype.numpy) for i, s in enumerate(specs if several else (specs,))
    )
    return step.outputs if several else step.outputs[0]


def _operands(op: Op, inputs: Sequence[Any]) -> tuple[Value, ...]:
    masks = () if op.signature is None else op.signature.masks
    dtype = _common([x for i, x in enumerate(inputs) if i not in masks])
    values: list[Value] = []
    for i, x in enumerate(inputs):
        if not isinstance(x, Value):
            own = dtype if i not in masks else np.dtype(bool)
            x = leaf("number", x, (), own) if isinstance(x, (int, float)) else leaf("array", x, x.shape, x.dtype)
        if op.broadcasts and i not in masks and x.dtype != dtype:
            x = run("cast", x, dtype=OF_NUMPY[dtype])
        values.append(x)
    return tuple(values)


def _common(inputs: Sequence[Any]) -> np.dtype[Any]:
    """The common dtype of arrays and numbers, by NumPy's rules."""
    plain = [x.dtype if hasattr(x, "dtype") else _weak(x) for x in inputs]
    return common_of_arrays(plain) if plain else np.dtype("float32")


def _weak(number: Any) -> Any:
    """A weakly typed stand-in for a Python number: it takes the dtype of the arrays."""
    return np.dtype(bool) if isinstance(number, bool) else 0 if isinstance(number, int) else 0.0


class TraceOps(ByName):
    """The ops on values: each call adds a step to the graph."""

    differentiable = True

    def _bind(self, op: Op) -> Any:
        def call(*inputs: Any, **attrs: Any) -> Any:
            return record(op, inputs, attrs)

        return call


trace_ops: Any = TraceOps()


def in_order(roots: Iterable[Value], stop: Container[int] = ()) -> list[Step]:
    """All steps that the roots depend on, in topological order; the search ends at steps whose `id` is in `stop`."""
    found: dict[int, Step] = {}
    stack = [r.step for r in roots]
    while stack:
        step = stack.pop()
        if id(step) in found:
            continue
        found[id(step)] = step
        if id(step) not in stop:
            stack.extend(v.step for v in step.inputs)
    return sorted(found.values(), key=lambda s: s.born)

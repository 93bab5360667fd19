"""Lowering a program to an ONNX graph by the rules of the op records."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.errors import ExportError
from wayfare.core.spec import bool_, int64
from wayfare.core.symbolic_sizes import Dim, Number
from wayfare.exporters.onnx.builder import Builder
from wayfare.exporters.onnx.graph import OnnxGraph, OnnxValue
from wayfare.ir.graph import Block, Step, Value
from wayfare.ir.program import Program


class Lowering:
    """Writes the steps of a program with a builder; knows the ONNX value of each value."""

    def __init__(self, program: Program, opset: int) -> None:
        self.program = program
        self.builder = Builder(opset)
        self._made: dict[int, OnnxValue] = {}
        self._numbers: dict[int, list[tuple[int, int]]] = {}
        for number, (value, axis) in enumerate(program.symbols):
            self._numbers.setdefault(id(value), []).append((number, axis))
        self.builder.symbols = [None] * len(program.symbols)  # type: ignore[list-item]

    def graph(self) -> OnnxGraph:
        """The graph of the whole model, pruned."""
        b = self.builder
        block = self.program.block
        b.reserve(self.program.output_names)
        for name, value in zip(self.program.input_names, block.inputs, strict=True):
            self.bind(b, value, b.input(name, value.spec.dtype, value.shape))
        self.steps(b, block)
        b.place = b.op = ""
        for name, value in zip(self.program.output_names, block.outputs, strict=True):
            made = b.node("Identity", self.value(b, value), dtype=value.spec.dtype, shape=value.shape)
            b.graph.nodes[-1].outputs[0] = name
            made.name = name
            b.graph.outputs.append(made)
        b.graph.prune()
        return b.graph

    def bind(self, b: Builder, value: Value, made: OnnxValue) -> None:
        """Record the ONNX value of a value, and of the size symbols that belong to it."""
        self._made[id(value)] = made
        for number, axis in self._numbers.get(id(value), ()):
            root = self.builder
            root.symbols[number] = (made, axis) if axis >= 0 else b.node("Reshape", made, [1], shape=(1,))
            if b is not root:
                root.inner_symbols.add(number)

    def value(self, b: Builder, value: Value) -> OnnxValue:
        """The ONNX value of a value; a constant is added to the graph when it is first used."""
        found = self._made.get(id(value))
        if found is None:
            if value.array is None:
                raise ExportError(f"export: {value} is used before it is computed")
            array = np.array(value.array, order="C")
            if value.step.path:
                found = b.initializer(b.root.fresh_name(value.step.path), array)
            else:
                found = b.constant(array, name=f"{b.place}/constant" if b.place else "constant")
            self._made[id(value)] = found
        return b.own(found)

    def steps(self, b: Builder, block: Block) -> None:
        """Write the steps of a block."""
        for step in block.steps:
            b.place, b.site = step.path, step.site
            try:
                getattr(self, f"_{step.kind}")(b, step)
            except ExportError as error:
                if step.site is not None:
                    error.happened_in("", step.site)
                raise

    def _op(self, b: Builder, step: Step) -> None:
        assert step.op is not None
        b.op = ""
        inputs = [self.value(b, v) for v in step.inputs]
        made = b.apply(step.op, inputs, step.attrs, [v.spec for v in step.outputs])
        for value, out in zip(step.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            if out is not None:
                self.bind(b, value, out)

    # -- control flow

    def _results(self, b: Builder, values: list[OnnxValue]) -> None:
        """Add the outputs of a body. Each must be a separate value made inside it, hence Identity."""
        for value in values:
            b.graph.outputs.append(b.node("Identity", value, dtype=value.dtype, shape=value.shape))

    def _if(self, b: Builder, step: Step) -> None:
        bodies = []
        condition = self._truth(b, step.inputs[0])
        for name, block in zip(("then", "else"), step.blocks, strict=True):
            inner = b.body(b.fresh_name(name))
            self.steps(inner, block)
            inner.place = step.path
            self._results(inner, [self.value(inner, v) for v in block.outputs])
            bodies.append(inner.graph)
        dtypes = tuple(v.spec.dtype for v in step.outputs)
        made = b.node("If", condition, outputs=len(dtypes), dtype=dtypes if len(dtypes) > 1 else dtypes[0],
                      then_branch=bodies[0], else_branch=bodies[1])  # fmt: skip
        self._bind_all(b, step, made)

    def _bind_all(self, b: Builder, step: Step, made: Any) -> None:
        for value, out in zip(step.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            out = OnnxValue(b, out.name, value.spec.dtype, value.shape)
            self.bind(b, value, out)
            b.graph.values[out.name] = out

    def _truth(self, b: Builder, value: Value) -> OnnxValue:
        """A bool scalar of shape []."""
        made = self.value(b, value)
        if made.dtype is not bool_:
            made = b.cast(made, bool_)
        return b.node("Reshape", made, b.constant(np.zeros(0, np.int64)), shape=()) if value.shape else made

    def _loop(self, b: Builder, step: Step) -> None:
        (block,) = step.blocks
        asks, trips = step.attrs["asks"], step.attrs["trips"]
        inputs = list(step.inputs)
        start = self._truth(b, inputs.pop(0)) if step.attrs["entry"] else None
        inits = [self.value(b, v) for v in inputs]
        count = None if trips is None else b.number(trips, int64)
        inner = b.body(b.fresh_name("loop"))
        inner.place = step.path
        counter, *carried = block.inputs
        self.bind(inner, counter, inner.input(b.fresh_name("iteration"), int64, ()))
        going = inner.input(b.fresh_name("going"), bool_, ())
        for value in carried:
            self.bind(inner, value, inner.input(b.fresh_name("carried"), value.spec.dtype, value.shape))
        self.steps(inner, block)
        inner.place = step.path
        outs = list(block.outputs)
        goes_on = self._truth(inner, outs.pop(0)) if asks else going
        self._results(inner, [goes_on, *[self.value(inner, v) for v in outs]])
        dtypes = tuple(v.spec.dtype for v in step.outputs)
        made = b.node("Loop", count, start, *inits, outputs=len(dtypes),
                      dtype=dtypes if len(dtypes) > 1 else dtypes[0], body=inner.graph)  # fmt: skip
        self._bind_all(b, step, made)

    # -- constants that depend on sizes

    def _number(self, b: Builder, step: Step) -> None:
        (value,) = step.outputs
        self.bind(b, value, b.number(step.data, value.spec.dtype))

    def _grid(self, b: Builder, step: Step) -> None:
        """(start + Σ step·index along the axes) // over."""
        (value,) = step.outputs
        dtype = value.spec.dtype
        total = b.number(step.attrs["start"], dtype)
        for axis, difference in enumerate(step.attrs["steps"]):
            if isinstance(difference, (Dim, Number)) or difference != 0:
                total = b.ops.add(total, self._ramp(b, value, axis, difference))
        if step.attrs["over"] > 1:
            total = b.node("Div", total, b.number(step.attrs["over"], dtype))
        self.bind(b, value, b.node("Expand", total, list(value.shape), shape=value.shape))

    def _ramp(self, b: Builder, value: Value, axis: int, difference: Any) -> OnnxValue:
        size, dtype = value.shape[axis], value.spec.dtype
        ends = [b.number(n, int64) for n in (0, size, 1)]
        indices = b.node("Range", *ends, dtype=int64, shape=(size,))
        ramp = b.ops.mul(b.cast(indices, dtype), b.number(difference, dtype))
        if isinstance(difference, Number):  # for n = 1 the step 1 / (n - 1) is infinite, and not needed
            first = b.node("Equal", indices, b.number(0, int64))
            ramp = b.node("Where", first, b.number(0, dtype), ramp, shape=(size,))
        return b.ops.reshape(ramp, shape=(size, *[1] * (value.ndim - axis - 1)))  # type: ignore[no-any-return]

"""Lowering a program to an ONNX graph by the rules of the op records."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.errors import ExportError
from wayfare.core.spec import Spec, bool_, int64
from wayfare.core.symbolic_sizes import Dim, Number
from wayfare.exporters.onnx.builder import Builder
from wayfare.exporters.onnx.graph import Graph, Value
from wayfare.exporters.program import Block, Node, Program, Var


class Lowering:
    """Writes the nodes of a program with a builder; knows the value of each variable."""

    def __init__(self, program: Program, opset: int) -> None:
        self.program = program
        self.builder = Builder(opset)
        self.values: dict[int, Value] = {}
        self._numbers: dict[int, list[tuple[int, int]]] = {}
        for number, (var, axis) in enumerate(program.symbols):
            self._numbers.setdefault(id(var), []).append((number, axis))
        self.builder.symbols = [None] * len(program.symbols)  # type: ignore[list-item]

    def graph(self) -> Graph:
        """The graph of the whole model, pruned."""
        b = self.builder
        block = self.program.block
        b.reserve(self.program.output_names)
        for name, var in zip(self.program.input_names, block.inputs, strict=True):
            self.bind(b, var, b.input(name, var.dtype, var.shape))
        self.nodes(b, block)
        b.place = b.op = ""
        for name, var in zip(self.program.output_names, block.outputs, strict=True):
            value = self.value(b, var)
            made = b.node("Identity", value, dtype=var.dtype, shape=var.shape)
            b.graph.nodes[-1].outputs[0] = name
            made.name = name
            b.graph.outputs.append(made)
        b.graph.prune()
        return b.graph

    def bind(self, b: Builder, var: Var, value: Value) -> None:
        """Record the value of a variable, and of the size symbols that belong to it."""
        self.values[id(var)] = value
        for number, axis in self._numbers.get(id(var), ()):
            root = self.builder
            root.symbols[number] = (value, axis) if axis >= 0 else b.node("Reshape", value, [1], shape=(1,))
            if b is not root:
                root.inner_symbols.add(number)

    def value(self, b: Builder, var: Var) -> Value:
        """The value of a variable; a constant is added to the graph when it is first used."""
        found = self.values.get(id(var))
        if found is None:
            if var.array is None:
                raise ExportError(f"export: {var} is used before it is computed")
            array = np.array(var.array, order="C")
            if var.name:
                found = b.initializer(b.root.fresh_name(var.name), array)
            else:
                found = b.constant(array, name=f"{b.place}/constant" if b.place else "constant")
            self.values[id(var)] = found
        return b.own(found)

    def nodes(self, b: Builder, block: Block) -> None:
        """Write the nodes of a block."""
        for node in block.nodes:
            b.place, b.site = node.path, node.site
            try:
                self.node(b, node)
            except ExportError as error:
                if node.site is not None:
                    error.happened_in("", node.site)
                raise

    def node(self, b: Builder, node: Node) -> None:
        """Write one node."""
        if node.op is not None:
            self._op(b, node)
        else:
            getattr(self, f"_{node.kind}")(b, node)

    def _op(self, b: Builder, node: Node) -> None:
        assert node.op is not None
        b.op = ""
        inputs = [self.value(b, v) for v in node.inputs]
        made = b.apply(node.op, inputs, node.attrs, [Spec(v.shape, v.dtype) for v in node.outputs])
        for var, value in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            if value is not None:
                self.bind(b, var, value)

    # -- control flow

    def _results(self, b: Builder, values: list[Value]) -> None:
        """Add the outputs of a body. Each must be a separate value made inside it, hence Identity."""
        for value in values:
            b.graph.outputs.append(b.node("Identity", value, dtype=value.dtype, shape=value.shape))

    def _if(self, b: Builder, node: Node) -> None:
        bodies = []
        condition = self._truth(b, node.inputs[0])
        for name, block in zip(("then", "else"), node.blocks, strict=True):
            inner = b.body(b.fresh_name(name))
            self.nodes(inner, block)
            inner.place = node.path
            self._results(inner, [self.value(inner, v) for v in block.outputs])
            bodies.append(inner.graph)
        dtypes = tuple(v.dtype for v in node.outputs)
        made = b.node("If", condition, outputs=len(dtypes), dtype=dtypes if len(dtypes) > 1 else dtypes[0],
                      then_branch=bodies[0], else_branch=bodies[1])  # fmt: skip
        self._bind_all(b, node, made)

    def _bind_all(self, b: Builder, node: Node, made: Any) -> None:
        for var, value in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            value = Value(b, value.name, var.dtype, var.shape)
            self.bind(b, var, value)
            b.graph.values[value.name] = value

    def _truth(self, b: Builder, var: Var) -> Value:
        """A bool scalar of shape []."""
        value = self.value(b, var)
        if value.dtype is not bool_:
            value = b.cast(value, bool_)
        return b.node("Reshape", value, b.constant(np.zeros(0, np.int64)), shape=()) if var.shape else value

    def _loop(self, b: Builder, node: Node) -> None:
        (block,) = node.blocks
        asks, trips = node.attrs["asks"], node.attrs["trips"]
        inputs = list(node.inputs)
        start = self._truth(b, inputs.pop(0)) if node.attrs["entry"] else None
        inits = [self.value(b, v) for v in inputs]
        count = None if trips is None else b.number(trips, int64)
        inner = b.body(b.fresh_name("loop"))
        inner.place = node.path
        counter, *carried = block.inputs
        self.bind(inner, counter, inner.input(b.fresh_name("iteration"), int64, ()))
        going = inner.input(b.fresh_name("going"), bool_, ())
        for var in carried:
            self.bind(inner, var, inner.input(b.fresh_name(var.name or "carried"), var.dtype, var.shape))
        self.nodes(inner, block)
        inner.place = node.path
        outs = list(block.outputs)
        goes_on = self._truth(inner, outs.pop(0)) if asks else going
        self._results(inner, [goes_on, *[self.value(inner, v) for v in outs]])
        dtypes = tuple(v.dtype for v in node.outputs)
        made = b.node("Loop", count, start, *inits, outputs=len(dtypes),
                      dtype=dtypes if len(dtypes) > 1 else dtypes[0], body=inner.graph)  # fmt: skip
        self._bind_all(b, node, made)

    # -- constants that depend on sizes

    def _number(self, b: Builder, node: Node) -> None:
        (var,) = node.outputs
        self.bind(b, var, b.number(node.attrs["value"], var.dtype))

    def _grid(self, b: Builder, node: Node) -> None:
        """(start + Σ step·index along the axes) // over."""
        (var,) = node.outputs
        total = b.number(node.attrs["start"], var.dtype)
        for axis, step in enumerate(node.attrs["steps"]):
            if isinstance(step, (Dim, Number)) or step != 0:
                total = b.ops.add(total, self._ramp(b, var, axis, step))
        if node.attrs["over"] > 1:
            total = b.node("Div", total, b.number(node.attrs["over"], var.dtype))
        self.bind(b, var, b.node("Expand", total, list(var.shape), shape=var.shape))

    def _ramp(self, b: Builder, var: Var, axis: int, step: Any) -> Value:
        ends = [b.number(n, int64) for n in (0, var.shape[axis], 1)]
        indices = b.node("Range", *ends, dtype=int64, shape=(var.shape[axis],))
        ramp = b.ops.mul(b.cast(indices, var.dtype), b.number(step, var.dtype))
        if isinstance(step, Number):  # for n = 1 the step 1 / (n - 1) is infinite, and not needed
            first = b.node("Equal", indices, b.number(0, int64))
            ramp = b.node("Where", first, b.number(0, var.dtype), ramp, shape=(var.shape[axis],))
        return b.ops.reshape(ramp, shape=(var.shape[axis], *[1] * (len(var.shape) - axis - 1)))  # type: ignore[no-any-return]

"""Passes over programs: constant folding, common subexpressions, dead nodes."""

from __future__ import annotations

from typing import Any

from wayfare.core.numpy_math import Array
from wayfare.core.symbolic_sizes import shown
from wayfare.exporters.program import Block, Node, Program, Var
from wayfare.exporters.recover.sizes import symbols_in
from wayfare.ir.passes.constant_folding import computed
from wayfare.ops.recurrent.onnx_rules import Repeated


def simplified(program: Program) -> Program:
    """Run all passes; the program is changed in place."""
    _Simplifier(program).run()
    _drop_unused(program)
    return program


class _Simplifier:
    """Constant folding and common subexpressions, block by block; an inner block may reuse nodes of outer blocks."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.same: dict[int, Var] = {}
        self._constants: dict[Any, Var] = {}

    def run(self) -> None:
        """Change the program."""
        self._block(self.program.block, {})
        symbols = self.program.symbols
        symbols[:] = [(self._now(var), axis) for var, axis in symbols]

    def _now(self, var: Var) -> Var:
        """The variable that replaces this one."""
        while id(var) in self.same:
            var = self.same[id(var)]
        if var.array is not None and not var.name and var.array.size <= 64:
            key = (var.array.dtype.str, var.array.shape, var.array.tobytes())
            return self._constants.setdefault(key, var)
        return var

    def _block(self, block: Block, around: dict[Any, Node]) -> None:
        done = dict(around)
        nodes = []
        for node in block.nodes:
            node.inputs = [self._now(v) for v in node.inputs]
            if node.op is not None and self._is_done(node, done):
                continue
            for inner in node.blocks:
                self._block(inner, done)
            nodes.append(node)
        block.nodes = nodes
        block.outputs = [self._now(v) for v in block.outputs]

    def _is_done(self, node: Node, done: dict[Any, Node]) -> bool:
        """Replace a node by an equal earlier node, by constants, or by its input (a copy). False if it must stay."""
        assert node.op is not None
        if node.op.moves == "copy":
            self._becomes(node.outputs[0], node.inputs[0])
            return True
        results = _computed(node)
        if results is not None:
            for var, array in zip(node.outputs, results, strict=True):
                var.array = array
            return True
        try:
            key = (node.op.name, tuple(map(id, node.inputs)), _described(node.attrs))
            before = done.setdefault(key, node)
        except TypeError:  # an attribute that cannot be compared
            return False
        if before is node:
            return False
        for mine, other in zip(node.outputs, before.outputs, strict=True):
            self._becomes(mine, other)
        return True

    def _becomes(self, var: Var, other: Var) -> None:
        if var is not other:
            self.same[id(var)] = other


def _described(structure: Any) -> Any:
    if isinstance(structure, dict):
        return tuple((name, _described(v)) for name, v in structure.items())
    if isinstance(structure, (tuple, list)):
        return tuple(map(_described, structure))
    if isinstance(structure, Repeated):
        return ("repeated", shown(structure.value), shown(structure.times))
    if isinstance(structure, slice):
        return ("slice", *[shown(e) for e in (structure.start, structure.stop, structure.step)])
    return (type(structure).__name__, repr(structure) if isinstance(structure, float) else shown(structure))


def _computed(node: Node) -> list[Array] | None:
    """The results of a node whose inputs are constants and whose attributes depend on no size; else None."""
    arrays = [v.array for v in node.inputs if v.array is not None]
    if node.op is None or len(arrays) < len(node.inputs) or symbols_in(node.attrs):
        return None
    return computed(node.op, arrays, node.attrs)


# -- dead nodes --------------------------------------------------------------------------------------------------------


def _drop_unused(program: Program) -> None:
    """Remove nodes that neither the results nor a size depend on."""
    while True:
        used: set[int] = set()
        numbers: set[int] = set()
        _collect(program.block, used, numbers)
        for number in numbers:
            used.add(id(program.symbols[number][0]))
        if not _drop(program.block, used):
            return


def _collect(block: Block, used: set[int], numbers: set[int]) -> None:
    used |= {id(v) for v in block.outputs}
    for var in (*block.inputs, *block.outputs):
        numbers |= symbols_in(var.shape)
    for node in block.nodes:
        used |= {id(v) for v in node.inputs}
        numbers |= symbols_in(node.attrs)
        for var in node.outputs:
            numbers |= symbols_in(var.shape)
        for inner in node.blocks:
            _collect(inner, used, numbers)


def _drop(block: Block, used: set[int]) -> bool:
    changed = False
    kept = []
    for node in block.nodes:
        if not any(id(v) in used for v in node.outputs):
            changed = True
            continue
        if node.kind == "loop":
            changed |= _drop_stacked(node, used)
        for inner in node.blocks:
            changed |= _drop(inner, used)
        kept.append(node)
    block.nodes = kept
    return changed


def _drop_stacked(node: Node, used: set[int]) -> bool:
    """Remove collected outputs of a loop that are not used."""
    block, count = node.blocks[0], node.attrs["carried"]
    lead = 1 if node.attrs["asks"] else 0
    keep = [n for n in range(count, len(node.outputs)) if id(node.outputs[n]) in used]
    if len(keep) == len(node.outputs) - count:
        return False
    node.outputs = [*node.outputs[:count], *[node.outputs[n] for n in keep]]
    block.outputs = [*block.outputs[: lead + count], *[block.outputs[lead + n] for n in keep]]
    return True

"""One block of a trace tree, the steps between two decisions: what it reads, and the key that equal blocks share.

Blocks that do the same (the body of a loop, met at each iteration) have equal keys and run as one function of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.batch.record.memory import HOST, Memory, memory_at
from wayfare.compiler.record.graph import Graph, Source
from wayfare.compiler.replay.trace_tree import Block
from wayfare.core.dispatch import apply
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor, wrap
from wayfare.ir.graph import Step, Value, in_order


def evaluate(values: Sequence[Value], known: dict[Value, Any], graph: Graph) -> list[Tensor]:
    """Run the steps that compute values, as ordinary ops on tensors. Where a gradient stops, the input is detached."""
    cuts, memory = graph.cuts, memory_of_graph(graph)
    given = {id(v.step) for v in known}
    for step in in_order(values, given):
        if step.op is None:
            _enter_constant(step, known, memory)
        elif id(step) not in given:
            inputs = [known[v] for v in step.inputs]
            for i, stops in enumerate(cuts.get(step.outputs[0], ())):
                if stops and inputs[i].requires_grad:
                    inputs[i] = inputs[i].detach()
            made = apply(step.op, tuple(inputs), step.attrs)
            known.update(zip(step.outputs, made if isinstance(made, (tuple, list)) else (made,), strict=True))
    return [known[v] for v in values]


def memory_of_graph(graph: Graph) -> Memory:
    """Where the arrays of the recordings lie."""
    return HOST if graph.device is None else memory_at(graph.device)


def _enter_constant(step: Step, known: dict[Value, Any], memory: Memory) -> None:
    value = step.outputs[0]
    if value not in known:
        known[value] = wrap(memory.constant(_array_of(step)))


def _array_of(step: Step) -> Array:
    what = step.data
    return what if isinstance(what, np.ndarray) else np.asarray(what, step.outputs[0].dtype)


class BlockInputs:
    """What a block of the tree reads, and the key that is equal for blocks that do the same."""

    __slots__ = ("_seen", "function", "key", "live", "rows", "shared", "takes_arguments", "targets")

    def __init__(self, block: Block, before: set[Value], graph: Graph, rows_of: frozenset[int]) -> None:
        """`before` are values of earlier blocks, `rows_of` the arguments that differ between examples, by number."""
        recording = block.recording
        self._seen = len(before), len(block.exports)
        self.function: Any = None  # of the blocks with this key
        self.live: list[Value] = []  # what this block and those after it read of earlier ones and of arguments
        self.targets = block.targets if recording is None else [*recording.made, *recording.unused]
        by_value = {source.value: source for source in graph.sources}
        self.rows: list[Value] = []
        self.shared: list[Source] = []
        numbers: dict[Value, int] = {}
        key: list[Any] = []
        stop = {id(v.step) for v in before}
        for step in _depth_first(self.targets, stop):
            if id(step) in stop:
                for v in step.outputs:
                    if v in before:
                        self._add_row(v, numbers, key)
            elif step.op is None:
                value = step.outputs[0]
                source = by_value.get(value)
                if source is None:
                    key.append((step.kind, _constant_key(step)))
                elif source.kind == "argument" and source.what in rows_of:
                    self._add_row(value, numbers, key)
                    continue
                else:
                    key.append((source.kind, source.what if source.kind == "argument" else id(source.what),
                                value.shape, value.dtype))  # fmt: skip
                    self.shared.append(source)
                numbers[value] = len(numbers)
            else:
                key.append((id(step.op), tuple([numbers[v] for v in step.inputs]), repr(tuple(step.attrs.items())),
                            graph.cuts.get(step.outputs[0]), tuple([v.shape for v in step.outputs])))  # fmt: skip
                for v in step.outputs:
                    numbers[v] = len(numbers)
        key.append(tuple([numbers[v] for v in self.targets]))
        self.key = (block.how, graph.device, *key)
        self.takes_arguments = any([source.kind == "argument" for source in self.shared])

    def is_of(self, block: Block, before: set[Value]) -> bool:
        """Is it up to date? A new path may read more of the values of earlier blocks."""
        return self._seen == (len(before), len(block.exports))

    def _add_row(self, value: Value, numbers: dict[Value, int], key: list[Any]) -> None:
        numbers[value] = len(numbers)
        key.append(("row", value.shape, value.dtype))
        self.rows.append(value)


def _depth_first(values: Sequence[Value], stop: set[int]) -> list[Step]:
    """The steps that compute values, inputs first. The order depends on the structure alone: steps that recordings
    share are older than others, so by age equal blocks would have their steps in different orders."""
    found: dict[int, Step] = {}
    stack = [(v.step, False) for v in reversed(values)]
    while stack:
        step, entered = stack.pop()
        if entered:
            found.setdefault(id(step), step)
        elif id(step) not in found:
            stack.append((step, True))
            if id(step) not in stop:
                stack += [(v.step, False) for v in reversed(step.inputs)]
    return list(found.values())


def _constant_key(step: Step) -> Any:
    array = _array_of(step)
    return (array.shape, array.dtype.char, array.tobytes()) if array.nbytes <= 1 << 16 else id(array)

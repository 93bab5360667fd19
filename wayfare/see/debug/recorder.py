"""The watcher behind `wf.debug.record`: records what happens, and keeps no array alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from wayfare.batch.frontend import running_example
from wayfare.batch.run.backward import MapNode
from wayfare.batch.session import Session
from wayfare.codegen.routines.rows import Rows
from wayfare.compiler.function import Compiled
from wayfare.core.device import ARRAYS, BACKENDS, Device, device_of
from wayfare.core.mode import Watcher
from wayfare.core.node import Node
from wayfare.core.spec import Spec
from wayfare.core.stand_in import StandIn
from wayfare.core.tensor import Tensor
from wayfare.core.walk import split_edge
from wayfare.see.debug.batches import Batches
from wayfare.see.debug.measures import COPIED, WHOLE, Measures
from wayfare.see.debug.memory import Memory
from wayfare.see.debug.naming import Naming
from wayfare.see.debug.plans import Calls
from wayfare.see.debug.words import PLAIN, attribute_text, outcome_text, user_line, variable_of
from wayfare.see.graph.node_info import arrays_in
from wayfare.see.run_document import INPUT, LEAF, OP

# The name of a variable is searched for this many tensors only: a loop over data makes very many.
_NAMED = 1000


class Entry(NamedTuple):
    """One row of the log: a value that an op made, or that existed before."""

    op: Any  # its record, or a word for a value that no op made
    kind: int  # OP, LEAF (a gradient is wanted for it) or INPUT
    name: Any  # (root, path) of a parameter
    inputs: Sequence[int]
    attrs: Any  # a dictionary, or text
    shape: tuple[int, ...]
    dtype: Any
    code: Any
    offset: int
    call: int
    example: int
    saved: int
    bytes: int
    out: int
    measure: int


class Recorder(Watcher):
    """Records ops, gradients, decisions, module calls and groups, in the order of time."""

    allows_plans = False

    def __init__(self, naming: Naming, chosen: Callable[[str, Any], bool], limit: int, elements: bool = True) -> None:
        self.naming = naming
        self.limit = limit
        # Values up to this size show their elements even if they were not chosen.
        self._small = WHOLE if elements else -1
        self.left_out = 0
        # Plain tuples in the order of the fields of Entry: making a tuple costs a third of making an Entry.
        self.entries: list[Any] = []
        self.devices: dict[int, Device] = {}  # of entries that are not on the CPU
        self.grads: dict[int, int] = {}
        self.events: list[tuple[Any, ...]] = []
        self.memory: list[int] = []
        self.measures = Measures()
        self.batches = Batches()
        self.compiled = Calls()
        self._chosen = chosen
        # Larger values whose elements are shown, and those of their gradients.
        self._picked: set[int] = set()
        self._now = Memory()
        self._by_number: dict[int, int] = {}
        self._rows: dict[tuple[int, int], int] = {}
        self._touched: dict[int, tuple[Tensor, int]] = {}
        # How many tensors from outside were searched among the user's variables.
        self._unnamed = 0

    # -- forward

    def ran(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        """An op has run on tensors."""
        entries = self.entries
        if len(entries) >= self.limit:
            self.left_out += len(outputs)
            return
        alive, by_number = self._now.alive, self._by_number
        sources = []
        for t in inputs:
            edge = t._edge
            if edge is None:
                known = alive.get(id(t._array))
                sources.append(self._before(t) if known is None or known.node < 0 else known.node)
            else:
                at = by_number.get(edge.number) if edge.__class__ is Node else None
                sources.append(self._find(t) if at is None else at)
        # The garbage collector skips tuples of numbers.
        given = tuple(sources)
        first = len(entries)
        saved = 0
        edge = outputs[0]._edge
        if edge.__class__ is not Node:
            if edge is None and len(outputs) > 1:
                edge = next((t._edge for t in outputs if t._edge is not None), None)
            edge = split_edge(edge)[0]
        if edge is not None:
            code, offset = edge.code, edge.offset
            by_number[edge.number] = first
            for kept in edge.kept or ():
                if kept.__class__ in ARRAYS:
                    saved += kept.nbytes
                elif kept is not None and kept.__class__ is not Spec:
                    saved += sum([array.nbytes for array in arrays_in(kept)])
        else:
            code, offset = user_line()
        example = running_example()
        call = self.naming.running(example)
        number = -1 if example is None else example.number
        if self.batches.running is not None:
            call = number = -1
            code, offset = self.batches.line()
        if attrs:
            for value in attrs.values():
                if value.__class__ not in PLAIN:
                    attrs = {name: attribute_text(v) for name, v in attrs.items()}
                    break
        out = 0
        for t in outputs:
            array = t._array
            size = array.nbytes
            self._now.note(array, first + out)
            show = array.size <= self._small
            if not show and self._chosen(op.name, t):
                show = True
                self._picked.add(first + out)
            known_as = -1
            if op.view and array.size > COPIED and array.size == inputs[0]._array.size:
                known_as = entries[given[0]][-1]
            if known_as >= 0:
                measure = self.measures.take_view(array, known_as, show)
            else:
                measure = self.measures.take(array, show)
            entries.append((op, OP, None, given, attrs, array.shape, array.dtype, code, offset, call, number,
                            saved, size, out, measure))  # fmt: skip
            if array.__class__ in BACKENDS:
                self.devices[len(entries) - 1] = device_of(array)
            saved = 0
            out += 1
        self.events.append(("f", first) if out == 1 else ("f", first, out))
        self.memory.append(self._now.bytes)

    def _find(self, t: Any) -> int:
        """The entry of a tensor that is there."""
        edge = t._edge
        if edge is None:
            known = self._now.alive.get(id(t._array))
            return self._before(t) if known is None or known.node < 0 else known.node
        node, out = split_edge(edge)
        first = self._by_number.get(node.number)
        return self._of_graph(node, out, t) if first is None else first + out

    def _before(self, t: Any) -> int:
        """The entry of a tensor that was not made by an op that was seen."""
        array = t._array
        gathered = self.batches.sources(t) if self.batches.running is not None else None
        if gathered is not None and len(gathered) == 1:
            # All rows of one result, in place: it is that result itself.
            base = self._now.alive.get(id(array.base))
            if base is not None and base.node == gathered[0] and array.shape == self.entries[base.node][5]:
                self._now.note(array, base.node)
                return base.node
        name = self.naming.of_tensor(t)
        if name is None and gathered is None and self._unnamed < _NAMED and (array.ndim or t._requires_grad):
            self._unnamed += 1
            name = variable_of(t)
        shown = "rows" if gathered is not None else "leaf" if t._requires_grad else "input"
        kind = OP if gathered else LEAF if t._requires_grad or (name is not None and name[0] >= 0) else INPUT
        chosen = array.size > self._small and self._chosen(name[1] if name else shown, t)
        if chosen:
            self._picked.add(len(self.entries))
        measure = self.measures.take(array, chosen or array.size <= self._small)
        at = self._add(shown, kind, name, gathered or (), array.shape, array.dtype, None, 0, array.nbytes, measure)
        self._now.note(array, at)
        if array.__class__ in BACKENDS:
            self.devices[at] = device_of(array)
        return at

    def _add(
        self, op: Any, kind: int, name: Any, inputs: tuple[int, ...], shape: Any, dtype: Any, code: Any, offset: int,
        size: int, measure: int, out: int = 0, example: int = -1, attrs: Any = None, saved: int = 0,
    ) -> int:  # fmt: skip
        at = len(self.entries)
        self.entries.append(
            (op, kind, name, inputs, attrs, shape, dtype, code, offset, -1, example, saved, size, out, measure)
        )
        return at

    def _of_graph(self, node: Any, out: int, t: Any) -> int:
        """The entry of a node that was made before the recording began; the nodes it was computed from come first."""
        if isinstance(node, MapNode):
            return self._row(node, out, t)
        found: list[Any] = []
        waiting: list[Any] = [node]
        seen = {node.number}
        while waiting and (not found or len(self.entries) + len(found) < self.limit):
            here = waiting.pop()
            found.append(here)
            for edge in here.edges:
                source = split_edge(edge)[0]
                usual = isinstance(source, Node) and not isinstance(source, MapNode)
                if usual and source.number not in self._by_number and source.number not in seen:
                    seen.add(source.number)
                    waiting.append(source)
        found.sort(key=lambda n: n.number)
        for here in found:
            sources = tuple([self._edge(edge) for edge in here.edges if edge is not None])
            self._by_number[here.number] = len(self.entries)
            attrs = {name: attribute_text(v) for name, v in here.attrs.items()}
            saved = sum(array.nbytes for array in arrays_in(here.kept))
            for number, (shape, dtype) in enumerate(here.outs or ((here.shape, here.dtype),)):
                size = prod(shape) * dtype.itemsize
                self._add(here.op, OP, None, sources, shape, dtype, here.code, here.offset, size, -1, number, -1, attrs,
                          0 if number else saved)  # fmt: skip
        return self._by_number[node.number] + out

    def _edge(self, edge: Any) -> int:
        if isinstance(edge, Tensor):
            return self._find(edge)
        node, out = split_edge(edge)
        if isinstance(node, MapNode):
            return self._row(node, out, None)
        first = self._by_number.get(node.number)
        return -1 if first is None else first + out

    def _row(self, node: Any, out: int, t: Any) -> int:
        """The entry of a result of a batched example: a row of what its group made."""
        at = self._rows.get((node.number, out))
        if at is None:
            shape, dtype = node.outs[out]
            inputs, example = self.batches.origin(node, out)
            measure = -1 if t is None else self.measures.take(t._array, t._array.size <= self._small)
            size = prod(shape) * dtype.itemsize
            at = self._add("row", OP, None, inputs, shape, dtype, node.code, node.offset, size, measure, 0, example)
            self._rows[node.number, out] = at
        return at

    # -- backward

    def stepped(self, node: Any, given: Any, made: Sequence[Any]) -> None:
        """The gradient rule of a node has run."""
        if node.__class__ is MapNode:
            self._through_map(node, given)
        else:
            first = self._by_number.get(node.number)
            if first is None:
                if len(self.entries) >= self.limit:
                    return
                first = self._of_graph(node, 0, None)
            if given.__class__ in ARRAYS:
                show = given.size <= self._small or first in self._picked
                self.grads[first] = self.measures.take(given, show)
                self.events.append(("b", first))
            elif given.__class__ is tuple:
                for out, g in enumerate(given):
                    if g is not None:
                        self._gradient(first + out, g)
                self.events.append(("b", first, len(given)))
            else:
                self._gradient(first, given)
                self.events.append(("b", first))
        now = self._now
        for g in made:
            if g.__class__ in ARRAYS:
                now.note(g, -1)
        self.memory.append(now.bytes)
        # A leaf that an op reads twice gets both gradients at once.
        leaves = {id(edge): edge for edge, g in zip(node.edges, made, strict=False)
                  if edge.__class__ is Tensor and g is not None}  # fmt: skip
        if leaves:
            for edge in leaves.values():
                at = self._find(edge)
                self._touched[id(edge)] = (edge, at)
                self.events.append(("a", at))
                self.memory.append(now.bytes)

    def _through_map(self, node: Any, given: Any) -> None:
        rows = []
        for out, g in enumerate(given):
            if g is not None:
                at = self._row(node, out, None)
                rows.append(at)
                self._gradient(at, g)
        if rows:
            self.events.append(("b", rows[0], len(rows)))

    def _gradient(self, at: int, g: Any) -> None:
        array = g
        if g.__class__ not in ARRAYS:
            if g.__class__ is Rows:
                parts = [p.values for p in g.parts]
                array = np.concatenate([p.reshape(-1) for p in parts]) if parts else np.zeros(0, g.dtype)
            else:
                array = g._array if isinstance(g, Tensor) else np.asarray(g)
        show = array.size <= self._small or at in self._picked
        self.grads[at] = self.measures.take(array, show and g.__class__ is not Rows)

    # -- what begins and ends

    def starts(self, what: Any) -> None:
        """A group or a compiled function begins. Everything else is recorded when it has ended."""
        if what.__class__ is list:
            at = self.batches.starts(what, len(self.entries))
            self.events.append(("g", at))
            self.memory.append(self._now.bytes)
        elif what.__class__ is Compiled:
            self.compiled.starts(what, len(self.entries))

    def ended(self, what: Any) -> None:
        """A group, a call or a session has ended; or a backward pass, after which the gradients of leaves are final."""
        if what.__class__ is list:
            self.batches.ended(len(self.entries))
        elif what.__class__ is Compiled:
            self.compiled.ended(len(self.entries))
        elif what.__class__ is Session:
            self.batches.session_ended(what)
        elif self._touched:
            captured = getattr(getattr(what, "capture", None), "tensors", {})
            touched, self._touched = self._touched, {}
            for leaf, at in touched.values():
                g = captured.get(leaf)
                g = leaf._grad if g is None else g
                if g is not None:
                    self._gradient(at, g)

    def entered(self, module: Any) -> None:
        """A call of a module begins."""
        self.naming.entered(module, running_example())

    def left(self, module: Any) -> None:
        """A call of a module has ended."""
        self.naming.left(running_example())

    def looked(self, tensor: Any, how: str, array: Any) -> None:
        """Python looked at a value."""
        if len(self.entries) >= self.limit:
            return
        example = running_example()
        number = -1 if example is None else example.number
        at = self.batches.node_of(tensor) if tensor.__class__ is StandIn else self._find(tensor)
        self.events.append(("d", at, how, outcome_text(how, array), *user_line(), number))
        self.memory.append(self._now.bytes)

    def let_go(self) -> None:
        """The end of the run: drop everything but numbers and text."""
        self._touched, self._by_number, self._rows = {}, {}, {}
        self._now.let_go()
        self.naming.let_go()
        self.batches.let_go()
        self.compiled.let_go(self.entries)
        self._chosen = lambda name, t: False

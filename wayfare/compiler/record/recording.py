"""One recorded call in the form that a replay needs: values to compute, memory to write, tensors to return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.autograd.capture import Capture
from wayfare.compiler.record.backward import RecordedPass, Visit
from wayfare.compiler.record.deferred import refuse_what_may_change
from wayfare.compiler.record.graph import Source
from wayfare.compiler.record.memory import Memory
from wayfare.compiler.record.overlap import overlap
from wayfare.compiler.record.recorder import Decision, Draw, GiveUp, Recorder
from wayfare.core.buffer_pool import owns_memory
from wayfare.core.device import BACKENDS, copied, zeros_on_device_of
from wayfare.core.errors import GraphError, InPlaceError
from wayfare.core.numpy_math import Array
from wayfare.core.quiet import quietly
from wayfare.core.tensor import Tensor
from wayfare.core.walk import reachable, split_edge
from wayfare.core.write_clock import owner_of
from wayfare.ir.graph import Value, in_order


class Output:
    """How a replay makes a tensor that outlives the call (a result, an assigned tensor, or a `.grad`).

    `kind` is "outside" for the tensor of `source`, "made" for result number `made` of the plan, and "view" for the view
    ops `path` applied to output number `base`.
    """

    __slots__ = ("base", "cut", "grad", "kind", "leaf", "made", "needs", "path", "source")

    def __init__(self, kind: str, needs: bool) -> None:
        self.kind = kind
        self.needs = needs
        self.source: Source | None = None
        self.made = -1
        self.base = -1
        self.path: tuple[Any, ...] = ()
        self.cut = False  # a view that is detached from its base
        self.leaf = False  # made inside, with requires_grad set
        self.grad = -1  # the number of the output that is its `.grad`


class Recording:
    """One recorded path through the function."""

    def __init__(self, recorder: Recorder, results: Sequence[Tensor]) -> None:
        self.decisions: list[Decision] = recorder.decisions
        self.segment_of = recorder.segment_of
        self.calls = recorder.calls
        self.slots = recorder.slots
        self.steps = recorder.steps
        self.customs = recorder.customs
        self.new_leaves = recorder.new_leaves
        self.sources = [source for source, _ in recorder.met.values()]
        self._recorder = recorder
        self._check_outside()
        self.made: list[Value] = []
        self.made_needs: list[bool] = []
        self.orders: list[tuple[int, ...] | None] = []  # the order of dimensions in memory, if not contiguous
        self._made_tensors: list[Tensor] = []
        self.outputs: list[Output] = []
        self._numbered: list[tuple[int, Tensor]] = []
        self._by_tensor: dict[int, int] = {}
        self._by_memory: dict[int, int] = {}
        self._by_array: dict[int, int] = {}
        self._results = results
        # Results with autograd history first: the others may then be detached views of them.
        for t in sorted(results, key=lambda t: (
            not t._requires_grad, t._edge is None, t._view is None and not owns_memory(t._array)
        )):  # fmt: skip
            self._output(t)
        self.results = [self._output(t) for t in results]
        self.shape: Any = None
        self.effects: list[Any] = []
        self.grads: list[tuple[Source, int | None]] = []
        self.grad_guards: list[tuple[Source, Source | None]] = []
        self.forgotten: list[Source] = []  # sources whose `.grad` is replaced without being read
        self._finish_grads()
        self.writes: list[tuple[Source, Value]] = [
            (m.source, m.value) for m in recorder.arrays.memories
            if m.source is not None and m.written and m.value is not m.source.value
        ]  # fmt: skip
        self._check_sharing()
        self.unused = self._may_fail()
        self.draws = self._draws()
        # The backward pass after the call: its seeds, the gradients of the sources, the saved values, the visited nodes
        # (by the steps recorded for them), and where the memory of their saved values (by id) is visible: numbers of
        # `made`, and sources.
        self.seeds: list[Value] = []
        self.input_grads: list[tuple[Source, Value]] = []
        self.saved: list[Value] = []
        self.visits: dict[int, list[Visit]] = {}
        self.homes: dict[int, list[int | Source]] = {}
        self.dead = False
        if any(self.made_needs) and recorder.records_gradient:
            self._differentiate()
        del self._recorder, self._made_tensors, self._numbered, self._results

    # -- results

    def _output(self, t: Tensor) -> int:
        """The number of a tensor among the outputs."""
        found = self._by_tensor.get(id(t))
        if found is not None:
            return found
        recorder = self._recorder
        if t._view is not None:
            t._renew()
        source = recorder.source_of(t)
        if source is not None:
            out = Output("outside", t._requires_grad)
            out.source = source
            return self._add(t, out)
        known = recorder.known(t)
        memory = known.memory
        if memory.source is not None:
            seen = recorder.source_of(t._view.base) if t._view is not None else None
            if seen is not None and t._view is not None:
                return self._view_of(t, self._outside(seen), t._view.path)
            if not t._requires_grad or t._edge is None or self._is_part(t, memory.source):
                return self._view_of(t, self._outside(memory.source), known.path)
            # Its autograd history is not that of the memory (it became a leaf inside): keep the history, not the alias.
        if id(memory) in self._by_memory:
            return self._view_of(t, self._by_memory[id(memory)], known.path)
        if id(t._array) in self._by_array:
            return self._view_of(t, self._by_array[id(t._array)], ())
        if known.path and t._view is not None and self._is_shared(memory):
            base = self._output(t._view.base)
            return self._view_of(t, base, known.path)
        out = Output("made", t._requires_grad)
        out.made = len(self.made)
        out.leaf = t._requires_grad and t._edge is None
        self.made.append(recorder.value(t))
        self.orders.append(order_of(t._array))
        self.made_needs.append(t._requires_grad and not out.leaf)
        self._made_tensors.append(t)
        number = self._with_grad(t, out)
        self._by_array[id(t._array)] = number
        if not known.path:
            self._by_memory[id(memory)] = number
        return number

    def _is_part(self, t: Tensor, source: Source) -> bool:
        """Is it a view of a captured tensor that is a view itself, both of the same base?"""
        whole = self._recorder.met[id(source)][1] if id(source) in self._recorder.met else None
        return whole is not None and whole._view is not None and t._view is not None and (
            t._view.base is whole._view.base
        )  # fmt: skip

    def _add(self, t: Tensor, out: Output) -> int:
        self._numbered.append((len(self.outputs), t))
        self.outputs.append(out)
        self._by_tensor[id(t)] = len(self.outputs) - 1
        return len(self.outputs) - 1

    def _outside(self, source: Source) -> int:
        for number, out in enumerate(self.outputs):
            if out.kind == "outside" and out.source is source:
                return number
        out = Output("outside", False)
        out.source = source
        self.outputs.append(out)
        return len(self.outputs) - 1

    def _view_of(self, t: Tensor, base: int, path: tuple[Any, ...]) -> int:
        out = Output("view", t._requires_grad)
        out.leaf = t._requires_grad and t._edge is None
        out.base, out.path, out.cut = base, path, out.leaf or not t._requires_grad
        return self._with_grad(t, out)

    def _with_grad(self, t: Tensor, out: Output) -> int:
        number = self._add(t, out)
        if isinstance(t._grad, Tensor):
            out.grad = self._output(t._grad)
        return number

    def _is_shared(self, memory: Memory) -> bool:
        """Do several outputs share this memory?"""
        arrays = self._recorder.arrays
        owners = [arrays.find(t._array) for t in self._wanted]
        return sum(k is not None and k.memory is memory for k in owners) > 1

    @property
    def _wanted(self) -> list[Tensor]:
        finals = [slot.final for slot in self._recorder.grads.values() if slot.written and slot.final is not None]
        return [*self._results, *finals]

    def _finish_grads(self) -> None:
        for slot in self._recorder.grads.values():
            if slot.read:
                self.grad_guards.append((slot.owner, slot.entry))
            if not slot.written:
                continue
            if not slot.read:
                self.forgotten.append(slot.owner)
            if slot.final is None:
                self.grads.append((slot.owner, None))
            elif not (slot.entry is not None and self._recorder.source_of(slot.final) is slot.entry):
                self.grads.append((slot.owner, self._output(slot.final)))

    # -- what cannot be replayed

    def _check_outside(self) -> None:
        for t, array, edge, needs in self._recorder.entered:
            if t._array is not array:
                raise GiveUp("it replaces the memory of an argument or captured tensor (`.data = …`)")
            if t._edge is not edge or t._requires_grad is not needs:
                raise GiveUp("it changes the autograd history of an argument or captured tensor by a write in place")

    def _check_sharing(self) -> None:
        """Memory that is written must be an input only once."""
        if not self.writes:
            return
        written = {id(source) for source, _ in self.writes}
        if any([memory.source is not None and id(memory.source) in written for memory in self._recorder.read_apart]):
            raise GiveUp("it writes in place to memory that it also reads through a view that requires a gradient")
        by_owner: dict[int, list[tuple[Memory, Array]]] = {}
        for memory in self._recorder.arrays.memories:
            base = memory.base()
            if memory.source is None or base is None:
                continue
            others = by_owner.setdefault(id(owner_of(base)), [])
            for other, array in others:
                if other is not memory and (id(memory.source) in written or id(other.source) in written) and (
                    overlap(base, array) is not None
                ):  # fmt: skip
                    raise GiveUp("it writes in place to memory that two arguments or captured tensors share")
            others.append((memory, base))
            if id(memory.source) in written and base.__class__ not in BACKENDS and (
                any(np.may_share_memory(base, a) for a in self._recorder.seen_arrays)
            ):
                raise GiveUp("it writes in place to memory that it also captures as a NumPy array")

    def _may_fail(self) -> list[Value]:
        """Values that are computed although nothing uses them, because their ops may raise an error (index out of
        range)."""
        asked = self._recorder.may_fail
        if not asked:
            return []
        decided = [decision.value for decision in self.decisions]
        used = {id(step) for step in in_order([*self.made, *[v for _, v in self.writes], *decided])}
        return [v for v in asked if id(v.step) not in used]

    def _draws(self) -> list[tuple[Any, int]]:
        """Random generators, and how many keys each gave."""
        found = []
        for generator, (_seed, calls) in self._recorder.states.values():
            found.append((generator, generator._calls - calls))
        return found

    # -- the backward pass after the call

    def _differentiate(self) -> None:
        """Record the backward pass that may follow the call."""
        recorder = self._recorder
        tensors = [t for t, needs in zip(self._made_tensors, self.made_needs, strict=True) if needs]
        edges = [t._edge or t for t in tensors]
        forward = set(self.segment_of)
        sources = {id(s): (s, t) for s, t in recorder.met.values() if t._requires_grad}
        # Gradients stop at the sources: a state computed outside from the same weights is an input like any other.
        capture = Capture([t._edge or t for _, t in sources.values()], edges, recorder.start)
        roots: list[tuple[Any, Array]] = []
        for number, t in enumerate(tensors):
            array = zeros_on_device_of(t._array, t._array.shape, t._array.dtype)
            array += 1
            value = recorder.graph.fresh(number, array)
            recorder.arrays.own(array, value)
            self.seeds.append(value)
            roots.append((t._edge or t, array))
        nodes, leaves = reachable(edges, recorder.start)
        self._check_later(refuse_what_may_change(nodes, len(tensors)), leaves)
        self._check_views()
        self._check_equal()
        decided, drawn = len(recorder.decisions), len(recorder.slots)
        going = RecordedPass(recorder, True, capture, accumulate=False, bare=True)
        try:
            with quietly():
                going.run(roots)
        except InPlaceError as error:
            raise GiveUp(f"its gradient cannot be computed: {error.args[0]}") from None
        except GraphError:
            self.dead = True  # a backward pass inside has used the graph up
            if any(self._is_alive(root, capture) for root in roots):
                raise GiveUp("a backward pass inside has used up the graph of some results and not of others") from None
            return
        except GiveUp:
            raise
        except Exception as error:  # raised by a custom Function: the real backward pass must raise it
            raise GiveUp(f"its gradient cannot be recorded: {type(error).__name__}: {error}") from None
        finally:
            drew = self._give_back(drawn)
        if drew:
            raise GiveUp("a custom backward draws random numbers")
        if recorder.failed:
            raise GiveUp(recorder.failed)
        if len(recorder.decisions) != decided:
            raise GiveUp("a custom backward reads the values of a gradient")
        seen: set[Any] = set()
        for source, t in sources.values():
            found = capture.of(t)
            if found is not None and (t._edge or t) not in seen:  # two tensors with the same edge have one gradient
                seen.add(t._edge or t)
                self.input_grads.append((source, recorder.array_value(found)))
        self._save(forward)
        self._find_homes(going)

    def _check_later(self, tensors: Sequence[Tensor], leaves: Sequence[Any]) -> None:
        """Give up if a tensor that a custom backward reads can be written after the call, or if a result is a leaf made
        inside."""
        recorder = self._recorder
        shown = {id(known.memory) for _, t in self._numbered if (known := recorder.arrays.find(t._array)) is not None}
        for t in tensors:
            known = recorder.known(t)
            source = known.memory.source
            if id(known.memory) in shown or (source is not None and recorder.arrays.value(known) is not source.value):
                raise GiveUp("a custom backward reads a tensor from its ctx that can be written after the call")
        inside = {id(t) for number, t in self._numbered if self.outputs[number].leaf}
        if any(id(leaf) in inside for leaf in leaves):
            raise GiveUp("it returns a leaf that it has made, whose gradient may be needed")

    def _check_views(self) -> None:
        """Give up if a result is computed from another one that has no output of its own in the call's node: from a
        view, or from one of two equal results."""
        live = [(t, self.outputs[number]) for number, t in self._numbered if t._edge is not None]
        for t, out in live:
            equal = out.kind == "made" and sum(v is self.made[out.made] for v in self.made) > 1
            if (out.kind == "view" and not out.cut) or equal:
                node = split_edge(t._edge)[0]
                others = [other._edge for other, _ in live if split_edge(other._edge)[0] is not node]
                if node in reachable(others, self._recorder.start)[0]:
                    what = "the same twice" if equal else "a view"
                    raise GiveUp(f"it returns {what}, and another result that is computed from it")

    def _check_equal(self) -> None:
        """Give up if Python computes a value twice (one step in the graph) and returns one of them together with a
        result computed from the other: their gradients and hooks would be mixed up."""
        wanted = [v for v, needs in zip(self.made, self.made_needs, strict=True) if needs]
        twice = [v for v in wanted if id(v.step) in self._recorder.twice]
        if not twice or len(wanted) < 2:
            return
        for v in wanted:
            inside = {id(step) for step in in_order([v]) if step is not v.step}
            if any(id(other.step) in inside for other in wanted):
                raise GiveUp("it computes a value twice, and returns it together with a result computed from it")

    def _give_back(self, drawn: int) -> bool:
        """Return the random keys that a custom backward drew; were there any?"""
        extra = self._recorder.slots[drawn:]
        del self._recorder.slots[drawn:]
        for draw in extra:
            if isinstance(draw, Draw):
                with draw.generator._lock:
                    draw.generator._calls = min(draw.generator._calls, draw.key[1])
        return bool(extra)

    def _find_homes(self, going: RecordedPass) -> None:
        """Find where the memory of saved values is visible, and so can be written."""
        self.visits = going.visits
        kept = {id(m): m for visits in self.visits.values() for visit in visits for m in visit.reads}
        self.homes = {key: [m.source] for key, m in kept.items() if m.source is not None}
        for number, t in self._numbered:
            known = self._recorder.arrays.find(t._array)
            out = self.outputs[number]
            while out.kind == "view":
                out = self.outputs[out.base]
            if known is not None and id(known.memory) in kept and out.kind == "made":
                homes = self.homes.setdefault(id(known.memory), [])
                if out.made not in homes:
                    homes.append(out.made)

    def _is_alive(self, root: tuple[Any, Array], capture: Capture) -> bool:
        """Can a backward pass start from this root?"""
        try:
            RecordedPass(self._recorder, True, capture, accumulate=False, bare=True).run([root])
        except GraphError:
            return False
        return True

    def _save(self, forward: set[int]) -> None:
        """Choose the values that the gradient reads: values of the call, and inputs that the call overwrites."""
        recorder = self._recorder
        written = {id(m) for m in recorder.arrays.memories if m.source is not None and m.written}
        lost = set()
        for source, t in recorder.met.values():
            known = recorder.arrays.find(t._array)
            if known is not None and id(known.memory) in written:
                lost.add(source.value)
        steps = in_order([v for _, v in self.input_grads], forward)
        self.saved = [v for step in steps if id(step) in forward or step.outputs[0] in lost for v in step.outputs]
        used = {id(v) for step in steps if id(step) not in forward for v in step.inputs}
        used |= {id(v) for _, v in self.input_grads}
        # Overwritten inputs are saved in any case: the steps may have to run again from the beginning.
        self.saved = [v for v in self.saved if id(v) in used and v not in lost]
        self.saved += [v for step in in_order([v for _, v in self.input_grads]) for v in step.outputs if v in lost]


def order_of(array: Array) -> tuple[int, ...] | None:
    """The dimensions by stride, largest first; None for a contiguous array."""
    if array.flags.c_contiguous or array.ndim < 2:
        return None
    return tuple(sorted(range(array.ndim), key=lambda dim: -abs(array.strides[dim])))


def in_order_of(array: Array, order: tuple[int, ...]) -> Array:
    """A copy with this order of dimensions in memory."""
    return copied(array.transpose(order), "C").transpose(tuple(np.argsort(order)))  # type: ignore[no-any-return]

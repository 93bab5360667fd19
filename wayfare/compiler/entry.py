"""One kind of call of a compiled function: what must hold for it, the tree of its paths, and running along them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from wayfare.compiler.account import Ledger, perf_counter
from wayfare.compiler.graph import Graph, Source
from wayfare.compiler.guards import Guards
from wayfare.compiler.outside import Gradient, used_up
from wayfare.compiler.overlap import Relations, relations, relations_between
from wayfare.compiler.recorder import Draw, outcome_of
from wayfare.compiler.recording import Output, Recording, in_order_of
from wayfare.compiler.structure import put_together
from wayfare.compiler.tree import Stretch, Tree
from wayfare.core import buffer_pool
from wayfare.core.dispatch import apply
from wayfare.core.executor import StaleCall
from wayfare.core.mode import STATE
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import owner_of
from wayfare.ir.graph import Value


class Unseen(Exception):
    """Python has not been seen to go on from here: it must be run."""

    def __init__(self, stretch: Stretch | None = None, outcome: Any = None) -> None:
        super().__init__()
        self.stretch, self.outcome = stretch, outcome


class Way:
    """One call on its way along the tree: the stretch it has come to, and what was computed and given so far."""

    __slots__ = ("end", "given", "ran", "there")

    def __init__(self, end: Stretch) -> None:
        self.end = end
        self.given: list[Any] = []  # random keys, and numbers of optimisers
        self.ran: list[Any] = []  # call-outs that have run
        self.there: dict[Value, Array] = {}  # values that earlier stretches hand on

    def undo(self) -> None:
        """Put the Python state of call-outs back."""
        for call in reversed(self.ran):
            call.undo()
        self.ran.clear()


class Fixed:
    """A captured tensor as the plans know it."""

    __slots__ = ("array", "needs", "spec", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.array = tensor._array
        self.needs = tensor._requires_grad
        self.spec = (self.array.shape, self.array.strides, self.array.dtype)

    def holds(self) -> bool:
        """Is it as it was, or in other memory that lies alike?"""
        array = self.tensor._array
        if self.tensor.requires_grad is not self.needs or (array.shape, array.strides, array.dtype) != self.spec:
            return False
        self.array = array
        return True


class Entry:
    """The recordings of one function for arguments of one kind under the same guards."""

    def __init__(self, name: str, guards: Guards) -> None:
        self.name = name
        self.guards = guards
        self.graph = Graph()
        self.tree = Tree(self.graph, name)
        self.fixed: list[Fixed] = []
        self.moved = 0  # how often captured tensors were found in other memory
        self._fixed_ids: set[int] = set()
        self._owners: set[int] = set()
        # How captured tensors overlap each other, and the arguments them.
        self._layout: Relations = ()
        self._pattern: Relations = ()
        for t in guards.seen.tensors.values():
            self._fix(t)
        self._look_at_memory()
        self._layout = self._layout_now = self._overlaps()
        self.grad_guards: list[tuple[Source, Source | None]] = []
        self._grad_layout: Relations = ()
        self.views: list[Source] = []
        self.recordings = 0
        self.hits = 0
        self.eager_reason = ""  # why its calls run as plain Python
        self.why = ""
        self.ledger = Ledger()
        self.planning = 0.0  # seconds that went into plans and are not accounted for yet
        self.shortened = False  # was a shortcut tried?
        self.burst = 0  # calls that are to run as plain Python, to time them
        self.unseen: dict[tuple[int, Any], int] = {}  # outcomes that were met before they were recorded

    # -- does it hold?

    def holds(self, arguments: Sequence[Tensor], look: bool = True) -> bool:
        """May this entry be replayed for these arguments? Without `look`, only if that can be told at once."""
        self.why = ""
        if not self.guards.holds(look):
            self.why = self.guards.why()
            return False
        for f in self.fixed:
            t = f.tensor
            if t._array is f.array and t._requires_grad is f.needs:
                continue
            self.moved += 1
            if not f.holds():
                self.why = f"{self.guards.seen.name_of(t)} has another shape, dtype or requires_grad"
                return False
            self._look_at_memory()
            self._layout_now = self._overlaps()
        if self._layout_now != self._layout:
            self.why = "captured tensors share memory in another way"
            return False
        for owner, entry in self.grad_guards:
            t = owner.tensor(arguments)  # type: ignore[assignment]
            grad = t._grad if t is not None else None
            if (grad is None) is not (entry is None):
                self.why = "a .grad was there and is not, or the other way round"
                return False
            if entry is not None:
                grad = entry.tensor(arguments)
                assert grad is not None
                layout = grad._array.strides, grad._array.flags.writeable
                if grad._edge is not None or not _alike(grad._array, entry.value) or layout != entry.layout:
                    self.why = "a .grad has another shape, or a history"
                    return False
        for source in self.views:
            base, owner = source.tensor(arguments), source.what.tensor(arguments)
            if base is None or not _alike(base._array, source.value) or owner._view.path != source.path:
                self.why = "a tensor is no longer a view, or of something else"
                return False
        if self._shared(arguments) != self._pattern:
            self.why = "other arguments share memory with captured tensors"
            return False
        if self.grad_guards and self._grads_overlap(arguments) != self._grad_layout:
            self.why = "a .grad shares memory with something else"
            return False
        return True

    @property
    def shares_memory(self) -> bool:
        """Do arguments lie in the memory of captured tensors?"""
        return bool(self._pattern)

    def _look_at_memory(self) -> None:
        """Note in which memory captured tensors lie."""
        self._owners = {id(owner_of(t._array)) for t in self._captured()}

    def _captured(self) -> list[Tensor]:
        found = {id(t): t for t in self.guards.seen.tensors.values()}
        return list((found | {id(f.tensor): f.tensor for f in self.fixed}).values())

    def _overlaps(self) -> Relations:
        """How captured tensors overlap each other."""
        captured = self._captured()
        return relations(captured, [id(t) for t in captured]) if len(self._owners) < len(captured) else ()

    def _shared(self, arguments: Sequence[Tensor]) -> Relations:
        """How arguments overlap captured tensors."""
        inside = [id(owner_of(t._array)) in self._owners for t in arguments]
        return relations_between(arguments, self._captured()) if True in inside else ()

    def _grads_overlap(self, arguments: Sequence[Tensor]) -> Relations:
        """How gradients that are read overlap each other, captured tensors and arguments."""
        grads = [source.tensor(arguments) for _, source in self.grad_guards if source is not None]
        found = [t for t in grads if t is not None]
        owners = [id(owner_of(t._array)) for t in found]
        others = {id(owner_of(t._array)) for t in arguments} | self._owners
        if len(set(owners)) == len(owners) and others.isdisjoint(owners):
            return ()
        return relations(found) + relations_between(found, [*self._captured(), *arguments])

    # -- growing

    def add(self, recording: Recording, arguments: Sequence[Tensor]) -> None:
        """Enter a recording."""
        self.tree.add(recording)
        self.recordings += 1
        for source in recording.sources:
            if source.kind == "captured":
                self._fix(source.what)
            elif source.kind == "base" and source not in self.views:
                self.views.append(source)
        for guard in recording.grad_guards:
            if guard not in self.grad_guards:
                self.grad_guards.append(guard)
        self._look_at_memory()
        self._layout = self._layout_now = self._overlaps()
        self._pattern = self._shared(arguments)
        self._grad_layout = self._grads_overlap(arguments)

    def _fix(self, t: Tensor) -> None:
        """A captured tensor is to stay as it is, but for its numbers."""
        if id(t) not in self._fixed_ids:
            self._fixed_ids.add(id(t))
            self.fixed.append(Fixed(t))

    def start_again(self) -> None:
        """Forget what a recording that was of no use has left in the graph."""
        if not self.recordings:
            self.graph = Graph()
            self.tree = Tree(self.graph, self.name)

    # -- running

    def lead(self, arguments: Sequence[Tensor]) -> Way:
        """Go along the decisions to the last stretch. Raises `Unseen`, with nothing changed, where Python must run."""
        stretch = self.tree.root
        assert stretch is not None
        way = Way(stretch)
        try:
            while True:
                stretch.visits += 1
                if stretch.calls or len(way.given) < len(stretch.slots):
                    self._give(stretch, way.given, way.ran)
                if stretch.recording is not None:
                    way.end = stretch
                    return way
                made = self.compute(stretch, arguments, way.given, way.there)
                outcome = outcome_of(made[0], stretch.how)
                child = stretch.children.get(outcome)
                if child is None:
                    raise Unseen(stretch, outcome)
                keep(stretch, made, way.there)
                stretch = child
        except BaseException:
            way.undo()
            raise

    def complete(self, way: Way, arguments: Sequence[Tensor]) -> Any:
        """Run the last stretch, and do to the world outside what the call does. Gives what the function returns."""
        try:
            made = self.compute(way.end, arguments, way.given, way.there)
            recording = way.end.recording
            assert recording is not None
            tensors = self.finish(way.end, made, arguments, way.given)
        except BaseException:
            way.undo()
            raise
        for effect in recording.effects:
            effect.apply(tensors)
        return put_together(recording.shape, iter([tensors[i] for i in recording.results]))

    def compute(
        self, stretch: Stretch, arguments: Sequence[Tensor], given: Sequence[Any], there: dict[Value, Array]
    ) -> list[Array]:
        """Run the plan of a stretch; it is made if there is none."""
        if stretch.plan is None:
            self.plan(stretch, arguments, there)
        fetch = stretch.fetch
        assert stretch.plan is not None and fetch is not None
        if fetch.moved != self.moved:
            fetch.renew(self.moved)
        recording = stretch.recording
        if recording is not None and not stretch.plan.python_steps:
            # Nothing can go wrong any more, so gradients that nobody looks at make room for the new ones.
            for source in recording.forgotten:
                source.tensor(arguments)._grad = None  # type: ignore[union-attr]
        made = stretch.plan.run(fetch.arrays(arguments, there), given)
        if recording is not None:
            fetch.note_writes(arguments)
        return made

    def plan(self, stretch: Stretch, arguments: Sequence[Tensor], there: dict[Value, Array]) -> None:
        """Make the plan of a stretch."""
        began = perf_counter()
        samples: dict[Any, Array] = dict(there)
        for source in self.graph.sources:
            t = source.tensor(arguments)
            if t is not None:
                samples[source] = t._array
        self.tree.plan(stretch, samples)
        buffer_pool.trim()  # what recording left there is of other sizes than what the plan will ask for
        self.planning += perf_counter() - began

    def _give(self, stretch: Stretch, given: list[Any], ran: list[Any]) -> None:
        """Random keys and numbers for the steps of this stretch."""
        numbers: dict[int, list[tuple[float, ...]]] = {}
        for number, call in stretch.calls:
            try:
                numbers[number] = call.run()
            except StaleCall:
                raise Unseen from None
            ran.append(call)
        for slot in stretch.slots[len(given) :]:
            if slot.__class__ is Draw:
                generator = slot.generator
                given.append((generator._seed, generator._calls + slot.offset) if slot.offset is not None else slot.key)
            else:
                given.append(numbers[slot[0]][slot[1]])

    def finish(
        self, stretch: Stretch, made: list[Array], arguments: Sequence[Tensor], given: Sequence[Any]
    ) -> list[Any]:
        """Do to the world outside what the call does, and give its tensors."""
        recording = stretch.recording
        assert recording is not None
        self.hits += 1
        stretch.hits += 1
        for generator, count in recording.draws:
            if count:
                with generator._lock:
                    generator._calls += count
        count = len(recording.made)
        made_tensors = [wrap(array if array.flags.writeable else array.copy()) for array in made[:count]]
        for t, order in zip(made_tensors, recording.orders, strict=True):
            if order is not None:
                t._array = in_order_of(t._array, order)
        if recording.seeds or recording.dead:
            saved = made[count : count + len(recording.saved)]
            self._attach(stretch, recording, made_tensors, saved, arguments, given)
        tensors: list[Any] = []
        for out in recording.outputs:
            tensors.append(self._tensor(out, made_tensors, tensors, arguments))
        for out, t in zip(recording.outputs, tensors, strict=True):
            if out.needs and out.kind == "view" and not t._requires_grad:
                t._requires_grad = True  # of a leaf made inside, which nobody else knows
            if out.grad >= 0:
                t._grad = tensors[out.grad]
        for source, number in recording.grads:
            source.tensor(arguments)._grad = None if number is None else tensors[number]  # type: ignore[union-attr]
        mode = STATE.mode
        if mode is not None and mode.inference:
            for t in made_tensors:
                t._more()["inference"] = True
        return tensors

    def _tensor(self, out: Output, made: list[Tensor], tensors: list[Tensor], arguments: Sequence[Tensor]) -> Tensor:
        if out.kind == "made":
            made[out.made]._requires_grad |= out.leaf
            return made[out.made]
        if out.kind == "outside":
            assert out.source is not None
            return out.source.tensor(arguments)  # type: ignore[return-value]
        t = tensors[out.base]
        if out.cut or not out.path:
            t = t.detach()
        for name, attrs in out.path:
            t = apply(REGISTRY[name], (t,), dict(attrs))
        return t

    def _attach(
        self, stretch: Stretch, recording: Recording, made: list[Tensor], saved: list[Array],
        arguments: Sequence[Tensor], given: Sequence[Any],
    ) -> None:  # fmt: skip
        """Give results that require a gradient their place in the graph."""
        wanted = [t for t, needs in zip(made, recording.made_needs, strict=True) if needs]
        if recording.dead:
            for t in wanted:
                t._edge = node = used_up(self.name)
                node.shape, node.dtype = t._array.shape, t._array.dtype
                t._requires_grad = True
            return
        if stretch.gradient is None:
            stretch.gradient = Gradient(recording, self.graph, self.name)
        arrays = [t._array for t in made]
        # A result that is also kept is kept itself: a write nobody notices changes the gradient, as in plain Python.
        saved = [array if at is None else arrays[at] for array, at in zip(saved, stretch.gradient.shared, strict=True)]
        node = stretch.gradient.node(arguments, arrays, saved, given)
        for number, t in enumerate(wanted):
            t._edge = (node, number)
            t._requires_grad = True
        if stretch.gradient.nested:
            node.results = [weakref.ref(t) for t in wanted]


def keep(stretch: Stretch, made: Sequence[Array], there: dict[Value, Array]) -> None:
    """Remember what a stretch hands on."""
    assert stretch.value is not None
    there[stretch.value] = made[0]
    there.update(zip(stretch.exports, made[1:], strict=True))


def _alike(array: Array, value: Value) -> bool:
    return array.shape == value.shape and array.dtype == value.dtype

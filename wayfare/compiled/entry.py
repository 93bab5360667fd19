"""One kind of call of a compiled function: what must hold for it, the tree of its paths, and running along them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.backend import pool
from wayfare.backend.cpu import Array
from wayfare.backend.writes import owner_of
from wayfare.compiled.graph import Graph, Source
from wayfare.compiled.guards import Guards
from wayfare.compiled.outside import Gradient, used_up
from wayfare.compiled.recorder import Draw, outcome_of
from wayfare.compiled.recording import Output, Recording
from wayfare.compiled.structure import put_together
from wayfare.compiled.tree import Stretch, Tree
from wayfare.eager import apply
from wayfare.fusion.trace import Value
from wayfare.op import REGISTRY
from wayfare.state import STATE, StaleCall
from wayfare.tensor import Tensor, wrap


class Unseen(Exception):
    """Python has not been seen to go on from here: it must be run."""


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

    def __init__(self, name: str, guards: Guards | None, pattern: tuple[int, ...]) -> None:
        self.name = name
        self.guards = guards
        self.graph = Graph()
        self.tree = Tree(self.graph, name)
        self.fixed: list[Fixed] = []
        self.moved = 0  # how often captured tensors were found in other memory
        self._fixed_ids: set[int] = set()
        self._owners: set[int] = set()
        self._look_at_memory()
        self.pattern = pattern
        self.grad_guards: list[tuple[Source, Source | None]] = []
        self.views: list[Source] = []
        self.recordings = 0
        self.hits = 0
        self.ran: list[Any] = []  # the call-outs of the last run
        self.eager_reason = ""  # why its calls run as plain Python
        self.rerun_reason = ""  # why Python runs at every call, followed
        self.why = ""

    # -- does it hold?

    def holds(self, arguments: Sequence[Tensor]) -> bool:
        """May this entry be replayed for these arguments?"""
        self.why = ""
        assert self.guards is not None
        if not self.guards.holds():
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
        for owner, entry in self.grad_guards:
            t = owner.tensor(arguments)  # type: ignore[assignment]
            grad = t._grad if t is not None else None
            if (grad is None) is not (entry is None):
                self.why = "a .grad was there and is not, or the other way round"
                return False
            if entry is not None:
                grad = entry.tensor(arguments)
                assert grad is not None
                if grad._edge is not None or not _alike(grad._array, entry.value):
                    self.why = "a .grad has another shape, or a history"
                    return False
        for source in self.views:
            base = source.tensor(arguments)
            if base is None or not _alike(base._array, source.value):
                self.why = "a tensor is no longer a view, or of something else"
                return False
        if self.shared(arguments) != self.pattern:
            self.why = "other arguments share memory with captured tensors"
            return False
        return True

    def _look_at_memory(self) -> None:
        """Note in which memory captured tensors lie."""
        seen = [*self.guards.seen.tensors.values()] if self.guards is not None else []
        self._owners = {id(owner_of(t._array)) for t in (*seen, *[f.tensor for f in self.fixed])}

    def shared(self, arguments: Sequence[Tensor]) -> tuple[int, ...]:
        """The arguments that lie in the memory of captured tensors."""
        return tuple([i for i, t in enumerate(arguments) if id(owner_of(t._array)) in self._owners])

    # -- growing

    def add(self, recording: Recording, arguments: Sequence[Tensor], events: Sequence[Any] = ()) -> None:
        """Enter a recording."""
        self.tree.add(recording, events)
        self.recordings += 1
        for source in recording.sources:
            if source.kind == "captured" and id(source.what) not in self._fixed_ids:
                self._fixed_ids.add(id(source.what))
                self.fixed.append(Fixed(source.what))
            elif source.kind == "base" and source not in self.views:
                self.views.append(source)
        for guard in recording.grad_guards:
            if guard not in self.grad_guards:
                self.grad_guards.append(guard)
        self._look_at_memory()
        self.pattern = self.shared(arguments)

    def start_again(self) -> None:
        """Forget what a recording that was of no use has left in the graph."""
        if not self.recordings:
            self.graph = Graph()
            self.tree = Tree(self.graph, self.name)

    # -- running

    def run(self, arguments: Sequence[Tensor]) -> Any:
        """Replay. Raises `Unseen`, having changed nothing, where Python has to go on."""
        stretch = self.tree.root
        assert stretch is not None
        given: list[Any] = []
        ran: list[Any] = []
        self.ran = ran
        there: dict[Value, Array] = {}
        try:
            while True:
                stretch.visits += 1
                if stretch.calls or len(given) < len(stretch.slots):
                    self._give(stretch, given, ran)
                made = self.compute(stretch, arguments, given, there)
                recording = stretch.recording
                if recording is not None:
                    tensors = self.finish(stretch, made, arguments, given)
                    return put_together(recording.shape, iter([tensors[i] for i in recording.results]))
                outcome = outcome_of(made[0], stretch.how)
                child = stretch.children.get((outcome, 0))
                if child is None:
                    raise Unseen
                keep(stretch, made, there)
                stretch = child
        except BaseException:
            for call in reversed(ran):
                call.undo()
            raise

    def compute(
        self, stretch: Stretch, arguments: Sequence[Tensor], given: Sequence[Any], there: dict[Value, Array]
    ) -> list[Array]:
        """Run the plan of a stretch; it is made if there is none."""
        if stretch.plan is None:
            samples: dict[Any, Array] = dict(there)
            for source in self.graph.sources:
                t = source.tensor(arguments)
                if t is not None:
                    samples[source] = t._array
            self.tree.plan(stretch, samples)
            pool.trim()  # what recording left there is of other sizes than what the plan will ask for
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
        self, stretch: Stretch, made: list[Array], arguments: Sequence[Tensor], given: Sequence[Any], *,
        followed: bool = False,
    ) -> list[Any]:  # fmt: skip
        """Do to the world outside what the call does, and give its tensors; if it was `followed`, Python has done what
        is Python's."""
        recording = stretch.recording
        assert recording is not None
        self.hits += 1
        for generator, count in recording.draws:
            if count and not followed:
                with generator._lock:
                    generator._calls += count
        count = len(recording.made)
        made_tensors = [wrap(array if array.flags.writeable else array.copy()) for array in made[:count]]
        if recording.seeds or recording.dead:
            self._attach(stretch, recording, made_tensors, made[count:], arguments, given)
        tensors: list[Any] = []
        for out in recording.outputs:
            tensors.append(self._tensor(out, made_tensors, tensors, arguments))
        for out, t in zip(recording.outputs, tensors, strict=True):
            if out.needs and out.kind == "view" and not t._requires_grad:
                t._requires_grad = True  # of a leaf made inside, which nobody else knows
            if out.grad >= 0:
                t._grad = tensors[out.grad]
        for source, number in recording.grads if not followed else ():
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
        node = stretch.gradient.node(arguments, saved, given)
        node.shape, node.dtype = wanted[0]._array.shape, wanted[0]._array.dtype
        if len(wanted) > 1:
            node.more().outs = tuple((t._array.shape, t._array.dtype) for t in wanted)
        for number, t in enumerate(wanted):
            t._edge = (node, number) if len(wanted) > 1 else node
            t._requires_grad = True


def keep(stretch: Stretch, made: Sequence[Array], there: dict[Value, Array]) -> None:
    """Remember what a stretch hands on."""
    assert stretch.value is not None
    there[stretch.value] = made[0]
    there.update(zip(stretch.exports, made[1:], strict=True))


def _alike(array: Array, value: Value) -> bool:
    return array.shape == value.shape and array.dtype == value.dtype

"""A cache entry: the recordings of calls with one signature under the same guards, and how they are replayed."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from wayfare.compiler.captures.guards import Guards
from wayfare.compiler.costs import Timings, perf_counter
from wayfare.compiler.record.graph import Graph, Source
from wayfare.compiler.record.overlap import Relations, relations, relations_between
from wayfare.compiler.record.recorder import Draw, outcome_of
from wayfare.compiler.record.recording import Output, Recording, in_order_of
from wayfare.compiler.replay.call_gradient import Gradient, used_up
from wayfare.compiler.replay.trace_tree import Block, Tree
from wayfare.compiler.structure import put_together
from wayfare.core import buffer_pool
from wayfare.core.device import is_writable, memory_key
from wayfare.core.dispatch import apply
from wayfare.core.executor import StaleCall
from wayfare.core.mode import STATE
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import owner_of
from wayfare.ir.graph import Value


class Unseen(Exception):
    """This outcome of a decision was not recorded: Python must run."""

    def __init__(self, block: Block | None = None, outcome: Any = None) -> None:
        super().__init__()
        self.block, self.outcome = block, outcome


class Progress:
    """The state of one replay: the block it has reached, and what was computed and given so far."""

    __slots__ = ("end", "given", "ran", "there")

    def __init__(self, end: Block) -> None:
        self.end = end
        self.given: list[Any] = []  # random keys, and numbers from optimisers
        self.ran: list[Any] = []  # call-outs that have run
        self.there: dict[Value, Array] = {}  # values that earlier blocks export

    def undo(self) -> None:
        """Undo the call-outs."""
        for call in reversed(self.ran):
            call.undo()
        self.ran.clear()


class CapturedTensor:
    """A captured tensor with the properties that plans rely on."""

    __slots__ = ("array", "needs", "spec", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.array = tensor._array
        self.needs = tensor._requires_grad
        self.spec = (self.array.shape, self.array.strides, self.array.dtype)

    def holds(self) -> bool:
        """Is it unchanged, or in other memory with the same layout?"""
        array = self.tensor._array
        if array.__class__ is not self.array.__class__:
            return False  # it was moved to another device
        if self.tensor.requires_grad is not self.needs or (array.shape, array.strides, array.dtype) != self.spec:
            return False
        self.array = array
        return True


class Entry:
    """The recordings of one function for one signature under the same guards."""

    def __init__(self, name: str, guards: Guards) -> None:
        self.name = name
        self.guards = guards
        self.graph = Graph()
        self.tree = Tree(self.graph, name)
        self.captured: list[CapturedTensor] = []
        self.moved = 0  # how often captured tensors had moved to other memory
        self._captured_ids: set[int] = set()
        self._owners: set[int] = set()
        # How captured tensors overlap each other, and how arguments overlap them.
        self._layout: Relations = ()
        self._pattern: Relations = ()
        for t in guards.seen.tensors.values():
            self._capture(t)
        self._note_owners()
        self._layout = self._layout_now = self._overlaps()
        self.grad_guards: list[tuple[Source, Source | None]] = []
        self._grad_layout: Relations = ()
        self.views: list[Source] = []
        self.recordings = 0
        self.hits = 0
        self.eager_reason = ""  # why its calls run as plain Python
        self.why = ""
        self.timings = Timings()
        self.planning = 0.0  # seconds of planning that are not accounted for yet
        self.version = 0  # counts recordings and plans: a fast path is made for one version
        self.fast_path_tried = -1  # for which version it was tried to make a fast path
        self.next_fast_path = 0  # not before so many replays is it tried again
        self.burst = 0  # how many of the next calls run as plain Python, to time them
        self.unseen: dict[tuple[int, Any], int] = {}  # outcomes that were seen but not recorded

    # -- checking

    def holds(self, arguments: Sequence[Tensor], thorough: bool = True) -> bool:
        """May this entry be replayed for these arguments? With `thorough=False`, only the fast check is made."""
        self.why = ""
        if not self.guards.holds(thorough):
            self.why = self.guards.why()
            return False
        for f in self.captured:
            t = f.tensor
            if t._array is f.array and t._requires_grad is f.needs:
                continue
            self.moved += 1
            if not f.holds():
                self.why = f"{self.guards.seen.name_of(t)} has another shape, dtype or requires_grad"
                return False
            self._note_owners()
            self._layout_now = self._overlaps()
        if self._layout_now != self._layout:
            self.why = "captured tensors overlap in memory in another way"
            return False
        for owner, entry in self.grad_guards:
            t = owner.tensor(arguments)  # type: ignore[assignment]
            grad = t._grad if t is not None else None
            if (grad is None) is not (entry is None):
                self.why = "a .grad that was None is not, or the other way round"
                return False
            if entry is not None:
                grad = entry.tensor(arguments)
                assert grad is not None
                layout = grad._array.strides, memory_key(grad._array)
                if grad._edge is not None or not _alike(grad._array, entry.value) or layout != entry.layout:
                    self.why = "a .grad has another shape or layout, or requires a gradient"
                    return False
        for source in self.views:
            base, owner = source.tensor(arguments), source.what.tensor(arguments)
            if base is None or not _alike(base._array, source.value) or owner._view.path != source.path:
                self.why = "a tensor is no longer a view, or it is a view of something else"
                return False
        if self._shared(arguments) != self._pattern:
            self.why = "other arguments share memory with captured tensors"
            return False
        if self.grad_guards and self._grads_overlap(arguments) != self._grad_layout:
            self.why = "a .grad shares memory with something else"
            return False
        return True

    @property
    def on_device(self) -> bool:
        """Do its plans run on a device?"""
        root = self.tree.root
        return root is not None and root.plan is not None and not root.plan.target.native

    def start_clock(self) -> Any:
        """A clock of the device that its plans run on, started now; None on the CPU."""
        root = self.tree.root
        return None if root is None or root.plan is None else root.plan.target.clock()

    @property
    def shares_memory(self) -> bool:
        """Do arguments share memory with captured tensors?"""
        return bool(self._pattern)

    @property
    def grads_share_memory(self) -> bool:
        """Do gradients that are read share memory with something else?"""
        return bool(self._grad_layout)

    def meets(self, arguments: Sequence[Tensor]) -> bool:
        """Does one of these arguments share memory with a captured tensor?"""
        return any([id(owner_of(t._array)) in self._owners for t in arguments])

    def _note_owners(self) -> None:
        """Note which memory captured tensors use."""
        self._owners = {id(owner_of(t._array)) for t in self._captured()}

    def _captured(self) -> list[Tensor]:
        found = {id(t): t for t in self.guards.seen.tensors.values()}
        return list((found | {id(f.tensor): f.tensor for f in self.captured}).values())

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

    # -- adding recordings

    def add(self, recording: Recording, arguments: Sequence[Tensor]) -> None:
        """Add a recording."""
        self.tree.add(recording)
        self.recordings += 1
        self.version += 1
        for source in recording.sources:
            if source.kind == "captured":
                self._capture(source.what)
            elif source.kind == "base" and source not in self.views:
                self.views.append(source)
        for guard in recording.grad_guards:
            if guard not in self.grad_guards:
                self.grad_guards.append(guard)
        self._note_owners()
        self._layout = self._layout_now = self._overlaps()
        self._pattern = self._shared(arguments)
        self._grad_layout = self._grads_overlap(arguments)

    def _capture(self, t: Tensor) -> None:
        """Guard the shape, dtype and layout of a captured tensor (not its values)."""
        if id(t) not in self._captured_ids:
            self._captured_ids.add(id(t))
            self.captured.append(CapturedTensor(t))

    def reset_graph(self) -> None:
        """Remove what a recording that was not kept has left in the graph."""
        if not self.recordings:
            self.graph = Graph()
            self.tree = Tree(self.graph, self.name)

    # -- replaying

    def follow(self, arguments: Sequence[Tensor]) -> Progress:
        """Run all blocks but the last. Raises `Unseen`, with nothing changed, if an outcome was not recorded."""
        block = self.tree.root
        assert block is not None
        progress = Progress(block)
        try:
            while True:
                block.followed += 1
                if block.calls or len(progress.given) < len(block.slots):
                    self._give(block, progress.given, progress.ran)
                if block.recording is not None:
                    progress.end = block
                    return progress
                made = self.compute(block, arguments, progress.given, progress.there)
                outcome = outcome_of(made[0], block.how)
                child = block.children.get(outcome)
                if child is None:
                    raise Unseen(block, outcome)
                keep(block, made, progress.there)
                block = child
        except BaseException:
            progress.undo()
            raise

    def complete(self, progress: Progress, arguments: Sequence[Tensor]) -> Any:
        """Run the last block and apply the side effects of the call. Returns the result of the function."""
        try:
            made = self.compute(progress.end, arguments, progress.given, progress.there)
            recording = progress.end.recording
            assert recording is not None
            tensors = self.finish(progress.end, made, arguments, progress.given)
        except BaseException:
            progress.undo()
            raise
        for effect in recording.effects:
            effect.apply(tensors)
        return put_together(recording.shape, iter([tensors[i] for i in recording.results]))

    def compute(
        self, block: Block, arguments: Sequence[Tensor], given: Sequence[Any], there: dict[Value, Array]
    ) -> list[Array]:
        """Run the plan of a block; make it first if there is none."""
        if block.plan is None:
            self.plan(block, arguments, there)
        fetch = block.fetch
        assert block.plan is not None and fetch is not None
        if fetch.moved != self.moved:
            fetch.renew(self.moved)
        recording = block.recording
        if recording is not None and not block.plan.python_steps:
            # Nothing can fail from here on, so old gradients that the call replaces are freed first.
            for source in recording.forgotten:
                source.tensor(arguments)._grad = None  # type: ignore[union-attr]
        made = block.plan.run(fetch.arrays(arguments, there), given)
        if recording is not None:
            fetch.note_writes(arguments)
        return made

    def plan(self, block: Block, arguments: Sequence[Tensor], there: dict[Value, Array]) -> None:
        """Make the plan of a block."""
        began = perf_counter()
        samples: dict[Any, Array] = dict(there)
        for source in self.graph.sources:
            t = source.tensor(arguments)
            if t is not None:
                samples[source] = t._array
        self.tree.plan(block, samples)
        self.version += 1
        buffer_pool.trim()  # buffers left by the recording have other sizes than those of the plan
        self.planning += perf_counter() - began

    def _give(self, block: Block, given: list[Any], ran: list[Any]) -> None:
        """Random keys and numbers for the steps of this block."""
        numbers: dict[int, list[tuple[float, ...]]] = {}
        for number, call in block.calls:
            try:
                numbers[number] = call.run()
            except StaleCall:
                raise Unseen from None
            ran.append(call)
        for slot in block.slots[len(given) :]:
            if slot.__class__ is Draw:
                generator = slot.generator
                given.append((generator._seed, generator._calls + slot.offset) if slot.offset is not None else slot.key)
            else:
                given.append(numbers[slot[0]][slot[1]])

    def finish(
        self, block: Block, made: list[Array], arguments: Sequence[Tensor], given: Sequence[Any]
    ) -> list[Any]:
        """Apply the side effects of the call (except assignments), and return its tensors."""
        recording = block.recording
        assert recording is not None
        self.hits += 1
        block.hits += 1
        for generator, count in recording.draws:
            if count:
                with generator._lock:
                    generator._calls += count
        count = len(recording.made)
        made_tensors = [wrap(array if is_writable(array) else array.copy()) for array in made[:count]]
        for t, order in zip(made_tensors, recording.orders, strict=True):
            if order is not None:
                t._array = in_order_of(t._array, order)
        if recording.seeds or recording.dead:
            saved = made[count : count + len(recording.saved)]
            self._attach(block, recording, made_tensors, saved, arguments, given)
        tensors: list[Any] = []
        for out in recording.outputs:
            tensors.append(self._tensor(out, made_tensors, tensors, arguments))
        for out, t in zip(recording.outputs, tensors, strict=True):
            if out.needs and out.kind == "view" and not t._requires_grad:
                t._requires_grad = True  # a view of a leaf that was made inside the call
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
        self, block: Block, recording: Recording, made: list[Tensor], saved: list[Array],
        arguments: Sequence[Tensor], given: Sequence[Any],
    ) -> None:  # fmt: skip
        """Attach the results that require a gradient to the autograd graph."""
        wanted = [t for t, needs in zip(made, recording.made_needs, strict=True) if needs]
        if recording.dead:
            for t in wanted:
                t._edge = node = used_up(self.name)
                node.shape, node.dtype = t._array.shape, t._array.dtype
                t._requires_grad = True
            return
        if block.gradient is None:
            block.gradient = Gradient(recording, self.graph, self.name)
        arrays = [t._array for t in made]
        # A saved value that is also a result is saved as that result, so that it shares memory as in eager mode.
        saved = [array if at is None else arrays[at] for array, at in zip(saved, block.gradient.shared, strict=True)]
        node = block.gradient.node(arguments, arrays, saved, given)
        for number, t in enumerate(wanted):
            t._edge = (node, number)
            t._requires_grad = True
        if block.gradient.nested:
            node.results = [weakref.ref(t) for t in wanted]


def keep(block: Block, made: Sequence[Array], there: dict[Value, Array]) -> None:
    """Keep the values that a block exports."""
    assert block.value is not None
    there[block.value] = made[0]
    there.update(zip(block.exports, made[1:], strict=True))


def _alike(array: Array, value: Value) -> bool:
    return array.shape == value.shape and array.dtype == value.dtype

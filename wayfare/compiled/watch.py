"""The recorder of functions whose Python is run at every call: tensors are known by the order in which they come."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from wayfare.backend.cpu import Array
from wayfare.compiled.events import Bind, Event
from wayfare.compiled.graph import Graph, Source
from wayfare.compiled.memory import Known
from wayfare.compiled.recorder import GiveUp, Recorder, outcome_of
from wayfare.state import current
from wayfare.tensor import Tensor


class Watcher(Recorder):
    """Records what happens, event by event. Every tensor it did not see being made comes from outside."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, (), {})
        self.given: list[Tensor] = []
        self.events: list[Event] = []
        # (number, weak reference) of every tensor that an event made.
        self.made: list[tuple[int, Any]] = []
        self._own: dict[int, Any] = {}  # the same by identity
        self._binds: list[Bind] = []
        self._quiet = False
        self.closed = False

    # -- tensors from outside

    def detached(self, t: Tensor, alias: Tensor) -> None:
        """Somebody may hold the alias when the call ends."""
        found = self.arrays.find(t._array)
        if found is not None and not self.failed:
            reference = self._own[id(alias)] = weakref.ref(alias)
            self.made.append((found.number, reference))

    def _made_here(self, t: Tensor) -> bool:
        reference = self._own.get(id(t))
        return reference is not None and reference() is t

    def held(self) -> list[Tensor]:
        """The tensors made in this call that somebody holds at its end. No more come from outside then."""
        self.closed = True
        alive = {id(t): t for t in (reference() for _, reference in self.made) if t is not None}
        return [t for t in alive.values() if self.arrays.find(t._array) is not None]

    def source_of(self, t: Tensor) -> Source | None:
        """Where a tensor from outside is found; None for one that was made inside."""
        found = self._tensors.get(id(t))
        if found is None and not self.closed and not self._made_here(t):
            known = self.arrays.find(t._array)
            if known is not None and known.memory.source is None:
                return None
            found = self._tensors[id(t)] = self.graph.source("argument", len(self.given), t._array)
            self.given.append(t)
            place = len(self.given) - 1
            if known is None:
                known = self._enter_source(found, t)
            else:
                self.met[id(found)] = (found, t)
                self.entered.append((t, t._array, t._edge, t._requires_grad))
            self._binds.append(Bind("tensor", known.number, bound_as(t), t._requires_grad, place))
        return found

    def known(self, t: Tensor) -> Known:
        """What is known of a tensor's array; one from outside is met here first."""
        if t._view is not None:
            t._renew()
        found = self.arrays.find(t._array)
        if found is not None:
            if t._requires_grad and found.memory.source is not None:
                self.source_of(t)  # perhaps another tensor on the array of one that came before
            return found
        # Numbers too: Python may come with others at the next call.
        self.source_of(t)
        found = self.arrays.find(t._array)
        return self._enter_made(t) if found is None else found

    def _enter_source(self, source: Source, t: Tensor) -> Known:
        known = super()._enter_source(source, t)
        if source.kind != "argument":
            place = self._place(source.what) if source.kind == "grad" else -1
            self._binds.append(Bind(source.kind, known.number, bound_as(t), t._requires_grad, place))
        return known

    # -- events

    def happened(
        self, kind: str, op: Any, knowns: Sequence[Known], attrs: Any = None, outputs: Sequence[Tensor] = (),
        inputs: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        """Write down an event."""
        flags = tuple([t._requires_grad for t in inputs])
        self._log(kind, op, tuple([k.number for k in knowns]), attrs, outputs, flags)

    def _log(
        self, kind: str, op: Any, refs: tuple[Any, ...], attrs: Any, outputs: Sequence[Tensor],
        flags: tuple[bool, ...] = (),
    ) -> None:  # fmt: skip
        if self._quiet:
            return
        binds, self._binds = tuple(self._binds), []
        outs = []
        for t in outputs:
            found = self.arrays.find(t._array)
            if found is None:
                raise GiveUp("it makes a tensor in a way that is no tensor operation")
            outs.append(found.number)
            reference = self._own[id(t)] = weakref.ref(t)
            self.made.append((found.number, reference))
        if attrs and "key" in attrs:
            attrs = {**attrs, "key": self._slot_of(attrs["key"])}
        self.events.append(Event(
            kind, op, refs, attrs, tuple(outs), tuple([t._requires_grad for t in outputs]),
            tuple([_seen_as(t) for t in outputs]), current().grad, binds, flags,
        ))  # fmt: skip

    def decides(self, how: str) -> bool:
        """People look too: what is printed must be there."""
        if self._quiet:
            self.give_up("Python looks at a value inside a backward pass")
        return how == "repr()" or super().decides(how)

    def outcome(self, array: Array, how: str) -> Any:
        """Numbers go to Python, which runs at every call: only a yes or no says where it goes on."""
        return outcome_of(array, how) if how == "bool()" and array.size == 1 else None

    def autograd(self, kind: str, function: Callable[..., Any], *args: Any) -> Any:
        """A call of `backward` or `grad`: one event, whatever happens inside."""
        tensors, seeds, retain, create, inputs, *options = args
        refs: Any = None
        before = {id(slot): slot.final for slot in self.grads.values()}
        with self.entering() as going:
            if going:
                refs = (self._refs(tensors), self._refs(seeds), self._refs(inputs))
        outer, self._quiet = self._quiet, True
        try:
            made = function(*args)
        finally:
            self._quiet = outer
        with self.entering() as going:
            if going and refs is not None:
                results = [t for t in made or () if t is not None]
                # The gradients that were set, by the place of the tensor from outside they belong to.
                leaves, grads = [], []
                for slot in self.grads.values():
                    if slot.written and slot.final is not None and before.get(id(slot)) is not slot.final:
                        leaves.append(self._place(slot.owner))
                        grads.append(slot.final)
                extra = (retain, create, tuple(options), tuple(leaves), tuple([t is not None for t in made or ()]))
                self._log(kind, None, refs, {"how": extra}, [*results, *grads])
        return made

    def _refs(self, tensors: Any) -> tuple[int | None, ...]:
        if tensors is None:
            return ()
        listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        return tuple([None if t is None else self.known(t).number for t in listed])

    def _place(self, source: Source) -> int:
        if source.kind != "argument":
            self.give_up("it computes gradients of a tensor that it sees only through another")
            return -1
        return int(source.what)

    def grad_read(self, t: Tensor) -> None:
        """Somebody looks at `t.grad`."""
        super().grad_read(t)
        with self.entering() as going:
            if going and not self._quiet:
                refs = (self._ref(t), None if t._grad is None else self.known(t._grad).number)
                self._log("grad_read", None, refs, None, ())

    def grad_written(self, t: Tensor, grad: Tensor | None) -> None:
        """`t.grad` is being set."""
        super().grad_written(t, grad)
        with self.entering() as going:
            if going and not self._quiet:
                refs = (self._ref(t), None if grad is None else self.known(grad).number)
                self._log("grad_written", None, refs, None, ())

    def _ref(self, t: Tensor) -> Any:
        """A tensor itself, not its array."""
        source = self.source_of(t)
        return ("inside", self.known(t).number) if source is None else ("outside", self._place(source))


def _seen_as(t: Tensor) -> Any:
    """What Python can see of a tensor without its numbers, beside its flags."""
    return t._array.shape, t._array.dtype, t._array.flags.c_contiguous, t._view is not None


def bound_as(t: Tensor) -> Any:
    """What a tensor from outside must be like to stand in the place of another."""
    return t._array.shape, t._array.dtype.char, t._edge is None, t._view is not None, t._array.flags.writeable

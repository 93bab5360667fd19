"""Dynamic replay: Python runs, and what it does is compared with what was recorded, event by event.

As long as it does the same nothing is computed: Python gets placeholders, and whole stretches run as plans where it
looks at a value and at the end. Where it does something new, all that it did in this call is done for real, in order,
under a recorder, which goes on from there. Nothing outside has been changed until then, so there is nothing to undo but
the gradients that Python has seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from wayfare.backend.cpu import Array
from wayfare.backend.writes import owner_of
from wayfare.compiled.entry import Entry, keep
from wayfare.compiled.events import Event
from wayfare.compiled.matching import Differs, Matching, could_be
from wayfare.compiled.placeholder import Pending, Placeholder, become, new_placeholder, pending
from wayfare.compiled.recorder import outcome_of
from wayfare.compiled.tree import Stretch
from wayfare.compiled.watch import Watcher, bound_as
from wayfare.fusion.trace import Value
from wayfare.op import Op
from wayfare.state import changed_mode, current
from wayfare.tensor import Tensor


class Follower(Matching):
    """The executor while a recorded function is followed."""

    records = True
    batches = False

    def __init__(self, entry: Entry) -> None:
        super().__init__(list(entry.tree.roots.values()))
        self._entry = entry
        self.watcher: Watcher | None = None  # who goes on where Python did something new
        self._drawn: dict[Any, int] = {}
        self._there: dict[Value, Array] = {}
        self._made: dict[int, list[Any]] = {}  # placeholders by number: weak references, and whether they are cut
        self._needs: dict[int, bool] = {}
        self._journal: list[tuple[Any, ...]] = []
        self._grads: dict[int, tuple[Tensor, Any]] = {}  # `.grad` as it was before the call

    @property
    def follows(self) -> bool:
        """Is Python still on a known path?"""
        return self.watcher is None

    # -- doing it for real

    def happen(self) -> None:
        """Do all that Python did in this call for real, and record from here on."""
        if self.watcher is not None:
            return
        self.watcher = watcher = Watcher(self._entry.graph)
        for t, grad in self._grads.values():
            t._grad = grad
        known: dict[int, Tensor] = {}
        for kind, grad_mode, *what in self._journal:
            with changed_mode(executor=watcher, grad=grad_mode):
                getattr(self, f"_redo_{kind}")(watcher, known, *what)
        self._journal.clear()
        self._there.clear()

    def _real(self, known: dict[int, Tensor], ref: Any) -> Any:
        if ref.__class__ is not tuple:
            return ref
        number, cut = ref
        return known[number].detach() if cut else known[number]

    def _fill(self, known: dict[int, Tensor], number: int, real: Tensor) -> None:
        """A number stands for this tensor now; so do the placeholders with it that are still held."""
        for reference, cut in self._made.pop(number, ()):
            t = reference()
            if t is not None:
                become(t, real, cut)
                if not cut:
                    real = t
        known[number] = real

    def _redo_apply(
        self, watcher: Watcher, known: dict[int, Tensor], op: Op, refs: Any, attrs: Any, outs: tuple[int, ...]
    ) -> None:
        made = watcher.apply(op, tuple([self._real(known, r) for r in refs]), attrs)
        for number, t in zip(outs, made if isinstance(made, (tuple, list)) else (made,), strict=True):
            self._fill(known, number, t)

    def _redo_write(self, watcher: Watcher, known: dict[int, Tensor], target: Any, result: Any, move: Any) -> None:
        t = self._real(known, target)
        watcher.write(t, self._real(known, result), move)

    def _redo_update(
        self, watcher: Watcher, known: dict[int, Tensor], update: Any, written: Any, read: Any, numbers: Any
    ) -> None:
        watcher.update(update, [self._real(known, r) for r in written], [self._real(known, r) for r in read], numbers)

    def _redo_draw(self, watcher: Watcher, known: dict[int, Tensor], generator: Any, key: Any) -> None:
        watcher.draw(generator, key)

    def _redo_read(self, watcher: Watcher, known: dict[int, Tensor], ref: Any, how: str) -> None:
        watcher.read(self._real(known, ref), how)

    def _redo_autograd(
        self, watcher: Watcher, known: dict[int, Tensor], kind: str, function: Any, lists: Any, options: Any, outs: Any,
        leaves: Any,
    ) -> None:  # fmt: skip
        tensors, seeds, inputs = (None if refs is None else [self._real(known, r) for r in refs] for refs in lists)
        made = watcher.autograd(kind, function, tensors, seeds, *options[:2], inputs, *options[2:])
        results = [t for t in made or () if t is not None]
        for number, t in zip(outs, [*results, *[self.given[place].grad for place in leaves]], strict=True):
            self._fill(known, number, t)
        for place, number in zip(leaves, outs[len(results) :], strict=True):
            self.given[place]._grad = known[number]

    def _redo_grad_read(self, watcher: Watcher, known: dict[int, Tensor], t: Any) -> None:
        watcher.grad_read(self._real(known, t))

    def _redo_grad_written(self, watcher: Watcher, known: dict[int, Tensor], t: Any, grad: Any) -> None:
        value = None if grad is None else self._real(known, grad)
        self._real(known, t).grad = value

    # -- the executor

    def _ref(self, t: Tensor) -> Any:
        """A placeholder by its number, so that the journal does not keep it alive."""
        if t.__class__ is not Placeholder:
            return t
        number = pending(t).number
        return number, self._needs.get(number, False) and not t._requires_grad

    def _log(self, kind: str, *what: Any) -> None:
        self._journal.append((kind, current().grad, *what))

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """An op: a placeholder if it was recorded."""
        if self.watcher is None:
            try:
                event = self._next("apply", op, inputs, attrs)
            except Differs:
                self.happen()
            else:
                self._log("apply", op, [self._ref(t) for t in inputs], attrs, event.outs)
                made = self._placeholders(event)
                return made[0] if op.outputs == 1 else tuple(made)
        assert self.watcher is not None
        return self.watcher.apply(op, inputs, attrs)

    def _placeholders(self, event: Event) -> list[Tensor]:
        self._needs.update(zip(event.outs, event.needs, strict=True))
        return [self.shown_as(Pending(self, number, *spec), needs)
                for number, spec, needs in zip(event.outs, event.specs, event.needs, strict=True)]  # fmt: skip

    def shown_as(self, what: Pending, needs: bool) -> Placeholder:
        """A placeholder, to be filled when its numbers are there."""
        t = new_placeholder(what, needs)
        held = self._made.setdefault(what.number, [])
        held.append((weakref.ref(t), bool(held) and not needs))
        return t

    def read(self, tensor: Tensor, how: str) -> Any:
        """Python looks at a value: the stretch up to here runs."""
        if self.watcher is None:
            try:
                self._next("read", how, (tensor,))
            except Differs:
                self.happen()
            else:
                return self._look(tensor, how)
        assert self.watcher is not None
        return self.watcher.read(tensor, how)

    def _look(self, tensor: Tensor, how: str) -> Array:
        stretch = self._stretch
        assert stretch is not None
        stretch.visits += 1
        self._log("read", self._ref(tensor), how)
        try:
            made = self._compute(stretch)
        except Exception:
            self.happen()
            return tensor._array
        keep(stretch, made, self._there)
        outcome = outcome_of(made[0], how) if how == "bool()" and made[0].size == 1 else None
        self._candidates = [child for (seen, _), child in stretch.children.items() if seen == outcome]
        self._stretch, self._at = None, 0
        return made[0]

    @contextmanager
    def _at_the_beginning(self) -> Iterator[None]:
        """Gradients as they were when the call began: plans know those, and Python may have set others since."""
        now = [(t, t._grad) for t, _ in self._grads.values()]
        for t, before in self._grads.values():
            t._grad = before
        try:
            yield
        finally:
            for t, grad in now:
                t._grad = grad

    def _compute(self, stretch: Stretch) -> list[Array]:
        with self._at_the_beginning():
            return self._entry.compute(stretch, self.given, self._slots, self._there)

    def behind(self, tensor: Tensor) -> Any:
        """While Python is followed a write has been found lawful before."""
        return None if self.watcher is None else tensor

    def write(self, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
        """A write in place."""
        if self.watcher is None:
            try:
                event = self._next("write", None, (tensor, result))
            except Differs:
                self.happen()
            else:
                self._log("write", self._ref(tensor), self._ref(result), move)
                if tensor.__class__ is Placeholder:
                    tensor._requires_grad = self._needs[event.outs[0]] = event.needs[0]
                return
        assert self.watcher is not None
        self.watcher.write(tensor, result, move)

    def autograd(self, kind: str, function: Callable[..., Any], *args: Any) -> Any:
        """A call of `backward` or `grad`."""
        if self.watcher is None:
            try:
                return self._autograd(kind, function, *args)
            except Differs:
                self.happen()
        assert self.watcher is not None
        return self.watcher.autograd(kind, function, *args)

    def _autograd(self, kind: str, function: Any, tensors: Any, seeds: Any, retain: Any, create: Any, inputs: Any,
                  *options: Any) -> Any:  # fmt: skip
        lists = [_listed(x) for x in (tensors, seeds, inputs)]
        flat = [t for x in lists for t in x or ()]

        def fits(event: Event) -> bool:
            return (
                event.kind == kind and event.grad is current().grad
                and event.attrs["how"][:3] == (retain, create, options)
                and tuple(map(len, event.refs)) == tuple([len(x or ()) for x in lists])
                and self._numbers_of(event, flat) == tuple([ref for refs in event.refs for ref in refs])
            )  # fmt: skip

        event = self._find(fits)
        how = event.attrs["how"]
        if any(place < len(self.given) and self.given[place]._grad is not None for place in how[3]):
            raise Differs  # there was no gradient to add to when this was recorded
        self._bind(event, [t for t in flat if t is not None])
        self._at += 1
        refs = [None if x is None else [self._ref(t) for t in x] for x in lists]
        self._log("autograd", kind, function, refs, (retain, create, *options), event.outs, how[3])
        made = self._placeholders(event)
        count = sum(how[4])
        for place, grad in zip(how[3], made[count:], strict=True):
            self._keep_grad(self.given[place])
            self.given[place]._grad = grad
        if kind == "backward":
            return None
        results = iter(made)
        return tuple([next(results) if there else None for there in how[4]])

    def _keep_grad(self, t: Tensor) -> None:
        if id(t) not in self._grads:
            self._grads[id(t)] = (t, t._grad)

    def grad_read(self, t: Tensor) -> None:
        """Somebody looks at `t.grad`."""
        if self.watcher is None:
            try:
                self._grad_event("grad_read", t, t._grad)
                self._log("grad_read", self._ref(t))
                return
            except Differs:
                self.happen()
        assert self.watcher is not None
        self.watcher.grad_read(t)

    def grad_written(self, t: Tensor, grad: Tensor | None) -> None:
        """`t.grad` is being set."""
        if self.watcher is None:
            try:
                self._grad_event("grad_written", t, grad)
                self._keep_grad(t)
                self._log("grad_written", self._ref(t), None if grad is None else self._ref(grad))
                return
            except Differs:
                self.happen()
        assert self.watcher is not None
        self.watcher.grad_written(t, grad)

    def _grad_event(self, kind: str, t: Tensor, grad: Any) -> None:
        if t.__class__ is Placeholder or grad.__class__ not in (Tensor, Placeholder, type(None)):
            raise Differs
        met = self._places.get(id(t))

        def fits(event: Event) -> bool:
            if event.kind != kind or event.grad is not current().grad or event.refs[0][0] != "outside":
                return False
            if (grad is None) is not (event.refs[1] is None):
                return False
            if met is not None:
                return bool(event.refs[0][1] == met)
            return self._number(t) is None and could_be(t, iter(event.binds)) is not None

        event = self._find(fits)
        binds = iter(event.binds)
        if met is None:
            self._take(t, binds)
        for bind in binds:
            if bind.kind == "grad" and grad.__class__ is Tensor and bound_as(grad) == bind.what:
                self._numbers[id(grad._array)] = (grad._array, bind.number)
        if self._places.get(id(t)) != event.refs[0][1] or (grad is not None and self._number(grad) != event.refs[1]):
            raise Differs
        self._at += 1

    def calling(self, call: Any) -> Any:
        """Python runs by itself here."""
        return nullcontext() if self.watcher is None else self.watcher.calling(call)

    def update(self, update: Any, written: list[Tensor], read: list[Tensor], numbers: Sequence[float]) -> None:
        """A fused update of parameters in place."""
        if self.watcher is None:
            try:
                self._next("update", update, (*written, *read))
            except Differs:
                self.happen()
            else:
                self._slots.append(tuple(float(n) for n in numbers))
                refs = ([self._ref(t) for t in written], [self._ref(t) for t in read])
                self._log("update", update, *refs, tuple(numbers))
                return
        assert self.watcher is not None
        self.watcher.update(update, written, read, numbers)

    def draw(self, generator: Any, key: tuple[int, int]) -> None:
        """A random key was taken."""
        if self.watcher is not None:
            self.watcher.draw(generator, key)
        elif (id(generator), key) not in self._drawn:
            self._drawn[id(generator), key] = len(self._slots)
            self._slots.append(key)
            self._log("draw", generator, key)

    def is_contiguous(self, t: Tensor) -> bool:
        """Do the rows of a tensor lie one after the other, or did they when this was recorded?"""
        if self.watcher is None and t.__class__ is Placeholder:
            return pending(t).contiguous
        return bool(t._array.flags.c_contiguous)

    def picked(self, x: Tensor, index: Any, out: Tensor) -> None:
        """Nothing was written to it when this was recorded."""
        if self.watcher is not None:
            self.watcher.picked(x, index, out)

    def detached(self, t: Tensor, alias: Tensor) -> None:
        """Another tensor on the array of one from outside: there is nothing to do."""
        if self.watcher is not None:
            self.watcher.detached(t, alias)

    def give_up(self, reason: str) -> None:
        """What happens here cannot be followed."""
        self.happen()
        assert self.watcher is not None
        self.watcher.give_up(reason)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a recorder is asked for is done by a real one."""
        if name.startswith("__"):
            raise AttributeError(name)
        self.happen()
        return getattr(self.watcher, name)

    # -- the end

    def finish(self) -> bool:
        """Compute what Python holds. False, with everything done for real, where it did something new."""
        if self.watcher is not None:
            return False
        stretch = self._ended()
        recording = stretch.recording if stretch is not None else None
        held = {number for number, references in self._made.items() if any(r() is not None for r, _ in references)}
        if recording is None or stretch is None or not held <= recording.numbers.keys() or (
            recording.writes and self._sharing() != recording.sharing
        ):  # fmt: skip
            self.happen()
            return False
        stretch.visits += 1
        try:
            made = self._compute(stretch)
        except Exception:
            self.happen()
            return False
        with self._at_the_beginning():
            tensors = self._entry.finish(stretch, made, self.given, self._slots, followed=True)
        for number in held:
            real = tensors[recording.numbers[number]]
            for reference, cut in self._made[number]:
                t = reference()
                if t is not None and t is not real:
                    become(t, real, cut)
        return True

    def _ended(self) -> Stretch | None:
        """The stretch that ends here."""
        ended = (s for s in self._alike() if len(s.events) == self._at and s.recording is not None)
        return next(ended, None)

    def _sharing(self) -> tuple[int, ...]:
        return sharing_of(self.given)


def sharing_of(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """For each tensor the first that lies in the same memory."""
    owners = [id(owner_of(t._array)) for t in tensors]
    return tuple([owners.index(o) for o in owners])


def _listed(tensors: Any) -> list[Tensor] | None:
    if tensors is None:
        return None
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)

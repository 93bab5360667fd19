"""The watcher behind `wf.profile()`: it times ops, modules and calls, and counts the arrays that they make.

The time of what runs inside something else is subtracted from it. So is the time of the profiling itself: every method
here measures how long it took, and the clock of the profile stands still meanwhile.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import islice
from time import perf_counter
from typing import Any, TypeAlias

from wayfare.core.buffer_pool import Lease, owns_memory
from wayfare.core.callsite import user_frame
from wayfare.core.device import ARRAYS, BACKENDS
from wayfare.core.mode import Watcher, executor
from wayfare.core.node import Node
from wayfare.core.op import Op
from wayfare.core.write_clock import owner_of
from wayfare.nn import Module
from wayfare.see.profile.costs import Place
from wayfare.see.profile.device_time import DeviceTime, Span
from wayfare.see.profile.memory import Memory
from wayfare.see.profile.others import Others

# Nodes whose place is remembered for their gradient rule, shapes whose FLOPs are, and modules known by identity.
_NODES, _SHAPES, _MODULES = 1 << 18, 1 << 10, 1 << 12


class ModuleCalls:
    """The calls of one module, or of all that have the same class and the same place in a model of one class."""

    __slots__ = ("calls", "kind", "path", "root", "running", "seconds")

    def __init__(self, root: str, path: str, kind: str) -> None:
        self.root, self.path, self.kind = root, path, kind
        self.calls = 0
        self.seconds = 0.0  # with what it calls
        self.running = 0  # calls that have not ended: more than one in a recursion

    def shown(self, several_roots: bool) -> str:
        """Its name: the path from the outermost module that was called, whose own name is its class."""
        if not self.path:
            return self.root
        return f"{self.root}.{self.path}" if several_roots else self.path


# Something that happened, for the trace: what, when it began, seconds, was it backward, memory in use after it. A plain
# tuple, because there are many.
Event: TypeAlias = tuple[Place | ModuleCalls, float, float, bool, int]


class _Frame:
    """Something that runs."""

    __slots__ = ("backward", "inside", "span", "start", "what")

    def __init__(self, what: Any, start: float, backward: bool, span: Span | None) -> None:
        self.what = what
        self.span = span  # what a device does for it
        self.start = start
        self.inside = 0.0  # seconds of what ran inside it
        self.backward = backward


class Stopwatch(Watcher):
    """Times ops, gradient rules, modules and the rest, from `start` to `stop`."""

    def __init__(self, events: int, memory: bool) -> None:
        self.places: dict[Any, Place] = {}
        self.modules: dict[Any, ModuleCalls] = {}
        self.others = Others()
        self.memory = Memory() if memory else None
        self.device_memory = Memory() if memory else None
        self.device = DeviceTime(events)
        self.events: list[Event] = []
        self.left_out = 0  # events beyond the limit
        self.own = 0.0
        self.began = 0.0
        self.seconds = 0.0
        self._limit = events
        self._stack: list[_Frame] = []
        self._span: Span | None = None  # of what was closed last
        self._in_modules: list[tuple[Any, ModuleCalls, float]] = []
        # Line and module of the groups of calls that run: one inside another where a batch runs a batch.
        self._groups: list[tuple[Any, int, ModuleCalls | None]] = []
        self._place_of: dict[float, Place] = {}
        # Modules by their ids and those of the modules they were called from.
        self._known_as: dict[Any, tuple[weakref.ref[Any], ModuleCalls]] = {}
        self._paths: dict[int, tuple[Any, dict[int, str]]] = {}

    def start(self) -> None:
        """Start the clock."""
        self.began = perf_counter()

    def stop(self) -> None:
        """Stop the clock."""
        self.seconds = self._now()
        self.device.close()
        for memory in (self.memory, self.device_memory):
            if memory is not None:
                memory.close()
        self._stack.clear()
        self._in_modules.clear()
        self._place_of.clear()
        self._known_as.clear()
        self._paths.clear()

    def _now(self) -> float:
        return perf_counter() - self.began - self.own

    # -- what starts and ends

    def starts(self, what: Any) -> None:
        """Something begins."""
        entered = perf_counter()
        stack = self._stack
        backward = bool(stack) and stack[-1].backward
        if what.__class__ is not Op:
            if isinstance(what, Node):
                backward = True
            else:
                backward = self.others.starts(what) or backward
                if what.__class__ is list:
                    self._groups.append(self._group(what[0]))
        now = entered - self.began - self.own
        span = self.device.begin(stack[-1].span if stack else None, now) if BACKENDS else None
        stack.append(_Frame(what, now, backward, span))
        self.own += perf_counter() - entered

    def _close(self, what: Any, now: float) -> tuple[float, float, float, bool]:
        """Take what ends from the stack: when it began, how long it took with and without what ran inside it."""
        stack = self._stack
        self._span = None
        if stack and stack[-1].what is what:
            frame = stack.pop()
        else:
            # Entries above it were left by an error. What began before the profile did is not there.
            for i in range(len(stack) - 1, -1, -1):
                if stack[i].what is what:
                    break
            else:
                return now, 0.0, 0.0, False
            frame = stack[i]
            frame.inside += sum([f.inside for f in stack[i + 1 :]])
            del stack[i:]
        seconds = now - frame.start
        if stack:
            stack[-1].inside += seconds
        self._span = frame.span
        return frame.start, seconds, max(seconds - frame.inside, 0.0), frame.backward

    def ran(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        """An op has run."""
        entered = perf_counter()
        start, whole, seconds, backward = self._close(op, entered - self.began - self.own)
        node = None
        edge = outputs[0]._edge if outputs else None
        if edge is not None:
            node = edge[0] if edge.__class__ is tuple else edge
        module = self._in_modules[-1][1] if self._in_modules else None
        if self._groups:
            code, offset, module = self._groups[-1]
        elif node is not None:
            code, offset = node.code, node.offset
        else:
            code, offset = _line()
        key = (op.name, id(code), offset, module)
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = Place(op.name, "op", code, offset, module)
        if node is not None:
            self._remember(node, place)
        if self._span is not None and any([t._array.__class__ in BACKENDS for t in (*inputs, *outputs)]):
            self.device.end(self._span, place, backward)
        made = self._made(op, inputs, outputs, place)
        if backward:
            place.backward_calls += 1
            place.backward_seconds += seconds
            place.backward_bytes += made
        else:
            place.calls += 1
            place.seconds += seconds
            place.bytes += made
            shapes = (*[t._array.shape for t in inputs], outputs[0]._array.shape if outputs else None)
            flops = place.known.get(shapes)
            if flops is None:
                flops = op.flops([t._array for t in inputs], [t._array for t in outputs], attrs) or 0
                if len(place.known) >= _SHAPES:
                    place.known.clear()
                place.known[shapes] = flops
            place.flops += flops
        self._event(place, start, whole, backward)
        self.own += perf_counter() - entered

    def _made(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], place: Place) -> int:
        """The bytes of new arrays among the outputs."""
        self._drain()
        made = 0
        for t in outputs:
            array = t._array
            base = array.base
            if base is not None and not isinstance(base, Lease):
                if op.view:
                    continue
                array = owner_of(array)
                if any([owner_of(x._array) is array for x in inputs]):
                    continue
            made += array.nbytes
            self._hold(array, place)
        return made

    def _drain(self) -> None:
        if self.memory is not None and self.device_memory is not None:
            self.memory.drain()
            self.device_memory.drain()

    def _hold(self, array: Any, place: Place) -> None:
        memory = self.device_memory if array.__class__ in BACKENDS else self.memory
        if memory is not None:
            memory.hold(array, place)

    def stepped(self, node: Any, given: Any, made: Any) -> None:
        """A gradient rule has run."""
        entered = perf_counter()
        start, whole, seconds, _ = self._close(node, entered - self.began - self.own)
        place = self._place_of.get(node.number)
        if place is None:
            code, offset = node.code, node.offset
            key = (node.op.name, id(code), offset, None)
            place = self.places.get(key)
            if place is None:
                place = self.places[key] = Place(node.op.name, "op", code, offset, None)
        place.backward_calls += 1
        place.backward_seconds += seconds
        if self._span is not None and any([g.__class__ in BACKENDS for g in made]):
            self.device.end(self._span, place, True)
        self._drain()
        for g in made:
            if g.__class__ in ARRAYS and g is not given:
                if not owns_memory(g):
                    g = owner_of(g)
                    if _shown(g, given) or _shown(g, node.kept):
                        continue
                place.backward_bytes += g.nbytes
                self._hold(g, place)
        self._event(place, start, whole, True)
        self.own += perf_counter() - entered

    def ended(self, what: Any) -> None:
        """Something other than an op has ended."""
        entered = perf_counter()
        start, whole, seconds, backward = self._close(what, entered - self.began - self.own)
        if what.__class__ is list and self._groups:
            code, offset, module = self._groups.pop()
        else:
            code, offset = _line()
            module = self._in_modules[-1][1] if self._in_modules else None
        nested = any([f.what is what for f in self._stack])
        for number, (name, kind, part) in enumerate(self.others.ended(what, whole, seconds)):
            key = (name, id(code), offset, module)
            place = self.places.get(key)
            if place is None:
                place = self.places[key] = Place(name, kind, code, offset, module)
            if backward:
                place.backward_seconds += part
                place.backward_calls += not nested
            else:
                place.seconds += part
                place.calls += not nested
            if number == 0:
                if self._span is not None and self._span.has_worked:
                    self.device.end(self._span, place, backward)
                if self.memory is not None:
                    self._drain()
                    for array in self.others.gradients(what):
                        self._hold(array, place)
                self._event(place, start, whole, backward)
        self.own += perf_counter() - entered

    # -- modules

    def entered(self, module: Any) -> None:
        """A call of a module begins."""
        entered = perf_counter()
        if executor().times_modules:
            calls = self._calls_of(module)
            calls.running += 1
            calls.calls += 1
            self._in_modules.append((module, calls, entered - self.began - self.own))
        elif executor().counts_modules:
            # Examples take turns and their ops run later, so ops in groups are in no module.
            self._calls_of(module).calls += 1
        self.own += perf_counter() - entered

    def left(self, module: Any) -> None:
        """A call of a module has ended."""
        entered = perf_counter()
        if executor().times_modules:
            inside = self._in_modules
            for i in range(len(inside) - 1, -1, -1):
                if inside[i][0] is module:
                    _, calls, start = inside[i]
                    del inside[i:]
                    calls.running -= 1
                    seconds = entered - self.began - self.own - start
                    if not calls.running:
                        calls.seconds += seconds
                    self._event(calls, start, seconds, False)
                    break
        self.own += perf_counter() - entered

    def _group(self, call: Any) -> tuple[Any, int, ModuleCalls | None]:
        """Line and module of a group, by its first call."""
        owner = getattr(call.signature.target, "owner", None)
        module = None if owner is None else owner()
        if isinstance(module, Module):
            return call.code, call.offset, self._calls_of(module)
        return call.code, call.offset, self._in_modules[-1][1] if self._in_modules else None

    def _calls_of(self, module: Any) -> ModuleCalls:
        root = self._in_modules[0][0] if self._in_modules else module
        key = (id(root), id(module))
        known = self._known_as.get(key)
        if known is not None and known[0]() is module:
            return known[1]
        path = self._paths_of(root).get(id(module)) if root is not module else None
        if path is None:
            # It is in no module that is running: maybe in one that was called before, else it is a root itself.
            root, path = next(((known, paths[id(module)]) for known, paths in self._known_roots()
                               if id(module) in paths), (module, ""))  # fmt: skip
            self._paths_of(root)
        about = (type(root).__name__, path, type(module).__name__)
        found = self.modules.get(about)
        if found is None:
            found = self.modules[about] = ModuleCalls(*about)
        if len(self._known_as) >= _MODULES:  # a program may make new models all the time
            self._known_as.clear()
        self._known_as[key] = (weakref.ref(module), found)
        return found

    def _known_roots(self) -> Iterator[tuple[Any, dict[int, str]]]:
        for reference, paths in list(self._paths.values()):
            root = reference()
            if root is not None:
                yield root, paths

    def _paths_of(self, root: Any) -> dict[int, str]:
        known = self._paths.get(id(root))
        if known is None or known[0]() is not root:
            paths = {id(module): path for path, module in root.named_modules()}
            if len(self._paths) >= _MODULES:
                self._paths.clear()
            known = self._paths[id(root)] = (weakref.ref(root), paths)
        return known[1]

    # -- keeping count

    def _remember(self, node: Any, place: Place) -> None:
        places = self._place_of
        places[node.number] = place
        if len(places) > _NODES:
            for number in list(islice(places, _NODES // 2)):
                del places[number]

    def _event(self, what: Place | ModuleCalls, start: float, seconds: float, backward: bool) -> None:
        memory, on_device = self.memory, self.device_memory
        now = 0
        if memory is not None and on_device is not None:
            now = memory.now
            memory.mark(start + seconds)
            if on_device.now or on_device.peak:
                on_device.mark(start + seconds)
        if len(self.events) < self._limit:
            self.events.append((what, start, seconds, backward, now))
        else:
            self.left_out += 1


def _line() -> tuple[Any, int]:
    """The user's line that is running."""
    frame = user_frame(3)
    return (None, 0) if frame is None else (frame.f_code, frame.f_lasti)


def _shown(owner: Any, values: Any) -> bool:
    """Does one of these show the memory of this array?"""
    several = values if values.__class__ is tuple else (values,)
    return any([v.__class__ in ARRAYS and owner_of(v) is owner for v in several])

"""A compiled function: its calls are recorded, planned when they come again, and replayed."""

from __future__ import annotations

import functools
import inspect
import os
import re
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from wayfare.backend.locks import lock
from wayfare.backend.pool import owns_memory
from wayfare.backend.writes import owner_of
from wayfare.compiled.check import Trial
from wayfare.compiled.dynamic import Dynamic
from wayfare.compiled.entry import Entry, Unseen
from wayfare.compiled.explain import Explanation, explain
from wayfare.compiled.guards import Guards
from wayfare.compiled.reach import reach
from wayfare.compiled.recorder import GiveUp, Recorder
from wayfare.compiled.recording import Recording
from wayfare.compiled.shortcut import MISS, Shortcut, shortcut
from wayfare.compiled.structure import ITEM, OBJECT, Opaque, has_objects, take_apart
from wayfare.compiled.tree import Unsteady
from wayfare.errors import OperationError
from wayfare.spec import default_dtype
from wayfare.state import STATE, Mode, batcher, changed_mode, watcher
from wayfare.tensor import Tensor

# Kinds of calls remembered for one function, and states of what it depends on for each.
_KINDS, _VARIANTS = 256, 8
# Recordings in a row that did not last before the function is left to Python.
_STRIKES, _MISSES = 3, 8
# Kinds of calls that have a shortcut at one time.
_SHORTCUTS = 4
# Reasons that are remembered: for recording again, and for running plain Python.
_REASONS = 32


class Compiled:
    """A compiled function. Made by `wf.compile`."""

    def __init__(
        self, function: Callable[..., Any], *, check: bool = False, fullgraph: bool = False, replay: str = "auto"
    ) -> None:
        # A module's attributes are its own; a function's are few, and may be meant for whoever calls it.
        functools.update_wrapper(self, function, updated=("__dict__",) if inspect.isroutine(function) else ())
        self._function = function
        self._check = check
        self._fullgraph = fullgraph
        self.name = getattr(function, "__name__", type(function).__name__)
        self._kinds: dict[Any, list[Entry]] = {}
        # Kinds of calls for which Python must run each time, with the reason.
        self._rerun: dict[Any, str] = {}
        self._replay = replay
        self._strikes: dict[Any, int] = {}  # kinds of calls: recordings in a row that were of no use
        self._is_method = False
        self._more: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._dynamic = Dynamic(self.name)
        self._shortcuts: list[Shortcut] = []
        self._turn = lock()
        self.calls = 0
        self.recorded = 0
        self.plain: dict[str, int] = {}  # why calls ran as plain Python, and how many did
        self.retraces: deque[str] = deque(maxlen=_REASONS)

    def __repr__(self) -> str:
        return f"<compiled function {self.name}>"

    def __set_name__(self, owner: type, name: str) -> None:
        self._is_method = True

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # In a class it is a method like any other function, also where it was put there afterwards.
        if instance is None:
            return self
        self._is_method = True
        return types.MethodType(self, instance)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function: replayed if it was seen to do the same before, else run and recorded."""
        mode = STATE.mode
        if mode is not None and (
            mode.executor is not None or mode.anomaly or mode.saved_hooks is not None or mode.generator is not None
            or (mode.watcher is not None and not mode.watcher.allows_plans)
        ):  # fmt: skip
            return self._elsewhere(args, options)
        looking = None if mode is None else mode.watcher
        if looking is not None:
            looking.starts(self)
        try:
            self.calls += 1
            if self._shortcuts and not options:
                made = self._shortly(args, mode)
                if made is not MISS:
                    return made
            return self._at_length(args, options, mode)
        finally:
            if looking is not None:
                looking.ended(self)

    def _at_length(self, args: tuple[Any, ...], options: dict[str, Any], mode: Mode | None) -> Any:
        """Find out what kind of call it is, and replay or record it."""
        tensors: list[Tensor] = []
        objects: list[Any] = []
        try:
            key = self._key(args, options, tensors, objects, mode)
            hash(key)
        except (Opaque, TypeError) as reason:
            key = (None, _state(mode))
            self._rerun.setdefault(key, f"it is called with {reason}")
        with self._turn:
            if self._replay == "dynamic" or key in self._rerun:
                return self._dynamically(key, args, options)
            variants = self._kinds.get(key)
            if variants is not None:
                for entry in variants:
                    if entry.holds(tensors):
                        return self._again(entry, key, tensors, objects, args, options)
                why = variants[0].why
                known = variants[0].eager_reason or (self.retraces and self.retraces[-1] == why)
                if why and not known:
                    self.retraces.append(why)
                strikes = self._strikes[key] = self._strikes.get(key, 0) + 1
                if strikes >= _MISSES:
                    often = f"what it depends on is different at nearly every call: {why}"
                    return self._rerun_from_now_on(key, often, args, options)
            return self._record(None, key, tensors, objects, args, options)

    def _elsewhere(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A call while somebody else runs the ops, or watches them."""
        batching = batcher()
        if batching is not None:
            if self._is_method and args:
                made = batching.whole_call(args[0], self._function, args[1:], options, self)
            else:
                made = batching.whole_call(self, _call_function, args, options, self)
            if made is not NotImplemented:
                return made
        looking = watcher()
        if looking is None:
            return self._function(*args, **options)
        looking.starts(self)
        try:
            return self._function(*args, **options)
        finally:
            looking.ended(self)

    # As one call of automatic batching: nothing is known of batches in front of its arguments.
    in_front = -1

    def name_in(self, owner: Any) -> str:
        """What its calls are called."""
        return self.name

    def guard(self, owner: Any) -> Callable[[], bool] | None:
        """A function that says whether all is as it is now; None where no guard can tell."""
        seen = reach(self._function, None if owner is self else (owner,))
        return None if seen.unguardable is not None else Guards(seen).still

    # -- what kind of call is it?

    def _key(
        self, args: tuple[Any, ...], options: dict[str, Any], tensors: list[Tensor], objects: list[Any],
        mode: Mode | None,
    ) -> Any:  # fmt: skip
        if not options and all([a.__class__ is Tensor for a in args]):
            tensors += args
            shape: Any = len(args)
        else:
            own: tuple[Any, ...] = ()
            if self._is_method and args and not isinstance(args[0], Tensor):
                # The object of a method is known by identity, whatever it is, and guarded with what it holds.
                objects.append(args[0])
                own, args = ((args[0].__class__, OBJECT, id(args[0])),), args[1:]
            kind, *parts = take_apart(args, tensors, objects)
            shape = ((kind, *own, *parts), take_apart(options, tensors, objects) if options else None)
        lies = []
        views = 0
        for t in tensors:
            if t._view is not None:
                t._renew()
            a = t._array
            views += not owns_memory(a)
            lies.append((a.shape, a.strides, a.dtype.num, t._requires_grad, t._edge is None, a.flags.writeable))
        sharing: Any = None
        if len(tensors) > 1 and (views or len({id(t._array) for t in tensors}) < len(tensors)):
            sharing = _sharing(tensors)
        return shape, _state(mode), sharing, tuple(lies)

    # -- running

    def _shortly(self, args: tuple[Any, ...], mode: Mode | None) -> Any:
        """By a shortcut, or `MISS`."""
        with self._turn:
            try:
                for short in self._shortcuts:
                    made = short.call(args, mode)
                    if made is not MISS:
                        if self._strikes:
                            self._strikes.pop(short.key, None)
                        if short is not self._shortcuts[0]:
                            self._shortcuts.remove(short)
                            self._shortcuts.insert(0, short)
                        return made
            except Exception:
                pass  # Nothing was changed: on the long way it fails again, and Python says why.
        return MISS

    def _shorten(self, entry: Entry, key: Any, args: Any, tensors: list[Tensor], objects: Any) -> None:
        """See that calls of this kind have a shortcut, if they can have one, that knows where weights lie."""
        for short in self._shortcuts:
            if short.entry is entry:
                if short.moved != entry.moved:
                    short.renew()
                return
        if entry.hits == 1:
            made = shortcut(entry, key, args, tensors, objects)
            if made is not None:
                self._shortcuts.insert(0, made)
                del self._shortcuts[_SHORTCUTS:]

    def _again(self, entry: Entry, key: Any, tensors: list[Tensor], objects: Any, args: Any, options: Any) -> Any:
        if entry.eager_reason:
            return self._plainly(args, options, entry.eager_reason)
        if entry.tree.root is None:
            return self._record(entry, key, tensors, objects, args, options)
        trial = Trial(entry, tensors, self.name) if self._check else None
        try:
            result = entry.run(tensors)
        except Unseen:
            return self._record(entry, key, tensors, objects, args, options)
        except Exception as error:
            # Python says what is wrong, on the user's line. If it finds nothing wrong, the plan was.
            result = self._function(*args, **options)
            entry.eager_reason = f"its plan failed: {type(error).__name__}: {error}"
            self._shortcuts = [short for short in self._shortcuts if short.entry is not entry]
            if self._fullgraph:
                raise
            return result
        if self._strikes:
            self._strikes.pop(key, None)
        if not options and not self._check:
            self._shorten(entry, key, args, tensors, objects)
        return result if trial is None else trial.judge(result, lambda: self._function(*args, **options))

    def _rerun_from_now_on(self, key: Any, reason: str, args: Any, options: Any) -> Any:
        """This kind of call cannot do without Python."""
        self._leave(key, reason)
        return self._dynamically(key, args, options)

    def _leave(self, key: Any, reason: str) -> None:
        gone = self._kinds.pop(key, [])
        self._shortcuts = [short for short in self._shortcuts if short.entry not in gone]
        while len(self._rerun) >= _KINDS:
            self._rerun.pop(next(iter(self._rerun)))
        self._rerun[key] = reason

    def _dynamically(self, key: Any, args: Any, options: Any) -> Any:
        """Run Python, along what is known of earlier calls."""
        reason = self._rerun.get(key, "replay=\"dynamic\" was asked for")
        if self._fullgraph:
            return self._plainly(args, options, reason)
        entry = self._dynamic.entries.get(key)
        if entry is not None and entry.eager_reason:
            return self._plainly(args, options, entry.eager_reason)
        return self._dynamic.call(key, lambda: self._function(*args, **options), reason)

    def _plainly(self, args: Any, options: Any, reason: str) -> Any:
        """Run Python, because the call cannot be replayed."""
        if self._fullgraph:
            raise OperationError(f"compile: {self.name} cannot be replayed without Python, because "
                                 f"{self.with_line(reason)}",
                                 fix="Leave out fullgraph=True to have it run as plain Python.")  # fmt: skip
        if reason not in self.plain:
            if len(self.plain) >= _REASONS:
                reason = "there are more reasons than are remembered"
            else:
                told = f"compile: {self.name} runs as plain Python, because {self.with_line(reason)}"
                warnings.warn(told, stacklevel=5)
        self.plain[reason] = self.plain.get(reason, 0) + 1
        return self._function(*args, **options)

    def with_line(self, reason: str) -> str:
        """A reason with a line of the user's: where no line is known, the one where the function is defined."""
        function: Any = inspect.unwrap(self._function)
        code = getattr(getattr(function, "forward", function), "__code__", None)
        if code is None or re.search(r":\d+\)$", reason):
            return reason
        return f"{reason} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"

    def explain(self, verbose: bool = False) -> Explanation:
        """What is known of this function: its paths, plans and guards, and why calls were recorded again."""
        with self._turn:
            return explain(self, verbose)

    def _record(
        self, entry: Entry | None, key: Any, tensors: list[Tensor], objects: list[Any], args: Any, options: Any
    ) -> Any:
        """Run Python and write down what it does."""
        function = self._function
        if entry is None:
            seen = reach(function, tuple(objects) if objects else None)
            entry = Entry(self.name, Guards(seen), ())
            self._enter(key, entry)
            if seen.unguardable is not None:
                return self._rerun_from_now_on(key, seen.unguardable, args, options)
        self.recorded += 1
        assert entry.guards is not None
        captured = {**entry.guards.seen.tensors, **self._more}
        recorder = Recorder(entry.graph, tensors, captured)
        recorder.code = getattr(function, "__code__", None)
        with changed_mode(executor=recorder):
            result = function(*args, **options)
            try:
                if recorder.failed:
                    raise GiveUp(recorder.failed)
                if self._key(args, options, [], [], STATE.mode) != key:
                    self._leave(key, "it changes its own arguments")
                    return result
                self._take(entry, key, recorder, result, tensors)
            except (GiveUp, Unsteady) as reason:
                entry.eager_reason = str(reason)
        return result

    def _take(
        self, entry: Entry, key: Any, recorder: Recorder, result: Any, tensors: Sequence[Tensor]
    ) -> None:
        """Keep a recording, if it can be replayed without Python."""
        assert entry.guards is not None
        changed = entry.guards.changed_by_call()
        results: list[Tensor] = []
        objects: list[Any] = []
        try:
            if recorder.returned is not None:
                shape, results = ITEM, [recorder.returned]
            else:
                shape = take_apart(result, results, objects)
        except Opaque as what:
            return self._leave(key, f"it returns {what}")
        if has_objects(shape):
            return self._leave(key, "it returns something that is no tensor, number or structure of such")
        strangers = [t for t in (r() for r in recorder.strange) if t is not None and not any(t is x for x in results)]
        if strangers or changed:
            # Tensors from outside nobody told us of, or something made at the first call: known from now on.
            for t in strangers:
                self._more[id(t)] = t
            entry.start_again()
            strikes = self._strikes[key] = self._strikes.get(key, 0) + 1
            if (changed and strikes >= _STRIKES) or strikes >= _MISSES:
                why = f"it changes what it depends on: {changed}" if changed else "it makes tensors that stay"
                self._leave(key, why)
            elif changed:
                entry.guards = Guards(entry.guards.seen.again())
            return
        restless = entry.tree.restless(recorder.decisions)
        if restless is not None:
            return self._leave(key, f"{restless.how} hands numbers to Python that are different each time "
                               f"({os.path.basename(restless.line)})")  # fmt: skip
        recording = Recording(recorder, results)
        recording.shape = shape
        entry.add(recording, tensors)

    def _enter(self, key: Any, entry: Entry) -> None:
        variants = self._kinds.pop(key, [])
        variants.insert(0, entry)
        del variants[_VARIANTS:]
        self._kinds[key] = variants
        while len(self._kinds) > _KINDS:
            oldest = next(iter(self._kinds))
            self._kinds.pop(oldest)
            self._strikes.pop(oldest, None)


def _call_function(owner: Compiled, *args: Any, **options: Any) -> Any:
    return owner._function(*args, **options)


def _state(mode: Mode | None) -> Any:
    return mode is None or mode.grad, mode is not None and mode.inference, default_dtype()


def _sharing(tensors: Sequence[Tensor]) -> Any:
    """Which tensors are the same, or lie in the same memory and where."""
    owners = [owner_of(t._array) for t in tensors]
    ids = [id(o) for o in owners]
    if len(set(ids)) == len(ids):
        return None
    first = [ids.index(i) for i in ids]
    places = [t._array.__array_interface__["data"][0] - o.__array_interface__["data"][0]
              for t, o in zip(tensors, owners, strict=True)]  # fmt: skip
    same = [next(k for k, other in enumerate(tensors) if other is t) for t in tensors]
    return tuple(first), tuple(places), tuple(same)

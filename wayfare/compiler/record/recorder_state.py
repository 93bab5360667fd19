"""The state of a recorder: where tensors come from, which value each holds, and the graph of steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from wayfare.compiler.record.graph import Graph, Source, like
from wayfare.compiler.record.memory import Arrays, ArrayState
from wayfare.compiler.record.overlap import relations
from wayfare.core.callsite import current_site
from wayfare.core.device import ARRAYS, BACKENDS, Device, device_of, is_writable
from wayfare.core.mode import STATE, set_mode
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import OF_NUMPY, common_of_arrays
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import Watch, tick
from wayfare.ir.graph import Slot, Step, Value

_CAST, _EXPAND = REGISTRY["cast"], REGISTRY["expand"]


# The values of the first input with the autograd history of the second. It matters when steps are differentiated again.
KEEP_HISTORY = Op(
    name="keep_history", family="movement", forward=lambda values, history: values,
    infer=lambda values, history: values, vjp=None,
    batch=lambda m, size, inputs, batched, attrs: inputs[0], samples=lambda rng: (),
    reference=lambda values, history: values, formula=lambda m, values, history: values,
)  # fmt: skip


class GiveUp(Exception):
    """The call cannot be replayed; the function runs as plain Python."""


class Decision:
    """Python read a value; `outcome` is what it saw."""

    __slots__ = ("how", "line", "outcome", "slots", "value")

    def __init__(self, value: Value, how: str, outcome: Any, line: str, slots: int) -> None:
        self.value, self.how, self.outcome, self.line = value, how, outcome, line
        self.slots = slots  # how many random keys and numbers were used before it


class GradSlot:
    """The `.grad` of an argument or captured tensor: its value before the call, if it was read, and after it."""

    __slots__ = ("entry", "final", "owner", "read", "written")

    def __init__(self, owner: Source) -> None:
        self.owner = owner
        self.read = False  # was it read before it was first set?
        self.entry: Source | None = None
        self.written = False
        self.final: Tensor | None = None


class Draw:
    """A random key: the generator's key number `offset` in this call, or a fixed key if the function seeds it."""

    __slots__ = ("generator", "key", "offset")

    def __init__(self, generator: Any, key: tuple[int, int], offset: int | None) -> None:
        self.generator, self.key, self.offset = generator, key, offset


class RecorderState:
    """Everything that is noted about one call."""

    def __init__(self, graph: Graph, arguments: Sequence[Tensor], captured: dict[int, Tensor]) -> None:
        self.graph = graph
        self.start = tick()
        self.failed = ""  # why the call cannot be replayed
        self.passing = False  # inside a backward pass
        self.customs: list[str] = []  # custom Functions that were used
        self.new_leaves = 0  # how often `requires_grad` or `retain_grad()` was set on a tensor
        self.copies_of_parts: dict[int, Any] = {}  # results of `x[i]` with a tensor `i`
        self.code: Any = None  # the function's own code
        self.audit: Any = None  # the call audit
        self.returned: Tensor | None = None  # the tensor whose `.item()` the function returns
        self.decisions: list[Decision] = []
        self.segment_of: dict[int, int] = {}
        self.steps = 0
        self._entered: set[int] = set()
        self.twice: set[int] = set()  # steps that Python ran more than once; they are one step in the graph
        self.arrays = Arrays(graph, self._note)
        self.grads: dict[int, GradSlot] = {}
        self.calls: list[tuple[Any, int]] = []  # call-outs, with the number of their block
        self.slots: list[Any] = []  # by Slot number: a Draw, or (call-out, number of the update in it)
        self.may_fail: list[Value] = []  # outputs of ops that raise an error for some numbers
        # Memory that is also read through a captured view, which is an input of its own.
        self.read_apart: list[Any] = []
        self.unknown_tensors: list[Any] = []  # weak references to captured tensors that no guard leads to
        self.states: dict[int, tuple[Any, tuple[int, int]]] = {}  # generators, and their states before the call
        self._drawn: dict[Any, int] = {}
        self._call: list[int] | None = None
        self._tensors: dict[int, Source] = {}
        self._alive: list[Any] = [arguments]
        self.captured = captured
        self.seen_arrays: list[Any] = []  # NumPy arrays that the function sees
        self.records_gradient = True  # of the results, for a backward pass after the call
        self._by_array = {id(t._array): t for t in (*captured.values(), *reversed(arguments))}
        outside = list({id(t): t for t in (*captured.values(), *arguments)}.values())
        self._overlapping = {place for a, b, *_ in relations(outside, [id(t) for t in outside]) for place in (a, b)}
        for number, t in enumerate(arguments):
            if id(t) not in self._tensors:
                self._tensors[id(t)] = graph.source("argument", number, t._array)
        self.met: dict[int, tuple[Source, Tensor]] = {}
        # Arguments and captured tensors at their first use: (tensor, array, edge, requires_grad).
        self.entered: list[tuple[Tensor, Array, Any, bool]] = []
        self.device: Device | None = None
        self._writes = Watch()

    # -- modes

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Run without this executor and without the call audit: only our own code runs inside."""
        mode = STATE.mode
        set_mode(None if mode is None else mode.replace(executor=None))
        try:
            with self.unseen():
                yield
        finally:
            set_mode(mode)

    def unseen(self) -> AbstractContextManager[None]:
        """Pause the call audit: only our own code runs inside."""
        return nullcontext() if self.audit is None else self.audit.paused()

    def give_up(self, reason: str) -> None:
        """This call cannot be replayed. It runs to its end, but nothing more is recorded."""
        if not self.failed:
            site = current_site()
            self.failed = reason if site is None else f"{reason} ({site})"

    @contextmanager
    def entering(self) -> Iterator[bool]:
        """A context for code that only records. Yields False if recording was given up; a `GiveUp` inside is caught."""
        try:
            yield not self.failed
        except GiveUp as reason:
            self.give_up(str(reason))

    def _note(self, step: Step) -> None:
        self.segment_of.setdefault(id(step), len(self.decisions))
        self.steps += 1

    # -- values

    def value(self, t: Tensor) -> Value:
        """The current value of a tensor."""
        return self.arrays.value(self.known(t))

    def known(self, t: Tensor) -> ArrayState:
        """The state of a tensor's array; arguments and captured tensors are added at their first use."""
        if t._view is not None:
            t._renew()
        array = t._array
        found = self.arrays.find(array)
        if found is not None:
            if t._requires_grad and (id(t) in self._tensors or id(t) in self.captured):
                self.source_of(t)  # perhaps a second captured tensor with the same array
            return found
        # Perhaps another tensor with the array of a captured one (`x.detach()`).
        if id(t) not in self._tensors and id(t) not in self.captured:
            t = self._by_array.get(id(array), t)
        source = self.source_of(t)
        return self._enter_made(t) if source is None else self._enter_source(source, t)

    def _enter_source(self, source: Source, t: Tensor) -> ArrayState:
        """Add an argument or a captured tensor."""
        array = t._array
        self._on_one_device(array)
        self.met[id(source)] = (source, t)
        self.entered.append((t, array, t._edge, t._requires_grad))
        self._tensors[id(t)] = source
        base = t._view.base if t._view is not None else None
        known_base = self.arrays.find(base._array) if base is not None else None
        if t._view is None or base is None or (known_base is None and id(t) not in self._overlapping):
            # Also a view that overlaps no other tensor: it may be a view of something else at the next call.
            return self.arrays.own(array, source.value, source)
        if known_base is None:
            shown = self.graph.source("base", source, base._array)
            shown.path = t._view.path
            known_base = self._enter_source(shown, base)
        # A plan that writes to the base must not read the view from memory: the view is computed from the base's value.
        # A view that requires a gradient is an input of its own; then its memory must not be written.
        value = source.value
        if known_base.memory.version or not t._requires_grad:
            value = self.arrays.apply_views(known_base.memory.value, known_base.path + t._view.path)
        else:
            self.read_apart.append(known_base.memory)
        return self.arrays.view(array, value, known_base, t._view.path)

    def _enter_made(self, t: Tensor) -> ArrayState:
        """Add a tensor that the function created (`wf.zeros(3)`), or a captured one that no guard leads to."""
        array = t._array
        if array.ndim == 0 and not is_writable(array) and not t._requires_grad:
            return self.arrays.own(array, self.graph.number(array))
        if self.arrays.shares(array):
            raise GiveUp("it views the memory of a tensor in a way that is not a tensor operation")
        if t._edge is not None:
            raise GiveUp("it uses a tensor computed outside that was not found among its captures")
        self._on_one_device(array)
        self.unknown_tensors.append(weakref.ref(t))
        return self.arrays.own(array, self.graph.constant(array))

    def _on_one_device(self, array: Any) -> None:
        """A plan runs on one device, so a call that computes on several cannot be replayed."""
        here = device_of(array)
        if self.device is None:
            self.device = self.graph.device = here
        elif self.device != here:
            raise GiveUp(f"it computes on several devices, {self.device} and {here}")

    def array_value(self, array: Array) -> Value:
        """The current value of a known array."""
        found = self.arrays.find(array)
        if found is None:
            backend = BACKENDS.get(array.__class__)
            number = None if backend is None else backend.number_of(array)
            if number is not None:
                return self.graph.number(number)
            raise GiveUp("a gradient depends on values that were not computed by tensor operations")
        return self.arrays.value(found)

    def step(
        self, op: Op, values: Sequence[Value], attrs: dict[str, Any], made: Sequence[Array], cut: tuple[bool, ...] = ()
    ) -> tuple[Value, ...]:
        """Add a step to the graph."""
        if op.broadcasts:
            values = self._one_dtype(op, values)
        if "key" in attrs:
            attrs = {**attrs, "key": self._slot_of(attrs["key"])}
        outputs = self.graph.step(op, values, attrs, made, cut)
        if not self.passing and id(outputs[0].step) in self._entered:
            self.twice.add(id(outputs[0].step))
        self._entered.add(id(outputs[0].step))
        self._note(outputs[0].step)
        return outputs

    def _one_dtype(self, op: Op, values: Sequence[Value]) -> list[Value]:
        """Cast operands to their common dtype: NumPy does that implicitly, in the graph it is a step."""
        skip = () if op.signature is None else op.signature.masks
        common = common_of_arrays([v.dtype for i, v in enumerate(values) if i not in skip])
        return [v if i in skip else self._cast(v, common) for i, v in enumerate(values)]

    def _cast(self, value: Value, dtype: np.dtype[Any]) -> Value:
        if value.dtype == dtype:
            return value
        return self.step(_CAST, (value,), {"dtype": OF_NUMPY[dtype]}, (like(value.shape, dtype),))[0]

    def _expand(self, value: Value, shape: tuple[int, ...]) -> Value:
        if value.shape == shape:
            return value
        return self.step(_EXPAND, (value,), {"shape": shape}, (like(shape, value.dtype),))[0]

    def enter(
        self, op: Op, values: Sequence[Value], attrs: dict[str, Any], made: Sequence[Array],
        viewed: ArrayState | None = None, cut: tuple[bool, ...] = (),
    ) -> None:  # fmt: skip
        """Record an op that has run."""
        for array in made:
            self._on_one_device(array)
        for value, array in zip(self.step(op, values, attrs, made, cut), made, strict=True):
            before = viewed.array() if viewed is not None else None
            if before is None or not _is_view_of(array, before):
                self.arrays.own(array, value)
            elif array is not before:
                assert viewed is not None
                self.arrays.view(array, value, viewed, ((op.name, tuple(attrs.items())),))

    def source_of(self, t: Tensor) -> Source | None:
        """The source of an argument or captured tensor; None for a tensor made inside the function."""
        found = self._tensors.get(id(t))
        if found is None and id(t) in self.captured:
            found = self._tensors[id(t)] = self.graph.source("captured", t, t._array)
        if found is not None:
            self.met.setdefault(id(found), (found, t))
        return found

    def _slot_of(self, key: Any) -> Any:
        for (_, drawn), number in self._drawn.items():
            if drawn == key:
                return Slot(number)
        return key


def _is_view_of(array: Array, source: Array) -> bool:
    if array is source:
        return True
    base: Any = array.base
    return base.__class__ in ARRAYS and (base is source or base is source.base)

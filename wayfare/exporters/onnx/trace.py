"""One run of a function, written down: every op, every look of Python at a value, with the user's line and the module.

The run is real (inference: no gradients, modules in eval mode). It uses the recorder of compiled functions, which knows
views and writes in place; here each op is kept as it happened, in order, so that runs can be laid side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from wayfare.compiler.graph import Graph
from wayfare.compiler.memory import Known
from wayfare.compiler.reach import reach
from wayfare.compiler.recorder import NO_DECISION, Recorder
from wayfare.compiler.structure import Opaque, take_apart
from wayfare.core.callsite import Site, user_frame
from wayfare.core.errors import ExportError
from wayfare.core.mode import Watcher, changed_mode
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, Op
from wayfare.core.tensor import Tensor, wrap
from wayfare.exporters.onnx.stated import trace_cond, trace_scan, trace_while
from wayfare.ir.graph import Step, Value
from wayfare.nn.module import Module

_CLONE = REGISTRY["clone"]


# Reads that tell nothing of the numbers, or are meant for people.
_NO_DECISION = NO_DECISION | {"storage_offset()", "data_ptr()"}


class Place(NamedTuple):
    """Where in the user's code something happened: the line, and which part of it."""

    site: Site | None
    part: Any


@lru_cache(maxsize=256)
def _parts(code: CodeType) -> tuple[Any, ...]:
    return tuple(code.co_positions())


def current_place(asked: bool = False) -> Place:
    """The part of the user's code that is running now.

    It tells two decisions of one line apart, but not the two copies of a question that Python makes of `while`: they
    have the same source. A jump (`asked`) has the whole statement for its source, what it looks at has its own.
    """
    frame = user_frame(2)
    if frame is None:
        return Place(None, None)
    code = frame.f_code
    parts, at = _parts(code), frame.f_lasti // 2 - asked
    site = Site(code.co_filename, frame.f_lineno, code.co_name)
    return Place(site, parts[at] if 0 <= at < len(parts) else None)


class Happening:
    """Something in a trace: where in the user's code, and the path of the module, it happened."""

    __slots__ = ("path", "place")

    def __init__(self, place: Place, path: str) -> None:
        self.place = place
        self.path = path

    @property
    def site(self) -> Site | None:
        """The user's line."""
        return self.place.site


class Event(Happening):
    """An op that ran: its step in the recorder's graph."""

    __slots__ = ("step",)

    def __init__(self, step: Step, place: Place, path: str) -> None:
        super().__init__(place, path)
        self.step = step

    @property
    def key(self) -> tuple[Any, ...]:
        """What the same event of another run has in common with it."""
        step = self.step
        kinds = tuple((len(v.shape), v.dtype.char) for v in step.outputs)
        return ("op", step.name, self.place, self.path, kinds)


class Look(Happening):
    """Python looked at a value, and saw an outcome."""

    __slots__ = ("array", "how", "value")

    def __init__(self, value: Value, how: str, array: Array, place: Place, path: str) -> None:
        super().__init__(place, path)
        self.value = value
        self.how = how
        self.array = array

    @property
    def key(self) -> tuple[Any, ...]:
        """What the same look of another run has in common with it."""
        return ("look", self.how, self.place, self.path)

    @property
    def truth(self) -> bool | None:
        """The answer to a question of yes or no; None for other looks."""
        return bool(self.array.item()) if self.how == "bool()" and self.array.size == 1 else None

    def refusal(self) -> ExportError:
        """Why Python must not look in this way, and what to do in its place."""
        if self.how in _COUNTED:
            sentence = (f"{self.how}: how many elements there are depends on the values of the input, and in a file "
                        "shapes follow from sizes alone")  # fmt: skip
        else:
            sentence = f"{self.how} looks at a number that depends on the input, and Python may do anything with it"
        error = ExportError(f"export: {sentence}", fix=_COUNTED.get(self.how) or _INSTEAD.get(self.how) or _INSTEAD[""])
        error.happened_in("", self.site)
        return error


# Looks that tell how many elements a result has, and what to do in their place.
_COUNTED = {
    "a mask as index": "Keep the shape: wf.where(mask, x, 0), masked_fill, or a sum over x * mask.",
    "masked_select()": "Keep the shape: wf.where(mask, x, 0), or masked_fill.",
    "nonzero()": "Keep the shape: compute with the mask itself (wf.where(mask, x, 0), x * mask), or take a fixed "
    "number of places with topk.",
}
# What to do in place of looking at a number.
_INSTEAD = {
    "item()": "Keep it a tensor: index with it, compute with it; a loop that runs so often is wf.while_loop, or "
    "wf.scan over an input.",
    "": "Compute with tensors (wf.where, masked_fill, index_select).",
}


class Region(Happening):
    """A control-flow function (`wf.cond`, `wf.while_loop`, `wf.scan`): runs of its parts, and what came out."""

    __slots__ = ("blocks", "inputs", "kind", "options", "outputs")

    def __init__(self, kind: str, inputs: list[Value], blocks: list[Trace], outputs: list[Value], options: Any,
                 place: Place, path: str) -> None:  # fmt: skip
        super().__init__(place, path)
        self.kind = kind
        self.inputs = inputs
        self.blocks = blocks
        self.outputs = outputs
        self.options = options

    @property
    def key(self) -> tuple[Any, ...]:
        """What the same call of another run has in common with it."""
        return ("region", self.kind, self.options, self.place, self.path, len(self.inputs), len(self.outputs))


class Trace:
    """What happened between some inputs and some results."""

    __slots__ = ("events", "inputs", "results")

    def __init__(self, inputs: list[Value], events: list[Any], results: list[Value]) -> None:
        self.inputs = inputs
        self.events = events
        self.results = results


class _EachAnew(Graph):
    """A graph in which equal steps stay two: what happened twice is seen twice."""

    def _once(self, key: Any, make: Callable[[], Value]) -> Value:
        return make()

    def step(
        self, op: Op, inputs: Sequence[Value], attrs: dict[str, Any], made: Sequence[Array], cut: tuple[bool, ...] = ()
    ) -> tuple[Value, ...]:
        """Enter a step."""
        step = Step(op, tuple(inputs), attrs)
        step.outputs = tuple([Value(step, i, a.shape, a.dtype) for i, a in enumerate(made)])
        return step.outputs


class Modules(Watcher):
    """The modules a function uses: their paths, and which of them are running. The watcher of a trace."""

    allows_plans = False
    allows_batches = False

    def __init__(self, function: Any) -> None:
        self.names: dict[int, str] = {}
        self.tensors: dict[int, str] = {}
        self.captured: dict[int, Tensor] = {}
        # Modules that were in training mode; whoever traces puts them back.
        self.switched: list[Module] = []
        self._stack: list[str] = []
        # By the id of a module that was called: itself, and its plain attributes before the first call.
        self._plain: dict[int, tuple[Module, dict[str, Any]]] = {}
        if isinstance(function, Module):
            self.enter_names(function, "")
        else:
            found = reach(function)
            for number, t in found.tensors.items():
                self.captured[number] = t
                self.tensors[number] = found.name_of(t).replace(" ", "_").replace("`", "")

    def enter_names(self, module: Module, path: str) -> None:
        """Name a module and all that is in it."""
        for name, inner in module.named_modules(prefix=path):
            self.names.setdefault(id(inner), name)
        for name, t in [*module.named_parameters(prefix=path), *module.named_buffers(prefix=path)]:
            self.tensors[id(t)] = name
            self.captured[id(t)] = t

    @property
    def path(self) -> str:
        """The path of the module that is running."""
        return self._stack[-1] if self._stack else ""

    def entered(self, module: Any) -> None:
        """A call of a module begins."""
        if id(module) not in self.names:
            taken = set(self.names.values())
            base = name = type(module).__name__.lower()
            count = 1
            while name in taken:
                count += 1
                name = f"{base}_{count}"
            self.enter_names(module, name)
        for inner in module.modules() if module.training else ():
            if inner.training:
                inner.training = False
                self.switched.append(inner)
        self._stack.append(self.names[id(module)])
        if id(module) not in self._plain:
            self._plain[id(module)] = (module, _numbers_of(module))

    def left(self, module: Any) -> None:
        """A call of a module has ended."""
        self._stack.pop()

    @property
    def notes(self) -> list[str]:
        """Which plain attributes calls have changed: what follows from them is in the file as it was."""
        found = []
        for module, before in self._plain.values():
            now = _numbers_of(module)
            path = self.names[id(module)] or type(module).__name__
            found += [f"{path}.{name} changes from call to call, and what follows from it is in the file as it was"
                      for name, value in before.items() if now.get(name, value) != value]  # fmt: skip
        return found


def _numbers_of(module: Module) -> dict[str, Any]:
    return {name: v for name, v in vars(module).items() if isinstance(v, (bool, int, float)) and name != "training"}


class Tracer(Recorder):
    """The executor while a function is traced for export."""

    sizes_may_differ = True

    def __init__(self, arguments: Sequence[Tensor], modules: Modules, patience: float) -> None:
        self.events: list[Any] = []
        self.modules = modules
        self._patience = patience
        self.dropped: set[Site | None] = set()
        super().__init__(_EachAnew(), arguments, modules.captured)

    def _note(self, step: Step) -> None:
        super()._note(step)
        if len(self.events) > self._patience:
            raise TimeoutError
        self.events.append(Event(step, current_place(), self.modules.path))

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Run one op and enter it. Dropout lets everything through; other random numbers are refused."""
        if op.name == "dropout":
            self.dropped.add(current_place().site)
            return super().apply(_CLONE, inputs, {})
        if op.random or "key" in attrs:
            raise ExportError(f"export: {op.name} draws random numbers, and a model file has none",
                              fix="Take them as an input of the function.")  # fmt: skip
        return super().apply(op, inputs, self._attributes(op, attrs))

    def _attributes(self, op: Op, attrs: dict[str, Any]) -> dict[str, Any]:
        """The attributes in the kinds that a file has for them."""
        for key, value in attrs.items():
            if isinstance(value, (Tensor, np.ndarray)):
                raise ExportError(f"export: {op.name} is given a tensor for {key}, where a file holds a number",
                                  fix="Give a number.")  # fmt: skip
        return attrs if op.signature is None else op.signature.in_its_kinds(attrs)

    def give_up(self, reason: str) -> None:
        """Say what cannot be written down, at the line where it happens; a look at numbers may be what led there."""
        looks = [e for e in self.events if isinstance(e, Look) and e.truth is None]
        if looks:
            raise looks[-1].refusal()
        raise ExportError(f"export: {reason}",
                          fix="Compute with tensor operations (for a mask as an index: wf.where).")  # fmt: skip

    def _keep_history(self, known: Known, before: Value) -> None:
        """What memory holds is what was written last; a file has no other history of it."""

    def may_decide(self, tensor: Tensor) -> bool:
        """What runs a model file makes its own checks."""
        return False

    def unseen_input(self, reason: str) -> None:
        """What is made of others' memory is a constant of the file."""

    def flag_set(self, t: Tensor, what: str) -> None:
        """A file has no gradients."""

    def stays_inside(self, roots: Any, capture: Any) -> None:
        """Nor a backward pass."""

    def read(self, tensor: Tensor, how: str) -> Any:
        """Python looks at a value."""
        array = tensor._array
        if how not in _NO_DECISION and not how.startswith("the index of"):
            with self.entering() as going:
                if going:
                    self._check_writes()
                    value = self.value(tensor)
                    place = current_place(asked=True)
                    self.events.append(Look(value, how, np.array(array), place, self.modules.path))
        return array

    # -- control flow that the user states

    def cond(self, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any) -> Any:
        """Two branches; where `pred` is no tensor it is the same in every run."""
        if not isinstance(pred, Tensor):
            return super().cond(pred, true_fn, false_fn, operands)
        return trace_cond(self, pred, true_fn, false_fn, operands)

    def while_loop(self, run: Callable[..., Any], cond_fn: Any, body_fn: Any, carried: tuple[Any, ...]) -> Any:
        """A loop with a condition."""
        return trace_while(self, run, cond_fn, body_fn, carried)

    def scan(self, run: Callable[..., Any], combine_fn: Any, init: Any, xs: Any, dim: int, reverse: bool) -> Any:
        """A loop over a dimension."""
        return trace_scan(self, run, combine_fn, init, xs, dim, reverse)

    @contextmanager
    def apart(self) -> Iterator[list[Any]]:
        """What happens inside goes to a list of its own."""
        outer, self.events = self.events, []
        try:
            yield self.events
        finally:
            self.events = outer

    def block(self, function: Callable[..., Any], given: Sequence[Tensor]) -> tuple[Trace, list[Tensor]]:
        """One part of a control-flow function, run on its own inputs: what happened, and the results."""
        arguments, inputs = self._anew("block input", [t._array for t in given])
        with self.apart() as events:
            made = list(function(*arguments))
            results = [self.value(t) for t in made]
        return Trace(inputs, events, results), made

    def region(self, kind: str, given: Sequence[Tensor], blocks: list[Trace], arrays: Sequence[Array], options: Any
               ) -> list[Tensor]:  # fmt: skip
        """Enter a control-flow function whose results are these arrays."""
        inputs = [self.value(t) for t in given]
        made, outputs = self._anew("region", arrays)
        self.events.append(Region(kind, inputs, blocks, outputs, options, current_place(), self.modules.path))
        return made

    def _anew(self, name: str, arrays: Sequence[Array]) -> tuple[list[Tensor], list[Value]]:
        """Tensors with copies of some arrays, which no step has made, and the values that they are."""
        tensors = [wrap(np.array(a)) for a in arrays]
        values = [self.graph.fresh(name, t._array) for t in tensors]
        for t, value in zip(tensors, values, strict=True):
            self.arrays.own(t._array, value)
        self._alive += tensors
        return tensors, values


class Run:
    """One traced call: the arguments' arrays, the trace, the results and their structure."""

    __slots__ = ("arrays", "dropped", "results", "sources", "structure", "trace")

    def __init__(self, trace: Trace, arrays: list[Array], results: list[Array], structure: Any, sources: Any,
                 dropped: set[Site | None]) -> None:  # fmt: skip
        self.trace = trace
        self.arrays = arrays
        self.results = results
        self.structure = structure
        # By the id of a leaf value: the tensor from outside it stands for.
        self.sources = sources
        self.dropped = dropped


def run(
    call: Callable[[Sequence[Tensor]], Any], arrays: Sequence[Array], modules: Modules, patience: float = math.inf
) -> Run:
    """Trace one call, which gets a tensor for each array. After so many events it is given up (`patience`)."""
    arguments = [wrap(np.array(a)) for a in arrays]
    tracer = Tracer(arguments, modules, patience)
    inputs = [tracer.value(t) for t in arguments]
    before = [t._array.copy() for t in arguments]
    with changed_mode(executor=tracer, watcher=modules, grad=False):
        result = call(arguments)
    tensors: list[Tensor] = []
    try:
        structure = take_apart(result, tensors, [])
    except Opaque as opaque:
        raise ExportError(f"export: the function returns {opaque}, which is no tensor",
                          fix="Return tensors, or tuples, lists and dictionaries of them.") from None  # fmt: skip
    if not tensors:
        raise ExportError("export: the function returns no tensor", fix="Return what the model is to compute.")
    results = [tracer.value(t) for t in tensors]
    for memory in tracer.arrays.memories:
        if memory.written and memory.source is not None and memory.source.kind != "argument":
            what = modules.tensors.get(id(memory.source.what), "a tensor from outside")
            raise ExportError(f"export: the function writes in place to {what}, and a model file keeps no state",
                              fix="Give the new value back as a result.")  # fmt: skip
    sources = {id(source.value): source.what for source, _ in tracer.met.values() if source.kind == "captured"}
    return Run(
        Trace(inputs, tracer.events, results), before, [t._array for t in tensors], structure, sources, tracer.dropped
    )

"""A trace of one run of a function: every op and every value that Python read, with the user's line and the module.

The function really runs (inference: no gradients, modules in eval mode). The tracer is the recorder of compiled
functions, which handles views and in-place writes; here every op is kept in order, so that runs can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from wayfare.compiler.captures.reach import reach
from wayfare.compiler.record.graph import Graph
from wayfare.compiler.record.memory import ArrayState
from wayfare.compiler.record.recorder import NO_DECISION, Recorder
from wayfare.compiler.structure import Opaque, take_apart
from wayfare.core.callsite import Site
from wayfare.core.errors import ExportError
from wayfare.core.mode import Watcher, changed_mode
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, Op
from wayfare.core.tensor import Tensor, wrap
from wayfare.exporters.control_flow import trace_cond, trace_scan, trace_while
from wayfare.exporters.trace_steps import ReadStep, RegionStep, TraceStep, current_place
from wayfare.ir.graph import Block, Value
from wayfare.nn.module import Module

_CLONE = REGISTRY["clone"]


# Reads that Python does not decide by: they give no values, or are for printing.
_NO_DECISION = NO_DECISION | {"storage_offset()", "data_ptr()"}


class _UnmergedGraph(Graph):
    """A graph that does not merge equal steps: a trace has every op as often as it ran."""

    def _once(self, key: Any, make: Callable[[], Value]) -> Value:
        return make()

    def step(
        self, op: Op, inputs: Sequence[Value], attrs: dict[str, Any], made: Sequence[Array], cut: tuple[bool, ...] = ()
    ) -> tuple[Value, ...]:
        """Add a step, also if there is an equal one."""
        step = TraceStep(op, inputs, attrs)
        step.outputs = tuple([Value(step, i, a.shape, a.dtype) for i, a in enumerate(made)])
        return step.outputs


class Modules(Watcher):
    """The watcher of a trace: paths of the modules that the function uses, and which of them are running."""

    allows_plans = False
    allows_batches = False

    def __init__(self, function: Any) -> None:
        self.names: dict[int, str] = {}
        self.tensors: dict[int, str] = {}
        self.captured: dict[int, Tensor] = {}
        # Modules that were switched from training to eval mode; `Traced.in_eval_mode` switches them back.
        self.switched: list[Module] = []
        self._stack: list[str] = []
        # By the id of a called module: the module, and its plain attributes before the first call.
        self._plain: dict[int, tuple[Module, dict[str, Any]]] = {}
        if isinstance(function, Module):
            self.enter_names(function, "")
        else:
            found = reach(function)
            for number, t in found.tensors.items():
                self.captured[number] = t
                self.tensors[number] = found.name_of(t).replace(" ", "_").replace("`", "")

    def enter_names(self, module: Module, path: str) -> None:
        """Give paths to a module, its submodules, parameters and buffers."""
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
        """Notes on plain attributes that change from call to call: the file has the value of the traced call."""
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

    def __init__(self, arguments: Sequence[Tensor], modules: Modules, max_steps: float) -> None:
        self.trace: list[TraceStep] = []
        self.modules = modules
        self._max_steps = max_steps
        self.dropped: set[Site | None] = set()
        super().__init__(_UnmergedGraph(), arguments, modules.captured)

    def _note(self, step: Any) -> None:
        super()._note(step)
        if len(self.trace) > self._max_steps:
            raise TimeoutError
        step.happened(current_place(), self.modules.path)
        self.trace.append(step)

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Run one op and record it. Dropout becomes the identity; other random ops are refused."""
        if op.name == "dropout":
            self.dropped.add(current_place().site)
            return super().apply(_CLONE, inputs, {})
        if op.random or "key" in attrs:
            raise ExportError(f"export: {op.name} draws random numbers, and a model file has none",
                              fix="Take them as an input of the function.")  # fmt: skip
        return super().apply(op, inputs, self._attributes(op, attrs))

    def _attributes(self, op: Op, attrs: dict[str, Any]) -> dict[str, Any]:
        """The attributes in the types that the op's signature names."""
        for key, value in attrs.items():
            if isinstance(value, (Tensor, np.ndarray)):
                raise ExportError(f"export: {op.name} is given a tensor for {key}, where a file holds a number",
                                  fix="Give a number.")  # fmt: skip
        return attrs if op.signature is None else op.signature.in_its_kinds(attrs)

    def give_up(self, reason: str) -> None:
        """Refuse what cannot be recorded. If Python read numbers before, that read is the likely cause and is named."""
        reads = [step for step in self.trace if isinstance(step, ReadStep) and step.truth is None]
        if reads:
            raise reads[-1].refusal()
        raise ExportError(f"export: {reason}",
                          fix="Compute with tensor operations (for a mask as an index: wf.where).")  # fmt: skip

    def _keep_history(self, known: ArrayState, before: Value) -> None:
        """Nothing: without gradients only the last value written to a memory matters."""

    def may_decide(self, tensor: Tensor) -> bool:
        """No: the runtime of a model file makes its own checks."""
        return False

    def unseen_input(self, reason: str) -> None:
        """Nothing: what is read from foreign memory becomes a constant of the file."""

    def flag_set(self, t: Tensor, what: str) -> None:
        """Nothing: a file has no gradients."""

    def stays_inside(self, roots: Any, capture: Any) -> None:
        """Nothing: a file has no backward pass."""

    def read(self, tensor: Tensor, how: str) -> Any:
        """Python reads a value: record it as a step."""
        array = tensor._array
        if how not in _NO_DECISION and not how.startswith("the index of"):
            with self.entering() as going:
                if going:
                    self._check_writes()
                    value = self.value(tensor)
                    place = current_place(asked=True)
                    self.trace.append(ReadStep(value, how, np.array(array), place, self.modules.path))
        return array

    # -- control-flow functions

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
    def apart(self) -> Iterator[list[TraceStep]]:
        """Steps inside go to a list of their own."""
        outer, self.trace = self.trace, []
        try:
            yield self.trace
        finally:
            self.trace = outer

    def block(self, function: Callable[..., Any], given: Sequence[Tensor]) -> tuple[Block, list[Tensor]]:
        """Trace one function of a control-flow function on copies of its inputs: the trace, and the results."""
        arguments, inputs = self._new_values("block input", [t._array for t in given])
        with self.apart() as steps:
            made = list(function(*arguments))
            results = [self.value(t) for t in made]
        return Block(inputs, [*steps], results), made

    def region(self, kind: str, given: Sequence[Tensor], blocks: list[Block], arrays: Sequence[Array], options: Any
               ) -> list[Tensor]:  # fmt: skip
        """Record a control-flow function whose results are these arrays."""
        inputs = [self.value(t) for t in given]
        made, outputs = self._new_values("region", arrays)
        self.trace.append(RegionStep(kind, inputs, blocks, outputs, options, current_place(), self.modules.path))
        return made

    def _new_values(self, name: str, arrays: Sequence[Array]) -> tuple[list[Tensor], list[Value]]:
        """Tensors with copies of some arrays, and new leaf values of the graph for them."""
        tensors = [wrap(np.array(a)) for a in arrays]
        values = [self.graph.fresh(name, t._array) for t in tensors]
        for t, value in zip(tensors, values, strict=True):
            self.arrays.own(t._array, value)
        self._alive += tensors
        return tensors, values


class Run:
    """One traced call: the arguments' arrays, the trace, the results and their structure."""

    __slots__ = ("arrays", "dropped", "results", "sources", "structure", "trace")

    def __init__(self, trace: Block, arrays: list[Array], results: list[Array], structure: Any, sources: Any,
                 dropped: set[Site | None]) -> None:  # fmt: skip
        self.trace = trace
        self.arrays = arrays
        self.results = results
        self.structure = structure
        # By the id of a leaf value: the captured tensor that it stands for.
        self.sources = sources
        self.dropped = dropped


def run(
    call: Callable[[Sequence[Tensor]], Any], arrays: Sequence[Array], modules: Modules, max_steps: float = math.inf
) -> Run:
    """Trace one call, which gets a tensor for each array. TimeoutError after `max_steps` steps."""
    arguments = [wrap(np.array(a)) for a in arrays]
    tracer = Tracer(arguments, modules, max_steps)
    inputs = [tracer.value(t) for t in arguments]
    before = [t._array.copy() for t in arguments]
    with changed_mode(executor=tracer, watcher=modules, grad=False):
        result = call(arguments)
    tensors: list[Tensor] = []
    try:
        structure = take_apart(result, tensors, [])
    except Opaque as opaque:
        raise ExportError(f"export: the function returns {opaque}, which is not a tensor",
                          fix="Return tensors, or tuples, lists and dictionaries of them.") from None  # fmt: skip
    if not tensors:
        raise ExportError("export: the function returns no tensor", fix="Return the results of the model.")
    results = [tracer.value(t) for t in tensors]
    for memory in tracer.arrays.memories:
        if memory.written and memory.source is not None and memory.source.kind != "argument":
            what = modules.tensors.get(id(memory.source.what), "a tensor from outside")
            raise ExportError(f"export: the function writes in place to {what}, and a model file keeps no state",
                              fix="Give the new value back as a result.")  # fmt: skip
    sources = {id(source.value): source.what for source, _ in tracer.met.values() if source.kind == "captured"}
    return Run(
        Block(inputs, [*tracer.trace], results), before, [t._array for t in tensors], structure, sources, tracer.dropped
    )

"""`@fused`: a Python function of tensors as one op made of a few native loops.

At the first call for a structure (dtypes, ranks, which sizes are equal or 1) the function runs on stand-ins that only
know their shape, under an executor that writes down the ops. From that graph come programs for the result and for its
gradient, and an ordinary op record, so that a call is one node in the graph. What cannot be taken apart this way is
called as plain Python, with a warning that says why.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from wayfare.codegen.runtime import kernel
from wayfare.core.callsite import INSIDE, is_debugged
from wayfare.core.device import BACKENDS, CPU, Device, device_of
from wayfare.core.dispatch import apply
from wayfare.core.errors import OperationError, WayfareError
from wayfare.core.executor import Interceptor
from wayfare.core.locks import lock
from wayfare.core.mode import STATE, changed_mode, current, executor
from wayfare.core.op import Op
from wayfare.core.pytree import TENSOR, UNKNOWN, flatten, only_tensors, rebuild
from wayfare.core.spec import FLOAT_KINDS
from wayfare.core.stand_in import StandIn, stand_in
from wayfare.core.symbolic_sizes import size_classes, symbol, symbolic_shape
from wayfare.core.tensor import Tensor
from wayfare.ir.fuse.record import STOP, FusedRecord
from wayfare.ir.graph import Value, leaf, record
from wayfare.ir.layout import Layouts, keeps_memory, layout_of
from wayfare.ir.variants import Variants, signature

F = TypeVar("F", bound=Callable[..., Any])

# The largest number of calls (shapes, dtypes, other arguments) whose records are kept.
_READY = 256
_TURN = lock()


class NotFusable(WayfareError):
    """The function does what a trace cannot show."""


class TracedValue:
    """The handle of a stand-in while a function is traced: a value of the graph."""

    __slots__ = ("device", "row")

    extras = None
    is_view = False
    history_name = ""

    def __init__(self, value: Value, device: Device = CPU) -> None:
        self.row = value
        self.device = device

    @property
    def is_leaf(self) -> bool:
        """No: the function computed it. (Arguments may be leaves, which a trace does not know.)"""
        if self.row.step.op is None:
            raise NotFusable("it asks whether an argument is a leaf")
        return False

    def refuse_hash(self) -> None:
        """Refuse for arguments: a set or a dictionary may have the real one."""
        if self.row.step.op is None:
            raise NotFusable("it looks an argument up in a set or a dictionary")

    def materialise(self) -> None:
        """Refuse: there are no numbers."""
        raise NotFusable("it needs the numbers of a tensor, which are not there while it is traced")

    def detached(self, tensor: StandIn) -> Tensor:
        """The same values, cut from the history."""
        return stand_in(TracedValue(record(STOP, (self.row,), {}), self.device), False)

    def text(self, tensor: StandIn) -> str:
        """What `repr` shows: shape and dtype. An executor for which that is not enough refuses."""
        executor().effect("it makes text of a tensor")
        return f"StandIn({tensor.spec})"


def _is_traced(t: Tensor) -> bool:
    return t.__class__ is StandIn and t._handle.__class__ is TracedValue


class TraceExecutor(Interceptor):
    """Records the ops that a function runs."""

    counts_modules = times_modules = False
    # Where all traced values are.
    device = CPU

    def __init__(self, count: int, outer: Any) -> None:
        self.captured: list[Tensor] = []
        self._leaves: dict[int, Value] = {}
        self._count = count
        self.layouts = Layouts()

    def apply(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Enter one op in the graph."""
        if not (op.random or "key" in attrs) and not any(_is_traced(t) for t in inputs):
            with changed_mode(executor=None):
                return apply(op, inputs, attrs)
        return self.enter(op, inputs, attrs)

    def enter(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Record one op."""
        if op.random or "key" in attrs:
            raise NotFusable(f"{op.name} draws random numbers")
        if op.any_device:
            raise NotFusable("it moves a tensor to another device")
        needs = current().grad and op.vjp is not None and any(t._requires_grad for t in inputs)
        made = record(op, [self.value(t) for t in inputs], attrs)
        if isinstance(made, tuple):
            return tuple(self._tensor(op, i, v, needs) for i, v in enumerate(made))
        return self._tensor(op, 0, made, needs)

    def _tensor(self, op: Op, number: int, value: Value, needs: bool) -> Tensor:
        wanted = op.differentiable_outputs is None or number in op.differentiable_outputs
        needs = needs and wanted and value.dtype.kind in FLOAT_KINDS
        return stand_in(TracedValue(value if needs else record(STOP, (value,), {}), self.device), needs)

    def value(self, t: Tensor) -> Value:
        """What a tensor is in the graph: tensors from outside the function become further inputs."""
        if _is_traced(t):
            return t._handle.row  # type: ignore[no-any-return]
        array = t._array
        if t._extras is not None and "size" in t._extras:
            return leaf("number", t._extras["size"], (), array.dtype)
        if array.ndim == 0 and array.__class__ not in BACKENDS and not array.flags.writeable and not t._requires_grad:
            return leaf("number", array.item(), (), array.dtype)
        found = self._leaves.get(id(t))
        if found is None:
            found = leaf("input", self._count + len(self.captured), array.shape, array.dtype)
            self._leaves[id(t)] = found
            self.layouts.add(found, layout_of(array))
            self.captured.append(t)
        return found

    def captured_values(self) -> list[Value]:
        """The inputs that came from outside."""
        return [self._leaves[id(t)] for t in self.captured]

    def read(self, tensor: Tensor, how: str) -> Any:
        """Python looks at a value."""
        raise NotFusable(f"{how} looks at the numbers of a tensor")

    def may_decide(self, tensor: Tensor) -> bool:
        """What is traced has no numbers."""
        return not _is_traced(tensor)

    def is_view(self, tensor: Tensor, shape: tuple[int, ...]) -> bool:
        """Would that shape need no copy in plain Python, if the arguments are C-contiguous?"""
        if not _is_traced(tensor):
            return tensor.__class__ is StandIn or keeps_memory(tensor._array.shape, tensor._array.strides, shape)
        return self.layouts.keeps_memory(tensor._handle.row, shape, self.device)

    def custom(self, function: Any, args: tuple[Any, ...], run: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
        """Refuse a custom Function: it is not an op."""
        raise OperationError(f"{function.__name__}: a custom Function cannot be taken apart here",
                             fix="Write it in tensor ops.")  # fmt: skip

    def behind(self, tensor: Tensor, name: str) -> Tensor:
        """A write in place is about to happen."""
        raise NotFusable("it writes in place")

    def write(self, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
        """Refuse a write in place."""
        raise NotFusable("it writes in place")


# -- the function -----------------------------------------------------------------------------------------------------


class _Traced:
    """A trace made into a record: the op, the tensors from outside, the shape of the result; only for rows in order?"""

    def __init__(self, fused: FusedRecord, captured: Sequence[Tensor], result: Any, in_order: bool) -> None:
        self.in_order = in_order
        self.record = fused
        self.captured = tuple(captured)
        self.needs = tuple(t._requires_grad for t in captured)
        self.result = result


class _TraceFailed(Exception):
    def __init__(self, key: Any, error: Exception) -> None:
        self.key = key
        self.error = error


def _call_function(owner: Fused, *args: Any, **options: Any) -> Any:
    return owner.function(*args, **options)


class _AsOne:
    """How automatic batching takes a fused function as one call."""

    in_front = -1

    def name_in(self, owner: Fused) -> str:
        """The function's own name."""
        return owner.name

    def guard(self, owner: Fused) -> Callable[[], bool]:
        """What a fused function takes from outside is looked up when it is traced."""
        return lambda: True


_AS_ONE = _AsOne()


def _on_one_device(tensors: Sequence[Tensor]) -> bool:
    """Are all tensors on one device, and does it run kernels?"""
    arrays = [t._array for t in tensors]
    return len({device_of(a) for a in arrays}) < 2 and (
        arrays[0].__class__ not in BACKENDS or BACKENDS[arrays[0].__class__].has_kernels if arrays else True
    )


class Fused:
    """A function whose calls run as fused kernels. Made by `fused`."""

    tracer = TraceExecutor

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__).strip("_") or "fused"
        self._structures: dict[Any, Variants[_Traced] | None] = {}
        self._ready: dict[Any, _Traced | None] = {}
        self._warned = False
        code = getattr(function, "__code__", None)
        self._is_ours = code is not None and INSIDE[code.co_filename]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # In a class it is a method like any other function.
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<fused function {self.name}>"

    @property
    def traces(self) -> int:
        """How often the function was traced so far."""
        return sum(v.traces for v in self._structures.values() if v is not None)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function."""
        mode = STATE.mode
        if mode is not None and not mode.executor.works_on_arrays:
            made = mode.executor.opaque_call(self, _call_function, args, options, _AS_ONE)
            return self.function(*args, **options) if made is NotImplemented else made
        if is_debugged() and not self._is_ours:
            return self.function(*args, **options)  # a debugger or profiler of lines must see them run
        floats: list[float] = []
        tensors: list[Tensor] = []
        if not options and all([a.__class__ is Tensor for a in args]):
            tensors, shape = list(args), len(args)  # The commonest case: nothing to take apart.
        else:
            shape = flatten((args, options), tensors, floats)
        if BACKENDS and not _on_one_device(tensors):
            return self.function(*args, **options)  # which may move them, or raises
        try:
            traced = self._find(shape, tensors, floats, mode is None or mode.grad)
        except _TraceFailed as failed:
            return self._plain(failed, args, options)
        if traced is None or (traced.in_order and not all([t._array.flags.c_contiguous for t in tensors])):
            return self.function(*args, **options)
        attrs = {"numbers": tuple(floats)} if floats else {}
        made = apply(traced.record.op, (*tensors, *traced.captured), attrs)
        outputs = made if isinstance(made, tuple) else (made,)
        return outputs[0] if traced.result is TENSOR else rebuild(traced.result, iter(outputs), None)

    def find(self, tensors: list[Tensor], grad: bool) -> _Traced | None:
        """The trace for a call with these tensors; None where the function is to be called as it is."""
        try:
            return self._find(len(tensors), tensors, [], grad)
        except _TraceFailed:
            return None

    def _find(self, shape: Any, tensors: list[Tensor], floats: list[float], grad: bool) -> _Traced | None:
        """The record for these arguments; None where the function is to be called as it is."""
        arrays = [t._array for t in tensors]
        device = device_of(arrays[0]) if BACKENDS and arrays else CPU
        key = (shape, grad, device, *[(a.shape, a.dtype.num) for a in arrays], *[t.requires_grad for t in tensors],
               *floats)  # fmt: skip
        try:
            found = self._ready.get(key, UNKNOWN)
        except TypeError:  # An argument that cannot be hashed could be anything the next time.
            return None
        if found is UNKNOWN:
            with _TURN:
                needs = tuple(grad and t.requires_grad for t in tensors)
                found = self._trace(shape, tensors, floats, needs, grad, device)
            if len(self._ready) >= _READY:
                self._ready.clear()
            self._ready[key] = found
        if found is not None and found.captured and grad:
            if found.needs != tuple(t._requires_grad for t in found.captured):
                return None
        return found  # type: ignore[no-any-return]

    def _trace(
        self, shape: Any, tensors: list[Tensor], floats: list[float], needs: tuple[bool, ...], grad: bool,
        device: Device,
    ) -> _Traced | None:  # fmt: skip
        if not tensors or any(t._array.size == 0 for t in tensors) or not kernel.available():
            return None
        structure, sizes = size_classes([t._array.shape for t in tensors])
        dtypes = tuple(t._array.dtype for t in tensors)
        key = (shape, structure, dtypes, needs, grad, device)
        if key not in self._structures:
            count = len(sizes)

            def run(symbols: tuple[Any, ...]) -> tuple[Any, Callable[[], _Traced]]:
                return self._run(shape, structure, dtypes, needs, grad, device, count, symbols)

            if len(self._structures) >= _READY:
                self._structures.pop(next(iter(self._structures)))
            self._structures[key] = Variants(run)
        variants = self._structures[key]
        if variants is None:
            return None
        try:
            return variants.find((*sizes, *floats))
        except NotFusable as reason:
            self._structures[key] = None
            self._warn(str(reason))
        except Exception as error:
            raise _TraceFailed(key, error) from error
        return None

    def _plain(self, failed: _TraceFailed, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The function's own error is its own; if only the trace has failed, it is not tried again."""
        made = self.function(*args, **options)
        self._structures[failed.key] = None
        self._warn(f"tracing it failed: {type(failed.error).__name__}: {failed.error}")
        return made

    def _run(
        self, shape: Any, structure: Any, dtypes: Any, needs: Any, grad: bool, device: Device, count: int,
        symbols: tuple[Any, ...],
    ) -> tuple[Any, Callable[[], _Traced]]:  # fmt: skip
        """Run the function on stand-ins."""
        values = [leaf("input", i, symbolic_shape(s, symbols), d)
                  for i, (s, d) in enumerate(zip(structure, dtypes, strict=True))]  # fmt: skip
        stand_ins = [stand_in(TracedValue(v, device), need) for v, need in zip(values, needs, strict=True)]
        numbers = [symbol(i, symbols[i]) for i in range(count, len(symbols))]
        args, options = (stand_ins, {}) if shape.__class__ is int else rebuild(shape, iter(stand_ins), iter(numbers))
        executor = self.tracer(len(values), STATE.mode)
        executor.device = device
        with changed_mode(executor=executor, grad=grad, autocast=None):
            result = self.function(*args, **options)
            made: list[Tensor] = []
            numbers_made: list[float] = []
            result_shape = flatten(result, made, numbers_made)
            if not made or numbers_made or not only_tensors(result_shape):
                raise NotFusable("it returns something other than tensors")
            outputs = [executor.value(t) for t in made]
        captured = executor.captured
        inputs = [*values, *executor.captured_values()]
        all_needs = [*needs, *(grad and t._requires_grad for t in captured)]

        def symbols_of(shapes: Sequence[Any], given: tuple[float, ...]) -> tuple[Any, ...]:
            return (*size_classes(shapes[: len(values)])[1], *given)

        def build() -> _Traced:
            made = FusedRecord(self.name, inputs, outputs, all_needs, symbols_of)
            return _Traced(made, captured, result_shape, in_order)

        outside, in_order = tuple(_identity(t) for t in captured), executor.layouts.asked
        return (signature(outputs), outside, repr(result_shape), in_order), build

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            code = getattr(self.function, "__code__", None)
            where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
            warnings.warn(f"fused: {self.name}{where} runs as plain Python, because {reason}", stacklevel=4)

    # -- looking inside

    def traced(self, *args: Any, **options: Any) -> FusedRecord:
        """The record that a call with these arguments would use."""
        tensors: list[Tensor] = []
        floats: list[float] = []
        shape = flatten((args, options), tensors, floats)
        if not options and all(a.__class__ is Tensor for a in args):
            shape = len(args)
        try:
            found = self._find(shape, tensors, floats, current().grad)
        except _TraceFailed as failed:
            raise failed.error from None
        if found is None:
            raise NotFusable(f"fused: {self.name} runs as plain Python for these arguments")
        return found.record

    def program(self, *args: Any, **options: Any) -> str:
        """The steps of a call with these arguments, forward and (if a gradient is wanted) backward, as text."""
        fused = self.traced(*args, **options)
        parts = [fused.forward.describe()]
        if fused.backward is not None:
            kept = ", ".join(f"{v.step.name} {v.spec}" for v in fused.hidden) or "nothing"
            parts += [f"kept for the gradient beside inputs and outputs: {kept}", fused.backward.describe()]
        return "\n".join(parts)

    def explain(self) -> str:
        """The records made so far, as text."""
        count = sum(v is not None for v in self._ready.values())
        plain = sum(v is None for v in self._structures.values())
        lines = [f"{self.name}: {len(self._structures)} structures, traced {self.traces} times, "
                 f"{count} sets of arguments"]  # fmt: skip
        lines += [f"{plain} of the structures run as plain Python"] if plain else []
        seen: list[FusedRecord] = []
        for found in self._ready.values():
            if found is not None and not any(found.record is r for r in seen):
                seen.append(found.record)
        for fused in seen:
            lines.append(fused.forward.describe())
            if fused.backward is not None:
                lines.append(fused.backward.describe())
        return "\n".join(lines)


def _identity(t: Tensor) -> Any:
    """The key of a tensor from outside: its identity, or the content of a small constant."""
    if not t._requires_grad and t._array.size <= 64:
        return (t._array.shape, t._array.dtype.char, t._array.tobytes())
    return id(t)


@overload
def fused(function: Callable[..., Any]) -> Fused: ...
@overload
def fused() -> Callable[[Callable[..., Any]], Fused]: ...


def fused(function: Callable[..., Any] | None = None) -> Any:
    """Decorator: run a pure function of tensors as a few native loops, and as one node of the graph.

    The function is traced once for each structure of its arguments (dtypes, ranks, which sizes are equal or 1); tensors
    it takes from outside are looked up then. `fn.program(*args)` shows what becomes of it.
    """
    return fused if function is None else Fused(function)

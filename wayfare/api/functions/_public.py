"""How a public function is made from an op record, and how it becomes a method.

`@method` also makes the function a method of Tensor; `inplace=True` adds the form with an underscore that writes its
result into the tensor. Arguments are sorted out here (promotion, numbers, arrays); the op sees tensors of one dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from wayfare.api.functions._guard import tensor_advice
from wayfare.core.constant import constant
from wayfare.core.dispatch import apply, apply1, apply2
from wayfare.core.dlpack import type_name
from wayfare.core.errors import ArgumentTypeError, DTypeError
from wayfare.core.inplace import write_in_place
from wayfare.core.mode import STATE
from wayfare.core.native import as_op, method_of
from wayfare.core.op import REGISTRY, Op
from wayfare.core.quiet import COMPLAINTS
from wayfare.core.spec import NARROW, DType, bool_, default_dtype, float32, promote_operands, scalar_dtype
from wayfare.core.stand_in import FAST_PATHS, StandIn
from wayfare.core.tensor import Tensor, to_tensor
from wayfare.core.write_clock import note_write

F = TypeVar("F", bound=Callable[..., Any])

# Method name → function; `wayfare.cli.stubs` writes the type stub of Tensor from this.
METHODS: dict[str, Callable[..., Any]] = {}
PROPERTIES: list[str] = []

_F32 = np.dtype("float32")
_F64 = np.dtype("float64")
_NUMBERS = (int, float, bool, np.generic)
OPERANDS = (Tensor, np.ndarray, *_NUMBERS)
_CAST = REGISTRY["cast"]
_SUB = REGISTRY["sub"]
_ARITHMETIC = (REGISTRY["add"], _SUB, REGISTRY["mul"], REGISTRY["div"])


@overload
def method(function: F) -> F: ...
@overload
def method(*, name: str | None = None, inplace: bool = False) -> Callable[[F], F]: ...


def method(function: Any = None, *, name: str | None = None, inplace: bool = False) -> Any:
    """Make a function a method of Tensor as well (its first parameter is the tensor)."""

    def install(f: F) -> F:
        own = name or f.__name__
        add_method(own, f)
        if inplace:
            add_method(own + "_", in_place_form(f, own))
        return f

    return install if function is None else install(function)


def add_method(name: str, function: Callable[..., Any]) -> None:
    """Set a method on Tensor."""
    METHODS[name] = function
    setattr(Tensor, name, method_of(function))


def named(function: F, name: str, doc: str) -> F:
    """A made function with the name and text that users see."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def alias(name: str, function: Callable[..., Any], of: str = "") -> Callable[..., Any]:
    """A second name for a function, its method and its in-place form (those of `of`, or of the function's own name)."""
    add_method(name, function)
    add_method(name + "_", getattr(Tensor, (of or function.__name__) + "_"))
    return function


def giving_way(function: Callable[[Any, Any], Tensor], reverse: bool = False) -> Callable[[Any, Any], Any]:
    """An operator from a function. It returns NotImplemented for other types, so that Python asks the other operand."""

    def call(self: Tensor, other: Any) -> Any:
        if not isinstance(other, OPERANDS):
            return NotImplemented
        return function(other, self) if reverse else function(self, other)

    return call


def add_property(name: str, getter: Callable[[Tensor], Any]) -> None:
    """Set a property on Tensor."""
    PROPERTIES.append(name)
    setattr(Tensor, name, property(getter))


def in_place_form(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`name_(self, ...)`: compute as usual, write the result into `self`, return `self`."""

    def write(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return write_in_place(self, name + "_", lambda: function(self, *args, **options))

    write.__name__ = write.__qualname__ = name + "_"
    write.__doc__ = f"In-place form of `{name}`: the tensor itself is changed and returned."
    write.__module__ = function.__module__
    # Its signature is that of the function.
    write.__wrapped__ = function  # type: ignore[attr-defined]
    return write


def as_method(write: Callable[..., Any], like: Callable[..., Any]) -> Callable[..., Any]:
    """Give a faster form the name, text and signature of the general one."""
    for part in ("__name__", "__qualname__", "__doc__", "__module__", "__wrapped__"):
        setattr(write, part, getattr(like, part))
    return write


# -- promotion ----------------------------------------------------------------------------------------------------


def operand(value: Any, op: str) -> Any:
    """A tensor, or a Python number left as it is."""
    if isinstance(value, (Tensor, int, float)):
        return value
    if isinstance(value, np.ndarray):
        return to_tensor(value, op=op)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, complex):
        scalar_dtype(value)
    raise ArgumentTypeError(f"{op}: expected a tensor or a number, not {type_name(value)}",
                            fix=tensor_advice(value))  # fmt: skip


def need_tensors(op: str, rule: str, *values: Any) -> None:
    """Refuse plain numbers where PyTorch does: `rule` says which operands must be tensors: all, first or any."""
    given = [isinstance(v, (Tensor, np.ndarray)) for v in values]
    if not (all(given) if rule == "all" else given[0] if rule == "first" else any(given)):
        which = {"all": "every operand", "first": "the first operand", "any": "at least one operand"}[rule]
        shown = ", ".join(type(v).__name__ for v in values)
        raise ArgumentTypeError(f"{op}: {which} must be a tensor, not ({shown})",
                                fix=tensor_advice(values[given.index(False)]))  # fmt: skip


def common_dtype(op: str, values: Sequence[Any], *, to_float: bool = False) -> DType:
    """PyTorch's result type of tensors and numbers."""
    full = [v.dtype for v in values if isinstance(v, Tensor) and v.ndim > 0]
    zero_dim = [v.dtype for v in values if isinstance(v, Tensor) and v.ndim == 0]
    numbers = [scalar_dtype(v) for v in values if not isinstance(v, Tensor)]
    result = promote_operands(full, zero_dim, numbers)
    return default_dtype() if to_float and result.rank < 2 else result


def as_dtype_of(value: Any, dtype: DType) -> Tensor:
    """A tensor of the given dtype from a tensor (recorded cast) or a number."""
    if isinstance(value, Tensor):
        if value.dtype is dtype:
            return value
        return apply(_CAST, (value,), {"dtype": dtype})  # type: ignore[no-any-return]
    return constant(value, dtype.numpy)


def refuse_bools(values: Sequence[Any]) -> None:
    """A difference refuses bools, whichever side they are on."""
    if any(v.dtype is bool_ if isinstance(v, Tensor) else isinstance(v, bool) for v in values):
        raise DTypeError("sub: does not take bool", fix="To turn a mask over use ~ or logical_not, for the difference "
                         "of two use ^; for numbers convert with .int().")  # fmt: skip


def _too_fine(value: Any, dtype: DType) -> bool:
    """Is this a number that a narrow float would round or could not hold?"""
    if isinstance(value, Tensor):
        return False
    with np.errstate(over="ignore"):
        return bool(float(dtype.numpy.type(value)) != value)


def promoted(op: Op, values: Sequence[Any], attrs: dict[str, Any] | None = None) -> Tensor:
    """Apply an elementwise op after bringing all operands to their common dtype."""
    values = [operand(v, op.name) for v in values]
    if op is _SUB:
        refuse_bools(values)
    dtype = common_dtype(op.name, values, to_float=op.promotion == "float")
    # Arithmetic of narrow floats with a number takes the number as it is: in float16 `x / 100_000` is not x / inf.
    if dtype in NARROW and op in _ARITHMETIC and any(_too_fine(v, dtype) for v in values):
        return as_dtype_of(apply(op, tuple(as_dtype_of(v, float32) for v in values), attrs or {}), dtype)
    tensors = tuple(as_dtype_of(v, dtype) for v in values)
    if dtype.kind not in op.kinds:
        op.infer(*(t.spec for t in tensors), **(attrs or {}))
    return apply(op, tensors, attrs or {})  # type: ignore[no-any-return]


# -- functions from records -----------------------------------------------------------------------------------------


def unary(op: Op, doc: str, *, name: str | None = None, inplace: bool = True) -> Callable[[Tensor], Tensor]:
    """The public function (and method) of an elementwise op of one input."""
    floats_only = op.promotion == "float" or op.kinds != "biuf"

    def call(input: Tensor) -> Tensor:
        if input.__class__ is Tensor and (not floats_only or input._array.dtype is _F32 or input._array.dtype is _F64):
            return apply1(op, input)
        if input.__class__ is StandIn and op in FAST_PATHS:
            made = FAST_PATHS[op](input)
            if made is not NotImplemented:
                return made  # type: ignore[no-any-return]
        return promoted(op, (input,))

    as_op(call, op, 1, floats_only=floats_only)
    return publish(call, name or op.name, doc, write_unary(op, call, name or op.name) if inplace else None)


def write_unary(op: Op, function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """The in-place form of an op of one input: straight into the memory when nothing is recorded."""
    general = in_place_form(function, name)
    if not isinstance(op.forward, np.ufunc):
        return general
    ufunc = op.forward

    def write(self: Tensor) -> Tensor:
        if may_overwrite(self, self):
            array = self._array
            try:
                if array.size < op.large_from or not op.large.into(array, array):
                    # NumPy 2.4's own negative with an output that is not contiguous reads the wrong elements where the
                    # input's stride is 4 (of 4 bytes each) or 8 (of 8).
                    if ufunc is np.negative and not array.flags.c_contiguous:
                        array[...] = ufunc(array)
                    else:
                        ufunc(array, array)
            except COMPLAINTS:
                pass  # NumPy complains of numbers when all of them are written.
            note_write(array)
            return self
        return general(self)  # type: ignore[no-any-return]

    return as_method(write, general)


def binary(
    op: Op, doc: str, *, name: str | None = None, inplace: bool = True, tensors: str = "any"
) -> Callable[[Any, Any], Tensor]:
    """The public function (and method) of an elementwise op of two inputs; `tensors` as in `need_tensors`."""
    floats_only = op.promotion == "float" or op.kinds != "biuf"

    def call(input: Tensor | float, other: Tensor | float) -> Tensor:
        if input.__class__ is Tensor and other.__class__ is Tensor:
            dtype = input._array.dtype
            if dtype is other._array.dtype and (not floats_only or dtype is _F32 or dtype is _F64):
                return apply2(op, input, other)
        elif input.__class__ is StandIn and op in FAST_PATHS:
            made = FAST_PATHS[op](input, other)
            if made is not NotImplemented:
                return made  # type: ignore[no-any-return]
        if tensors:
            need_tensors(name or op.name, tensors, input, other)
        return promoted(op, (input, other))

    as_op(call, op, 2, floats_only=floats_only)
    write = write_binary(op, call, (name or op.name) + "_") if inplace else None
    return publish(call, name or op.name, doc, write)


def write_binary(op: Op, function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """The in-place form of an op of two inputs: straight into the memory when nothing is recorded."""
    ufunc = op.forward if isinstance(op.forward, np.ufunc) else None
    general = in_place_form(function, name[:-1])

    def write(self: Tensor, *args: Any, **options: Any) -> Tensor:
        if ufunc is not None and not options and len(args) == 1 and may_overwrite(self, args[0]):
            array, other = self._array, args[0]
            value = other._array if isinstance(other, Tensor) else constant(other, array.dtype)._array
            try:
                if array.size < op.large_from or not op.large.into(array, array, value):
                    ufunc(array, value, array)
                written = True
            except COMPLAINTS:
                written = True  # NumPy complains of numbers when all of them are written.
            except (ValueError, TypeError):
                written = False  # A shape or dtype that does not fit: the general way has the sentence for it.
            if written:
                note_write(array)
                return self
        return general(self, *args, **options)  # type: ignore[no-any-return]

    return as_method(write, general)


def may_overwrite(t: Tensor, other: Any) -> bool:
    """Can `t op= other` write t's memory directly: nothing to record, same dtype, ops run eagerly?"""
    mode = STATE.mode
    if mode is not None and (not mode.executor.works_on_arrays or mode.anomaly or mode.watcher is not None):
        return False
    if t._array.__class__ is not np.ndarray or not t._array.flags.writeable or t._extras is not None:
        return False
    dtype = t._array.dtype
    if isinstance(other, Tensor):
        if other._array.dtype is not dtype or not (dtype is _F32 or dtype is _F64):
            return False
        if other._array.ndim > t._array.ndim:
            return False
    elif not ((other.__class__ is float or other.__class__ is int) and (dtype is _F32 or dtype is _F64)):
        return False
    if mode is not None and not mode.grad:
        return True
    # A view made under no_grad has no history, but the tensor it looks into may have one.
    if t.requires_grad or (t._view is not None and t._view.base.requires_grad):
        return False
    return not (isinstance(other, Tensor) and other.requires_grad)


def operator(op: Op, *, reverse: bool = False, commutes: bool = False) -> Callable[[Any, Any], Tensor]:
    """`x + y` for an op of two inputs; like `binary`, but gives way to the other operand's own operator.

    Where the order does not matter, a number comes last, as in PyTorch: the graph lists the tensor first.
    """
    number_first = reverse and not commutes
    floats_only = op.promotion == "float" or op.kinds != "biuf"

    def call(self: Tensor, other: Any) -> Any:
        kind = other.__class__
        if kind is Tensor and self.__class__ is Tensor:
            dtype = self._array.dtype
            if dtype is other._array.dtype and (not floats_only or dtype is _F32 or dtype is _F64):
                return apply2(op, other, self) if reverse else apply2(op, self, other)
        elif (kind is float or kind is int) and self.__class__ is Tensor:
            dtype = self._array.dtype
            if dtype is _F32 or dtype is _F64:
                number = constant(other, dtype)
                return apply2(op, number, self) if number_first else apply2(op, self, number)
        if not isinstance(other, OPERANDS):
            return NotImplemented
        first = reverse if isinstance(other, Tensor) else number_first
        return promoted(op, (other, self) if first else (self, other))

    return as_op(
        call, op, 2, floats_only=floats_only, numbers=True, reverse=reverse, number_first=number_first
    )  # fmt: skip


def publish(
    call: Callable[..., Tensor], name: str, doc: str, write: Callable[..., Tensor] | None
) -> Callable[..., Tensor]:
    """Give a made function its name and text, and install it (and its in-place form) as methods."""
    named(call, name, doc)
    call.checks_operands = True  # type: ignore[attr-defined]
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    call.__module__ = caller.f_globals["__name__"] if caller is not None else __name__
    add_method(name, call)
    if write is not None:
        write.__name__ = write.__qualname__ = name + "_"
        write.__module__ = call.__module__
        add_method(name + "_", write)
    return call

"""How a public function is made from an op record, and how it becomes a method.

`@method` also makes the function a method of Tensor; `inplace=True` adds the form with an underscore that writes its
result into the tensor. Arguments are sorted out here (promotion, numbers, arrays); the op sees tensors of one dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from wayfare.eager import apply, apply1, apply2
from wayfare.errors import ArgumentTypeError
from wayfare.inplace import check_writable, move_into
from wayfare.op import REGISTRY, Op
from wayfare.spec import DType, default_dtype, promote_operands, scalar_dtype
from wayfare.tensor import Tensor, constant, to_tensor

F = TypeVar("F", bound=Callable[..., Any])

# Method name → function; `wayfare.testing.stubs` writes the type stub of Tensor from this.
METHODS: dict[str, Callable[..., Any]] = {}

_FLOATS = frozenset((np.dtype("float32"), np.dtype("float64"), np.dtype("float16")))
_NUMBERS = (int, float, bool, np.generic)
OPERANDS = (Tensor, np.ndarray, *_NUMBERS)
_CAST = REGISTRY["cast"]


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
            add_method(own + "_", in_place_form(f, own + "_"))
        return f

    return install if function is None else install(function)


def add_method(name: str, function: Callable[..., Any]) -> None:
    """Set a method on Tensor."""
    METHODS[name] = function
    setattr(Tensor, name, function)


def in_place_form(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`name(self, ...)`: compute as usual, write the result into `self`, return `self`."""

    def write(self: Tensor, *args: Any, **options: Any) -> Tensor:
        check_writable(self, name)
        return move_into(self, function(self, *args, **options), name)

    write.__name__ = write.__qualname__ = name
    write.__doc__ = f"In-place form of `{name[:-1]}`: the tensor itself is changed and returned."
    write.__module__ = function.__module__
    parameters = list(inspect.signature(function).parameters.values())
    write.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameters[0].replace(name="self"), *parameters[1:]], return_annotation="Tensor"
    )
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
    raise ArgumentTypeError(f"{op}: expected a tensor or a number, not {type(value).__name__}",
                            fix="Make a tensor of it with wf.tensor(...).")  # fmt: skip


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


def promoted(op: Op, values: Sequence[Any], attrs: dict[str, Any] | None = None) -> Tensor:
    """Apply an elementwise op after bringing all operands to their common dtype."""
    values = [operand(v, op.name) for v in values]
    dtype = common_dtype(op.name, values, to_float=op.promotion == "float")
    tensors = tuple(as_dtype_of(v, dtype) for v in values)
    if dtype.numpy.kind not in op.kinds:
        op.infer(*(t.spec for t in tensors), **(attrs or {}))
    return apply(op, tensors, attrs or {})  # type: ignore[no-any-return]


# -- functions from records -----------------------------------------------------------------------------------------


def unary(op: Op, doc: str, *, name: str | None = None, inplace: bool = True) -> Callable[[Tensor], Tensor]:
    """The public function (and method) of an elementwise op of one input."""
    floats_only = op.promotion == "float" or op.kinds != "biuf"

    def call(input: Tensor) -> Tensor:
        if input.__class__ is Tensor and (not floats_only or input._array.dtype in _FLOATS):
            return apply1(op, input)
        return promoted(op, (input,))

    return _named(call, name or op.name, doc, inplace)


def binary(op: Op, doc: str, *, name: str | None = None, inplace: bool = True) -> Callable[[Any, Any], Tensor]:
    """The public function (and method) of an elementwise op of two inputs."""
    floats_only = op.promotion == "float" or op.kinds != "biuf"

    def call(input: Tensor | float, other: Tensor | float) -> Tensor:
        if input.__class__ is Tensor and other.__class__ is Tensor:
            dtype = input._array.dtype  # type: ignore[union-attr]
            if dtype is other._array.dtype and (not floats_only or dtype in _FLOATS):  # type: ignore[union-attr]
                return apply2(op, input, other)  # type: ignore[arg-type]
        return promoted(op, (input, other))

    return _named(call, name or op.name, doc, inplace)


def operator(op: Op, *, reverse: bool = False) -> Callable[[Any, Any], Tensor]:
    """`x + y` for an op of two inputs; like `binary`, but gives way to the other operand's own operator."""
    floats_only = op.promotion == "float" or op.kinds != "biuf"

    def call(self: Tensor, other: Any) -> Any:
        kind = other.__class__
        if kind is Tensor and self.__class__ is Tensor:
            dtype = self._array.dtype
            if dtype is other._array.dtype and (not floats_only or dtype in _FLOATS):
                return apply2(op, other, self) if reverse else apply2(op, self, other)
        elif (kind is float or kind is int) and self.__class__ is Tensor:
            dtype = self._array.dtype
            if dtype in _FLOATS:
                number = constant(other, dtype)
                return apply2(op, number, self) if reverse else apply2(op, self, number)
        if not isinstance(other, OPERANDS):
            return NotImplemented
        return promoted(op, (other, self) if reverse else (self, other))

    return call


def _named(call: Callable[..., Tensor], name: str, doc: str, inplace: bool) -> Callable[..., Tensor]:
    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    call.__module__ = caller.f_globals["__name__"] if caller is not None else __name__
    method(name=name, inplace=inplace)(call)
    return call

"""Dtypes and shapes; broadcasting and type promotion."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, SupportsIndex, overload

import ml_dtypes
import numpy as np

from wayfare.core.errors import ArgumentTypeError, DTypeError, IndexRangeError, NoSuchDTypeError, ShapeError

Shape = tuple[int, ...]


class DType:
    """An element type, such as `wf.float32`. There is one object for each type, so `is` compares them."""

    __slots__ = ("is_floating_point", "itemsize", "kind", "name", "numpy", "rank", "short")

    def __init__(self, name: str, short: str, rank: int) -> None:
        self.name = name
        self.short = short
        # The category for PyTorch's promotion: 0 bool, 1 integers, 2 floats.
        self.rank = rank
        self.numpy: np.dtype[Any] = np.dtype(name)
        # As NumPy's kinds: b bool, i and u integers, f floats. (NumPy's own kind of bfloat16 is another, see BFLOAT16.)
        self.kind: str = "f" if rank == 2 else self.numpy.kind
        self.itemsize = self.numpy.itemsize
        self.is_floating_point = rank == 2

    @property
    def is_complex(self) -> bool:
        """Always False: complex numbers are out of scope."""
        return False

    @property
    def is_signed(self) -> bool:
        """Can it hold a negative number?"""
        return self.kind in "if"

    def __repr__(self) -> str:
        return f"wayfare.{self.name}"

    def __reduce__(self) -> str:
        return self.name if self.name != "bool" else "bool_"


bool_ = DType("bool", "bool", 0)
uint8 = DType("uint8", "u8", 1)
int8 = DType("int8", "i8", 1)
int16 = DType("int16", "i16", 1)
int32 = DType("int32", "i32", 1)
int64 = DType("int64", "i64", 1)
float16 = DType("float16", "f16", 2)
# The import of ml_dtypes has told NumPy this name.
bfloat16 = DType(np.dtype(ml_dtypes.bfloat16).name, "bf16", 2)
float32 = DType("float32", "f32", 2)
float64 = DType("float64", "f64", 2)

DTYPES: Final = (bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64)
OF_NUMPY: Final[dict[np.dtype[Any], DType]] = {d.numpy: d for d in DTYPES}
_BY_NAME: Final[dict[Any, DType]] = {
    **{d.name: d for d in DTYPES},
    "half": float16, "float": float32, "double": float64, "int": int32, "long": int64, "short": int16,
    bool: bool_, int: int64, float: float64,
}  # fmt: skip

BFLOAT16: Final = bfloat16.numpy
# The NumPy kinds of floats among our dtypes. NumPy gives bfloat16, which is not its own, the kind V ("void"); no other
# dtype here has that kind.
FLOAT_KINDS: Final = "fV"
# The floats that are too narrow to compute in: ops compute in float32 and round the result once.
NARROW: Final = frozenset({float16, bfloat16})
NARROW_ARRAYS: Final = frozenset({float16.numpy, bfloat16.numpy})
# Their characters: for hot paths, because hashing a dtype takes longer.
NARROW_CHARS: Final = float16.numpy.char + bfloat16.numpy.char


def limits_of(dtype: DType) -> Any:
    """The limits of a floating dtype, as `np.finfo` has them."""
    return ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]


def widened(array: Any) -> Any:
    """A bfloat16 array as float32; any other as it is."""
    return array.astype(np.float32) if array.dtype is BFLOAT16 else array


def narrowed(array: Any, dtype: np.dtype[Any]) -> Any:
    """What was computed in float32 for a bfloat16 result (`dtype`), rounded; any other as it is."""
    if dtype is not BFLOAT16 or array.dtype is BFLOAT16:
        return array
    return (np.asarray(array) if isinstance(array, np.generic) else array).astype(BFLOAT16)


_default_dtype: list[DType] = [float32]


def default_dtype() -> DType:
    """The floating dtype of new tensors made from Python floats."""
    return _default_dtype[0]


def change_default_dtype(dtype: DType) -> None:
    """Set the floating dtype of new tensors (behind `wf.set_default_dtype`)."""
    if not dtype.is_floating_point:
        raise ArgumentTypeError(f"set_default_dtype: {dtype} is not a floating-point dtype",
                                fix="Use wf.float16, wf.bfloat16, wf.float32 or wf.float64.")  # fmt: skip
    _default_dtype[0] = dtype


def as_dtype(value: Any, *, op: str = "dtype") -> DType:
    """A DType from a DType, a NumPy dtype, a name such as "float32", or `bool`, `int`, `float`."""
    if isinstance(value, DType):
        return value
    try:
        found = _BY_NAME.get(value)
        if found is None:
            found = OF_NUMPY.get(np.dtype(value).newbyteorder("="))
    except TypeError:
        found = None
    if found is not None:
        return found
    text = getattr(value, "name", None) or str(value)
    if "complex" in text:
        raise DTypeError(f"{op}: complex numbers ({text}) are not supported by Wayfare",
                         fix="Keep the real and imaginary parts as two real tensors.")  # fmt: skip
    raise NoSuchDTypeError(f"{op}: {text!r} is not a dtype Wayfare has",
                           fix="Its dtypes are " + ", ".join(d.name for d in DTYPES) + ".")  # fmt: skip


class Size(tuple[int, ...]):
    """The shape of a tensor: a tuple that also counts its elements."""

    __slots__ = ()

    def numel(self) -> int:
        """How many elements a tensor of this shape has."""
        return math.prod(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Size: ...

    def __getitem__(self, index: SupportsIndex | slice) -> int | Size:
        found = tuple.__getitem__(self, index)
        return Size(found) if isinstance(found, tuple) else found

    def __add__(self, other: Any) -> Any:
        return Size(tuple.__add__(self, tuple(other)))

    def __repr__(self) -> str:
        return f"wayfare.Size({list(self)})"


class Spec:
    """Shape and dtype of an array: the inputs and outputs of shape rules."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Iterable[int], dtype: DType) -> None:
        self.shape: Shape = tuple(shape)
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype.short}[{','.join(map(str, self.shape))}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self.shape == other.shape and self.dtype is other.dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype.name))


def spec_of(array: Any) -> Spec:
    """The Spec of a NumPy array."""
    return Spec(array.shape, OF_NUMPY[array.dtype])


def broadcast(op: str, *shapes: Shape) -> Shape:
    """The common shape of several shapes by broadcasting; a ShapeError if they do not broadcast."""
    width = max(map(len, shapes), default=0)
    out = [1] * width
    for shape in shapes:
        for axis, size in enumerate(shape, width - len(shape)):
            if size != 1:
                if out[axis] != 1 and out[axis] != size:
                    raise ShapeError(_broadcast_sentence(op, shapes, axis - width), fix=_broadcast_fix(shapes))
                out[axis] = size
    return tuple(out)


def _broadcast_sentence(op: str, shapes: Sequence[Shape], axis: int) -> str:
    shown = " and ".join(str(list(s)) for s in shapes)
    sizes = " and ".join(str(s[axis]) for s in shapes if len(s) >= -axis)
    return f"{op}: shapes {shown} do not broadcast, sizes {sizes} differ at dimension {axis}"


def _broadcast_fix(shapes: Sequence[Shape]) -> str:
    """Advice for the usual mistakes: a vector that should be a column, or a transposed matrix."""
    if len(shapes) == 2:
        a, b = sorted(shapes, key=len)
        if len(a) == 1 and len(b) == 2 and a[0] == b[0]:
            return "Did you mean to add a dimension with unsqueeze(-1), to make it a column?"
        if len(a) == len(b) == 2 and a == b[::-1]:
            return "Did you mean to transpose one of them with .T?"
    return "Sizes must be equal, or one of them 1; reshape or unsqueeze one side."


def promote(a: DType, b: DType) -> DType:
    """The dtype that holds both, by PyTorch's table: a float beats every integer."""
    if a is b:
        return a
    if a.rank == 2 or b.rank == 2:
        if a.rank != b.rank:
            return a if a.rank == 2 else b
        if a.itemsize == b.itemsize:  # bfloat16 and float16: neither holds the other
            return float32
        return a if a.itemsize > b.itemsize else b
    return OF_NUMPY[np.promote_types(a.numpy, b.numpy)]


def common_of_arrays(dtypes: Sequence[Any]) -> np.dtype[Any]:
    """NumPy's common dtype of dtypes and Python numbers, and PyTorch's where one is bfloat16, which NumPy promotes
    otherwise."""
    if BFLOAT16 not in dtypes:
        return np.result_type(*dtypes)
    known = [OF_NUMPY[d] for d in dtypes if isinstance(d, np.dtype)]
    found = known[0]
    for other in known[1:]:
        found = promote(found, other)
    return found.numpy


def scalar_dtype(value: Any) -> DType:
    """The dtype of a Python number."""
    if isinstance(value, (bool, np.bool_)):
        return bool_
    if isinstance(value, (int, np.integer)):
        return int64
    if isinstance(value, (float, np.floating)):
        return default_dtype()
    if isinstance(value, (complex, np.complexfloating)):
        raise DTypeError("complex numbers are not supported by Wayfare",
                         fix="Keep the real and imaginary parts as two real tensors.")  # fmt: skip
    raise ArgumentTypeError(f"expected a tensor or a number, not {type(value).__name__}")


def promote_operands(full: Iterable[DType], zero_dim: Iterable[DType], scalars: Iterable[DType]) -> DType:
    """PyTorch's result type: tensors with dimensions decide; 0-dim tensors, then Python numbers, count only
    when they are of a higher category (bool < integer < float)."""
    result: DType | None = None
    for group in (full, zero_dim, scalars):
        own: DType | None = None
        for dtype in group:
            own = dtype if own is None else promote(own, dtype)
        if own is None:
            continue
        if result is None:
            result = own
        elif own.rank > result.rank:
            result = promote(result, own)
    assert result is not None
    return result


def normal_dim(op: str, dim: Any, ndim: int, whose: str = "a tensor") -> int:
    """A dimension as a non-negative number; an IndexRangeError if there is no such dimension."""
    try:
        index: int = dim.__index__()
    except AttributeError:
        raise ArgumentTypeError(f"{op}: dim must be an int, not {type(dim).__name__}") from None
    limit = max(ndim, 1)
    if not -limit <= index < limit:
        raise IndexRangeError(f"{op}: dim {index} is out of range for {whose} of {ndim} dimensions",
                              fix=f"It can be from {-limit} to {limit - 1}.")  # fmt: skip
    return index + limit if index < 0 else index


def normal_dims(op: str, dims: Any, ndim: int) -> tuple[int, ...]:
    """Several dimensions, sorted and non-negative; None or () means all of them. Repeats are an error."""
    if dims is None:
        return tuple(range(ndim))
    if isinstance(dims, (tuple, list)):
        out = tuple(normal_dim(op, d, ndim) for d in dims)
        if not out:
            return tuple(range(ndim))
    else:
        out = (normal_dim(op, dims, ndim),)
    if len(set(out)) != len(out):
        raise ShapeError(f"{op}: a dimension is named twice in dim={dims}")
    return () if ndim == 0 else tuple(sorted(out))

"""The tensors of a model file: dtype and shape, checked against the bytes that are there."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from wayfare.exporters.inspect.external_data import ExternalData
from wayfare.exporters.inspect.wire import Damaged

_MOST_DIMENSIONS = 64
_MOST_BYTES = 2**63 - 1
_EXTERNAL = 1
STRING = "string"


class _Kind(NamedTuple):
    """How elements of a type are stored: bits in raw bytes, or the protobuf field with a list of numbers."""

    name: str
    bits: int
    field: str
    each: int = 1  # numbers of that field per element; types of less than 8 bits are packed, one number per byte


_KINDS = {
    1: _Kind("float32", 32, "float_data"), 2: _Kind("uint8", 8, "int32_data"), 3: _Kind("int8", 8, "int32_data"),
    4: _Kind("uint16", 16, "int32_data"), 5: _Kind("int16", 16, "int32_data"), 6: _Kind("int32", 32, "int32_data"),
    7: _Kind("int64", 64, "int64_data"), 8: _Kind(STRING, 0, "string_data"), 9: _Kind("bool", 8, "int32_data"),
    10: _Kind("float16", 16, "int32_data"), 11: _Kind("float64", 64, "double_data"),
    12: _Kind("uint32", 32, "uint64_data"), 13: _Kind("uint64", 64, "uint64_data"),
    14: _Kind("complex64", 64, "float_data", 2), 15: _Kind("complex128", 128, "double_data", 2),
    16: _Kind("bfloat16", 16, "int32_data"), 17: _Kind("float8e4m3fn", 8, "int32_data"),
    18: _Kind("float8e4m3fnuz", 8, "int32_data"), 19: _Kind("float8e5m2", 8, "int32_data"),
    20: _Kind("float8e5m2fnuz", 8, "int32_data"), 21: _Kind("uint4", 4, "int32_data"),
    22: _Kind("int4", 4, "int32_data"), 23: _Kind("float4e2m1", 4, "int32_data"),
    24: _Kind("float8e8m0", 8, "int32_data"), 25: _Kind("uint2", 2, "int32_data"),
    26: _Kind("int2", 2, "int32_data"), 27: _Kind("float6e2m3", 6, "int32_data"),
    28: _Kind("float6e3m2", 6, "int32_data"),
}  # fmt: skip
_FIELDS = ("raw_data", *sorted({kind.field for kind in _KINDS.values()}))


class Weight(NamedTuple):
    """A weight of a model file: its dtype and shape, how many bytes it takes, and in which external file it is."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int
    file: str = ""  # empty: in the model file itself

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def dtype_name(number: int) -> str:
    """The name of an element type, by its number in ONNX."""
    if number not in _KINDS:
        raise Damaged(f"has the unknown element type {number}")
    return _KINDS[number].name


def weight_of(tensor: Any, external: ExternalData) -> Weight:
    """Describe a tensor, after checking that its bytes are there and as many as its shape needs."""
    shown = f"{tensor.name!r:.60}"
    kind = _KINDS.get(tensor.data_type)
    if kind is None:
        raise Damaged(f"has the unknown element type {tensor.data_type} for the weight {shown}")
    shape = tuple(tensor.dims)
    if len(shape) > _MOST_DIMENSIONS or any(n < 0 for n in shape):
        raise Damaged(f"has the impossible shape {str(list(shape[:9]))[:60]} for the weight {shown}")
    count = math.prod(shape)
    size = (count * kind.bits + 7) // 8
    if max(count, size) > _MOST_BYTES:
        raise Damaged(f"has the shape {str(list(shape))[:60]} for the weight {shown}, too large to count")
    filled = [field for field in _FIELDS if len(getattr(tensor, field))]
    if tensor.data_location == _EXTERNAL:
        if filled or kind.name == STRING:
            fault = "both in itself and in another file" if filled else "of texts in another file, where they cannot be"
            raise Damaged(f"has the weight {shown} {fault}")
        return Weight(kind.name, shape, size, external.take(tensor, size))
    possible = (kind.field,) if kind.name == STRING else ("raw_data", kind.field)
    if len(filled) > 1 or (filled and filled[0] not in possible):
        raise Damaged(f"has the weight {shown} of {kind.name} stored as {' and '.join(filled)}")
    if filled == ["raw_data"]:
        _compare(shown, "bytes", len(tensor.raw_data), size, kind, shape)
    else:
        wanted = size if 0 < kind.bits < 8 else count * kind.each
        _compare(shown, "elements", len(getattr(tensor, kind.field)), wanted, kind, shape)
    if kind.name == STRING:
        size = sum(map(len, tensor.string_data))
    return Weight(kind.name, shape, size)


def _compare(shown: str, what: str, found: int, wanted: int, kind: _Kind, shape: tuple[int, ...]) -> None:
    if found != wanted:
        raise Damaged(f"has {found:,} {what} for the weight {shown}, and {kind.name}{list(shape)} takes {wanted:,}")

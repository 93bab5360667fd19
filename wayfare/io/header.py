"""The header of a safetensors file: written, and read with distrust.

A file is eight bytes of length, a JSON object that gives each tensor a dtype, a shape and a stretch of bytes, and the
bytes. The safetensors library accepts a header that names a tensor twice, writes wrong numbers for arrays that are not
contiguous, needs them all at once, and leaves a temporary file behind when it is killed; so both directions are done
here, and the library is the referee of the tests.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError, FileFormatError

__all__ = ["CODES", "DTYPES", "Header", "Stored", "header_bytes", "read_header", "strict_json"]

# What the safetensors library accepts as well; it bounds the memory that reading a header can take.
MAX_HEADER = 100_000_000
# As many values as a header or structure may have.
MAX_VALUES = 1 << 22
_MAX_DIMENSIONS = 64
_MAX_BYTES = 2**63 - 1
METADATA = "__metadata__"

DTYPES: dict[str, wf.dtype] = {
    "BOOL": wf.bool, "U8": wf.uint8, "I8": wf.int8, "I16": wf.int16, "I32": wf.int32, "I64": wf.int64,
    "F16": wf.float16, "BF16": wf.bfloat16, "F32": wf.float32, "F64": wf.float64,
}  # fmt: skip
# By NumPy's name, which is Wayfare's and the same for either byte order.
CODES = {dtype.name: code for code, dtype in DTYPES.items()}
# Dtypes of the format that Wayfare has not.
_ELSEWHERE = {"U16", "U32", "U64", "C64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4",
              "F6_E2M3", "F6_E3M2"}  # fmt: skip


class Stored(NamedTuple):
    """One tensor of a file: how it is stored, and where its bytes begin and end after the header."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def dtype(self) -> wf.dtype:
        """The dtype it has here."""
        return DTYPES[self.code]


class Header(NamedTuple):
    """What the header of a file says: the tensors in the order they are named, the texts, where the bytes start."""

    tensors: dict[str, Stored]
    metadata: dict[str, str]
    start: int


def header_bytes(arrays: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """The header for these arrays, and the order in which their bytes must follow it."""
    # Wide elements first: then each begins at a multiple of its size, as readers that map the file wish.
    order = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    offsets, end = {}, 0
    for name in order:
        begin, end = end, end + arrays[name].nbytes
        offsets[name] = [begin, end]
    entries: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for name, array in arrays.items():
        code = CODES[array.dtype.name]
        entries[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": offsets[name]}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ArgumentError(f"save: the structure takes {len(text):,} bytes as text, over the {MAX_HEADER:,} of a file",
                            fix="Keep long lists of numbers as tensors.")  # fmt: skip
    if values_in(text) > MAX_VALUES:
        raise ArgumentError(f"save: the structure has more than the {MAX_VALUES:,} values that a file can hold",
                            fix="Keep long lists of numbers as tensors.")  # fmt: skip
    return len(text).to_bytes(8, "little") + text, order


class _NotPlain(Exception):
    """What the parser takes and we do not."""


def strict_json(text: str | bytes, what: str, most: int = MAX_VALUES) -> Any:
    """A JSON text as Python values. Names given twice, NaN and infinity, extreme depth and more values than `most` are
    refused."""
    # Counted before anything is made of it: a value of two characters takes a hundred bytes as an object.
    if values_in(text) > most:
        raise FileFormatError(f"load: {what} has more than {most:,} values")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            (twice, _), = Counter(name for name, _ in pairs).most_common(1)
            raise _NotPlain(f"names {_short(twice)} twice")
        return found

    def constant(name: str) -> Any:
        raise _NotPlain(f"has {name}, which JSON has not")

    try:
        return json.loads(text if isinstance(text, str) else text.decode(), object_pairs_hook=once,
                          parse_constant=constant)  # fmt: skip
    except _NotPlain as why:
        # Made here: an error of ours that is made inside the parser would name the parser's line.
        raise FileFormatError(f"load: {what} {why}") from None
    except RecursionError:
        raise FileFormatError(f"load: {what} is nested too deeply") from None
    except ValueError as error:
        raise FileFormatError(f"load: {what} is not JSON: {error}") from None


def values_in(text: str | bytes) -> int:
    """No fewer values than a JSON text has: each but the first comes after one of these, wherever they stand."""
    if isinstance(text, str):
        return text.count(",") + text.count("[") + text.count("{")
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def read_header(file: BinaryIO, size: int, where: str) -> Header:
    """Read and check the whole header of a file of `size` bytes. Nothing beyond it is read."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8:
        raise FileFormatError(f"load: {where} is cut off: it has {size} bytes, and a safetensors file 8 at least")
    if length > size - 8:
        raise FileFormatError(f"load: {where} is cut off or no safetensors file: it says that its header has "
                              f"{length:,} bytes, and {size - 8:,} follow")  # fmt: skip
    if length > MAX_HEADER:
        raise FileFormatError(f"load: the header of {where} has {length:,} bytes, over the limit of {MAX_HEADER:,}")
    text = file.read(length)
    if len(text) != length:
        raise FileFormatError(f"load: {where} became shorter while it was read")
    if not text.startswith(b"{"):
        raise FileFormatError(f"load: {where} is not a safetensors file: its header does not begin with '{{'")
    entries = strict_json(text, f"the header of {where}")
    metadata = _metadata(entries.pop(METADATA, {}), where)
    tensors = {name: _stored(name, entry, where) for name, entry in entries.items()}
    _check_layout(tensors, size - 8 - length, where)
    return Header(tensors, metadata, 8 + length)


def _metadata(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise FileFormatError(f"load: {METADATA} of {where} is not an object of texts")
    return value


def _stored(name: str, entry: Any, where: str) -> Stored:
    """Check one tensor's entry by itself."""
    shown = f"tensor {_short(name)} of {where}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise FileFormatError(f"load: {shown} is not described by dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        if isinstance(code, str) and code in _ELSEWHERE:
            raise FileFormatError(f"load: {shown} has dtype {code}, which Wayfare has not",
                                  fix="Convert it where the file was made.")  # fmt: skip
        raise FileFormatError(f"load: {shown} has an unknown dtype, {_short(code)}")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise FileFormatError(f"load: {shown} has an impossible shape, {_short(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FileFormatError(f"load: {shown} has impossible data_offsets, {_short(offsets)}")
    width = DTYPES[code].itemsize
    if math.prod(max(size, 1) for size in shape) * width > _MAX_BYTES:
        raise FileFormatError(f"load: {shown} has a shape too large to count, {_short(shape)}")
    begin, end = offsets
    if math.prod(shape) * width != end - begin:
        raise FileFormatError(f"load: {shown} has shape {_short(shape)} of {code}, {math.prod(shape) * width:,} bytes, "
                              f"but data_offsets of {end - begin:,}")  # fmt: skip
    return Stored(code, tuple(shape), begin, end)


def _check_layout(tensors: dict[str, Stored], size: int, where: str) -> None:
    """The stretches of bytes must follow each other without a gap or overlap, and end with the file."""
    reached, before = 0, "the header"
    for name, stored in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if stored.end > size:
            raise FileFormatError(f"load: {where} is cut off: tensor {_short(name)} ends at byte {stored.end:,} of "
                                  f"{size:,}")  # fmt: skip
        if stored.begin != reached:
            fault = "overlaps" if stored.begin < reached else "leaves a gap after"
            raise FileFormatError(f"load: in {where}, tensor {_short(name)} {fault} {before}")
        reached, before = stored.end, f"tensor {_short(name)}"
    if reached != size:
        raise FileFormatError(f"load: {where} has {size - reached:,} bytes after its last tensor")


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= _MAX_BYTES for item in value)


def _short(value: Any) -> str:
    """A value of the file as a few characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a very long number"
    return text if len(text) <= 60 else text[:57] + "..."

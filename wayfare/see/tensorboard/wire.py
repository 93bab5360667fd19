"""The little of protobuf's wire format that an event needs: numbered fields of numbers, bytes and messages."""

from __future__ import annotations

import struct
from collections.abc import Iterable

__all__ = ["doubles", "number", "real", "single", "text"]

# The kinds of a field, in the low three bits of its key.
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative number is one of 64 bits."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def number(field: int, value: int) -> bytes:
    """A whole number."""
    return _key(field, _VARINT) + _varint(value)


def real(field: int, value: float) -> bytes:
    """A double."""
    return _key(field, _EIGHT_BYTES) + struct.pack("<d", value)


def single(field: int, value: float) -> bytes:
    """A float of four bytes; what is too large for one is infinite."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _key(field, _FOUR_BYTES) + packed


def text(field: int, value: str | bytes) -> bytes:
    """Text, bytes, or a message that is already written."""
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return _key(field, _LENGTH) + _varint(len(data)) + data


def doubles(field: int, values: Iterable[float]) -> bytes:
    """Doubles one behind the other, as one field."""
    packed = list(values)
    return text(field, struct.pack(f"<{len(packed)}d", *packed))

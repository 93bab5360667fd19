"""Parsing the bytes of a file that may be damaged or malicious: its cost is measured before protobuf parses it.

Protobuf may need a hundred bytes of memory for two bytes of a file. So the fields are counted first, by the
descriptors of ONNX's messages, and a file that would take too much memory is refused.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from wayfare.exporters.packages import onnx_package

# Protobuf's own limits: the largest file, and how deep messages lie in one another.
MOST_BYTES = (1 << 31) - 1
_DEEPEST = 100
# More fields than this take too long to count; the largest models have some millions.
_MOST_FIELDS = 10_000_000
# The memory that a model may take: `_SHARE` times the size of its file, `_MORE` times more up to `_MOST_MORE`, and
# `_LITTLE` for the smallest. Models that consist of short names need about forty times their size.
_SHARE, _MORE, _MOST_MORE, _LITTLE = 8, 64, 1 << 29, 1 << 22
# Messages for which an object of ours is kept, and the memory it takes.
_KEPT, _KEPT_COST = ("node", "initializer", "input"), 800
# Wire types of protobuf.
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
# Field types of protobuf.
_DOUBLE, _FLOAT, _TEXT_TYPE, _BYTES_TYPE = 1, 2, 9, 12


class Damaged(Exception):
    """What is wrong with a file, as the end of a sentence."""


class _Field(NamedTuple):
    name: str
    message: Any  # its description, for a field that holds a message
    is_text: bool
    cost: int  # bytes of memory for one field
    cost_of_byte: int  # bytes of memory for each byte of its contents, if it is no message


def parsed(data: bytes) -> Any:
    """The model in these bytes."""
    onnx = onnx_package()
    if not data:
        raise Damaged("is empty")
    _measure(data, onnx.ModelProto.DESCRIPTOR)
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as why:  # protobuf has several classes of errors
        raise Damaged(f"is not an ONNX model, or is damaged: {str(why).strip() or type(why).__name__}") from None
    if model.ir_version < 1 or not model.HasField("graph") or not model.opset_import:
        raise Damaged("is not an ONNX model: it has no version, no graph or no operator set")
    return model


def _measure(data: bytes, kind: Any) -> None:
    """Count the fields of a message and of the messages in it, and their cost."""
    allowed = _SHARE * len(data) + min(_MORE * len(data), _MOST_MORE) + _LITTLE
    cost = fields = 0
    waiting = [(0, len(data), kind)]
    while waiting:
        at, end, kind = waiting.pop()
        known = _fields_of(kind)
        while at < end:
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = _varint(data, at - 1, end)
            field = known.get(tag >> 3)
            fields += 1
            cost += 0 if field is None else field.cost
            if cost > allowed or fields > _MOST_FIELDS:
                raise Damaged(f"has so many parts that it would take over {allowed:,} bytes of memory, or too long")
            wire = tag & 7
            begin = at
            if wire == _BYTES:
                length, begin = _varint(data, at, end)
                at = begin + length
            elif wire == _VARINT:
                _, at = _varint(data, at, end)
            else:
                at = at + 8 if wire == _EIGHT else at + 4 if wire == _FOUR else end + 1
            if wire == _BYTES and at > end >= begin:
                raise Damaged(f"is cut off, damaged or no ONNX model: a part of {at - begin:,} bytes should begin at "
                              f"byte {begin:,}, and there are {end - begin:,}")  # fmt: skip
            if at > end or tag < 8:
                raise Damaged("is not an ONNX model, or is damaged: what stands at byte "
                              f"{min(begin, end):,} of {len(data):,} makes no sense")  # fmt: skip
            if wire != _BYTES or field is None:
                continue
            if field.message is not None:
                if len(waiting) >= _DEEPEST:
                    raise Damaged(f"has parts that are nested more than {_DEEPEST} deep")
                waiting += [(at, end, kind), (begin, at, field.message)]
                break
            if field.is_text:
                _check_text(data[begin:at], field, kind)
            cost += (at - begin) * field.cost_of_byte


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode a varint (seven bits per byte); the number, and where it ends."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, len(data) + 1


@cache
def _fields_of(kind: Any) -> dict[int, _Field]:
    """The fields of a message type by number. The costs were measured, and rounded up."""
    found = {}
    for f in kind.fields:
        # A message takes memory for each of its possible fields, a text for its pointer and length; packed numbers may
        # be as many as there are bytes.
        one = 32 if f.message_type is None else 48 + 12 * len(f.message_type.fields)
        one += _KEPT_COST if f.message_type is not None and f.name in _KEPT else 0
        of_byte = 1 if f.type in (_TEXT_TYPE, _BYTES_TYPE) else 2 if f.type in (_DOUBLE, _FLOAT) else 8
        found[f.number] = _Field(f.name, f.message_type, f.type == _TEXT_TYPE, one, of_byte)
    return found


def _check_text(text: bytes, field: _Field, kind: Any) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise Damaged(f"has a text that is not UTF-8 ({field.name} of a {kind.name})") from None

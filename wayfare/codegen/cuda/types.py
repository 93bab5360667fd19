"""Dtypes of the loop language in CUDA C. In the text a dtype is a C type of the same name (see `prelude`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import FLOATS, NUMPY


@dataclass(frozen=True, slots=True)
class CType:
    """One dtype.

    - `memory`: the C type of an element in memory.
    - `stored`: a float that is only loaded and stored, and computed in f32: f16, bf16.
    - `of_bits`: the function that makes it from an integer of the same width; `to_bits`: the other way.
    """

    memory: str
    stored: bool = False
    of_bits: str = ""
    to_bits: str = ""


TYPES: dict[str, CType] = {
    "bool": CType("u8"), "u8": CType("u8"), "i8": CType("i8"), "i16": CType("i16"), "i32": CType("i32"),
    "i64": CType("i64"), "f16": CType("f16", True), "bf16": CType("bf16", True),
    "f32": CType("f32", of_bits="__int_as_float", to_bits="__float_as_int"),
    "f64": CType("f64", of_bits="__longlong_as_double", to_bits="__double_as_longlong"),
}  # fmt: skip


def memory(dtype: str) -> str:
    """The C type of an element in memory."""
    return TYPES[dtype].memory


def loaded(dtype: str, text: str) -> str:
    """A value in a register, from one in memory: a bool is a byte there."""
    return f"({text} != 0)" if dtype == "bool" else text


def number(value: Any, dtype: str) -> str:
    """A constant in C; floats to the last bit."""
    if dtype == "bool":
        return "true" if value else "false"
    if TYPES[dtype].stored:
        with np.errstate(over="ignore"):
            bits = int(np.asarray(value, NUMPY[dtype]).view(np.uint16))
        return f"{dtype}{{(u16)0x{bits:04x}}}"
    if dtype in FLOATS:
        with np.errstate(over="ignore"):
            exact = float(np.asarray(value, NUMPY[dtype]))
        if np.isfinite(exact):
            text = f"{exact!r}{'f' if dtype == 'f32' else ''}"
            return f"({text})" if text[0] == "-" else text
        bits = int(np.asarray(exact, NUMPY[dtype]).view(f"u{NUMPY[dtype].itemsize}"))
        suffix = "u" if dtype == "f32" else "ull"
        return f"{TYPES[dtype].of_bits}(({'i32' if dtype == 'f32' else 'i64'})0x{bits:x}{suffix})"
    if int(value) < 0:
        # The smallest integer has no literal of its own.
        return f"({dtype})({int(value) + 1}{'ll' if dtype == 'i64' else ''} - 1)"
    return f"({dtype}){int(value)}{'ll' if dtype == 'i64' else ''}"


def computed(dtype: str) -> str:
    """The dtype that values of a dtype are computed in."""
    return "f32" if TYPES[dtype].stored else dtype


def widened(dtype: str, text: str) -> str:
    """A loaded value in the dtype that it is computed in."""
    return f"to_f32({text})" if TYPES[dtype].stored else text


def narrowed(dtype: str, text: str) -> str:
    """A computed value in the dtype that it is stored in."""
    return f"to_{dtype}({text})" if TYPES[dtype].stored else text

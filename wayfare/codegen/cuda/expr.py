"""Expressions to CUDA C: one statement for each expression, in the order in which they depend on each other."""

from __future__ import annotations

from collections.abc import Callable

from wayfare.codegen.cuda.functions import BUILT_IN, called
from wayfare.codegen.cuda.types import TYPES, computed, number
from wayfare.codegen.loop.expr import FLOATS, NUMPY, Expr, walk
from wayfare.codegen.loop.instruction import INSTRUCTIONS
from wayfare.core.errors import LoopError


class Body:
    """Writes the statements that compute expressions. `leaf` gives the C text of a load, reload, reduction or index."""

    def __init__(self, leaf: Callable[[Expr], str], prefix: str = "t") -> None:
        self.leaf, self.prefix = leaf, prefix
        self.lines: list[str] = []
        self.known: dict[int, str] = {}

    def value(self, root: Expr) -> str:
        """The name that holds an expression; written on first use."""
        for e in walk(root):
            if id(e) not in self.known:
                self.known[id(e)] = self._write(e)
        return self.known[id(root)]

    def _write(self, e: Expr) -> str:
        if e.op == "const":
            return number(e.value, e.dtype)
        text = self.leaf(e) if not e.args else self._text(e, [self.known[id(a)] for a in e.args])
        name = f"{self.prefix}{len(self.lines)}"
        self.lines.append(f"const {e.dtype} {name} = {text};")
        return name

    def _text(self, e: Expr, values: list[str]) -> str:
        dtype = e.args[-1].dtype
        match e.op:
            case "cast":
                return cast(values[0], dtype, e.dtype)
            case "bits":
                return _bits(values[0], dtype, e.dtype)
            case "call":
                return f"{called(str(e.value))}({', '.join(values)})"
            case "rescue":
                rare = cast(f"{called(str(e.value))}({', '.join(values[2:])})", "f64", e.dtype)
                return f"{values[0]} ? {rare} : {values[1]}"
        if (e.op, dtype) in BUILT_IN:
            return f"{BUILT_IN[e.op, dtype]}({', '.join(values)})"
        text = INSTRUCTIONS[e.op].c_for(NUMPY[computed(dtype)]) if e.op in INSTRUCTIONS else ""
        if not text:
            raise LoopError(f"{e.op} of {dtype} is no instruction")
        inf = number(float("inf"), dtype) if "{inf}" in text else ""
        return text.format(*values, t=dtype, f="f" if dtype == "f32" else "", inf=inf, bits=TYPES[dtype].to_bits)


def cast(x: str, source: str, target: str) -> str:
    """A value in another dtype. Floats that fit no integer are undefined, as in C."""
    if source == target:
        return x
    if TYPES[source].stored:
        return cast(f"to_f32({x})", "f32", target)
    if target == "bool":
        return f"({x} != 0)"
    if TYPES[target].stored:
        return f"to_{target}({x if source in FLOATS else f'(f64){x}'})"
    if source in FLOATS and target not in FLOATS:
        # Small integers go through i32 and are truncated.
        return f"({target})({'i64' if target == 'i64' else 'i32'}){x}"
    return f"({target}){x}"


def _bits(x: str, source: str, target: str) -> str:
    if TYPES[source].to_bits:
        return f"{TYPES[source].to_bits}({x})" if source != target else x
    if TYPES[target].of_bits:
        return f"{TYPES[target].of_bits}({x})"
    if TYPES[source].stored:
        return f"({target}){x}.bits" if source != target else x
    return f"{target}{{(u16){x}}}" if TYPES[target].stored else f"({target}){x}"

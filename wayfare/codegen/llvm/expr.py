"""Expressions to LLVM IR: one or a few instructions for each primitive, on vectors of any number of lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wayfare.codegen.llvm.builder import SUFFIXES, TYPES, Writer, number, splat_constant, vector
from wayfare.codegen.loop.expr import FLOATS, NUMPY, Expr, walk
from wayfare.codegen.loop.instruction import INSTRUCTIONS
from wayfare.core.errors import LoopError

# -- primitives ---------------------------------------------------------------------------------------------------


def _no_leaf(_e: Expr) -> str:
    raise AssertionError("no expression is read here")


class Body:
    """Emits expressions on vectors. `leaf` gives the register of a load, reload, reduction or index."""

    def __init__(self, writer: Writer, lanes: int, leaf: Callable[[Expr], str] = _no_leaf) -> None:
        self.writer = writer
        self.lanes = lanes
        self.leaf = leaf
        self.known: dict[int, str] = {}

    def type(self, dtype: str) -> str:
        """The register type of a value."""
        return vector(self.lanes, TYPES[dtype])

    def constant(self, value: Any, dtype: str) -> str:
        """A constant of that type."""
        return splat_constant(self.lanes, TYPES[dtype], number(value, dtype))

    def value(self, root: Expr) -> str:
        """The register that holds an expression; emitted on first use."""
        for e in walk(root):
            if id(e) not in self.known:
                self.known[id(e)] = self._write(e)
        return self.known[id(root)]

    def math(self, name: str, dtype: str, *values: str) -> str:
        """A floating-point intrinsic such as llvm.floor."""
        kind = self.type(dtype)
        full = f"llvm.{name}.v{self.lanes}{SUFFIXES[TYPES[dtype]]}"
        return self.writer.intrinsic(full, kind, [(kind, v) for v in values])

    def choose(self, condition: str, dtype: str, a: str, b: str) -> str:
        """`a` in the lanes where the condition holds, else `b`."""
        kind = self.type(dtype)
        return self.writer.let(f"select {self.type('bool')} {condition}, {kind} {a}, {kind} {b}")

    def compare(self, op: str, dtype: str, a: str, b: str) -> str:
        """A comparison, giving a mask."""
        condition = INSTRUCTIONS[op].llvm_for(NUMPY[dtype])
        return self.writer.let(f"{'fcmp' if dtype in FLOATS else 'icmp'} {condition} {self.type(dtype)} {a}, {b}")

    def extreme(self, op: str, dtype: str, a: str, b: str, may_be_nan: bool = True) -> str:
        """Maximum or minimum of two values; NaN propagates. `may_be_nan`: can `b` be NaN?"""
        if dtype == "bool":
            return self.arithmetic(op, dtype, a, b)
        if dtype not in FLOATS:
            return self.choose(self.compare("gt" if op == "maximum" else "lt", dtype, a, b), dtype, a, b)
        # An unordered compare keeps a NaN of `a`; a NaN of `b` is selected afterwards.
        kind = self.type(dtype)
        larger = self.writer.let(f"fcmp {'ugt' if op == 'maximum' else 'ult'} {kind} {a}, {b}")
        chosen = self.choose(larger, dtype, a, b)
        if not may_be_nan:
            return chosen
        return self.choose(self.writer.let(f"fcmp uno {kind} {b}, {b}"), dtype, b, chosen)

    def arithmetic(self, op: str, dtype: str, a: str, b: str) -> str:
        """Sum, product, … of two values."""
        found = INSTRUCTIONS[op].llvm_for(NUMPY[dtype]) if op in INSTRUCTIONS else ""
        if not found:
            raise LoopError(f"{op} of {dtype} is no instruction")
        return self.writer.let(f"{found} {self.type(dtype)} {a}, {b}")

    def _write(self, e: Expr) -> str:
        if e.op == "const":
            literal = self.constant(e.value, e.dtype)
            return self.writer.held(self.type(e.dtype), literal) if e.dtype in ("f32", "f64") and e.value else literal
        if not e.args:
            return self.leaf(e)
        values = [self.known[id(a)] for a in e.args]
        if e.op == "div" and e.args[1].op == "const":
            # A literal, so that LLVM may turn the division into a multiplication.
            values[1] = self.constant(e.args[1].value, e.args[1].dtype)
        dtype = e.args[-1].dtype
        kind = self.type(dtype)
        let = self.writer.let
        is_float = dtype in FLOATS
        match e.op:
            case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
                return self.compare(e.op, dtype, *values)
            case "maximum" | "minimum":
                second = e.args[1]
                may_be_nan = second.op != "const" or second.value != second.value
                return self.extreme(e.op, dtype, values[0], values[1], may_be_nan)
            case "where":
                return self.choose(values[0], dtype, *values[1:])
            case "neg":
                return let(f"fneg {kind} {values[0]}" if is_float else f"sub {kind} zeroinitializer, {values[0]}")
            case "abs":
                if is_float:
                    return self.math("fabs", dtype, values[0])
                negative = self.compare("lt", dtype, values[0], "zeroinitializer")
                return self.choose(negative, dtype, let(f"sub {kind} zeroinitializer, {values[0]}"), values[0])
            case "floor" | "ceil" | "trunc" | "rint" | "sqrt":
                return self.math(e.op, dtype, values[0]) if is_float else values[0]
            case "copysign":
                return self.math("copysign", dtype, *values)
            case "fma":
                return self.math("fmuladd", dtype, *values)
            case "bitwise_not" | "logical_not":
                ones = splat_constant(self.lanes, TYPES[dtype], "true" if dtype == "bool" else "-1")
                return let(f"xor {kind} {values[0]}, {ones}")
            case "shift_left" | "shift_right":
                return self._shift(e.op, dtype, values[0], values[1], e.args[1])
            case "isnan" | "isinf" | "isfinite" | "signbit":
                return self._classify(e.op, dtype, values[0])
            case "quotient":
                return self._quotient(dtype, *values)
            case "cast":
                return self.cast(values[0], e.args[0].dtype, e.dtype)
            case "bits":
                return let(f"bitcast {kind} {values[0]} to {self.type(e.dtype)}")
            case "call":
                return self._call(str(e.value), values)
            case "rescue":
                return self._rescue(e, values)
        return self.arithmetic(e.op, dtype, *values)

    def _classify(self, op: str, dtype: str, x: str) -> str:
        kind = self.type(dtype)
        if dtype not in FLOATS:
            if op == "signbit":
                return self.compare("lt", dtype, x, "zeroinitializer")
            return self.constant(op == "isfinite", "bool")
        if op == "isnan":
            return self.writer.let(f"fcmp uno {kind} {x}, {x}")
        if op == "signbit":
            whole = {"f32": "i32", "f64": "i64", "f16": "i16"}[dtype]
            as_integer = self.writer.let(f"bitcast {kind} {x} to {self.type(whole)}")
            return self.compare("lt", whole, as_integer, "zeroinitializer")
        size = self.math("fabs", dtype, x)
        test = "oeq" if op == "isinf" else "one"
        finite = self.writer.let(f"fcmp {test} {kind} {size}, {self.constant(float('inf'), dtype)}")
        return finite

    def _shift(self, op: str, dtype: str, x: str, by: str, distance: Expr) -> str:
        """A shift. A distance that is negative or at least the width of the dtype shifts all bits out."""
        kind, width = self.type(dtype), 8 * NUMPY[dtype].itemsize
        left, unsigned = op == "shift_left", dtype == "u8"
        instruction = "shl" if left else "lshr" if unsigned else "ashr"
        if distance.op == "const" and 0 <= distance.value < width:
            return self.writer.let(f"{instruction} {kind} {x}, {by}")
        # Such a shift is poison in LLVM, so the distance is clamped.
        near = self.writer.let(f"icmp ult {kind} {by}, {self.constant(width, dtype)}")
        furthest = self.constant(width - 1, dtype)
        shifted = self.writer.let(f"{instruction} {kind} {x}, {self.choose(near, dtype, by, furthest)}")
        return self.choose(near, dtype, shifted, "zeroinitializer") if left or unsigned else shifted

    def _quotient(self, dtype: str, a: str, b: str) -> str:
        """Integer division. The two cases that would trap (by 0, and the smallest number by -1) are selected away."""
        kind = self.type(dtype)
        by_zero = self.compare("eq", dtype, b, "zeroinitializer")
        one = self.constant(1, dtype)
        if dtype == "u8":
            safe = self.choose(by_zero, dtype, one, b)
            return self.choose(by_zero, dtype, "zeroinitializer", self.writer.let(f"udiv {kind} {a}, {safe}"))
        by_minus_one = self.compare("eq", dtype, b, self.constant(-1, dtype))
        either = self.writer.let(f"or {self.type('bool')} {by_zero}, {by_minus_one}")
        safe = self.choose(either, dtype, one, b)
        whole = self.writer.let(f"sdiv {kind} {a}, {safe}")
        negated = self.writer.let(f"sub {kind} zeroinitializer, {a}")
        return self.choose(by_zero, dtype, "zeroinitializer", self.choose(by_minus_one, dtype, negated, whole))

    def cast(self, x: str, source: str, target: str) -> str:
        """The value in another dtype."""
        if source == target:
            return x
        if source == "bf16":
            return self.cast(self._wide(x), "f32", target)
        if target == "bf16":
            return self._narrow(self.cast(x, source, "f32"))
        kind, wanted = self.type(source), self.type(target)
        let = self.writer.let
        if target == "bool":
            return self.compare("ne", source, x, "zeroinitializer")
        if source in FLOATS and target in FLOATS:
            if source == "f64" and target == "f16":
                x, source, kind = self._odd(x), "f32", self.type("f32")
            wider = NUMPY[target].itemsize > NUMPY[source].itemsize
            return let(f"{'fpext' if wider else 'fptrunc'} {kind} {x} to {wanted}")
        if source in FLOATS:
            if source == "f16":
                return self.cast(self.cast(x, "f16", "f32"), "f32", target)
            # Small integers go through i32 and are truncated, as in C.
            whole = target if target == "i64" else "i32"
            return self.cast(let(f"fptosi {kind} {x} to {self.type(whole)}"), whole, target)
        unsigned = source in ("bool", "u8")
        if target in FLOATS:
            return let(f"{'uitofp' if unsigned else 'sitofp'} {kind} {x} to {wanted}")
        bits_from = 1 if source == "bool" else 8 * NUMPY[source].itemsize
        bits_to = 8 * NUMPY[target].itemsize
        if bits_from == bits_to:
            return x
        how = "trunc" if bits_to < bits_from else "zext" if unsigned else "sext"
        return let(f"{how} {kind} {x} to {wanted}")

    def _wide(self, x: str) -> str:
        """bf16 to f32: its bits are the upper half of those of the f32."""
        let, whole = self.writer.let, self.type("i32")
        lower = let(f"zext {self.type('i16')} {x} to {whole}")
        upper = let(f"shl {whole} {lower}, {self.constant(16, 'i32')}")
        return let(f"bitcast {whole} {upper} to {self.type('f32')}")

    def _narrow(self, x: str) -> str:
        """f32 to bf16, rounded to nearest, ties to even; NaN stays NaN, with its sign."""
        let, whole = self.writer.let, self.type("i32")
        bits = let(f"bitcast {self.type('f32')} {x} to {whole}")
        upper = let(f"lshr {whole} {bits}, {self.constant(16, 'i32')}")
        # Half a unit in the last place that stays, less one if that place is even; a carry may go on to infinity.
        last = let(f"and {whole} {upper}, {self.constant(1, 'i32')}")
        more = let(f"add {whole} {last}, {self.constant(0x7FFF, 'i32')}")
        near = let(f"lshr {whole} {let(f'add {whole} {bits}, {more}')}, {self.constant(16, 'i32')}")
        sign = let(f"and {whole} {upper}, {self.constant(0x8000, 'i32')}")
        nan = let(f"or {whole} {sign}, {self.constant(0x7FC0, 'i32')}")
        is_nan = let(f"fcmp uno {self.type('f32')} {x}, {x}")
        return let(f"trunc {whole} {self.choose(is_nan, 'i32', nan, near)} to {self.type('i16')}")

    def _odd(self, x: str) -> str:
        """f64 to f32 with rounding to odd, so that a second rounding to f16 gives the correctly rounded f16.

        Processors have no instruction for f64 to f16. An inexact f32 with an odd last bit is never an f16, and never
        halfway between two of them.
        """
        let, kind, wide = self.writer.let, self.type("f32"), self.type("f64")
        near = let(f"fptrunc {wide} {x} to {kind}")
        back = let(f"fpext {kind} {near} to {wide}")
        whole = let(f"bitcast {kind} {near} to {self.type('i32')}")
        even = self.compare("eq", "i32", let(f"and {self.type('i32')} {whole}, {self.constant(1, 'i32')}"),
                            "zeroinitializer")  # fmt: skip
        off = let(f"and {self.type('bool')} {let(f'fcmp one {wide} {back}, {x}')}, {even}")
        further = self.compare("gt", "f64", self.math("fabs", "f64", back), self.math("fabs", "f64", x))
        step = self.choose(further, "i32", self.constant(-1, "i32"), self.constant(1, "i32"))
        moved = let(f"add {self.type('i32')} {whole}, {self.choose(off, 'i32', step, 'zeroinitializer')}")
        return let(f"bitcast {self.type('i32')} {moved} to {kind}")

    def _rescue(self, e: Expr, values: Sequence[str]) -> str:
        """A value, with a branch to a library function if any lane needs it."""
        writer, name = self.writer, self.writer.fresh("rescue")
        variable = writer.variable(self.type(e.dtype), values[1])
        full = f"llvm.vector.reduce.or.v{self.lanes}i1"
        any_lane = writer.intrinsic(full, "i1", [(self.type("bool"), values[0])])
        rare = writer.intrinsic("llvm.expect.i1", "i1", [("i1", any_lane), ("i1", "false")])
        writer.do(f"br i1 {rare}, label %{name}.rare, label %{name}.done")
        writer.label(f"{name}.rare")
        found = self.cast(self._call(str(e.value), values[2:]), "f64", e.dtype)
        variable.set(self.choose(values[0], e.dtype, found, values[1]))
        writer.do(f"br label %{name}.done")
        writer.label(f"{name}.done")
        return variable.get()

    def _call(self, symbol: str, values: Sequence[str]) -> str:
        """Call a library function for each lane."""
        self.writer.declared[symbol] = f"declare double @{symbol}({', '.join(['double'] * len(values))})"
        kind = self.type("f64")
        out = "poison"
        for lane in range(self.lanes):
            parts = [self.writer.let(f"extractelement {kind} {v}, i64 {lane}") for v in values]
            given = ", ".join(f"double {part}" for part in parts)
            made = self.writer.let(f"call double @{symbol}({given})")
            out = self.writer.let(f"insertelement {kind} {out}, double {made}, i64 {lane}")
        return out

"""Expressions to LLVM IR: one instruction (or a few) for each primitive, on vectors of any number of lanes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import FLOATS, NUMPY, Expr, walk
from wayfare.codegen.loop.instruction import INSTRUCTIONS
from wayfare.core.errors import LoopError

_TYPES = {"bool": "i1", "u8": "i8", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f16": "half",
          "f32": "float", "f64": "double"}  # fmt: skip
# How an intrinsic's name spells the type.
_SUFFIX = {"i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "half": "f16", "float": "f32",
           "double": "f64", "ptr": "p0"}  # fmt: skip


def scalar_type(dtype: str) -> str:
    """The LLVM type of one value in a register."""
    return _TYPES[dtype]


def memory_type(dtype: str) -> str:
    """The LLVM type of one value in memory: a mask is a byte there."""
    return "i8" if dtype == "bool" else _TYPES[dtype]


def vector(lanes: int, kind: str) -> str:
    """`lanes` values of an LLVM type."""
    return f"<{lanes} x {kind}>"


def number(value: Any, dtype: str) -> str:
    """A constant as LLVM spells it."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if dtype == "f32":
        with np.errstate(over="ignore"):
            return number(float(np.float32(value)), "f64")
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return f"0xH{np.float16(value).view(np.uint16).item():04X}"
    return str(int(value))


def splat_constant(lanes: int, kind: str, text: str) -> str:
    """A constant in every lane."""
    return "<" + ", ".join([f"{kind} {text}"] * lanes) + ">"


class Variable:
    """A value in memory, until LLVM finds it a register."""

    __slots__ = ("kind", "name", "writer")

    def __init__(self, writer: Writer, name: str, kind: str) -> None:
        self.writer, self.name, self.kind = writer, name, kind

    def get(self) -> str:
        """The value now."""
        return self.writer.let(f"load {self.kind}, ptr {self.name}")

    def set(self, value: str) -> None:
        """Another value from here on."""
        self.writer.do(f"store {self.kind} {value}, ptr {self.name}")


class Writer:
    """Collects instructions, names their results, and remembers what must be declared."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        # Room for variables, at the start of the function; LLVM turns them into registers.
        self.rooms: list[str] = []
        self.declared: dict[str, str] = {}
        self.holding = False
        self._held: dict[str, str] = {}
        self._count = 0

    def fresh(self, stem: str = "v") -> str:
        """A name nobody has used."""
        self._count += 1
        return f"{stem}{self._count}"

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append("  " + text)

    def let(self, text: str) -> str:
        """An instruction and the name of its result."""
        name = "%" + self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def held(self, kind: str, literal: str) -> str:
        """A constant that stays in a register, where constants are few.

        LLVM takes constants for cheap and loads them anew in every turn of an inner loop: with a dozen coefficients of
        a polynomial the loads cost more than the sums. What comes from a volatile load it must keep.
        """
        if not self.holding:
            return literal
        if literal not in self._held:
            name = "%" + self.fresh("constant")
            self.rooms += [
                f"  {name}.room = alloca {kind}",
                f"  store {kind} {literal}, ptr {name}.room",
                f"  {name} = load volatile {kind}, ptr {name}.room",
            ]
            self._held[literal] = name
        return self._held[literal]

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")

    def variable(self, kind: str, value: str) -> Variable:
        """A place for a value that changes."""
        name = "%" + self.fresh("room")
        self.rooms.append(f"  {name} = alloca {kind}")
        place = Variable(self, name, kind)
        place.set(value)
        return place

    @contextmanager
    def loop(self, start: str, stop: str, step: int) -> Iterator[str]:
        """`for i in range(start, stop, step)`: yields the register of i."""
        counter = self.variable("i64", start)
        name = self.fresh("loop")
        self.do(f"br label %{name}.test")
        self.label(f"{name}.test")
        i = counter.get()
        more = self.let(f"icmp slt i64 {i}, {stop}")
        self.do(f"br i1 {more}, label %{name}.body, label %{name}.done")
        self.label(f"{name}.body")
        yield i
        counter.set(self.let(f"add nsw i64 {i}, {step}"))
        self.do(f"br label %{name}.test")
        self.label(f"{name}.done")

    def intrinsic(self, name: str, result: str, arguments: Sequence[tuple[str, str]]) -> str:
        """Call an intrinsic; the types that spell its full name are in `name` already."""
        self.declared[name] = f"declare {result} @{name}({', '.join(kind for kind, _ in arguments)})"
        call = f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})"
        if result == "void":
            self.do(call)
            return ""
        return self.let(call)

    def splat(self, lanes: int, kind: str, value: str) -> str:
        """One value in every lane."""
        whole = vector(lanes, kind)
        first = self.let(f"insertelement {whole} poison, {kind} {value}, i64 0")
        return self.let(f"shufflevector {whole} {first}, {whole} poison, <{lanes} x i32> zeroinitializer")


# -- primitives ---------------------------------------------------------------------------------------------------


class Body:
    """Writes the expressions of one visit for a number of lanes. `leaf` supplies what is loaded or folded."""

    def __init__(self, writer: Writer, lanes: int, leaf: Callable[[Expr], str]) -> None:
        self.writer = writer
        self.lanes = lanes
        self.leaf = leaf
        self.known: dict[int, str] = {}

    def type(self, dtype: str) -> str:
        """The register type of a value."""
        return vector(self.lanes, _TYPES[dtype])

    def constant(self, value: Any, dtype: str) -> str:
        """A constant of that type."""
        return splat_constant(self.lanes, _TYPES[dtype], number(value, dtype))

    def value(self, root: Expr) -> str:
        """The register that holds an expression; written on first demand."""
        for e in walk(root):
            if id(e) not in self.known:
                self.known[id(e)] = self._write(e)
        return self.known[id(root)]

    def math(self, name: str, dtype: str, *values: str) -> str:
        """A floating-point intrinsic such as llvm.floor."""
        kind = self.type(dtype)
        full = f"llvm.{name}.v{self.lanes}{_SUFFIX[_TYPES[dtype]]}"
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
        """The larger or smaller of two; NaN wins. `may_be_nan`: can `b` be NaN?"""
        if dtype == "bool":
            return self.arithmetic(op, dtype, a, b)
        if dtype not in FLOATS:
            return self.choose(self.compare("gt" if op == "maximum" else "lt", dtype, a, b), dtype, a, b)
        # Unordered or greater: a NaN in `a` is kept; where only `b` may be NaN it is put back after.
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
            # As a number LLVM can see: it may become a multiplication.
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
                ones = splat_constant(self.lanes, _TYPES[dtype], "true" if dtype == "bool" else "-1")
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
        """A shift; by the width of the dtype or more, or by less than nothing, only the sign is left."""
        kind, width = self.type(dtype), 8 * NUMPY[dtype].itemsize
        left, unsigned = op == "shift_left", dtype == "u8"
        instruction = "shl" if left else "lshr" if unsigned else "ashr"
        if distance.op == "const" and 0 <= distance.value < width:
            return self.writer.let(f"{instruction} {kind} {x}, {by}")
        # LLVM leaves open what a shift that far gives.
        near = self.writer.let(f"icmp ult {kind} {by}, {self.constant(width, dtype)}")
        furthest = self.constant(width - 1, dtype)
        shifted = self.writer.let(f"{instruction} {kind} {x}, {self.choose(near, dtype, by, furthest)}")
        return self.choose(near, dtype, shifted, "zeroinitializer") if left or unsigned else shifted

    def _quotient(self, dtype: str, a: str, b: str) -> str:
        """Whole division; the two cases that would trap (by 0, and the smallest number by -1) never reach it."""
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
            # Small integers by way of a larger one, which cuts off high bits as the C conversion does.
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

    def _odd(self, x: str) -> str:
        """An f64 in f32 such that rounding that to f16 is the same as rounding once.

        Processors have no instruction for f64 to f16. Of the two f32 beside the number the one with an odd last bit is
        taken: it is never halfway between two f16, and never equal to one.
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
        """A value, and a detour by a library function if any lane needs it."""
        writer, name = self.writer, self.writer.fresh("rescue")
        place = writer.variable(self.type(e.dtype), values[1])
        full = f"llvm.vector.reduce.or.v{self.lanes}i1"
        any_lane = writer.intrinsic(full, "i1", [(self.type("bool"), values[0])])
        rare = writer.intrinsic("llvm.expect.i1", "i1", [("i1", any_lane), ("i1", "false")])
        writer.do(f"br i1 {rare}, label %{name}.rare, label %{name}.done")
        writer.label(f"{name}.rare")
        found = self.cast(self._call(str(e.value), values[2:]), "f64", e.dtype)
        place.set(self.choose(values[0], e.dtype, found, values[1]))
        writer.do(f"br label %{name}.done")
        writer.label(f"{name}.done")
        return place.get()

    def _call(self, symbol: str, values: Sequence[str]) -> str:
        """A library function: lane by lane."""
        self.writer.declared[symbol] = f"declare double @{symbol}({', '.join(['double'] * len(values))})"
        kind = self.type("f64")
        out = "poison"
        for lane in range(self.lanes):
            parts = [self.writer.let(f"extractelement {kind} {v}, i64 {lane}") for v in values]
            given = ", ".join(f"double {part}" for part in parts)
            made = self.writer.let(f"call double @{symbol}({given})")
            out = self.writer.let(f"insertelement {kind} {out}, double {made}, i64 {lane}")
        return out

"""LLVM IR as text: types, constants, and a builder that collects the instructions of a function.

    w = Writer()
    with w.loop("0", count, 1) as i:
        w.store("i64", w.add(w.load("i64", w.at(source, (i, 8))), "1"), w.at(target, (i, 8)))

Values are the names of registers, or literals. A type is LLVM's own name for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from wayfare.core.spec import BFLOAT16

# The LLVM type of each dtype in a register. A bf16 is its bits: LLVM's own type for it needs functions of compiler-rt
# on most processors, and the instruction that others have drops subnormal numbers.
TYPES = {"bool": "i1", "u8": "i8", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f16": "half",
         "bf16": "i16", "f32": "float", "f64": "double"}  # fmt: skip
# How an intrinsic's name spells the type.
SUFFIXES = {"i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "half": "f16", "float": "f32",
            "double": "f64", "ptr": "p0"}  # fmt: skip


def scalar_type(dtype: str) -> str:
    """The LLVM type of one value in a register."""
    return TYPES[dtype]


def memory_type(dtype: str) -> str:
    """The LLVM type of one value in memory: a bool is a byte there."""
    return "i8" if dtype == "bool" else TYPES[dtype]


def vector(lanes: int, kind: str) -> str:
    """The LLVM vector type of `lanes` values."""
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
    if dtype == "bf16":
        with np.errstate(over="ignore"):
            return str(np.asarray(value, BFLOAT16).view(np.int16).item())
    return str(int(value))


def splat_constant(lanes: int, kind: str, text: str) -> str:
    """A constant in every lane."""
    return "<" + ", ".join([f"{kind} {text}"] * lanes) + ">"


def iota(lanes: int, kind: str = "i64") -> str:
    """The numbers of the lanes: 0, 1, 2, …"""
    return "<" + ", ".join(f"{kind} {lane}" for lane in range(lanes)) + ">"


class Variable:
    """A mutable local: an alloca that LLVM's mem2reg pass turns into a register."""

    __slots__ = ("kind", "name", "writer")

    def __init__(self, writer: Writer, name: str, kind: str) -> None:
        self.writer, self.name, self.kind = writer, name, kind

    def get(self) -> str:
        """Load the value."""
        return self.writer.load(self.kind, self.name)

    def set(self, value: str) -> None:
        """Store a new value."""
        self.writer.store(self.kind, value, self.name)


class Writer:
    """Collects the instructions of a function, names their results, and keeps the declarations they need."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        # Allocas, at the start of the function.
        self.allocas: list[str] = []
        self.declared: dict[str, str] = {}
        self.holding = False
        self._held: dict[str, str] = {}
        self._count = 0

    def fresh(self, stem: str = "v") -> str:
        """A new unique name."""
        self._count += 1
        return f"{stem}{self._count}"

    def do(self, text: str) -> None:
        """Add an instruction without a result."""
        self.lines.append("  " + text)

    def let(self, text: str) -> str:
        """Add an instruction; returns the name of its result."""
        name = "%" + self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def held(self, kind: str, literal: str) -> str:
        """A constant that LLVM must keep in a register, if `holding` is on.

        LLVM rematerialises constants in every iteration of an inner loop. With a dozen polynomial coefficients these
        loads cost more than the arithmetic. The result of a volatile load cannot be rematerialised.
        """
        if not self.holding:
            return literal
        if literal not in self._held:
            name = "%" + self.fresh("constant")
            self.allocas += [
                f"  {name}.slot = alloca {kind}",
                f"  store {kind} {literal}, ptr {name}.slot",
                f"  {name} = load volatile {kind}, ptr {name}.slot",
            ]
            self._held[literal] = name
        return self._held[literal]

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{name}:")

    def variable(self, kind: str, value: str) -> Variable:
        """A mutable local with an initial value."""
        name = "%" + self.fresh("slot")
        self.allocas.append(f"  {name} = alloca {kind}")
        variable = Variable(self, name, kind)
        variable.set(value)
        return variable

    @contextmanager
    def loop(self, start: str, stop: str, step: int) -> Iterator[str]:
        """`for i in range(start, stop, step)`: yields the register of i."""
        counter = self.variable("i64", start)
        name = self.fresh("loop")
        self.do(f"br label %{name}.test")
        self.label(f"{name}.test")
        i = counter.get()
        more = self.compare("slt", i, stop)
        self.do(f"br i1 {more}, label %{name}.body, label %{name}.done")
        self.label(f"{name}.body")
        yield i
        counter.set(self.let(f"add nsw i64 {i}, {step}"))
        self.do(f"br label %{name}.test")
        self.label(f"{name}.done")

    def intrinsic(self, name: str, result: str, arguments: Sequence[tuple[str, str]]) -> str:
        """Call an intrinsic; `name` is its full name with type suffixes."""
        self.declared[name] = f"declare {result} @{name}({', '.join(kind for kind, _ in arguments)})"
        call = f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})"
        if result == "void":
            self.do(call)
            return ""
        return self.let(call)

    def splat(self, lanes: int, kind: str, value: str) -> str:
        """One value in every lane."""
        many = vector(lanes, kind)
        first = self.let(f"insertelement {many} poison, {kind} {value}, i64 0")
        return self.let(f"shufflevector {many} {first}, {many} poison, <{lanes} x i32> zeroinitializer")

    # -- 64-bit integers and addresses

    def add(self, a: str, b: str | int) -> str:
        """a + b"""
        return self.let(f"add i64 {a}, {b}")

    def sub(self, a: str, b: str | int) -> str:
        """a - b"""
        return self.let(f"sub i64 {a}, {b}")

    def mul(self, a: str, b: str | int) -> str:
        """a · b"""
        return self.let(f"mul i64 {a}, {b}")

    def div(self, a: str, b: str | int) -> str:
        """a / b, rounded down; neither is negative."""
        return self.let(f"udiv i64 {a}, {b}")

    def multiple(self, a: str, step: int) -> str:
        """The largest multiple of `step`, a power of two, that is not above a."""
        return self.let(f"and i64 {a}, {-step}")

    def compare(self, test: str, a: str, b: str | int, kind: str = "i64") -> str:
        """An integer comparison; `test` is LLVM's name for it: eq, ne, slt, sgt, ult …"""
        return self.let(f"icmp {test} {kind} {a}, {b}")

    def select(self, condition: str, a: str, b: str, kind: str = "i64") -> str:
        """a where the condition holds, else b."""
        return self.let(f"select i1 {condition}, {kind} {a}, {kind} {b}")

    def smaller(self, a: str, b: str) -> str:
        """min(a, b)"""
        return self.select(self.compare("slt", a, b), a, b)

    def truncated(self, value: str) -> str:
        """An i64 as i32."""
        return self.let(f"trunc i64 {value} to i32")

    def pointer(self, value: str) -> str:
        """An i64 as an address."""
        return self.let(f"inttoptr i64 {value} to ptr")

    def moved(self, base: str, distance: str | int) -> str:
        """An address some bytes further."""
        return self.let(f"getelementptr i8, ptr {base}, i64 {distance}")

    def at(self, base: str, *steps: tuple[str, str | int]) -> str:
        """base + index · stride + …, in bytes."""
        for index, stride in steps:
            base = self.moved(base, self.mul(index, stride))
        return base

    def element(self, kind: str, base: str, index: str | int) -> str:
        """The address of an element of an array of this type."""
        return self.let(f"getelementptr {kind}, ptr {base}, i64 {index}")

    def elements(self, kind: str, base: str, indices: str, index: str) -> str:
        """A vector of addresses; `indices` is the type of the vector `index`. The steps are elements of type `kind`."""
        return self.let(f"getelementptr {kind}, ptr {base}, {indices} {index}")

    def load(self, kind: str, address: str, align: int = 0) -> str:
        """Load a value; `align` 0 means the type's natural alignment."""
        return self.let(f"load {kind}, ptr {address}{f', align {align}' if align else ''}")

    def store(self, kind: str, value: str, address: str, align: int = 0) -> None:
        """Store a value."""
        self.do(f"store {kind} {value}, ptr {address}{f', align {align}' if align else ''}")

    # -- vectors in memory, under a mask

    def masked_load(
        self, lanes: int, kind: str, address: str, mask: str, otherwise: str = "zeroinitializer", align: int = 1
    ) -> str:
        """Load contiguous elements; lanes outside the mask get the values of `otherwise`."""
        many = vector(lanes, kind)
        given = [("ptr", address), ("i32", str(align)), (vector(lanes, "i1"), mask), (many, otherwise)]
        return self.intrinsic(f"llvm.masked.load.v{lanes}{SUFFIXES[kind]}.p0", many, given)

    def masked_store(self, lanes: int, kind: str, value: str, address: str, mask: str, align: int = 1) -> None:
        """Store contiguous elements."""
        given = [(vector(lanes, kind), value), ("ptr", address), ("i32", str(align)), (vector(lanes, "i1"), mask)]
        self.intrinsic(f"llvm.masked.store.v{lanes}{SUFFIXES[kind]}.p0", "void", given)

    def gather(self, lanes: int, kind: str, addresses: str, mask: str, otherwise: str = "zeroinitializer") -> str:
        """Load one element from each address."""
        many = vector(lanes, kind)
        given = [(vector(lanes, "ptr"), addresses), ("i32", "1"), (vector(lanes, "i1"), mask), (many, otherwise)]
        return self.intrinsic(f"llvm.masked.gather.v{lanes}{SUFFIXES[kind]}.v{lanes}p0", many, given)

    def scatter(self, lanes: int, kind: str, value: str, addresses: str, mask: str) -> None:
        """Store one element at each address."""
        given = [(vector(lanes, kind), value), (vector(lanes, "ptr"), addresses), ("i32", "1"),
                 (vector(lanes, "i1"), mask)]  # fmt: skip
        self.intrinsic(f"llvm.masked.scatter.v{lanes}{SUFFIXES[kind]}.v{lanes}p0", "void", given)

    def load_vector(self, lanes: int, dtype: str, address: str, mask: str | None, apart: bool) -> str:
        """Elements of a dtype from `address` on, or, if `apart`, from a vector of addresses. A bool is a byte there."""
        one, kind = memory_type(dtype), vector(lanes, memory_type(dtype))
        if apart:
            value = self.gather(lanes, one, address, mask or splat_constant(lanes, "i1", "true"))
        elif mask is not None:
            value = self.masked_load(lanes, one, address, mask)
        else:
            value = self.load(kind, address, 1)
        return self.let(f"icmp ne {kind} {value}, zeroinitializer") if dtype == "bool" else value

    def store_vector(self, lanes: int, dtype: str, value: str, address: str, mask: str | None, apart: bool) -> None:
        """The other way round."""
        one, kind = memory_type(dtype), vector(lanes, memory_type(dtype))
        if dtype == "bool":
            value = self.let(f"zext {vector(lanes, 'i1')} {value} to {kind}")
        if apart:
            self.scatter(lanes, one, value, address, mask or splat_constant(lanes, "i1", "true"))
        elif mask is not None:
            self.masked_store(lanes, one, value, address, mask)
        else:
            self.store(kind, value, address, 1)

    def lanes_below(self, lanes: int, limit: str, test: str = "slt") -> str:
        """The mask of the lanes whose number is below `limit`, an i64 that fits into 32 bits."""
        kind = vector(lanes, "i32")
        return self.compare(test, iota(lanes, "i32"), self.splat(lanes, "i32", self.truncated(limit)), kind)

    def spread(self, lanes: int, base: str, step: str) -> str:
        """The addresses of lanes that are `step` bytes apart."""
        steps = self.let(f"mul {vector(lanes, 'i64')} {self.splat(lanes, 'i64', step)}, {iota(lanes)}")
        return self.elements("i8", base, vector(lanes, "i64"), steps)

    # -- floats

    def multiply_add(self, kind: str, suffix: str, a: str, b: str, c: str) -> str:
        """a · b + c, fused where that is faster; `suffix` spells the type in the intrinsic's name."""
        return self.intrinsic(f"llvm.fmuladd.{suffix}", kind, [(kind, a), (kind, b), (kind, c)])

    def float_add(self, kind: str, a: str, b: str) -> str:
        """a + b of floats, or of vectors of them."""
        return self.let(f"fadd {kind} {a}, {b}")

"""Helpers for hand-written vector routines: argument words by name, addresses, masked loads, sums in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

from wayfare.codegen.llvm.builder import Variable, Writer, memory_type, vector
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.loop.expr import NUMPY
from wayfare.codegen.routines.routine import pointer, word


class VectorCode:
    """The body of a routine. `names` are the names of its argument words; those of addresses begin with a star."""

    def __init__(self, host: Machine, dtype: str, names: tuple[str, ...]) -> None:
        self.writer = Writer()
        self.let = self.writer.let
        self.dtype, self.kind, self.size = dtype, memory_type(dtype), NUMPY[dtype].itemsize
        self.lanes = 4 * host.processor.lanes // self.size
        # Are there 32 vector registers (AVX-512), or 16?
        self.many = host.processor.lanes == 16
        self.words = SimpleNamespace()
        for k, name in enumerate(names):
            setattr(self.words, name.removeprefix("*"), (pointer if name[0] == "*" else word)(self.writer, k))

    def add(self, a: str, b: str) -> str:
        """a + b"""
        return self.let(f"add i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        """a - b"""
        return self.let(f"sub i64 {a}, {b}")

    def mul(self, a: str, b: str | int) -> str:
        """a · b"""
        return self.let(f"mul i64 {a}, {b}")

    def div(self, a: str, b: str | int) -> str:
        """a / b, rounded down; neither is negative."""
        return self.let(f"udiv i64 {a}, {b}")

    def at(self, base: str, index: str, step: str | int = 1) -> str:
        """base + index · step, in bytes."""
        distance = index if step == 1 else self.mul(index, step)
        return self.let(f"getelementptr i8, ptr {base}, i64 {distance}")

    def load(self, address: str, lanes: int, mask: str = "", elsewhere: str = "zeroinitializer") -> str:
        """Load a vector; lanes outside the mask get the values of `elsewhere`."""
        kind = vector(lanes, self.kind)
        if not mask:
            return self.let(f"load {kind}, ptr {address}, align {self.size}")
        given = [("ptr", address), ("i32", str(self.size)), (vector(lanes, "i1"), mask), (kind, elsewhere)]
        return self.writer.intrinsic(f"llvm.masked.load.v{lanes}{self.dtype}.p0", kind, given)

    def in_every_lane(self, address: str, lanes: int) -> str:
        """Load one number and splat it."""
        return self.writer.splat(lanes, self.kind, self.let(f"load {self.kind}, ptr {address}"))

    def store(self, value: str, address: str, lanes: int, mask: str = "") -> None:
        """Store a vector, under a mask if one is given."""
        kind = vector(lanes, self.kind)
        if not mask:
            self.writer.do(f"store {kind} {value}, ptr {address}, align {self.size}")
            return
        given = [(kind, value), ("ptr", address), ("i32", str(self.size)), (vector(lanes, "i1"), mask)]
        self.writer.intrinsic(f"llvm.masked.store.v{lanes}{self.dtype}.p0", "void", given)

    def multiply_add(self, lanes: int, a: str, b: str, total: Variable) -> None:
        """total += a · b"""
        kind = vector(lanes, self.kind)
        given = [(kind, a), (kind, b), (kind, total.get())]
        total.set(self.writer.intrinsic(f"llvm.fmuladd.v{lanes}{self.dtype}", kind, given))

    def zeros(self, count: int, lanes: int) -> list[Variable]:
        """`count` vector accumulators, set to zero."""
        return [self.writer.variable(vector(lanes, self.kind), "zeroinitializer") for _ in range(count)]

    def first_lanes(self, lanes: int, count: str) -> str:
        """The mask of the first `count` lanes."""
        kind = vector(lanes, "i64")
        iota = "<" + ", ".join(f"i64 {lane}" for lane in range(lanes)) + ">"
        return self.let(f"icmp slt {kind} {iota}, {self.writer.splat(lanes, 'i64', count)}")

    def smaller(self, a: str, b: str) -> str:
        """The smaller of two words."""
        return self.let(f"select i1 {self.let(f'icmp slt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    @contextmanager
    def only_if(self, comparison: str) -> Iterator[None]:
        """Emit code that runs only if the comparison holds: a loop of one iteration or none."""
        once = self.let(f"zext i1 {self.let(f'icmp {comparison}')} to i64")
        with self.writer.loop("0", once, 1):
            yield

    def in_steps(self, limit: str, steps: tuple[int, ...], visit: Callable[[str, int], None]) -> None:
        """Cover 0 … limit with the largest steps that fit: `visit(start, step)`. The last of `steps` is 1."""
        start = "0"
        for step in steps:
            whole = self.mul(self.div(self.sub(limit, start), step), step)
            end = self.add(start, whole)
            with self.writer.loop(start, end, step) as address:
                visit(address, step)
            start = end

    def pick(self, a: str, b: str, lanes_of: Sequence[int]) -> str:
        """Select elements of two vectors by number (a shufflevector)."""
        kind, listed = vector(self.lanes, self.kind), ", ".join(f"i32 {address}" for address in lanes_of)
        return self.let(f"shufflevector {kind} {a}, {kind} {b}, {vector(len(lanes_of), 'i32')} <{listed}>")

    def rows_of_sums(self, totals: list[str], rows: int, columns: int) -> list[str]:
        """The horizontal sum of every vector of a matrix of vectors, as one vector for each row."""
        lanes, kind = self.lanes, vector(self.lanes, self.kind)
        even, odd = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
        totals = totals + ["zeroinitializer"] * (-len(totals) % (2 * lanes))
        # Adding even and odd lanes of two vectors gives one; repeat until every input vector is one lane.
        for _ in range(lanes.bit_length() - 1):
            totals = [
                self.let(f"fadd {kind} {self.pick(a, b, even)}, {self.pick(a, b, odd)}")
                for a, b in zip(totals[::2], totals[1::2], strict=True)
            ]
        found = []
        for r in range(rows):
            # A row is in one of the vectors, or in two neighbouring ones.
            left = min(r * columns // lanes, len(totals) - 2)
            lanes_of = [r * columns + k - left * lanes for k in range(columns)]
            found.append(self.pick(totals[left], totals[left + 1], lanes_of))
        return found

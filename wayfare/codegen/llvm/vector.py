"""Helpers for hand-written vector routines: argument words by name, addresses, masked loads, sums in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

from wayfare.codegen.llvm.builder import Variable, Writer, iota, memory_type, vector
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.loop.expr import NUMPY
from wayfare.codegen.routines.routine import pointer, word


class VectorCode:
    """The body of a routine. `names` are the names of its argument words; those of addresses begin with a star."""

    def __init__(self, host: Machine, dtype: str, names: tuple[str, ...]) -> None:
        self.writer = Writer()
        self.let, self.smaller = self.writer.let, self.writer.smaller
        self.add, self.sub, self.mul, self.div = self.writer.add, self.writer.sub, self.writer.mul, self.writer.div
        self.dtype, self.kind, self.size = dtype, memory_type(dtype), NUMPY[dtype].itemsize
        self.lanes = 4 * host.processor.lanes // self.size
        # Are there 32 vector registers (AVX-512), or 16?
        self.many = host.processor.lanes == 16
        self.words = SimpleNamespace()
        for k, name in enumerate(names):
            setattr(self.words, name.removeprefix("*"), (pointer if name[0] == "*" else word)(self.writer, k))

    def at(self, base: str, index: str, step: str | int = 1) -> str:
        """base + index · step, in bytes."""
        return self.writer.moved(base, index if step == 1 else self.mul(index, step))

    def load(self, address: str, lanes: int, mask: str = "", elsewhere: str = "zeroinitializer") -> str:
        """Load a vector; lanes outside the mask get the values of `elsewhere`."""
        if not mask:
            return self.writer.load(vector(lanes, self.kind), address, self.size)
        return self.writer.masked_load(lanes, self.kind, address, mask, elsewhere, self.size)

    def in_every_lane(self, address: str, lanes: int) -> str:
        """Load one number and splat it."""
        return self.writer.splat(lanes, self.kind, self.writer.load(self.kind, address))

    def store(self, value: str, address: str, lanes: int, mask: str = "") -> None:
        """Store a vector, under a mask if one is given."""
        if mask:
            self.writer.masked_store(lanes, self.kind, value, address, mask, self.size)
        else:
            self.writer.store(vector(lanes, self.kind), value, address, self.size)

    def multiply_add(self, lanes: int, a: str, b: str, total: Variable) -> None:
        """total += a · b"""
        total.set(self.writer.multiply_add(vector(lanes, self.kind), f"v{lanes}{self.dtype}", a, b, total.get()))

    def zeros(self, count: int, lanes: int) -> list[Variable]:
        """`count` vector accumulators, set to zero."""
        return [self.writer.variable(vector(lanes, self.kind), "zeroinitializer") for _ in range(count)]

    def first_lanes(self, lanes: int, count: str) -> str:
        """The mask of the first `count` lanes."""
        return self.writer.compare("slt", iota(lanes), self.writer.splat(lanes, "i64", count), vector(lanes, "i64"))

    def as_count(self, condition: str) -> str:
        """1 if the condition holds, else 0."""
        return self.let(f"zext i1 {condition} to i64")

    @contextmanager
    def only_if(self, test: str, a: str, b: str | int) -> Iterator[None]:
        """Emit code that runs only if the comparison holds: a loop of one iteration or none."""
        with self.writer.loop("0", self.as_count(self.writer.compare(test, a, b)), 1):
            yield

    def in_steps(self, limit: str, steps: tuple[int, ...], visit: Callable[[str, int], None]) -> None:
        """Cover 0 … limit with the largest steps that fit: `visit(start, step)`. The last of `steps` is 1."""
        start = "0"
        for step in steps:
            end = self.add(start, self.mul(self.div(self.sub(limit, start), step), step))
            with self.writer.loop(start, end, step) as position:
                visit(position, step)
            start = end

    def pick(self, a: str, b: str, chosen: Sequence[int]) -> str:
        """Select elements of two vectors by number (a shufflevector)."""
        kind, listed = vector(self.lanes, self.kind), ", ".join(f"i32 {lane}" for lane in chosen)
        return self.let(f"shufflevector {kind} {a}, {kind} {b}, {vector(len(chosen), 'i32')} <{listed}>")

    def rows_of_sums(self, totals: list[str], rows: int, columns: int) -> list[str]:
        """The horizontal sum of every vector of a matrix of vectors, as one vector for each row."""
        lanes, kind = self.lanes, vector(self.lanes, self.kind)
        even, odd = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
        totals = totals + ["zeroinitializer"] * (-len(totals) % (2 * lanes))
        # Adding even and odd lanes of two vectors gives one; repeat until every input vector is one lane.
        for _ in range(lanes.bit_length() - 1):
            totals = [
                self.writer.float_add(kind, self.pick(a, b, even), self.pick(a, b, odd))
                for a, b in zip(totals[::2], totals[1::2], strict=True)
            ]
        found = []
        for r in range(rows):
            # A row is in one of the vectors, or in two neighbouring ones.
            left = min(r * columns // lanes, len(totals) - 2)
            chosen = [r * columns + k - left * lanes for k in range(columns)]
            found.append(self.pick(totals[left], totals[left + 1], chosen))
        return found

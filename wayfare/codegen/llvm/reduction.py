"""Reductions in LLVM IR: accumulators in every lane, precise totals, and the horizontal reduction at the end.

Sums run in blocks. Within a block each lane adds in the element's dtype. The block's sum is then added to a total of
higher precision: f64 for f32; for f64 a compensated sum (Knuth's two-sum). So the error of a long sum is that of one
block, whatever its length.
"""

from __future__ import annotations

from wayfare.codegen.llvm.builder import Variable, Writer, scalar_type, splat_constant, vector
from wayfare.codegen.llvm.expr import Body
from wayfare.codegen.loop.expr import FLOATS, neutral
from wayfare.codegen.loop.language import Reduction

# Elements that one lane adds before the block's sum goes to the total.
BLOCK = 32
_COMBINED = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "logical_or", "all": "logical_and",
             "argmax": "maximum", "argmin": "minimum"}  # fmt: skip


class Accumulator:
    """One reduction in the lanes of one vector: the value of the current block, and the total of all blocks."""

    def __init__(self, writer: Writer, lanes: int, reduction: Reduction) -> None:
        self.writer, self.lanes, self.reduction = writer, lanes, reduction
        self.dtype = reduction.value.dtype
        self.body = Body(writer, lanes)
        self.located = reduction.kind in ("argmax", "argmin")
        self.blocked = reduction.kind in ("sum", "prod") and self.dtype in FLOATS
        self.exact = "f64" if self.blocked else self.dtype
        self.compensated = self.blocked and reduction.kind == "sum" and self.dtype == "f64"
        empty = self.body.constant(neutral(reduction.kind, self.dtype), self.dtype)
        self.block = writer.variable(self.body.type(self.dtype), empty)
        self.total = writer.variable(self.body.type(self.exact), self._empty(self.exact))
        self.lost = writer.variable(self.body.type("f64"), "zeroinitializer") if self.compensated else None
        self.block_index = writer.variable(self.body.type("i64"), "zeroinitializer") if self.located else None
        self.index = writer.variable(self.body.type("i64"), "zeroinitializer") if self.located else None

    def _empty(self, dtype: str) -> str:
        return self.body.constant(neutral(self.reduction.kind, self.dtype), dtype)

    def start_block(self) -> None:
        """Reset the block to the neutral element."""
        self.block.set(self._empty(self.dtype))

    def take(self, value: str, mask: str | None, position: str) -> None:
        """Combine one vector (the lanes of `mask`) into the block. `position`: the elements' indices, for argmax."""
        if mask is not None:
            value = self.body.choose(mask, self.dtype, value, self._empty(self.dtype))
        now = self.block.get()
        if self.block_index is None:
            self.block.set(self._combine(self.dtype, now, value))
            return
        better = self._better(value, now)
        if mask is not None:
            better = self.writer.let(f"and {self.body.type('bool')} {better}, {mask}")
        self.block.set(self.body.choose(better, self.dtype, value, now))
        self.block_index.set(self.body.choose(better, "i64", position, self.block_index.get()))

    def absorb(self, other: Accumulator) -> None:
        """Combine another accumulator's block into this one. Not for argmax: its ties depend on the order."""
        self.block.set(self._combine(self.dtype, self.block.get(), other.block.get()))

    def end_block(self) -> None:
        """Combine the block into the total."""
        value = self.block.get()
        if self.block_index is not None and self.index is not None:
            now = self.total.get()
            better = self._better(value, now)
            self.total.set(self.body.choose(better, self.dtype, value, now))
            self.index.set(self.body.choose(better, "i64", self.block_index.get(), self.index.get()))
            return
        value = self.body.cast(value, self.dtype, self.exact)
        if self.lost is None:
            self.total.set(self._combine(self.exact, self.total.get(), value))
            return
        total, lost = self._two_sum(self.body, self.total.get(), value)
        self.total.set(total)
        self.lost.set(self.body.arithmetic("add", "f64", self.lost.get(), lost))

    def _combine(self, dtype: str, a: str, b: str) -> str:
        return _combine(self.body, self.reduction.kind, dtype, a, b)

    def _better(self, new: str, old: str, body: Body | None = None) -> str:
        """Does `new` replace `old` in an argmax or argmin? NaN beats every number, and the first NaN stays."""
        body = body or self.body
        ahead = body.compare("gt" if self.reduction.kind == "argmax" else "lt", self.dtype, new, old)
        if self.dtype not in FLOATS:
            return ahead
        kind, mask = body.type(self.dtype), body.type("bool")
        new_nan = self.writer.let(f"fcmp uno {kind} {new}, {new}")
        old_number = self.writer.let(f"fcmp ord {kind} {old}, {old}")
        return self.writer.let(f"or {mask} {ahead}, {self.writer.let(f'and {mask} {new_nan}, {old_number}')}")

    def _two_sum(self, body: Body, a: str, b: str) -> tuple[str, str]:
        """The rounded sum a + b, and its exact rounding error."""
        total = body.arithmetic("add", "f64", a, b)
        of_b = body.arithmetic("sub", "f64", total, a)
        of_a = body.arithmetic("sub", "f64", total, of_b)
        lost_a = body.arithmetic("sub", "f64", a, of_a)
        lost_b = body.arithmetic("sub", "f64", b, of_b)
        return total, body.arithmetic("add", "f64", lost_a, lost_b)

    def lanes_result(self) -> str:
        """The result of every lane: a vector of the reduction's dtype."""
        if self.index is not None:
            return self.index.get()
        return self.body.cast(self._rounded(self.body, self.total.get(), self.lost), self.exact, self.reduction.dtype)

    def _rounded(self, body: Body, total: str, lost: Variable | str | None) -> str:
        if lost is None:
            return total
        text = lost if isinstance(lost, str) else lost.get()
        # The error of an infinite total is NaN (inf - inf): leave it out.
        known = self.writer.let(f"fcmp ord {body.type('f64')} {text}, {text}")
        return body.choose(known, "f64", body.arithmetic("add", "f64", total, text), total)

    def result(self) -> str:
        """One number for all lanes: the halves of the vector are combined until one lane is left."""
        writer, lanes = self.writer, self.lanes
        total = self.total.get()
        lost = self.lost.get() if self.lost is not None else None
        index = self.index.get() if self.index is not None else None
        while lanes > 1:
            half = lanes // 2
            body = Body(writer, half)
            (a, b) = self._halves(total, self.exact, lanes)
            if index is not None:
                p, q = self._halves(index, "i64", lanes)
                second = self._better_or_earlier(body, b, a, q, p)
                total = body.choose(second, self.dtype, b, a)
                index = body.choose(second, "i64", q, p)
            elif lost is not None:
                total, more = self._two_sum(body, a, b)
                p, q = self._halves(lost, "f64", lanes)
                lost = body.arithmetic("add", "f64", body.arithmetic("add", "f64", p, q), more)
            else:
                total = _combine(body, self.reduction.kind, self.exact, a, b)
            lanes = half
        one = Body(writer, 1)
        if index is not None:
            return writer.let(f"extractelement <1 x i64> {index}, i64 0")
        last = one.cast(self._rounded(one, total, lost), self.exact, self.reduction.dtype)
        return writer.let(f"extractelement {one.type(self.reduction.dtype)} {last}, i64 0")

    def _better_or_earlier(self, body: Body, b: str, a: str, q: str, p: str) -> str:
        """Does b replace a: because its value is better, or because it is equal and its index is smaller?"""
        writer, mask = self.writer, body.type("bool")
        ahead = self._better(b, a, body)
        behind = self._better(a, b, body)
        ones = splat_constant(body.lanes, "i1", "true")
        even = writer.let(f"xor {mask} {writer.let(f'or {mask} {ahead}, {behind}')}, {ones}")
        earlier = body.compare("lt", "i64", q, p)
        return writer.let(f"or {mask} {ahead}, {writer.let(f'and {mask} {even}, {earlier}')}")

    def _halves(self, value: str, dtype: str, lanes: int) -> tuple[str, str]:
        kind = vector(lanes, scalar_type(dtype))
        half = lanes // 2
        out = []
        for start in (0, half):
            chosen = ", ".join(f"i32 {start + lane}" for lane in range(half))
            out.append(self.writer.let(f"shufflevector {kind} {value}, {kind} poison, <{half} x i32> <{chosen}>"))
        return out[0], out[1]


def _combine(body: Body, kind: str, dtype: str, a: str, b: str) -> str:
    if kind in ("max", "min"):
        return body.extreme(_COMBINED[kind], dtype, a, b)
    return body.arithmetic(_COMBINED[kind], dtype, a, b)

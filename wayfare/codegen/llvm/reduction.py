"""Folds in LLVM IR: accumulators in every lane, exact totals, and the way from lanes to one number.

Sums run in blocks. Within a block each lane adds in the element's own dtype; a block's result is then added to a total
that is more exact: f64 for f32, and for f64 a pair of numbers, the sum and what was lost of it (Knuth's two-sum). So
the error of a long sum is that of one block, whatever its length.
"""

from __future__ import annotations

from wayfare.codegen.llvm.expr import Body, Variable, Writer, scalar_type, vector
from wayfare.codegen.loop.expr import FLOATS, NUMPY
from wayfare.codegen.loop.language import Fold

# Elements that one lane adds before the block's sum goes to the total.
BLOCK = 32
_COMBINED = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "logical_or", "all": "logical_and",
             "argmax": "maximum", "argmin": "minimum"}  # fmt: skip


def neutral(kind: str, dtype: str) -> float | bool | int:
    """What changes nothing when folded in."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if kind in ("any", "all"):
        return kind == "all"
    low = kind in ("max", "argmax")
    if dtype in FLOATS:
        return -float("inf") if low else float("inf")
    if dtype == "bool":
        return not low
    bits = 8 * int(NUMPY[dtype].itemsize)
    if dtype == "u8":
        return 0 if low else 255
    return -(1 << (bits - 1)) if low else (1 << (bits - 1)) - 1


class Accumulator:
    """One fold in the lanes of one vector: a block's own value, and the total of the blocks."""

    def __init__(self, writer: Writer, lanes: int, fold: Fold) -> None:
        self.writer, self.lanes, self.fold = writer, lanes, fold
        self.dtype = fold.value.dtype
        self.body = Body(writer, lanes, lambda e: "")
        self.located = fold.kind in ("argmax", "argmin")
        self.blocked = fold.kind in ("sum", "prod") and self.dtype in FLOATS
        self.exact = "f64" if self.blocked else self.dtype
        self.compensated = self.blocked and fold.kind == "sum" and self.dtype == "f64"
        empty = self.body.constant(neutral(fold.kind, self.dtype), self.dtype)
        self.block = writer.variable(self.body.type(self.dtype), empty)
        self.total = writer.variable(self.body.type(self.exact), self._empty(self.exact))
        self.lost = writer.variable(self.body.type("f64"), "zeroinitializer") if self.compensated else None
        self.place = writer.variable(self.body.type("i64"), "zeroinitializer") if self.located else None
        self.where = writer.variable(self.body.type("i64"), "zeroinitializer") if self.located else None

    def _empty(self, dtype: str) -> str:
        return self.body.constant(neutral(self.fold.kind, self.dtype), dtype)

    def start_block(self) -> None:
        """Forget the block before."""
        self.block.set(self._empty(self.dtype))

    def take(self, value: str, mask: str | None, position: str) -> None:
        """Fold in one vector; only the lanes of the mask. `position` holds the elements' indices."""
        if mask is not None:
            value = self.body.choose(mask, self.dtype, value, self._empty(self.dtype))
        now = self.block.get()
        if self.place is None:
            self.block.set(self._combine(self.dtype, now, value))
            return
        better = self._better(value, now)
        if mask is not None:
            better = self.writer.let(f"and {self.body.type('bool')} {better}, {mask}")
        self.block.set(self.body.choose(better, self.dtype, value, now))
        self.place.set(self.body.choose(better, "i64", position, self.place.get()))

    def absorb(self, other: Accumulator) -> None:
        """Join another's block with this one's (never of finds: their order would be lost)."""
        self.block.set(self._combine(self.dtype, self.block.get(), other.block.get()))

    def end_block(self) -> None:
        """Add the block to the total."""
        value = self.block.get()
        if self.place is not None and self.where is not None:
            now = self.total.get()
            better = self._better(value, now)
            self.total.set(self.body.choose(better, self.dtype, value, now))
            self.where.set(self.body.choose(better, "i64", self.place.get(), self.where.get()))
            return
        value = self.body.cast(value, self.dtype, self.exact)
        if self.lost is None:
            self.total.set(self._combine(self.exact, self.total.get(), value))
            return
        total, lost = self._two_sum(self.body, self.total.get(), value)
        self.total.set(total)
        self.lost.set(self.body.arithmetic("add", "f64", self.lost.get(), lost))

    def _combine(self, dtype: str, a: str, b: str) -> str:
        return _combine(self.body, self.fold.kind, dtype, a, b)

    def _better(self, new: str, old: str, body: Body | None = None) -> str:
        """Is `new` strictly ahead of `old`? A NaN is ahead of all numbers, and the first of them stays."""
        body = body or self.body
        ahead = body.compare("gt" if self.fold.kind == "argmax" else "lt", self.dtype, new, old)
        if self.dtype not in FLOATS:
            return ahead
        kind, mask = body.type(self.dtype), body.type("bool")
        new_nan = self.writer.let(f"fcmp uno {kind} {new}, {new}")
        old_number = self.writer.let(f"fcmp ord {kind} {old}, {old}")
        return self.writer.let(f"or {mask} {ahead}, {self.writer.let(f'and {mask} {new_nan}, {old_number}')}")

    def _two_sum(self, body: Body, a: str, b: str) -> tuple[str, str]:
        """a + b rounded, and exactly what rounding lost."""
        total = body.arithmetic("add", "f64", a, b)
        of_b = body.arithmetic("sub", "f64", total, a)
        of_a = body.arithmetic("sub", "f64", total, of_b)
        lost_a = body.arithmetic("sub", "f64", a, of_a)
        lost_b = body.arithmetic("sub", "f64", b, of_b)
        return total, body.arithmetic("add", "f64", lost_a, lost_b)

    def lanes_result(self) -> str:
        """The fold of every lane by itself: a vector of the fold's dtype."""
        if self.where is not None:
            return self.where.get()
        return self.body.cast(self._settled(self.body, self.total.get(), self.lost), self.exact, self.fold.dtype)

    def _settled(self, body: Body, total: str, lost: Variable | str | None) -> str:
        if lost is None:
            return total
        text = lost if isinstance(lost, str) else lost.get()
        # An infinite total has lost nothing that could be told: inf - inf.
        known = self.writer.let(f"fcmp ord {body.type('f64')} {text}, {text}")
        return body.choose(known, "f64", body.arithmetic("add", "f64", total, text), total)

    def result(self) -> str:
        """One number for all lanes: halves are folded onto each other until one lane is left."""
        writer, lanes = self.writer, self.lanes
        total = self.total.get()
        lost = self.lost.get() if self.lost is not None else None
        where = self.where.get() if self.where is not None else None
        while lanes > 1:
            half = lanes // 2
            body = Body(writer, half, lambda e: "")
            (a, b) = self._halves(total, self.exact, lanes)
            if where is not None:
                p, q = self._halves(where, "i64", lanes)
                second = self._ahead_by_place(body, b, a, q, p)
                total = body.choose(second, self.dtype, b, a)
                where = body.choose(second, "i64", q, p)
            elif lost is not None:
                total, more = self._two_sum(body, a, b)
                p, q = self._halves(lost, "f64", lanes)
                lost = body.arithmetic("add", "f64", body.arithmetic("add", "f64", p, q), more)
            else:
                total = _combine(body, self.fold.kind, self.exact, a, b)
            lanes = half
        one = Body(writer, 1, lambda e: "")
        if where is not None:
            return writer.let(f"extractelement <1 x i64> {where}, i64 0")
        last = one.cast(self._settled(one, total, lost), self.exact, self.fold.dtype)
        return writer.let(f"extractelement {one.type(self.fold.dtype)} {last}, i64 0")

    def _ahead_by_place(self, body: Body, b: str, a: str, q: str, p: str) -> str:
        """Is lane b's find the one to keep: ahead of a's, or as good and earlier?"""
        writer, mask = self.writer, body.type("bool")
        ahead = self._better(b, a, body)
        behind = self._better(a, b, body)
        ones = "<" + ", ".join(["i1 true"] * body.lanes) + ">"
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

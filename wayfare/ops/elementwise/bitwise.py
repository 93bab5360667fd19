"""Bits of integers and bools, and whole-number theory."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from wayfare.core.op import Sample
from wayfare.ops._define import elementwise
from wayfare.ops.elementwise import onnx_arithmetic as rules
from wayfare.ops.elementwise import onnx_iterative as loops


def _whole_numbers(arity: int, low: int, high: int) -> Any:
    def samples(rng: Any) -> Iterable[Sample]:
        shapes: list[list[tuple[int, ...]]] = [[(3, 4)] * arity, [()] * arity, [(2, 0)] * arity]
        if arity > 1:
            shapes.append([(2, 3), (3,)])
        for layout in shapes:
            yield Sample(tuple(rng.integers(low, high, shape) for shape in layout))

    return samples


_INTEGERS = "biu"
bitwise_and = elementwise(
    "bitwise_and", onnx=rules.bits("BitwiseAnd", "And"), arity=2, reference=operator.and_,
    samples=_whole_numbers(2, -9, 9), kinds=_INTEGERS,
)  # fmt: skip
bitwise_or = elementwise(
    "bitwise_or", onnx=rules.bits("BitwiseOr", "Or"), arity=2, reference=operator.or_, samples=_whole_numbers(2, -9, 9),
    kinds=_INTEGERS,
)  # fmt: skip
bitwise_xor = elementwise(
    "bitwise_xor", onnx=rules.bits("BitwiseXor", "Xor"), arity=2, reference=operator.xor,
    samples=_whole_numbers(2, -9, 9), kinds=_INTEGERS,
)  # fmt: skip
bitwise_not = elementwise(
    "bitwise_not", onnx=rules.bits("BitwiseNot", "Not"), reference=operator.invert, samples=_whole_numbers(1, -9, 9),
    kinds=_INTEGERS,
)  # fmt: skip
# Past the width nothing but the sign is left, and a negative count is past it: NumPy and PyTorch agree.
bitwise_left_shift = elementwise(
    "bitwise_left_shift", onnx=rules.shift_left, arity=2, reference=operator.lshift, samples=_whole_numbers(2, 0, 9),
    kinds="iu",
)  # fmt: skip
bitwise_right_shift = elementwise(
    "bitwise_right_shift", onnx=rules.shift_right, arity=2, reference=operator.rshift, samples=_whole_numbers(2, 0, 9),
    kinds="iu",
)  # fmt: skip
gcd = elementwise("gcd", onnx=loops.gcd, arity=2, reference=math.gcd, samples=_whole_numbers(2, -30, 30), kinds="iu")
lcm = elementwise("lcm", onnx=loops.lcm, arity=2, reference=math.lcm, samples=_whole_numbers(2, -30, 30), kinds="iu")

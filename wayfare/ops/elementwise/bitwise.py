"""Bits of integers and bools, and whole-number theory."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from functools import partial
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


_bits = partial(elementwise, kinds="biu", samples=_whole_numbers(2, -9, 9))
_bits("bitwise_and", onnx=rules.bits("BitwiseAnd", "And"), arity=2, reference=operator.and_)
_bits("bitwise_or", onnx=rules.bits("BitwiseOr", "Or"), arity=2, reference=operator.or_)
_bits("bitwise_xor", onnx=rules.bits("BitwiseXor", "Xor"), arity=2, reference=operator.xor)
_bits("bitwise_not", onnx=rules.bits("BitwiseNot", "Not"), reference=operator.invert, samples=_whole_numbers(1, -9, 9))
_numbers = partial(elementwise, arity=2, kinds="iu")
# A negative count, or one past the width, leaves only the sign, as in NumPy and PyTorch.
_shift = partial(_numbers, samples=_whole_numbers(2, 0, 9))
_shift("bitwise_left_shift", onnx=rules.shift_left, reference=operator.lshift)
_shift("bitwise_right_shift", onnx=rules.shift_right, reference=operator.rshift)
_numbers("gcd", onnx=loops.gcd, reference=math.gcd, samples=_whole_numbers(2, -30, 30))
_numbers("lcm", onnx=loops.lcm, reference=math.lcm, samples=_whole_numbers(2, -30, 30))

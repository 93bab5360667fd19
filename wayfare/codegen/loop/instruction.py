"""The instructions of the loop language, one record each: what every code generator and the interpreter provide.

All other functions of formulas are written in these by `codegen.math`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    - `name`: what it is called in expressions.
    - `numpy`: what it means, on NumPy arrays. None: the interpreter has a case for it.
    - `inputs`: how many values it takes.
    - `kinds`: the NumPy kinds of dtype it takes: b bool, i and u integers, f floats.
    - `gives_mask`: the result is bool, whatever the inputs are.
    - `sign`: the operator that it is in printed loops, and how strongly that binds.
    - `llvm`: the LLVM instruction, or the condition of a comparison, for (floats, signed integers, unsigned integers,
      bool); "" where there is none or it takes several.
    - `cost`: roughly how long it takes, in additions.
    """

    name: str
    numpy: Callable[..., Any] | None = None
    inputs: int = 2
    kinds: str = "biuf"
    gives_mask: bool = False
    sign: tuple[str, int] | None = None
    llvm: tuple[str, str, str, str] = ("", "", "", "")
    cost: int = 1

    def llvm_for(self, dtype: np.dtype[Any]) -> str:
        """The LLVM instruction or condition for values of this dtype."""
        return self.llvm["fiub".index(dtype.kind)]


def _quotient(a: Array, b: Array) -> Any:
    """Integer division that rounds towards zero; division by zero gives 0, as in NumPy."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    floor = np.floor_divide(a, safe)
    towards_zero = np.where((floor < 0) & (floor * safe != a), floor + 1, floor)
    return np.where(b == 0, b.dtype.type(0), towards_zero).astype(a.dtype)


def _compares(name: str, numpy: Callable[..., Any], sign: str, *llvm: str) -> Instruction:
    ordered, signed, unsigned = llvm
    return Instruction(name, numpy, gives_mask=True, sign=(sign, 3), llvm=(ordered, signed, unsigned, unsigned))


def _bitwise(name: str, numpy: Callable[..., Any], llvm: str, kinds: str, sign: tuple[str, int]) -> Instruction:
    return Instruction(name, numpy, kinds=kinds, gives_mask=kinds == "b", sign=sign, llvm=("", llvm, llvm, llvm))


def _tests(name: str, numpy: Callable[..., Any]) -> Instruction:
    return Instruction(name, numpy, 1, gives_mask=True)


_ALL = (
    Instruction("add", np.add, sign=("+", 4), llvm=("fadd", "add", "add", "or")),
    Instruction("sub", np.subtract, kinds="iuf", sign=("-", 4), llvm=("fsub", "sub", "sub", "sub")),
    Instruction("mul", np.multiply, sign=("*", 5), llvm=("fmul", "mul", "mul", "and")),
    Instruction("div", np.true_divide, kinds="f", sign=("/", 5), llvm=("fdiv", "", "", ""), cost=4),
    Instruction("quotient", _quotient, kinds="iu", cost=4),
    Instruction("neg", np.negative, 1, kinds="iuf"),
    Instruction("abs", np.absolute, 1),
    Instruction("maximum", np.maximum, llvm=("", "", "", "or")),
    Instruction("minimum", np.minimum, llvm=("", "", "", "and")),
    Instruction("where", np.where, 3),
    Instruction("sqrt", np.sqrt, 1, kinds="f", cost=4),
    Instruction("floor", np.floor, 1),
    Instruction("ceil", np.ceil, 1),
    Instruction("trunc", np.trunc, 1),
    Instruction("rint", np.rint, 1),
    Instruction("copysign", np.copysign, kinds="f"),
    Instruction("fma", lambda a, b, c: a * b + c, 3, kinds="f"),
    _compares("eq", np.equal, "==", "oeq", "eq", "eq"),
    _compares("ne", np.not_equal, "!=", "une", "ne", "ne"),
    _compares("lt", np.less, "<", "olt", "slt", "ult"),
    _compares("le", np.less_equal, "<=", "ole", "sle", "ule"),
    _compares("gt", np.greater, ">", "ogt", "sgt", "ugt"),
    _compares("ge", np.greater_equal, ">=", "oge", "sge", "uge"),
    _tests("isnan", np.isnan),
    _tests("isinf", np.isinf),
    _tests("isfinite", np.isfinite),
    _tests("signbit", np.signbit),
    _bitwise("bitwise_and", np.bitwise_and, "and", "biu", ("&", 2)),
    _bitwise("bitwise_xor", np.bitwise_xor, "xor", "biu", ("^", 1)),
    _bitwise("bitwise_or", np.bitwise_or, "or", "biu", ("|", 0)),
    Instruction("bitwise_not", np.invert, 1, kinds="biu"),
    _bitwise("logical_and", np.logical_and, "and", "b", ("&", 2)),
    _bitwise("logical_xor", np.logical_xor, "xor", "b", ("^", 1)),
    _bitwise("logical_or", np.logical_or, "or", "b", ("|", 0)),
    Instruction("logical_not", np.logical_not, 1, kinds="b", gives_mask=True),
    Instruction("shift_left", np.left_shift, kinds="iu"),
    Instruction("shift_right", np.right_shift, kinds="iu"),
    # Another dtype; the same bits in another dtype.
    Instruction("cast", inputs=1),
    Instruction("bits", inputs=1),
    # A library function of doubles; a value that such a function computes where a condition holds, which is rare.
    Instruction("call", cost=10),
    Instruction("rescue", cost=10),
)
INSTRUCTIONS: dict[str, Instruction] = {instruction.name: instruction for instruction in _ALL}

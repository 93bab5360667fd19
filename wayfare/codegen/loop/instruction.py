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
    - `c`: the same in C, with {0}, {1}, … for the values, {t} for the dtype, {f} for the suffix of a function of
      floats, {inf} for infinity and {bits} for the function that gives the bits of a float.
    - `cost`: roughly how long it takes, in additions.
    """

    name: str
    numpy: Callable[..., Any] | None = None
    inputs: int = 2
    kinds: str = "biuf"
    gives_mask: bool = False
    sign: tuple[str, int] | None = None
    llvm: tuple[str, str, str, str] = ("", "", "", "")
    c: tuple[str, str, str, str] = ("", "", "", "")
    cost: int = 1

    def llvm_for(self, dtype: np.dtype[Any]) -> str:
        """The LLVM instruction or condition for values of this dtype."""
        return self.llvm["fiub".index(dtype.kind)]

    def c_for(self, dtype: np.dtype[Any]) -> str:
        """The C text for values of this dtype."""
        return self.c["fiub".index(dtype.kind)]


def _quotient(a: Array, b: Array) -> Any:
    """Integer division that rounds towards zero; division by zero gives 0, as in NumPy."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    floor = np.floor_divide(a, safe)
    towards_zero = np.where((floor < 0) & (floor * safe != a), floor + 1, floor)
    return np.where(b == 0, b.dtype.type(0), towards_zero).astype(a.dtype)


def _compares(name: str, numpy: Callable[..., Any], sign: str, *llvm: str) -> Instruction:
    ordered, signed, unsigned = llvm
    text = f"{{0}} {sign} {{1}}"
    return Instruction(name, numpy, gives_mask=True, sign=(sign, 3), llvm=(ordered, signed, unsigned, unsigned),
                       c=(text, text, text, text))  # fmt: skip


def _bitwise(name: str, numpy: Callable[..., Any], llvm: str, kinds: str, sign: tuple[str, int], of_bools: str
             ) -> Instruction:  # fmt: skip
    whole = f"({{t}})({{0}} {sign[0]} {{1}})"
    return Instruction(name, numpy, kinds=kinds, gives_mask=kinds == "b", sign=sign, llvm=("", llvm, llvm, llvm),
                       c=("", whole, whole, f"{{0}} {of_bools} {{1}}"))  # fmt: skip


def _tests(name: str, numpy: Callable[..., Any], c: str, of_integers: str = "false") -> Instruction:
    signed = "{0} < 0" if name == "signbit" else of_integers
    return Instruction(name, numpy, 1, gives_mask=True, c=(c, signed, of_integers, of_integers))


def _rounds(name: str, numpy: Callable[..., Any]) -> Instruction:
    return Instruction(name, numpy, 1, c=(name + "{f}({0})", "{0}", "{0}", "{0}"))


def _of_integers(c: str, of_floats: str = "", of_bools: str = "") -> tuple[str, str, str, str]:
    """A C text that is the same for signed and unsigned integers."""
    return (of_floats, c, c, of_bools)


_ALL = (
    Instruction("add", np.add, sign=("+", 4), llvm=("fadd", "add", "add", "or"),
                c=_of_integers("wrap_add({0}, {1})", "{0} + {1}", "{0} || {1}")),
    Instruction("sub", np.subtract, kinds="iuf", sign=("-", 4), llvm=("fsub", "sub", "sub", "sub"),
                c=_of_integers("wrap_sub({0}, {1})", "{0} - {1}")),
    Instruction("mul", np.multiply, sign=("*", 5), llvm=("fmul", "mul", "mul", "and"),
                c=_of_integers("wrap_mul({0}, {1})", "{0} * {1}", "{0} && {1}")),
    Instruction("div", np.true_divide, kinds="f", sign=("/", 5), llvm=("fdiv", "", "", ""),
                c=("{0} / {1}", "", "", ""), cost=4),
    Instruction("quotient", _quotient, kinds="iu", c=_of_integers("quotient({0}, {1})"), cost=4),
    Instruction("neg", np.negative, 1, kinds="iuf", c=_of_integers("wrap_sub(({t})0, {0})", "-{0}")),
    Instruction("abs", np.absolute, 1, c=("fabs{f}({0})", "{0} < 0 ? wrap_sub(({t})0, {0}) : {0}", "{0}", "{0}")),
    Instruction("maximum", np.maximum, llvm=("", "", "", "or"),
                c=_of_integers("maximum({0}, {1})", "maximum({0}, {1})", "{0} || {1}")),
    Instruction("minimum", np.minimum, llvm=("", "", "", "and"),
                c=_of_integers("minimum({0}, {1})", "minimum({0}, {1})", "{0} && {1}")),
    Instruction("where", np.where, 3, c=_of_integers("{0} ? {1} : {2}", "{0} ? {1} : {2}", "{0} ? {1} : {2}")),
    Instruction("sqrt", np.sqrt, 1, kinds="f", c=("sqrt{f}({0})", "", "", ""), cost=4),
    _rounds("floor", np.floor),
    _rounds("ceil", np.ceil),
    _rounds("trunc", np.trunc),
    _rounds("rint", np.rint),
    Instruction("copysign", np.copysign, kinds="f", c=("copysign{f}({0}, {1})", "", "", "")),
    Instruction("fma", lambda a, b, c: a * b + c, 3, kinds="f", c=("fma{f}({0}, {1}, {2})", "", "", "")),
    _compares("eq", np.equal, "==", "oeq", "eq", "eq"),
    _compares("ne", np.not_equal, "!=", "une", "ne", "ne"),
    _compares("lt", np.less, "<", "olt", "slt", "ult"),
    _compares("le", np.less_equal, "<=", "ole", "sle", "ule"),
    _compares("gt", np.greater, ">", "ogt", "sgt", "ugt"),
    _compares("ge", np.greater_equal, ">=", "oge", "sge", "uge"),
    _tests("isnan", np.isnan, "{0} != {0}"),
    _tests("isinf", np.isinf, "fabs{f}({0}) == {inf}"),
    _tests("isfinite", np.isfinite, "fabs{f}({0}) < {inf}", "true"),
    _tests("signbit", np.signbit, "{bits}({0}) < 0"),
    _bitwise("bitwise_and", np.bitwise_and, "and", "biu", ("&", 2), "&&"),
    _bitwise("bitwise_xor", np.bitwise_xor, "xor", "biu", ("^", 1), "!="),
    _bitwise("bitwise_or", np.bitwise_or, "or", "biu", ("|", 0), "||"),
    Instruction("bitwise_not", np.invert, 1, kinds="biu", c=_of_integers("({t})~{0}", "", "!{0}")),
    _bitwise("logical_and", np.logical_and, "and", "b", ("&", 2), "&&"),
    _bitwise("logical_xor", np.logical_xor, "xor", "b", ("^", 1), "!="),
    _bitwise("logical_or", np.logical_or, "or", "b", ("|", 0), "||"),
    Instruction("logical_not", np.logical_not, 1, kinds="b", gives_mask=True, c=("", "", "", "!{0}")),
    Instruction("shift_left", np.left_shift, kinds="iu", c=_of_integers("shift_left({0}, {1})")),
    Instruction("shift_right", np.right_shift, kinds="iu", c=_of_integers("shift_right({0}, {1})")),
    # Another dtype; the same bits in another dtype.
    Instruction("cast", inputs=1),
    Instruction("bits", inputs=1),
    # A library function of doubles; a value that such a function computes where a condition holds, which is rare.
    Instruction("call", cost=10),
    Instruction("rescue", cost=10),
)  # fmt: skip
INSTRUCTIONS: dict[str, Instruction] = {instruction.name: instruction for instruction in _ALL}

"""The user's expression that raised an error, drawn with the shape of each operand under it.

Python knows the source position of each instruction. Only certain facts are shown: shapes of bound names, of attributes
and items that can be looked up without running code, and of the operands that the op reports. Without source code
nothing is shown.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from wayfare.core.callsite import source_lines

# Longer expressions are not shown, nor longer lists of tensors.
_MOST_LINES = 12
_MOST_ITEMS = 4
# The op that each Python operator runs on tensors.
_OPERATORS: dict[type[ast.AST], str] = {
    ast.MatMult: "matmul", ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow",
    ast.Mod: "remainder", ast.FloorDiv: "floor_divide", ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip


class _Label(NamedTuple):
    """A part of a line (in characters), and its label."""

    line: int
    start: int
    end: int
    text: str


def drawn(frame: FrameType | None, op: str = "", specs: Sequence[Any] = ()) -> str:
    """The current expression of a frame, drawn with the shapes of its operands; empty if that is not possible.

    `op` and `specs` say which op failed on what, if that is known; then operands without a name have a shape too.
    """
    if frame is None:
        return ""
    try:
        return _drawn(frame, op, specs)
    except Exception:
        return ""  # e.g. the source file has changed; while an error is reported, no other may be raised


def _drawn(frame: FrameType, op: str, specs: Sequence[Any]) -> str:
    code = frame.f_code
    place = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), None)
    if place is None or None in place:
        return ""
    first, last, start, end = place
    assert first is not None and last is not None and start is not None and end is not None
    source = source_lines(code.co_filename, frame.f_globals)
    if last > len(source) or last - first >= _MOST_LINES:
        return ""
    lines = [line.rstrip("\n") for line in source[first - 1 : last]]
    part = [line.encode() for line in lines]
    part[-1] = part[-1][:end]
    part[0] = part[0][start:]
    tree, shift = _parsed("\n".join(piece.decode() for piece in part))
    if tree is None:
        return ""
    labels = []
    for node, text in _labels(tree, frame, op, specs):
        line = node.lineno - 1
        offset = start - shift if line == 0 else 0
        begin = node.col_offset + offset
        stop = len(lines[line].encode()) if node.end_lineno != node.lineno else node.end_col_offset + offset
        raw = lines[line].encode()
        labels.append(_Label(line, len(raw[:begin].decode()), len(raw[:stop].decode()), text))
    return _picture(lines, labels) if labels else ""


def _parsed(text: str) -> tuple[Any, int]:
    """The syntax tree of an expression or statement, and by how many characters its first line was shifted."""
    try:
        # In brackets, so that it may span several lines.
        return ast.parse(f"({text})", mode="eval").body, 1
    except SyntaxError:
        pass
    try:
        return ast.parse(text).body[0], 0
    except (SyntaxError, IndexError):
        return None, 0


def _labels(tree: Any, frame: FrameType, op: str, specs: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    operands = _operands(tree)
    names = _Names(frame)
    operator: Any = tree.ops[0] if isinstance(tree, ast.Compare) else getattr(tree, "op", None)
    if len(operands) == len(specs) == 2 and _OPERATORS.get(type(operator)) == op and not names.others(operands):
        yield from zip(operands, map(repr, specs), strict=True)
        return
    for operand in operands:
        yield from names.labels(operand)


def _operands(node: Any) -> list[Any]:
    """The operands of an expression: of an operator, a comparison, or a call."""
    match node:
        case ast.BinOp():
            return [node.left, node.right]
        case ast.AugAssign():
            return [node.target, node.value]
        case ast.Compare():
            return [node.left, *node.comparators]
        case ast.Call():
            given = [keyword.value for keyword in node.keywords]
            return ([node.func.value] if isinstance(node.func, ast.Attribute) else []) + node.args + given
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return []  # its names belong to another frame
        case _:
            return [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.expr, ast.slice))]


class _Names:
    """The values of names in a frame, found without calling any code of the user."""

    def __init__(self, frame: FrameType) -> None:
        self._locals = frame.f_locals
        self._globals = frame.f_globals

    def others(self, nodes: list[Any]) -> bool:
        """Is one of these known not to be a tensor? Then the op that failed ran somewhere inside it."""
        values = [self._value(node) for node in nodes]
        return any(value is not None and not _shape_text(value) for value in values)

    def labels(self, node: Any) -> Iterator[tuple[Any, str]]:
        """The shapes in an operand: its own, or else those of the parts it is made of."""
        text = _shape_text(self._value(node))
        if text:
            yield node, text
            return
        for part in _operands(node):
            yield from self.labels(part)

    def _value(self, node: Any) -> Any:
        if isinstance(node, ast.Name):
            return self._locals.get(node.id, self._globals.get(node.id))
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            # Only `__dict__`: a property or __getattr__ would run the user's code.
            return None if owner is None else getattr(owner, "__dict__", {}).get(node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            owner = self._value(node.value)
            if type(owner) in (list, tuple, dict):
                return owner[node.slice.value]
        return None


def _shape_text(value: Any) -> str:
    """`f32[8,3]` for a tensor, `[f32[2], f32[3]]` for a short list of them, empty for anything else."""
    if value is None or isinstance(value, (ModuleType, type)):
        return ""
    if type(value) is np.ndarray:
        return f"{value.dtype}{list(value.shape)} (an array)"
    if type(value) in (list, tuple):
        if not 0 < len(value) <= _MOST_ITEMS:
            return ""
        texts = [_shape_text(item) for item in value]
        return "" if "" in texts else f"[{', '.join(texts)}]"
    if hasattr(type(value), "grad_fn") and hasattr(type(value), "spec"):
        return repr(value.spec)
    return ""


def _picture(lines: list[str], labels: list[_Label]) -> str:
    """The lines with labels, each followed by its labels."""
    shown = sorted({label.line for label in labels})
    indent = min(len(lines[n]) - len(lines[n].lstrip()) for n in shown)
    out: list[str] = []
    for number in shown:
        out.append(lines[number].replace("\t", " ")[indent:].rstrip())
        here = sorted(label for label in labels if label.line == number)
        out.append(_row([(label.start, "~" * max(1, label.end - label.start)) for label in here], indent))
        # From right to left, so that each text has the rest of its row.
        for last in range(len(here) - 1, -1, -1):
            marks = [(label.start, "│") for label in here[:last]]
            out.append(_row([*marks, (here[last].start, f"└ {here[last].text}")], indent))
    return "\n".join(f"    {line}" for line in out)


def _row(marks: list[tuple[int, str]], indent: int) -> str:
    row = ""
    for start, text in marks:
        row = row.ljust(start - indent) + text
    return row

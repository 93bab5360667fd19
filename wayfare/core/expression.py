"""The user's expression that an error came from, with the shape of each operand under it.

Python knows for each instruction where in the source it comes from. Only what is certain is shown: names that are
bound, attributes and items that are there to be looked up, and the operands an op says it was given. Where the source
is not to be had, nothing is shown.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from wayfare.core.callsite import source_lines

# An expression of more lines is not shown, nor a list of more tensors.
_MOST_LINES = 12
_MOST_ITEMS = 4
# Which op an operator runs on tensors: its operands are the op's inputs.
_OPERATORS: dict[type[ast.AST], str] = {
    ast.MatMult: "matmul", ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow",
    ast.Mod: "remainder", ast.FloorDiv: "floor_divide", ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip


class _Label(NamedTuple):
    """A part of a line (in characters), and what is to be said of it."""

    line: int
    start: int
    end: int
    text: str


def drawn(frame: FrameType | None, op: str = "", specs: Sequence[Any] = ()) -> str:
    """The expression that a frame is in, drawn with the shapes of its operands; empty where that cannot be done.

    `op` and `specs` say which op failed on what, if that is known: an operator's operands then need no name.
    """
    if frame is None:
        return ""
    try:
        return _drawn(frame, op, specs)
    except Exception:
        return ""  # The source is not what is running, or is no source at all: an error is no place for another.


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
    """The tree of an expression or of a statement, and by how much its first line was moved to the right."""
    try:
        # In brackets, so that it may go on over several lines.
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
    """The parts of an expression that are given to what it does."""
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
            return []  # The names inside are not those of this frame.
        case _:
            return [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.expr, ast.slice))]


class _Names:
    """What the names of a frame stand for. Nothing of the user's is called to find out."""

    def __init__(self, frame: FrameType) -> None:
        self._locals = frame.f_locals
        self._globals = frame.f_globals

    def others(self, nodes: list[Any]) -> bool:
        """Is one of these known, and no tensor? The op that failed was then one of several that it stands for."""
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
            # The dictionary itself: a property, or __getattr__, would be the user's code.
            return None if owner is None else getattr(owner, "__dict__", {}).get(node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            owner = self._value(node.value)
            if type(owner) in (list, tuple, dict):
                return owner[node.slice.value]
        return None


def _shape_text(value: Any) -> str:
    """`f32[8,3]` for a tensor, `[f32[2], f32[3]]` for a few of them, nothing for what has no shape."""
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
    """The lines that have labels, each with them under it."""
    shown = sorted({label.line for label in labels})
    indent = min(len(lines[n]) - len(lines[n].lstrip()) for n in shown)
    out: list[str] = []
    for number in shown:
        out.append(lines[number].replace("\t", " ")[indent:].rstrip())
        here = sorted(label for label in labels if label.line == number)
        out.append(_row([(label.start, "~" * max(1, label.end - label.start)) for label in here], indent))
        # From the right, so that every text has the rest of its row to itself.
        for last in range(len(here) - 1, -1, -1):
            marks = [(label.start, "│") for label in here[:last]]
            out.append(_row([*marks, (here[last].start, f"└ {here[last].text}")], indent))
    return "\n".join(f"    {line}" for line in out)


def _row(marks: list[tuple[int, str]], indent: int) -> str:
    row = ""
    for start, text in marks:
        row = row.ljust(start - indent) + text
    return row

"""Measure the architecture: what of it can be counted, beside what it is to become.

    python tools/measure_house.py

Everything is read from the source, but for the names of the ops, which come from the registry.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "wayfare"

# Instructions of LLVM's language in the text of a module.
INSTRUCTION = re.compile(r"getelementptr|fmul |= load |phi i64|icmp ")

# A routine is written with a `Writer` of IR, or with what is built on it.
BUILDER = re.compile(r"\bWriter\(\)|\bVectorCode\(|\(VectorCode\)|windows import Nest")

# Classes that say which ops a computation consists of, by file. The first six are wanted: the tape, the SSA graph, the
# loop, the plan, the batched call, the ONNX target. The others are to become one of these, or have done so.
REPRESENTATIONS = [
    ("core/node.py", "Node"), ("ir/graph.py", "Step"), ("codegen/loop/language.py", "Loop"),
    ("ir/plan/actions.py", "Action"), ("batch/record/call.py", "Call"), ("exporters/onnx/graph.py", "OnnxGraph"),
    ("ir/fuse/program.py", "FusedProgram"), ("codegen/runtime/command.py", "Command"),
    ("see/debug/recorder.py", "Entry"), ("exporters/program.py", "Node"), ("exporters/trace.py", "Event"),
]  # fmt: skip


def sources() -> Iterator[tuple[str, str]]:
    """(path inside the package, text) of each module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")


def code_lines(text: str) -> int:
    """Lines that hold more than a comment or a docstring."""
    strings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - strings)


def measured() -> list[tuple[str, int, str]]:
    """(what, how many, how many there should be)"""
    sys.path.insert(0, str(ROOT))
    from tests.test_facts_on_records import tables_away
    from tests.test_generated_text import files_with_texts
    from tests.test_layers import LAYERS
    from tests.test_one_way_to_run import others, questions
    from wayfare.core.op import Op

    fields = Op.__dataclass_fields__.values()
    trees = {name: ast.parse(text) for name, text in sources()}
    asked = {name: len(questions(text)) for name, text in others()}
    texts = files_with_texts()
    stand_ins = [node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
                 if any(isinstance(base, ast.Name) and base.id == "Tensor" for base in node.bases)
                 and node.name not in ("Parameter", "Buffer")]  # fmt: skip
    classes = {(name, node.name) for name, tree in trees.items() for node in tree.body
               if isinstance(node, ast.ClassDef)}  # fmt: skip
    forms = [f"{name} ({file})" for file, name in REPRESENTATIONS if (file, name) in classes]
    counts = [name for name, text in sources() if re.search(r"getrefcount\(|import getrefcount", text)]
    hand_written = [name for name, text in sources() if INSTRUCTION.search(text)]
    routines = [name.removeprefix("codegen/routines/") for name, text in sources()
                if name.startswith("codegen/routines/") and BUILDER.search(text)]  # fmt: skip
    return [
        ("modules flat in wayfare/", sum("/" not in name for name in trees) - 2, "<= 5 (besides __init__, __main__)"),
        ("layers", len(LAYERS), "<= 20"),
        ("representations of a computation: " + ", ".join(forms), len(forms), "6"),
        ("stand-in tensors: " + ", ".join(sorted(stand_ins)), len(stand_ins), "<= 2"),
        ("questions who runs the code, outside executors", sum(asked.values()), "0"),
        ("files with such questions", sum(map(bool, asked.values())), "0"),
        ("tables keyed by names of ops, away from the records", len(tables_away()), "0"),
        ("facts on an Op", sum(f.init for f in fields), "facts only"),
        ("derived fields of an Op", sum(not f.init for f in fields), "what eager calls read for each op"),
        ("files that compile Python text: " + ", ".join(texts), len(texts), "<= 2"),
        ("files that count references: " + ", ".join(counts), len(counts), "0"),
        ("files with hand-written LLVM IR", len(hand_written), "<= 8"),
        ("routines written with the IR builder: " + ", ".join(routines), len(routines), "what loops cannot do as fast"),
        ("lines of code, without comments and docstrings", sum(code_lines(text) for _, text in sources()), "<= 60,000"),
    ]


if __name__ == "__main__":
    for what, count, wanted in measured():
        print(f"{count:>7,}  {wanted:<34} {what}")

"""Python text that the package compiles while it runs: in one place, whose users have each a reason.

`tools/measure_house.py` counts by the same search.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "wayfare"
GENERATOR = "compiler/generated.py"

# Who may use the generator, and what it gains. Before another one is added: write it with closures, a table or a loop,
# measure both, and put the figures into the docstring of the generator.
USERS = {
    "compiler/replay/fast_path.py": "a call that is replayed takes a quarter to a half longer with loops",
    "compiler/captures/guards.py": "a call of a small model with 34 guards takes a seventh longer with loops",
    "batch/record/opaque_fast_path.py": "recording a cell takes a fifth to a half longer with loops",
    "batch/record/function_copy.py": "compiles the user's own source, with its calls looked at",
}
RUN_TEXT = {"exec", "eval", "compile"}


def texts(source: str) -> list[int]:
    """The lines that call `exec`, `eval` or `compile`, unless these are functions of the module itself."""
    nodes = list(ast.walk(ast.parse(source)))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    own |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    by_name = [f.lineno for f in called if isinstance(f, ast.Name) and f.id in RUN_TEXT - own]
    dotted = [f.lineno for f in called if isinstance(f, ast.Attribute) and ast.unparse(f.value) == "builtins"
              and f.attr in RUN_TEXT]  # fmt: skip
    return sorted(by_name + dotted)


def sources() -> dict[str, str]:
    """Path inside the package → text, of each module."""
    return {p.relative_to(PACKAGE).as_posix(): p.read_text(encoding="utf-8") for p in sorted(PACKAGE.rglob("*.py"))}


def files_with_texts() -> list[str]:
    """The modules that hand text to Python."""
    return [name for name, source in sources().items() if texts(source)]


def test_text_is_compiled_in_one_place():
    assert files_with_texts() == [GENERATOR]


def test_its_users_are_known():
    users = [name for name, source in sources().items() if "from wayfare.compiler.generated import" in source]
    assert set(users) == set(USERS)


@pytest.mark.parametrize("source, lines", [
    ("exec('1')", [1]),
    ("x = 1\ny = eval('x')", [2]),
    ("code = compile('1', 'f', 'exec')", [1]),
    ("import builtins\nbuiltins.exec('1')", [2]),
    ("from wayfare import compile\ncompile(f)", []),
    ("def compile(f): ...\ncompile(f)", []),
    ("model.eval()\nre.compile('x')", []),
])  # fmt: skip
def test_texts_are_found(source, lines):
    assert texts(source) == lines

"""What is true of an op stands on its record: no table of names of ops anywhere else.

A dict, set, tuple or list of strings that are all names of ops is such a table, and so is a function that asks for the
names of several ops one after the other. `tools/measure_house.py` counts by the same search.
"""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import wayfare  # noqa: F401 - fills the registry
from wayfare.core.op import REGISTRY, Op

PACKAGE = Path(__file__).resolve().parents[1] / "wayfare"
# So many names of ops, and nothing else, make a table.
TABLE = 3
# Files with other words that happen to be names of ops.
OTHER_WORDS = {
    # What PyTorch's `scatter_reduce(..., reduce=...)` may be given.
    "api/functions/scatter.py",
    # Functions of CUDA's library.
    "codegen/cuda/functions.py",
    # Functions of SciPy's C interface and of the C library.
    "codegen/math/calls.py",
    # Instructions of the loop language, for each of which a loop or a routine is written.
    "codegen/routines/scans.py",
    "codegen/routines/segments.py",
}


def strings(nodes):
    """The texts of constants; None for anything else."""
    return [node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None for node in nodes]


def words_of(node):
    """The keys or elements of a container that is written out, as texts."""
    if isinstance(node, ast.Dict):
        return strings(node.keys)
    if isinstance(node, (ast.Set, ast.Tuple, ast.List)):
        return strings(node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return [keyword.arg for keyword in node.keywords]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
        return (strings([node.func.value])[0] or "").split()
    return []


def is_name(node):
    """Is this `something.name`?"""
    return isinstance(node, ast.Attribute) and node.attr == "name"


def asked_in(function):
    """The constants that a function compares some `.name` with."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and is_name(node.left):
            for other in node.comparators:
                found.update(strings([other]) if isinstance(other, ast.Constant) else words_of(other))
        elif isinstance(node, ast.Match) and is_name(node.subject):
            values = [inner.value for case in node.cases for inner in ast.walk(case.pattern)
                      if isinstance(inner, ast.MatchValue)]  # fmt: skip
            found.update(strings(values))
    return found


def tables(tree, ops):
    """(line, names) of each table of names of ops in a module. Lists of public names are none."""
    public = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Assign)
              and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)}  # fmt: skip
    for node in ast.walk(tree):
        words = words_of(node)
        if len(words) >= TABLE and id(node) not in public and all(word in ops for word in words):
            yield node.lineno, sorted(words)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            asked = asked_in(node) & ops
            if len(asked) >= TABLE:
                yield node.lineno, sorted(asked)


def tables_away():
    """'file:line: names' for each table outside the records."""
    ops = set(REGISTRY)
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        # A record is one of ops/; the constructors of their families are no records.
        if (name.startswith("ops/") and name != "ops/_define.py") or name in OTHER_WORDS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"wayfare/{name}:{line}: {', '.join(names)}" for line, names in tables(tree, ops)]
    return found


def test_facts_about_ops_stand_on_their_records():
    found = tables_away()
    assert not found, "tables of ops; give the record a field (see wayfare/core/op.py):\n" + "\n".join(found)


def test_no_file_is_left_out_for_nothing():
    for name in OTHER_WORDS:
        assert list(tables(ast.parse((PACKAGE / name).read_text(encoding="utf-8")), set(REGISTRY))), name


@pytest.mark.parametrize(
    "source",
    [
        "x = {'add': 1, 'sub': 2, 'mul': 3}",
        "x = frozenset({'add', 'sub', 'mul'})",
        "x = ['add', 'sub', 'mul']",
        "x = op in ('add', 'sub', 'mul')",
        "x = dict(add=1, sub=2, mul=3)",
        "x = 'add sub mul'.split()",
        "def f(op):\n if op.name == 'add':\n  return 1\n return op.name in ('sub', 'mul')",
        "def f(op):\n match op.name:\n  case 'add' | 'sub':\n   return 1\n  case 'mul':\n   return 2",
    ],
)
def test_a_table_is_found(source):
    ((_, names),) = tables(ast.parse(source), set(REGISTRY))
    assert names == ["add", "mul", "sub"]


@pytest.mark.parametrize(
    "source",
    ["__all__ = ['add', 'sub', 'mul']", "x = ('add', 'sub')", "x = {'add', 'sub', 'mul', 'walk'}", "x = {**y}"],
)
def test_other_lists_are_no_tables(source):
    assert not list(tables(ast.parse(source), set(REGISTRY)))


def test_every_field_of_a_record_is_explained():
    missing = [f.name for f in fields(Op) if f.init and f"- `{f.name}`: " not in (Op.__doc__ or "")]
    assert not missing

"""Generated functions: Python text without loops, written for one case. Nowhere else is text compiled as Python.

The generated functions have three users: `compiler/replay/fast_path.py`, `compiler/captures/guards.py` and
`batch/record/opaque_fast_path.py`. Each does the same few tests at every call, and a loop over a table of these tests
takes longer: docs/design/compiler.md has the figures.

`compiled_tree` compiles no text of ours: `batch/record/function_copy.py` has the user's own source compiled, in which
calls pass through a function of the library.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any


def define(name: str, parameters: str, body: Iterable[str], values: dict[str, Any]) -> Any:
    """The function with these parameters and these lines as its body. Its global names are `values`."""
    source = "\n    ".join([f"def {name}({parameters}):", *body])
    defined: dict[str, Any] = {}
    exec(compile(source, "<wayfare generated>", "exec"), values, defined)
    return defined[name]


def compiled_tree(tree: ast.Module, filename: str, flags: int) -> CodeType:
    """The code of a syntax tree that was read from a file of the user's and changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # the user has heard them when the file was compiled
        code: CodeType = compile(tree, filename, "exec", flags, dont_inherit=True)
    return code


def unless(tests: Sequence[str], statement: str) -> list[str]:
    """Lines that run a statement unless all tests hold."""
    # Python's compiler recurses over long `and` chains, so they are split.
    return [f"if not ({' and '.join(tests[i : i + 50])}): {statement}" for i in range(0, len(tests), 50)]

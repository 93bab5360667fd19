"""Generated functions: Python text without loops, written for one case. Nowhere else is text compiled as Python.

`compiled_tree` is for `batch/record/function_copy.py`, which compiles the user's own source with its calls looked at.

The generated functions have three users. Each does the same few tests at every call, and a loop over a table of these
tests takes longer (text against loop, for a whole call, CPython 3.11):

- `compiler/replay/fast_path.py`: a compiled chain of ops takes 3.4 µs against 4.6, a small MLP 4.4 against 5.7.
- `compiler/captures/guards.py`: the MLP, which has 34 guards, takes 4.4 µs against 5.0.
- `batch/record/opaque_fast_path.py`: a GRU cell is recorded in 1.6 µs against 2.0, an LSTM cell in 2.1 against 3.1.
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

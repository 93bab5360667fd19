"""Writes `tensor_methods.pyi`, so that type checkers and editors know Tensor's installed methods.

    python -m wayfare.testing.stubs          write it
    python -m wayfare.testing.stubs --check  exit 1 if it is out of date
"""

from __future__ import annotations

import inspect
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import wayfare
from wayfare.functions._public import METHODS, PROPERTIES

PATH = pathlib.Path(wayfare.__file__).with_name("tensor_methods.pyi")

_HEAD = '''"""Generated from the public functions by `python -m wayfare.testing.stubs`; do not edit."""

import builtins
{imports}from typing import Any

from wayfare.tensor import Tensor

class TensorMethods:
'''
_OPERATORS_RETURNING_TENSOR = ("__eq__", "__ne__")
_KNOWN = frozenset(
    ("Any", "None", "bool", "int", "float", "str", "tuple", "list", "dict", "object", "Tensor")
    + ("Sequence", "Callable", "Iterable", "Iterator")
)


def _annotation(value: Any) -> str:
    """An annotation as text; names that the stub does not import become Any."""
    if value is inspect.Parameter.empty:
        return "Any"
    text = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    words = "".join(c if c.isalnum() or c in "_." else " " for c in text).split()
    if not all(w in _KNOWN or w.isdigit() for w in words):
        return "Any"
    # Tensor has methods of these names, which would hide the built-in types inside the class.
    return re.sub(r"\b(bool|int|float)\b", r"builtins.\1", text)


def _default(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else "..."


def signature_text(name: str, function: Callable[..., Any]) -> str:
    """One line of the stub."""
    if name.startswith("__") and name.endswith("__"):
        return _operator_text(name, function)
    parts: list[str] = []
    star = False
    for i, p in enumerate(inspect.signature(function).parameters.values()):
        if i == 0:
            parts.append("self")
            continue
        if p.kind is p.VAR_POSITIONAL:
            parts.append(f"*{p.name}: {_annotation(p.annotation)}")
            star = True
            continue
        if p.kind is p.VAR_KEYWORD:
            parts.append(f"**{p.name}: {_annotation(p.annotation)}")
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        default = "" if p.default is p.empty else f" = {_default(p.default)}"
        parts.append(f"{p.name}: {_annotation(p.annotation)}{default}")
    returns = _annotation(inspect.signature(function).return_annotation)
    return f"    def {name}({', '.join(parts)}) -> {returns}: ..."


def _operator_text(name: str, function: Callable[..., Any]) -> str:
    count = len(inspect.signature(function).parameters) - 1
    ignore = "  # type: ignore[override]" if name in _OPERATORS_RETURNING_TENSOR else ""
    if name == "__setitem__":
        return "    def __setitem__(self, index: Any, value: Any, /) -> None: ..."
    other = ", other: Any, /" if count else ""
    return f"    def {name}(self{other}) -> Tensor: ...{ignore}"


def stub_text() -> str:
    """The whole stub."""
    lines = [signature_text(name, METHODS[name]) for name in sorted(METHODS)]
    for name in sorted(PROPERTIES):
        lines += ["    @property", signature_text(name, getattr(wayfare.Tensor, name).fget)]
    body = "\n".join(lines) + "\n"
    used = [name for name in ("Callable", "Iterable", "Iterator", "Sequence") if re.search(rf"\b{name}\b", body)]
    return _HEAD.replace("{imports}", f"from collections.abc import {', '.join(used)}\n" if used else "") + body


def main(argv: list[str] | None = None) -> int:
    """Write or check the stub."""
    if "--check" in (sys.argv[1:] if argv is None else argv):
        return 0 if PATH.exists() and PATH.read_text() == stub_text() else 1
    PATH.write_text(stub_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes the stubs that type checkers and editors read where the package itself does not say enough.

    python tools/make_stubs.py          write them
    python tools/make_stubs.py --check  exit 1 if one is out of date

`core/tensor_methods.pyi` declares the methods of Tensor that are installed from the public functions. A public module
that lies in a room (`wayfare.linalg` is `wayfare.api.linalg`) gets a stub of one line under its public name.
"""

from __future__ import annotations

import inspect
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import wayfare
from wayfare.api.functions._public import METHODS, PROPERTIES

PACKAGE = pathlib.Path(wayfare.__file__).parent
# Public modules inside public modules.
INSIDE = {
    "backends": ("cuda", "cudnn", "mps"),
    "signal": ("windows",),
    "utils": ("checkpoint", "data", "hooks", "tensorboard"),
}

_HEAD = '''"""Generated from the public functions by `python tools/make_stubs.py`; do not edit."""

import builtins
{imports}from typing import Any

from wayfare.core.tensor import Tensor

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


def methods_stub() -> str:
    """The stub of Tensor's installed methods."""
    lines = [signature_text(name, METHODS[name]) for name in sorted(METHODS)]
    for name in sorted(PROPERTIES):
        lines += ["    @property", signature_text(name, getattr(wayfare.Tensor, name).fget)]
    body = "\n".join(lines) + "\n"
    used = [name for name in ("Callable", "Iterable", "Iterator", "Sequence") if re.search(rf"\b{name}\b", body)]
    return _HEAD.replace("{imports}", f"from collections.abc import {', '.join(used)}\n" if used else "") + body


def stubs() -> dict[pathlib.Path, str]:
    """The text of each stub, by its path."""
    found = {PACKAGE / "core" / "tensor_methods.pyi": methods_stub()}
    for name, room in wayfare._MODULES.items():
        inner = INSIDE.get(name, ())
        path = PACKAGE / name / "__init__.pyi" if inner else PACKAGE / f"{name}.pyi"
        found[path] = f"from wayfare.{room} import *\n"
        if inner:
            found[path] += "".join(f"from wayfare.{room} import {each} as {each}\n" for each in inner)
        for each in inner:
            found[PACKAGE / name / f"{each}.pyi"] = f"from wayfare.{room}.{each} import *\n"
    return found


def main(argv: list[str] | None = None) -> int:
    """Write or check the stubs."""
    old = {path: text for path, text in stubs().items() if not path.exists() or path.read_text() != text}
    if "--check" in (sys.argv[1:] if argv is None else argv):
        for path in old:
            print(f"out of date: {path}")
        return 1 if old else 0
    for path, text in old.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

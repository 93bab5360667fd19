"""The path of a running module inside the modules that called it: `encoder.layers.0`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def path_of(modules: Sequence[Any]) -> str:
    """The path of the innermost running module, seen from the outermost; empty for the outermost itself.

    A module that is not a submodule of the others is shown by its class.
    """
    return paths_of(modules)[-1] if modules else ""


def paths_of(modules: Sequence[Any]) -> list[str]:
    """The path of each running module, the outermost first."""
    paths: list[str] = []
    for depth, module in enumerate(modules):
        path = ""
        for above in range(depth - 1, -1, -1):
            inside = _inside(modules[above], module)
            if inside is not None:
                path = f"{paths[above]}.{inside}".strip(".")
                break
        else:
            path = type(module).__name__ if depth else ""
        paths.append(path)
    return paths


def _inside(outer: Any, inner: Any) -> str | None:
    """The name of a module inside another one; None if it is not there."""
    # Usually it is a direct child of its caller: no need to walk through all modules of a large model.
    for name, child in outer.named_children():
        if child is inner:
            return str(name)
    return next((name for name, module in outer.named_modules() if module is inner), None)


def module_text(modules: Sequence[Any]) -> str:
    """The innermost running module as text: `encoder.0 = Linear(…)`, or its repr alone for the outermost one."""
    if not modules:
        return ""
    text = repr(modules[-1])
    shown = text if "\n" not in text and len(text) <= 100 else type(modules[-1]).__name__
    path = path_of(modules)
    return f"{path} = {shown}" if path else shown

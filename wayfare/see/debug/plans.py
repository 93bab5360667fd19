"""Which compiled functions were called during a recording, and what their plans run as one kernel.

A function runs as plain Python while it is recorded, so its plan is the one that was replayed before; values are
matched to kernels by op and shape, in the order of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.compiler.function import Compiled
from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.replay.trace_tree import Block

# Ops that are a product, with or without what is added to it.
_PRODUCTS = frozenset({"matmul", "linear", "linear_plain", "bmm", "mm", "addmm", "einsum", "dot", "mv"})


class Calls:
    """The compiled functions that were called, and the values each call made."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        # The function, and (first, behind the last) entry of each of its calls.
        self._functions: dict[int, tuple[Compiled, list[tuple[int, int]]]] = {}
        self._open: list[tuple[int, int]] = []

    def starts(self, function: Compiled, entries: int) -> None:
        """A call begins."""
        self._functions.setdefault(id(function), (function, []))
        self._open.append((id(function), entries))

    def ended(self, entries: int) -> None:
        """The innermost call has ended."""
        key, first = self._open.pop()
        self._functions[key][1].append((first, entries))

    def let_go(self, entries: Sequence[Any]) -> None:
        """Describe the plans, and release the functions."""
        for function, calls in self._functions.values():
            self.found.append(_plan_of(function, calls[0] if calls else (0, 0), entries))
        self._functions = {}


def _plan_of(function: Compiled, call: tuple[int, int], entries: Sequence[Any]) -> dict[str, Any]:
    explained = function.explain()
    known = [entry for kind in list(function._cache.entries.values()) for entry in kind]
    used = max(known, key=lambda entry: entry.hits, default=None)
    kernels = None if used is None else _kernels(used, call, entries)
    return {
        "function": explained.data["name"], "paths": sum(_paths(entry) for entry in known),
        "hits": sum(entry.hits for entry in known), "kernels": kernels or None, "text": str(explained),
    }  # fmt: skip


def _paths(entry: Entry) -> int:
    return sum(not block.children for block in entry.tree.walk())


def _kernels(entry: Entry, call: tuple[int, int], entries: Sequence[Any]) -> list[dict[str, Any]]:
    """The actions of the path that was taken most, each with the values of the call it stands for."""
    waiting = [at for at in range(*call) if entries[at][1] == 0 and not entries[at][13]]
    found: list[dict[str, Any]] = []
    gradients = []
    for block in _busiest(entry):
        if block.plan is not None:
            found += [_kernel(*part, waiting, entries) for part in block.plan.parts()]
        if block.gradient is not None and block.gradient.plan is not None:
            gradients += block.gradient.plan.parts()
    return found + [{"name": f"gradient: {title}", "nodes": [], "ops": list(ops)} for title, ops, _ in gradients]


def _busiest(entry: Entry) -> list[Block]:
    path = []
    here = entry.tree.root
    while here is not None:
        path.append(here)
        here = max(here.children.values(), key=lambda s: s.visits, default=None)
    return path


def _kernel(
    title: str, ops: Sequence[str], shape: Sequence[int], waiting: list[int], entries: Sequence[Any]
) -> dict[str, Any]:
    """One action, with the first values that are left of its ops and its size."""
    left = list(ops)
    nodes = []
    for at in list(waiting):
        name, own = entries[at][0].name, entries[at][5]
        given = [i for i in entries[at][3] if i >= 0]
        alike = next((op for op in left if _same(op, name)), None)
        near = _fits(own, shape) or any(i in nodes or _fits(entries[i][5], shape) for i in given)
        if alike is not None and near:
            left.remove(alike)
            nodes.append(at)
            waiting.remove(at)
    return {"name": title, "nodes": nodes, "ops": list(ops)}


def _same(step: str, op: str) -> bool:
    """Does a step of a plan come from this op?"""
    return step == op or (step in _PRODUCTS and op in _PRODUCTS) or (step == "sum" and op == "mean")


def _fits(shape: Sequence[int], loop: Sequence[int]) -> bool:
    """Does a loop of this shape work on a value of that shape? Sizes of 1 do not count."""
    return [n for n in shape if n != 1] == [n for n in loop if n != 1]

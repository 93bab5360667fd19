"""Random programs for PyTorch and Wayfare alike: written, run with both, compared, and made short when they differ.

A program is a list of statements over tensors `t0`, `t1`, …; `m` is the module under test. It is written while PyTorch
runs it, so that every statement fits the shapes it meets. What is compared is what a user could see: which statements
raise, and at the end the values, flags and gradients of all tensors.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import wayfare as wf
from tests.oracle.program_parts import changing, derivative, functions, gradients, inner, new, rewriting
from wayfare.utils.checkpoint import checkpoint as wf_checkpoint

# What PyTorch refuses and Wayfare does by design: docs/coming_from_pytorch.md.
DELIBERATE = ("returns multiple views", "created in no_grad mode", "some elements of the input tensor")
# What PyTorch refuses because it kept no copy, or freed what it kept. Where Wayfare can do it, it must be right.
_TOO_STRICT = ("modified by an inplace operation", "a second time")
# Beyond this, rounding decides what the numbers are.
_LARGE = 1e9


def _checkpoint(m: Any) -> Any:
    return torch.utils.checkpoint.checkpoint if m is torch else wf_checkpoint


@dataclass
class Run:
    """One module going through a program."""

    m: Any
    names: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        m = self.m
        self.names |= {"m": m, "checkpoint": functools.partial(_checkpoint(m), use_reentrant=False)}
        self.names |= {f.__name__: functools.partial(f, m) for f in (new, gradients, derivative)}
        self.names |= {"inner": inner, "changing": changing, "rewriting": rewriting, **functions(m)}

    def step(self, statement: str) -> Exception | None:
        """Run one statement; what it raised."""
        try:
            exec(_compiled(statement), self.names)
        except Exception as error:  # that they agree on any exception is what is tested
            return error
        # PyTorch brings the history of a view up to date when somebody looks; before that, it may even crash.
        for t in self.tensors().values():
            with contextlib.suppress(RuntimeError):
                t.is_leaf
        return None

    def tensors(self) -> dict[str, Any]:
        """The program's tensors by name."""
        return {name: value for name, value in self.names.items() if name[0] == "t" and name[1:].isdigit()}


@functools.lru_cache(maxsize=4096)
def _compiled(statement: str) -> Any:
    return compile(statement, "<program>", "exec")


@dataclass
class Seen:
    """What came of a program: what each statement raised, and how the tensors were left."""

    errors: list[Exception | None]
    tensors: dict[str, tuple[Any, bool, bool, Any]]
    results: list[Any]  # the gradients that `gradients(...)` statements found


def is_final(statement: str) -> bool:
    """A backward pass that fails leaves sums half made, so nothing is compared after it."""
    return ".backward(" in statement


def run(m: Any, statements: list[str]) -> Seen:
    """Go through a program with one module."""
    going = Run(m)
    errors: list[Exception | None] = []
    for statement in statements:
        errors.append(going.step(statement))
        if errors[-1] is not None and is_final(statement):
            break
    return seen(going, errors)


def seen(going: Run, errors: list[Exception | None]) -> Seen:
    """What there is to see when a run has ended."""
    tensors = {}
    for name, t in going.tensors().items():
        with contextlib.suppress(RuntimeError):  # PyTorch may refuse to look at a part of a tensor that was written
            grad = t.grad if t.is_leaf or t.retains_grad else None
            tensors[name] = (_numbers(t), t.requires_grad, t.is_leaf, _numbers(grad))
    found = going.names.get("found", ())
    return Seen(errors, tensors, [None if g is None else _numbers(g) for g in found])


def _numbers(t: Any) -> Any:
    return None if t is None else t.detach().numpy(force=True)


def difference(statements: list[str]) -> str | None:
    """How Wayfare differs from PyTorch on a program, in one sentence; None where they agree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare(statements, run(torch, statements), run(wf, statements))


def compare(statements: list[str], expected: Seen, actual: Seen) -> str | None:
    """The first difference between what PyTorch and Wayfare made of a program."""
    lenient = False
    for number, (want, got) in enumerate(itertools.zip_longest(expected.errors, actual.errors)):
        where = f"statement {number}: "
        if want is None and got is None:
            continue
        if got is not None and want is None:
            if "what it kept is freed" in str(got):
                return None  # A few ops keep more than PyTorch's, so their graph cannot be used twice.
            return where + f"Wayfare raises {_show(got)}"
        if got is None:
            if not any(text in str(want) for text in _TOO_STRICT):
                return where + f"PyTorch raises {_show(want)}, Wayfare does not"
            lenient = True
        elif not isinstance(got, _family(want)):
            return where + f"PyTorch raises {_show(want)}, Wayfare {_show(got)}"
    if lenient:
        expected = _run_leniently(statements)
        for number, (want, got) in enumerate(itertools.zip_longest(expected.errors, actual.errors)):
            if any(text in str(want) for text in ("support saved tensor hooks", *_TOO_STRICT)):
                return None  # torch.func does not, and custom Functions keep what they like: nothing to compare with
            if want is not None and got is None:
                return f"statement {number}: PyTorch raises {_show(want)} even with copies, Wayfare does not"
            if want is None and got is not None:
                return None
    if any(_wild(values) or _wild(grad) for values, _, _, grad in expected.tensors.values()):
        return None
    # A pass that failed may have got as far as a tensor, or not: the order of nodes is not promised.
    failed = any(error is not None for error in expected.errors)
    ended = failed and expected.errors[-1] is not None and is_final(statements[len(expected.errors) - 1])
    tolerance = 2e-4 if any(".float()" in s for s in statements) else 1e-6
    found = _compare_tensors(expected, actual, failed, ended, tolerance)
    return found or _compare_results(expected, actual, tolerance)


def _run_leniently(statements: list[str]) -> Seen:
    """PyTorch, made to keep copies of what is overwritten and never to free a graph."""
    retaining = [re.sub(r"(\.backward\(new\([^=]*\))\)$", r"\1, retain_graph=True)", s) for s in statements]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        return run(torch, retaining)


def _compare_tensors(expected: Seen, actual: Seen, failed: bool, ended: bool, tolerance: float) -> str | None:
    for name, (values, requires_grad, is_leaf, grad) in expected.tensors.items():
        theirs = actual.tensors[name]
        if (found := _apart(theirs[0], values, tolerance)) is not None:
            return f"the values of {name} {found}"
        if theirs[1] != requires_grad:
            return f"{name}.requires_grad is {theirs[1]}, PyTorch's is {requires_grad}"
        if theirs[2] != is_leaf:
            return f"{name}.is_leaf is {theirs[2]}, PyTorch's is {is_leaf}"
        if not (ended or (failed and not is_leaf)) and (found := _apart(theirs[3], grad, tolerance)) is not None:
            return f"{name}.grad {found}"
    return None


def _compare_results(expected: Seen, actual: Seen, tolerance: float) -> str | None:
    for number, (want, got) in enumerate(zip(expected.results, actual.results, strict=True)):
        if not _wild(want) and (found := _apart(got, want, tolerance)) is not None:
            return f"gradient {number} {found}"
    return None


def _wild(values: Any) -> bool:
    return values is not None and not bool((np.abs(values) < _LARGE).all())


def _apart(got: Any, want: Any, tolerance: float = 1e-6) -> str | None:
    if got is None or want is None:
        return None if got is None and want is None else f"is {got}, PyTorch's is {want}"
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"is {got.dtype}{list(got.shape)}, PyTorch's is {want.dtype}{list(want.shape)}"
    if np.allclose(got, want, rtol=tolerance, atol=tolerance / 100 * (1 + np.abs(want).max(initial=0))):
        return None
    return f"is\n{got}\nPyTorch's is\n{want}"


def _family(error: Exception) -> type[BaseException]:
    return next(cls for cls in type(error).__mro__ if cls.__module__ == "builtins")


def _show(error: Any) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error) else ''}"


def shortened(statements: list[str]) -> list[str]:
    """As few of the statements as still differ."""
    size = max(1, len(statements) // 2)
    while True:
        for start in range(0, len(statements), size):
            fewer = statements[:start] + statements[start + size :]
            if _still_differs(fewer):
                statements = fewer
                break
        else:
            if size == 1:
                return statements
            size = max(1, size // 2)


def _still_differs(statements: list[str]) -> bool:
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        expected = run(torch, statements)
        if any(isinstance(error, NameError) for error in expected.errors):
            return False
        return compare(statements, expected, run(wf, statements)) is not None
    return False

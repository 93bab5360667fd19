"""`check=True`: a replayed call beside plain Python, compared in all that it returns and leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.backend.cpu import Array
from wayfare.backend.writes import note_write
from wayfare.compiled.entry import Entry
from wayfare.errors import CheckError
from wayfare.tensor import Tensor

# How far two ways of computing the same may lie apart, relative and absolute: ten times what `assert_close` allows,
# because a fused kernel adds in another order.
_CLOSE = {"e": (1e-2, 1e-4), "f": (1.3e-5, 1e-4), "d": (1e-6, 1e-6)}


class Trial:
    """What a call may write, as it was before: so that it can be made twice."""

    def __init__(self, entry: Entry, arguments: Sequence[Tensor], name: str) -> None:
        self._entry = entry
        self._name = name
        self._tensors = self._outside(arguments)
        self._before = {key: _content(t) for key, t in self._tensors.items()}
        self._grads = {key: (t._grad, _grad_content(t)) for key, t in self._tensors.items()}
        generators = {id(g): g for stretch in _ends(entry) for g, _ in stretch.recording.draws}
        self._states = [(g, g._seed, g._calls) for g in generators.values()]

    def _outside(self, arguments: Sequence[Tensor]) -> dict[str, Tensor]:
        """Tensors from outside that a plan knows, by what they are called."""
        found: dict[str, Tensor] = {}
        for source in self._entry.graph.sources:
            t = source.tensor(arguments) if source.kind != "grad" else None
            if t is not None and not any(t is other for other in found.values()):
                guards = self._entry.guards
                name = guards.seen.name_of(t) if guards is not None and source.kind == "captured" else ""
                name = f"argument {source.what}" if source.kind == "argument" else name
                found[name if name and name not in found else f"{name or 'tensor'} ({len(found)})"] = t
        return found

    def judge(self, result: Any, python: Callable[[], Any]) -> Any:
        """Undo the replayed call, run plain Python, and compare. Python's result is what counts."""
        replayed = self._left(result)
        states = [(g._seed, g._calls) for g, _, _ in self._states]
        self._restore()
        result = python()
        self._compare("", replayed, self._left(result))
        for (generator, _, _), state in zip(self._states, states, strict=True):
            if (generator._seed, generator._calls) != state:
                raise self._difference("the random generator", "it was asked another number of times")
        return result

    def _left(self, result: Any) -> dict[str, Any]:
        """What a call has returned, written and accumulated, in memory of its own."""
        left = {"the result": _kept(result)}
        for key, t in self._tensors.items():
            left[f"the memory of {key}"] = _content(t)
            left[f"the .grad of {key}"] = _grad_content(t)
        return left

    def _restore(self) -> None:
        for call in reversed(self._entry.ran):
            call.undo()
        for key, t in self._tensors.items():
            _write_back(t._array, self._before[key])
            old, content = self._grads[key]
            t._grad = old
            grad = None if old is None else t.grad
            if grad is not None and content is not None:
                _write_back(grad._array, content)
        for generator, seed, calls in self._states:
            with generator._lock:
                generator._seed, generator._calls = seed, calls

    # -- comparing

    def _compare(self, where: str, got: Any, want: Any) -> None:
        if isinstance(want, np.ndarray) or isinstance(got, np.ndarray):
            self._compare_arrays(where, got, want)
        elif type(got) is not type(want):
            raise self._difference(where, f"the plan gives {_called(got)}, Python {_called(want)}")
        elif isinstance(want, _Kept):
            self._compare_arrays(where, got.values, want.values)
            if got.needs is not want.needs:
                raise self._difference(where, f"its requires_grad is {got.needs} there and {want.needs} in Python")
        elif isinstance(want, dict):
            if list(got) != list(want):
                raise self._difference(where, f"the plan gives the keys {list(got)}, Python {list(want)}")
            for key in want:
                self._compare(f"{where}[{key!r}]" if where else key, got[key], want[key])
        elif isinstance(want, (tuple, list)):
            if len(got) != len(want):
                raise self._difference(where, f"the plan gives {len(got)} entries, Python {len(want)}")
            for number, (a, b) in enumerate(zip(got, want, strict=True)):
                self._compare(f"{where}[{number}]", a, b)
        elif isinstance(want, float):
            self._compare_arrays(where, np.asarray(got), np.asarray(want))
        elif got != want:
            raise self._difference(where, f"the plan gives {got!r}, Python {want!r}")

    def _compare_arrays(self, where: str, got: Any, want: Any) -> None:
        if _called(got) != _called(want):
            raise self._difference(where, f"the plan gives {_called(got)}, Python {_called(want)}")
        if want.dtype.char not in _CLOSE:
            wrong = int(np.sum(got != want))
            if wrong:
                raise self._difference(where, f"{wrong} of {want.size} elements differ")
            return
        relative, absolute = _CLOSE[want.dtype.char]
        apart = ~np.isclose(got, want, relative, absolute, equal_nan=True)
        if apart.any():
            with np.errstate(all="ignore"):
                most = float(np.nanmax(np.abs(got.astype(float) - want.astype(float))[apart]))
            raise self._difference(where, f"{int(apart.sum())} of {want.size} elements differ, by up to {most:.3g}")

    def _difference(self, where: str, what: str) -> CheckError:
        fix = "Something that is not guarded decides what it does: hand that in as an argument."
        return CheckError(f"check: {self._name}, replayed, differs from plain Python in {where}: {what}", fix=fix)


class _Kept:
    """A tensor of a result: its values and whether it requires a gradient."""

    def __init__(self, tensor: Tensor) -> None:
        self.values = _content(tensor)
        self.needs = tensor.requires_grad


def _kept(value: Any) -> Any:
    """A structure of results with copies in place of tensors."""
    if isinstance(value, Tensor):
        return _Kept(value)
    if isinstance(value, dict):
        return {key: _kept(inside) for key, inside in value.items()}
    return [_kept(inside) for inside in value] if isinstance(value, (tuple, list)) else value


def _content(t: Tensor) -> Array:
    return np.array(t.detach()._array)


def _grad_content(t: Tensor) -> Array | None:
    grad = None if t._grad is None else t.grad  # asking a tensor that has none may warn
    return None if grad is None else _content(grad)


def _write_back(array: Array, content: Array) -> None:
    if array.tobytes() != content.tobytes():
        np.copyto(array, content)
        note_write(array)


def _called(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return "nothing" if value is None else type(value).__name__.lstrip("_")


def _ends(entry: Entry) -> list[Any]:
    roots = entry.tree.roots.values()
    return [stretch for root in roots for stretch in root.walk() if stretch.recording is not None]

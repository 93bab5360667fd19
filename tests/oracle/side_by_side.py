"""Runs one snippet with PyTorch and with Wayfare as the module `m`, and compares what comes out.

A snippet returns tensors, numbers, strings, or nestings of them; or it raises, and then both sides must
raise, with exceptions a caller would catch by the same class.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import wayfare as wf
from tests.oracle.compare import Tolerance, difference


@dataclass(frozen=True)
class Raised:
    error: Exception

    @property
    def family(self) -> type[BaseException]:
        """The class of Python's own that the error belongs to."""
        return next(cls for cls in type(self.error).__mro__ if cls.__module__ == "builtins")


def outcome(module: Any, snippet: Callable[[Any], Any]) -> Any:
    """What the snippet gives with this module: its result, or what it raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return snippet(module)
    except Exception as error:  # the comparison is about any exception
        return Raised(error)


def disagreement(
    snippet: Callable[[Any], Any], *, tolerance: Tolerance | None = None, any_error: bool = False
) -> str | None:
    """One line on how Wayfare differs from PyTorch on the snippet; None where they agree.

    With `any_error` it is enough that Wayfare raises an error of its own, or Python's for a wrong type: PyTorch's
    class is an accident there.
    """
    expected = outcome(torch, snippet)
    if isinstance(expected, Raised) and isinstance(expected.error, NotImplementedError):
        return None  # PyTorch has no kernel for this dtype: that is a gap, not a rule
    actual = outcome(wf, snippet)
    if isinstance(expected, Raised) and isinstance(actual, Raised):
        clear = (wf.errors.WayfareError, TypeError) if any_error else ()
        if isinstance(actual.error, (expected.family, *clear)):
            return None
        return f"raises {_show(actual)} where PyTorch raises {_show(expected)}"
    if isinstance(actual, Raised):
        return f"raises {_show(actual)} where PyTorch gives {_show(expected)}"
    if isinstance(expected, Raised):
        return f"gives {_show(actual)} where PyTorch raises {_show(expected)}"
    return difference(_plain(actual), _plain(expected), tolerance, where="result")


def agree(snippet: Callable[[Any], Any], *, tolerance: Tolerance | None = None, any_error: bool = False) -> None:
    """Fails the test where the two modules differ on the snippet."""
    found = disagreement(snippet, tolerance=tolerance, any_error=any_error)
    assert found is None, found


def names(value: Any) -> str:
    """A dtype's name without its module: float32, not torch.float32."""
    return str(value).rpartition(".")[2]


def _plain(value: Any) -> Any:
    """Dicts as sorted pairs, dtypes as names, sizes as tuples; all else as it is."""
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in sorted(value.items())]
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "n_sequence_fields") and type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, torch.dtype) or type(value) is type(wf.float32):
        return names(value)
    return value


def _show(value: Any) -> str:
    if isinstance(value, Raised):
        first = (str(value.error).strip().splitlines() or [""])[0]
        return f"{type(value.error).__name__}: {first[:200]}"
    return repr(value)[:200]

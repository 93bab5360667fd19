"""Runs the database's bad inputs: what PyTorch refuses, the module under test should refuse too."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.oracle.check import describe, summary
from tests.oracle.convert import FrozenTensor, OutOfScope, freeze, thaw
from tests.oracle.entries import Entry, find


@dataclass
class Refusals:
    """How the module treats inputs that PyTorch refuses."""

    entry: str
    refused: int = 0
    accepted: list[str] = field(default_factory=list)
    # Refused, but by an exception from further down that does not speak of the user's call.
    unclear: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.refused + len(self.accepted) + len(self.unclear)


def check_bad_input(module: Any, entry: Entry, own_errors: type[Exception]) -> Refusals:
    """Calls the entry with each bad input that can be carried over."""
    function = find(module, entry)
    assert function is not None, f"{entry.name} is not in {module.__name__}"
    result = Refusals(entry.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample, (args, kwargs) in _bad_samples(entry):
            ours = thaw(module, args, kwargs)
            try:
                function(*ours.args, **ours.kwargs)
            except (own_errors, TypeError):
                # Python itself answers a call that does not fit the signature with a TypeError.
                result.refused += 1
            except Exception as error:  # any other exception leaked from a library below
                result.unclear.append(f"{summary(sample)}: {describe(error)}")
            else:
                result.accepted.append(summary(sample))
    return result


def _bad_samples(entry: Entry) -> list[tuple[Any, tuple[Any, Any]]]:
    """The bad inputs that PyTorch really refuses on a CPU, frozen."""
    found: list[tuple[Any, tuple[Any, Any]]] = []
    if entry.record.error_inputs_func is None:
        return found
    try:
        candidates = list(entry.record.error_inputs("cpu"))
    except (RuntimeError, AssertionError, NotImplementedError):
        return found
    for candidate in candidates:
        sample = candidate.sample_input
        try:
            frozen = tuple(freeze(value) for value in (sample.input, *sample.args)), freeze(sample.kwargs)
        except OutOfScope:
            continue
        if entry.record.name.startswith("__") and not isinstance(frozen[0][0], FrozenTensor):
            continue  # Python never calls a special method of a tensor without one
        theirs = thaw(torch, *frozen)
        try:
            entry.record.op(*theirs.args, **theirs.kwargs)
        except Exception:  # whichever way PyTorch says no
            found.append((sample, frozen))
    return found

"""A pattern plain and compiled, in turns in one process: seconds of every round, and what the engine says about it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from benchmarks.works import (
    Unavailable,
    patterns_examples,
    patterns_models,
    patterns_ops,
    patterns_python,
)
from benchmarks.works.patterns import PATTERNS, Case

__all__ = ["PATTERNS", "measure", "patterns_examples", "patterns_models", "patterns_ops", "patterns_python"]

COUNTS = ("calls", "replayed", "checked", "recorded", "plain")


class Side:
    """A fresh case of a pattern, and how it is called."""

    def __init__(self, case: Case, compile: Callable[[Any], Any] | None = None) -> None:
        self.arguments = case.arguments
        self.function = case.function if compile is None else compile(case.function)
        self.call = self.function if case.use is None else partial(case.use, self.function)
        self.seconds = 0.0

    def run(self, number: int) -> float:
        """Seconds of the next calls, so many of them; their arguments are there before the clock starts."""
        given = list(islice(self.arguments, number))
        call = self.call
        started = perf_counter()
        for arguments in given:
            call(*arguments)
        took = perf_counter() - started
        self.seconds += took
        return took


def measure(
    m: Any,
    name: str,
    round_seconds: float,
    warm_seconds: float,
    warm_calls: int,
    seconds: float,
    rounds: int,
    patience: float,
) -> dict[str, Any]:
    """Run a pattern for so many seconds of the plain function, and its compiled twin for as many calls.

    Warm-up ends after `warm_seconds` of the plain function and `warm_calls`; then there are at least `rounds` rounds.
    A compiled function that is much slower gets no more than `patience` seconds for the warm-up, and as many after it.
    """
    if not hasattr(m, "compile"):
        raise Unavailable(f"{m.__name__} has no compile().")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        make = PATTERNS[name].make
        number = _calls_of_a_round(Side(make(m)), round_seconds)
        said.clear()
        plain, compiled = Side(make(m)), Side(make(m), m.compile)
        found: list[tuple[float, float]] = []
        warm: tuple[float, float] | None = None  # seconds of both sides until then
        turn = calls = 0
        while True:
            pair = (plain, compiled) if turn % 2 == 0 else (compiled, plain)
            took = {side: side.run(number) for side in pair}
            turn, calls = turn + 1, calls + number
            if warm is None:
                enough = plain.seconds >= warm_seconds and calls >= warm_calls
                if enough or compiled.seconds > patience:
                    warm = plain.seconds, compiled.seconds
                continue
            found.append((took[plain] / number, took[compiled] / number))
            done = plain.seconds >= seconds and len(found) >= rounds
            if done or (compiled.seconds - warm[1] > patience and len(found) >= min(3, rounds)):
                break
    return {
        "plain": [pair[0] for pair in found],
        "compiled": [pair[1] for pair in found],
        "after": (compiled.seconds - warm[1]) / (plain.seconds - warm[0]),
        "whole": compiled.seconds / plain.seconds,
        "calls": calls,
        "engine": engine(compiled.function),
        "warned": [str(warning.message) for warning in said],
    }


def engine(function: Any) -> dict[str, Any]:
    """What a compiled function tells: how its calls were run, and the first reason why not all were replayed."""
    data = function.explain().data
    reasons = [found["reason"] for found in data.get("python", ())]
    for kind in data.get("signatures", ()):
        for variant in kind.get("variants", ()):
            reasons += [variant["python"]] if variant.get("python") else []
    reasons += data.get("retraces", ())
    return {**{count: data.get(count, 0) for count in COUNTS}, "reason": reasons[0] if reasons else ""}


def _calls_of_a_round(side: Side, round_seconds: float) -> int:
    """How many plain calls fill a round; what both sides share (kernels, caches) is warm afterwards."""
    side.run(2)
    number = 1
    while (took := side.run(number)) < round_seconds / 4:
        number *= 2
    return max(1, round(number * round_seconds / max(took, 1e-9)))

"""Finding the formula of a number from its values in runs at several sizes.

The function runs on plain ints, so a number computed from a size (`x.shape[0] * 2`) is an int like any other. Comparing
its values with the sizes of all runs gives the formula. The answer is a `Dim`, an int that carries its formula.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from wayfare.core.symbolic_sizes import Dim, symbol, symbols_of, value_of

Values = tuple[int, ...]
# Products are tried of at most this many numbers that were explained before.
_MET = 24


class Fitting:
    """Symbols with their values in several runs; explains other numbers as formulas of them.

    A run is a number; iteration i of a loop in run r is the run (r, i, id of the loop), where all that is known of r
    holds too. A Dim has the value of the first run, whose sizes should be unlike any other number.
    """

    def __init__(self) -> None:
        self._values: list[dict[Any, int]] = []  # of each symbol, by run
        self._found: dict[Any, Dim | None] = {}
        self._shut: set[int] = set()

    def shut(self, first: int) -> None:
        """Stop using the symbols from this number on: they belong to a block that is finished."""
        self._shut.update(range(first, len(self._values)))
        self._found = {key: found for key, found in self._found.items()
                       if found is None or not symbols_of(found.formula) & self._shut}  # fmt: skip

    def add(self, values: dict[Any, int]) -> Dim:
        """Add a symbol with its value in each run where it is known."""
        self._values.append(values)
        self._found = {key: found for key, found in self._found.items() if found is not None}
        return self._dim(("symbol", len(self._values) - 1))

    def explain(self, numbers: dict[Any, int]) -> int | None:
        """The number that has these values: an int, a Dim, or None if no formula is found."""
        if len(set(numbers.values())) == 1:
            return next(iter(numbers.values()))
        key = (tuple(numbers), tuple(numbers.values()))
        if key not in self._found:
            found = self._search(*key)
            self._found[key] = None if found is None else self._dim(found.formula)
        return self._found[key]

    def _dim(self, formula: Any) -> Dim:
        """A formula with its value in the first run, so that Dims found in different runs can be compared."""
        return Dim(value_of(formula, [v.get(0, next(iter(v.values()))) for v in self._values]), formula)

    def varying(self, runs: Sequence[Any]) -> Iterator[tuple[Any, Values]]:
        """The symbols that are known in all these runs and vary between them, with their values."""
        for number, by_run in enumerate(self._values):
            if number in self._shut:
                continue
            values = tuple(in_run(by_run, r) for r in runs)
            if None not in values and len(set(values)) > 1:
                yield symbol(number, values[0]), values

    def _search(self, runs: Sequence[Any], wanted: Values) -> Dim | None:
        varying = list(self.varying(runs))
        for dim, values in varying:
            if values == wanted:
                return dim  # type: ignore[no-any-return]
        products: list[tuple[Any, Values]] = list(varying)
        for count in (2, 3):
            for chosen in itertools.combinations_with_replacement(varying, count):
                product, values = chosen[0]
                for factor, more in chosen[1:]:
                    product, values = product * factor, tuple(a * b for a, b in zip(values, more, strict=True))
                products.append((product, values))
        for product, values in products:
            found = _affine([values], wanted)
            if found is not None:
                return product * found[0] + found[1]  # type: ignore[no-any-return]
        for dim, values in varying:
            for form in (_quotient, _remainder, _bounded):
                simple = form(dim, values, wanted)
                if simple is not None:
                    return simple
        # Formulas of one size before those of two, which fit more easily by accident.
        one = (1, (1,) * len(wanted))
        tries: list[Callable[[], Dim | None]] = [
            lambda: _parts(varying, [one], wanted),
            lambda: self._of_met(runs, wanted),
            lambda: _sums(products, wanted),
            lambda: _parts(varying, varying, wanted),
        ]
        tries += [partial(_quotient, product, values, wanted) for product, values in products]
        return next((dim for dim in (attempt() for attempt in tries) if dim is not None), None)

    def _of_met(self, runs: Sequence[Any], wanted: Values) -> Dim | None:
        """Products of two numbers that were explained before, such as (height // 4)·(width // 4)."""
        met = [(dim, values) for (where, values), dim in self._found.items() if dim is not None and where == runs]
        for (a, first), (b, second) in itertools.combinations_with_replacement(met[:_MET], 2):
            found = _affine([tuple(m * n for m, n in zip(first, second, strict=True))], wanted)
            if found is not None:
                return a * b * found[0] + found[1]  # type: ignore[no-any-return]
        return None


def _sums(products: list[tuple[Any, Values]], wanted: Values) -> Dim | None:
    """Sizes such as batch·length + 2·batch + 1."""
    for (a, first), (b, second) in itertools.combinations(products, 2):
        found = _affine([first, second], wanted)
        if found is not None:
            return a * found[0] + b * found[1] + found[2]  # type: ignore[no-any-return]
    return None


def _parts(varying: list[tuple[Any, Values]], factors: list[tuple[Any, Values]], wanted: Values) -> Dim | None:
    """Sizes such as 3·(length // 2) + 1, or with factors batch·(length // 2)."""
    for divided, by_run in _quotients(varying):
        for factor, more in factors:
            found = _affine([tuple(a * b for a, b in zip(by_run, more, strict=True))], wanted)
            if found is not None:
                return divided * factor * found[0] + found[1]  # type: ignore[no-any-return]
    return None


def in_run(values: dict[Any, Any], run: Any) -> Any:
    """The entry of a run, or of the run that it is an iteration of; None if there is none."""
    while run not in values and isinstance(run, tuple):
        run = run[0]
    return values.get(run)


def _affine(columns: list[Values], wanted: Values) -> list[int] | None:
    """Integers c with Σ c·column + c₀ = wanted in every run; None if there are none, or too few runs."""
    rows = list(dict.fromkeys(zip(*columns, wanted, strict=True)))
    if len(rows) < len(columns) + 2:
        return None
    solved = _solve(rows, len(columns) + 1)
    if solved is None or any(c.denominator != 1 for c in solved):
        return None
    *factors, rest = [int(c) for c in solved]
    fits = all(sum(c * n for c, n in zip(factors, row, strict=False)) + rest == row[-1] for row in rows)
    return [*factors, rest] if fits else None


def _solve(rows: Sequence[Values], unknowns: int) -> list[Fraction] | None:
    """The unique solution of linear equations; None if there is none or more than one."""
    reduced: list[list[Fraction]] = []
    for *known, wanted in rows:
        row = [*map(Fraction, known), Fraction(1), Fraction(wanted)]
        for lead in reduced:
            at = next(i for i, c in enumerate(lead) if c)
            if row[at]:
                scale = row[at]
                row = [a - scale * b for a, b in zip(row, lead, strict=True)]
        at = next((i for i, c in enumerate(row[:unknowns]) if c), unknowns)
        if at == unknowns:
            if row[unknowns]:
                return None  # contradicts the equations before it
            continue
        row = [c / row[at] for c in row]
        reduced = [[a - other[at] * b for a, b in zip(other, row, strict=True)] for other in reduced] + [row]
        if len(reduced) == unknowns:
            reduced.sort(key=lambda r: r[:unknowns], reverse=True)
            return [r[unknowns] for r in reduced]
    return None


def _quotient(dim: Any, values: Values, wanted: Values) -> Dim | None:
    """(size + c) // d + e with a small d: what strides and pooling do to a size."""
    if len(set(wanted)) < 3:
        return None
    for by in range(2, 17):
        for more in range(by):
            shifts = {w - (v + more) // by for v, w in zip(values, wanted, strict=True)}
            if len(shifts) == 1:
                return (dim + more) // by + shifts.pop()  # type: ignore[no-any-return]
    return None


def _remainder(dim: Any, values: Values, wanted: Values) -> Dim | None:
    """size % d with a small d: a remainder, or the amount of padding."""
    if len(set(values)) < 4 or not all(0 <= w < 16 for w in wanted):
        return None
    for by in range(2, 17):
        for sign in (1, -1):
            if all(sign * v % by == w for v, w in zip(values, wanted, strict=True)):
                return (dim if sign == 1 else -dim) % by  # type: ignore[no-any-return]
    return None


def _bounded(dim: Any, values: Values, wanted: Values) -> Dim | None:
    """min(size, c) and max(size, c), with sizes on both sides of the bound."""
    for bound, least in ((max(wanted), True), (min(wanted), False)):
        limited = [min(v, bound) if least else max(v, bound) for v in values]
        inside = {v for v in values if (v < bound if least else v > bound)}
        if limited == list(wanted) and inside and len(set(values) - inside) > 1:
            apart = abs(dim - bound)
            return (dim + bound - apart if least else dim + bound + apart) // 2  # type: ignore[no-any-return]
    return None


def _quotients(varying: Iterable[tuple[Any, Values]]) -> Iterator[tuple[Any, Values]]:
    """Halves, thirds, … of sizes, rounded down or up, that differ between the runs."""
    for dim, values in varying:
        for by in (2, 3, 4, 5, 6, 8):
            for more in (0, by - 1, -1):
                divided = tuple((v + more) // by for v in values)
                if len(set(divided)) > 2:
                    yield (dim + more) // by, divided


def prime_unlike(taken: Iterable[int], at_least: int) -> int:
    """The first prime of at least this value that is not taken."""
    used = set(taken)
    for n in itertools.count(max(at_least, 2)):
        if n not in used and all(n % d for d in range(2, int(n**0.5) + 1)):
            return n
    raise AssertionError("there are more primes")

"""Which formula of the input sizes a number is: found by comparing runs of the same function at several sizes.

The function runs on plain ints; what came out of a size (`x.shape[0] * 2`) is an int like any other. Its values in all
runs, beside those of the sizes, tell the formula. The answer is a `Dim`, an int that remembers it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from wayfare.fusion.sizes import Dim, Number, symbol, value_of

Values = tuple[int, ...]


class Fitting:
    """Symbols with their values in each of several runs, and formulas that explain other numbers of those runs.

    A run is a number; iteration i of a loop in run r is the run (r, i), in which all that is known of r holds.
    A Dim has the value of the first run; that one should have sizes that are like no other number.
    """

    def __init__(self) -> None:
        self._values: list[dict[Any, int]] = []  # of each symbol, by run
        self._found: dict[Any, Dim | None] = {}

    def add(self, values: dict[Any, int]) -> Dim:
        """Enter a symbol by its value in each run (those in which it is known)."""
        self._values.append(values)
        self._found = {key: found for key, found in self._found.items() if found is not None}
        return self._dim(("symbol", len(self._values) - 1))

    def explain(self, numbers: dict[Any, int]) -> int | None:
        """A number that was so much in each run: an int, a Dim, or None where no formula is found."""
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

    def _known(self, runs: Sequence[Any]) -> Iterator[tuple[Any, Values]]:
        """The symbols that are known in all these runs and differ between them, with their values."""
        for number, by_run in enumerate(self._values):
            values = tuple(in_run(by_run, r) for r in runs)
            if None not in values and len(set(values)) > 1:
                yield symbol(number, values[0]), values

    def _search(self, runs: Sequence[Any], wanted: Values) -> Dim | None:
        varying = list(self._known(runs))
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
            divided = _quotient(dim, values, wanted)
            if divided is not None:
                return divided
        for (a, first), (b, second) in itertools.combinations(products, 2):
            found = _affine([first, second], wanted)
            if found is not None:
                return a * found[0] + b * found[1] + found[2]  # type: ignore[no-any-return]
        return self._with_quotients(varying, products, wanted)

    def _with_quotients(
        self, varying: list[tuple[Any, Values]], products: list[tuple[Any, Values]], wanted: Values
    ) -> Dim | None:
        """Sizes such as batch·(length // 2), 3·(length // 2) + 1, and batch·length // 2."""
        quotients = list(_quotients(varying))
        one = (1, (1,) * len(wanted))
        for divided, by_run in quotients:
            for factor, more in (one, *varying):
                found = _affine([tuple(a * b for a, b in zip(by_run, more, strict=True))], wanted)
                if found is not None:
                    return divided * factor * found[0] + found[1]  # type: ignore[no-any-return]
        for product, values in products:
            whole = _quotient(product, values, wanted)
            if whole is not None:
                return whole
        return None


def in_run(values: dict[Any, Any], run: Any) -> Any:
    """What is known of a run, or of the run it is an iteration of; None if nothing is."""
    while run not in values and isinstance(run, tuple):
        run = run[0]
    return values.get(run)


def _affine(columns: list[Values], wanted: Values) -> list[int] | None:
    """Whole numbers c with Σ c·column + c₀ = wanted in every run; None if there are none, or too few runs to tell."""
    if len({(*[c[i] for c in columns], w) for i, w in enumerate(wanted)}) < len(columns) + 2:
        return None
    rows = [[Fraction(c[i]) for c in columns] + [Fraction(1), Fraction(w)] for i, w in enumerate(wanted)]
    solved = _solve(rows, len(columns) + 1)
    if solved is None or any(c.denominator != 1 for c in solved):
        return None
    return [int(c) for c in solved]


def _solve(rows: list[list[Fraction]], unknowns: int) -> list[Fraction] | None:
    """The one solution of linear equations, some of them superfluous; None if there is none or more than one."""
    for column in range(unknowns):
        pivot = next((i for i in range(column, len(rows)) if rows[i][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        lead = rows[column]
        for i, row in enumerate(rows):
            if i != column and row[column]:
                scale = row[column] / lead[column]
                rows[i] = [a - scale * b for a, b in zip(row, lead, strict=True)]
    if any(row[unknowns] for row in rows[unknowns:]):
        return None
    return [rows[i][unknowns] / rows[i][i] for i in range(unknowns)]


def _quotient(dim: Any, values: Values, wanted: Values) -> Dim | None:
    """(size + c) // d + e with a small d: what strides and pooling do to a size."""
    if len(set(values)) < 3:
        return None
    for by in range(2, 17):
        for more in range(by):
            shifts = {w - (v + more) // by for v, w in zip(values, wanted, strict=True)}
            if len(shifts) == 1:
                return (dim + more) // by + shifts.pop()  # type: ignore[no-any-return]
    return None


def _quotients(varying: Iterable[tuple[Any, Values]]) -> Iterator[tuple[Any, Values]]:
    """Halves, thirds, … of sizes, rounded down or up, that tell the runs apart."""
    for dim, values in varying:
        for by in (2, 3, 4, 5, 6, 8):
            for more in (0, by - 1, -1):
                divided = tuple((v + more) // by for v in values)
                if len(set(divided)) > 2:
                    yield (dim + more) // by, divided


def prime_unlike(taken: Iterable[int], at_least: int) -> int:
    """The first prime from there on that is no size seen so far."""
    used = set(taken)
    for n in itertools.count(max(at_least, 2)):
        if n not in used and all(n % d for d in range(2, int(n**0.5) + 1)):
            return n
    raise AssertionError("there are more primes")


def symbols_in(structure: Any) -> set[int]:
    """The numbers of the symbols in whatever Dims and Numbers a structure holds."""
    if isinstance(structure, (Dim, Number)):
        return symbols_of(structure.formula)
    if isinstance(structure, dict):
        structure = list(structure.values())
    if isinstance(structure, (tuple, list)):
        return set().union(*map(symbols_in, structure))
    parts = [getattr(structure, part) for part in ("times", "value") if hasattr(structure, part)]
    return set().union(*map(symbols_in, parts))


def symbols_of(formula: Any) -> set[int]:
    """The numbers of the symbols in a formula."""
    if formula.__class__ is not tuple:
        return set()
    return {formula[1]} if formula[0] == "symbol" else set().union(*map(symbols_of, formula[1:]))

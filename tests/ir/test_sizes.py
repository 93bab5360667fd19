"""Sizes that remember themselves."""

import math

import pytest

from wayfare.core.symbolic_sizes import Dim, Number, evaluated, holds, noted, size_classes, symbol, symbolic_shape


def test_arithmetic_is_remembered():
    n, c = symbol(0, 6), symbol(1, 4)
    for made, again in (
        (n * c + 1, 31), (n // 2 - c, 2), (2 * n % 5, 0), (-n, -10), (abs(c - n), 7), (math.prod((n, c, 2)), 60),
        (n**2, 100), (10 - c, 7), (sum((n, c)), 13),
    ):  # fmt: skip
        assert isinstance(made, Dim)
        assert evaluated(made, (10, 3)) == again
    whole = [(math.floor(n / c), 3), (math.ceil(n / c), 4), (math.trunc(n / 4 + 1), 3), (divmod(n, c)[1], 1)]
    for made, again in whole:
        assert isinstance(made, Dim) and evaluated(made, (10, 3)) == again
    assert isinstance(n / c, Number)
    assert evaluated(1 / n + 0.5, (10, 3)) == 0.6


def test_they_are_numbers_all_the_same():
    n = symbol(0, 6)
    assert n == 6 and list(range(n)) == list(range(6)) and hash(n) == hash(6) and repr(n) == "6"
    assert [0] * n == [0] * 6


def test_nothing_new_is_made_of_neutral_operands():
    n = symbol(0, 6)
    for made in (n * 1, 1 * n, n + 0, 0 + n, n - 0, n // 1):
        assert made.formula == n.formula


@pytest.mark.parametrize(
    ("ask", "same", "other"),
    [
        (lambda n: n > 3, 5, 2),
        (lambda n: n <= 6, 5, 7),
        (lambda n: n == 6, 6, 7),
        (lambda n: n % 2 == 0, 4, 5),
        (lambda n: bool(n - 6), 6, 7),
        (lambda n: int(n), 6, 7),
        (lambda n: float(n), 6, 7),
        (lambda n: math.sqrt(n), 6, 7),
        (lambda n: max(n, 4), 9, 3),
        (lambda n: (n, 2) == (6, 2), 6, 5),
    ],
)
def test_questions_are_noted(ask, same, other):
    with noted() as guards:
        ask(symbol(0, 6))
    assert holds(guards, (same,)) and not holds(guards, (other,))


def test_nothing_is_noted_outside():
    with noted() as guards:
        pass
    assert symbol(0, 6) > 3 and guards == {}


def test_classes_of_sizes():
    assert size_classes([(3, 4), (4,), (1, 3), (0,)]) == (((0, 1), (1,), (-1, 0), (-2,)), (3, 4))
    shape = symbolic_shape((0, -1, 1), (3, 4))
    assert shape == (3, 1, 4) and evaluated(shape, (7, 8)) == (7, 1, 8)
    assert evaluated({"shape": [shape[0] + 1, "a"]}, (7, 8)) == {"shape": [8, "a"]}

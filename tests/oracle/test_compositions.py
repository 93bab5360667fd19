"""Compositions of the function transforms, side by side: values, gradients, and what is in the graph after.

Pairs: all. Triples: a Latin square of them; that all triples are right is shown on polynomials, without a referee, in
tests/autograd/test_compositions.py. `linearize` is compared alone: inside or around another transform PyTorch refuses
it ("Nested forward mode AD is not supported") or gives zeros, and here it is exact.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.autograd.compositions import TRANSFORMS, composed, point, waves, weighted
from tests.oracle.side_by_side import agree

NESTING = [name for name in TRANSFORMS if name != "linearize"]


def check(names, requires_grad):
    def snippet(m):
        x, w = point(m, requires_grad)
        y = composed(m, names, w, waves)(x)
        gradients = m.autograd.grad(weighted(m, y), (x, w)) if requires_grad else ()
        return y.detach(), y.requires_grad, y.is_leaf, gradients

    try:
        agree(snippet)
    except AssertionError as error:
        raise AssertionError(f"{' of '.join(names)}: {error}") from None


@pytest.mark.parametrize("requires_grad", [False, True], ids=["alone", "inside autograd"])
@pytest.mark.parametrize("outer", NESTING)
def test_pairs(outer, requires_grad):
    for names in [(outer,), *[(outer, inner) for inner in NESTING]]:
        check(names, requires_grad)


@pytest.mark.parametrize("outer", range(len(NESTING)), ids=NESTING)
def test_triples(outer):
    for middle in range(len(NESTING)):
        inner = (outer + middle) % len(NESTING)
        check((NESTING[outer], NESTING[middle], NESTING[inner]), requires_grad=outer % 2 == 0)


def test_linearize():
    check(("linearize",), requires_grad=False)
    agree(lambda m: _directions(m))


def _directions(m):
    """One linearisation of two arguments, in two directions; the result may be of several parts."""
    a, b = (m.tensor(v, dtype=m.float64) for v in ([0.3, 0.7], [1.5, -0.4]))
    out, push = m.func.linearize(lambda a, b: (a * b.sin(), (a @ b).exp()), a, b)
    return out, push(a, b), push(b, a * 2)


@pytest.mark.parametrize("bad", [lambda push, x: push(x, x), lambda push, x: push(x[:1]), lambda push, x: push()])
def test_linearize_refuses_tangents_that_do_not_fit(bad):
    def snippet(m):
        x = m.tensor([0.3, 0.7], dtype=m.float64)
        return bad(m.func.linearize(lambda t: t.sin(), x)[1], x)

    agree(snippet, any_error=True)

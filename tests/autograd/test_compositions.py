"""All compositions of the function transforms to depth three, against exact derivatives of polynomials.

Alone, with autograd around them (the point and a parameter that the function reads require a gradient), and compiled.
"""

import warnings

import numpy as np
import pytest

import wayfare as wf
from tests.autograd.compositions import (
    TRANSFORMS,
    composed,
    compositions,
    exact,
    point,
    slopes,
    values,
    waves,
    weighted,
)


def close(got, want, names):
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9, err_msg=" of ".join(names))


def check(function, x, w, names, requires_grad):
    """One call of the composed function: what it gives, whether it is in the graph, and its gradient if so."""
    y = function(x)
    close(y.detach().numpy(), values(names), names)
    assert y.requires_grad is requires_grad, names
    if requires_grad:
        by_x, by_w = wf.autograd.grad(weighted(wf, y), (x, w))
        close([*by_x.tolist(), by_w.item()], slopes(names), names)


@pytest.mark.parametrize("requires_grad", [False, True], ids=["alone", "inside autograd"])
@pytest.mark.parametrize("outer", TRANSFORMS)
def test_all_compositions(outer, requires_grad):
    for names in [(outer,), *[(outer, *inner) for depth in (1, 2) for inner in compositions(depth)]]:
        x, w = point(wf, requires_grad)
        check(composed(wf, names, w), x, w, names, requires_grad)


@pytest.mark.parametrize("outer", TRANSFORMS)
def test_backward_sums_into_leaves(outer):
    for names in [(outer,), *[(outer, inner) for inner in TRANSFORMS]]:
        x, w = point(wf, True)
        weighted(wf, composed(wf, names, w)(x)).backward()
        close([*x.grad.tolist(), w.grad.item()], slopes(names), names)


@pytest.mark.parametrize("outer", TRANSFORMS)
def test_second_derivatives_around(outer):
    for names in [(outer,), *[(outer, inner) for inner in TRANSFORMS]]:
        x, w = point(wf, True)
        first = wf.autograd.grad(weighted(wf, composed(wf, names, w)(x)), (x, w), create_graph=True)
        by_x, by_w = wf.autograd.grad(first[0].sum() + first[1], (x, w))
        total = exact(names).total()
        want = [sum(total.by(i).by(j).value() for j in range(3)) for i in range(3)]
        close([*by_x.tolist(), by_w.item()], want, names)


@pytest.mark.parametrize("outer", TRANSFORMS)
def test_finite_differences_of_what_is_no_polynomial(outer):
    for names in [(outer,), *[(outer, inner) for inner in TRANSFORMS]]:
        wf.testing.gradcheck(lambda x, w, names=names: composed(wf, names, w, waves)(x), point(wf, True))


# All pairs, and a Latin square of triples: every two transforms meet at every two places.
NAMES = list(TRANSFORMS)
TRIPLES = [(a, b, NAMES[(i + j) % len(NAMES)]) for i, a in enumerate(NAMES) for j, b in enumerate(NAMES)]


@pytest.mark.parametrize("names", [*compositions(1), *compositions(2), *TRIPLES], ids=" of ".join)
def test_compiled(names):
    for requires_grad in (False, True):
        x, w = point(wf, requires_grad)
        function = wf.compile(composed(wf, names, w))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                check(function, x, w, names, requires_grad)

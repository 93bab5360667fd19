"""Custom Functions that return their argument or a view of it, written and used in every order, side by side."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree
from tests.oracle.snippets import leaf

SHOWN = {
    "the argument": lambda x: x,
    "a view": lambda x: x.view(2, 2),
    "a part": lambda x: x[1:],
    "the argument, cut": lambda x: x.detach(),
    "a view of a new tensor": lambda x: (x * 2).view(2, 2),
    "a new tensor": lambda x: x * 2,
}
SOURCES = {
    "leaf": lambda x: x,
    "computed": lambda x: x * 1,
    "view": lambda x: (x * 1).view(4),
    "constant": lambda x: x.detach(),
}


def _item(m, y):
    y[0] = 5.0


ACTS = {
    "nothing": lambda m, h, y: None,
    "write the result": lambda m, h, y: y.mul_(2),
    "write a part of it": lambda m, h, y: y[0].mul_(2),
    "set an item": lambda m, h, y: _item(m, y),
    "write the argument": lambda m, h, y: h.mul_(2),
    "write what is cut": lambda m, h, y: y.detach().mul_(2),
    "look at it anew": lambda m, h, y: y.unsqueeze_(0),
    "cut it": lambda m, h, y: y.detach_(),
}


def handed(m, show, several, seen):
    class Handed(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return (show(x), x * 3) if several else show(x)

        @staticmethod
        def backward(ctx, g, *more):
            seen.append(more)
            return m.ones(4, dtype=m.float64) * 7 * g.sum()

    return Handed


@pytest.mark.parametrize("several", [False, True], ids=["one output", "two outputs"])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("recording", [True, False], ids=["recording", "no_grad"])
def test_every_order(act, recording, several):
    """What is written where, what is used after, and the gradient of it.

    Left out, because PyTorch refuses what harms nobody: `unsqueeze_` under no_grad and then a use, and `detach_` of a
    view that has no history.
    """
    if act == "look at it anew" and not recording:
        pytest.skip("harmless, and allowed here")
    for show, source, use in itertools.product(SHOWN, SOURCES, (True, False)):
        if act == "cut it" and source == "constant":
            continue

        def snippet(m, show=show, source=source, use=use):
            x = leaf(m)
            h = SOURCES[source](x)
            out = handed(m, SHOWN[show], several, []).apply(h)
            y = out[0] if several else out
            with m.set_grad_enabled(recording):
                ACTS[act](m, h, y)
            if use and y.requires_grad:
                (y * 2).sum().backward()
            values = [t.detach().clone() for t in (h, y)]
            return values, x.grad, y.requires_grad

        try:
            agree(snippet)
        except AssertionError as error:
            raise AssertionError(f"{show} / {source} / used: {use}: {error}") from None

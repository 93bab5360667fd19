"""What the small tutorial programs share: numbers that look random, weights fixed by them, and the comparison."""

from __future__ import annotations

import math

import torch

from tests.oracle.compare import Tolerance
from tests.oracle.side_by_side import Raised, agree, outcome


def numbers(m, *shape, scale=0.5, start=0.3):
    """Numbers that look random and are the same on both sides."""
    count = math.prod(shape)
    return (m.sin(m.arange(count, dtype=m.float64) * 1.7 + start) * scale).reshape(shape)


def fixed(m, module):
    """The module in double precision, with weights that are the same on both sides."""
    module.double()
    with m.no_grad():
        for at, p in enumerate(module.parameters()):
            p.copy_(numbers(m, *p.shape, start=0.1 + at))
    return module


def state(module):
    return [(name, value) for name, value in module.state_dict().items()]


def agree_on(snippet):
    """Fails where the two sides differ, or where PyTorch does not run the program: then any error would agree."""
    expected = outcome(torch, snippet)
    assert not isinstance(expected, Raised), expected
    agree(snippet, tolerance=Tolerance(1e-6, 1e-8))

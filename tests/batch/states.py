"""How tests compare what a map and a loop leave in Python objects that all examples see."""

import random

import numpy as np

import wayfare as wf

WAYS = ({}, {"batch": True})


def same_as_loop(make, examples=None):
    """`make` gives a function with objects of its own, and what shows their state: a map leaves what the loop does."""
    examples = [wf.tensor([1.0, 2.0]), wf.tensor([3.0, 4.0]), wf.tensor([5.0, 6.0])] if examples is None else examples

    def seeded():
        random.seed(0)
        np.random.seed(0)
        wf.manual_seed(0)
        made = make()
        return made if isinstance(made, tuple) else (made, list)

    function, state = seeded()
    want = [function(x) for x in examples], state()
    for way in WAYS:
        function, state = seeded()
        got = wf.map(function, examples, **way), state()
        assert got == want, way

"""Two worlds side by side, one with a compiled function: the same things happen in both, and both must stay equal.

A world is made by a function `make(way)`, where `way` is `wf.compile` in one of them. It returns what is done at each
call (given the call's number) and then any number of changes that happen between calls.
"""

import sys
import types
import warnings

import wayfare as wf
from tests.compiler.checks import equal, x_of

CALLS = 4  # the first is recorded, the second planned, the others replayed


def stay_equal(make, python=False, seed=True):
    """Calls, a change, calls again, the next change …: compiled like plain.

    With `python`, it is right that the function is left to Python; otherwise that would prove nothing.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore" if python else "error", message="compile: .* runs as plain Python")
        watch = Watch()
        worlds = [make(watch.compile), make(lambda function: function)]
        number = 0
        for round in range(len(worlds[0])):
            for repeat in range(CALLS):
                found = []
                watch.ran = False
                for call, *_ in worlds:
                    if seed:
                        wf.manual_seed(number)
                    found.append(call(number))
                equal(*found)
                assert python or repeat + 1 < CALLS or not watch.ran, "Python ran again: nothing was replayed"
                number += 1
            if round + 1 < len(worlds[0]):
                for world in worlds:
                    world[round + 1]()


class Watch:
    """Compiles functions, and notices when their Python runs."""

    def __init__(self):
        self.ran = False

    def compile(self, function):
        plain = getattr(function, "__func__", function)
        if not isinstance(plain, types.FunctionType):
            return wf.compile(function, check=False)
        code = plain.__code__

        def watched(*args, **options):
            sys.setprofile(lambda frame, event, _: setattr(self, "ran", self.ran or frame.f_code is code))
            try:
                return compiled(*args, **options)
            finally:
                sys.setprofile(None)

        compiled = wf.compile(function, check=False)
        return watched


def with_gradient(result, *tensors):
    """A result, and its gradients for some tensors, which are cleared for the next call."""
    result.sum().backward()
    grads = [t.grad for t in tensors]
    for t in tensors:
        t.grad = None
    return [result.detach(), grads]


def simple(f, *changes):
    """A world whose call is a function of one tensor, with its gradient."""

    def call(number):
        x = x_of(number)
        return with_gradient(f(x), x)

    return call, *changes

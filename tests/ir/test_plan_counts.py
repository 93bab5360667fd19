"""Planning takes as long a layer for many layers as for few: calls are counted, not timed."""

import sys
from collections import Counter

import pytest

import wayfare as wf


def calls_of(work) -> Counter:
    """How often each function is called, in Python or C."""
    counts: Counter = Counter()

    def look(frame, event, what):
        if event == "call":
            counts[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            counts[getattr(what, "__qualname__", repr(what))] += 1

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts


def growing(few: Counter, many: Counter, times: float) -> dict[str, tuple[int, int]]:
    """The functions whose calls grow faster than the work does."""
    return {name: (few[name], n) for name, n in many.items() if n > 1.25 * times * few[name] + 2000}


def compiled_step(layers: int, width: int = 2, rows: int = 3):
    net = wf.nn.Sequential(*[part for _ in range(layers) for part in (wf.nn.Linear(width, width), wf.nn.Tanh())])
    optimizer = wf.optim.Adam(net.parameters())

    @wf.compile
    def step(x):
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    x = wf.ones(rows, width)

    def run():
        for _ in range(4):
            step(x)
        assert not step._plain()

    return run


@pytest.mark.filterwarnings("ignore")
def test_compiling_a_step_of_many_layers():
    calls_of(compiled_step(5))  # kernels are made
    few, many = (calls_of(compiled_step(layers)) for layers in (50, 200))
    assert not growing(few, many, 4)


@pytest.mark.filterwarnings("ignore")
def test_compiling_layers_whose_values_are_worth_computing_again():
    calls_of(compiled_step(5, 8, 10_000))
    few, many = (calls_of(compiled_step(layers, 8, 10_000)) for layers in (15, 60))
    assert not growing(few, many, 4)


def test_the_first_step_of_an_optimizer():
    def first_step(count):
        parameters = [wf.nn.Parameter(wf.zeros(2)) for _ in range(count)]
        for p in parameters:
            p.grad = wf.ones(2)
        return wf.optim.Adam(parameters).step

    calls_of(first_step(3))
    few, many = (calls_of(first_step(count)) for count in (250, 1000))
    assert not growing(few, many, 4)
    assert sum(many.values()) < 180 * 1000

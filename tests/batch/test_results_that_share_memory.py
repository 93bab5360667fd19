"""Results of one call of a function, module or compiled function: which of them share memory, or are the same tensor,
and which require a gradient, is as in the loop."""

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.batch.paths import choose, functions
from wayfare.testing import assert_close

RETURNED = {
    "the same tensor twice": lambda layer, x, h: (h, h),
    "the same tensor, nested": lambda layer, x, h: (h, (h, x * 2)),
    "a part of it": lambda layer, x, h: (h, h[1:]),
    "two parts that overlap": lambda layer, x, h: (h[1:], h[:2]),
    "two parts that do not": lambda layer, x, h: tuple(h.chunk(2)),
    "it in another shape": lambda layer, x, h: (h, h.view(2, 2)),
    "it without its history": lambda layer, x, h: (h, h.detach()),
    "a part of the argument": lambda layer, x, h: (h, x[1:]),
    "the argument without its history": lambda layer, x, h: (h, x.detach()),
    "a part of a weight": lambda layer, x, h: (h, layer.bias[1:]),
    "a weight": lambda layer, x, h: (h, layer.bias),
}


class Layer(nn.Module):
    def __init__(self, returned):
        super().__init__()
        self.inner, self.returned = nn.Linear(4, 4), returned

    def forward(self, x):
        h = self.inner(x).tanh() * 2
        return self.returned(self.inner, x, h)


def tensors_in(made):
    return [made] if isinstance(made, wf.Tensor) else [t for part in made for t in tensors_in(part)]


@pytest.mark.parametrize("name", RETURNED)
@pytest.mark.parametrize("kind", ["function", "module", "compiled"])
def test_a_write_to_one_result_is_seen_in_the_other(name, kind):
    def run(batch):
        wf.manual_seed(0)
        layer = Layer(RETURNED[name])

        def function(x):
            h = layer.inner(x).tanh() * 2
            return RETURNED[name](layer.inner, x, h)

        called = {"function": function, "module": layer, "compiled": wf.compile(function, check=False)}[kind]

        def example(x):
            y = x * 3
            results = called(y)
            float(results[0].sum())  # the group has run, and its results are not recomputed
            return results, y

        out = []
        for made, y in wf.map(example, list(wf.randn(5, 4)), batch=batch):
            found = tensors_in(made)
            with wf.no_grad():
                found[0].mul_(3)
                found[1].add_(100)
            out += [*found, y, wf.tensor(found[0] is found[1])]
        return [*out, layer.inner.bias]

    for batched, looped in zip(run(True), run(False), strict=True):
        assert_close(batched, looped, atol=1e-4, rtol=1e-5)


def test_a_tensor_that_is_returned_twice_is_one_output():
    """It is computed, kept and differentiated once; and such calls are still one group."""
    layer = Layer(RETURNED["the same tensor twice"])

    def example(x, steps):
        for _ in range(steps):
            h, x = layer(x)
            assert h is x
        return h, x

    def run(batch):
        layer.zero_grad()
        wf.manual_seed(3)
        xs = [wf.randn(4).requires_grad_() for _ in range(6)]
        made = wf.map(example, xs, [1, 2, 3, 3, 2, 1], batch=batch)
        sum((h * x).sum() for h, x in made).backward()
        return [*[h for h, _ in made], *[x.grad for x in xs], *[p.grad for p in layer.parameters()]]

    for batched, looped in zip(run(True), run(False), strict=True):
        assert_close(batched, looped, atol=1e-5, rtol=1e-4)
    run(True)
    assert [(entry.name, entry.nodes, entry.groups) for entry in wf.batching.last().kinds] == [("Layer", 12, 3)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("of_weight", [False, True])
@pytest.mark.parametrize("given", [(False, False), (True, False), (False, True), (True, True)])
def test_each_result_requires_a_gradient_as_in_the_loop(compiled, of_weight, given):
    layer = nn.Linear(4, 4).requires_grad_(of_weight)

    def function(a, b):
        return layer(a).tanh() * 2, (b * 2).sin() + 1, a * b + 1

    called = wf.compile(function, check=False) if compiled else function

    def example(a, b):
        results = called(a, b)
        float(results[0].sum())
        return results

    columns = [[wf.randn(4).requires_grad_(needs) for _ in range(5)] for needs in given]
    batched, looped = (
        [[t.requires_grad for t in made] for made in wf.map(example, *columns, batch=batch)] for batch in (True, False)
    )
    assert batched == looped


SHARED = wf.ones(4) * 0.5
COMPUTED_TWICE = {
    "two ops": lambda x: (x.sin() + 1, x.sin() + 1),
    "sums": lambda x: (x.sum(), x.sum()),
    "copies": lambda x: (x.clone(), x.clone()),
    "several results": lambda x: (*x.max(0), *x.max(0)),
    "of a shared tensor": lambda x: (SHARED * 2, SHARED * 2),
    "without history": lambda x: ((x * 2).detach(), x * 2),
}


@pytest.mark.parametrize("name", COMPUTED_TWICE)
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("needs", [False, True])
def test_what_a_recorded_path_computes_twice_are_two_tensors(name, planned, needs, monkeypatch):
    """A recording has equal values once; a write to one result was seen in the other."""
    monkeypatch.setattr(choose, "FIRST_MAPS", 1)
    monkeypatch.setattr(functions, "_BEFORE_PLAN", 0 if planned else 10**6)

    def example(x):
        found = COMPUTED_TWICE[name](x)
        return found if x.sum() > 0 else found[::-1]

    def run(batch):
        wf.manual_seed(1)
        out = []
        for _ in range(3):
            made = wf.map(example, [wf.randn(4).requires_grad_(needs) for _ in range(6)], batch=batch)
            with wf.no_grad():
                for number, t in enumerate([t for results in made for t in results if t.is_floating_point()]):
                    t.mul_(number + 2)
            out += [t for results in made for t in results]
        return out

    for batched, looped in zip(run(True), run(False), strict=True):
        assert_close(batched, looped, atol=1e-4, rtol=1e-5)
    run(True)
    assert wf.batching.last().paths.examples

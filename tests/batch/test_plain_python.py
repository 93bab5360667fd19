"""Examples are plain Python: whatever functions, generators, exceptions and containers do, they do in a map."""

import collections
import contextvars
import copy
import functools
import math
import operator
import sys

import numpy as np
import pytest

import wayfare as wf
from tests.batch.checks import agree, equal, numbers, said, vectors, weight
from wayfare import nn
from wayfare.nn import functional as F


class Callables:
    """A function of one example in its other forms."""

    def __call__(self, x):
        return x * 2

    def method(self, x):
        return x * 3

    @classmethod
    def of_class(cls, x):
        return x * 4


@pytest.mark.parametrize("function", [
    Callables(), Callables().method, Callables.of_class, functools.partial(operator.mul, 2), wf.tanh, F.relu, nn.Tanh(),
    wf.fused(lambda x: x * 2 + 1), wf.compile(lambda x: x * 2 + 1), len, nn.LayerNorm(3).double(), str,
], ids=lambda f: type(f).__name__)  # fmt: skip
def test_anything_callable(function):
    agree(function, vectors(grad=False))


def test_generators_that_read_values():
    def function(x):
        def parts():
            for i in range(3):
                y = x * i
                yield y.sum().item()

        return sum(parts()), [p for p in parts() if p > 0]

    agree(function, vectors())


def test_a_result_that_is_still_to_be_gone_through():
    results = wf.map(lambda x: (x * i for i in range(3)), xs := vectors(2))
    for x, result in zip(xs, results, strict=True):
        equal(list(result), [x * i for i in range(3)])


def test_context_variables_are_each_examples_own():
    variable = contextvars.ContextVar("variable", default=-1)

    def function(x, i):
        variable.set(i)
        (x * 2).sum().item()
        return variable.get()

    assert wf.map(function, vectors(), range(4)) == [0, 1, 2, 3]
    assert variable.get() == -1


def test_exceptions_in_flight_are_each_examples_own():
    def function(x, i):
        try:
            raise ValueError(i)
        except ValueError as error:
            (x * 2).sum().item()
            assert sys.exc_info()[1] is error
            try:
                raise
            except ValueError as again:
                return again.args[0]

    assert wf.map(function, vectors(), range(4)) == [0, 1, 2, 3]


def test_finally_runs_in_order():
    log = []

    def function(x, i):
        try:
            return (x * 2).sum().item()
        finally:
            log.append(i)

    wf.map(function, vectors(), range(4))
    assert log == [0, 1, 2, 3]


@pytest.mark.parametrize("function", [
    lambda x: [p * q for p, q in zip(x * 1, x * 3, strict=True)],
    lambda x: (lambda a, b, c: a * b + c)(*(x * 2)),
    lambda x: (x[: (x > 0).sum()] * 2, list(range((x > 0).sum())), "abc"[(x > 0).sum() - 1]),
    lambda x: (f"{(x * 2).sum().item():.3f}", math.sqrt((x * x).sum()), round(float(x.sum()), 2), abs(x * 2), -x),
    lambda x: (x // 0.3, x % 0.7, 2**x, x**2, 1 / x, 3 - x, x @ x, x.T),
    lambda x: (bool(x.sum() > 0), not (x.sum() > 0), (x > 0) | (x < -1), ~(x > 0), (x > 0) ^ (x < 1)),
    lambda x: (sorted([x.sum(), x.max()], key=float)[0], max(x.sum(), x.max()), sum([x, x, x]), {"a": x}["a"] * 2),
    lambda x: (np.sin((x * 2).detach()), np.asarray((x * 2).detach()).sum().item()),
    lambda x: (x.argmax(), (x > 0).nonzero(), x.long(), x.argsort(), wf.unique(x.detach().round()), tuple(x.topk(2))),
    lambda x: [float(v) for v in x * 2 if v > 0],
    lambda x: functools.reduce(lambda a, b: a * b + 1, x.unbind()),
    lambda x: [*map(float, x * 2)] + [len(x), x.shape[0], (x * 2).tolist()],
    lambda x: {int(i): v for i, v in enumerate(x)},
    lambda x: (x * 2).apply_(lambda v: v + 1) if hasattr(x, "apply_") and not x.requires_grad else x,
])  # fmt: skip
def test_lines_of_python(function):
    agree(function, xs := vectors(), leaves=xs)


def test_models_copied_made_and_trained_inside():
    outer = nn.Linear(3, 3).double()

    def function(x):
        inner = copy.deepcopy(outer)
        wf.manual_seed(3)
        small = nn.Linear(3, 1).double()
        opt = wf.optim.SGD(small.parameters(), lr=0.1)
        for _ in range(3):
            opt.zero_grad()
            loss = (small(x.detach()) ** 2).sum()
            loss.backward()
            opt.step()
        return inner(x) * outer(x), loss.detach(), small.weight.detach()

    agree(function, xs := vectors(), leaves=[*outer.parameters(), *xs])


def test_named_tuples_and_caches():
    pair = collections.namedtuple("pair", "first second")
    assert type(wf.map(lambda x: pair(x * 2, x.sum()), vectors())[0].first) is wf.Tensor
    w = weight(3, 3)

    @functools.lru_cache
    def made(k):
        return (w * k).sum(0)

    first = wf.map(lambda i: made(i % 2) * i, range(4))
    assert type(made(0)) is wf.Tensor and made.cache_info().misses == 2
    equal(wf.map(lambda i: made(i % 2) * i, range(4)), first)
    sum(t.sum() for t in first).backward()
    equal(w.grad, wf.full((3, 3), 4.0, dtype=wf.float64))


def test_hooks_of_shared_weights_run_once_for_each_backward():
    w, calls = weight(3, 3), []
    w.register_hook(lambda g: calls.append("gradient") or g * 2)
    w.register_post_accumulate_grad_hook(lambda p: calls.append("added"))
    xs = vectors()
    sum(t.sum() for t in wf.map(lambda x: x @ w, xs)).backward()
    assert calls == ["gradient", "added"]
    equal(w.grad, wf.stack([x.detach() for x in xs]).sum(0)[:, None].expand(3, 3) * 2)


def test_anomaly_mode_names_the_example():
    for batch in (False, True):
        with pytest.raises(RuntimeError) as caught, wf.autograd.detect_anomaly():
            wf.map(lambda x: x.sqrt() * 2, [numbers(3).abs(), -numbers(3).abs() - 1], batch=batch)
        assert "sqrt" in said(caught.value) and "example 1" in said(caught.value)


VALUE_ERRORS = {
    "multinomial": lambda x: wf.multinomial(x - 9, 1), "one_hot": lambda x: F.one_hot((x * 0 + 9).long(), 3),
    "gather": lambda x: x.gather(0, wf.tensor([9])), "cross_entropy": lambda x: F.cross_entropy(x, wf.tensor(7)),
    "inv": lambda x: wf.linalg.inv((x * 0).diag()), "take": lambda x: x.take(wf.tensor([7])),
    "index_select": lambda x: x.index_select(0, wf.tensor([8])), "item": lambda x: (x * 1).item(),
    "index_add": lambda x: x.index_add(0, wf.tensor([7]), x[:1]), "bernoulli": lambda x: wf.bernoulli(x * 0 + 7),
    "embedding": lambda x: F.embedding((x * 0 + 50).long(), wf.ones(4, 2)),
    "bincount": lambda x: (x * 0 - 3).long().bincount(),
    "scatter": lambda x: x.scatter(0, wf.tensor([9]), 1.0), "mask": lambda x: x[wf.tensor([True, False])],
    "normal": lambda x: wf.normal(x * 0, -x.abs() - 1), "divided": lambda x: (x * 0).long() // 0,
    "cholesky": lambda x: wf.linalg.cholesky((x * 0 - 1).diag()), "bool": lambda x: bool(x * 1),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUE_ERRORS)
def test_errors_that_hang_on_values(name):
    told = []
    for batch in (False, True):
        try:
            wf.map(lambda x, i: VALUE_ERRORS[name](x) if i == 1 else x, vectors(3, grad=False), range(3), batch=batch)
            told.append(None)
        except Exception as error:
            told.append((type(error), "example 1" in said(error)))
    assert told[1] == told[0]

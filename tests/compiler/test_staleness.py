"""Never stale: what a compiled function captured is changed between calls, and each call gives what Python gives."""

import collections
import dataclasses
import functools
import types

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import numbers, x_of
from tests.compiler.worlds import simple, stay_equal
from wayfare.nn import functional as F

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def test_a_closure_variable():
    def make(way):
        k = 2.0

        def f(x):
            return x * k

        def change(value):
            nonlocal k
            k = value

        return simple(way(f), lambda: change(3.0), lambda: change(2.0), lambda: change(numbers(4)), lambda: change(2))

    stay_equal(make)


def test_a_global():
    def make(way):
        there = {"scale": 2.0}
        exec("def f(x): return x * scale if scale != 5 else x", there)

        def change(value):
            there["scale"] = value

        return simple(way(there["f"]), lambda: change(3.0), lambda: change(5), lambda: change(True),
                      lambda: there.update(scale=2.0))  # fmt: skip

    stay_equal(make)


def test_a_global_that_hides_a_builtin():
    def make(way):
        there = {}
        exec("def f(x): return x * abs(-2)", there)
        return simple(way(there["f"]), lambda: there.update(abs=lambda x: x), lambda: there.pop("abs"))

    stay_equal(make)


def test_default_arguments():
    def make(way):
        def f(x, k=2.0, *, m=1.0):
            return x * k + m

        def more():
            f.__kwdefaults__["m"] = 5.0

        return simple(way(f), lambda: setattr(f, "__defaults__", (3.0,)), more)

    stay_equal(make)


def test_a_function_as_default():
    def make(way):
        factor = [2.0]

        def f(x, g=lambda x: x * factor[0]):
            return g(x)

        return simple(way(f), lambda: factor.__setitem__(0, 3.0),
                      lambda: setattr(f, "__defaults__", (lambda x: x - 1,)))  # fmt: skip

    stay_equal(make)


INSIDE = {
    "list": (lambda: [2.0, 3.0], lambda v, x: x * v[0] + v[-1],
             [lambda v: v.__setitem__(0, 5.0), lambda v: v.append(1.0), lambda v: v.clear() or v.append(7.0)]),
    "dict": (lambda: {"k": 2.0}, lambda v, x: sum(x * k for k in v.values()),
             [lambda v: v.update(k=3.0), lambda v: v.update(m=4.0), lambda v: v.pop("k")]),
    "dict order": (lambda: {"a": 2.0, "b": 3.0}, lambda v, x: x * next(iter(v.values())),
                   [lambda v: v.update(a=v.pop("a"))]),
    "set": (lambda: {2}, lambda v, x: x * len(v) + (1 if 5 in v else 0), [lambda v: v.add(5), lambda v: v.remove(2)]),
    "deque": (lambda: collections.deque([1.0, 2.0]), lambda v, x: x * v[0], [lambda v: v.rotate(1)]),
    "counter": (lambda: collections.Counter("aab"), lambda v, x: x * v["a"], [lambda v: v.update("a")]),
    "default dict": (lambda: collections.defaultdict(int, a=2), lambda v, x: x * v["a"], [lambda v: v.update(a=5)]),
    "nested": (lambda: [{"a": ([2.0],)}], lambda v, x: x * v[0]["a"][0][0],
               [lambda v: v[0]["a"][0].__setitem__(0, 3.0), lambda v: v[0].update(a=([4.0],))]),
    "array": (lambda: np.full(4, 2.0), lambda v, x: x * wf.tensor(v), [lambda v: v.__setitem__(1, 7.0)]),
    "array read as numbers": (lambda: np.full(4, 2.0), lambda v, x: x * float(v[1]),
                              [lambda v: v.__setitem__(1, 7.0)]),
    "tensor": (lambda: numbers(4, seed=3), lambda v, x: x * v, [lambda v: v.mul_(2), lambda v: v.zero_()]),
    "tensor's memory": (lambda: numbers(4, seed=3), lambda v, x: x * v,
                        [lambda v: setattr(v, "data", numbers(4, seed=5)),
                         lambda v: setattr(v, "data", numbers(1, seed=6))]),
    "tensor behind its back": (lambda: numbers(4, seed=3), lambda v, x: x * v,
                               [lambda v: v.numpy().__setitem__(2, 9.0)]),
    "tensor read by Python": (lambda: wf.tensor(1.0), lambda v, x: x * v.item() if v > 0 else x,
                              [lambda v: v.fill_(3.0), lambda v: v.fill_(-1.0), lambda v: v.fill_(1.0)]),
    "tensors in a list": (lambda: [numbers(4, seed=1)], lambda v, x: x + sum(v),
                          [lambda v: v.append(numbers(4, seed=2)), lambda v: v.__setitem__(0, numbers(1))]),
    "object": (lambda: types.SimpleNamespace(k=2.0), lambda v, x: x * v.k,
               [lambda v: setattr(v, "k", 3.0), lambda v: setattr(v, "k", numbers(4))]),
    "object that computes names": (lambda: types.SimpleNamespace(k=2.0), lambda v, x: x * getattr(v, "k" + ""),
                                   [lambda v: setattr(v, "k", 3.0)]),
    "attribute that may be missing": (lambda: types.SimpleNamespace(), lambda v, x: x * getattr(v, "k", 2.0),
                                      [lambda v: setattr(v, "k", 3.0), lambda v: delattr(v, "k")]),
    "hasattr": (lambda: types.SimpleNamespace(), lambda v, x: x * 2 if hasattr(v, "k") else x,
                [lambda v: setattr(v, "k", 3.0), lambda v: delattr(v, "k")]),
    "attribute that is caught": (lambda: types.SimpleNamespace(), lambda v, x: x * caught(v),
                                 [lambda v: setattr(v, "k", 3.0), lambda v: delattr(v, "k")]),
}  # fmt: skip


def caught(v):
    try:
        return v.k
    except AttributeError:
        return 5.0


@pytest.mark.parametrize("name", INSIDE)
def test_a_value_inside(name):
    new, function, changes = INSIDE[name]

    def make(way):
        value = new()

        def f(x):
            return function(value, x)

        return simple(way(f), *[functools.partial(change, value) for change in changes])

    stay_equal(make)


def test_objects_of_own_classes():
    def make(way):
        @dataclasses.dataclass
        class Inner:
            rates: list

        @dataclasses.dataclass
        class Config:
            inner: Inner
            k: float = 1.0

        class Held:
            __slots__ = ("config",)

        held = Held()
        held.config = Config(Inner([2.0]))

        def f(x):
            return x * held.config.inner.rates[0] + held.config.k

        return simple(
            way(f),
            lambda: held.config.inner.rates.__setitem__(0, 3.0),
            lambda: setattr(held.config, "k", 4.0),
            lambda: setattr(held.config, "inner", Inner([5.0])),
            lambda: setattr(held, "config", dataclasses.replace(held.config, k=0.0)),
        )

    stay_equal(make)


def test_classes_and_their_methods():
    def make(way):
        class Base:
            rate = 2.0

            def times(self, x):
                return x * self.rate

            @property
            def half(self):
                return self.rate / 2

            @staticmethod
            def more(x):
                return x + 1

            @classmethod
            def made(cls):
                return cls()

        class Derived(Base):
            def times(self, x):
                return super().times(x) - self.half

        thing = Derived()

        def f(x):
            return thing.times(thing.more(x)) + Derived.made().half

        return simple(
            way(f),
            lambda: setattr(Base, "rate", 3.0),
            lambda: setattr(Derived, "rate", 4.0),
            lambda: setattr(thing, "rate", 5.0),
            lambda: setattr(Base, "times", lambda self, x: x),
            lambda: setattr(Derived, "half", property(lambda self: 10.0)),
            lambda: setattr(Base, "more", staticmethod(lambda x: x * 7)),
            lambda: setattr(thing, "times", lambda x: x),
            lambda: setattr(thing, "__class__", Base),
        )

    stay_equal(make)


def test_operators_and_calls_of_own_classes():
    def make(way):
        class Factor:
            def __init__(self, k):
                self.k = k

            def __call__(self, x):
                return x * self.k

            def __getitem__(self, number):
                return self.k + number

            def __len__(self):
                return int(self.k)

            def __eq__(self, other):
                return self.k == other

            __hash__ = None

        factor = Factor(2.0)

        def f(x):
            return factor(x) + factor[1] * len(factor) + (10 if factor == 3.0 else 0)

        return simple(way(f), lambda: setattr(factor, "k", 3.0), lambda: setattr(factor, "k", 4.0),
                      lambda: setattr(Factor, "__call__", lambda self, x: x))  # fmt: skip

    stay_equal(make)


def test_helper_functions():
    def make(way):
        there = {"scale": 2.0}
        exec("def h(x): return x * scale\ndef g(x): return h(x) + 1\ndef f(x): return g(x)", there)
        return simple(
            way(there["f"]),
            lambda: there.update(scale=3.0),
            lambda: there.update(h=lambda x: x - 1),
            lambda: setattr(there["g"], "__code__", (lambda x: x * 5).__code__),
        )

    stay_equal(make)


def test_functions_in_containers_partials_and_bound_methods():
    def make(way):
        class Thing:
            k = 2.0

            def times(self, x):
                return x * self.k

        thing = Thing()
        table = {
            "partial": functools.partial(lambda x, k: x * k, k=2.0),
            "method": thing.times,
            "list": [wf.sin, lambda x: x + 1],
        }

        def f(x):
            x = table["partial"](x) + table["method"](x)
            for g in table["list"]:
                x = g(x)
            return x

        return simple(
            way(f),
            lambda: table.update(partial=functools.partial(lambda x, k: x * k, k=3.0)),
            lambda: setattr(thing, "k", 4.0),
            lambda: table["list"].insert(0, wf.cos),
            lambda: table["list"].pop(),
            lambda: table.update(method=lambda x: x),
        )

    stay_equal(make)


@pytest.mark.parametrize("decorate", [wf.no_grad(), wf.enable_grad(), wf.compile])
def test_what_decorated_helpers_see(decorate):
    def make(way):
        factor = [2.0]

        @decorate
        def helper(x):
            return x * factor[0]

        def f(x):
            return helper(x) + x

        return simple(way(f), lambda: factor.__setitem__(0, 3.0), lambda: factor.__setitem__(0, 2.0))

    stay_equal(make)


def test_the_backward_of_a_custom_function():
    def make(way):
        factor = [2.0]

        class Scaled(wf.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 3

            @staticmethod
            def backward(ctx, g):
                return g * factor[0]

        return simple(way(lambda x: Scaled.apply(x).sin()), lambda: factor.__setitem__(0, 5.0))

    stay_equal(make, python=True)  # it reads the list when the gradient is asked for, which is later


def test_recursion():
    def make(way):
        depth = [2]

        def f(x, level=0):
            return x if level == depth[0] else inner(x * 2, level + 1)

        inner = f
        return simple(way(f), lambda: depth.__setitem__(0, 4), lambda: depth.__setitem__(0, 0))

    stay_equal(make)


def test_a_python_module_of_the_user():
    def make(way):
        settings = types.ModuleType("settings_of_user")
        settings.__file__ = "settings_of_user.py"
        settings.k = 2.0
        there = {"settings": settings}
        exec("def f(x): return x * settings.k", there)

        def replaced():
            there["settings"] = types.SimpleNamespace(k=7.0)

        return simple(way(there["f"]), lambda: setattr(settings, "k", 3.0), replaced)

    stay_equal(make)


def test_a_function_of_the_library_that_is_replaced(monkeypatch):
    def f(x):
        return F.relu(x) + 1

    compiled = wf.compile(f)
    for number in range(4):
        assert (compiled(x_of(number)) == f(x_of(number))).all()
    monkeypatch.setattr(F, "relu", lambda x: x * 5)
    for number in range(4):
        assert (compiled(x_of(number)) == f(x_of(number))).all()


@pytest.mark.parametrize("value", [1, 1.0, True, "a", None, (1, 2.0), wf.float32, wf.float64, -0.0, 0.0, float("nan")])
def test_values_that_are_nearly_the_same(value):
    """Each of these is met after each other one, and told apart."""
    others = [1, 1.0, True, "a", None, (1, 2.0), wf.float32, wf.float64, -0.0, 0.0, float("nan")]

    def make(way):
        k = [value]

        def f(x):
            return x.sum() + hash_of(k[0])

        return simple(way(f), *[functools.partial(k.__setitem__, 0, other) for other in others])

    stay_equal(make)


def hash_of(value):
    return float(sum(map(ord, repr(value))))

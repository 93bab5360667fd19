"""Never stale: one attribute goes and another comes between calls, so that their number stays as it was."""

import functools

import pytest

import wayfare as wf
from tests.compiler.worlds import simple, stay_equal
from wayfare import nn

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def plain():
    class Cfg:
        scale = 2.0

        def __init__(self):
            self.old = self.older = self.z = 1.0

    return Cfg()


def derived():
    class Base:
        scale = 2.0

    class Cfg(Base):
        old = older = z = 1.0

        def method(self):
            return 1.0

    return Cfg()


def layer():
    class Layer(nn.Module):
        scale = 2.0

        def __init__(self):
            super().__init__()
            self.old = self.older = self.z = 1.0

    return Layer()


def slotted():
    class Base:
        __slots__ = ("__dict__", "k")
        scale = 2.0

    made = Base()
    made.old = made.older = made.z = 1.0
    return made


def function():
    def made():
        pass

    made.scale = 2.0
    made.old = made.older = made.z = 1.0
    return made


def optimizer():
    class Stepper(wf.optim.SGD):
        scale = 2.0

    made = Stepper([nn.Parameter(wf.ones(1))], lr=1.0)
    made.old = made.older = made.z = 1.0
    return made


def partial():
    made = functools.partial(function())
    made.scale = 2.0
    made.old = made.older = made.z = 1.0
    return made


MAKERS = {maker.__name__: maker for maker in (plain, derived, layer, slotted, function, optimizer, partial)}


def swap(holder, **new):
    for gone, (added, value) in zip(("old", "older"), new.items(), strict=False):
        delattr(holder, gone)
        setattr(holder, added, value)


USES = {
    "hides what the class has": (lambda v, x: x * v.scale, {"scale": 7.0}),
    "is there now": (lambda v, x: x * 3 if hasattr(v, "new") else x, {"new": 1.0}),
    "has no default now": (lambda v, x: x * getattr(v, "new", 1.0), {"new": 7.0}),
    "is called like a method of tensors": (lambda v, x: x.sum() * getattr(v, "sum", 1.0), {"sum": 7.0}),
    "unrelated": (lambda v, x: x * v.scale, {"other": 7.0}),
    "two": (lambda v, x: x * getattr(v, "a", 1.0) * getattr(v, "b", 1.0), {"a": 7.0, "b": 3.0}),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("maker", MAKERS)
def test_one_goes_and_another_comes(maker, use):
    body, new = USES[use]

    def make(way):
        value = MAKERS[maker]()
        holder = type(value) if maker == "derived" else value
        return simple(way(lambda x: body(value, x)), lambda: swap(holder, **new))

    stay_equal(make)


def test_taken_out_of_the_dictionary():
    def make(way):
        value = plain()

        def change():
            value.k = value.__dict__.pop("z") + 5

        return simple(way(lambda x: x * getattr(value, "k", 2.0)), change)

    stay_equal(make)


def test_a_special_method_that_comes():
    def make(way):
        value = derived()

        def change():
            del type(value).old
            type(value).__getattr__ = lambda self, name: 7.0

        return simple(way(lambda x: x * getattr(value, "missing", 1.0)), change)

    stay_equal(make)


def test_in_the_forward_of_a_layer():
    class Layer(nn.Module):
        k = 2.0

        def __init__(self):
            super().__init__()
            self.old = self.older = 1.0

        def forward(self, x):
            return x * self.k * getattr(self, "gamma", 3)

    def make(way):
        layer = Layer()
        return simple(way(layer), lambda: swap(layer, k=5.0, gamma=2.0))

    stay_equal(make)

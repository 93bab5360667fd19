"""Custom Functions in a compiled call that is differentiated outside: their backward sees what is there when asked."""

import math
import warnings

import pytest

import wayfare as wf
from tests.compiler.twins import leaf, twin

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs

SCALE = 2.0
LOG: list[int] = []


class Settings:
    scale = 2.0


class Plain(wf.autograd.Function):
    """A backward that sees nothing but what it is given."""

    @staticmethod
    def forward(ctx, x, power=3):
        ctx.power = power
        ctx.save_for_backward(x)
        return x**power

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return helper(g, ctx.power) * x ** (ctx.power - 1) * math.cos(0), None


def helper(g, power):
    return wf.where(g > 0, g, g) * power


def function_of(gradient, keep=None):
    """A Function that passes its input on, with this backward."""

    class Passing(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if keep is not None:
                keep(ctx, x)
            return x * 1

        backward = staticmethod(gradient)

    return Passing


def by_global(ctx, g):
    return g * SCALE


def by_class(ctx, g):
    return g * Settings.scale


def by_object(ctx, g):
    return g * ctx.settings.scale


def by_helper(ctx, g):
    return by_global(ctx, g)


def by_log(ctx, g):
    LOG.append(1)
    return g


def by_chance(ctx, g):
    return g * wf.rand(3).double()


def by_value(ctx, g):
    return g * 2 if g.sum().item() > 0 else g * 3


def by_truth(ctx, g):
    return g * 2 if (g > 0).all() else g * 3


def by_failure(ctx, g):
    raise ValueError("not today")


def change(value):
    global SCALE
    SCALE = Settings.scale = value


CHANGING = {
    "a global": (by_global, None),
    "an attribute of a class": (by_class, None),
    "an object on the context": (by_object, lambda ctx, x: setattr(ctx, "settings", Settings())),
    "a global of another function": (by_helper, None),
    "a list that it writes": (by_log, None),
    "random numbers": (by_chance, None),
    "a number": (by_value, None),
    "a truth": (by_truth, None),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_backward_that_may_see_something_else(name):
    own = function_of(*CHANGING[name])

    def scenario(way):
        wf.manual_seed(0)
        change(2.0)
        LOG.clear()
        x = leaf(3)
        y = way(x)
        change(5.0)
        told = [len(LOG), wf.rand(2)]
        (-y.sum()).backward()
        return told, len(LOG), x.grad

    twin(lambda x: own.apply(x).sin(), scenario, python=True)


def test_a_closure_that_changes():
    factor = [2.0]
    own = function_of(lambda ctx, g: g * factor[0])

    def scenario(way):
        factor[0] = 2.0
        x = leaf(3)
        y = way(x)
        factor[0] = 5.0
        y.sum().backward()
        return x.grad

    twin(lambda x: own.apply(x), scenario, python=True)


def test_a_backward_that_sees_nothing_else_is_replayed():
    def scenario(way):
        x = leaf(3)
        way(x).sum().backward()
        return x.grad

    twin(lambda x: Plain.apply(x).sin() + Plain.apply(x, 2), scenario)


def test_a_backward_that_fails_fails_when_it_is_asked():
    own = function_of(by_failure)
    compiled = wf.compile(lambda x: own.apply(x) * 2)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = compiled(leaf(3))
        with pytest.raises(ValueError, match="not today"):
            y.sum().backward()


def keeps_input(ctx, x):
    ctx.x = x


class KeepsResult(wf.autograd.Function):
    """Its result, kept where nobody looks for writes."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y


class SavesResult(wf.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class SavesForNothing(wf.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_tensors_on_the_context_that_are_written_later():
    def scenario(way, result):
        x = leaf(3)
        h = x * 1
        y = way(h)
        with wf.no_grad():
            (y if result else h).add_(1)
        y.sum().backward()
        return x.grad

    by_input = function_of(lambda ctx, g: g * ctx.x * 2, keeps_input)
    for result in (False, True):
        twin(lambda x: by_input.apply(x), lambda way, r=result: scenario(way, r))
        twin(lambda x: KeepsResult.apply(x), lambda way, r=result: scenario(way, r), python=True)
        twin(lambda x: SavesResult.apply(x), lambda way, r=result: scenario(way, r))
        twin(lambda x: SavesForNothing.apply(x), lambda way, r=result: scenario(way, r))
    # What nobody outside can see cannot be written.
    twin(lambda x: KeepsResult.apply(x) * 2, lambda way: scenario(way, True))


def test_hooks_of_modules_see_each_gradient():
    layer = wf.nn.Linear(3, 2).double()
    told = []

    def scenario(way):
        told.clear()
        x = leaf(4, 3)
        y = way(x)
        before = len(told)
        y.sum().backward()
        return before, len(told), x.grad

    twin(lambda x: layer(x), scenario)
    layer.register_full_backward_hook(lambda module, grad_in, grad_out: told.append(1))
    twin(lambda x: layer(x), scenario, python=True)


def test_second_derivatives_through_a_custom_function_are_refused():
    compiled = wf.compile(lambda x: Plain.apply(x).sin())
    for call in range(3):
        x = leaf(3)
        y = compiled(x).sum()
        if call:
            with pytest.raises(wf.errors.GraphError, match="uses the custom Function Plain"):
                wf.autograd.grad(y, x, create_graph=True)
        else:
            wf.autograd.grad(y, x, create_graph=True)

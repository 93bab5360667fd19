"""The graph outside a compiled call: passes one after the other, results of results, hooks, leaves, other threads."""

import threading
import warnings

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import numbers
from tests.compiler.twins import leaf, same, seen, twin
from wayfare.autograd import grad

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def passes(*used, retain=()):
    """A scenario: backward from these results, one after the other; what each gives, or that it is an error."""

    def scenario(way):
        x, w = leaf(3), leaf(3, seed=1)
        outs, told = way(x, w), []
        for number, i in enumerate(used):
            try:
                outs[i].sum().backward(retain_graph=number in retain)
                told.append([t.grad if t.grad is None else t.grad.clone() for t in (x, w)])
            except RuntimeError as error:
                told.append(type(error).__name__)
        return told

    return scenario


def shared(x, w):
    h = (x * w).tanh()
    return h.sin(), h.cos()


GRAPHS = {
    "apart": lambda x, w: (x.tanh(), w.sin()),
    "beside": lambda x, w: (x.tanh(), (x * w).sin()),
    "shared": shared,
    "one of the other": lambda x, w: (lambda h: (h, h.sin() * w))(x.tanh()),
    "nothing kept": lambda x, w: (x[1:].flip(0), x.sum() + w),
    "one keeps nothing": lambda x, w: (x.tanh(), w[1:]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_one_pass_after_the_other(name):
    f = GRAPHS[name]
    twin(f, passes(0, 1))
    twin(f, passes(1, 0))
    twin(f, passes(0, 0, 1))
    twin(f, passes(0, 0, 0, 1, 1, retain=(0, 1)))


def test_grad_of_one_input_after_the_other():
    def scenario(way):
        x, w = leaf(3), leaf(3, seed=1)
        y = way(x, w).sum()
        told = [grad(y, x), grad(y, w)]
        return told, grad(y, x)

    twin(lambda x, w: x.tanh() + w.sin(), scenario)
    twin(lambda x, w: (x * w).sin(), scenario)
    twin(lambda x, w: x[1:].sum() + w, scenario)


def test_create_graph():
    def scenario(way, retain):
        x, w = leaf(3), leaf(3, seed=1)
        a, b = way(x, w)
        a.sum().backward(create_graph=True, retain_graph=retain)
        first = x.grad
        x.grad = w.grad = None
        (first.square().sum() + b.sum()).backward()
        return first, x.grad, w.grad

    for f in GRAPHS.values():
        for retain in (None, True):
            twin(f, lambda way, r=retain: scenario(way, r))


def test_third_derivatives():
    def scenario(way):
        x, w = leaf(3), leaf(3, seed=1)
        g = way(x, w)[1].sum()
        found = []
        for _ in range(3):
            (g,) = grad(g, x, create_graph=True)
            found.append(g)
            g = (g * w).sum()
        return found

    twin(shared, scenario)


def test_in_another_thread():
    def scenario(way):
        x, w = leaf(3), leaf(3, seed=1)
        y = way(x, w)[0].sum()
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join()
        return x.grad, w.grad

    twin(shared, scenario)


def test_only_some_leaves():
    def scenario(way):
        x, w = leaf(3), leaf(3, seed=1)
        way(x, w)[0].sum().backward(inputs=[x])
        return x.grad, w.grad

    twin(shared, scenario)


def test_the_way_back():
    def scenario(way):
        x, w = leaf(3), leaf(3, seed=1)
        h = w * 1
        y = way(x, h)[0]
        nexts = y.grad_fn.next_functions
        assert {id(getattr(n, "variable", n)) for n, _ in nexts} == {id(x), id(h.grad_fn)}
        return y.requires_grad, y.is_leaf

    compiled = wf.compile(shared)
    compiled(leaf(3), leaf(3, seed=1) * 1)
    for _ in range(3):
        scenario(compiled)


def test_results_with_and_without_a_gradient():
    def f(x, w):
        y = x.tanh()
        return y, y.detach(), x.argmax(), y, wf.ones(2), w.detach() * 2

    def scenario(way):
        x, w = leaf(3), leaf(3, seed=1)
        outs = way(x, w)
        flags = [(t.requires_grad, t.is_leaf, t.grad_fn is None) for t in outs]
        (outs[0] * 2 + outs[3]).sum().backward()
        return flags, outs[0] is outs[3], x.grad, w.grad

    twin(f, scenario)


def test_gradients_are_added_into_what_is_there():
    def scenario(way):
        x, w = leaf(3), leaf(3, seed=1)
        buffer = numbers(3, seed=2)
        x.grad = w.grad = buffer
        way(x, w)[0].sum().backward()
        return x.grad is buffer, w.grad is buffer, buffer

    def apart(way):
        x, w = leaf(3), leaf(3, seed=1)
        seed = numbers(3, seed=5)
        way(x, w)[0].backward(seed)
        x.grad.add_(1)
        return seed, x.grad, w.grad

    for f in (shared, lambda x, w: (x + w,), lambda x, w: ((x + 0.5) * 1 + w.view(3),)):
        twin(f, scenario)
        twin(f, apart)


# -- a result that is computed from another ---------------------------------------------------------------------------


def chain(x, w):
    h = x * w
    y = h.sin()
    return y.sum(), y, h


def test_the_gradient_of_a_result_by_another():
    def scenario(way, create):
        x, w = leaf(3), leaf(3, seed=1)
        total, y, h = way(x, w)
        later = h * 2
        found = grad(total + later.sum(), (y, h, x), create_graph=create, retain_graph=True)
        return found, grad(total, (h, w)), grad(y.sum(), h, allow_unused=True, retain_graph=True)

    for create in (False, True):
        twin(chain, lambda way, c=create: scenario(way, c))


def test_hooks_and_kept_gradients_of_results():
    def scenario(way):
        x, w = leaf(3), leaf(3, seed=1)
        total, y, h = way(x, w)
        told = []
        y.retain_grad()
        handle = h.register_hook(lambda g: told.append(g.clone()))
        h.register_hook(lambda g: g * 3)
        total.backward(retain_graph=True)
        handle.remove()
        (h.sum() + y.sum()).backward()
        return told, y.grad, x.grad, w.grad, y.retains_grad

    twin(chain, scenario)


def test_results_taken_apart_after_a_pass():
    def scenario(way, retain):
        x, w = leaf(3), leaf(3, seed=1)
        total, y, h = way(x, w)
        y.sum().backward(retain_graph=retain)
        h.retain_grad()
        total.backward()
        return h.grad, x.grad, w.grad

    for retain in (False, True):
        twin(chain, lambda way, r=retain: scenario(way, r))


def test_inputs_may_be_results():
    def scenario(way):
        x, w = leaf(3), leaf(3, seed=1)
        total, _, h = way(x, w)
        total.backward(inputs=[h, w])
        return h.grad, x.grad, w.grad

    twin(chain, scenario)


def test_a_leaf_made_inside_has_a_gradient():
    def f(x):
        inner = x.detach().clone().requires_grad_()
        return (inner * 2).sum() + x.sum(), inner

    def scenario(way):
        x = leaf(3)
        total, inner = way(x)
        total.backward()
        return inner.grad, x.grad, inner.is_leaf

    twin(f, scenario, python=True)


def test_retain_grad_inside():
    def f(x):
        h = x * 2
        h.retain_grad()
        return h.sin(), h

    def scenario(way):
        x = leaf(3)
        y, h = way(x)
        before = h.grad
        y.sum().backward()
        return before, h.grad, x.grad

    twin(f, scenario, python=True)


# -- at random --------------------------------------------------------------------------------------------------------

ONE = ("tanh", "sin", "exp", "relu", "square", "neg")


def program(rng):
    """A function of three tensors that returns some of what it computes."""
    plan = [(str(rng.choice(["one", "add", "mul", "view", "detach"], p=[0.4, 0.2, 0.25, 0.1, 0.05])),
             str(rng.choice(ONE)), *rng.integers(0, 3 + i, 2)) for i in range(9)]  # fmt: skip
    results = rng.choice(9, 4, replace=False) + 3

    def f(a, b, c):
        values = [a, b, c]
        for kind, name, i, j in plan:
            x, y = values[i], values[j]
            made = {
                "one": lambda x, y, n: getattr(x, n)(), "add": lambda x, y, n: x + y, "mul": lambda x, y, n: x * y,
                "view": lambda x, y, n: x.view(3, 1).view(3), "detach": lambda x, y, n: x.detach(),
            }[kind](x, y, name)  # fmt: skip
            values.append(made)
        return [values[i] for i in results]

    return f


def deed(rng):
    """What somebody does with the results of such a function."""
    kinds = ["backward", "backward", "backward", "grad", "write", "retain"]
    steps = [(str(rng.choice(kinds)), *rng.integers(0, 4, 2), bool(rng.integers(2)), rng.integers(0, 3))
             for _ in range(4)]  # fmt: skip

    def scenario(way):
        leaves = [leaf(3, seed=i) for i in range(3)]
        outs, told = way(*leaves), []
        for kind, i, j, flag, k in steps:
            try:
                if kind == "write":
                    with wf.no_grad():
                        outs[i].mul_(2)
                elif kind == "retain":
                    outs[i].retain_grad()
                elif kind == "backward":
                    (outs[i].sum() + outs[j].square().sum()).backward(retain_graph=flag)
                else:
                    wanted = leaves[k] if flag else outs[k]
                    told.append(grad(outs[i].sum(), wanted, allow_unused=True, create_graph=flag, retain_graph=True))
                    if told[-1][0] is None:  # a pass for nothing, of which a node of many steps is told all the same
                        return told
            except RuntimeError as error:  # what it had done before is of no account
                return [*told, type(error).__name__]
            told.append([t.grad if t.grad is None else t.grad.clone() for t in (*leaves, *outs) if t.requires_grad])
        return told, outs

    return scenario


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    f = program(rng)
    compiled = wf.compile(f)
    for _ in range(8):
        scenario = deed(rng)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="compile: .* runs as plain Python")
            same(seen(scenario, compiled), seen(scenario, f))
    assert all("it returns a view" in reason or "twice" in reason for reason in compiled._plain())

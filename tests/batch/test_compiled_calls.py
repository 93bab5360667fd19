"""Compiled functions inside a map are called as the plain functions they are made of: by the same fast paths, with the
same guards, and one call only where nothing but computing is done."""

import dataclasses

import pytest

import wayfare as wf
from tests.batch.checks import equal, vectors, weight
from wayfare import nn
from wayfare.batch import session as sessions
from wayfare.compiler.captures.guards import Guards
from wayfare.compiler.function import Compiled
from wayfare.core.native import NATIVE

WEIGHT, SCALE = weight(3, 3), 2.0


def counts():
    """Name → number of recorded calls of the last map."""
    found = {}
    for kind in wf.batching.last().kinds:
        found[kind.name] = found.get(kind.name, 0) + kind.nodes
    return found


def same(function, *columns):
    """Map and loop: results and gradients; returns the calls of the map."""
    results = []
    for batch in (True, False):
        WEIGHT.grad = None
        made = wf.map(function, *columns, batch=batch)
        if batch:
            found = counts()
        losses = [t.sum() for t in made if t.requires_grad]
        if losses:
            wf.stack(losses).sum().backward()
        results.append(([t.detach() for t in made], None if WEIGHT.grad is None else WEIGHT.grad.clone()))
    equal(results[0], results[1])
    return found


# -- how they are called ------------------------------------------------------------------------------------------


def mix(a, b):
    return ((a + b) @ WEIGHT).tanh() * SCALE


def difference(a, b):
    return (a - b).sin().cos()


compiled_mix = wf.compile(mix)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3).double()
        self.gain = 1.0

    def leaf(self, x):
        return self.layer(x).tanh().sin() * self.gain

    def forward(self, a, b):
        return (a.sigmoid() * b).cos() + self.layer(a) * self.gain


class CompiledCell(Cell):
    leaf = wf.compile(Cell.leaf)
    forward = wf.compile(Cell.forward)


class Holder:
    """No module, with a compiled method."""

    def __init__(self):
        self.gain = 2.0

    @wf.compile
    def join(self, a, b):
        return (a * self.gain + b).tanh().sin()


def over(tree, leaf, join):
    if isinstance(tree, int):
        return leaf(wf.full((3,), float(tree), dtype=wf.float64))
    return join(over(tree[0], leaf, join), over(tree[1], leaf, join))


TREES = [((1, 2), (3, 4)), (1, (2, (3, 4))), ((1, 2), 3), (4, 1)] * 3


def itself(x):
    return x


def joined(join):
    return lambda tree: over(tree, itself, join)


@pytest.fixture
def python_calls(monkeypatch):
    """How often a call was not taken by a fast path, and how often Python ran a compiled function's `__call__`."""
    found = {"long": 0, "python": 0}
    long, python = sessions.Session._opaque_call, Compiled.__call__

    def counting(name, function):
        def call(*given, **options):
            found[name] += 1
            return function(*given, **options)

        return call

    monkeypatch.setattr(sessions.Session, "_opaque_call", counting("long", long))
    monkeypatch.setattr(Compiled, "__call__", counting("python", python))
    return found


@pytest.mark.parametrize("form", ["function", "method", "module", "compiled module"])
def test_a_compiled_cell_is_recorded_as_the_plain_one(form, python_calls):
    plain, made = Cell(), CompiledCell()
    made.load_state_dict(plain.state_dict())
    pair = {
        "function": (joined(mix), joined(compiled_mix)),
        "method": (lambda tree: over(tree, plain.leaf, plain), lambda tree: over(tree, made.leaf, made)),
        "module": (joined(plain), joined(made)),
        "compiled module": (joined(plain), joined(wf.compile(plain))),
    }[form]
    found = []
    for function in pair:
        wf.map(function, TREES, batch=True)  # traces
        wf.stack(wf.map(function, TREES, batch=True)).sum().backward()
        python_calls.update(long=0, python=0)
        results = wf.map(function, TREES, batch=True)
        found.append((results, sorted(counts().values()), wf.batching.last().groups, dict(python_calls)))
    equal(found[1], found[0])
    assert found[0][3]["python"] == 0
    same(pair[1], TREES)


def test_a_compiled_function_in_a_block_is_one_call():
    xs = vectors(5, grad=False)
    with wf.batching() as block:
        made = [compiled_mix(x, x * 2) for x in xs]
    equal(made, [mix(x, x * 2) for x in xs])
    assert {kind.name: kind.nodes for kind in block.stats.kinds}["mix"] == 5 and block.stats.groups == 2


def test_a_compiled_method_of_an_object_that_is_no_module_is_one_call():
    holder = Holder()
    for gain in (2.0, 3.0):
        holder.gain = gain
        assert same(lambda x: holder.join(x * 2, x), vectors(5))["join"] == 5


def test_compiled_callables_and_bound_methods():
    class Doubling:
        def __call__(self, x):
            return x.sin() * 2

        def half(self, x):
            return x.sin().cos() / 2

    for compiled in (wf.compile(Doubling()), wf.compile(Doubling().half), wf.compile(wf.compile(Doubling()))):
        same(lambda x, compiled=compiled: compiled(x * 1) + 1, vectors(4))


# -- they only compute, or run as Python ------------------------------------------------------------------------------

SEEN, COUNT = [], 0


@wf.compile
def appends(x):
    SEEN.append(1)
    return x.sin() * 2 + 1


@wf.compile
def counts_calls(x):
    global COUNT
    COUNT += 1
    return x.sin() * 2 + 1


@wf.compile
def prints(x):
    print("*", end="")
    return x.sin() * 2 + 1


def calls_one_that_counts(x):
    return counts_calls(x).cos().exp()


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = []

    @wf.compile
    def forward(self, x):
        self.calls.append(1)
        return x.sin() * 2 + 1


class Keeping:
    def __init__(self):
        self.count = 0

    @wf.compile
    def call(self, x):
        self.count += 1
        return x.sin() * 2 + 1


def test_effects_of_compiled_functions_happen_once_for_each_example(capsys):
    counting, keeping = Counting(), Keeping()
    SEEN.clear()
    before = COUNT
    for maps in (1, 2):
        for function in (appends, counts_calls, calls_one_that_counts, prints, counting, keeping.call):
            xs = vectors(5)
            want = [x.sin() * 2 + 1 for x in xs]
            want = [x.cos().exp() for x in want] if function is calls_one_that_counts else want
            equal(wf.map(lambda x, f=function: f(x * 1), xs, batch=True), want)
        assert len(SEEN) == 5 * maps and len(counting.calls) == 5 * maps and keeping.count == 5 * maps
        assert COUNT - before == 10 * maps
        assert capsys.readouterr().out == "*" * 5


@wf.compile
def two_results(x, y):
    return x.sin().cos().tanh(), (x * y).sin().cos()


@wf.compile
def one_of_each(x, y):
    return x.sin().cos().tanh(), y.sin().cos().exp()


@pytest.mark.parametrize("function", [two_results, one_of_each])
@pytest.mark.parametrize("grads", [(True, False), (False, True), (True, True), (False, False)])
def test_each_result_of_a_compiled_function_requires_a_gradient_as_in_the_loop(function, grads):
    columns = vectors(4, grad=grads[0]), vectors(4, grad=grads[1])

    def program(x, y):
        return function(x * 2, y * 2)

    equal(wf.map(program, *columns, batch=True), [program(*pair) for pair in zip(*columns, strict=True)])


class View(nn.Module):
    def forward(self, x):
        return x.view(3, 1)


VIEWS = [wf.compile(lambda x: x.view(3, 1)), View(), nn.Sequential(nn.Flatten(0)), wf.compile(View())]


@pytest.mark.parametrize("view", VIEWS, ids=["function", "module", "sequential", "compiled module"])
def test_a_write_to_a_view_that_was_returned_reaches_its_base(view):
    def program(x):
        base = x * 2
        view(base).mul_(3)
        return base.sum()

    xs = vectors(4, grad=False)
    equal(wf.map(program, xs, batch=True), [x.sum() * 6 for x in xs])


# -- owners that cannot hold what is known of them ---------------------------------------------------------------------


class Slotted:
    __slots__ = ("gain",)

    def __init__(self):
        self.gain = 2.0

    @wf.compile
    def join(self, x):
        return (x * self.gain).sin() + 1


@dataclasses.dataclass
class Equal:
    gain: float = 2.0

    @wf.compile
    def join(self, x):
        return (x * self.gain).sin() + 1


@wf.compile
def in_a_class_too(x):
    return (x * 2.0).sin() + 1


class HasIt:
    join = in_a_class_too


@pytest.mark.parametrize("join", [Slotted().join, Equal().join, in_a_class_too], ids=["slots", "equality", "plain"])
def test_owners_of_every_kind(join):
    xs = vectors(4)
    equal(wf.map(lambda x: join(x * 1), xs, batch=True), [(x * 2.0).sin() + 1 for x in xs])
    with wf.batching():
        made = [join(x * 1) for x in xs]
    equal(made, [(x * 2.0).sin() + 1 for x in xs])


def test_guards_of_equal_calls_are_asked_natively(monkeypatch):
    asked = []
    ask = Guards.__call__
    monkeypatch.setattr(Guards, "__call__", lambda self: asked.append(1) or ask(self))
    found = {}
    for count in (5, 50):
        xs = vectors(count, grad=False)
        wf.map(lambda x: mix(x * 2, x), xs, batch=True)
        asked.clear()
        wf.map(lambda x: mix(x * 2, x), xs, batch=True)
        found[count] = len(asked)
    assert counts()["mix"] == 50
    assert found[50] - found[5] == (45 if NATIVE is None else 0)


# -- guards, errors and gradients --------------------------------------------------------------------------------------


def test_what_a_compiled_function_reads_is_seen_when_it_changes(monkeypatch):
    program = joined(compiled_mix)
    for change in (lambda: monkeypatch.setitem(globals(), "SCALE", 3.0),
                   lambda: monkeypatch.setitem(globals(), "WEIGHT", weight(3, 3, seed=7)),
                   lambda: WEIGHT.data.mul_(2),
                   lambda: monkeypatch.setattr(mix, "__code__", difference.__code__)):  # fmt: skip
        same(program, TREES)
        change()
        same(program, TREES)


def test_what_a_compiled_module_reads_is_seen_when_it_changes(monkeypatch):
    cell = CompiledCell()

    def program(tree):
        return over(tree, cell.leaf, cell)

    for change in (lambda: setattr(cell, "gain", 0.5), lambda: setattr(cell, "layer", nn.Linear(3, 3).double()),
                   lambda: monkeypatch.setattr(CompiledCell, "leaf", lambda self, x: x.sin().cos().tanh()),
                   lambda: monkeypatch.setattr(CompiledCell, "forward", wf.compile(lambda _, a, b: (a * b).sin())),
                   lambda: setattr(cell, "forward", wf.compile(difference))):  # fmt: skip
        same(program, TREES)
        change()
        same(program, TREES)


def test_a_closure_that_changes_on_the_way():
    gain = 1.0

    @wf.compile
    def work(x):
        return (x * gain).sin().cos().tanh()

    def program(x):
        nonlocal gain
        gain = 1.0
        first = work(x)
        gain = 2.0
        return first + work(x)

    same(program, vectors(4))


def test_an_error_in_a_compiled_function_names_its_example():
    def program(n):
        return compiled_mix(wf.ones(n, dtype=wf.float64), wf.ones(n, dtype=wf.float64))

    with pytest.raises(wf.errors.ShapeError, match="in example 2 of"):
        wf.map(program, [3, 3, 2, 3], batch=True)


def test_gradients_of_gradients_and_hooks_through_a_compiled_function():
    found = []
    for batch in (True, False):
        xs, heard = vectors(4), []
        middle = []

        def program(x, middle=middle):
            middle.append(compiled_mix(x, x * 2))
            return compiled_mix(middle[-1], x).sum()

        total = wf.stack(wf.map(program, xs, batch=batch)).sum()
        middle[0].register_hook(heard.append)
        first = wf.autograd.grad(total, xs, create_graph=True)
        second = wf.autograd.grad(sum((g * g).sum() for g in first), xs)
        found.append((list(second), [g.detach() for g in heard]))
    equal(found[0], found[1])

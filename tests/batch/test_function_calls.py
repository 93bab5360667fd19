"""Plain functions, closures and methods inside a map: those that only compute are one call each; all do as in the loop.

Functions that hold an `assert` have other code under pytest than their source says, so none does that is to be copied.
"""

import linecache
import traceback

import pytest

import wayfare as wf
from tests.batch.checks import equal, vectors, weight
from wayfare import nn
from wayfare.batch.record import function_call, function_copy
from wayfare.batch.record.memory import HOST, HostMemory

WEIGHT, SCALE = weight(3, 3), 2.0
TREES = [((1, 2), (3, 4)), (1, (2, (3, 4))), ((1, 2), 3), 4] * 2


def mix(a, b):
    return ((a + b) @ WEIGHT).tanh() * SCALE


def leaf(number):
    return wf.full((3,), float(number), dtype=wf.float64)


def encode(tree):
    if isinstance(tree, int):
        return leaf(tree)
    return mix(*map(encode, tree))


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3).double()
        self.gain = 1.0

    def leaf(self, x):
        return self.layer(x).tanh().sin() * self.gain

    def __private(self, a, b):
        return (a.sigmoid() * b).cos() + self.layer(a)

    def forward(self, tree):
        if isinstance(tree, int):
            return self.leaf(leaf(tree))
        left, right = tree
        return self.__private(self.forward(left), b=self.forward(right))


class Child(Cell):
    def leaf(self, x):
        return super().leaf(x) + 1


def counts():
    """Name → number of recorded calls of the last map."""
    found = {}
    for kind in wf.batching.last().kinds:
        found[kind.name] = found.get(kind.name, 0) + kind.nodes
    return found


def same(function, examples=TREES, **options):
    """Map and loop: results and gradients; returns the calls of the map."""
    results = []
    for batch in (True, False):
        WEIGHT.grad = None
        made = wf.map(function, examples, batch=batch, **options)
        if batch:
            found = counts()
        losses = [t.sum() for t in made if t.requires_grad]
        if losses:
            wf.stack(losses).sum().backward()
        results.append(([t.detach() for t in made], None if WEIGHT.grad is None else WEIGHT.grad.clone()))
    equal(results[0], results[1])
    return found


def inner_nodes(tree):
    return 0 if isinstance(tree, int) else 1 + sum(map(inner_nodes, tree))


def test_a_function_that_only_computes_is_one_call():
    found = same(encode)
    assert found["mix"] == sum(map(inner_nodes, TREES))
    assert not {"add", "matmul", "tanh", "mul"} & set(found)


def test_methods_of_modules_are_calls_also_private_ones_and_those_of_a_base_class():
    for cell in (Cell(), Child()):
        found = same(lambda tree, cell=cell: cell.forward(tree))
        assert found["__private"] == sum(map(inner_nodes, TREES)) and found["leaf"] > 0
        assert not {"tanh", "sin", "mul", "sigmoid"} & set(found)


def test_closures_and_functions_defined_inside():
    w = weight(3, 3, seed=3)

    def join(a, b):
        return (a @ w + b).tanh().sin()

    def reduce(tree):
        def walk(node, depth=0, *, more=1):
            if isinstance(node, int):
                return leaf(node) + depth
            parts = [walk(child, depth + more) for child in node]
            return join(parts[0], b=parts[1])

        return walk(tree)

    assert same(reduce)["join"] == sum(map(inner_nodes, TREES))


def test_one_call_for_each_step_of_a_sentence():
    wx, wh = weight(3, 3, seed=1), weight(3, 3, seed=2)

    def step(x, h, c):
        gate = (x @ wx + h @ wh).sigmoid()
        c = gate * c + (1 - gate) * x.tanh()
        return gate * c.tanh(), c

    def read(sentence):
        h = c = wf.zeros(3, dtype=wf.float64)
        for x in sentence:
            h, c = step(x, h, c)
        return h

    sentences = [vectors(n, grad=False, start=10 * n) for n in (2, 5, 3, 1)]
    wf.map(read, sentences, batch=True)
    assert counts() == {"step": 11} and wf.batching.last().groups == 5
    equal(wf.map(read, sentences, batch=True), [read(s) for s in sentences])


def test_what_a_function_reads_is_seen_when_it_changes(monkeypatch):
    for change in (lambda: monkeypatch.setitem(globals(), "SCALE", 3.0),
                   lambda: monkeypatch.setitem(globals(), "WEIGHT", weight(3, 3, seed=7)),
                   lambda: monkeypatch.setitem(globals(), "mix", lambda a, b: (a * b).sin().cos().tanh()),
                   lambda: monkeypatch.setattr(mix, "__code__", (lambda a, b: (a - b).sin().cos()).__code__),
                   lambda: monkeypatch.setitem(globals(), "leaf", lambda n: WEIGHT.detach()[0] * n)):  # fmt: skip
        same(encode)
        change()
        same(encode)


def test_what_a_method_reads_is_seen_when_it_changes():
    cell = Cell()
    for change in (lambda: setattr(cell, "gain", 0.5), lambda: setattr(cell, "layer", nn.Linear(3, 3).double()),
                   lambda: setattr(cell, "leaf", lambda x: x.sin().cos().tanh()),
                   lambda: cell.layer.weight.data.mul_(2)):  # fmt: skip
        same(cell)
        change()
        same(cell)


def test_what_changes_on_the_way():
    gain = 1.0

    def work(x):
        return (x * gain).sin().cos().tanh()

    def program(x):
        nonlocal gain
        gain = 1.0
        first = work(x)
        gain = 2.0
        second = work(x)
        return first + second

    same(program, vectors(4))


def test_functions_are_left_as_they_are():
    before = mix.__code__, encode.__code__, dict(globals())
    same(encode)
    assert (mix.__code__, encode.__code__, dict(globals())) == before


seen = []


def writes(x):
    seen.append(1)
    return x.sin().cos().tanh()


def reads(x):
    return x.sin().cos().tanh() if x.sum() > 0 else x.cos().sin().exp()


def draws(x):
    return (x + wf.rand(3, dtype=wf.float64)).sin().cos().tanh()


def gives_back(x):
    x.sin().cos().tanh()
    return x


def view(x):
    x.sin().cos().tanh()
    return x[:2]


def view_of_new(x):
    return x.sin().cos().tanh()[:2]


def raises(x):
    try:
        return (x @ wf.ones(4, dtype=wf.float64)).sin().cos()
    except RuntimeError:
        return x.sin().cos().tanh()


def gradient_off(x):
    with wf.no_grad():
        return x.sin().cos().tanh()


def makes(x):
    yield from (x.sin(), x.cos().tanh())


def as_text(x):
    return x.sin().cos() if str(x.sum() > 0) == "tensor(True)" else x.exp().tanh().sin()


def numbers_too(x):
    return x.sin().cos().tanh(), 1


@pytest.mark.parametrize("function, opaque", [
    (writes, False), (reads, False), (draws, False), (gives_back, False), (view, False), (view_of_new, True),
    (raises, False), (gradient_off, False), (makes, False), (numbers_too, False), (as_text, False),
])  # fmt: skip
def test_functions_that_do_more_run_as_python(function, opaque):
    def program(x):
        made = function(x * 2)
        made = next(made) if function is makes else made[0] if function is numbers_too else made
        made = made.clone() if function is gives_back else made
        made += 1
        return made.sum()

    seen.clear()
    wf.manual_seed(0)
    got = wf.map(program, vectors(5), batch=True)
    found, wrote = counts(), len(seen)
    wf.manual_seed(0)
    equal(got, wf.map(program, vectors(5), batch=False))
    assert (function.__name__ in found) == opaque and wrote in (0, 5)


def test_a_write_to_a_view_that_a_function_returned_reaches_its_base():
    def program(x):
        base = x.detach() * 2
        view(base).add_(1)
        return base

    same(program, vectors(4))


def deep(x):
    return shallow(x.sin()) + 1


def shallow(x):
    return x.cos().tanh() @ wf.ones(4, dtype=wf.float64)


def test_an_error_shows_the_users_lines_and_its_example():
    def program(x):
        return deep(x)

    with pytest.raises(wf.errors.ShapeError, match="in example 0 of wf.map") as caught:
        wf.map(program, vectors(3), batch=True)
    frames = [f for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == __file__]
    assert [f.name for f in frames][-4:-1] == ["program", "deep", "shallow"]  # the last one is shown again
    assert [f.line for f in frames][-3:-1] == ["return shallow(x.sin()) + 1",
                                             "return x.cos().tanh() @ wf.ones(4, dtype=wf.float64)"]  # fmt: skip


TABLE = weight(5, 3)


def look_up(index):
    return nn.functional.embedding(index, TABLE).sin().cos().tanh()


def test_an_error_that_is_found_later_names_the_example_and_the_line():
    def program(index):
        return look_up(index + 0).sum()

    with pytest.raises(IndexError, match=r"example 1 of wf.map") as caught:
        wf.map(program, [wf.tensor(i) for i in (1, 7, 2)], batch=True)
    assert "test_function_calls.py" in str(caught.value)


def test_functions_made_anew_for_each_example_are_not_traced_each_time(monkeypatch):
    traced = []
    monkeypatch.setattr(function_call.FunctionInfo, "only_computes",
                        lambda self, owner, before=function_call.FunctionInfo.only_computes:
                        traced.append(1) or before(self, owner))  # fmt: skip

    def program(x):
        def work(y):
            return (y * k).sin().cos().tanh()

        k = 2.0
        return work(x) + work(x + 1)

    for _ in range(40):
        same(program, vectors(6))
    assert 0 < len(traced) <= function_call._MOST_OWNERS


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3, dtype=wf.float64)

    def leaf(self, x):
        return self.linear(x).sin().tanh()


def test_functions_and_methods_stay_one_call_however_often_they_are_mapped():
    model = Leaf()

    def work(y):
        return y.sin().cos().tanh()

    programs = {"leaf": lambda x: model.leaf(x) + model.leaf(x + 1), "work": lambda x: work(x) + work(x + 1)}
    for name, program in programs.items():
        for _ in range(function_call._MOST_OWNERS + 10):
            same(program, vectors(3))
        assert {kind.name: kind.nodes for kind in wf.batching.last().kinds}[name] == 6


def test_a_source_that_is_not_the_code_is_not_used():
    text = "def work(x):\n    return other(x)\n"
    names = {"other": lambda x: x.sin().cos().tanh()}
    exec(compile(text, "<a file that changed>", "exec"), names)
    code = function_copy.copied_code
    assert code(names["work"], function_call.chosen) is None  # no source
    for changed, used in ((text.replace("other(x)", "other(x) + 1"), False), ("def work(x:\n", False), (text, True)):
        linecache.cache["<a file that changed>"] = (len(changed), None, changed.splitlines(True), "")
        assert (code(names["work"], function_call.chosen) is not None) == used
        equal(wf.map(names["work"], vectors(3), batch=True), [names["work"](x) for x in vectors(3)])


def test_copies_keep_defaults_cells_names_and_lines():
    free = 3

    def function(a, b=2, *rest, c, d=4, **more):
        """Its docstring."""
        return [chosen_later(a, b, rest, c, d, more, free) for _ in range(1)]

    chosen_later = lambda *values: values
    copy = function_copy.copy_of(function, function_copy.copied_code(function, lambda called: called))
    assert copy.__code__ != function.__code__ and copy.__closure__ == function.__closure__
    assert copy(1, c=5) == function(1, c=5)
    assert copy.__doc__ == "Its docstring." and copy.__qualname__ == function.__qualname__
    assert {*copy.__code__.co_lines()} and copy.__code__.co_firstlineno == function.__code__.co_firstlineno


def test_modules_that_cannot_be_one_call_have_calls_inside():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Cell()

        def forward(self, numbers):
            h = leaf(0)
            for n in numbers:
                h = self.step(leaf(n), h)
            return h

        def step(self, x, h):
            return self.cell.layer(x + h).tanh().sin()

    reader = Reader()
    found = same(lambda numbers: reader(numbers), [[1, 2], [3], [4, 5, 6]])
    assert found["step"] == 6


def test_a_map_inside_and_threads_of_names():
    def inner(x):
        return mix(x, x * 2)

    def outer(x):
        return wf.stack(wf.map(inner, [x, x + 1])).sum(0)

    assert same(outer, vectors(3))["mix"] == 6


def test_very_deep_recursion():
    def chain(n):
        return mix(chain(n - 1), leaf(n)) if n else leaf(0)

    assert same(chain, [3000, 2500, 1])["mix"] == 5501


def test_numbers_among_the_arguments():
    def scaled(x, by, twice=False):
        return (x.sin() * by).cos().tanh() * (2 if twice else 1)

    def program(x):
        return scaled(x, 2) + scaled(x, 2.0) + scaled(x, 3, twice=True)

    same(program, vectors(4))


def two_results(x, y):
    return x.sin().cos().tanh(), (x * y).sin().cos()


def weighed(x, y):
    return x.sin().cos().tanh(), (x @ WEIGHT) * y


class Weighed(nn.Module):
    def forward(self, x, y):
        return weighed(x, y)


@pytest.mark.parametrize("function", [two_results, weighed, Weighed()])
@pytest.mark.parametrize("grads", [(True, False), (False, True), (True, True), (False, False)])
def test_each_result_requires_a_gradient_as_in_the_loop(function, grads):
    def program(x, y):
        return function(x * 2, y * 2)

    columns = vectors(4, grad=grads[0]), vectors(4, grad=grads[1])
    for _ in range(2):
        equal(wf.map(program, *columns, batch=True), [program(*pair) for pair in zip(*columns, strict=True)])


def test_weights_that_are_frozen_between_maps():
    w = weight(3, 3, seed=5)

    def work(x):
        return (x @ w).sin().cos()

    def program(x):
        return work(x * 2)

    for frozen in (False, True, False):
        w.requires_grad_(not frozen)
        equal(wf.map(program, vectors(4, grad=False), batch=True), [program(x) for x in vectors(4, grad=False)])


def test_a_result_of_a_call_that_nobody_uses_spoils_no_gradient():
    w = wf.ones(3, requires_grad=True)

    def helper(x):
        y = x * w
        return (y.tanh() + y.sin()).sum(), (y - y).sqrt()

    def one(given):
        first, _ = helper(wf.ones(3) * given["v"])
        return first

    examples = [{"v": float(k)} for k in range(1, 9)]
    sum(map(one, examples)).backward()
    wanted, w.grad = w.grad, None
    for _ in range(3):
        w.grad = None
        sum(wf.map(one, examples, batch=True)).backward()
        wf.testing.assert_close(w.grad, wanted)


class Affine(nn.Module):
    """Two products of a function: `x @ w.T + b` as a layer, and `x @ w` with a bias that is added."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3).double()
        self.plain, self.bias = nn.Parameter(weight(3, 3, seed=1)), nn.Parameter(weight(1, 3, seed=2)[0].detach())

    def join(self, a, b):
        return (self.layer(wf.cat([a, b])).tanh() @ self.plain + self.bias).sigmoid()


def test_the_weight_gradients_of_all_groups_are_one_product(monkeypatch):
    model = Affine()

    def state(tree):
        if isinstance(tree, int):
            return leaf(tree)
        return model.join(state(tree[0]), state(tree[1]))

    sum([state(tree).sum() for tree in TREES]).backward()
    wanted = [p.grad for p in model.parameters()]
    products = []

    def counted(a, b):
        products.append(b.shape)
        return matmul(a, b)

    matmul = HOST.matmul
    monkeypatch.setattr(HostMemory, "matmul", staticmethod(counted))
    for _ in range(4):
        model.zero_grad()
        products.clear()
        sum([y.sum() for y in wf.map(state, TREES, batch=True)]).backward()
        for p, grad in zip(model.parameters(), wanted, strict=True):
            wf.testing.assert_close(p.grad, grad)
    inner = 2 * 8  # inner nodes of all trees, in several groups
    assert counts()["join"] == inner and wf.batching.last().groups > 2
    assert sorted(products) == [(inner, 3), (inner, 6)]


def test_a_weight_whose_gradient_is_no_product_of_rows():
    w = weight(3, 3, seed=3)

    def twice(x):
        return ((x @ w).tanh() @ w.t()).sin() * (w * w).sum()

    def program(x):
        return twice(twice(x) + 1)

    def gradient(values):
        return wf.autograd.grad(sum([y.sum() for y in values]), [w])[0]

    for _ in range(2):
        xs = vectors(6)
        wf.testing.assert_close(gradient(wf.map(program, xs, batch=True)), gradient([program(x) for x in xs]))


def test_infinite_rows_of_other_groups_stay_apart():
    layer = nn.Linear(3, 3).double()

    def step(x):
        return (layer(x).tanh() * x).exp()

    def program(x):
        y = step(step(x))
        return y[0]

    xs = [x.detach() * (1e3 if i == 2 else 1) for i, x in enumerate(vectors(5))]
    for chosen in ([0, 1], [3, 4], [0, 2]):
        found = []
        for run in (lambda: [program(x) for x in xs], lambda: wf.map(program, xs, batch=True)):
            layer.zero_grad()
            values = run()
            sum([values[i] for i in chosen]).backward()
            found.append(layer.weight.grad)
        wf.testing.assert_close(found[1], found[0], equal_nan=True)

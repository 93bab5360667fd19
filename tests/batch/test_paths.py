"""`wf.map` along recorded paths: examples whose path is known run batched, without Python, as the loop would."""

import numpy as np
import pytest

import wayfare as wf
from tests.batch.path_helpers import Halting, close, halting_examples, mapped, paths, vectors
from wayfare.batch.paths import choose


@pytest.fixture(autouse=True)
def from_the_second_map_on(always_batched, monkeypatch):
    """As for users."""
    monkeypatch.setattr(choose, "FIRST_MAPS", 1)


@pytest.fixture
def model():
    wf.manual_seed(0)
    return Halting().double()


# -- values and gradients -------------------------------------------------------------------------------------------


def test_a_while_loop_on_values_gives_what_the_loop_gives(model):
    xs, labels = halting_examples()
    losses = mapped(model, xs, labels, times=8)
    wf.stack(losses).sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    want = [model(x, label) for x, label in zip(xs, labels, strict=True)]
    wf.stack(want).sum().backward()
    for one, other in zip(losses, want, strict=True):
        close(one, other)
    for mine, p in zip(got, model.parameters(), strict=True):
        close(mine, p.grad)


def test_python_runs_for_no_example_and_a_group_for_each_block(model):
    xs, labels = halting_examples(32)
    mapped(model, xs, labels, times=24)
    stats = paths()
    assert stats.recorded == stats.unseen == 0
    depths = {visit.depth for visit in stats.visits if visit.outcomes}
    # One group for each turn of the loop, and one for all ends: the blocks after the loop are equal.
    assert stats.groups == len(depths) + 1
    assert sum(visit.examples for visit in stats.visits if not visit.outcomes) == 32


def test_new_weights_are_seen_without_a_new_recording(model):
    xs, labels = halting_examples()
    mapped(model, xs, labels, times=8)
    optimiser = wf.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimiser.zero_grad()
        losses = wf.map(model, xs, labels)
        wf.stack(losses).mean().backward()
        with wf.no_grad():
            want = [model(x, label) for x, label in zip(xs, labels, strict=True)]
        for one, other in zip(losses, want, strict=True):
            close(one, other)
        optimiser.step()


def test_an_outcome_that_was_never_seen_goes_to_python_and_grows_the_tree():
    def function(x):
        if x.sum() > 100:
            return x * 3
        return x * 2

    small = vectors(8)
    mapped(function, small)
    odd = [*small[:6], wf.full((4,), 100.0).double(), wf.full((4,), 200.0).double()]
    got = wf.map(function, odd)
    assert paths().unseen == 2 and paths().recorded == 2 and paths().examples == 6
    for one, x in zip(got, odd, strict=True):
        close(one, function(x))
    got = wf.map(function, odd)
    assert paths().unseen == 0 and paths().examples == 8


def test_gradients_of_arguments_reach_each_example():
    def function(x, w):
        return (x * w).sum() if x[0] > 0 else (x + w).prod()

    w = wf.tensor([1.0, 2.0, 3.0, 4.0]).double().requires_grad_()
    xs = vectors(10, requires_grad=True)
    results = mapped(function, xs, [w] * 10)
    wf.stack(results).sum().backward()
    got = [w.grad.clone(), *[x.grad.clone() for x in xs]]
    w.grad = None
    for x in xs:
        x.grad = None
    wf.stack([function(x, w) for x in xs]).sum().backward()
    for mine, theirs in zip(got, [w.grad, *[x.grad for x in xs]], strict=True):
        close(mine, theirs)


def test_gradients_flow_on_into_what_made_the_arguments():
    weight = wf.tensor([[1.0, 0.5], [0.25, 2.0]]).double().requires_grad_()

    def function(h):
        while h.norm() < 5:
            h = h * 1.5 + 1
        return h.sum()

    def total(way):
        weight.grad = None
        hidden = [x @ weight for x in vectors(6, 2)]
        found = way(function, hidden)
        wf.stack(list(found)).sum().backward()
        return weight.grad.clone()

    for _ in range(4):
        got = total(wf.map)
    assert paths().examples == 6
    close(got, total(lambda f, hs: [f(h) for h in hs]))


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("chosen", [slice(None), slice(0, 1)], ids=["all", "one"])
def test_a_tensor_that_is_two_examples(chosen, create_graph):
    def function(x):
        return (x * x).sum() if x[0] > 0 else x.prod()

    twice, *others = vectors(6, requires_grad=True)
    xs = [twice, *others, twice]
    got = wf.autograd.grad(sum(mapped(function, xs)[chosen]), twice, create_graph=create_graph)
    want = wf.autograd.grad(sum([function(x) for x in xs][chosen]), twice, create_graph=create_graph)
    close(got[0], want[0])


def test_what_a_result_does_not_depend_on_has_no_gradient():
    w, v = (wf.tensor([0.5, 1.5]).double().requires_grad_() for _ in range(2))

    def function(x, y):
        return ((x * w).sum(), (y * v).sum()) if x.sum() > 0 else ((x * w).prod(), y.max())

    columns = vectors(8, 2, requires_grad=True), vectors(8, 2, seed=5, requires_grad=True)
    for _ in range(3):
        for t in (w, v, *columns[0], *columns[1]):
            t.grad = None
        results = mapped(function, *columns)
        sum(first for first, _ in results[:6]).backward()
        assert w.grad is not None and v.grad is None
        assert [x.grad is None for x in columns[0]] == [False] * 6 + [True] * 2
        assert all(y.grad is None for y in columns[1])


def test_an_argument_that_only_others_of_its_group_use_has_no_gradient():
    w = wf.tensor([0.5, 1.5]).double().requires_grad_()

    def function(x, y):
        h = x * 2  # computed for all before the decision
        return (h * w).sum() if h.sum() > 0 else (y * w).sum()

    xs, ys = vectors(8, 2, requires_grad=True), vectors(8, 2, seed=5)
    wf.stack(mapped(function, xs, ys)).sum().backward()
    assert [x.grad is None for x in xs] == [bool(x.sum() <= 0) for x in xs]


def test_each_result_can_be_differentiated_by_itself_and_once(model):
    xs, labels = halting_examples(8)
    results = mapped(model, xs, labels, times=8)
    for chosen in (3, 5):
        model.zero_grad()
        results[chosen].backward()
        got = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(xs[chosen], labels[chosen]).backward()
        for mine, p in zip(got, model.parameters(), strict=True):
            close(mine, p.grad)
    with pytest.raises(wf.errors.GraphError, match="already used"):
        results[3].backward()


def test_an_example_without_a_gradient_does_not_spoil_the_others():
    w = wf.tensor(2.0).double().requires_grad_()

    def function(x):
        return (w * x).log() if x > 0 else w / x

    xs = [wf.tensor(v).double() for v in (1.0, 2.0, 0.0, -0.0, 3.0)]
    results = mapped(function, xs)
    assert not np.isfinite(results[2].item())
    (results[0] + results[4]).backward()
    assert w.grad.item() == pytest.approx(1.0)


def test_second_derivatives_and_intermediate_gradients():
    w = wf.tensor([0.5, 1.5]).double().requires_grad_()

    def function(x):
        return ((x * w).tanh() if x.sum() > 0 else x * w * w).sum()

    def second(way):
        total = wf.stack(list(way(function, vectors(6, 2)))).sum()
        (first,) = wf.autograd.grad(total, w, create_graph=True)
        return wf.autograd.grad((first * first).sum(), w)[0]

    for _ in range(4):
        got = second(wf.map)
    assert paths().examples == 6
    close(got, second(lambda f, xs: [f(x) for x in xs]))
    results = wf.map(function, vectors(6, 2))
    total = sum(r * r for r in results)
    (inner,) = wf.autograd.grad(total, results[2])
    close(inner, 2 * results[2])


@pytest.mark.parametrize("context", [wf.no_grad, wf.inference_mode])
def test_without_gradients(context, model):
    xs, labels = halting_examples(8)
    with context():
        got = mapped(model, xs, labels, times=8)
    assert not any(t.requires_grad for t in got)
    assert all(t.is_inference() == (context is wf.inference_mode) for t in got)


# -- what functions do ------------------------------------------------------------------------------------------------


def structures(x):
    y = x * 2
    return {"sum": y.sum(), "both": (y, [x + 1]), "n": 3} if x[0] > 0 else {"sum": x.max(), "both": (x * 1, []), "n": 4}


def writes(x):
    h = x.clone()
    if h[0] > 0:
        h[1:] = h[1:] * 2
        h += 1
    h[0] = 0.5
    return h


def several_reads(x):
    count = 0
    while (x := x * 0.5).abs().max() > 0.1:
        if x.sum() > 0:
            x = x - 0.05
        count += 1
    return x, count


def detached(x):
    gate = (x.sum() > 0).double()
    with wf.no_grad():
        scale = x.abs().max()
    return x * gate.detach() / scale


def parts(x):
    first, second = x.chunk(2)
    return wf.cat([second, first]) if first.sum() > second.sum() else wf.stack([first, second]).reshape(-1)


def nested_loops(x):
    total = x * 0
    while total.sum() < 4:
        step = x.abs()
        while step.sum() > 1:
            step = step * 0.5
        total = total + step + 0.1
    return total


@pytest.mark.parametrize("function", [structures, writes, several_reads, detached, parts, nested_loops])
def test_functions_of_many_kinds(function):
    xs = vectors(16, requires_grad=True)
    for _ in range(30):
        got = wf.map(function, xs)
    assert paths().examples + wf.batching.last().looped + paths().recorded >= 12
    assert paths().examples > 0
    want = [function(x) for x in xs]
    for one, other in zip(got, want, strict=True):
        same(one, other)
    assert [gradient(x, one) for x, one in zip(xs, got, strict=True)] == [
        pytest.approx(gradient(x, other)) for x, other in zip(xs, want, strict=True)
    ]


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, wf.Tensor):
        assert one.requires_grad == other.requires_grad and one.dtype == other.dtype
        close(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        assert one == other


def gradient(x, result):
    found = [t for t in flat(result) if t.requires_grad]
    if not found:
        return []
    x.grad = None
    sum((t * t).sum() for t in found).backward()
    return x.grad.tolist()


def flat(result):
    if isinstance(result, wf.Tensor):
        yield result
    elif isinstance(result, dict):
        yield from flat(list(result.values()))
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from flat(part)

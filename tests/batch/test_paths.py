"""`wf.map` along recorded paths: examples whose path is known run batched, without Python, as the loop would."""

import gc
import weakref

import numpy as np
import pytest

import wayfare as wf
from wayfare.batch.paths import choose, recorded

F = wf.nn.functional


@pytest.fixture(autouse=True)
def from_the_second_map_on(always_batched, monkeypatch):
    """As for users."""
    monkeypatch.setattr(choose, "FIRST_MAPS", 1)


class Halting(wf.nn.Module):
    """It turns until what it adds up is large enough: a `while` on a value, with other counts for other examples."""

    def __init__(self, size=6):
        super().__init__()
        self.cell = wf.nn.GRUCell(size, size)
        self.halt = wf.nn.Linear(size, 1)
        self.head = wf.nn.Linear(size, 3)

    def forward(self, x, label):
        h, mean, total, turns = x, 0.0, 0.0, 0
        while total < 1 and turns < 12:
            h = self.cell(x, h)
            share = self.halt(h).sigmoid() * 0.4
            total = total + share
            mean = mean + share * h
            turns += 1
        return F.cross_entropy(self.head(mean), label)


def halting_examples(count=16, size=6, seed=0):
    numbers = np.random.default_rng(seed)
    xs = [wf.tensor(3 * numbers.standard_normal(size)) for _ in range(count)]
    return xs, [wf.tensor(int(numbers.integers(3))) for _ in range(count)]


@pytest.fixture
def model():
    wf.manual_seed(0)
    return Halting().double()


def vectors(count=12, size=4, seed=1, **options):
    numbers = np.random.default_rng(seed)
    return [wf.tensor(numbers.standard_normal(size), **options) for _ in range(count)]


def paths():
    stats = wf.batching.last().paths
    assert stats is not None and stats.failed is None
    return stats


def mapped(function, *columns, times=5):
    """The results of the last of several maps, which must have run along recorded paths."""
    for _ in range(times):
        found = wf.map(function, *columns)
    while paths().checked:  # the examples that are compared with Python run as Python too
        found = wf.map(function, *columns)
    assert paths().examples == len(columns[0])
    return found


def close(one, other, tolerance=1e-12):
    np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), tolerance, tolerance)


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


# -- what paths depend on ------------------------------------------------------------------------------------------


FACTOR = 2.0


def by_a_global(x):
    return x * FACTOR if x.sum() > 0 else x


def test_a_global_that_changes(monkeypatch):
    xs = vectors(8)
    mapped(by_a_global, xs)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    for _ in range(3):
        got = wf.map(by_a_global, xs)
        for one, x in zip(got, xs, strict=True):
            close(one, by_a_global(x))


def test_a_closure_made_anew_for_each_map(model):
    xs, labels = halting_examples(8)
    for scale in (1.0, 1.0, 1.0, 3.0, 3.0, 3.0):
        got = wf.map(lambda x, label, scale=scale: model(x, label) * scale, xs, labels)
        for one, x, label in zip(got, xs, labels, strict=True):
            close(one, model(x, label) * scale)


def test_a_parameter_that_is_replaced_frozen_or_of_another_dtype(model):
    xs, labels = halting_examples(8)
    mapped(model, xs, labels, times=8)
    model.head.weight = wf.nn.Parameter(model.head.weight.detach() * 2)
    check_against_loop(model, xs, labels)
    model.head.weight.requires_grad_(False)
    check_against_loop(model, xs, labels)
    model.float()
    check_against_loop(model, [x.float() for x in xs], labels, 1e-5)


def check_against_loop(model, xs, labels, tolerance=1e-12):
    for _ in range(4):
        got = wf.map(model, xs, labels)
        want = [model(x, label) for x, label in zip(xs, labels, strict=True)]
        for one, other in zip(got, want, strict=True):
            close(one, other, tolerance)
            assert one.requires_grad == other.requires_grad


def test_an_error_of_one_example_is_raised_by_python_on_its_line(model):
    xs, labels = halting_examples(8)
    mapped(model, xs, labels, times=8)
    labels[5] = wf.tensor(7)
    with pytest.raises(wf.errors.WayfareError, match="example 5"):
        wf.map(model, xs, labels)
    labels[5] = wf.tensor(1)
    check_against_loop(model, xs, labels)


def test_what_cannot_run_along_paths_runs_as_before():
    layer = wf.nn.Sequential(wf.nn.Linear(4, 4), wf.nn.Dropout(0.5)).double()
    xs = vectors(8)
    wf.manual_seed(3)
    want = [wf.map(layer, xs, batch=False) for _ in range(4)]
    wf.manual_seed(3)
    got = [wf.map(layer, xs) for _ in range(4)]
    for one, other in zip(got, want, strict=True):
        for a, b in zip(one, other, strict=True):
            close(a, b)
    seen = []

    def notes(x):
        seen.append(x.sum().item())
        return x * 2

    for _ in range(4):
        wf.map(notes, xs)
    assert seen == [x.sum().item() for x in xs] * 4


def test_an_argument_that_is_given_back_is_the_same_tensor():
    def function(x, w):
        return (x, w) if x.sum() > 0 else (x * 2, x)

    xs, w = vectors(8), wf.ones(4).double()
    for (one, other), x in zip(mapped(function, xs, [w] * 8), xs, strict=True):
        assert one is x and other is w if x.sum() > 0 else other is x


def test_where_no_example_has_a_path_it_is_not_looked_for_for_ever(monkeypatch):
    looked = []
    plain = recorded.Signed
    monkeypatch.setattr(recorded, "Signed", lambda example: looked.append(example.number) or plain(example))

    def function(x):
        return x.sum() * 2

    for n in range(40):
        wf.map(function, [wf.ones(4 * n + i) for i in range(4)])
    assert len(looked) == 4 * (8 + 8)  # in the maps 2 to 9, and then 25 to 32
    assert "hardly any example" in str(wf.batching.last())


def test_results_do_not_share_memory():
    xs = vectors(6)
    results = mapped(lambda_of_two(), xs)
    before = [r.clone() for r in results]
    results[2].add_(100)
    for i, (r, b) in enumerate(zip(results, before, strict=True)):
        close(r, b + 100 if i == 2 else b)


def lambda_of_two():
    def function(x):
        return x + 1 if x.sum() > 0 else x - 1

    return function


def test_a_difference_from_python_ends_it_with_a_warning(monkeypatch, model):
    xs, labels = halting_examples(8)
    mapped(model, xs, labels, times=8)
    (found,) = [p for key, p in model.__dict__["_wayfare_calls"].items() if isinstance(key, tuple)]
    for entries in found.compiled._cache.entries.values():
        for entry in entries:
            for block in entry.tree.walk():
                if block.recording is not None:
                    block.next_check = 0
                    block.recording.shape = (tuple, block.recording.shape)
    with pytest.warns(UserWarning, match="differ from Python"):
        got = wf.map(model, xs, labels)
    for one, x, label in zip(got, xs, labels, strict=True):
        close(one, model(x, label))


def test_a_function_and_its_model_are_freed():
    gone = weakref.ref(a_model_that_was_mapped())
    gc.collect()
    assert gone() is None


def a_model_that_was_mapped():
    model = Halting()
    xs, labels = halting_examples(8)
    xs = [x.float() for x in xs]
    for _ in range(6):
        wf.map(lambda x, label: model(x, label) * 2, xs, labels)
    assert wf.batching.last().paths.examples == 8
    return model


def test_statistics_show_the_tree_and_who_went_where():
    def function(x):
        return x * 2 if x > 0 else x - 1

    xs = [wf.tensor(v) for v in (1.0, -1.0, 2.0, 3.0, -2.0)]
    mapped(function, xs, times=20)
    text = str(wf.batching.last())
    assert "along recorded paths: 5 examples in 3 groups" in text
    assert "test_paths.py" in text and "5 decide: True 3, False 2" in text


def test_the_first_map_of_a_function_has_no_paths():
    xs = vectors(4)

    def once(x):
        return x * 3 if x.sum() > 0 else x

    wf.map(once, xs)
    assert wf.batching.last().paths is None
    assert choose.FIRST_MAPS == 1


def test_a_few_equal_signatures_among_many_stay_in_the_session():
    """Taking a few examples out of the session would make its groups smaller."""

    def total(x):
        while x.abs().max() > 1:
            x = x * 0.5
        return x.sum()

    wf.manual_seed(0)
    few = [wf.randn(4) * 3 for _ in range(4)] + [wf.randn(n) * 3 for n in range(5, 17)]
    for _ in range(4):
        found = wf.map(total, few, batch=True)
    stats = wf.batching.last()
    assert stats.groups and stats.paths.examples == 0
    assert "most examples have a signature of their own" in stats.paths.reasons
    wf.testing.assert_close(found, [total(x) for x in few])

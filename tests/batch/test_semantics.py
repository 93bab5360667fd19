"""`wf.map` as part of the language: what goes in and comes out, modes of recording, graphs, looking at tensors."""

import copy
import pickle

import pytest

import wayfare as wf
from tests.batch.checks import agree, compare, differentiate, equal, numbers, vectors, weight
from wayfare.errors import AnomalyError, GraphError

# -- the form of results and arguments ---------------------------------------------------------------------------


def test_nothing_to_do():
    assert wf.map(lambda x: x, []) == []
    assert wf.map(lambda x, y: x, [], ()) == []
    with wf.batching():
        pass


def test_structures_and_other_things_come_back_as_they_are():
    class Pair:
        def __init__(self, first, second):
            self.first, self.second = first, second

    xs = vectors()
    results = wf.map(lambda x, i: Pair(x * 2, {"i": i, "none": None, "deep": [(x.sum(),), "text"]}), xs, range(4))
    for i, (x, r) in enumerate(zip(xs, results, strict=True)):
        assert type(r.first) is wf.Tensor and type(r.second["deep"][0][0]) is wf.Tensor
        equal(r.first.detach(), (x * 2).detach())
        assert r.second["i"] == i and r.second["none"] is None and r.second["deep"][1] == "text"
        assert r.second["deep"][0][0].item() == pytest.approx(x.sum().item(), abs=1e-12)


def test_a_tensor_from_outside_comes_back_as_itself():
    xs = vectors()
    assert all(r is x for r, x in zip(wf.map(lambda x: x, xs), xs, strict=True))


def test_any_iterable_will_do():
    xs = vectors()
    stacked = wf.stack(xs).detach()
    want = [(x * 2).tolist() for x in xs]
    assert [t.tolist() for t in wf.map(lambda x: x * 2, (x for x in xs))] == want
    assert [t.tolist() for t in wf.map(lambda x: x * 2, stacked)] == want
    assert [t.tolist() for t in wf.map(lambda i: xs[i] * 2, range(4))] == want
    assert wf.map(lambda a, b: a + b, {"a": 1, "b": 2}, "xy") == ["ax", "by"]


def test_what_examples_leave_outside_is_ordinary_too():
    xs, kept, box = vectors(), [], {}

    def function(x):
        kept.append(x * 3)
        box[len(box)] = (x.sin(), x.shape)
        return None

    assert wf.map(function, xs) == [None] * 4
    for i, x in enumerate(xs):
        assert type(kept[i]) is wf.Tensor and type(box[i][0]) is wf.Tensor
        equal(kept[i], x * 3)
        equal(box[i][0], x.sin())


def test_results_can_be_written_one_by_one():
    xs = vectors(grad=False)
    results = wf.map(lambda x: (x * 2, x.sum(), x[:2] + 1), xs)
    for i, (first, total, part) in enumerate(results):
        first[0] = 100.0 + i
        total.fill_(7)
        part.mul_(0)
    for i, (x, (first, total, part)) in enumerate(zip(xs, results, strict=True)):
        assert first.tolist() == [100.0 + i, *(x * 2).tolist()[1:]]
        assert total.item() == 7 and part.tolist() == [0, 0]


def test_writing_one_result_leaves_the_gradients_of_the_others():
    def make():
        xs = vectors()
        return lambda x: (x * 2) + 1, [xs], xs

    found = []
    for batch in (False, True):
        function, (xs,), leaves = make()
        results = wf.map(function, xs, batch=batch)
        results[0].mul_(3)
        results[2][0] = 5
        found.append([[r.detach() for r in results], differentiate(results, leaves)])
    equal(found[1], found[0])


def test_results_have_memory_without_gaps():
    for r in wf.map(lambda x: (x * 2)[None], vectors(grad=False)):
        assert r.is_contiguous() and r.storage_offset() >= 0
        assert r.numpy().flags["C_CONTIGUOUS"]


# -- modes of recording -------------------------------------------------------------------------------------------


def test_no_grad_around_and_inside():
    w = weight(3, 3)
    with wf.no_grad():
        results = wf.map(lambda x: (x @ w).tanh(), vectors())
    assert not any(r.requires_grad for r in results)

    def inside(x):
        with wf.no_grad():
            a = x @ w
            with wf.enable_grad():
                c = (x @ w).sin()
        return a, c, (x @ w) * a

    agree(inside, xs := vectors(), leaves=[w, *xs])


def test_no_grad_in_one_example_does_not_reach_another():
    w = weight(3, 3)

    def function(x, i):
        if i % 2:
            with wf.no_grad():
                h = x @ w
                if h.sum() > -100:  # others go on meanwhile
                    h = h * 2
                assert not wf.is_grad_enabled()
            return h
        h = x @ w
        assert wf.is_grad_enabled()
        if h.sum() > -100:
            assert wf.is_grad_enabled()
            h = h * 3
        return h

    agree(function, xs := vectors(), range(4), leaves=[w, *xs])
    assert wf.is_grad_enabled()


def test_inference_mode():
    w, xs = weight(3, 3), vectors()
    with wf.inference_mode():
        results = wf.map(lambda x: (x @ w).tanh(), xs)
    assert all(r.is_inference() and not r.requires_grad for r in results)

    def inside(x):
        with wf.inference_mode():
            h = x @ w
            assert h.is_inference()
        return h

    assert all(r.is_inference() for r in wf.map(inside, vectors()))


def test_set_grad_enabled_inside_is_undone_where_the_loop_undoes_it():
    def function(x):
        with wf.set_grad_enabled(False):
            h = x * 2
        return h.requires_grad, (x * 2).requires_grad

    assert wf.map(function, vectors()) == [(False, True)] * 4


def test_autocast_like_default_dtype_is_each_examples_own():
    def function(i):
        return wf.ones(2).dtype, wf.tensor(1.5).dtype

    wf.set_default_dtype(wf.float64)
    assert wf.map(function, range(2)) == [(wf.float64, wf.float64)] * 2


# -- graphs ---------------------------------------------------------------------------------------------------------


def test_second_derivatives_through_a_map():
    w = weight(3, 3)
    agree(lambda x: (x @ w).tanh() * x.sum(), xs := vectors(), leaves=[w, *xs], second=True)


def test_retain_graph_twice_and_double_use():
    w, xs = weight(3, 3), vectors()
    found = []
    for batch in (False, True):
        for leaf in (w, *xs):
            leaf.grad = None
        results = wf.map(lambda x: (x @ w).sin(), xs, batch=batch)
        total = sum((r * r).sum() for r in results)
        total.backward(retain_graph=True)
        (results[0] * 2).sum().backward(retain_graph=True)
        (total + results[1].sum()).backward()
        found.append([leaf.grad for leaf in (w, *xs)])
        with pytest.raises(GraphError):
            total.backward()
    equal(found[1], found[0])


def test_the_gradient_of_one_result_is_that_of_its_example():
    w, xs = weight(3, 3), vectors()
    results = wf.map(lambda x: (x @ w).sin().sum(), xs)
    for i, r in enumerate(results):
        firsts = wf.autograd.grad(r, [w, *xs], retain_graph=True, allow_unused=True)
        want = wf.autograd.grad((xs[i] @ w).sin().sum(), [w, xs[i]])
        equal(firsts[0], want[0])
        equal(firsts[1 + i], want[1])
        for j, g in enumerate(firsts[1:]):
            assert j == i or g is None or not g.any()


def test_backward_and_grad_inside_an_example():
    w = weight(3, 3)

    def slope(x):
        z = x.detach().requires_grad_()
        ((z @ w).sin()).sum().backward()
        (g,) = wf.autograd.grad((x @ w).sum(), [x], create_graph=True)
        return z.grad + g * 2

    agree(slope, xs := vectors(), leaves=[w, *xs])


def test_gradients_of_inner_steps_of_an_example():
    w = weight(3, 3)

    def adapted(x):
        fast = w
        for _ in range(2):
            (g,) = wf.autograd.grad(((x @ fast).sin() ** 2).sum(), [fast], create_graph=True)
            fast = fast - 0.1 * g
        return x @ fast

    agree(adapted, xs := vectors(), leaves=[w, *xs])


def test_tensor_hooks_and_retain_grad():
    w = weight(3, 3)
    seen = []

    def function(x):
        h = x @ w
        h.retain_grad()
        h.register_hook(lambda g: seen.append(g.clone()) or g * 2)
        out = h.tanh()
        seen.append(h)
        return out

    stats = []
    for batch in (False, True):
        seen.clear()
        xs = vectors()
        w.grad = None
        results = wf.map(function, xs, batch=batch)
        sum(r.sum() for r in results).backward()
        assert len(seen) == 8
        held = [h.grad for h in seen[:4]]
        calls = sorted(g.sum().item() for g in seen[4:])
        stats.append([held, calls, w.grad, [x.grad for x in xs]])
    equal(stats[1], stats[0])


def test_hooks_on_a_result_after_the_map():
    found = []
    for batch in (False, True):
        xs, seen = vectors(), []
        results = wf.map(lambda x: x * 2, xs, batch=batch)
        results[1].register_hook(lambda g, seen=seen: seen.append(g) or g * 10)
        results[2].retain_grad()
        sum((r * r).sum() for r in results).backward()
        found.append([seen, results[2].grad, [x.grad for x in xs]])
    equal(found[1], found[0])


def test_leaf_made_inside():
    def function(x):
        own = wf.ones(3, dtype=wf.float64, requires_grad=True)
        return own, (own * x).sin()

    found = []
    for batch in (False, True):
        results = wf.map(function, vectors(), batch=batch)
        assert all(own.is_leaf for own, _ in results)
        sum(r.sum() for _, r in results).backward()
        found.append([own.grad for own, _ in results])
    equal(found[1], found[0])


def test_anomaly_mode():
    xs = [numbers(3), numbers(3) * 0 - 1]
    with pytest.raises(AnomalyError), wf.autograd.detect_anomaly():
        results = wf.map(lambda x: x.requires_grad_().sqrt(), xs)
        sum(r.sum() for r in results).backward()


def test_saved_tensor_hooks_see_what_is_saved():
    w, xs = weight(3, 3), vectors()
    want = wf.map(lambda x: (x @ w).tanh(), xs, batch=False)
    sum(r.sum() for r in want).backward()
    want, w.grad = w.grad, None
    with wf.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        results = wf.map(lambda x: (x @ w).tanh(), xs)
    sum(r.sum() for r in results).backward()
    equal(w.grad, want)


# -- looking at tensors in the middle -----------------------------------------------------------------------------


def test_printing_in_the_middle(capsys):
    xs = vectors(grad=False)

    def function(x):
        h = x * 2
        print(h)
        return repr(h), str(h.sum()), f"{h.sum():.3f}", h * 1

    texts = []
    for batch in (False, True):
        found = wf.map(function, xs, batch=batch)
        printed = capsys.readouterr().out
        texts.append([[row[:3] for row in found], sorted(printed.split("\n"))])
    assert texts[1] == texts[0]


def test_everything_one_can_ask_a_tensor():
    def function(x):
        h = (x * 2).reshape(3, 1)
        return (
            tuple(h.shape), h.size(0), h.dim(), h.ndim, len(h), h.numel(), str(h.dtype), str(h.device),
            h.is_contiguous(), h.stride(), h.requires_grad, h.is_leaf, h.element_size(), h.nbytes, h.itemsize,
            h.is_floating_point(), type(h.shape).__name__, isinstance(h, wf.Tensor), h.T.shape, (h == h).all().item(),
            1.5 in h, int(h.argmax()), float(h.sum()), bool((h > -9).all()), h.tolist(), [float(v) for v in h], h.grad,
            h.grad_fn is None, wf.is_tensor(h), h.allclose(h + 0), wf.equal(h, h), h.shape == (3, 1),
            range(5)[h.new_tensor(2, dtype=wf.int64)], [0, 1, 2, 3][wf.tensor(1) + 1], round(h.sum().item(), 3),
            format(h.sum(), ".2f"), hash(h) == hash(h), {h: 1}[h], h.data_ptr() != 0, h._version,
        )  # fmt: skip

    agree(function, vectors())


def test_copies_and_files_in_the_middle(tmp_path):
    def function(x, i):
        h = (x * 2).detach()
        wf.save({"h": h}, tmp_path / f"{i}.safetensors")
        again = wf.load(tmp_path / f"{i}.safetensors")["h"]
        return copy.deepcopy(h), copy.copy(h), again

    agree(function, vectors(), range(4))


def test_results_can_be_saved_and_copied(tmp_path):
    results = wf.map(lambda x: x * 2, vectors(grad=False))
    wf.save({str(i): r for i, r in enumerate(results)}, tmp_path / "all.safetensors")
    again = wf.load(tmp_path / "all.safetensors")
    equal([again[str(i)] for i in range(4)], results)
    equal(copy.deepcopy(results), results)


def test_pickling_is_refused_or_done_as_outside():
    plain = numbers(3)
    try:
        pickle.dumps(plain)
    except Exception as error:
        with pytest.raises(type(error)):
            pickle.dumps(wf.map(lambda x: x * 2, [plain])[0])
        with pytest.raises(type(error)):
            wf.map(lambda x: pickle.dumps(x * 2), [plain])
    else:
        equal(pickle.loads(pickle.dumps(wf.map(lambda x: x * 2, [plain])[0])), plain * 2)


def test_sharing_between_examples_computes_once():
    w, memo, runs = weight(3, 3), {}, []

    def function(key, x):
        if key not in memo:
            runs.append(key)
            memo[key] = (x @ w).tanh()
        return memo[key] * x

    found = []
    for batch in (False, True):
        memo.clear()
        w.grad, xs = None, vectors(6)
        results = wf.map(function, [i % 2 for i in range(6)], xs, batch=batch)
        found.append([results, list(memo.values()), differentiate(results, [w, *xs])])
    equal(found[1], found[0])
    assert runs == [0, 1, 0, 1]


def test_weights_computed_outside():
    w = weight(3, 3)

    def make():
        w.grad = None
        made = (w @ w).tanh()
        xs = vectors()
        return lambda x: (x @ made) + made[0], [xs], [w, *xs]

    compare(make)


def test_in_place_writes_into_outer_tensors():
    table = wf.zeros(4, 3, dtype=wf.float64)
    xs = vectors(grad=False)

    def function(x, i):
        table[i] = x * 2
        table[i, 0] += 1
        return table[i] * 1

    results = wf.map(function, xs, range(4))
    want = wf.stack(xs) * 2
    want[:, 0] += 1
    equal(table, want)
    equal(results, [row.clone() for row in want])


def test_reading_what_an_in_place_write_changes():
    x = wf.ones(3, dtype=wf.float64)

    def function(y):
        before = x * y
        x.add_(1)
        return before, x * y

    results = wf.map(function, [1.0])
    assert results[0][0].tolist() == [1, 1, 1] and results[0][1].tolist() == [2, 2, 2]

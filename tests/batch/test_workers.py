"""`wf.map(..., workers=n)`: the values, gradients and errors of one process, and workers that are kept or lost."""

import os
import signal
import threading
import warnings

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.batch.function_profile import profile_of
from wayfare.batch.workers import pool as pools
from wayfare.core.balance import CostModel, deal, imbalance
from wayfare.core.errors import GraphError, OperationError, ShapeError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are tested where processes can be forked")

SCALE = 2.0
OFFSET = wf.tensor([1.0, 2.0, 3.0, 4.0])


class Tree(nn.Module):
    def __init__(self, width=8, dtype=wf.float64):
        super().__init__()
        self.embed = nn.Embedding(20, width, dtype=dtype)
        self.cell = nn.Linear(2 * width, width, dtype=dtype)
        self.drop = nn.Dropout(0.25)

    def forward(self, tree):
        if isinstance(tree, int):
            return self.embed(wf.tensor(tree))
        left, right = map(self.forward, tree)
        return self.drop(self.cell(wf.cat([left, right])).tanh())


TREES = [((1, 2), 3), 4, ((5, 6), (7, 8)), (((1, 9), 2), (3, 11)), (2, 3), 0, ((1, 2), (3, (4, (5, 6))))]


@pytest.fixture(scope="module", autouse=True)
def stop_workers():
    yield
    if pools._pool is not None:
        pools._pool.stop()


def gradients(model):
    return [None if p.grad is None else p.grad.numpy().copy() for p in model.parameters()]


def ran_in_workers():
    stats = wf.batching.last()
    return stats is not None and stats.workers is not None


def run(model, function, *columns, workers):
    model.zero_grad()
    wf.manual_seed(7)
    results = wf.map(function, *columns, workers=workers)
    wf.stack([r.sum() for r in results]).sum().backward()
    return [r.detach().numpy().copy() for r in results], gradients(model)


def assert_close(first, second):
    for mine, other in zip(first, second, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-13)


def test_values_gradients_and_random_numbers_are_those_of_one_process():
    wf.manual_seed(0)
    model = Tree()
    values, grads = run(model, model, TREES, workers=2)
    assert ran_in_workers()
    assert sum(wf.batching.last().workers.examples) == len(TREES)
    plain, plain_grads = run(model, model, TREES, workers=None)
    assert_close(values, plain)
    assert_close(grads, plain_grads)
    again, grads_again = run(model, model, TREES, workers=2)
    assert all(np.array_equal(a, b) for a, b in zip(grads, grads_again, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(values, again, strict=True))


def test_workers_are_kept_and_see_the_weights_as_they_are_now():
    model = Tree().eval()
    optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
    wf.map(model, TREES, workers=2)
    processes = [p.pid for p in pools._pool._processes]
    sent = len(pools._pool._functions)
    for _ in range(2):
        run(model, model, TREES, workers=2)
        optimizer.step()
    profile_of(model).workers = None  # no trial in one process
    values, _ = run(model, model, TREES, workers=2)
    assert ran_in_workers()
    assert [p.pid for p in pools._pool._processes] == processes
    assert len(pools._pool._functions) == sent
    assert_close(values, run(model, model, TREES, workers=None)[0])


def test_new_lambdas_of_one_code_and_changed_closures_and_globals(monkeypatch):
    model = Tree().eval()
    for factor in (1.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", factor + 1)
        function = lambda tree: model(tree) * factor * SCALE  # noqa: B023 - a new closure each time is the point
        values, grads = run(model, function, TREES, workers=2)
        assert ran_in_workers()
        plain, plain_grads = run(model, function, TREES, workers=None)
        assert_close(values, plain)
        assert_close(grads, plain_grads)


class UsesGlobals(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) * SCALE + OFFSET


def test_methods_see_the_globals_of_their_module_as_they_are_now(monkeypatch):
    model = UsesGlobals()
    xs = list(wf.randn(5, 4))
    for factor in (2.0, 5.0):
        monkeypatch.setitem(globals(), "SCALE", factor)
        monkeypatch.setitem(globals(), "OFFSET", factor * wf.ones(4))
        values, _ = run(model, model, xs, workers=2)
        assert ran_in_workers()
        for value, x in zip(values, xs, strict=True):
            np.testing.assert_allclose(value, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_class_of_a_function_and_a_class_made_later():
    for _ in range(2):  # the second one is unknown to workers that were forked before

        class Local(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(wf.ones(3))

            def forward(self, x):
                return (self.weight * x).sum()

        model = Local()
        values, grads = run(model, model, list(wf.arange(12.0).reshape(4, 3)), workers=2)
        assert ran_in_workers()
        np.testing.assert_allclose(grads[0], [18.0, 22.0, 26.0])
        np.testing.assert_allclose(values, [3.0, 12.0, 21.0, 30.0])


def test_examples_with_gradients_tensors_with_a_history_and_arguments_in_common():
    weight = wf.randn(3, 3, dtype=wf.float64, requires_grad=True)
    xs = wf.randn(6, 3, dtype=wf.float64, requires_grad=True)

    def loss(doubled, workers):
        def of_one(x, bias):
            return {"y": (x @ doubled + bias).tanh().sum(), "n": len(x), "w": doubled}

        bias = 0.5 * weight[0]
        found = wf.map(of_one, list(xs), [bias] * 6, workers=workers)
        assert all(part["n"] == 3 for part in found)
        assert all(part["w"] is doubled for part in found)
        return sum(part["y"] for part in found)

    results = []
    for workers in (2, None):
        weight.grad = xs.grad = None
        loss(2 * weight, workers).backward()
        assert ran_in_workers() == (workers == 2)
        results.append([weight.grad.numpy().copy(), xs.grad.numpy().copy()])
    assert_close(*results)


def test_results_can_be_differentiated_one_by_one_and_again_with_retain_graph():
    model = Tree().eval()
    whole = run(model, model, TREES, workers=2)[1]
    assert ran_in_workers()
    model.zero_grad()
    for value in wf.map(model, TREES, workers=2):
        value.sum().backward()
    assert_close(gradients(model), whole)
    profile_of(model).workers = None
    value = wf.map(model, TREES, workers=2)[0].sum()
    assert ran_in_workers()
    value.backward(retain_graph=True)
    value.backward()
    with pytest.raises(GraphError, match="already used"):
        value.backward()
    with pytest.raises(GraphError, match="cannot be differentiated twice"):
        wf.autograd.grad(wf.map(model, TREES, workers=2)[0].sum(), list(model.parameters()), create_graph=True,
                         allow_unused=True)  # fmt: skip


def test_rows_of_an_embedding_stay_rows():
    table = nn.Embedding(50_000, 4)
    results = wf.map(table, [wf.tensor(i) for i in (3, 49_999, 3)], workers=2)
    assert ran_in_workers()
    sum(r.sum() for r in results).backward()
    assert table.weight._grad.__class__.__name__ == "Rows"
    np.testing.assert_array_equal(table.weight.grad[wf.tensor([3, 49_999, 0])].numpy()[:, 0], [2.0, 1.0, 0.0])


def test_without_gradients_and_hooks():
    model = Tree().eval()
    with wf.no_grad():
        assert not wf.map(model, TREES, workers=2)[0].requires_grad
        assert ran_in_workers()
    seen = []
    model.cell.weight.register_hook(lambda g: seen.append(g.shape))
    results = wf.map(model, TREES, workers=2)
    results[0].register_hook(lambda g: 2 * g)
    results[0].sum().backward()
    assert len(seen) == 1


# -- errors


def uneven(n):
    return wf.ones(n) + wf.ones(3)


def test_an_error_names_the_first_example_of_the_loop():
    with pytest.raises(ShapeError, match=r"in example 2 of\s+wf.map \(test_workers.py"):
        wf.map(uneven, [3, 1, 2, 1, 4, 3, 3, 2], workers=2)
    with pytest.raises(ZeroDivisionError) as caught:
        wf.map(lambda n: wf.ones(2) * (1 / n), [1, 2, 0, 1], workers=2)
    notes = "\n".join(caught.value.__notes__)
    assert "in example 2 of wf.map" in notes and "In the worker:" in notes
    assert float(wf.map(lambda n: wf.ones(2).sum() * n, [1, 2], workers=2)[1]) == 4


def dies(n):
    if n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return wf.ones(2) * n


def test_a_worker_that_dies_is_reported_and_replaced(monkeypatch):
    monkeypatch.setattr("wayfare.batch.workers.choose.explain_side_effects", lambda *_: "")  # kill is an effect
    with pytest.raises(OperationError, match=r"worker \d \(pid \d+\) was killed by SIGKILL"):
        wf.map(dies, [1, 2, 3, 4], workers=2)
    assert float(wf.map(lambda n: wf.ones(2).sum() * n, [1, 2], workers=2)[1]) == 4


def test_backward_after_the_workers_have_ended():
    model = Tree().eval()
    total = sum(r.sum() for r in wf.map(model, TREES, workers=2))
    assert ran_in_workers()
    pools._pool.stop()
    with pytest.raises(GraphError, match="have ended"):
        total.backward()


def test_what_cannot_be_sent():
    lock = threading.Lock()

    def locked(x):
        return x * (2.0 if lock is None else 1.0)

    with pytest.raises(OperationError, match=r"locked, or what it refers to, cannot be sent .*lock"):
        wf.map(locked, [wf.ones(1), wf.ones(1)], workers=2)
    with pytest.raises(OperationError, match="example 1 cannot be sent"):
        wf.map(lambda x: wf.ones(1), [1, lock], workers=2)


# -- what cannot be right in workers runs here


def test_functions_that_change_python_objects_run_in_one_process():
    seen = []

    def log(x):
        seen.append(1)
        return x * 2

    with pytest.warns(UserWarning, match="log runs in one process, because it changes what others see: list.append"):
        wf.map(log, [wf.ones(1)] * 3, workers=2)
    assert len(seen) == 3


class Node:
    def __init__(self):
        self.state = None


def test_functions_that_write_to_their_example_run_in_one_process():
    def remember(node):
        node.state = wf.ones(2) * 3
        return node.state.sum()

    nodes = [Node() for _ in range(4)]
    with pytest.warns(UserWarning, match="one process"):
        wf.map(remember, nodes, workers=2)
    assert all(float(node.state[0]) == 3 for node in nodes)


def test_functions_that_write_to_buffers_run_in_one_process():
    norm = nn.BatchNorm1d(4)
    xs = [wf.randn(8, 4) for _ in range(4)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wf.map(norm, xs, workers=2)
    assert any("write to a tensor" in str(w.message) for w in caught)
    other = nn.BatchNorm1d(4)
    for x in xs:
        other(x)
    np.testing.assert_allclose(norm.running_mean.numpy(), other.running_mean.numpy(), rtol=1e-6)
    assert int(norm.num_batches_tracked) == 4


def doubles(x):
    x.mul_(2)
    return x.sum()


def replaces(x):
    x.data = wf.ones(3)
    return x.sum()


def flags(x):
    return x.requires_grad_().sum()


def writes_and_raises(x):
    x.add_(1)
    if float(x[0]) > 2:
        raise ValueError("too large")
    return x.sum()


@pytest.mark.parametrize("function", [doubles, replaces, flags, writes_and_raises])
@pytest.mark.parametrize("batch", [None, False, True])
def test_functions_that_write_to_given_tensors_run_in_one_process(function, batch):
    def outcome(**options):
        profile_of(function).workers = None
        xs = [wf.ones(3) * k for k in range(4)]
        try:
            values = [float(r) for r in wf.map(function, xs, batch=batch, **options)]
        except ValueError as error:
            values = str(error)
        return values, [(x.tolist(), x.requires_grad) for x in xs]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        profile_of(function)._warned.clear()
        there = outcome(workers=2)
    assert any("in one process, because its examples write to a tensor" in str(w.message) for w in caught)
    assert there == outcome()


def test_writes_to_views_of_one_memory_and_to_computed_tensors_are_those_of_one_process():
    def first(x):
        x[0] = x[1] + 9
        return x.sum()

    def outcome(**options):
        memory = wf.zeros(10)
        return [float(r) for r in wf.map(first, [memory[k : k + 3] for k in range(8)], **options)], memory.tolist()

    with pytest.warns(UserWarning, match="in one process, because its examples write to a tensor"):
        there = outcome(workers=2)
    assert there == outcome(batch=False)
    leaves = [wf.ones(3, requires_grad=True) for _ in range(4)]
    with pytest.warns(UserWarning, match="in one process, because its examples write to a tensor"):
        results = wf.map(lambda x: x.mul_(2).sum(), [leaf * 3 for leaf in leaves], workers=2)
    sum(results).backward()
    assert [leaf.grad.tolist() for leaf in leaves] == [[6.0] * 3] * 4


def test_writes_to_what_an_example_makes_stay_in_workers():
    def fills(x):
        made = wf.zeros(3)
        made[0] = x[0]
        return (x.clone().mul_(2) + made).sum()

    xs = [wf.ones(3) * k for k in range(4)]
    assert [float(r) for r in wf.map(fills, xs, workers=2)] == [0.0, 7.0, 14.0, 21.0]
    assert ran_in_workers()


HOOKS = {
    "register_forward_hook": lambda seen: lambda module, args, result: seen.append(1),
    "register_forward_pre_hook": lambda seen: lambda module, args: seen.append(1),
    "register_full_backward_hook": lambda seen: lambda module, given, made: seen.append(1),
    "register_full_backward_pre_hook": lambda seen: lambda module, made: seen.append(1),
}


@pytest.mark.parametrize("register", HOOKS)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("where", ["closure", "argument", "examples"])
def test_functions_whose_modules_have_hooks_run_in_one_process(register, late, where):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    xs = [wf.ones(4) * k for k in range(6)]
    if where == "closure":
        function, columns = lambda x: model(x).sum(), [xs]
    else:
        function = lambda m, x: m(x).sum()
        columns = [[model] * 6 if where == "argument" else [model[0], model[1]] * 3, xs]
    profile_of(function).workers = None  # those of the other cases have the same code
    profile_of(function)._warned.clear()
    if late:
        wf.map(function, *columns, workers=2)
        assert ran_in_workers()
    seen = []
    handle = getattr(model[0], register)(HOOKS[register](seen))
    with pytest.warns(UserWarning, match="runs in one process, because"):
        results = wf.map(function, *columns, workers=2)
    sum(results).backward()
    assert len(seen) == (3 if where == "examples" else 6)
    handle.remove()
    profile_of(function).workers = None
    wf.map(function, *columns, workers=2)
    assert ran_in_workers()


def test_maps_inside_of_others_and_few_examples_run_here():
    def inner(x):
        return wf.map(lambda y: y + 1, [x, x], workers=2)[0]

    assert float(wf.map(inner, [wf.ones(1), wf.ones(1)])[0]) == 2
    assert float(wf.map(inner, [wf.ones(1), wf.ones(1)], workers=2)[0]) == 2
    wf.map(lambda x: x + 1, [wf.ones(1)], workers=2)
    assert not ran_in_workers()
    assert wf.map(lambda x: x, [], workers=2) == []
    with pytest.raises(ValueError, match="workers is a number of processes"):
        wf.map(lambda x: x, [1], workers="2")


def test_what_is_not_faster_runs_in_one_process_with_a_warning(monkeypatch):
    def small(x):
        return x * 2

    xs = [wf.ones(1)] * 4
    profile = profile_of(small)
    for _ in range(4):
        wf.map(small, xs, workers=2)
    # Times of this machine decide; here they are given.
    profile.workers._by_workers.forward, profile.workers._by_one.forward = 2.0, 1.0
    with pytest.warns(UserWarning, match="small runs in one process from now on, because an example takes 250 ms"):
        wf.map(small, xs, workers=2)
    assert not ran_in_workers()


def test_graphs_are_forgotten_when_nothing_refers_to_them():
    model = Tree().eval()
    for _ in range(2):
        run(model, model, TREES, workers=2)
    assert len(pools._pool.forget) <= 4


def test_a_forked_process_does_not_remove_the_shared_memory():
    model = Tree().eval()
    wf.map(model, TREES, workers=2)
    (*_, latest) = pools._pool._functions.values()
    child = os.fork()
    if child == 0:
        latest.remove()
        os._exit(0)
    os.waitpid(child, 0)
    again = type(latest.values)(latest.specs, name=latest.values.name)  # it is still there
    np.testing.assert_array_equal(again.array(0), latest.values.array(0))


# -- dealing


def test_work_is_dealt_by_cost():
    assert deal([5, 1, 1, 1, 1, 1], 2) == [[0], [1, 2, 3, 4, 5]]
    assert deal([], 2) == [[], []]
    costs = np.random.default_rng(0).lognormal(3, 1, 64)
    by_cost = imbalance([sum(costs[part]) for part in deal(costs, 4)])
    by_count = imbalance([sum(part) for part in np.split(costs, 4)])
    assert by_cost < 0.01 < by_count


def test_a_cost_model_learns_from_sums():
    random = np.random.default_rng(0)
    model = CostModel(3)
    for _ in range(50):
        features = random.integers(1, 20, 3)
        model.observe(features, features @ [2.0, 0.0, 0.5])
    np.testing.assert_allclose(model.coefficients, [2.0, 0.0, 0.5], atol=1e-3)
    assert model.predict([[1, 1, 2]])[0] == pytest.approx(3.0, rel=1e-3)

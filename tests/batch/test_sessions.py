"""Session after session: maps that use what earlier ones made, training in all forms, and what is shared by them.

Each test is a small program around several maps, run once with `batch=False` and once batched.
"""

import threading

import numpy as np
import pytest

import wayfare as wf
from tests.batch.checks import equal, numbers, vectors, weight
from wayfare import nn
from wayfare.nn import functional as F


def both(run):
    """`run(map)` gives what is to be compared; it is run with the loop and with the real map."""
    found = []
    for batch in (False, True):
        wf.manual_seed(7)
        found.append(run(lambda fn, *xs, batch=batch: wf.map(fn, *xs, batch=batch)))
    equal(found[1], found[0])


def test_results_of_one_map_are_the_examples_of_the_next():
    def run(mapped):
        w, xs = weight(3, 3), vectors(6)
        first = mapped(lambda x: (x @ w).tanh(), xs)
        second = mapped(lambda h, x: h * x if h.sum() > 0 else (h @ w), first, xs)
        third = mapped(lambda h: h.sum() * first[0], second)
        total = sum(t.sum() for t in third)
        total.backward()
        return [first, second, third, w.grad, [x.grad for x in xs]]

    both(run)


def test_results_detached_and_used_as_leaves():
    def run(mapped):
        w, xs = weight(3, 3), vectors(4)
        first = [h.detach().requires_grad_() for h in mapped(lambda x: x @ w, xs)]
        second = mapped(lambda h: (h @ w).sin(), first)
        sum(t.sum() for t in second).backward()
        return [second, w.grad, [h.grad for h in first]]

    both(run)


def test_one_backward_through_maps_and_loops():
    def run(mapped):
        w, xs = weight(3, 3), vectors(5)
        outer = (w * 2).tanh()
        a = mapped(lambda x: x @ outer, xs)
        b = [(h * 2).sin() for h in a]
        c = mapped(lambda h: h + outer[0], b)
        stacked = wf.stack(c + a)
        ((stacked @ w).logsumexp(0) * numbers(3)).sum().backward()
        return [stacked, w.grad, [x.grad for x in xs]]

    both(run)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_training_follows_the_loop(name):
    def run(mapped):
        model = nn.ModuleDict({"embed": nn.Embedding(9, 4), "cell": nn.GRUCell(4, 5), "out": nn.Linear(5, 3)}).double()
        opt = getattr(wf.optim, name)(model.parameters(), lr=0.05)
        rng = np.random.default_rng(0)
        losses = []

        def one(words, label):
            h = wf.zeros(5, dtype=wf.float64)
            for word in words:
                h = model["cell"](model["embed"](wf.tensor(int(word))), h)
            return F.cross_entropy(model["out"](h), wf.tensor(label))

        for _ in range(6):
            words = [rng.integers(0, 9, rng.integers(1, 6)) for _ in range(5)]
            labels = [int(w[0]) % 3 for w in words]
            opt.zero_grad()
            loss = wf.stack(mapped(one, words, labels)).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            losses.append(loss.item())
        return [losses, dict(model.state_dict())]

    both(run)


def test_weights_shared_under_two_names():
    def run(mapped):
        embed = nn.Embedding(6, 4).double()
        out = nn.Linear(4, 6, bias=False).double()
        out.weight = embed.weight
        losses = mapped(lambda i: F.cross_entropy(out(embed(wf.tensor(i)).tanh()), wf.tensor((i + 1) % 6)), range(6))
        sum(losses).backward()
        return [losses, embed.weight.grad]

    both(run)


def test_gradients_add_up_over_maps():
    def run(mapped):
        w = weight(3, 3)
        for start in (0, 10, 20):
            sum(r.sum() for r in mapped(lambda x: (x @ w).tanh(), vectors(3, start=start))).backward()
        return [w.grad]

    both(run)


def test_a_teacher_without_gradients_beside_a_student():
    def run(mapped):
        teacher, student = nn.Linear(3, 3).double().requires_grad_(False), nn.Linear(3, 3).double()

        def one(x):
            with wf.no_grad():
                target = teacher(x)
            return F.mse_loss(student(x), target) + F.mse_loss(student(x), teacher(x))

        losses = mapped(one, vectors(5))
        sum(losses).backward()
        return [losses, [p.grad for p in student.parameters()], [p.grad for p in teacher.parameters()]]

    both(run)


def test_buffers_and_parameters_changed_between_maps():
    def run(mapped):
        layer = nn.Linear(3, 3).double()
        seen = [mapped(layer, vectors(3))]
        with wf.no_grad():
            layer.weight.mul_(2)
            layer.bias.zero_()
        seen.append(mapped(layer, vectors(3)))
        layer.weight = nn.Parameter(numbers(3, 3))
        seen.append(mapped(layer, vectors(3)))
        layer.to(wf.float32)
        seen.append(mapped(lambda x: layer(x.float()), vectors(3)))
        return seen

    both(run)


def test_many_examples_of_few_kinds():
    def run(mapped):
        w, xs = weight(3, 3), vectors(200, grad=False)
        results = mapped(lambda x, i: (x @ w).tanh() if i % 3 else (x @ w).sigmoid() * x[0], xs, range(200))
        wf.stack(results).square().sum().backward()
        return [results, w.grad]

    both(run)
    stats = wf.batching.last()
    assert stats.nodes >= 400 and stats.groups <= 12


def test_the_same_example_many_times():
    def run(mapped):
        w, x = weight(3, 3), numbers(3, grad=True)
        results = mapped(lambda x: (x @ w).tanh() * x, [x] * 7)
        sum((r * r).sum() for r in results).backward()
        return [results, w.grad, x.grad]

    both(run)


def test_examples_that_branch_every_way():
    def run(mapped):
        w, xs = weight(3, 3), vectors(24)

        def one(x):
            h, path = x, ""
            for _ in range(4):
                h = (h @ w).tanh()
                way = int((h.sum() * 10).floor().item()) % 3
                path += "abc"[way]
                h = h * 2 if way == 0 else h.sin() + x if way == 1 else h - h.mean()
                if h.abs().max() > 1.8:
                    break
            return h, path

        results = mapped(one, xs)
        sum(h.sum() for h, _ in results).backward()
        return [results, w.grad, [x.grad for x in xs]]

    both(run)


def test_a_map_in_the_backward_pass_of_a_custom_function():
    class Mapped(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return wf.stack(wf.map(lambda row: row.sin(), x))

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return wf.stack(wf.map(lambda row, gr: row.cos() * gr, x, g))

    x = numbers(4, 3, grad=True)
    (Mapped.apply(x) * numbers(4, 3, seed=1)).sum().backward()
    equal(x.grad, (x.detach().cos() * numbers(4, 3, seed=1)))


def test_a_map_in_a_hook():
    x = numbers(4, 3, grad=True)
    h = x * 2
    h.register_hook(lambda g: wf.stack(wf.map(lambda row: row * 3 if row.sum() > 0 else row, g)))
    h.sum().backward()
    assert x.grad.tolist() == [[6.0] * 3] * 4


def test_a_map_while_another_thread_computes():
    stop, wrong = threading.Event(), []

    def other():
        x = numbers(3, seed=5)
        want = (x * 2).tolist()
        while not stop.is_set():
            if type(y := x * 2) is not wf.Tensor or y.tolist() != want:
                wrong.append(y)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        for _ in range(30):
            wf.map(lambda x: (x * 2).tanh() if x.sum() > 0 else x, vectors(10))
    finally:
        stop.set()
        thread.join()
    assert not wrong


def test_statistics_say_what_ran():
    w = weight(3, 3)
    results = wf.map(lambda x: (x @ w).tanh(), vectors(8, grad=False))
    stats = wf.batching.last()
    assert stats.nodes == 16 and stats.groups == 2 and stats.mean_group == 8 and stats.rounds == 1
    assert {(k.name, k.nodes, k.groups, k.largest) for k in stats.kinds} == {("tanh", 8, 1, 8), ("matmul", 8, 1, 8)}
    assert stats.seconds_running > 0 and stats.seconds_recording > 0 and stats.seconds_scheduling > 0
    assert all(len(line) <= 80 for line in str(stats).split("\n")) and "tanh" in str(stats)
    assert "together" in stats.why_apart(results[0], results[5])


def test_a_read_runs_what_it_needs_and_what_joins_it():
    w, head = weight(3, 3), weight(3, 1)

    def walk(x, steps):
        # Only the first of these is needed at once, yet all are of one signature.
        leaves = [(x * (n + 1)).sin() for n in range(3)]
        losses, h = [], x
        for n in range(steps):
            h = (h @ w + leaves[n % 3]).tanh()
            losses.append(F.mse_loss(h, x))  # nobody reads it before the end
            if (h @ head).sum().item() > 1e9:
                break
        return sum(losses)

    def run(mapped):
        return mapped(walk, vectors(6), [1, 2, 3, 4, 5, 5])

    both(run)
    kinds = {kind.name: (kind.nodes, kind.groups) for kind in wf.batching.last().kinds}
    # The first example of a new function runs ahead: one round of its own.
    assert kinds["tanh"] == (20, 1 + 5)
    assert kinds["sin"] == (18, 2)
    assert kinds["mse_loss"] == (20, 1)


def test_what_a_finished_example_left_waits_for_the_others():
    cell = nn.RNNCell(3, 3).double()

    def walk(x, steps):
        h = x
        for _ in range(steps):
            h = cell(x, h)
            if h.sum().item() > 1e9:
                break
        return cell(x, cell(x, cell(x, h))).sum()  # not read

    def run(mapped):
        return mapped(walk, vectors(5), [1, 2, 3, 4, 4])

    both(run)
    kinds = {kind.name: (kind.nodes, kind.groups) for kind in wf.batching.last().kinds}
    # One group each time they read, and the chain that all end with.
    assert kinds["RNNCell"] == (14 + 15, 4 + 1)


@pytest.mark.parametrize("first, second, word", [
    (lambda x, w: x @ w, lambda x, w: x.sin(), "different ops"),
    (lambda x, w: x.sum(0), lambda x, w: x.sum(0, keepdim=True), "keepdim"),
    (lambda x, w: x.sin(), lambda x, w: x.expand(2, 3).clone().sin(), "shape"),
    (lambda x, w: x.sin(), lambda x, w: x[:2].clone().sin(), "ran together"),
    (lambda x, w: x.sin(), lambda x, w: x.sin().sin(), "depth"),
    (lambda x, w: (h := x.sin(), h.sum().item())[0], lambda x, w: (x.cos().sum().item(), x.sin())[1], "round"),
    (lambda x, w: x @ w, lambda x, w: x @ (w * 2), "shared"),
])  # fmt: skip
def test_why_two_calls_ran_apart(first, second, word):
    w = weight(3, 3)
    xs = vectors(2, grad=False)
    results = wf.map(lambda f, x: f(x, w), [first, second], xs)
    assert word in wf.batching.last().why_apart(*results)


def test_calls_of_two_layers_are_told_apart():
    one, other = wf.nn.Linear(3, 3), wf.nn.Linear(3, 3)
    a, b = wf.map(lambda x, i: (one if i else other)(x), [wf.randn(3)] * 2, range(2))
    assert "two objects" in wf.batching.last().why_apart(a, b)
    c, d = wf.map(lambda x: one(x), [wf.randn(3), wf.randn(2, 3)])
    assert "different shapes" in wf.batching.last().why_apart(c, d)

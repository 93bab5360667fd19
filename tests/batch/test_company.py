"""`wf.map` beside all else Wayfare has: compiled functions, transforms, nesting, modules, random numbers, training."""

import threading

import numpy as np
import pytest

import wayfare as wf
from tests.batch.checks import agree, differentiate, equal, numbers, vectors, weight
from wayfare import nn
from wayfare.nn import functional as F

# -- other ways of running ----------------------------------------------------------------------------------------


def test_checkpoint_inside_and_around():
    w = weight(3, 3)

    def inside(x):
        return wf.checkpoint(lambda t: F.dropout((t @ w).tanh(), 0.5), x, use_reentrant=False)

    def dropped(x):
        return F.dropout((x @ w).tanh(), 0.5)

    agree(inside, xs := vectors(), leaves=[w, *xs])
    found = []
    for batch in (False, True):
        xs, w.grad = vectors(), None
        wf.manual_seed(1)

        def around(*xs, batch=batch):
            return wf.stack(wf.map(dropped, xs, batch=batch))

        out = wf.checkpoint(around, *xs, use_reentrant=False)
        differentiate([out], [])
        found.append([out.detach(), w.grad, [x.grad for x in xs]])
    equal(found[1], found[0])


def test_compiled_callees():
    w = weight(3, 3)

    @wf.compile
    def cell(x, h):
        return (x @ w + h).tanh()

    @wf.compile
    def branching(x):
        if x.sum() > 0:
            return x * 2
        return x.sin()

    def function(x):
        h = x
        for _ in range(3):
            h = cell(x, h)
        return branching(h)

    for _ in range(3):
        agree(function, xs := vectors(6), leaves=[w, *xs])


@pytest.mark.parametrize("count", [1, 4])
def test_compiled_callers(count):
    w = weight(3, 3)

    def step(xs):
        results = wf.map(lambda x: (x @ w).tanh() if x.sum() > 0 else x @ w, xs)
        loss = sum((r * r).sum() for r in results)
        loss.backward()
        return loss.detach()

    compiled = wf.compile(step)
    found = []
    for way in (step, compiled):
        seen = []
        for call in range(5):
            w.grad = None
            xs = vectors(count, start=10 * (call // 2))
            seen.append([way(xs), w.grad.clone(), [x.grad for x in xs]])
        found.append(seen)
    equal(found[1], found[0])


def test_fused_composites_inside():
    @wf.fused
    def mix(x, y):
        return (x * y).tanh() + x

    agree(lambda x: mix(x, x + 1) * mix(x, x), xs := vectors(), leaves=xs)


def test_vmap_inside_and_around():
    w = weight(3, 3)
    agree(lambda x: wf.vmap(lambda v: (v * w).sum(0))(x), xs := vectors(), leaves=[w, *xs])
    stacked = numbers(5, 3, seed=3, grad=True)
    got = wf.vmap(lambda v: sum(wf.map(lambda i: (v @ w) * i, range(3))))(stacked)
    want = wf.vmap(lambda v: sum((v @ w) * i for i in range(3)))(stacked)
    equal(got, want)


def test_functional_transforms_inside_and_around():
    w = weight(3, 3)
    agree(lambda x: wf.func.grad(lambda v: (v @ w.detach()).sin().sum())(x), vectors(grad=False))

    def total(w):
        return sum(r.sum() for r in wf.map(lambda x: (x @ w).sin(), vectors(grad=False)))

    def loop(w):
        return sum((x @ w).sin().sum() for x in vectors(grad=False))

    equal(wf.func.grad(total)(w.detach()), wf.func.grad(loop)(w.detach()))
    equal(wf.func.hessian(total)(w.detach()), wf.func.hessian(loop)(w.detach()))


def test_a_custom_function_inside():
    class Cube(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x, power):
            ctx.save_for_backward(x)
            assert type(x) is wf.Tensor and x.numpy(force=True).shape == (3,)
            return x**power

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g, None

    w = weight(3, 3)
    agree(lambda x: Cube.apply((x @ w).tanh(), 3) + x, xs := vectors(), leaves=[w, *xs])


def test_numpy_inside():
    w = weight(3, 3)

    def function(x):
        h = (x @ w).detach()
        return wf.from_numpy(np.sin(h.numpy())) * x, np.asarray(h).sum().item(), h.tolist()

    agree(function, xs := vectors(), leaves=[w, *xs])


# -- nesting ----------------------------------------------------------------------------------------------------------


def test_maps_in_maps():
    w = weight(3, 3)

    def inner(row, x):
        h = (row @ w).tanh()
        return h if h.sum() > 0 else h * x

    def outer(m, x):
        rows = wf.map(inner, m, [x] * len(m))
        return sum(rows), wf.map(lambda r: r.sum(), rows)

    ms = [numbers(2 + i % 2, 3, seed=30 + i, grad=True) for i in range(4)]
    agree(outer, ms, xs := vectors(), leaves=[w, *ms, *xs])


def test_a_block_around_a_loop():
    w, xs = weight(3, 3), vectors()

    def work():
        out = []
        for x in xs:
            h = (x @ w).tanh()
            if h.sum() > 0:
                h = h * 2
            out.append(h)
        return out

    found = []
    for batch in (False, True):
        w.grad = None
        if batch:
            with wf.batching():
                with wf.batching():
                    results = work()
                results += wf.map(lambda x: x @ w, xs)
        else:
            results = work() + [x @ w for x in xs]
        found.append([results, differentiate(results, [w])])
    equal(found[1], found[0])


def test_backward_within_a_block():
    w, xs = weight(3, 3), vectors()
    want = wf.autograd.grad(sum((x @ w).tanh().sum() for x in xs), [w])[0]
    with wf.batching():
        loss = sum((x @ w).tanh().sum() for x in xs)
        loss.backward()
        assert w.grad.sum().item() == pytest.approx(want.sum().item())
    equal(w.grad, want)


def test_an_optimiser_step_within_a_block():
    found = []
    for batch in (False, True):
        wf.manual_seed(0)
        model = nn.Linear(3, 3).double()
        opt = wf.optim.Adam(model.parameters(), lr=0.1)

        def train(model=model, opt=opt):
            for _ in range(3):
                opt.zero_grad()
                sum((model(x) ** 2).sum() for x in vectors(grad=False)).backward()
                opt.step()

        if batch:
            with wf.batching():
                train()
        else:
            train()
        found.append(dict(model.state_dict()))
    equal(found[1], found[0])


# -- modules, random numbers, training ----------------------------------------------------------------------------


def test_module_hooks_run_for_each_example():
    layer = nn.Linear(3, 3).double()
    seen = []
    layer.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    layer.register_forward_hook(lambda m, args, out: seen.append(tuple(out.shape)) or out + 1)
    agree(layer, xs := vectors(), leaves=[*layer.parameters(), *xs])
    assert seen == [(3,)] * 8


def test_module_backward_hooks():
    found = []
    for batch in (False, True):
        wf.manual_seed(0)
        layer = nn.Linear(3, 3).double()
        layer.register_full_backward_hook(lambda m, given, taken: (given[0] * 2,))
        xs = vectors()
        found.append([differentiate(wf.map(layer, xs, batch=batch), [*layer.parameters(), *xs])])
    equal(found[1], found[0])


def test_running_statistics_of_batch_norm():
    found = []
    for batch in (False, True):
        norm = nn.BatchNorm1d(3).double()
        rows = [numbers(2 + i % 3, 3, seed=i, grad=True) for i in range(5)]
        results = wf.map(lambda m, norm=norm: norm(m) if m.sum() > 0 else norm(m * 2), rows, batch=batch)
        found.append([results, dict(norm.state_dict()), differentiate(results, [*norm.parameters(), *rows])])
    equal(found[1], found[0])


def test_every_example_has_its_own_random_stream():
    xs = vectors(6, grad=False)
    wf.manual_seed(1)
    alone = wf.map(lambda x: F.dropout(x, 0.5), xs[:1])
    wf.manual_seed(1)
    together = wf.map(lambda x: F.dropout(x, 0.5), xs)
    equal(together[0], alone[0])
    draws = wf.map(lambda i: wf.rand(4), range(6))
    assert len({tuple(d.tolist()) for d in draws}) == 6
    assert wf.map(lambda i: wf.rand(4), range(1))[0].tolist() != draws[0].tolist()


def test_random_numbers_are_those_of_the_loop():
    def function(x):
        a = wf.rand(3) + wf.randn_like(x)
        if a.sum() > 0.5:
            a = a + wf.randint(0, 5, (3,))
        return F.dropout(a, 0.5), wf.randperm(4), wf.bernoulli(a.sigmoid()), wf.rand(()).item()

    agree(function, vectors(6))


def test_explicit_generators():
    found = []
    for batch in (False, True):
        own = [wf.Generator().manual_seed(i) for i in range(4)]
        results = wf.map(lambda g: (wf.rand(3, generator=g), wf.randn(2, generator=g)), own, batch=batch)
        found.append([results, [g.get_state().tolist() for g in own]])
    equal(found[1], found[0])


def test_seeding_inside_an_example_stays_there():
    wf.manual_seed(3)
    state = wf.map(lambda i: wf.rand(2), range(3), batch=False)
    after = wf.rand(2)
    wf.manual_seed(3)

    def seeded(i):
        if i == 1:
            wf.manual_seed(77)
        return wf.rand(2)

    results = wf.map(seeded, range(3))
    equal([results[0], results[2]], [state[0], state[2]])
    assert wf.rand(2).tolist() == after.tolist()


def test_threads_with_their_own_maps():
    w = weight(3, 3)
    want = [r.tolist() for r in wf.map(lambda x: (x @ w).tanh(), vectors(8), batch=False)]
    failures = []

    def work():
        try:
            for _ in range(10):
                results = wf.map(lambda x: (x @ w).tanh() if (x @ w).sum() > -99 else None, vectors(8))
                np.testing.assert_allclose([r.tolist() for r in results], want, atol=1e-12)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class Reader(nn.Module):
    """A classifier of sequences whose forward works example by example."""

    def __init__(self, batch):
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(8, 4), nn.LSTMCell(4, 5), nn.Linear(5, 2)
        self.drop, self.batch = nn.Dropout(0.2), batch

    def one(self, words):
        state = None
        for word in words:
            state = self.cell(self.drop(self.embed(word)), state)
        return self.out(state[0])

    def forward(self, sentences):
        return wf.stack(wf.map(self.one, [s[: 2 + i % 3] for i, s in enumerate(sentences)], batch=self.batch))


def test_fit_with_a_model_that_maps():
    words = wf.from_numpy(np.random.default_rng(0).integers(0, 8, (12, 4)))
    labels = words[:, 0] % 2
    found = []
    for batch in (False, True):
        wf.manual_seed(2)
        model = Reader(batch).double()
        data = [(words[i : i + 4], labels[i : i + 4]) for i in range(0, 12, 4)]
        optimizer = wf.optim.Adam(model.parameters(), lr=0.05)
        history = wf.train.fit(model, data, optimizer=optimizer, loss=F.cross_entropy, epochs=3, validation=data,
                               clip=1.0, progress=False)  # fmt: skip
        found.append([dict(model.state_dict()), [row["loss"] for row in history]])
    equal(found[1], found[0], 1e-6)
    assert found[0][1][-1] < found[0][1][0]

"""Compiled steps on a device, after the warm-up: every call replays one graph, wherever batches and results lie."""

import warnings

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from tests.gpu.conftest import REAL
from tests.gpu.emulation.host import COMPILER
from wayfare import nn
from wayfare.compiler.costs import Budget, Timings
from wayfare.core.counters import counted
from wayfare.core.spec import BFLOAT16
from wayfare.ir.plan.actions import MatmulAction

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile CUDA text for the CPU")


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Replay whatever it costs: the emulation says nothing about the speed of a GPU."""
    monkeypatch.setattr(Timings, "loses", lambda self: None)
    monkeypatch.setattr(Budget, "allows", lambda self: True)


def batches_of(count, device):
    rng = np.random.default_rng(0)
    x = [rng.standard_normal((6, 4)).astype(np.float32) for _ in range(count)]
    return [(wf.tensor(a).to(device), wf.tensor(rng.integers(0, 3, 6)).to(device)) for a in x]


def training(device, optimiser="Adam", compiled=True, **options):
    wf.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
    opt = getattr(wf.optim, optimiser)(net.parameters(), lr=0.05, **options)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return (wf.compile(step, check=False) if compiled else step), net


@pytest.mark.parametrize("keeps", [False, True], ids=["dropped", "kept"])
def test_a_hundred_batches_at_a_hundred_addresses_are_one_graph(cuda, keeps):
    run, net = training("cuda")
    want, reference = training("cpu", compiled=False)
    losses, replayed, captured = [], 0, 0
    for k, (x, y) in enumerate(batches_of(100, "cuda")):
        with counted() as counts:
            loss = run(x, y)
        losses.append(loss if keeps else loss.item())
        captured += counts.graphs_captured
        if k >= 8:
            assert counts.graphs_captured == 0 and counts.graphs_replayed == 1, k
            assert counts.device_calls <= 2  # what has changed is told by one launch, the graph is another
            replayed += 1
    expected = [want(x, y).item() for x, y in batches_of(100, "cpu")]
    assert replayed == 92 and 1 <= captured <= 4
    np.testing.assert_allclose([float(loss) for loss in losses], expected, rtol=1e-3, atol=1e-5)
    for mine, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach().cpu().numpy(), theirs.detach().numpy(), rtol=1e-3, atol=1e-4)


def test_gradients_that_stay_are_results_like_others(cuda):
    """They are new arrays at each call, which a caller may keep."""
    run, net = training("cuda", "SGD")
    want, reference = training("cpu", "SGD", compiled=False)
    kept, expected = [], []
    for (x, y), (a, b) in zip(batches_of(12, "cuda"), batches_of(12, "cpu"), strict=True):
        with counted() as counts:
            run(x, y)
        want(a, b)
        kept.append([p.grad for p in net.parameters()])
        expected.append([p.grad for p in reference.parameters()])
    assert counts.graphs_replayed == 1
    for mine, theirs in zip(kept, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one.cpu().numpy(), other.numpy(), rtol=1e-3, atol=1e-5)


def test_numbers_that_stay_the_same_are_sent_once(cuda):
    w = nn.Parameter(wf.ones(3, device="cuda"))
    opt = wf.optim.SGD([w], lr=0.5)

    @wf.compile(check=False)
    def step(x):
        (w * x).sum().backward()
        opt.step()
        opt.zero_grad()

    x = wf.ones(3, device="cuda")
    for _ in range(8):
        step(x)
    with counted() as counts:
        step(x)
    assert (counts.graphs_replayed, counts.device_calls) == (1, 1)  # nothing but the graph
    opt.param_groups[0]["lr"] = 2.0
    step(x)
    np.testing.assert_allclose(w.detach().cpu().numpy(), [1 - 0.5 * 9 - 2.0] * 3)


def test_weights_that_are_replaced_are_found(cuda):
    w = wf.ones(3, device="cuda")
    held = nn.Module()
    held.w = nn.Parameter(w)

    @wf.compile(check=False)
    def f(x):
        return (x * held.w).sum()

    with wf.no_grad():
        for k in range(12):
            if k in (5, 8):
                held.w.data = wf.full((3,), float(k), device="cuda")
            x = wf.full((3,), 2.0, device="cuda")
            assert f(x).item() == pytest.approx(6 * (1 if k < 5 else 5 if k < 8 else 8))


@pytest.mark.skipif(REAL, reason="a GPU captures")
def test_a_list_that_cannot_be_captured_is_launched(cuda, monkeypatch):
    tries = []

    def refuse(work):
        tries.append(work)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda.launcher, "capture", refuse, raising=False)
    run, _ = training("cuda")
    want, _ = training("cpu", compiled=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        losses = [run(x, y).item() for x, y in batches_of(12, "cuda")]
    np.testing.assert_allclose(losses, [want(x, y).item() for x, y in batches_of(12, "cpu")], rtol=1e-4)
    assert len(tries) == 1 and sum("CUDA graph" in str(w.message) for w in told) == 1
    data = run.explain().data
    assert data["replayed"] >= 9, str(run.explain())


def test_a_decision_is_one_copy_and_what_follows_is_a_graph(cuda, counts):
    w = wf.randn(4, 4, device="cuda")

    @wf.compile(check=False)
    def f(x):
        x = (x @ w).tanh()
        x = x * 2 if x.sum() > 0 else x - 1
        return (x @ w).exp()

    xs = [wf.full((3, 4), 0.1 * (1 + k), device="cuda") for k in range(3)]
    with wf.no_grad():
        for k in range(12):
            f(xs[k % 3])
        for x in xs:
            counts.reset()
            with counted() as found:
                made = f(x)
            assert counts.to_host == 1 and found.graphs_replayed == 2
            np.testing.assert_allclose(made.cpu().numpy(), f.__wrapped__(x).cpu().numpy(), rtol=1e-4)


def test_a_class_out_of_range_is_told_with_the_next_value(cuda):
    run, _ = training("cuda")
    batches = batches_of(9, "cuda")
    for x, y in batches[:8]:
        run(x, y)
    wf.cuda.synchronize()
    wrong = wf.tensor([0, 1, 5, 0, 0, 0]).cuda()
    with counted() as counts:
        run(batches[0][0], wrong)
        run(*batches[1])  # the flag stays
        loss = run(*batches[2])
    assert counts.graphs_replayed + counts.graphs_captured == 3
    with pytest.raises(IndexError, match=r"cross_entropy: a class is out of range for 3 classes \(test_replay"):
        loss.item()
    loss.item()
    run(*batches[3]).item()


def test_all_parameters_are_one_launch(cuda, launched):
    run, _ = training("cuda", weight_decay=0.1)
    ((x, y),) = batches_of(1, "cuda")
    for _ in range(8):
        run(x, y)
    launched.clear()
    run(x, y)
    assert sum(name.endswith("_m") for name in launched) == 1  # an update that reads its numbers from memory


def test_many_weights_have_a_fast_path(cuda):
    weights = [nn.Parameter(wf.full((2,), float(k), device="cuda")) for k in range(100)]
    opt = wf.optim.Adam(weights, lr=0.5)

    @wf.compile(check=False)
    def step(x):
        total = x
        for w in weights:
            total = total * 0.5 + w
        total.sum().backward()
        opt.step()
        opt.zero_grad()

    x = wf.ones(2, device="cuda")
    for _ in range(6):
        step(x)
    with counted() as counts:
        step(x)
    assert step._fast_paths.last is not None and counts.graphs_replayed == 1 and counts.device_calls == 2
    np.testing.assert_allclose(weights[99].detach().cpu().numpy(), [99 - 0.5 * 7] * 2, rtol=1e-3)


def test_parameters_of_several_dtypes_and_layouts_in_one_optimiser(cuda):
    """Each mix of dtypes is a launch; what has gaps, or another order than its gradient, is copied."""
    rng = np.random.default_rng(0)
    made = [rng.standard_normal((3, 4)).astype(np.float32) for _ in range(3)]

    def trained(device, compiled):
        base = wf.tensor(made[2]).to(device)
        weights = [nn.Parameter(wf.tensor(made[0]).to(device)), nn.Parameter(wf.tensor(made[1]).to(device).bfloat16()),
                   nn.Parameter(base[:, ::2])]  # fmt: skip
        opt = wf.optim.Adam(weights, lr=0.1)

        def step(x):
            first, second, third = weights
            loss = (x @ first).square().sum() + (second * 2).float().sum()
            loss = loss + third.square().sum() + third.t().exp().sum()
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        run = wf.compile(step, check=False) if compiled else step
        x = wf.ones(2, 3, device=device)
        for _ in range(6):
            run(x)
        return [w.detach().float().cpu().numpy() for w in weights], base.cpu().numpy(), run

    mine, base, run = trained("cuda", True)
    theirs, other, _ = trained("cpu", False)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-2, atol=1e-3)
    np.testing.assert_allclose(base, other, rtol=1e-3, atol=1e-4)  # nothing between its elements was written
    assert run.explain().data["replayed"] >= 3, str(run.explain())
    (plan,) = [block.plan for entries in run._cache.entries.values() for e in entries for block in e.tree.walk()]
    assert not plan.in_python, plan.describe()


def test_a_step_with_dropout_has_a_fast_path(cuda):
    def run(device):
        wf.manual_seed(3)
        f = wf.compile(lambda x: F.dropout(x, 0.5) * 2, check=False)
        with wf.no_grad():
            made = [f(wf.ones(20, device=device)).cpu().numpy() for _ in range(8)]
        return made, f

    (mine, f), (theirs, _) = run("cuda"), run("cpu")
    np.testing.assert_array_equal(mine, theirs)
    assert f._fast_paths.last is not None


@pytest.mark.parametrize("first", [True, False], ids=["time_first", "batch_first"])
@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_loop_over_time_is_two_launches_for_each_step_and_direction(cuda, cell, first):
    """What needs no step before is one product for all steps, also for the gradients of weights and biases."""
    length, sizes = 7, (5, 6)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((length, 3, 5) if first else (3, length, 5)).astype(np.float32) for _ in range(3)]

    def trained(device, compiled):
        wf.manual_seed(0)
        net = cell(*sizes).to(device)
        opt = wf.optim.SGD(net.parameters(), lr=0.1)

        def step(x):
            state = None
            for t in range(length):
                state = net(x[t] if first else x[:, t], state)
            loss = (state[0] if cell is nn.LSTMCell else state).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        run = wf.compile(step, check=False) if compiled else step
        losses = [run(wf.tensor(given[k % 3]).to(device)).item() for k in range(7)]
        return losses, [p.detach().cpu().numpy() for p in net.parameters()], run

    losses, weights, run = trained("cuda", True)
    want, after, _ = trained("cpu", False)
    np.testing.assert_allclose(losses, want, rtol=1e-4)
    for mine, theirs in zip(weights, after, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-6)
    (plan,) = [block.plan for entries in run._cache.entries.values() for e in entries for block in e.tree.walk()]
    assert plan.matmuls <= 2 * length + 4, plan.describe()
    assert plan.kernels <= (4 if cell is nn.GRUCell else 2) * length + 10, plan.describe()


def test_attention_in_bfloat16_is_products_of_bfloat16(cuda):
    wf.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).cuda()
    opt = wf.optim.SGD(layer.parameters(), lr=0.01)

    def step(x):
        with wf.autocast("cuda", dtype=wf.bfloat16):
            loss = layer(x).float().square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    run = wf.compile(step, check=False)
    x = wf.randn(3, 5, 8, device="cuda")
    losses = [run(x).item() for _ in range(4)]
    (plan,) = [block.plan for entries in run._cache.entries.values() for e in entries for block in e.tree.walk()]
    dtypes = {read.dtype for action in plan._actions if isinstance(action, MatmulAction) for read in action.sides[:2]}
    assert not plan.in_python and plan.matmuls == 17 and dtypes == {BFLOAT16}, plan.describe()
    assert losses[3] < losses[0] and all(np.isfinite(losses))


class Clock:
    """A clock of a device that is behind."""

    def __init__(self, time):
        self.time = time
        self.there = False

    def stop(self):
        pass

    def seconds(self):
        return self.time if self.there else None


def test_the_account_waits_for_no_device():
    timings = Timings()
    clocks = [Clock(k) for k in range(3)]
    for clock in clocks:
        timings.stopped(timings.calls, clock)
    assert not timings.calls
    clocks[0].there = clocks[2].there = True
    timings.stopped(timings.eager, Clock(9))
    assert list(timings.calls) == [0]  # in their order
    clocks[1].there = True
    timings.stopped(timings.eager, Clock(9))
    assert list(timings.calls) == [0, 1, 2] and not timings.eager


def test_nothing_waits_for_the_account(cuda, counts):
    """The times of calls come from the device; asking for them never waits."""
    run, _ = training("cuda")
    run = wf.compile(run.__wrapped__)
    waited = []
    real = cuda.seconds_between

    def seconds(first, last):
        assert cuda.has_passed(last)
        waited.append(1)
        return real(first, last)

    cuda.seconds_between = seconds
    for x, y in batches_of(30, "cuda"):
        run(x, y)
    assert waited

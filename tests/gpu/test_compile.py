"""`wf.compile` on a device: recorded there, planned as launches, replayed as CUDA graphs. The CPU is the referee."""

import re
import warnings

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from tests.gpu.emulation.host import COMPILER
from wayfare import nn
from wayfare.codegen.cuda import commands
from wayfare.compiler.costs import Budget, Timings
from wayfare.core.counters import counted

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++ to compile CUDA text for the CPU")


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Replay whatever it costs: the emulation says nothing about the speed of a GPU."""
    monkeypatch.setattr(Timings, "loses", lambda self: None)
    monkeypatch.setattr(Budget, "allows", lambda self: True)


def trained(model, batches, device, compiled, optimiser="Adam", steps=7):
    """The losses and weights of some steps; the model and the batches are made anew."""
    wf.manual_seed(0)
    net = model().to(device)
    opt = getattr(wf.optim, optimiser)(net.parameters(), lr=1e-2)

    def step(*batch):
        opt.zero_grad()
        loss = net(*batch)
        loss.backward()
        opt.step()
        return loss

    run = wf.compile(step) if compiled else step
    given = [[t.to(device) for t in batch] for batch in batches()]
    losses = [run(*given[i % len(given)]).item() for i in range(steps)]
    return losses, [p.detach().cpu().numpy() for p in net.parameters()], run


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


class Sequence(nn.Module):
    """A cell in a Python loop."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(3, 4), nn.Linear(4, 1)

    def forward(self, x, y):
        h = c = x.new_zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return F.mse_loss(self.head(h)[:, 0], y)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.block(x).square().mean()


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        picture = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2))
        self.net = nn.Sequential(picture, nn.Flatten(), nn.Linear(12, 2))

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


def numbers(*shape, seed=0):
    return wf.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


MODELS = {
    "classifier": (Classifier, lambda: [(numbers(5, 4, seed=s), wf.tensor([0, 2, 1, 1, 0])) for s in range(2)]),
    "sequence": (Sequence, lambda: [(numbers(2, 5, 3, seed=s), numbers(2, seed=9 + s)) for s in range(2)]),
    "attention": (Attention, lambda: [(numbers(2, 4, 8, seed=s),) for s in range(2)]),
    "pictures": (Pictures, lambda: [(numbers(3, 1, 4, 4, seed=s), wf.tensor([0, 1, 1])) for s in range(2)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step(cuda, name):
    model, batches = MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        losses, weights, run = trained(model, batches, "cuda", True, "SGD")
    want, after, _ = trained(model, batches, "cpu", False, "SGD")
    np.testing.assert_allclose(losses, want, rtol=2e-4)
    for mine, theirs in zip(weights, after, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=1e-5)
    assert run.explain().data["replayed"] > 0, str(run.explain())


@pytest.mark.parametrize("optimiser", ["Adam", "AdamW", "RMSprop", "Adagrad"])
def test_optimisers_inside_a_step(cuda, optimiser):
    model, batches = MODELS["classifier"]
    losses, _, run = trained(model, batches, "cuda", True, optimiser)
    want, _, _ = trained(model, batches, "cpu", False, optimiser)
    np.testing.assert_allclose(losses, want, rtol=2e-4)
    assert run.explain().data["replayed"] > 0


def test_a_step_is_few_launches_and_becomes_one_graph(cuda):
    @wf.compile
    def f(x, w):
        return (x @ w).tanh().softmax(-1) * 2 + 1

    x, w = wf.randn(4, 3, device="cuda"), wf.randn(3, 5, device="cuda")
    with wf.no_grad():
        want = (x @ w).tanh().softmax(-1) * 2 + 1
        made = []
        replayed = 0
        for _ in range(20):
            with counted() as counts:
                made = f(x, w)
            replayed += counts.graphs_replayed
            np.testing.assert_allclose(made.cpu().numpy(), want.cpu().numpy(), rtol=1e-5)
    plan = f.explain()
    assert "1 kernel, 1 matmul" in str(plan), str(plan)
    assert replayed > 0


def test_decisions_on_values(cuda):
    @wf.compile
    def f(x):
        steps = 0
        while x.norm() > 1:
            x = x * 0.5
            steps += 1
        return x if x.sum() > 0 else -x, steps

    for seed in range(12):
        x = numbers(6, seed=seed % 4) * (1 + seed % 3)
        (made, steps), (want, wanted) = f(x.cuda()), f.__wrapped__(x)
        assert steps == wanted
        np.testing.assert_allclose(made.cpu().numpy(), want.numpy(), rtol=1e-5)


def test_gradients_of_a_compiled_function_in_eager_code(cuda):
    @wf.compile
    def f(x, w):
        return F.layer_norm(F.gelu(x @ w), (5,))

    def grads(device, function):
        x, w = (t.to(device).requires_grad_() for t in (numbers(4, 3), numbers(3, 5, seed=1)))
        for _ in range(5):
            x.grad = w.grad = None
            (function(x, w).square().mean() * 2).backward()
        return x.grad.cpu().numpy(), w.grad.cpu().numpy()

    for mine, theirs in zip(grads("cuda", f), grads("cpu", f.__wrapped__), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-6)


def test_second_derivatives_of_a_compiled_function(cuda):
    @wf.compile
    def f(x):
        return (x * x.tanh()).sum()

    def second(device, function):
        x = numbers(5).to(device).requires_grad_()
        for _ in range(4):
            (g,) = wf.autograd.grad(function(x), x, create_graph=True)
            (h,) = wf.autograd.grad((g * g).sum(), x)
        return h.cpu().numpy()

    np.testing.assert_allclose(second("cuda", f), second("cpu", f.__wrapped__), rtol=1e-4)


def test_nothing_crosses_to_the_host_in_a_replay(cuda, counts):
    model, batches = MODELS["classifier"]
    _, _, run = trained(model, batches, "cuda", True, steps=9)
    x, y = (t.cuda() for t in batches()[0])
    for _ in range(3):
        run(x, y)
    found = []
    for _ in range(20):
        counts.reset()
        run(x, y)
        found.append((counts.to_host, counts.synchronised))
    assert (0, 0) in found  # others are checks of the replay against Python


def test_a_function_on_several_devices_runs_as_python_and_says_so(cuda):
    @wf.compile
    def f(x):
        return x.cpu() * 2

    x = wf.ones(3, device="cuda")
    with pytest.warns(UserWarning, match="several devices"):
        for _ in range(4):
            assert f(x).tolist() == [2.0, 2.0, 2.0]


def test_the_same_function_on_both_devices(cuda):
    @wf.compile
    def f(x):
        return (x * 3).sum(0)

    x = numbers(3, 2)
    for _ in range(4):
        here, there = f(x), f(x.cuda())
        assert here.device.type == "cpu" and there.device.type == "cuda"
        np.testing.assert_allclose(there.cpu().numpy(), here.numpy(), rtol=1e-6)


def test_a_device_that_is_not_the_current_one(cuda, two_gpus):
    @wf.compile
    def f(x, w):
        return (x @ w).tanh() + 0.5

    x, w = numbers(3, 4), numbers(4, 2, seed=1)
    for _ in range(6):
        made = f(x.to("cuda:1"), w.to("cuda:1"))
        assert made.device == wf.device("cuda:1") and cuda.current() == 0
        np.testing.assert_allclose(made.cpu().numpy(), ((x @ w).tanh() + 0.5).numpy(), rtol=1e-5)


def test_arrays_of_another_layout(cuda):
    @wf.compile
    def f(x):
        return (x + 1).sum(1)

    x = numbers(4, 6).cuda()
    for given in (x, x.T, x[:, ::2], x[1:]):
        for _ in range(4):
            np.testing.assert_allclose(f(given).cpu().numpy(), (given.cpu() + 1).sum(1).numpy(), rtol=1e-5)


def test_dropout_is_the_same_on_both_devices(cuda):
    @wf.compile
    def f(x):
        return F.dropout(x, 0.5) * 2

    def run(device):
        wf.manual_seed(3)
        return [f(wf.ones(20, device=device)).cpu().numpy() for _ in range(6)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for mine, theirs in zip(run("cuda"), run("cpu"), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_fused_functions_are_one_launch(cuda):
    bias = wf.randn(7)

    @wf.fused
    def gate(x, y, bias):
        z = (x * y + bias).sigmoid()
        return z * x.tanh(), z.sum(-1)

    def run(device):
        x, y, b = (t.to(device).requires_grad_() for t in (numbers(4, 7), numbers(4, 7, seed=1), bias))
        with counted() as forward:
            a, s = gate(x, y, b)
        with counted() as backward:
            (a.sum() + (s * s).sum()).backward()
        return forward.kernels_run, [t.detach().cpu().numpy() for t in (a, s, x.grad, y.grad, b.grad)], backward

    count, made, _ = run("cuda")
    assert count == 1
    for mine, theirs in zip(made, run("cpu")[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_fused_function_with_captured_tensors(cuda):
    w = wf.randn(5, device="cuda")
    f = wf.fused(lambda x: (x * w).relu() + 1)
    x = numbers(3, 5)
    want = (x * w.cpu()).relu() + 1
    np.testing.assert_allclose(f(x.cuda()).cpu().numpy(), want.numpy(), rtol=1e-6)
    with pytest.raises(wf.errors.OperationError, match="different devices"):
        f(x)


@pytest.mark.parametrize("width, masked", [(8, True), (8, False), (64, False)])  # heads of 32 are attended in tiles
@pytest.mark.parametrize("dtype", [wf.bfloat16, wf.float16])
def test_matmuls_under_autocast_are_narrow_and_attention_is_part_of_the_plan(cuda, dtype, width, masked, monkeypatch):
    """Products read narrow matrices, so that tensor cores multiply them, and give float32."""
    wf.manual_seed(0)
    net = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True).to("cuda")
    x = wf.randn(2, 5, width).to("cuda")
    mask = nn.Transformer.generate_square_subsequent_mask(5).to("cuda") if masked else None

    def run(x):
        with wf.autocast("cuda", dtype=dtype):
            loss = net(x, src_mask=mask).float().square().mean()
        return loss, wf.autograd.grad(loss, list(net.parameters()))

    planned, gemm_calls = [], commands.gemm_calls

    def noted(*given):
        calls = gemm_calls(*given)
        planned.extend((call.dtype, call.out) for call, *_ in calls)
        return calls

    monkeypatch.setattr(commands, "gemm_calls", noted)
    want, grads = run(x)
    f = wf.compile(run)
    for _ in range(4):
        got, made = f(x)
    assert planned and set(planned) == {("bf16" if dtype is wf.bfloat16 else "f16", "f32")}
    assert "in Python" not in str(f.explain()) and "as plain Python" not in str(f.explain())
    np.testing.assert_allclose(got.item(), want.item(), rtol=1e-2)
    for a, b in zip(made, grads, strict=True):
        scale = float(b.abs().max())
        np.testing.assert_allclose(a.float().cpu().numpy(), b.float().cpu().numpy(), atol=0.03 * scale + 1e-6)


def test_constants_that_do_not_lie_in_order(cuda):
    """A plan reads a transposed constant as it lies on the device."""
    table = np.array([[1.0, 2.0], [3.0, 4.0]])

    @wf.compile
    def run(x):
        fresh = wf.tensor(table, device="cuda")
        return wf.vmap(lambda row: fresh @ row[:2])(x)

    x = numbers(9, 4).double().to("cuda")
    for _ in range(4):
        found = run(x)
    np.testing.assert_allclose(found.cpu().numpy(), x.cpu().numpy()[:, :2] @ table.T)
    assert "found to differ" not in str(run.explain())


def test_gradients_of_slices_that_overlap(cuda):
    @wf.compile
    def run(x):
        y = x * x.sum()
        (g,) = wf.autograd.grad((y[:3] * y[1:]).sum() + (y[1:3] * 2).sum(), [x])
        return g

    for seed in range(4):
        x = numbers(4, seed=seed).to("cuda").requires_grad_()
        found = run(x)
        y = x * x.sum()
        ((y[:3] * y[1:]).sum() + (y[1:3] * 2).sum()).backward()
        np.testing.assert_allclose(found.detach().cpu().numpy(), x.grad.cpu().numpy(), rtol=1e-5)
    assert "found to differ" not in str(run.explain())


def test_the_default_device_is_part_of_what_a_recording_depends_on(cuda):
    def step(x):
        return x * 2 + wf.ones(3) * wf.arange(3.0)

    run = wf.compile(step)
    there, here = wf.rand(3, device="cuda"), wf.rand(3)
    try:
        for round in range(6):
            for device, x in (("cuda", there), ("cpu", here)):
                wf.set_default_device(device)
                made, want = run(x + round), step(x + round)
                assert made.device == want.device == x.device
                np.testing.assert_array_equal(made.cpu().numpy(), want.cpu().numpy())
        told = str(run.explain())
        assert int(re.search(r"(\d+) replayed", told)[1]) >= 6 and told.count("step(f32[3])") == 2
        wf.set_default_device(None)
        with pytest.raises(RuntimeError, match="on different devices"):
            run(there)
    finally:
        wf.set_default_device(None)


def test_an_error_found_by_a_check_is_of_the_op_before(cuda):
    """It comes out of the call that read the value, and the compiled function is none the worse."""
    x, w = wf.rand(3, 4, device="cuda"), wf.rand(4, 4, device="cuda")
    run = wf.compile(lambda x: ((x @ w).tanh() @ w).exp(), check=True)
    run(x)
    for _ in range(2):
        x[wf.tensor([0, 7], device="cuda")]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(IndexError, match="index: an index is out of range for dimension 0 of size 3"):
                run(x)
            run(x)
    assert "plain Python" not in str(run.explain()), str(run.explain())

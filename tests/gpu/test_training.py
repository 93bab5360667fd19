"""Models on a device: layers, losses, optimisers, training, checkpoints; memory and copies are counted."""

import gc
import warnings

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import OperationError
from wayfare.ops.cuda import backend as cuda_backend

F = nn.functional


def image(*shape):
    return lambda: (wf.randn(*shape),)


def words(*shape):
    return lambda: (wf.randint(7, shape),)


LAYERS = {
    "Linear": (lambda: nn.Linear(4, 3), image(5, 4)),
    "Bilinear": (lambda: nn.Bilinear(2, 3, 4), lambda: (wf.randn(5, 2), wf.randn(5, 3))),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1), image(2, 2, 7)),
    "Conv2d": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), image(2, 2, 6, 5)),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2), image(1, 1, 3, 3, 3)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 2, stride=2), image(1, 2, 3, 3)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), image(4, 3, 2, 2)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3, momentum=None), image(4, 3)),
    "LayerNorm": (lambda: nn.LayerNorm(5), image(4, 5)), "GroupNorm": (lambda: nn.GroupNorm(2, 4), image(2, 4, 3)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True), image(2, 3, 4, 4)),
    "RMSNorm": (lambda: nn.RMSNorm(5), image(4, 5)),
    "Embedding": (lambda: nn.Embedding(7, 3, padding_idx=0), words(4, 5)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(7, 3), words(4, 5)),
    "RNN": (lambda: nn.RNN(3, 4, batch_first=True), image(2, 5, 3)),
    "LSTM": (lambda: nn.LSTM(3, 4, 2, bidirectional=True), image(5, 2, 3)),
    "GRU": (lambda: nn.GRU(3, 4), image(5, 2, 3)), "LSTMCell": (lambda: nn.LSTMCell(3, 4), image(2, 3)),
    "GRUCell": (lambda: nn.GRUCell(3, 4), image(2, 3)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda: (wf.randn(2, 3, 8),) * 3),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), image(2, 3, 8)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2, padding=1), image(1, 2, 5, 5)),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 1, 1), image(1, 2, 5, 5)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((2, 3)), image(1, 2, 5, 5)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), image(1, 2, 5, 5)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), image(1, 2, 3, 3)),
    "Dropout": (lambda: nn.Dropout(0.4), image(4, 5)), "Dropout2d": (lambda: nn.Dropout2d(0.5), image(2, 4, 3, 3)),
    "PReLU": (lambda: nn.PReLU(), image(4, 5)),
    "GELU": (lambda: nn.GELU(), image(4, 5)),
    "Softmax": (lambda: nn.Softmax(-1), image(4, 5)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), image(1, 4, 3, 3)), "Fold": (lambda: nn.Unfold(2), image(1, 2, 3, 3)),
}  # fmt: skip


def first_tensor(out):
    return out if isinstance(out, wf.Tensor) else first_tensor(out[0])


def through(make, given, device):
    """The result of a layer, and the gradients of its inputs and parameters."""
    wf.manual_seed(1)
    layer = make()
    inputs = [x.clone().to(device) for x in given()]
    for x in inputs:
        if x.is_floating_point():
            x.requires_grad_()
    layer.to(device)
    out = first_tensor(layer(*inputs))
    assert out.device.type == wf.device(device).type
    (out * out).sum().backward()
    found = [out, *[x.grad for x in inputs if x.requires_grad], *[p.grad for p in layer.parameters()], *layer.buffers()]
    assert all(t is None or t.device.type == out.device.type for t in found)
    return [None if t is None else t.detach().cpu().numpy() for t in found]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_the_cpu(cuda, name):
    make, given = LAYERS[name]
    for got, want in zip(through(make, given, "cuda"), through(make, given, "cpu"), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5) if want is not None else None


LOSSES = {
    "cross_entropy": lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
    "nll_loss": lambda x, t: F.nll_loss(x.log_softmax(1), t),
    "mse_loss": lambda x, t: F.mse_loss(x, x.detach() * 0.5), "l1_loss": lambda x, t: F.l1_loss(x, x.detach() * 0.5),
    "bce": lambda x, t: F.binary_cross_entropy_with_logits(x, (x.detach() > 0).float()),
    "huber": lambda x, t: F.huber_loss(x, x.detach() - 2),
    "kl_div": lambda x, t: F.kl_div(x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"),
    "multi_margin": lambda x, t: F.multi_margin_loss(x, t),
    "cosine": lambda x, t: 1 - F.cosine_similarity(x, x.detach() + 1).mean(),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_agrees_with_the_cpu(cuda, name):
    def run(device):
        wf.manual_seed(2)
        x = wf.randn(4, 5).to(device).requires_grad_()
        loss = LOSSES[name](x, wf.tensor([0, 4, 2, 2], device=device))
        loss.backward()
        return [loss.item(), x.grad.cpu().numpy()]

    for got, want in zip(run("cuda"), run("cpu"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


OPTIMISERS = {
    "SGD": lambda p: wf.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "plain SGD": lambda p: wf.optim.SGD(p, 0.1),
    "Adam": lambda p: wf.optim.Adam(p, 0.05, amsgrad=True),
    "AdamW": lambda p: wf.optim.AdamW(p, 0.05),
    "RMSprop": lambda p: wf.optim.RMSprop(p, 0.01, momentum=0.5),
    "Adagrad": lambda p: wf.optim.Adagrad(p, 0.1),
    "Adadelta": lambda p: wf.optim.Adadelta(p),
    "Adamax": lambda p: wf.optim.Adamax(p),
    "NAdam": lambda p: wf.optim.NAdam(p), "RAdam": lambda p: wf.optim.RAdam(p),
}  # fmt: skip


def model_and_data(device):
    wf.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
    x, t = wf.randn(32, 6), wf.randint(3, (32,))
    return model.to(device), x.to(device), t.to(device)


def train(device, make, steps=6):
    model, x, t = model_and_data(device)
    optimiser = make(model.parameters())
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), t)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.detach())
    return model, optimiser, losses


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_gives_the_same_losses(cuda, name):
    make = OPTIMISERS[name]
    _, there, losses = train("cuda", make)
    _, _, wanted = train("cpu", make)
    np.testing.assert_allclose([x.item() for x in losses], [x.item() for x in wanted], rtol=2e-3)
    states = [t for s in there.state.values() for t in s.values() if isinstance(t, wf.Tensor) and t.ndim]
    assert all(t.is_cuda for t in states)


def test_a_step_of_training_waits_for_nothing(cuda, counts):
    model, x, t = model_and_data("cuda")
    optimiser = wf.optim.Adam(model.parameters(), 0.01)

    def step():
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), t)
        loss.backward()
        optimiser.step()
        return loss

    step()
    counts.reset()
    for _ in range(3):
        loss = step()
    assert (counts.to_host, counts.synchronised) == (0, 0)
    loss.item()
    assert counts.to_host > 0


@pytest.mark.parametrize("order", [2.0, 1.0, float("inf")])
def test_clipping_waits_for_nothing(cuda, counts, order):
    def clipped(device):
        model, x, t = model_and_data(device)
        F.cross_entropy(model(x), t).backward()
        counts.reset()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1, order)
        after = nn.utils.get_total_norm([p.grad for p in model.parameters()], order)
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        assert (counts.to_host, counts.synchronised) == (0, 0)
        assert norm.device == after.device == x.device and norm.shape == ()
        return norm.item(), after.item(), [p.grad.tolist() for p in model.parameters()]

    here, there = clipped("cpu"), clipped("cuda")
    assert there[:2] == pytest.approx(here[:2], rel=1e-5) and here[1] == pytest.approx(0.1, rel=1e-3)
    for a, b in zip(here[2], there[2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_memory_is_flat_over_many_steps(cuda):
    def measured(steps):
        train("cuda", OPTIMISERS["Adam"], steps)
        gc.collect()
        cuda.check_now()
        return wf.cuda.memory_allocated()

    measured(3)
    assert measured(40) <= measured(3)


def test_memory_figures(cuda):
    gc.collect()
    wf.cuda.empty_cache()
    wf.cuda.reset_peak_memory_stats()
    before = wf.cuda.memory_allocated()
    x = wf.zeros(1000, device="cuda")
    assert wf.cuda.memory_allocated() - before >= 4000 and wf.cuda.memory_reserved() >= wf.cuda.memory_allocated()
    del x
    gc.collect()
    assert wf.cuda.memory_allocated() == before and wf.cuda.max_memory_allocated() >= before + 4000
    wf.cuda.empty_cache()
    assert "in use by tensors" in wf.cuda.memory_summary() and wf.accelerator.memory_allocated() == before


def test_checkpoints_from_and_to_a_device(cuda, tmp_path):
    model, optimiser, _ = train("cuda", OPTIMISERS["Adam"])
    wf.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, tmp_path / "c.wf")
    there = wf.load(tmp_path / "c.wf", map_location="cuda")
    here = wf.load(tmp_path / "c.wf")
    assert there["model"]["0.weight"].is_cuda and here["model"]["0.weight"].is_cpu
    again, x, t = model_and_data("cuda")
    again.load_state_dict(here["model"])
    other = OPTIMISERS["Adam"](again.parameters())
    other.load_state_dict(here["optimiser"])
    assert all(p.is_cuda for p in again.parameters())
    states = [t for s in other.state.values() for t in s.values() if isinstance(t, wf.Tensor) and t.ndim]
    assert states and all(t.is_cuda for t in states)
    for one, two in zip(model.eval().parameters(), again.eval().parameters(), strict=True):
        assert wf.equal(one, two)
    F.cross_entropy(again(x), t).backward()
    other.step()


def test_a_module_moves_with_its_gradients(cuda):
    layer = nn.Linear(2, 2)
    layer(wf.ones(1, 2)).sum().backward()
    weight = layer.weight
    layer.cuda()
    assert layer.weight is weight and weight.is_cuda and weight.grad.is_cuda and weight.is_leaf
    assert layer.cpu().weight.is_cpu and weight.grad.is_cpu and layer.to(wf.float64).cuda().weight.dtype is wf.float64
    assert nn.Linear(2, 2, device="cuda").weight.is_cuda and nn.BatchNorm1d(3, device="cuda").running_mean.is_cuda


# -- what runs op by op, and what is refused -------------------------------------------------------------------------


def test_a_function_compiled_for_the_cpu_is_not_replayed_on_a_device(cuda):
    layer = nn.Linear(3, 3)
    run = wf.compile(lambda x: layer(x).relu().sum())
    x = wf.ones(2, 3)
    want = [run(x).item() for _ in range(4)][-1]
    layer.cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(x.cuda()).item() == pytest.approx(want)
        with pytest.raises(OperationError, match="different devices"):
            run(x)
    layer.cpu()
    assert run(x).item() == pytest.approx(want)


def test_a_recording_is_not_replayed_where_tensors_are_made_elsewhere(cuda):
    make = wf.compile(lambda x: wf.zeros(2).sum() + x.sum())
    assert [make(wf.ones(2)).item() for _ in range(5)] == [2.0] * 5
    with wf.device("cuda"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert make(wf.ones(2)).is_cuda


def test_vmap_and_transforms(cuda):
    x = wf.arange(6.0, device="cuda").reshape(3, 2)
    assert wf.vmap(lambda r: (r * r).sum())(x).tolist() == [1.0, 13.0, 41.0]
    assert wf.func.grad(lambda r: (r**3).sum())(x[1]).tolist() == [12.0, 27.0]


# -- the hook for kernels ------------------------------------------------------------------------------------------


class Noted:
    """A kernel that notes its name when it is called."""

    def __init__(self, kernel, ran):
        self._kernel, self._ran, self.loop = kernel, ran, kernel.loop

    def __call__(self, *args):
        self._ran.append(self.loop.name)
        return self._kernel(*args)

    def rows(self, *args):
        self._ran.append(self.loop.name)
        return self._kernel.rows(*args)

    def into(self, *args):
        self._ran.append(self.loop.name)
        return self._kernel.into(*args)

    def __getattr__(self, name):
        return getattr(self._kernel, name)


@pytest.fixture
def kernels(cuda, counts, monkeypatch):
    """The names of the kernels that run."""
    ran = []
    build = cuda_backend.build
    monkeypatch.setattr(cuda_backend, "build", lambda loop, launcher: Noted(build(loop, launcher), ran))
    monkeypatch.setattr(cuda, "remember", lambda *arguments: None)  # native code would run plans without their kernel
    cuda._forwards.clear()
    return ran


def test_elementwise_ops_and_all_gradients_of_a_node_are_one_kernel_each(kernels):
    x = wf.randn(4, 5, device="cuda", requires_grad=True)
    w = wf.randn(5, device="cuda", requires_grad=True)
    loss = wf.nn.functional.gelu(x * w).sum()
    assert kernels == ["mul", "gelu", "sum"]
    kernels.clear()
    loss.backward()
    assert kernels == ["square", "gelu_grad", "mul_grad", "sum"], "the gradient of the loss is a one"
    a, b = x.detach().cpu().requires_grad_(), w.detach().cpu().requires_grad_()
    wf.nn.functional.gelu(a * b).sum().backward()
    np.testing.assert_allclose(x.grad.cpu().numpy(), a.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(w.grad.cpu().numpy(), b.grad.numpy(), rtol=1e-5)


def test_training_with_kernels(kernels):
    _, _, losses = train("cuda", OPTIMISERS["Adam"])
    assert {"relu", "relu_grad"} <= set(kernels)
    _, _, wanted = train("cpu", OPTIMISERS["Adam"])
    np.testing.assert_allclose([x.item() for x in losses], [x.item() for x in wanted], rtol=2e-3)


def test_fit_metrics_and_batches_by_length(cuda):
    wf.manual_seed(0)
    data = [(wf.randn(4), wf.tensor(number % 3)) for number in range(24)]
    model = nn.Linear(4, 3)

    def run(device):
        wf.manual_seed(1)
        layer = nn.Linear(4, 3)
        layer.load_state_dict(model.state_dict())
        layer.to(device)
        batches = [tuple(t.to(device) for t in wf.data.default_collate(data[at : at + 8])) for at in (0, 8, 16)]
        history = wf.train.fit(layer, batches, optimizer=wf.optim.SGD(layer.parameters(), 0.1), loss=F.cross_entropy,
                               epochs=2, metrics={"accuracy": wf.metrics.Accuracy()}, progress=False)  # fmt: skip
        with wf.device(device):
            report = wf.metrics.classification_report(layer(batches[0][0]), batches[0][1], logits=True)
            order = list(wf.data.BucketSampler([1, 2, 3, 4], 2))
        return history["loss"], history["accuracy"], str(report), sorted(at for each in order for at in each)

    there, here = run("cuda"), run("cpu")
    assert there[0] == pytest.approx(here[0], rel=1e-4) and there[1:] == here[1:]

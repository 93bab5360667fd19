"""Autocast and bfloat16 on a device: the losses of the CPU, and products that cuBLAS does in the narrow dtype."""

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn

F = nn.functional


def losses(place, dtype, compiled=False):
    wf.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), encoder, nn.Linear(16, 3)).to(place)
    optimiser = wf.optim.AdamW(model.parameters(), 0.01)
    x, t = wf.randn(4, 5, 8).to(place), wf.randint(3, (20,)).to(place)

    def step():
        optimiser.zero_grad()
        with wf.autocast(place, dtype=dtype):
            loss = F.cross_entropy(model(x).reshape(20, 3), t)
        loss.backward()
        optimiser.step()
        return loss.detach()

    run = wf.compile(step) if compiled else step
    return [run().item() for _ in range(5)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [wf.bfloat16, wf.float16], ids=["bfloat16", "float16"])
def test_training_under_autocast(cuda, dtype, compiled):
    np.testing.assert_allclose(losses("cuda", dtype, compiled), losses("cpu", dtype), rtol=2e-2)


@pytest.fixture
def products(cuda, counts, monkeypatch):
    """The dtypes of the products that cuBLAS was asked for."""
    asked = []
    gemm = type(cuda.launcher).gemm

    def noted(launcher, call, *places):
        asked.append(call.dtype)
        gemm(launcher, call, *places)

    monkeypatch.setattr(type(cuda.launcher), "gemm", noted)
    return asked


def test_products_are_asked_for_in_bfloat16(products):
    layer, x = nn.Linear(8, 4).cuda(), wf.randn(5, 8, device="cuda", requires_grad=True)
    with wf.autocast("cuda", dtype=wf.bfloat16):
        y = layer(x) @ layer.weight
    assert y.dtype is wf.bfloat16 and products == ["bf16"] * 2
    y.float().sum().backward()
    assert products == ["bf16"] * 6 and layer.weight.grad.dtype is wf.float32 and x.grad.dtype is wf.float32
    with wf.autocast("cuda", dtype=wf.bfloat16):
        q = wf.randn(2, 3, 4, device="cuda")
        wf.einsum("bij,bkj->bik", q, q)
    assert products[6:] == ["bf16"], "einsum multiplies as matmul does"


def test_a_model_in_bfloat16(cuda):
    wf.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    model.bfloat16().cuda()
    y = model(wf.randn(3, 1, 4, 4, device="cuda", dtype=wf.bfloat16))
    y.float().pow(2).sum().backward()
    grads = [p.grad for p in model.parameters()]
    assert y.dtype is wf.bfloat16 and all(g.dtype is wf.bfloat16 and g.isfinite().all() for g in grads)


def test_gradients_are_scaled(cuda):
    weight = wf.ones(2, device="cuda", requires_grad=True)
    optimiser, scaler = wf.optim.SGD([weight], 0.5), wf.amp.GradScaler("cuda", init_scale=4.0)
    for factor, left in ((1.0, [0.5, 0.5]), (float("inf"), [0.5, 0.5])):
        optimiser.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimiser)
        scaler.update()
        assert weight.tolist() == left
    assert scaler.get_scale() == 2.0


def test_a_scaled_step_reads_one_number(cuda, counts):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
    sgd, scaler = wf.optim.SGD(model.parameters(), 0.1), wf.amp.GradScaler("cuda", init_scale=8.0)
    x = wf.ones(3, 4, device="cuda")

    def step(factor):
        sgd.zero_grad()
        scaler.scale((model(x) * factor).sum()).backward()
        before = counts.to_host
        scaler.step(sgd)
        scaler.update()
        return counts.to_host - before

    counts.reset()
    assert [step(1.0), step(1.0)] == [1, 1] and scaler.get_scale() == 8.0
    weights = model[0].weight.tolist()
    assert step(float("inf")) == 1 and scaler.get_scale() == 4.0 and model[0].weight.tolist() == weights

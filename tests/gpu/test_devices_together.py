"""Tensors, gradients, optimisers and batches that are on different devices: what works, and what is refused by name."""

import copy

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import WayfareError

LAST = "the last GPU"


@pytest.mark.parametrize("name", ["zeros", "ones", "empty", "rand", "randn"])
def test_the_number_of_a_device_is_a_device(cuda, name):
    """0 is the first GPU, and not "nothing was said"."""
    x = wf.ones(2)
    assert getattr(wf, f"{name}_like")(x, device=0).is_cuda
    if hasattr(x, f"new_{name}"):
        assert getattr(x, f"new_{name}")(2, device=0).is_cuda


def test_the_number_of_a_device_elsewhere(cuda):
    x = wf.ones(2)
    assert wf.full_like(x, 3.0, device=0).is_cuda and wf.randint_like(x, 5, device=0).is_cuda
    assert x.new_full((2,), 3.0, device=0).is_cuda and x.new_tensor([1.0], device=0).is_cuda


def test_cuda_takes_gpus_only(cuda):
    for thing in (wf.ones(1), nn.Linear(1, 1)):
        with pytest.raises(RuntimeError, match="'cpu' is no GPU"):
            thing.cuda("cpu")
        with pytest.raises(WayfareError, match="no device"):
            thing.cuda("cuda:")


@pytest.mark.parametrize("optimiser", ["SGD", "Adam", "RAdam", "SparseAdam"])
def test_one_optimiser_for_parameters_on_several_devices(cuda, optimiser):
    options = {"lr": 0.1, "momentum": 0.9} if optimiser == "SGD" else {"lr": 0.1}
    for devices in (("cpu", "cuda"), ("cuda", "cpu"), ("cuda:0", LAST, "cpu")):
        devices = [f"cuda:{wf.cuda.device_count() - 1}" if device == LAST else device for device in devices]
        alone = wf.ones(3, requires_grad=True)
        together = [wf.ones(3, device=device, requires_grad=True) for device in devices]
        optimisers = [getattr(wf.optim, optimiser)(p, **options) for p in ([alone], together)]
        for _ in range(4):
            for p in (alone, *together):
                p.grad = None
                (p * p).sum().backward()
            for each in optimisers:
                each.step()
        assert alone[0] < 0.9
        for p in together:
            np.testing.assert_allclose(p.detach().cpu().numpy(), alone.detach().numpy(), rtol=1e-5)


def test_an_update_of_tensors_on_several_devices_is_refused(cuda):
    @wf.fused_update(writes=("p",))
    def shrink(m, p, g):
        return p - g

    for p, g in ((wf.ones(2), wf.ones(2, device="cuda")), (wf.ones(2, device="cuda"), wf.ones(2))):
        with pytest.raises(RuntimeError, match="on different devices"):
            shrink([p], [g])


def test_rows_of_an_update(cuda):
    @wf.fused_update(writes=("p",))
    def shrink(m, p, g, *, rate):
        return p - g * rate

    table = wf.ones(4, 2, device="cuda")
    shrink.at_rows(wf.tensor([1, 3], device="cuda"), table, wf.ones(2, 2, device="cuda"), rate=0.5)
    assert table[:, 0].tolist() == [1.0, 0.5, 1.0, 0.5]


def test_a_gradient_is_on_the_device_of_its_tensor(cuda):
    x = wf.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"grad: f32\[2\] on cuda:0 does not fit f32\[2\] on cpu"):
        x.grad = wf.ones(2, device="cuda")
    y = x.cuda() * 1
    y.register_hook(lambda g: g.cpu())
    with pytest.raises(RuntimeError, match="a hook returned a gradient on cpu in place of one on cuda:0"):
        y.sum().backward()


@pytest.mark.parametrize("leaf", [True, False])
def test_a_custom_function_gives_each_gradient_where_its_argument_was(cuda, leaf):
    class There(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.cuda() * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = wf.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"There: backward returned a gradient on cuda:0 .* is on cpu"):
        There.apply(x if leaf else x * 1).sum().backward()
    assert x.grad is None


def test_equal_compares_tensors_on_one_device(cuda):
    assert wf.equal(wf.ones(2, device="cuda"), wf.ones(2, device="cuda"))
    with pytest.raises(RuntimeError, match="equal: the tensors are on different devices"):
        wf.equal(wf.ones(2, device="cuda"), wf.ones(2))


@pytest.mark.parametrize("value", [0.0, 2, "tensor", "wide", "cpu"])
def test_writes_at_a_mask_of_the_cpu(cuda, value):
    value = {"tensor": wf.tensor(5.0, device="cuda"), "wide": wf.tensor(5.0, device="cuda", dtype=wf.float64),
             "cpu": wf.tensor(5.0)}.get(value, value)  # fmt: skip
    mask = wf.tensor([True, False, True])
    here, there = wf.ones(3), wf.ones(3, device="cuda")
    here[mask] = value.cpu() if isinstance(value, wf.Tensor) else value
    there[mask] = value
    assert there.tolist() == here.tolist()
    there[mask] = wf.tensor([7.0, 8.0])
    assert there.tolist() == [7.0, 1.0, 8.0]


def test_a_dataset_on_a_device(cuda):
    data = wf.data.TensorDataset(wf.arange(6.0, device="cuda"), wf.arange(6))
    (x, y), *_ = wf.data.DataLoader(data, batch_size=4)
    assert x.is_cuda and y.is_cpu and x.tolist() == y.tolist() == [0, 1, 2, 3]
    here = wf.data.TensorDataset(wf.arange(6.0))
    with wf.device("cuda"):  # the numbers of the rows are no tensors of the user's
        ((x,), *_) = wf.data.DataLoader(here, batch_size=4, generator=wf.Generator())
    assert x.is_cpu and x.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("lazy", [True, False])
def test_map_over_a_function_that_moves_its_example(cuda, lazy):
    layer = nn.Linear(2, 2).cuda()
    examples = [wf.randn(3, 2), wf.randn(4, 2), wf.randn(3, 2)]

    def there(x):
        return layer((x * 2).cuda() if lazy else x.cuda()).sum(0)

    out = list(wf.map(there, examples))
    for got, x in zip(out, examples, strict=True):
        assert got.is_cuda
        np.testing.assert_allclose(got.tolist(), there(x).tolist(), rtol=1e-5)


def test_gradients_on_a_device_that_is_not_the_current_one(cuda):
    """CuPy makes results on the current device; a backward pass has to say which that is."""
    here = wf.randn(4, 3)
    there = here.to(f"cuda:{wf.cuda.device_count() - 1}").requires_grad_()
    here.requires_grad_()
    for x in (here, there):
        layer = nn.Linear(3, 3, bias=False, device=x.device)
        with wf.no_grad():
            layer.weight.fill_(0.5)
        out = (layer(x).tanh().flip(0) * x).softmax(1)[x > 0].cumsum(0)
        (out.sum() + (x * x).mean()).backward()
        assert x.grad.device == x.device == layer.weight.grad.device
    wf.testing.assert_close(here.grad, there.grad.cpu(), rtol=1e-4, atol=1e-5)
    assert copy.deepcopy(there.detach()).device == there.device
    with pytest.raises(RuntimeError, match="backward: a gradient on cpu was given for a tensor on cuda:"):
        (there * 1).backward(wf.ones(4, 3))
    x = wf.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="a gradient on cuda:0 came to a tensor on cpu"):
        (x + 1).backward(wf.ones(2, device="cuda"))
    assert x.grad is None


def test_tensors_without_dimensions_that_a_function_takes_from_outside(cuda):
    def program(device):
        wf.manual_seed(0)
        factor, shift = wf.tensor(3.0, device=device), wf.tensor(2.0, device=device, requires_grad=True)
        scaled = wf.fused(lambda x: x * factor + shift)
        x = wf.arange(3.0, device=device)
        found = [scaled(x).tolist()]
        scaled(x).sum().backward()
        factor.mul_(2.0)
        found += [scaled(x).tolist(), shift.grad.item()]
        numbers = [wf.tensor(i, device=device) for i in range(3)]

        class Step(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows, self.cell = nn.Embedding(3, 4), nn.RNNCell(4, 4)

            def forward(self, i, state):
                return self.cell(self.rows(numbers[i]), state)

        step = Step().to(device)

        def last(word):
            state = wf.zeros(4, device=device)
            for i in word:
                state = step(i, state)
            return state

        made = wf.stack(wf.map(last, [[0, 1], [2], [1, 1, 0]], batch=True))
        made.sum().backward()
        return [*found, made.tolist(), step.rows.weight.grad.tolist()]

    here, there = program("cpu"), program("cuda")
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_gradients_on_several_devices_are_clipped_by_one_norm(cuda):
    params = [nn.Parameter(wf.full((2,), 3.0, device=device)) for device in ("cuda", "cpu", f"cuda:{cuda.count - 1}")]
    for p in params:
        p.grad = wf.full_like(p, 2.0)
    norm = nn.utils.clip_grad_norm_(params, 1.0)
    assert norm.item() == pytest.approx(24**0.5) and norm.device == params[0].device
    for p in params:
        assert p.grad.device == p.device and p.grad.tolist() == pytest.approx([2 / 24**0.5] * 2)

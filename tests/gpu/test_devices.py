"""Tensors on a device: where they live, how they get there, what mixes and what does not."""

import copy
import pickle
import weakref

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import GraphError, InPlaceError, OperationError


def test_the_default_device_belongs_to_the_thread(two_gpus):
    wf.set_default_device("cuda:1")
    assert wf.get_default_device() == wf.device("cuda:1") and wf.zeros(2).device == wf.device("cuda:1")
    wf.set_default_device(None)
    assert wf.zeros(2).is_cpu


def test_names_and_numbers_of_devices(two_gpus):
    assert wf.device("cuda") != wf.device("cuda:0") and wf.device(1) == wf.device("cuda:1")
    assert str(wf.device("cuda", 1)) == "cuda:1" and repr(wf.device("cuda:0")) == "device(type='cuda', index=0)"
    assert pickle.loads(pickle.dumps(wf.device("cuda:1"))) == wf.device("cuda:1")
    with pytest.raises(OperationError, match=r"there is no 'cuda:7', this machine has 2 CUDA devices .*from 0 to 1"):
        wf.device("cuda:7")


def test_to(cuda):
    x = wf.arange(6.0).reshape(2, 3)
    y = x.to("cuda")
    assert y.is_cuda and y.to("cuda") is y and y.cuda() is y and x.to("cpu") is x and x.cpu() is x
    assert y.to(x).is_cpu and y.to("cpu", wf.float64).dtype is wf.float64 and x.to(y).is_cuda
    assert y.to(wf.float64).is_cuda and y.to("cuda", copy=True) is not y
    assert y.get_device() == 0 and y.to(device="cpu", non_blocking=True).tolist() == x.tolist()
    assert y.T.cpu().tolist() == x.T.tolist() and y[1:, ::2].cpu().tolist() == x[1:, ::2].tolist()


def test_to_another_gpu(two_gpus):
    y = wf.arange(6.0, device="cuda")
    assert y.to("cuda:1").device == wf.device("cuda:1") and y.get_device() == 0


def test_a_copy_between_devices_is_part_of_the_graph(cuda):
    x = wf.ones(3, requires_grad=True)
    y = (x.to("cuda") * 2).cpu() * 3
    y.sum().backward()
    assert x.grad.is_cpu and x.grad.tolist() == [6.0] * 3
    x = wf.ones(3, requires_grad=True)
    (g,) = wf.autograd.grad((x.cuda() ** 3).sum(), x, create_graph=True)
    g.sum().backward()
    assert x.grad.tolist() == [6.0] * 3


def test_printing_and_reading_copy_to_the_host(cuda, counts):
    x = wf.tensor([1.0, 2.0], device="cuda")
    assert repr(x) == "tensor([1., 2.], device='cuda:0')"
    assert x[0].item() == 1.0 and x.tolist() == [1.0, 2.0] and bool(x[1]) and float(x[1]) == 2.0 and 2.0 in x
    assert counts.to_host == 6


def test_numpy_is_refused_with_the_fix(cuda):
    x = wf.ones(2, device="cuda")
    for read in (x.numpy, lambda: np.asarray(x), lambda: np.sin(np.array(x))):
        with pytest.raises(TypeError, match=r"this tensor is on cuda:0, .*Use \.cpu\(\)\.numpy\(\)"):
            read()
    assert x.numpy(force=True).tolist() == [1.0, 1.0]


def test_numbers_and_0_dim_tensors_of_the_cpu_mix(cuda, counts):
    x = wf.ones(3, device="cuda", requires_grad=True)
    y = x * 2 + 1 - wf.tensor(3.0)
    assert y.is_cuda and (2 / x).is_cuda and wf.where(x > 0, x, 0.0).is_cuda and wf.maximum(x, wf.tensor(2.0)).is_cuda
    counts.reset()
    for _ in range(5):
        x * 2 + 1
    assert counts.crossings() == 0


def test_a_0_dim_tensor_of_the_cpu_gets_its_gradient_on_the_cpu(cuda):
    scale = wf.tensor(2.0, requires_grad=True)
    loss = (wf.ones(3, device="cuda") * (scale * 3)).sum()
    loss.backward()
    assert scale.grad.is_cpu and scale.grad.item() == 9.0


def test_other_mixtures_are_refused(two_gpus):
    x, y = wf.ones(2, 3, device="cuda"), wf.ones(3)
    with pytest.raises(RuntimeError) as caught:
        x @ y
    text = str(caught.value)
    assert "matmul: the tensors are on different devices, f32[2,3] on cuda:0 and f32[3] on cpu" in text
    assert "test_devices.py" in text and "Move one of them, as with .to('cuda:0') or .cpu()." in text
    with pytest.raises(OperationError, match="on different devices"):
        wf.cat([x, wf.ones(2, 3)])
    with pytest.raises(OperationError, match="cuda:0 and f32.* on cuda:1"):
        x + x.to("cuda:1")


def test_indices_may_be_on_the_cpu(cuda):
    x = wf.arange(6.0, device="cuda").reshape(2, 3)
    assert x[wf.tensor([1, 0])].tolist() == [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]
    assert x[:, [0, 2]].tolist() == [[0.0, 2.0], [3.0, 5.0]]
    assert x[x > 2].tolist() == [3.0, 4.0, 5.0] and x[(x > 2).cpu()].tolist() == [3.0, 4.0, 5.0]


def test_no_index_is_out_of_range_where_nothing_is_taken(cuda):
    x = wf.zeros(2, 3, 0, device="cuda", requires_grad=True)
    out = x[:, [7, 0]]
    assert out.shape == (2, 2, 0)
    out.sum().backward()
    y = x.detach().clone()
    y[:, [7, 0]] = 1.0
    assert y.sum().item() == 0 and x.grad.shape == x.shape
    with pytest.raises(IndexError, match="out of range for dimension 1 of size 0"):
        wf.zeros(2, 0, 3, device="cuda")[:, [1]].sum().item()


def test_an_index_out_of_range_is_found_when_a_value_is_read(cuda):
    x = wf.arange(3.0, device="cuda")
    y = x[wf.tensor([0, 7], device="cuda")]
    with pytest.raises(IndexError, match=r"index: an index is out of range for dimension 0 of size 3 \(test_devices"):
        y.sum().item()
    assert x.sum().item() == 3.0
    wf.nn.functional.embedding(wf.tensor([9], device="cuda"), wf.ones(3, 2, device="cuda"))
    with pytest.raises(IndexError, match="embedding"):
        wf.cuda.synchronize()


def test_writes_in_place(cuda):
    x = wf.zeros(2, 3, device="cuda")
    assert x._version == 0
    x.add_(1).mul_(wf.full((3,), 2.0, device="cuda"))
    x[0] = 5
    x[1, wf.tensor([0, 2])] = wf.tensor([7.0, 8.0])
    x[:, 1] += 1
    assert x.tolist() == [[5.0, 6.0, 5.0], [7.0, 3.0, 8.0]] and x._version > 4
    x.copy_(wf.ones(2, 3))
    x.fill_(4.0)
    assert x.sum().item() == 24.0 and x.is_cuda
    view = x.view(6)[:2]
    view.zero_()
    assert x.tolist() == [[0.0, 0.0, 4.0], [4.0, 4.0, 4.0]]
    with pytest.raises(InPlaceError, match="share memory"):
        wf.ones(1, device="cuda").expand(3).add_(1)


def test_how_a_tensor_lies_in_memory_is_known_without_a_copy(cuda, counts):
    x = wf.zeros(3, 4, device="cuda")
    part = x[1:, ::2]
    counts.reset()
    assert part.stride() == (4, 2) and part.storage_offset() == 4 and not part.is_contiguous() and x.is_contiguous()
    assert part.data_ptr() == x.data_ptr() + 16 and x.T.stride() == (1, 4) and part.contiguous().is_contiguous()
    assert counts.crossings() == 0


def test_windows_are_copies(cuda):
    x = wf.arange(5.0, device="cuda")
    assert x.unfold(0, 2, 1).tolist() == [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert x.as_strided((2, 2), (1, 2), 1).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    part = wf.arange(12.0, device="cuda").reshape(3, 4)[:, ::2]
    assert part.as_strided((3, 2), (4, 2)).tolist() == part.tolist()
    x.unfold(0, 2, 1).zero_()
    assert x.sum().item() == 10.0


def test_a_row_of_a_table_is_shortened_in_the_table(cuda):
    table = wf.full((3, 4), 2.0, device="cuda")
    wf.nn.functional.embedding(wf.tensor([1], device="cuda"), table, max_norm=1.0)
    assert [round(n, 4) for n in table.norm(dim=1).tolist()] == [4.0, 1.0, 4.0]


def test_histories_through_writes_and_views(cuda):
    def program(device):
        a = wf.arange(6.0, device=device).reshape(2, 3).requires_grad_()
        b = a * 2
        b[0].mul_(3)
        b.T[1].exp_()
        c = b.clone()
        c[:, 0] = (a[:, 1] ** 2).detach() * a[:, 2]
        (c * c).mean().backward()
        return a.grad.cpu().tolist()

    np.testing.assert_allclose(program("cuda"), program("cpu"), rtol=1e-5)


def test_a_kept_value_that_was_written_is_noticed(cuda):
    x = wf.ones(3, device="cuda", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(GraphError, match="modified by an in-place operation"):
        y.sum().backward()


def test_graphs_are_kept_freed_and_differentiated_twice(cuda):
    x = wf.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    y = (x**3).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.is_cuda and x.grad.tolist() == [6.0, 24.0]
    with pytest.raises(GraphError, match="already used"):
        y.backward()
    (g,) = wf.autograd.grad((x**3).sum(), x, create_graph=True)
    (h,) = wf.autograd.grad(g.sum(), x)
    assert h.tolist() == [6.0, 12.0]
    with wf.no_grad():
        assert not (x * 2).requires_grad


def test_hooks_saved_tensors_and_checkpoints(cuda):
    x = wf.ones(3, device="cuda", requires_grad=True)
    seen = []
    y = x * 2
    y.register_hook(lambda g: seen.append(g.device) or g * 10)
    y.sum().backward()
    assert x.grad.tolist() == [20.0] * 3 and seen == [wf.device("cuda:0")]
    with wf.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.cuda()):
        z = (x * x).sum()
    x.grad = None
    z.backward()
    assert x.grad.tolist() == [2.0] * 3
    x.grad = None
    wf.utils.checkpoint.checkpoint(lambda t: (t * t).exp(), x, use_reentrant=False).sum().backward()
    assert x.grad.is_cuda and x.grad.tolist() == pytest.approx([2 * np.e] * 3)


def test_a_custom_function(cuda):
    class Cube(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    x = wf.tensor([2.0], device="cuda", requires_grad=True)
    Cube.apply(x).sum().backward()
    assert x.grad.is_cuda and x.grad.item() == 12.0


def test_copies_and_pickles(cuda):
    x = wf.ones(2, device="cuda")
    assert copy.deepcopy(x).is_cuda and x.clone().is_cuda and x.detach().data.is_cuda
    back = pickle.loads(pickle.dumps(x))
    assert back.tolist() == [1.0, 1.0]


def test_dlpack_and_the_cuda_array_interface(cuda):
    x = wf.arange(3.0, device="cuda")
    y = wf.from_dlpack(x)
    y[0] = 9
    assert x.tolist() == [9.0, 1.0, 2.0] and x.__dlpack_device__() == (2, 0)
    assert wf.as_tensor(cuda.xp.asarray([1.0, 2.0])).is_cuda
    assert x.__cuda_array_interface__["shape"] == (3,)


class Interface:
    """An array of a library that speaks no DLPack."""

    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "strides": None}


def test_arrays_of_other_libraries(cuda):
    theirs = cuda.xp.asarray(np.arange(3, dtype=np.float32))
    for take in (wf.as_tensor, wf.asarray, wf.from_dlpack, lambda a: wf.asarray(a, copy=False)):
        assert take(theirs).is_cuda and take(theirs).tolist() == [0.0, 1.0, 2.0]
        assert take(theirs).data_ptr() == theirs.data.ptr
    assert wf.as_tensor(Interface(theirs)).data_ptr() == theirs.data.ptr
    for copied in (wf.tensor(theirs), wf.tensor(Interface(theirs)), wf.asarray(theirs, copy=True)):
        assert copied.is_cuda and copied.tolist() == [0.0, 1.0, 2.0] and copied.data_ptr() != theirs.data.ptr
    assert wf.tensor(theirs, dtype=wf.float64, device="cpu").dtype is wf.float64
    assert cuda.xp.asarray(Interface(wf.ones(2, device="cuda"))).tolist() == [1.0, 1.0]


def test_bfloat16_is_shared_as_its_bits(cuda):
    x = wf.tensor([1.0, 2.5], dtype=wf.bfloat16, device="cuda")
    y = wf.from_dlpack(x)
    assert y.dtype is wf.bfloat16 and y.tolist() == [1.0, 2.5] and y.data_ptr() == x.data_ptr()


def test_a_tensor_with_a_gradient_is_not_given_away(cuda):
    x = wf.ones(2, device="cuda", requires_grad=True)
    for give in (x.__dlpack__, lambda: x.__cuda_array_interface__):
        with pytest.raises(OperationError, match=r"requires grad, and another library would lose .*detach"):
            give()
    assert wf.from_dlpack(x.detach()).tolist() == [1.0, 1.0]


def test_pinned_memory(cuda):
    x = wf.ones(2, 3)
    y = x.pin_memory()
    assert y.is_pinned() and not x.is_pinned() and y.pin_memory() is y and y[0].is_pinned()
    assert y.to("cuda", non_blocking=True).tolist() == x.tolist()
    batch = next(iter(wf.data.DataLoader([(wf.ones(2), 1), (wf.zeros(2), 0)], batch_size=2, pin_memory=True)))
    assert batch[0].is_pinned()


def test_generators(cuda):
    g = wf.Generator(device="cuda")
    assert g.device == wf.device("cuda")
    a = wf.randn(3, device="cuda", generator=g.manual_seed(5))
    b = wf.randn(3, generator=wf.Generator().manual_seed(5))
    assert a.tolist() == b.tolist()
    wf.manual_seed(1)
    there = wf.nn.functional.dropout(wf.ones(4, 4, device="cuda"), 0.5)
    wf.manual_seed(1)
    assert there.tolist() == wf.nn.functional.dropout(wf.ones(4, 4), 0.5).tolist()


def test_minus_zero_keeps_its_sign(cuda):
    there = [wf.tensor(-0.0).cuda(), wf.full((2,), -0.0, device="cuda"), wf.tensor(-0.0, device="cuda"),
             wf.ones(2, device="cuda") * -0.0]  # fmt: skip
    assert all(np.signbit(t.cpu().numpy()).all() for t in there)


def test_a_check_that_waits_keeps_nothing_of_the_user(cuda):
    """No frame, so no locals: a check may wait for long."""

    class Big:
        pass

    def use():
        big = Big()
        wf.arange(4.0, device="cuda")[wf.tensor([1, 2], device="cuda")]
        return weakref.ref(big)

    assert use()() is None and len(cuda.late_errors()) >= 1
    cuda.check_now()


@pytest.mark.parametrize("read", [
    lambda y: y.cpu(), lambda y: y.to("cpu"), lambda y: wf.zeros(4).copy_(y), lambda y: wf.poisson(y.abs()),
])  # fmt: skip
def test_an_index_out_of_range_is_found_by_a_copy(cuda, read):
    """The op that copies finds it; it must not be run again instead, which would find nothing."""
    x = wf.arange(4.0, device="cuda")
    for _ in range(2):
        x[wf.tensor([0, 7], device="cuda")]
        with pytest.raises(IndexError, match="index: an index is out of range for dimension 0 of size 4"):
            read(x)
    read(x)


def test_truths_of_whole_numbers_without_dimensions(cuda):
    for function in (wf.any, wf.all):
        assert [function(wf.tensor(n, dtype=wf.uint8, device="cuda")).item() for n in (0, 1, 10)] == [0, 1, 1]


def test_the_device_of_another_tensor_comes_with_its_type(cuda):
    x, y = wf.ones(2), wf.ones(2, dtype=wf.float64, device="cuda")
    assert x.type_as(y).device == y.device and x.type_as(y).dtype is wf.float64 and y.type_as(x).is_cpu
    assert y.type() == "wayfare.cuda.DoubleTensor" and x.type(y.type()).is_cuda and x.type() == "wayfare.FloatTensor"
    assert x.type("torch.cuda.FloatTensor").is_cuda and y.type(wf.float32).is_cuda


def test_cuda_without_a_number_is_the_current_gpu(two_gpus):
    x = wf.ones(2, device="cuda:1", requires_grad=True)
    assert x.to("cuda").device == wf.device("cuda:0") == x.cuda().device
    with wf.cuda.device(1):
        assert x.to("cuda") is x and wf.ones(2).cuda().device == x.device
    x.to("cuda").sum().backward()
    assert x.grad.device == x.device
    layer = nn.Linear(2, 2).to("cuda:1")
    assert layer.cuda().weight.device == wf.device("cuda:0")


def test_what_is_no_device_is_refused_by_its_name(cuda, tmp_path):
    x = wf.ones(2, device="cuda", requires_grad=True)
    with pytest.raises(TypeError, match=r"to: 'gpu' is neither a device nor a dtype .*'cpu' and 'cuda'.*float64"):
        x.to("gpu")
    with pytest.raises(OperationError, match="'mps' is no device"):
        x.to("mps")
    with pytest.raises(TypeError, match=r"Use \.detach\(\)\.cpu\(\)\.numpy\(\)"):
        x.numpy()
    wf.save({"x": x.detach()}, tmp_path / "x")
    for place in (lambda storage, location: storage, {"cuda:0": "cpu"}):
        with pytest.raises(TypeError, match="load: map_location must be a device, not .*map_location='cpu'"):
            wf.load(tmp_path / "x", map_location=place)
    assert wf.load(tmp_path / "x", map_location=0)["x"].is_cuda and wf.load(tmp_path / "x", "cpu")["x"].is_cpu

"""NumPy, DLPack, copying, pickling."""

import copy
import pickle

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import GraphError


def test_memory_is_shared_with_numpy_both_ways():
    array = np.arange(4, dtype=np.float32)
    t = wf.from_numpy(array)
    array[0] = 9
    assert t[0].item() == 9
    t[1] = -1
    assert array[1] == -1 and t.numpy() is t._array


def test_array_protocol():
    t = wf.ones(2, 3)
    assert np.asarray(t) is t._array
    assert np.asarray(t, dtype=np.float64).dtype == np.float64
    assert np.concatenate([t, t]).shape == (4, 3)
    with pytest.raises(ValueError, match="without a copy"):
        np.array(t, dtype=np.float64, copy=False)


def test_dlpack_both_ways():
    t = wf.arange(4)
    array = np.from_dlpack(t)
    assert np.shares_memory(array, t.numpy())
    assert wf.from_dlpack(np.arange(3.0)).tolist() == [0.0, 1.0, 2.0]
    torch = pytest.importorskip("torch", reason="torch is not installed")
    there = torch.from_dlpack(t)
    there[0] = 42
    assert t[0].item() == 42
    back = wf.from_dlpack(torch.ones(2))
    assert back.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("dtype", [wf.float32, wf.int64, wf.bool, wf.float16])
def test_pickle_keeps_values_dtype_and_shape(protocol, dtype):
    t = wf.arange(6).reshape(2, 3).to(dtype)
    for original in (t, t.T, t[:, 1], t[0, 0], wf.zeros(0, 3, dtype=dtype)):
        back = pickle.loads(pickle.dumps(original, protocol))
        assert (back.dtype, back.shape, back.requires_grad) == (original.dtype, original.shape, False)
        assert back.tolist() == original.tolist()
        back.fill_(1)  # it can be written to


def test_pickle_keeps_requires_grad_and_leaves_the_gradient_behind():
    x = wf.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    back = pickle.loads(pickle.dumps(x))
    assert back.requires_grad and back.is_leaf and back.grad is None and x.grad is not None


def test_pickle_stores_one_tensor_once():
    x = wf.ones(2)
    first, second = pickle.loads(pickle.dumps([x, x]))
    assert first is second


def test_pickle_of_a_view_stores_the_view_alone():
    assert len(pickle.dumps(wf.zeros(10000)[:2])) < 1000


def test_pickle_refuses_history():
    x = wf.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="only leaves can be pickled"):
        pickle.dumps(x * 2)
    assert pickle.loads(pickle.dumps((x * 2).detach())).tolist() == [2.0, 2.0]


def test_pickle_gives_large_arrays_out_of_band():
    x, buffers = wf.arange(10000.0), []
    data = pickle.dumps(x, 5, buffer_callback=buffers.append)
    assert len(data) < 1000 and len(buffers) == 1
    back = pickle.loads(data, buffers=[bytearray(buffers[0].raw())])
    assert (back == x).all()


def test_pickle_and_copy_of_a_generator_go_on_from_its_place():
    g = wf.Generator().manual_seed(3)
    wf.rand(2, generator=g)
    others = pickle.loads(pickle.dumps(g)), copy.deepcopy(g)
    expected = wf.rand(2, generator=g).tolist()
    assert [wf.rand(2, generator=other).tolist() for other in others] == [expected, expected]


def test_copy_shares_memory_and_history():
    x = wf.ones(2, requires_grad=True)
    y = copy.copy(x * 2)
    assert y.grad_fn.name() == "MulBackward0" and copy.copy(x).requires_grad
    assert np.shares_memory(copy.copy(x)._array, x._array)


def test_deepcopy_of_leaves_only():
    x = wf.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    y = copy.deepcopy(x)
    assert y.requires_grad and y.grad.tolist() == [2.0, 2.0] and not np.shares_memory(x._array, y._array)
    with pytest.raises(GraphError, match=r"\.detach\(\)\.clone\(\)"):
        copy.deepcopy(x * 2)


def test_python_protocols():
    t = wf.tensor([1.0, 2.0, 3.0])
    assert len(t) == 3 and [v.item() for v in t] == [1.0, 2.0, 3.0] and 2.0 in t and 5.0 not in t
    assert float(t[0]) == 1.0 and int(t[2]) == 3 and f"{t[1]:.1f}" == "2.0"
    assert [10, 20, 30][wf.tensor(1)] == 20 and bool(t[0])
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(t)
    with pytest.raises(TypeError, match="0-dim"):
        len(wf.tensor(1.0))
    with pytest.raises(RuntimeError, match=r"item: needs a tensor of one element, a scalar, this is f32\[3\]"):
        t.item()
    with pytest.raises(TypeError, match="one-element integer"):
        [1, 2][wf.tensor(0.5)]
    assert {t: "tensors are keys by identity"}[t]


@pytest.mark.parametrize(
    "name",
    ["sum", "mean", "std", "max", "any", "argmax", "prod", "cumsum", "flip", "ptp", "squeeze", "nonzero", "median",
     "sort", "transpose", "unique", "linalg.norm", "zeros_like"],
)  # fmt: skip
def test_functions_of_numpy_read_a_tensor_as_an_array(name):
    function = np
    for part in name.split("."):
        function = getattr(function, part)
    t = wf.tensor([[3.0, 1.0], [2.0, 5.0]])
    found, wanted = function(t), function(t.numpy())
    assert type(found) is type(wanted)
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(RuntimeError, match=r"requires grad, and NumPy would lose .*\.detach\(\)\.numpy\(\)"):
        function(wf.ones(2, 2, requires_grad=True))


def test_tensors_among_the_arguments_of_numpys_functions_are_arrays_too():
    t = wf.tensor([3.0, 1.0])
    assert np.mean(t, axis=0, where=wf.tensor([True, False])) == 3
    assert np.stack([t, np.zeros(2)]).tolist() == [[3, 1], [0, 0]]
    assert np.mean([wf.tensor(1.0), wf.tensor(2.0)]) == 1.5


def test_the_shape_of_a_tensor_is_told_without_its_numbers():
    t = wf.ones(2, 3, requires_grad=True)
    assert (np.shape(t), np.ndim(t), np.size(t)) == ((2, 3), 2, 6)
    assert np.size(wf.ones(2, 3), 1) == 3


def test_a_tensor_goes_into_an_array_in_place():
    array = np.ones(3)
    array += wf.arange(3)
    array *= wf.tensor(2.0)
    np.add(array, wf.ones(3), out=array)
    assert type(array) is np.ndarray and array.tolist() == [3, 5, 7]
    assert np.add.reduce(wf.arange(4)) == 6
    with pytest.raises(RuntimeError, match="requires grad, and NumPy would lose its gradient"):
        array += wf.ones(3, requires_grad=True)


def test_numpy_does_not_write_into_a_tensor():
    with pytest.raises(TypeError, match=r"numpy\.add with out= does not work on tensors"):
        np.add(np.ones(3), 1, out=wf.zeros(3))


def test_tensors_of_pytorch_come_in_every_dtype():
    """PyTorch has no array of bfloat16, so it comes by DLPack."""
    torch = pytest.importorskip("torch")
    theirs = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    for made in (wf.tensor(theirs), wf.as_tensor(theirs), wf.asarray(theirs), wf.tensor([theirs[0], theirs[0]])[:1]):
        assert made.dtype is wf.bfloat16 and made.tolist() == [[1.5, -2.0]]
    assert wf.tensor(theirs, dtype=wf.float64).dtype is wf.float64
    assert wf.zeros(1, 2).copy_(theirs).tolist() == [[1.5, -2.0]]
    copied = wf.tensor(theirs)
    theirs[0, 0] = 7.0
    assert copied[0, 0].item() == 1.5


def test_states_hold_tensors_of_pytorch_in_every_dtype_and_parameters():
    torch = pytest.importorskip("torch")
    given = {"weight": torch.nn.Parameter(torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)), "bias": torch.ones(1)}
    net = wf.nn.Linear(2, 1)
    net.load_state_dict(given)
    assert net.weight.dtype is wf.float32 and net.weight.tolist() == [[1.5, -2.0]]
    optimizer = wf.optim.Adam([net.weight])
    moments = {"step": torch.tensor(3.0), "exp_avg": given["weight"], "exp_avg_sq": given["weight"].detach().abs()}
    optimizer.load_state_dict({"state": {0: moments}, "param_groups": optimizer.state_dict()["param_groups"]})
    assert optimizer.state[net.weight]["exp_avg"].tolist() == [[1.5, -2.0]]


def test_what_cannot_be_read_of_a_tensor_of_pytorch_is_named():
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match=r"tensor: the numbers of a torch\.Tensor cannot be read: .*detach"):
        wf.tensor(torch.ones(2, requires_grad=True))
    with pytest.raises(RuntimeError, match=r"as_tensor: the numbers of a torch\.Tensor cannot be read: .*meta"):
        wf.as_tensor(torch.ones(2, device="meta"))
    with pytest.raises(TypeError, match=r"must be a tensor or a number, not torch\.Tensor"):
        wf.ones(2)[:] = torch.ones(2)
    with pytest.raises(TypeError, match=r"Parameter: takes a Tensor, not torch\.Tensor"):
        wf.nn.Parameter(torch.ones(2))
    with pytest.raises(TypeError, match=r"is a torch\.Tensor, which a file cannot hold .*from_dlpack"):
        wf.save({"a": torch.ones(2)}, "never.safetensors")

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


def test_tensors_are_not_pickled():
    with pytest.raises(TypeError, match="loading a pickle runs code"):
        pickle.dumps(wf.ones(2))


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
    with pytest.raises(RuntimeError, match=r"item: needs a tensor of one element, this is f32\[3\]"):
        t.item()
    with pytest.raises(TypeError, match="one-element integer"):
        [1, 2][wf.tensor(0.5)]
    assert {t: "tensors are keys by identity"}[t]

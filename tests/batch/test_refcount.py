"""Who sees the memory of a tensor: the one question about reference counts."""

import pathlib

import numpy as np
import pytest

import wayfare as wf
from wayfare.batch.record.refcount import is_unshared

MAKERS = {
    "small": lambda: wf.ones(3),
    "computed": lambda: wf.ones(3) * 2,
    "large, from the pool": lambda: wf.ones(100_000) * 2,
    "from a list": lambda: wf.tensor([1.0, 2.0]),
    "from NumPy, which nobody else holds": lambda: wf.from_numpy(np.zeros(3)),
    "a part of an array that nobody else holds": lambda: wf.from_numpy(np.zeros(4)[1:]),
}

# What somebody else may keep, and see the memory by.
HOLDERS = {
    "the array": lambda t: t._array,
    "a view": lambda t: t[:2],
    "the same shape": lambda t: t.view(-1),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "numpy": lambda t: t.numpy(),
    "a part of numpy": lambda t: t.numpy()[1:],
    "memoryview": lambda t: memoryview(t._array),
    "in a list": lambda t: [t._array],
    "dlpack": lambda t: np.from_dlpack(t),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_memory_of_one_tensor(maker):
    t = MAKERS[maker]()
    assert is_unshared(t)
    same = t  # another name of the tensor is no other holder of its memory
    assert is_unshared(same)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("maker", MAKERS)
def test_memory_that_somebody_else_sees(maker, holder):
    t = MAKERS[maker]()
    kept = HOLDERS[holder](t)
    assert not is_unshared(t), kept
    del kept
    assert is_unshared(t)


def test_memory_of_an_array_that_somebody_holds():
    array = np.zeros(3)
    assert not is_unshared(wf.from_numpy(array)) and not is_unshared(wf.from_numpy(array[1:]))
    t = wf.from_numpy(array)
    del array
    assert is_unshared(t)


def test_nothing_else_counts_references():
    asking = {
        path.name for path in pathlib.Path(wf.__file__).parent.rglob("*.py")
        if "getrefcount(" in path.read_text() or "import getrefcount" in path.read_text()
    }  # fmt: skip
    assert asking == {"refcount.py"}

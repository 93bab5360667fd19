"""In-place forms on strided views: each must give what the out-of-place form gives, and touch nothing else."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.api.functions._public import METHODS

STRIDES = [s for s in range(-9, 17) if s]
LENGTHS = (1, 2, 3, 5, 8, 17)
FLOATS_AND_INTS = (wf.float64, wf.float32, wf.float16, wf.int64, wf.int32, wf.int16, wf.int8, wf.uint8)
# In-place forms whose result does not follow from the values alone, or that change the shape.
_OTHER = frozenset({
    "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_",
    "requires_grad_", "retain_grad_", "share_memory_", "zero_", "set_", "detach_", "t_", "squeeze_",
})  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS_AND_INTS, ids=str)
def test_neg_of_a_strided_view(dtype):
    for stride in STRIDES:
        for length in LENGTHS:
            memory = np.arange(1, 1 + length * abs(stride)).astype(dtype.numpy)
            part = memory[::stride][:length]
            wanted = memory.copy()
            wanted[::stride][:length] = (0 - part.astype(np.int64)).astype(dtype.numpy)
            wf.testing.assert_close(_in_place("neg_", memory, stride, length), wf.tensor(wanted))


def _in_place(name, memory, stride, length, *others):
    """What memory is after the in-place form of a part of it; a negative stride needs an array from outside."""
    whole = memory.copy()
    getattr(wf.from_numpy(whole[::stride][:length]), name)(*others)
    return wf.tensor(whole)


def _arity(name):
    """Over how many tensors an in-place method can be called here: 1, 2, or 0 for none."""
    for others in ((), (wf.ones(3),)):
        x = wf.full((3,), 0.5)
        try:
            if getattr(x, name)(*others) is x and x.shape == (3,):
                return 1 + len(others)
        except Exception:
            continue
    return 0


ARITY = {name: _arity(name) for name in METHODS
         if name.endswith("_") and not name.endswith("__") and name not in _OTHER}  # fmt: skip


def test_the_list_of_in_place_forms_is_the_long_one():
    assert sum(a == 1 for a in ARITY.values()) > 40 and sum(a == 2 for a in ARITY.values()) > 25


@pytest.mark.parametrize("name", sorted(n for n, a in ARITY.items() if a))
def test_in_place_on_a_strided_view_is_the_out_of_place_form(name):
    rng = np.random.default_rng(0)
    plain = name[:-1]
    if not hasattr(wf.Tensor, plain):
        pytest.skip(f"{plain} has no out-of-place form")
    for dtype in ("f4", "f8"):
        for stride in (-8, -4, -1, 2, 3, 4, 8, 16):
            for length in (1, 5, 17):
                memory = rng.uniform(0.1, 0.9, length * abs(stride)).astype(dtype)
                others = [wf.tensor(rng.uniform(0.1, 0.9, length).astype(dtype)) for _ in range(ARITY[name] - 1)]
                wanted = memory.copy()
                part = wanted[::stride][:length]
                part[:] = getattr(wf.tensor(part.copy()), plain)(*others).numpy()
                found = _in_place(name, memory, stride, length, *others).numpy()
                np.testing.assert_array_max_ulp(found, wanted, 2)


@pytest.mark.parametrize("name", sorted(n for n, a in ARITY.items() if a == 2))
def test_in_place_with_a_strided_operand(name):
    rng = np.random.default_rng(1)
    plain = name[:-1]
    if not hasattr(wf.Tensor, plain):
        pytest.skip(f"{plain} has no out-of-place form")
    for stride in (2, 4, 8, 16):
        memory = rng.uniform(0.1, 0.9, 7 * stride).astype("f4")
        other = wf.tensor(rng.uniform(0.1, 0.9, 7 * stride).astype("f4"))[::stride]
        wanted = getattr(wf.tensor(memory[::stride].copy()), plain)(other.clone())
        found = _in_place(name, memory, stride, 7, other)[::stride]
        np.testing.assert_array_max_ulp(found.numpy(), wanted.numpy().astype("f4"), 2)

"""`x[mask] = value` takes one number of any dtype, as PyTorch does; index tensors take the dtype of `x` only."""

import pytest

import wayfare as wf


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_mask(dtype, shape):
    x, mask = wf.zeros(3), wf.tensor([True, False, True])
    value = wf.ones(shape, dtype=getattr(wf, dtype))
    for index in (mask, (mask,), (Ellipsis, mask)):
        x.zero_()
        x[index] = value
        assert x.tolist() == [1.0, 0.0, 1.0]


def test_gradients():
    x, value = wf.zeros(2, 3, dtype=wf.bfloat16, requires_grad=True), wf.tensor(2.0, requires_grad=True)
    y = x * 1
    y[wf.tensor([[True, False, True], [False, False, True]])] = value
    y.sum().backward()
    assert value.grad.item() == 3.0 and value.grad.dtype is wf.float32
    assert x.grad.tolist() == [[0, 1, 0], [1, 1, 0]]


def test_what_stays_refused():
    x = wf.zeros(3)
    with pytest.raises(RuntimeError, match=r"Convert it with \.to\(wf\.float32\)"):
        x[wf.tensor([0, 2])] = wf.ones((), dtype=wf.float64)
    with pytest.raises(RuntimeError, match=r"Convert it with \.to\(wf\.float32\)"):
        x[wf.tensor([True, False, True])] = wf.ones(2, dtype=wf.float64)

"""`unique` of values with NaN among them: in order, every NaN by itself at the end, in every floating dtype."""

import pytest

import wayfare as wf


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_in_order(dtype):
    nan = float("nan")
    x = wf.tensor([nan, 1.0, nan, -1.0, 1.0, float("inf"), 0.5], dtype=getattr(wf, dtype))
    values, inverse, counts = wf.unique(x, return_inverse=True, return_counts=True)
    assert values.dtype is x.dtype and values[:4].tolist() == [-1.0, 0.5, 1.0, float("inf")]
    assert values[4:].isnan().tolist() == [True, True] and counts.tolist() == [1, 1, 2, 1, 1, 1]
    assert wf.allclose(values[inverse], x, equal_nan=True)
    assert wf.allclose(x.unique(), values, equal_nan=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_along_a_dimension(dtype):
    x = wf.tensor([[2.0, 1.0], [-1.5, 3.0], [2.0, 1.0], [-1.5, 2.0]], dtype=getattr(wf, dtype))
    values = x.unique(dim=0)
    assert values.dtype is x.dtype and values.tolist() == [[-1.5, 2.0], [-1.5, 3.0], [2.0, 1.0]]

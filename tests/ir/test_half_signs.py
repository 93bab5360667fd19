"""Functions of a sign in half precision, of a sum made in double precision: LLVM makes one conversion of two there."""

import numpy as np
import pytest

import wayfare as wf


@pytest.mark.parametrize("name", ["tanh", "atanh", "asinh"])
@pytest.mark.parametrize("size", [1, 7, 48, 3000])
def test_signs_of_sums_in_half_precision(name, size):
    x = wf.from_numpy((np.random.default_rng(size).standard_normal(size) * 0.01).astype(np.float16))

    def function(x):
        return getattr(x.sum() * 0.1, name)(), getattr(x.var(unbiased=False), name)(), getattr(x, name)()

    compiled = wf.compile(function, check=False)
    for _ in range(3):
        for got, want in zip(compiled(x), function(x), strict=True):
            np.testing.assert_allclose(got.float().numpy(), want.float().numpy(), rtol=2e-3, atol=1e-4)
    fused = wf.fused(lambda x: getattr(x.sum() * 0.1, name)())
    assert abs(fused(x).item() - function(x)[0].item()) < 1e-3

"""Window functions, against SciPy's."""

import numpy as np
import pytest
from scipy.signal import windows as scipy_windows

import wayfare as wf

CASES = {
    "bartlett": ({}, ()), "blackman": ({}, ()), "cosine": ({}, ()), "hamming": ({}, ()), "hann": ({}, ()),
    "nuttall": ({}, ()), "kaiser": ({"beta": 5.0}, (5.0,)), "gaussian": ({"std": 2.0}, (2.0,)),
    "general_hamming": ({"alpha": 0.6}, (0.6,)), "general_cosine": ({"a": [0.5, 0.3, 0.2]}, ([0.5, 0.3, 0.2],)),
    "exponential": ({"tau": 3.0}, (None, 3.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [0, 1, 2, 7, 8])
@pytest.mark.parametrize("sym", [True, False])
def test_windows_are_scipys(name, length, sym):
    named, positional = CASES[name]
    got = getattr(wf.signal.windows, name)(length, sym=sym, dtype=wf.float64, **named)
    want = getattr(scipy_windows, name)(length, *positional, sym=sym)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


def test_bad_arguments_are_sentences():
    with pytest.raises(ValueError, match="hann: the length of the window must not be negative, but is -1"):
        wf.signal.windows.hann(-1)
    with pytest.raises(ValueError, match="gaussian: std must be positive, but is 0"):
        wf.signal.windows.gaussian(3, std=0)
    with pytest.raises(ValueError, match=r"a window is of float32 or float64, not wayfare.int64"):
        wf.signal.windows.hann(3, dtype=wf.int64)

"""assert_close and the stub of Tensor."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wayfare as wf
from wayfare.testing import assert_close

ROOT = Path(__file__).resolve().parents[3]


def test_close_and_not_close():
    assert_close(wf.ones(3), wf.ones(3) + 1e-6)
    with pytest.raises(AssertionError, match=r"1 of 3 elements differ; the worst is 2.0 and 1.0 at index \[1\]"):
        assert_close(wf.tensor([1.0, 2.0, 1.0]), wf.ones(3))
    with pytest.raises(AssertionError, match=r"shapes differ, \[3\] and \[2\]"):
        assert_close(wf.ones(3), wf.ones(2))
    with pytest.raises(AssertionError, match="dtypes differ"):
        assert_close(wf.ones(3), wf.ones(3, dtype=wf.float64))
    assert_close(wf.ones(3), wf.ones(3, dtype=wf.float64), check_dtype=False)


def test_tolerances_follow_the_dtype():
    with pytest.raises(AssertionError):
        assert_close(wf.ones(1, dtype=wf.float64), wf.ones(1, dtype=wf.float64) + 1e-6)
    with pytest.raises(AssertionError):
        assert_close(wf.tensor([1]), wf.tensor([2]))
    with pytest.raises(ValueError, match="both rtol and atol"):
        assert_close(1.0, 1.0, rtol=0.1)


def test_structures_and_nan():
    nan = wf.tensor([float("nan")])
    with pytest.raises(AssertionError):
        assert_close(nan, nan)
    assert_close(nan, nan, equal_nan=True)
    assert_close({"a": [wf.ones(1), 2.0]}, {"a": [np.ones(1, np.float32), 2.0]})
    with pytest.raises(AssertionError, match=r"\['a'\]\[1\]"):
        assert_close({"a": [1.0, 2.0]}, {"a": [1.0, 3.0]})
    with pytest.raises(AssertionError, match="lengths differ"):
        assert_close([1.0], [1.0, 2.0])
    with pytest.raises(AssertionError, match="keys differ"):
        assert_close({"a": 1.0}, {"b": 1.0})


def test_the_stubs_are_current():
    # In a process of its own: other tests add methods to Tensor.
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "make_stubs.py"), "--check"], check=False)
    assert done.returncode == 0, "run: python tools/make_stubs.py"

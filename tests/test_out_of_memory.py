"""Out of memory is one error in one form, also a MemoryError: op, shape, bytes, the way out."""

import re

import numpy as np
import pytest

import wayfare as wf
from wayfare.core import buffer_pool
from wayfare.core.op_failure import memory_error
from wayfare.errors import OutOfMemoryError

HUGE = 1 << 46  # elements: more than any machine has addresses for
WIDE = 1 << 23
ROW, COLUMN = wf.ones(1, WIDE), wf.ones(WIDE, 1)
FORM = re.compile(r"(?s)(\w+): not enough memory for (\w+)\[[\d,]+\] \([\d.]+ [GT]B\).*Compute fewer elements")

WORKS = {
    "zeros": lambda: wf.zeros(WIDE, WIDE),
    "ones": lambda: wf.ones(HUGE),
    "empty": lambda: wf.empty(WIDE, WIDE),
    "full": lambda: wf.full((WIDE, WIDE), 2.0),
    "randn": lambda: wf.randn(WIDE, WIDE),
    "rand": lambda: wf.rand(HUGE),
    "randint": lambda: wf.randint(0, 5, (WIDE, WIDE)),
    "randperm": lambda: wf.randperm(HUGE),
    "arange": lambda: wf.arange(HUGE),
    "linspace": lambda: wf.linspace(0, 1, HUGE),
    "logspace": lambda: wf.logspace(0, 1, HUGE),
    "eye": lambda: wf.eye(WIDE),
    "tril_indices": lambda: wf.tril_indices(WIDE, WIDE),
    "zeros_like": lambda: wf.zeros_like(ROW.expand(WIDE, WIDE)),
    "layer": lambda: wf.nn.Linear(WIDE, WIDE),
    "add": lambda: ROW + COLUMN,
    "compare": lambda: ROW < COLUMN,
    "product": lambda: COLUMN @ ROW,
    "clone": lambda: ROW.expand(WIDE, WIDE).clone(),
    "exp": lambda: ROW.expand(WIDE, WIDE).exp(),
    "softmax": lambda: ROW.expand(WIDE, WIDE).softmax(1),
    "cat": lambda: wf.cat([ROW.expand(WIDE, WIDE)] * 2),
    "repeat": lambda: ROW.repeat(WIDE, 1),
    "one_hot": lambda: wf.nn.functional.one_hot(wf.arange(WIDE), WIDE),
    "convert": lambda: ROW.expand(WIDE, WIDE).double(),
    "without gradient": lambda: wf.no_grad()(lambda: ROW * COLUMN)(),
    "with gradient": lambda: wf.ones(1, WIDE, requires_grad=True) * COLUMN,
    "convolution": lambda: wf.nn.functional.conv1d(wf.ones(1, 1, WIDE), wf.ones(WIDE, 1, 1)),
    "compiled": lambda: wf.compile(lambda a, b: (a + b).exp())(ROW, COLUMN),
    "fused": lambda: wf.fused(lambda a, b: (a + b).exp())(ROW, COLUMN),
    "mapped": lambda: wf.map(lambda a: (a + COLUMN).sum(), [ROW, ROW], batch=True),
    "mapped one by one": lambda: wf.map(lambda a: (a + COLUMN).sum(), [ROW, ROW], batch=False),
}


@pytest.mark.parametrize("name", WORKS)
def test_one_form(name):
    with pytest.raises(MemoryError) as caught:
        WORKS[name]()
    assert isinstance(caught.value, OutOfMemoryError) and isinstance(caught.value, RuntimeError)
    assert FORM.match(str(caught.value)), str(caught.value)
    assert "test_out_of_memory.py" in str(caught.value)


def test_the_whole_text():
    with pytest.raises(OutOfMemoryError) as caught:
        ROW + COLUMN
    assert re.fullmatch(
        r"add: not enough memory for f32\[8388608,8388608\] \(256 TB\), from f32\[1,8388608\], f32\[8388608,1\] "
        r"\(test_out_of_memory.py:\d+\)\. Compute fewer .*",
        str(caught.value),
    ), str(caught.value)


def full(*_args, **_options):
    raise np._core._exceptions._ArrayMemoryError((3, 4), np.dtype(np.float32))


def test_in_a_backward_pass_and_the_next_one_works(monkeypatch):
    x = wf.ones(3, requires_grad=True)
    y = x.exp()
    with monkeypatch.context() as broken:
        broken.setattr("wayfare.autograd.engine._Pass.send", full)
        with pytest.raises(OutOfMemoryError, match=r"backward: not enough memory for f32\[3,4\]"):
            y.sum().backward()
    x.exp().sum().backward()
    assert x.grad is not None


def test_in_a_replayed_call_and_the_next_one_works(monkeypatch):
    f = wf.compile(lambda x: (x @ x).relu() + 1)
    x = wf.ones(4, 4)
    for _ in range(12):
        f(x)
    assert not f._plain()
    with monkeypatch.context() as broken:
        broken.setattr(type(f), "_try_fast_paths", full)
        broken.setattr(type(f), "_slow_path", full)
        with pytest.raises(OutOfMemoryError, match=r"<lambda>: not enough memory for f32\[3,4\]"):
            f(x)
    assert f(x).tolist() == ((x @ x).relu() + 1).tolist()


def test_memory_error_without_a_shape():
    error = memory_error("sum", MemoryError(), "f32[3]")
    assert isinstance(error, OutOfMemoryError) and "sum: not enough memory for the result from f32[3]" in str(error)


def test_free_blocks_are_given_back_before_it_is_given_up(monkeypatch):
    buffer_pool.empty((1 << 20,), np.dtype(np.float32))  # its block is free at once
    assert buffer_pool.stats().free
    calls = []

    def empty(shape, dtype):
        calls.append(buffer_pool.stats().free)
        if len(calls) == 1:
            raise MemoryError
        return np.empty(shape, dtype)

    monkeypatch.setattr(buffer_pool, "_empty", empty)
    monkeypatch.setattr(buffer_pool, "_make", lambda size: None)
    assert buffer_pool.empty((3 << 20,), np.dtype(np.float32)).shape == (3 << 20,)
    assert calls[0] > 0 and calls[1] == 0

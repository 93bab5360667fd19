"""A full device and a lost one, wherever that shows: the error says what there is to know, and the process goes on."""

import copy
import gc
import warnings

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.codegen.cuda.nvrtc import CompileError
from wayfare.errors import OperationError, OutOfMemoryError


def backward():
    layer, x = nn.Linear(64, 64).cuda(), wf.ones(8, 64, device="cuda")

    def run():
        layer.zero_grad()
        layer(x).square().sum().backward()
        return layer.weight.grad.sum().item()

    return run


def optimiser():
    layer = nn.Linear(64, 64).cuda()
    adam = wf.optim.Adam(layer.parameters())
    layer(wf.ones(8, 64, device="cuda")).sum().backward()
    return lambda: adam.step() or len(adam.state)


def compiled():
    layer, x = nn.Linear(64, 64).cuda(), wf.ones(128, 64, device="cuda")
    step = wf.compile(lambda x: layer(x).relu().square().sum())
    for _ in range(4):
        step(x[:8])
    return lambda: step(x).item()


def mapped():
    cell = nn.RNNCell(16, 16).cuda()
    rows = [wf.ones(n, 16, device="cuda") for n in (3, 2, 4)]

    def last(sequence):
        state = wf.zeros(16, device="cuda")
        for x in sequence:
            state = cell(x, state)
        return state.sum()

    return lambda: wf.stack(wf.map(last, rows, batch=True)).sum().item()


def copied():
    x = wf.ones(1000, device="cuda")
    return lambda: copy.deepcopy(x).sum().item()


def inverted():
    x = wf.eye(50, device="cuda")
    return lambda: wf.linalg.inv(x).sum().item()


@pytest.mark.parametrize("make, room", [
    (backward, 10_000), (optimiser, 10_000), (compiled, 1000), (mapped, 300), (copied, 1000), (inverted, 3000),
])  # fmt: skip
def test_a_full_device(cuda, counts, make, room):
    wf.manual_seed(1)
    run = make()
    gc.collect()
    wf.cuda.empty_cache()
    pool = cuda.xp.get_default_memory_pool()
    pool.set_limit(size=pool.used_bytes() + room)
    try:
        with pytest.raises(OutOfMemoryError, match=r"not enough memory on the GPU .*tensors take .*most of it by"):
            run()
    finally:
        pool.set_limit(size=None)
    np.testing.assert_allclose(run(), run(), rtol=1e-6)


def test_memory_in_an_arena_is_given_back_in_a_backward_pass(cuda, counts):
    """What compiled functions keep is room for a gradient, too."""
    layer = nn.Linear(64, 64).cuda()
    step = wf.compile(lambda x: layer(x).relu().square().sum())
    for _ in range(4):
        step(wf.ones(128, 64, device="cuda"))
    run = backward()
    pool = cuda.xp.get_default_memory_pool()
    gc.collect()
    pool.set_limit(size=pool.used_bytes() + 10_000)  # too little, as the test above shows
    try:
        found = run()
    finally:
        pool.set_limit(size=None)
    assert found == run()


def test_a_lost_device(cuda, counts, monkeypatch):
    def lost(*arguments):
        raise cuda.xp.cuda.runtime.CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    x = wf.ones(3, device="cuda", requires_grad=True)
    loss, sgd = (x * 2).sum(), wf.optim.SGD([x], 0.1)
    (x * 3).sum().backward()
    stream, event = wf.cuda.Stream(), wf.cuda.Event()
    event.record()
    fails = r"cuda:0 \(Stand-in\) has failed \(cudaErrorIllegalAddress.*start the process again"
    with monkeypatch.context() as patch:
        patch.setattr(type(cuda.launcher), "launch", lost)
        for use in (loss.backward, sgd.step):
            with pytest.raises(OperationError, match=fails):
                use()
    monkeypatch.setattr(type(event._event), "synchronize", lost)
    monkeypatch.setattr(type(stream._stream), "synchronize", lost)
    for use in (event.synchronize, stream.synchronize):
        with pytest.raises(OperationError, match="synchronize: " + fails):
            use()


def test_errors_of_users_stay_as_they_are(cuda):
    class Mine(RuntimeError):
        pass

    def hook(g):
        raise Mine("mine") from KeyError("cause")

    x = wf.ones(3, device="cuda", requires_grad=True)
    x.register_hook(hook)
    with pytest.raises(Mine, match="mine") as caught:
        (x * 2).sum().backward()
    assert isinstance(caught.value.__cause__, KeyError)


def test_out_of_memory_says_what_is_allocated(cuda, counts):
    pool = cuda.xp.get_default_memory_pool()
    x = wf.zeros(1000, device="cuda")
    gc.collect()  # what other tests left is not room for this one
    wf.cuda.empty_cache()
    pool.set_limit(size=pool.used_bytes() + 1000)
    try:
        with pytest.raises(OutOfMemoryError, match=r"mul: not enough memory on the GPU .*; tensors take .*reserved"):
            x * 2
        with pytest.raises(MemoryError, match="not enough memory on the GPU"):
            wf.zeros(1000, device="cuda")
    finally:
        pool.set_limit(size=None)
    assert (x * 2).sum().item() == 0.0


def kept_states(x):
    states = []
    while True:
        states.append((x * 2).exp())
        yield states


def test_a_full_device_names_what_is_held_and_the_process_goes_on(cuda, counts):
    pool = cuda.xp.get_default_memory_pool()
    x = wf.zeros(1000, device="cuda", requires_grad=True)
    keeping = kept_states(x)
    next(keeping)
    gc.collect()  # what other tests left is not room for this one
    wf.cuda.empty_cache()
    pool.set_limit(size=pool.used_bytes() + 20_000)
    try:
        with pytest.raises(OutOfMemoryError, match=r"most of it by test_cuda_faults.py:\d+ \(\d tensors of ") as caught:
            while True:
                states = next(keeping)
        assert "held by list `states`" in caught.value.__notes__[-1]
        del states, keeping, caught
        assert (x * 2).sum().item() == 0.0
    finally:
        pool.set_limit(size=None)


def test_memory_in_cycles_is_freed_before_an_op_fails(cuda, counts):
    pool = cuda.xp.get_default_memory_pool()
    gc.collect()
    wf.cuda.empty_cache()
    gc.disable()
    try:
        cycle = [wf.zeros(1000, device="cuda")]
        cycle.append(cycle)
        pool.set_limit(size=pool.used_bytes() + 1000)
        del cycle
        assert wf.zeros(1000, device="cuda").sum().item() == 0.0
    finally:
        gc.enable()
        pool.set_limit(size=None)


def test_a_kernel_that_cannot_be_compiled_is_one_warning(cuda, counts, monkeypatch):
    compile = type(cuda.launcher).compile
    asked = []

    def failing(launcher, text):
        if "hypot" in text or "row_softmax" in text or "softmax" in text:
            asked.append(text)
            raise CompileError("NVRTC cannot compile a kernel")
        return compile(launcher, text)

    monkeypatch.setattr(type(cuda.launcher), "compile", failing)
    x = wf.rand(3, 4).requires_grad_()
    there = x.detach().cuda().requires_grad_()
    for name, run in (("hypot", lambda t: wf.hypot(t, t)), ("softmax", lambda t: t.softmax(-1))):
        with pytest.warns(UserWarning, match=f"{name}.*: no native kernel .*; the CPU computes it, slower"):
            y = run(there)
        count = len(asked)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y = run(there)
        assert len(asked) == count and y.is_cuda, "it is not tried again"
        np.testing.assert_allclose(y.detach().cpu().numpy(), run(x).detach().numpy(), rtol=1e-6)
    step = wf.compile(lambda t: wf.hypot(t, t).sum())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        values = [step(there.detach()).item() for _ in range(4)]
    assert any("runs as plain Python, because its plan failed" in str(w.message) for w in said)
    assert len(set(values)) == 1


def test_a_device_that_fails_is_named(cuda, counts, monkeypatch):
    def lost(*arguments):
        raise cuda.xp.cuda.runtime.CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    x = wf.ones(2, device="cuda")
    fails = pytest.raises(OperationError, match=r"cuda:0 \(Stand-in\) has failed \(cudaErrorIllegalAddress.*start the")
    monkeypatch.setattr(type(cuda.launcher), "launch", lost)
    with fails as caught:
        x * 2
    assert "mul" in str(caught.value) and "CUDA_LAUNCH_BLOCKING=1" in str(caught.value)
    monkeypatch.setattr(cuda.xp.cuda.Device, "synchronize", lost)
    with pytest.raises(OperationError, match=r"synchronize: cuda:0 \(Stand-in\) has failed"):
        wf.cuda.synchronize()

"""What a call may take: loops leave nothing behind, and ops that need much more than their results are counted."""

import tracemalloc

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import OperationError

MB = 1 << 20


def _climbing(x):
    return wf.while_loop(lambda v: v.max() < 100, lambda v: (v + 0.5,), (x,))[0]


@pytest.fixture(scope="module")
def climbing(tmp_path_factory):
    path = tmp_path_factory.mktemp("loop") / "a.wf"
    wf.export(_climbing, (wf.full((4,), 95.0),), path)
    return path


def _peak(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("calls", [1, 3])
def test_a_turn_leaves_nothing_behind(climbing, grad, calls):
    program = wf.load_program(climbing, limit=MB, turns=3000)
    x = wf.full((4,), -1e5)
    with wf.set_grad_enabled(grad):
        for _ in range(calls - 1):
            program(wf.full((4,), 99.0))  # a call that would be recorded

        def call():
            with pytest.raises(OperationError, match="turned 3,000 times"):
                program(x)

        assert _peak(call) < 2 * MB


def test_calls_with_few_turns_are_replayed(climbing):
    program = wf.load_program(climbing)
    for start in (98.0, 98.0, 98.0, 97.0, 98.0, 98.0, 98.0, 98.0):
        np.testing.assert_array_equal(program(wf.full((4,), start)).numpy(), np.full(4, 100.0))
    assert "because it" not in str(program._run.explain())


def test_what_gradients_keep_of_a_loop_is_counted(climbing):
    program = wf.load_program(climbing, limit=MB)
    x = wf.full((4,), 90.0, requires_grad=True)
    program(x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.ones(4))
    with pytest.raises(OperationError, match="for its gradient"):
        program(wf.full((4,), -1e5, requires_grad=True))


HEAVY = {
    "mode": lambda x: x.mode(0)[0],
    "median": lambda x: x.median(),
    "kthvalue": lambda x: x.kthvalue(5)[0],
    "inv": lambda x: wf.linalg.inv(x.reshape(256, 256)),
    "svdvals": lambda x: wf.linalg.svdvals(x.reshape(256, 256)),
    "qr": lambda x: wf.linalg.qr(x.reshape(-1, 4))[1],
    "median of an expanded value": lambda x: x[:1000].expand(100, 1000).median(),
    "matrix_exp": lambda x: wf.linalg.matrix_exp(x.reshape(256, 256)),
}


@pytest.mark.parametrize("name", HEAVY)
def test_what_an_op_needs_on_its_way_is_counted(name, tmp_path):
    f, x = HEAVY[name], wf.randn(1 << 16) + (wf.eye(256) * 30).reshape(-1)
    wf.export(f, (x,), tmp_path / "a.wf")
    wf.load_program(tmp_path / "a.wf", limit=32 * MB)(x)
    with pytest.raises(wf.errors.WayfareError, match="of workspace"):
        wf.load_program(tmp_path / "a.wf", limit=len(x) * 4 * 2)(x)


def test_results_are_counted_before_they_are_made(tmp_path):
    def f(x):
        a = x + 1
        b = x * 2
        return (a * b).sum()

    x = wf.randn(1 << 16)
    wf.export(f, (x,), tmp_path / "a.wf")
    wf.load_program(tmp_path / "a.wf", limit=MB, compiled=False)(x)
    program = wf.load_program(tmp_path / "a.wf", limit=3 * (1 << 16) * 4 - 1, compiled=False)
    with pytest.raises(OperationError, match="with the result of mul its values take"):
        program(x)
